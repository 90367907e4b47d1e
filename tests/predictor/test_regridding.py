"""The caller's own grid: there and back, what is said about it, and what counts as known."""

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
from pibert.predictor import InputWarning, Predictor
from pibert.predictor.regridding import Regridding
from tests.helpers import tiny_model, tiny_spec
from tests.predictor.small import NORMALIZER, SHAPE, frames, predictor

MODEL = Grid(SHAPE, dx=0.3, dy=0.2)  # 6 wide, 2.4 high
PREDICTOR = predictor()


def said(predict: Predictor, x: Tensor, **arguments: Any) -> str:
    with pytest.warns(InputWarning) as caught:
        predict.step(x, **arguments)
    (warning,) = caught
    return str(warning.message)


def untrained() -> Predictor:
    """Persistence: what comes back is what went in, through the model's grid."""
    return Predictor(tiny_model(spec=tiny_spec(SHAPE)), NORMALIZER)


def affine(grid: Grid) -> Tensor:
    """Fields that resampling keeps."""
    x, y = grid.coordinates(torch.float64)
    return torch.stack((1.0 + 0.1 * x - 0.3 * y, 0.2 * y + 0.05 * x))[None, None]


def test_the_models_own_grid_is_no_reason_to_speak() -> None:
    x = frames()
    expected = PREDICTOR.step(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Elsewhere in the world, and as single precision has it.
        for grid in (MODEL, replace(MODEL, origin=(7.0, -3.0)), replace(MODEL, dx=0.3 + 1e-6)):
            assert torch.equal(PREDICTOR.step(x, grid=grid), expected)


@settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(rows=st.integers(4, 40), columns=st.integers(4, 40))
def test_smooth_fields_on_any_grid_come_back_as_they_went(rows: int, columns: int) -> None:
    grid = Resizer(MODEL, (rows, columns)).new_grid
    x = affine(grid)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        found = untrained().step(x, grid=grid)
    assert torch.allclose(found, x, atol=1e-5)


@settings(max_examples=6, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(batch=st.integers(1, 5), chunk=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_sample_does_not_depend_on_its_company(batch: int, chunk: int, seed: int) -> None:
    predict = Predictor(PREDICTOR.model, NORMALIZER, chunk=chunk)
    x = frames(batch, seed=seed)
    together = predict.rollout(x, 2)
    for place in range(batch):
        assert torch.allclose(predict.rollout(x[place], 2), together[place], atol=1e-4)


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


def test_the_warning_says_from_and_to_and_what_is_lost() -> None:
    text = said(PREDICTOR, torch.ones(1, 1, 2, 24, 10), grid=Grid((24, 10), dx=0.6, dy=0.1))
    assert "24 x 10 points" in text and "model's 12 x 20" in text
    assert "1.2 in x, 0.4 in y" in text  # two cells: of the fields in x, of the model in y
    assert "assumed" not in text and "scale" not in text


def test_a_shape_alone_leaves_the_spacing_to_be_assumed() -> None:
    text = said(PREDICTOR, torch.ones(1, 1, 2, 24, 10))
    assert "assumed that they cover the model's domain, 6 x 2.4" in text


def test_a_domain_of_another_size_is_another_scale() -> None:
    x = frames()
    text = said(PREDICTOR, x, grid=Grid(SHAPE, dx=0.6, dy=0.4))
    assert "12 x 4.8" in text and "6 x 2.4" in text and "cells of 0.6 x 0.4" in text
    assert "divided by 2 in x and 2 in y" in text and "distorted" not in text
    assert "resampled" not in text
    with pytest.warns(InputWarning):
        assert torch.equal(PREDICTOR.step(x, grid=Grid(SHAPE, dx=0.6, dy=0.4)), PREDICTOR.step(x))
    text = said(PREDICTOR, torch.ones(1, 1, 2, 24, 40), grid=Grid((24, 40), dx=0.3, dy=0.1))
    assert "resampled" in text and "divided by 2 in x and 1 in y, so its shapes are dist" in text


def test_other_sides_are_named_where_they_are_told() -> None:
    walls = Sides(Boundary.INFLOW, Boundary.OUTFLOW, Boundary.WALL, Boundary.WALL)
    text = said(PREDICTOR, frames(), grid=replace(MODEL, sides=walls))
    assert "inflow, outflow, wall, wall" in text and "open, open, open, open" in text


def test_a_grid_of_another_shape_than_the_fields_is_refused() -> None:
    with pytest.raises(ValueError, match=r"grid of 20 x 12 points that was given, found 12 x 20"):
        PREDICTOR.step(frames(), grid=Grid((20, 12)))


@pytest.mark.parametrize("shape", [(24, 40), (18, 30), (7, 9), (6, 50)])
def test_a_point_is_known_if_half_of_its_cell_is(shape: tuple[int, int]) -> None:
    with pytest.warns(InputWarning):
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


@pytest.mark.parametrize("shape", [(61, 89), (24, 40), (30, 37), (11, 18), (48, 80)])
def test_scattered_unknown_points_do_not_spread(shape: tuple[int, int]) -> None:
    with pytest.warns(InputWarning):
        regrid = Regridding(shape, None, MODEL)
    known = torch.rand(40, 1, *shape, generator=torch.Generator().manual_seed(0)) > 0.011
    x = torch.where(known[:, :, None], 2.0, torch.nan).expand(-1, -1, 2, -1, -1)
    found, kept = regrid.to_model(x, known)
    assert float((~kept).double().mean()) < 0.012
    assert bool((found[kept[:, :, None].expand_as(found)] == 2).all())
    back = regrid.to_caller(torch.where(kept[:, :, None], found, 0.0), kept[:, 0])
    assert bool(torch.isclose(back, torch.tensor(2.0)).all())


def test_what_lies_at_unknown_points_of_a_foreign_grid_never_matters() -> None:
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


def test_guesses_inside_a_body_do_not_leak_into_the_flow() -> None:
    """Persistence at points that it does not see answers zero: the mean of training."""
    body = torch.zeros(SHAPE, dtype=torch.bool)
    body[4:8, 6:10] = True
    spec = replace(tiny_spec(SHAPE), grid=replace(MODEL, body=body))
    predict = Predictor(tiny_model(spec=spec), NORMALIZER)
    fine = Resizer(MODEL, (24, 40))
    x = torch.full((1, 1, 2, 24, 40), 5.0)
    with pytest.warns(InputWarning):
        found = predict.step(x, grid=fine.new_grid)
    outside = ~fine.resize_body(body)
    assert torch.allclose(found[..., outside], torch.tensor(5.0), atol=1e-5)


def test_filling_on_a_foreign_grid_keeps_what_is_known_bit_for_bit() -> None:
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
    x = frames(1)
    expected = PREDICTOR.rollout(x, 3)
    for given_, count in ((x[0], 4), (x[0, 0], 3)):
        found = PREDICTOR.rollout(given_, 3)
        assert torch.equal(found, expected[0])
        assert PREDICTOR.step(given_.numpy()).shape == (1, 2, *SHAPE)
        assert PREDICTOR.consistency(given_).shape == ()
        mask = torch.ones(SHAPE, dtype=torch.bool)
        mask[3, 4] = False
        assert PREDICTOR.fill(given_, mask).ndim == count
        masked = PREDICTOR.step(given_, mask=mask)
        assert torch.equal(masked, PREDICTOR.step(x, mask=mask)[0])
        assert torch.equal(masked, PREDICTOR.step(given_, mask=mask[None]))
    two = predictor(history=2)
    x = frames(1, 2)
    assert torch.equal(two.step(x[0]), two.step(x)[0])
    with pytest.raises(ValueError, match=r"found \(2, 12, 20\)"):
        two.step(x[0, 0])


def test_values_far_from_all_training_are_doubted() -> None:
    x = frames()
    x[1, 0, 1, 2, 3] = 250.0  # mm/s for m/s, say: the std of v is 2
    with pytest.warns(InputWarning) as caught:
        PREDICTOR.step(x)
    (warning,) = caught
    text = str(warning.message)
    assert "channel 'v' holds 250, 125 standard deviations" in text
    assert "between -6.25 and 5.75" in text and "other units?" in text
    # The checker of the tests stands between the caller and the package.
    assert Path(warning.filename).name in (Path(__file__).name, "checking.py")
    mask = torch.ones(3, *SHAPE, dtype=torch.bool)
    mask[1, 2, 3] = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PREDICTOR.step(x, mask=mask)
        x[1, 0, 1, 2, 3] = 90.0  # 45 standard deviations
        PREDICTOR.step(x)


def test_strided_arrays_are_the_same_fields() -> None:
    x = frames().numpy()
    expected = PREDICTOR.step(x)
    wide = np.zeros((*x.shape[:-1], 40), np.float32)
    wide[..., ::2] = x
    turned = np.ascontiguousarray(x[..., ::-1, ::-1])
    for same in (wide[..., ::2], turned[..., ::-1, ::-1], np.asfortranarray(x)):
        assert not same.flags.c_contiguous
        assert np.array_equal(PREDICTOR.step(same), expected)
    assert np.array_equal(PREDICTOR.step(x[:1][::-1]), PREDICTOR.step(x[:1]))
    swapped = torch.from_numpy(np.ascontiguousarray(x.swapaxes(-1, -2))).transpose(-1, -2)
    assert torch.equal(PREDICTOR.step(swapped), torch.from_numpy(expected))


def test_a_batch_larger_than_the_chunk_stays_where_its_fields_are() -> None:
    """Seen from the model: a device that holds no more than a chunk of samples."""
    predict, sizes = predictor(chunk=2), []
    predict.model.register_forward_pre_hook(lambda _, given_: sizes.append(len(given_[0])))
    taken = predict._take(frames(5), None, None, None)
    assert taken.standardised().device == taken.fields.device
    predict.step(frames(5))
    assert sizes == [2, 2, 1]


def test_spacings_within_a_hundredth_of_the_models_are_taken_point_by_point() -> None:
    predict, x = predictor(), frames()
    near = Grid(SHAPE, dx=0.3 * 1.009, dy=0.2 * 0.992)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = predict.step(x, grid=near)
    assert torch.equal(found, predict.step(x))
    with pytest.warns(InputWarning, match="lengths divided by 1.011 in x and 1 in y"):
        predict.step(x, grid=Grid(SHAPE, dx=0.3 * 1.011, dy=0.2))


def test_widths_stay_positive_on_the_callers_grid() -> None:
    with pytest.warns(InputWarning):
        regrid = Regridding((31, 50), None, MODEL)
    generator = torch.Generator().manual_seed(0)
    width = 1e-6 + torch.rand(2, 3, 2, *SHAPE, generator=generator) ** 8
    seen = torch.rand(2, *SHAPE, generator=generator) > 0.1
    found = regrid.to_caller(width, seen, bounded=True)
    assert float(found.min()) >= 1e-6 * (1 - 1e-5) and float(found.max()) <= float(width.max())
