"""Maps of picked frames: one scale for what is compared, grey where nothing is known."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from pibert.evaluation.scores import Scores
from pibert.report.comparison import fields
from pibert.report.comparison.board import Board
from tests.report.comparison.cut_board import drawn_once, make_board, many, spec, truth


def images(figure, colours: str) -> list:
    found = [image for ax in figure.axes for image in ax.images]
    # Colour bars hold no images of the field's shape.
    return [i for i in found if i.get_cmap().name == colours and i.get_array().shape == (16, 48)]


def without(board: Board, *prefixes: str) -> Board:
    """The same board without some arrays."""
    kept = {
        key: Scores(s.card, {n: a for n, a in s.arrays.items() if not n.startswith(prefixes)})
        for key, s in board.scores.items()
    }
    return replace(board, scores=kept)


@pytest.mark.parametrize("count", [3, 15])
@pytest.mark.parametrize("draw", [fields.overview, fields.components, fields.winner_components])
def test_every_figure_can_be_drawn(draw, count: int) -> None:
    drawn = drawn_once(draw, count)
    if draw is fields.overview or count == 15:  # arranging panels takes its time
        drawn.figure.draw_without_rendering()
    assert "wakes" in drawn.caption and "frames picked by a coin" in drawn.caption
    assert len(drawn.alt) > 20


def test_no_number_of_an_axis_is_cut_or_runs_into_another() -> None:
    """Coordinates of a wake in metres, whose labels are long and lie near the ends."""
    own = spec()
    grid = replace(own.grid, dx=0.0044, dy=0.0066, origin=(-0.0525, -0.0525))
    drawn = fields.overview(make_board(15, own=replace(own, grid=grid)))
    assert drawn is not None
    figure = drawn.figure
    figure.draw_without_rendering()
    labels = []
    for axis in (axis for ax in figure.axes if ax.axison for axis in (ax.xaxis, ax.yaxis)):
        low, high = sorted(axis.get_view_interval())
        drawn_ticks = [t for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
        labels += [t.label1 for t in drawn_ticks if t.label1.get_visible()] + [axis.label]
    labels = [text for text in labels if text.get_text()]
    boxes = [text.get_window_extent() for text in labels]
    assert len(boxes) > 20
    room = figure.bbox
    for text, box in zip(labels, boxes, strict=True):
        assert room.x0 <= box.x0 and box.x1 <= room.x1, text
        assert room.y0 <= box.y0 and box.y1 <= room.y1, text
    pairs = itertools.combinations(zip(labels, boxes, strict=True), 2)
    assert [(a.get_text(), b.get_text()) for (a, x), (b, y) in pairs if x.overlaps(y)] == []


def test_one_model_is_enough() -> None:
    assert fields.overview(make_board(names=("dmd",))) is not None
    assert fields.components(make_board(names=("dmd",))) is not None


def test_all_fields_share_the_scale_of_the_truth_and_all_errors_one() -> None:
    drawn = drawn_once(fields.overview, 15)
    shown, errors = images(drawn.figure, "viridis"), images(drawn.figure, "coolwarm")
    assert len(shown) == 8 and len(errors) == 7
    assert {i.get_clim() for i in shown} == {
        (float(shown[0].get_array().min()), float(shown[0].get_array().max()))
    }
    ((low, high),) = {i.get_clim() for i in errors}
    assert low == -high


def test_the_scale_of_errors_is_not_that_of_the_one_model_that_is_far_off() -> None:
    truth_layer = fields.Layer(np.ma.masked_array(np.ones((4, 5))))
    errors = [fields.Layer(np.ma.masked_array(np.full((4, 5), x))) for x in (0.1, 0.2, -50.0)]
    assert fields.error_limit(errors, truth_layer) == pytest.approx(0.2)


def test_errors_are_prediction_minus_truth_of_the_speed() -> None:
    board = make_board(3)
    drawn = drawn_once(fields.overview, 3)
    u, v = truth(spec())[1].float().double()
    a, b = board.first("pibert").arrays["picks/prediction"][1].double()
    expected = torch.hypot(a, b) - torch.hypot(u, v)
    found = images(drawn.figure, "coolwarm")[1].get_array()
    assert np.allclose(found.compressed(), expected.numpy()[~found.mask])


def test_body_and_unknown_points_are_masked_in_every_panel() -> None:
    expected = np.zeros((16, 48), bool)
    expected[5:9, 6:10] = True
    expected[0, :3] = True
    for draw in (fields.overview, fields.hard_overview):
        drawn = drawn_once(draw, 3)
        assert drawn is not None
        for image in (*images(drawn.figure, "viridis"), *images(drawn.figure, "coolwarm")):
            assert np.array_equal(np.ma.getmaskarray(image.get_array()), expected)


def test_models_stand_in_the_order_of_their_rank() -> None:
    drawn = drawn_once(fields.overview, 15)
    heads = [text for ax in drawn.figure.axes if (text := ax.get_title(loc="left"))]
    assert heads == ["truth", *(f"{n}. {m}" for n, m in enumerate(many(7), start=1))]


def test_each_overview_shows_its_own_frame() -> None:
    words = ("a, frame 3 (Re = 50)", "c, frame 8 (Re = 150)", "c, frame 14 (Re = 150)")
    for draw, place, expected in zip(
        (fields.easy_overview, fields.overview, fields.hard_overview), range(3), words, strict=True
    ):
        drawn = drawn_once(draw, 3)
        assert expected in drawn.caption
        u, v = truth(spec())[place].float().double()
        found = images(drawn.figure, "viridis")[0].get_array()
        assert np.allclose(found.compressed(), torch.hypot(u, v).numpy()[~found.mask])


def test_components_are_those_of_pibert_and_of_the_winner_on_the_same_scales() -> None:
    # The unet is the best.
    own, best = drawn_once(fields.components, 3), drawn_once(fields.winner_components, 3)
    assert "prediction of pibert (rank 2 of 3)" in own.caption
    assert "prediction of unet (rank 1 of 3)" in best.caption
    limits = [[i.get_clim() for i in images(d.figure, "coolwarm")] for d in (own, best)]
    assert limits[0] == limits[1] and len(limits[0]) == 4
    labels = [ax.get_ylabel().split("\n")[0] for ax in own.figure.axes if "\n" in ax.get_ylabel()]
    assert labels == ["u [m/s]", "v [m/s]", "|u| [m/s]", "vorticity [1/s]"]


def test_the_winner_has_no_figure_of_its_own_where_it_is_pibert() -> None:
    board = make_board(names=("pibert", "unet", "persistence"))
    assert fields.components(board) is not None
    assert fields.winner_components(board) is None


def test_fields_that_are_no_flow_are_shown_channel_by_channel() -> None:
    board = make_board(3, own=spec(body=False, family="diffusion"))
    drawn, parts = fields.overview(board), fields.components(board)
    assert drawn is not None and parts is not None
    assert "u [m/s] of the truth" in drawn.caption
    assert parts.alt.startswith("Maps of u, v:")


@pytest.mark.parametrize("draw", fields.FIGURES)
def test_nothing_is_drawn_without_picked_frames(draw) -> None:
    assert draw(without(make_board(3), "picks/")) is None


def test_a_tall_view_fits_the_sheet() -> None:
    own = spec(body=False)
    tall = replace(own, grid=replace(own.grid, dx=0.01))
    drawn = fields.overview(make_board(7, own=tall))
    assert drawn is not None
    width, _ = drawn.figure.get_size_inches()
    assert width < 11
    for ax in drawn.figure.axes:
        box = ax.get_position()
        assert box.x0 >= 0 and box.x1 <= 1 and box.y0 >= 0 and box.y1 <= 1
