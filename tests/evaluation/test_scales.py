"""Pooling and Haar bands against loops over cells, and against the published numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pibert.evaluation.scales import BANDS, GROUPS, SCALES, HaarBands, PooledScales, haar
from pibert.fields import FieldSpec, Grid
from tests.evaluation.masked_frames import (
    MIXED,
    MIXED_NORMALIZER,
    NORMALIZER,
    SPEC,
    make_body,
    make_frames,
    values_of,
)

FRAMES = make_frames(body=make_body(moving=True))
WHOLE = replace(FRAMES, known=torch.ones_like(FRAMES.known), body=None)


def pooled_nmse(frames, size: int, channels: list[int], scales=(1.0, 1.0, 1.0)) -> float:
    error = energy = 0.0
    ny, nx = frames.known.shape[1:]
    for t, c in np.ndindex(len(frames.known), len(channels)):
        channel = channels[c]
        for j, i in np.ndindex(ny // size, nx // size):
            cell = (slice(j * size, (j + 1) * size), slice(i * size, (i + 1) * size))
            known = frames.known[(t, *cell)]
            if int(known.sum()) * 2 < size * size:
                continue
            p, y = (
                float(f[(t, channel, *cell)][known].mean()) / scales[channel]
                for f in (frames.prediction, frames.truth)
            )
            error += (p - y) ** 2
            energy += y**2
    return error / energy


@pytest.mark.parametrize("size", SCALES)
def test_pooled_errors_are_those_of_a_loop_over_cells(size: int) -> None:
    found = values_of(PooledScales(spec=SPEC, normalizer=NORMALIZER), FRAMES)
    for component, channels in {"u": [0], "v": [1], "all": [0, 1]}.items():
        expected = pooled_nmse(FRAMES, size, channels)
        assert found[f"scale_{size}_nmse", component] == pytest.approx(expected, rel=1e-12)


def test_channels_of_different_units_are_pooled_in_units_of_their_stds() -> None:
    frames = make_frames(MIXED, body=make_body(moving=False))
    found = values_of(PooledScales(spec=MIXED, normalizer=MIXED_NORMALIZER), frames)
    expected = pooled_nmse(frames, 2, [0, 1, 2], MIXED_NORMALIZER.std)
    assert found["scale_2_nmse", "all"] == pytest.approx(expected, rel=1e-12)


def coefficient(f: np.ndarray, band: str, j: int, i: int) -> float:
    """An inner product with the Haar function itself."""
    size = 2 ** int(band[2])
    cell = f[j * size : (j + 1) * size, i * size : (i + 1) * size]
    step = np.repeat([1.0, -1.0], size // 2)
    along_x = step if band[0] == "H" else np.ones(size)
    along_y = step if band[1] == "H" else np.ones(size)
    return float((cell * np.outer(along_y, along_x)).sum() / size)


@pytest.mark.parametrize("band", BANDS)
def test_band_errors_are_those_of_inner_products_with_haar_functions(band: str) -> None:
    found = values_of(HaarBands(spec=SPEC), FRAMES)
    size = 2 ** int(band[2])
    for c, channel in enumerate(SPEC.channels):
        error = energy = 0.0
        for t, j, i in np.ndindex(5, 13 // size, 22 // size):
            cell = (t, slice(j * size, (j + 1) * size), slice(i * size, (i + 1) * size))
            if not bool(FRAMES.known[cell].all()):
                continue
            truth = coefficient(FRAMES.truth[t, c].numpy(), band, j, i)
            error += (coefficient(FRAMES.prediction[t, c].numpy(), band, j, i) - truth) ** 2
            energy += truth**2
        assert found["haar_nmse", f"{channel}_{band}"] == pytest.approx(error / energy, rel=1e-11)


def test_the_transform_keeps_energy() -> None:
    fields = torch.randn(3, 8, 12, dtype=torch.float64)
    energy = sum(band.square().sum() for band in haar(fields))
    torch.testing.assert_close(energy, fields.square().sum())


def test_the_error_at_scale_8_mixes_the_coarsest_bands_by_their_energy() -> None:
    # By which the published numbers were recognised as Haar's.
    pooled = values_of(PooledScales(spec=SPEC, normalizer=NORMALIZER), WHOLE)
    bands = values_of(HaarBands(spec=SPEC), WHOLE)
    energy = torch.nn.functional.avg_pool2d(WHOLE.truth, 8).square().sum((0, 2, 3))
    weight = float(energy[0] / energy.sum())
    mix = weight * bands["haar_nmse", "u_LL3"] + (1 - weight) * bands["haar_nmse", "v_LL3"]
    assert pooled["scale_8_nmse", "all"] == pytest.approx(mix, rel=1e-12)


def test_groups_of_the_published_bands_are_the_published_groups() -> None:
    # PIBERT on the cylinder: sub-band NMSEs and their groups, as published.
    u = "0.444497 0.257064 1.08333 0.298702 0.217086 0.729208 0.135829 0.0572294 0.311729 0.0113706"
    v = "0.331403 0.543149 1.01016 0.179759 0.355837 0.648043 0.067959 0.183043 0.256971 0.0389022"
    nmse = torch.tensor([[float(n) for n in row.split()] for row in (u, v)], dtype=torch.float64)
    sums = torch.stack((nmse, torch.ones_like(nmse)), dim=-1).flatten()
    groups = HaarBands(spec=SPEC).values(sums)[-len(GROUPS) :]
    assert groups.tolist() == pytest.approx([0.1329, 0.4048, 0.6116], abs=5e-5)


def test_grids_too_small_for_three_levels_are_refused() -> None:
    spec = FieldSpec(grid=Grid((7, 40)))
    with pytest.raises(ValueError, match="at least 8 x 8"):
        HaarBands(spec=spec)
    assert PooledScales(spec=spec, normalizer=NORMALIZER).scales == (1, 2, 4)
