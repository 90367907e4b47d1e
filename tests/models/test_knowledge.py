"""Every trained candidate of the comparisons has the same knowledge of the flow as PIBERT."""

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.comparison.presets import PRESETS
from pibert.fields import Boundary, Grid, Sides
from pibert.models import layers
from tests.helpers import TINY_OPTIONS, assert_close, randomise, tiny_model, tiny_spec

SHAPE = (12, 16)
CANDIDATES = {
    candidate.model.name: dict(candidate.model.options)
    for plan in PRESETS.values()
    for candidate in plan.candidates.values()
    if candidate.is_trained
}
"""Options of one candidate of each trained model in the plans."""
NAMES = [
    name
    for name in CANDIDATES
    if name != "neuraloperator" or importlib.util.find_spec("neuralop") is not None
]


def candidate(name: str, **options: Any) -> Any:
    """A small model that gets the inputs that its candidate gets, with random weights."""
    inputs = {
        key: value
        for key, value in CANDIDATES[name].items()
        if key in ("parameters", "coordinates", "mask")
    }
    chosen = dict(TINY_OPTIONS[name]) | inputs | options
    return randomise(tiny_model(name, tiny_spec(SHAPE), **chosen)).eval()


def draw(*size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_point_differs_from_one_with_the_mean_value(name: str) -> None:
    model, x = candidate(name), draw(1, 2, *SHAPE)
    mask = torch.ones(SHAPE, dtype=torch.bool)
    mask[3:7, 5:10] = False
    zeros = torch.where(mask, x, 0.0)
    assert (model(zeros, None, mask) - model(zeros)).abs().max() > 1e-5
    assert torch.equal(model(torch.where(mask, x, 9.0), None, mask), model(zeros, None, mask))


@pytest.mark.parametrize("name", NAMES)
def test_the_prediction_depends_on_the_place(name: str) -> None:
    """A uniform field on a periodic grid looks the same everywhere but for the coordinates."""
    grid = Grid(SHAPE, dx=0.3, dy=0.2, sides=Sides(*[Boundary.PERIODIC] * 4))
    inputs = {k: v for k, v in CANDIDATES[name].items() if k in ("coordinates", "parameters")}
    options = dict(TINY_OPTIONS[name]) | inputs
    model = randomise(tiny_model(name, tiny_spec(SHAPE, grid=grid), **options)).eval()
    change = model(torch.full((1, 2, *SHAPE), 0.7)) - 0.7
    assert (change - change.mean((2, 3), keepdim=True)).abs().max() > 1e-3


LEARNED = ("pibert", "fourierflow", "fourierflow-det")
"""Models with learned positions instead of coordinates."""


@pytest.mark.parametrize("name", [n for n in NAMES if n not in (*LEARNED, "neuraloperator")])
@pytest.mark.parametrize("axes", [(True, True), (True, False), (False, False)])
def test_all_models_get_the_same_coordinates(
    name: str, axes: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    along_y, along_x = (Boundary.PERIODIC if axis else Boundary.OPEN for axis in axes)
    grid = Grid(SHAPE, dx=0.3, dy=0.2, sides=Sides(along_x, along_x, along_y, along_y))
    inputs = {k: v for k, v in CANDIDATES[name].items() if k == "coordinates"}
    model = tiny_model(name, tiny_spec(SHAPE, grid=grid), **inputs)
    given: list[Tensor] = []

    def record(*arguments: Any) -> Tensor:
        given.append(coordinates(*arguments))
        return given[-1]

    coordinates = layers._coordinates
    monkeypatch.setattr(layers, "_coordinates", record)
    model(draw(1, 2, *SHAPE))
    (found,) = given
    assert found.shape == (1, 2 + sum(axes), *SHAPE)
    y, x = ((torch.arange(n, dtype=torch.float64) + 0.5) / n for n in SHAPE)
    expected = []
    for place, wraps in ((x, axes[1]), (y[:, None], axes[0])):
        turn = 2 * torch.pi * place
        start = -1 if name in ("pibert-mr", "deeponet2d") else 0  # a first layer absorbs it
        lines = (-turn.cos(), -turn.sin()) if wraps else (start + (1 - start) * place,)
        expected += [line.expand(SHAPE) for line in lines]
    assert_close(found[0].double(), torch.stack(expected))


@pytest.mark.parametrize("name", NAMES)
def test_all_frames_of_the_history_matter(name: str) -> None:
    model = candidate(name, history=3)
    x = draw(1, 6, *SHAPE).requires_grad_()
    model(x).square().sum().backward()
    assert x.grad is not None and x.grad.abs().amax((0, 2, 3)).min() > 0


@pytest.mark.parametrize("name", [name for name in NAMES if name != "pibert"])
def test_equation_terms_are_inputs_like_those_of_pibert(name: str) -> None:
    with_terms = candidate(name, equation_terms=True)
    assert with_terms.terms is not None and with_terms.terms.num_terms == 5
    x = draw(2, 2, *SHAPE)
    before = with_terms(x)
    assert before.shape == x.shape and before.isfinite().all()
    with_terms.calibrate(x)
    assert (with_terms(x) - before).abs().max() > 1e-6  # the scales of the terms matter
    assert_close(with_terms(x)[:1], with_terms(x[:1]))
