"""Fields on another grid: resampling, notes and unknown points."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pibert import Grid
from pibert.data.resample import Resizer
from pibert.fields import Boundary, Sides
from pibert.inference import InputWarning, Predictor
from pibert.inference.regridding import Regridding
from tests.helpers import refused, tiny_model, tiny_spec
from tests.inference.small import NORMALIZER, SHAPE, frames, predictor

MODEL = Grid(SHAPE, dx=0.3, dy=0.2)  # 6 wide, 2.4 high
PREDICTOR = predictor()
KNOWN = {"Re": 900.0}


def untrained() -> Predictor:
    """Persistence: what comes back is what went in, through the model's grid."""
    return Predictor(tiny_model(spec=tiny_spec(SHAPE)), NORMALIZER)


def affine(grid: Grid) -> Tensor:
    """Fields that resampling keeps."""
    x, y = grid.coordinates(torch.float64)
    return torch.stack((1.0 + 0.1 * x - 0.3 * y, 0.2 * y + 0.05 * x))[None, None]


def test_a_grid_within_one_percent_of_the_models_has_no_note() -> None:
    x, here = frames(), replace(MODEL, origin=(7.0, -3.0))
    expected = PREDICTOR.step(x, KNOWN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for grid in (MODEL, here, Grid(SHAPE, dx=0.3 * 1.009, dy=0.2 * 0.992)):
            assert torch.equal(PREDICTOR.step(x, KNOWN, grid=grid), expected)


@settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(rows=st.integers(4, 40), columns=st.integers(4, 40))
def test_smooth_fields_survive_resampling_to_any_grid_and_back(rows: int, columns: int) -> None:
    grid = Resizer(MODEL, (rows, columns)).new_grid
    x = affine(grid)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        found = untrained().step(x, grid=grid)
    assert torch.allclose(found, x, atol=1e-5)


def test_another_resolution_is_the_models_prediction_resampled() -> None:
    grid = Resizer(MODEL, (24, 40)).new_grid
    x = frames(2, seed=3).repeat_interleave(2, -1).repeat_interleave(2, -2)
    blocks = x.unflatten(-1, (20, 2)).unflatten(-3, (12, 2)).mean((-3, -1))  # the block average
    inner = PREDICTOR.rollout(blocks, 2)
    with pytest.warns(InputWarning, match="resampled"):
        found = PREDICTOR.rollout(x, 2, grid=grid)
    assert found.shape == (2, 2, 2, 24, 40)
    back = Resizer(MODEL, (24, 40)).resize(inner.flatten(0, 1)).unflatten(0, (2, 2))
    assert torch.allclose(found, back, atol=1e-5)
    with pytest.warns(InputWarning):
        first, _ = PREDICTOR.iterate(x.numpy(), 2, grid=grid)
    assert isinstance(first, np.ndarray) and np.allclose(first, back[:, :1], atol=1e-5)


WALLS = Sides(Boundary.INFLOW, Boundary.OUTFLOW, Boundary.WALL, Boundary.WALL)


@pytest.mark.parametrize(
    ("grid", "named", "absent"),
    [
        # What is lost: two cells, of the fields in x, of the model in y.
        (Grid((24, 10), dx=0.6, dy=0.1), ("24 x 10", "12 x 20", "1.2 in x, 0.4 in y"), "assum"),
        ((24, 10), ("assum", "6 x 2.4"), "another scale"),
        (Grid(SHAPE, dx=0.6, dy=0.4), ("12 x 4.8", "6 x 2.4", "by 2 in x and 2 in y"), "resampled"),
        (Grid((24, 40), dx=0.3, dy=0.1), ("resampled", "by 2 in x and 1 in y"), "assumed"),
        (replace(MODEL, sides=WALLS), ("inflow, outflow, wall, wall", "open, open"), "resampled"),
    ],
)
def test_differences_between_grids_are_noted(
    grid: Grid | tuple[int, int], named: tuple[str, ...], absent: str
) -> None:
    """A shape alone leaves the spacing to be assumed."""
    shape = grid.shape if isinstance(grid, Grid) else grid
    given_: dict[str, Any] = {"grid": grid} if isinstance(grid, Grid) else {}
    notes = PREDICTOR.predict(torch.ones(1, 1, 2, *shape), **given_).notes
    text = " ".join(str(note) for note in notes)
    assert [own for own in named if own not in text] == [] and absent not in text


@pytest.mark.parametrize("shape", [(24, 40), (7, 9), (6, 50)])
def test_a_point_is_known_if_half_of_its_cell_is(shape: tuple[int, int]) -> None:
    regrid = Regridding(shape, Resizer(MODEL, shape).new_grid, MODEL)
    generator = torch.Generator().manual_seed(0)
    fields = torch.randn(2, 1, 2, *shape, generator=generator, dtype=torch.float64)
    known = torch.rand(2, 1, *shape, generator=generator) > 0.3
    found, kept = regrid.to_model(fields, known)
    assert 0 < kept.double().mean() < 1
    share = Resizer(Grid(shape, sides=MODEL.sides), MODEL.shape).average(
        known.double(), torch.ones(2, *shape, dtype=torch.bool)
    )
    assert torch.equal(kept, share >= 0.5 - 1e-9)
    # What is unknown may be anything.
    other = torch.where(known[:, :, None], fields, torch.nan)
    here = kept[:, :, None].expand_as(found)
    assert torch.equal(regrid.to_model(other, known)[0][here], found[here])


def test_values_at_unknown_points_of_another_grid_have_no_influence() -> None:
    grid = Resizer(MODEL, (24, 40)).new_grid
    x = torch.randn(2, 1, 2, 24, 40, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 24, 40, dtype=torch.bool)
    mask[0, 5:9, 11:14] = False
    holed = torch.where(mask[:, None, None], x, torch.nan)
    body = torch.zeros(24, 40, dtype=torch.bool)
    body[18:21, 3:6] = True
    with pytest.warns(InputWarning):
        expected = PREDICTOR.rollout(x, 2, mask=mask & ~body, grid=grid)
        found = PREDICTOR.rollout(holed, 2, mask=mask, grid=replace(grid, body=body))
    assert torch.equal(found, expected) and bool(found.isfinite().all())


def test_filling_on_another_grid_keeps_known_values_bit_for_bit() -> None:
    grid = Resizer(MODEL, (24, 40)).new_grid
    x = affine(grid).float()
    known = torch.ones(24, 40, dtype=torch.bool)
    known[8:12, 20:25] = False
    with pytest.warns(InputWarning):
        found = untrained().fill(torch.where(known, x, torch.nan), known, grid=grid)
    assert torch.equal(found[..., known], x[..., known])
    assert torch.allclose(found, x, atol=0.05)  # the head starts from a smooth field
    with pytest.warns(InputWarning):
        assert PREDICTOR.consistency(x, grid=grid).shape == (1,)


def test_single_frames_and_windows_come_back_without_a_batch() -> None:
    x, mask = frames(1), torch.ones(SHAPE, dtype=torch.bool)
    mask[3, 4] = False
    expected, masked = PREDICTOR.rollout(x, 3), PREDICTOR.step(x, mask=mask)
    for given_, count in ((x[0], 4), (x[0, 0], 3)):
        assert torch.equal(PREDICTOR.rollout(given_, 3), expected[0])
        assert PREDICTOR.step(given_.numpy()).shape == (1, 2, *SHAPE)
        assert PREDICTOR.consistency(given_).shape == ()
        assert PREDICTOR.fill(given_, mask).ndim == count
        assert torch.equal(PREDICTOR.step(given_, mask=mask), masked[0])
        assert torch.equal(PREDICTOR.step(given_, mask=mask[None]), masked[0])
    two, x = predictor(history=2), frames(1, 2)
    assert torch.equal(two.step(x[0]), two.step(x)[0])
    with refused((2, 12, 20)):
        two.step(x[0, 0])


def test_values_far_from_the_training_data_are_noted() -> None:
    x = frames()
    x[1, 0, 1, 2, 3] = 250.0  # mm/s for m/s, say: the std of v is 2
    with pytest.warns(
        InputWarning, match=r"'v' holds 250, 125 standard .*-6.25 and 5.75"
    ) as caught:
        PREDICTOR.step(x, KNOWN)
    # The checker of the tests stands between the caller and the package.
    assert Path(caught[0].filename).name in (Path(__file__).name, "checking.py")
    mask = torch.ones(3, *SHAPE, dtype=torch.bool)
    mask[1, 2, 3] = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PREDICTOR.step(x, KNOWN, mask=mask)
        x[1, 0, 1, 2, 3] = 90.0  # 45 standard deviations
        PREDICTOR.step(x, KNOWN)
