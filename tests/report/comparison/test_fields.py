"""Maps and cross-sections of picked frames: they show the values, on one scale where compared."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pibert.evaluation.regions import paper_column
from pibert.evaluation.scores import Scores
from pibert.fields import Boundary, Parameter, Sides
from pibert.report.comparison import fields, wake
from pibert.report.comparison.results import DatasetResults
from tests.report.comparison.invented_results import invented, once, spec, without

OVERVIEWS = (fields.easy_overview, fields.overview, fields.hard_overview)
FIGURES = (*OVERVIEWS, fields.components, wake.multiscale, wake.cross_sections)


def images(figure: Any, colours: str) -> list[Any]:
    found = [image for ax in figure.axes for image in ax.images]
    # Colour bars hold no images of the field's shape.
    shape = spec().grid.shape
    return [i for i in found if i.get_cmap().name == colours and i.get_array().shape == shape]


def picked(model: str | None, place: int) -> Tensor:
    """A picked frame as a model predicts it, or its truth."""
    scores = invented(3).first(model or "pibert")
    found: Tensor = scores.arrays[f"picks/{'prediction' if model else 'truth'}"][place].double()
    return found


def changed(data: DatasetResults, known: Tensor | None = None, **own: Any) -> DatasetResults:
    """With another spec or other unknown points."""
    found = {}
    for key, scores in data.scores.items():
        arrays = dict(scores.arrays)
        if known is not None:
            arrays["picks/known"] = known.expand(3, -1, -1)
        found[key] = Scores({**scores.card, "data": {**scores.card["data"], **own}}, arrays)
    return replace(data, scores=found)


def without_body(**changes: Any) -> dict[str, Any]:
    own = spec()
    return replace(own, grid=replace(own.grid, body=None), **changes).to_dict()


@pytest.mark.parametrize("draw", FIGURES)
def test_figures_need_picked_frames_and_those_of_wakes_a_body(draw: Any) -> None:
    assert draw(without(invented(3), "picks/")) is None
    scalars = changed(invented(3), spec=without_body(family="heat"))
    assert draw(scalars) is not None  # channel by channel
    if draw in (wake.multiscale, wake.cross_sections):
        assert draw(changed(invented(3), spec=without_body(), has_body=False)) is None


def test_all_fields_share_the_scale_of_the_truth_and_all_errors_one() -> None:
    figure = once(fields.overview, 15).figure
    shown, errors = images(figure, "viridis"), images(figure, "coolwarm")
    assert len(shown) == 1 + len(errors)
    truth = shown[0].get_array()
    assert {i.get_clim() for i in shown} == {(float(truth.min()), float(truth.max()))}
    ((low, high),) = {i.get_clim() for i in errors}
    assert low == -high
    # One model that is far off does not decide.
    layers = [fields.Layer(np.ma.masked_array(np.full((4, 5), x))) for x in (0.1, 0.2, -50.0)]
    still = fields.Layer(np.ma.masked_array(np.ones((4, 5))))
    assert fields.error_limit(layers, still) == pytest.approx(0.2)


def test_overviews_show_the_speed_of_their_frame_and_its_errors_outside_the_body() -> None:
    body = spec().grid.body
    assert body is not None
    for place, draw in enumerate(OVERVIEWS):
        figure = once(draw, 3).figure
        truth, first = images(figure, "viridis")[0], images(figure, "coolwarm")[0]
        speed = torch.hypot(*picked(None, place))
        error = torch.hypot(*picked("pibert", place)) - speed
        for image, expected in ((truth, speed), (first, error)):
            found = image.get_array()
            assert np.array_equal(np.ma.getmaskarray(found), body.numpy())
            assert np.allclose(found.compressed(), expected.numpy()[~found.mask])


def test_the_sketch_shows_the_sides_and_whether_the_body_moves() -> None:
    def words(data: DatasetResults) -> tuple[list[str], str]:
        plot = wake.sketch(data)
        assert plot is not None
        return [text.get_text() for text in plot.figure.axes[0].texts], plot.caption

    channel = replace(
        spec().grid, sides=Sides(*map(Boundary, ("inflow", "outflow", "wall", "slip")))
    )
    at_rest, caption = words(changed(invented(3), spec=replace(spec(), grid=channel).to_dict()))
    assert at_rest[:4] == ["inflow", "outflow", "wall", "slip"]
    assert "0.84 m across" in caption and "moves" not in caption
    on_spring = replace(spec(), parameters=(Parameter(name="mass_ratio"),)).to_dict()
    moving, caption = words(changed(invented(3), spec=on_spring))
    assert len(moving) == len(at_rest) + 1 and "moves" in caption  # one more for the arrow
    assert wake.sketch(changed(invented(3), spec=without_body(), has_body=False)) is None
    assert wake.sketch(without(invented(3), "picks/")) is None
    border = torch.ones(spec().grid.shape, dtype=torch.bool)
    border[0, 0] = False  # outside a mesh
    assert wake.sketch(changed(invented(3), border, spec=without_body())) is None


def cuts_of(data: DatasetResults) -> wake.Cuts:
    frame = fields.pick(data, "median")
    assert frame is not None
    return wake.cuts_of(data, frame)


def test_cuts_are_tied_to_a_body_at_rest_or_moving() -> None:
    """Its diameter is 0.84: cuts 0.75 and 2 of it downstream of column 8, and the last column."""
    body = spec().grid.body
    assert body is not None
    at_rest = cuts_of(invented(3))
    assert [(s.label, s.column) for s in at_rest.slices] == [
        ("near body", 14),
        ("wake core", 25),
        ("far wake", 39),
    ]
    assert (at_rest.row, at_rest.first) == (12, 12)
    data = changed(invented(3), spec=without_body())
    # A moving body is where points inside the view are unknown; at the border they may be anything.
    assert cuts_of(data) == at_rest
    border = ~body
    border[0, 0] = False
    none = cuts_of(changed(data, border))
    assert none == cuts_of(changed(data, has_body=False))
    assert [s.column for s in none.slices] == [paper_column(n, 40) for n in (11, 32, 52)]
    assert (none.row, none.first, none.line) == (12, 0, "middle row")
