"""Vorticity, divergence, boundary and near-body errors against loops and by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pibert.evaluation.components import gradient_unit
from pibert.evaluation.flow_structure import BoundaryError, NearBodyError, VelocityGradients
from pibert.evaluation.geometry import boundary_points
from pibert.fields import FieldSpec, Grid
from tests.evaluation.masked_frames import (
    MIXED,
    MIXED_NORMALIZER,
    NORMALIZER,
    SHAPE,
    SPEC,
    make_body,
    make_frames,
    values_of,
)

FRAMES = make_frames(body=make_body(moving=True))
DX, DY = SPEC.grid.dx, SPEC.grid.dy


def inner_gradients(fields: np.ndarray, y: int, x: int) -> tuple[float, float]:
    """Vorticity and divergence by central differences."""
    along_x = (fields[:, y, x + 1] - fields[:, y, x - 1]) / (2 * DX)
    along_y = (fields[:, y + 1, x] - fields[:, y - 1, x]) / (2 * DY)
    return along_x[1] - along_y[0], along_x[0] + along_y[1]


def test_gradient_errors_are_those_of_a_loop_over_points_with_known_neighbours() -> None:
    known = FRAMES.known.clone()
    known[:, 0], known[:, -1] = False, False  # one-sided stencils are tested with derivatives
    known[..., 0], known[..., -1] = False, False
    frames = replace(FRAMES, known=known)
    true, wrong = [], []
    for t, y, x in np.ndindex(len(known), *SHAPE):
        near = [(y, x), (y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)]
        if known[t, y, x] and all(bool(known[(t, *point)]) for point in near):
            true.append(inner_gradients(frames.truth[t].numpy(), y, x))
            wrong.append(inner_gradients(frames.prediction[t].numpy(), y, x))
    y, p = np.array(true), np.array(wrong)
    error = np.mean((p - y) ** 2, axis=0)
    expected = {
        ("vorticity_rmse", "vorticity"): np.sqrt(error[0]),
        ("vorticity_nmse", "vorticity"): error[0] / np.mean(y[:, 0] ** 2),
        ("divergence_rmse", "divergence"): np.sqrt(error[1]),
        ("divergence_mean_square", "prediction"): np.mean(p[:, 1] ** 2),
        ("divergence_mean_square", "truth"): np.mean(y[:, 1] ** 2),
    }
    assert len(y) > 100
    assert values_of(VelocityGradients(spec=SPEC), frames) == pytest.approx(expected, rel=1e-11)


def test_linear_flows_have_the_gradients_of_their_formulas_up_to_the_border() -> None:
    x, y = SPEC.grid.coordinates(torch.float64)
    truth = torch.stack((2 * x - 3 * y, 5 * x - 2 * y))[None]  # vorticity 8, divergence 0
    answer = torch.stack((2 * x - 3 * y, 6 * x - y))[None]  # vorticity 9, divergence 1
    whole = torch.ones(1, *SHAPE, dtype=torch.bool)
    frames = replace(FRAMES, truth=truth, prediction=answer, last=truth, known=whole, body=None)
    found = values_of(VelocityGradients(spec=SPEC), frames)
    assert list(found.values()) == pytest.approx([1.0, 1 / 64, 1.0, 1.0, 0.0], abs=1e-12)


def test_a_prediction_that_is_not_finite_does_not_get_out_of_the_way() -> None:
    broken = replace(FRAMES, prediction=torch.full_like(FRAMES.prediction, torch.nan))
    found = values_of(VelocityGradients(spec=SPEC), broken)
    assert np.isnan(found["vorticity_rmse", "vorticity"])
    assert np.isfinite(found["divergence_mean_square", "truth"])


def region_errors(frames, where: torch.Tensor, channels: list[int], scales) -> tuple[float, float]:
    """Mean square error over a mask's points and some channels; and over the energy."""
    error = energy = 0.0
    count = 0
    for t, y, x in where.nonzero().tolist():
        for c in channels:
            p, truth = (float(f[t, c, y, x]) / scales[c] for f in (frames.prediction, frames.truth))
            error, energy, count = error + (p - truth) ** 2, energy + truth**2, count + 1
    return error / count, error / energy


def test_boundary_errors_are_means_over_frames_points_and_channels() -> None:
    found = values_of(BoundaryError(spec=SPEC, normalizer=NORMALIZER), FRAMES)
    assert FRAMES.body is not None
    where = boundary_points(FRAMES.body, SPEC.grid) & FRAMES.known
    for component, channels in {"u": [0], "v": [1], "all": [0, 1]}.items():
        mse, nmse = region_errors(FRAMES, where, channels, (1.0, 1.0))
        assert found["boundary_mse", component] == pytest.approx(mse, rel=1e-12)
        assert found["boundary_nmse", component] == pytest.approx(nmse, rel=1e-12)


def test_a_uniform_error_has_its_square_as_boundary_error_however_many_frames_there_are() -> None:
    measure = BoundaryError(spec=SPEC, normalizer=NORMALIZER)
    for count in (1, 40):
        frames = make_frames(count=count)
        frames = replace(frames, prediction=frames.truth + 0.5)
        found = values_of(measure, frames)
        assert found["boundary_mse", "all"] == pytest.approx(0.25)


@pytest.mark.parametrize("moving", [False, True])
def test_near_the_body_are_the_known_points_within_half_a_diameter(moving: bool) -> None:
    body = make_body(moving) if moving else make_body(False)[:1].expand(5, -1, -1)
    frames = make_frames(MIXED, body=body)
    where = torch.zeros_like(frames.known)
    for t, y, x in frames.known.nonzero().tolist():
        gaps = body[t].nonzero() - torch.tensor([y, x])
        nearest = min(math.hypot(j * DY, i * DX) for j, i in gaps.tolist())
        where[t, y, x] = nearest <= 0.3 + 1e-9  # the diameter is 3 rows of 0.2
    # One point on each side of the block: 3 + 3 of its rows and 4 + 4 of its columns.
    assert where[1].sum() <= 14 and where.any()
    found = values_of(NearBodyError(spec=MIXED, normalizer=MIXED_NORMALIZER), frames)
    for component, channels in {"u": [0], "p": [2], "all": [0, 1, 2]}.items():
        scales = MIXED_NORMALIZER.std if component == "all" else (1.0,) * 3
        mse, nmse = region_errors(frames, where, channels, scales)
        assert found["near_body_rmse", component] == pytest.approx(mse**0.5, rel=1e-12)
        assert found["near_body_nmse", component] == pytest.approx(nmse, rel=1e-12)


def test_without_a_body_nothing_is_near_it() -> None:
    found = values_of(NearBodyError(spec=SPEC, normalizer=NORMALIZER), make_frames())
    assert all(np.isnan(value) for value in found.values())


@pytest.mark.parametrize(
    ("unit", "length", "expected"),
    [
        ("m/s", None, "1/s"),
        ("m/s", "m", "1/s"),
        ("mm/s", "mm", "1/s"),
        ("m/s", "mm", "m/s/mm"),
        ("m/s", "D", "m/s/D"),
        ("1", None, "1"),
        ("1", "D", "U/D"),
        ("U", None, "U/length"),
    ],
)
def test_the_unit_of_a_gradient(unit: str, length: str | None, expected: str) -> None:
    assert gradient_unit(unit, length) == expected


def test_entries_carry_the_units() -> None:
    units = [entry.unit for entry in VelocityGradients(spec=SPEC, length_unit="m").entries]
    assert units == ["1/s", "1", "1/s", "(1/s)^2", "(1/s)^2"]
    entries = BoundaryError(spec=MIXED, normalizer=MIXED_NORMALIZER).entries
    assert [e.unit for e in entries[:4]] == ["(m/s)^2", "(m/s)^2", "(Pa)^2", "1"]


def test_fields_without_a_velocity_are_refused() -> None:
    spec = FieldSpec(channels=("u", "v"), family="reaction_diffusion", grid=Grid(SHAPE))
    with pytest.raises(ValueError, match="expected a velocity"):
        VelocityGradients(spec=spec)
