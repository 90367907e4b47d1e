"""Pointwise errors, errors of flow structure and along lines, against NumPy, loops and by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pibert.evaluation.geometry import boundary_points
from pibert.evaluation.measure import gradient_unit
from pibert.evaluation.pointwise import Pointwise, frame_errors
from pibert.evaluation.regions import (
    BoundaryError,
    NearBodyError,
    Slices,
    VelocityGradients,
    WakeLine,
    differentiate,
    stations,
)
from pibert.fields import Grid, Normalizer
from pibert.physics import derivatives
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


def known_lists(frames, component: str, scales=None) -> list[np.ndarray]:
    """Prediction, truth and last frame at all known points, one after the other."""
    lists = []
    for fields in (frames.prediction, frames.truth, frames.last):
        channels = fields.permute(1, 0, 2, 3)[:, frames.known].numpy()
        if component == "all":
            scale = np.ones(len(channels)) if scales is None else np.array(scales)
            lists.append((channels / scale[:, None]).ravel())
        elif component == "|u|":
            lists.append(np.sqrt(channels[0] ** 2 + channels[1] ** 2))
        else:
            lists.append(channels[frames.spec.channels.index(component)])
    return lists


@pytest.mark.parametrize("component", ["u", "v", "|u|", "all"])
def test_every_value_is_that_of_the_pooled_known_points(component: str) -> None:
    found = values_of(Pointwise(spec=SPEC, normalizer=NORMALIZER), FRAMES)
    p, y, last = known_lists(FRAMES, component)
    error = np.sum((p - y) ** 2)
    expected = {
        "nmse": error / np.sum(y**2),
        "rel_l2": np.linalg.norm(p - y) / np.linalg.norm(y),
        "rmse": np.sqrt(np.mean((p - y) ** 2)),
        "mae": np.mean(np.abs(p - y)),
        "lmae": np.mean(np.abs(p - y)),
        "lpcc": np.corrcoef(p, y)[0, 1],
        "r2": 1 - error / np.sum((y - y.mean()) ** 2),
        "skill": 1 - error / np.sum((last - y) ** 2),
    }
    assert {m: found[m, component] for m in expected} == pytest.approx(expected, rel=1e-12)


def test_channels_of_different_units_count_together_in_units_of_their_stds() -> None:
    frames = make_frames(MIXED, seed=3)
    measure = Pointwise(spec=MIXED, normalizer=MIXED_NORMALIZER)
    p, y, _ = known_lists(frames, "all", scales=MIXED_NORMALIZER.std)
    found = values_of(measure, frames)
    assert found["nmse", "all"] == pytest.approx(np.sum((p - y) ** 2) / np.sum(y**2), rel=1e-12)
    assert found["lpcc", "all"] == pytest.approx(np.corrcoef(p, y)[0, 1], rel=1e-12)
    units = {e.component: e.unit for e in measure.entries if e.metric == "rmse"}
    assert units == {"u": "m/s", "v": "m/s", "p": "Pa", "|u|": "m/s", "all": "1"}
    expected = [
        np.linalg.norm(p - y) / np.linalg.norm(y)
        for p, y, _ in (
            known_lists(frames[t : t + 1], "all", MIXED_NORMALIZER.std) for t in range(5)
        )
    ]
    np.testing.assert_allclose(frame_errors(frames, MIXED_NORMALIZER), expected, rtol=1e-12)


def test_a_large_mean_costs_no_digits() -> None:
    # About zero the sums of squares would have a relative error of 1e-16 * 1e12: no digit left.
    far = 1e6
    moved = replace(
        FRAMES, **{n: getattr(FRAMES, n) + far for n in ("prediction", "truth", "last")}
    )
    measure = Pointwise(spec=SPEC, normalizer=NORMALIZER)
    apart = Pointwise(spec=SPEC, normalizer=Normalizer((far, far), (1.0, 1.0)))
    expected, found = values_of(measure, FRAMES), values_of(apart, moved)
    for key in (("r2", "u"), ("lpcc", "v"), ("lpcc", "all"), ("rmse", "all"), ("skill", "u")):
        assert found[key] == pytest.approx(expected[key], rel=1e-7)


def test_a_prediction_that_is_not_finite_is_not_hidden() -> None:
    broken = FRAMES.prediction.clone()
    t, y, x = FRAMES.known.nonzero()[7].tolist()
    broken[t, 0, y, x] = torch.nan
    found = values_of(
        Pointwise(spec=SPEC, normalizer=NORMALIZER), replace(FRAMES, prediction=broken)
    )
    assert all(np.isnan(found[m, "u"]) for m in ("nmse", "mae", "lpcc", "r2", "skill"))
    assert np.isfinite(found["nmse", "v"])


DX, DY = SPEC.grid.dx, SPEC.grid.dy


def inner_gradients(fields: torch.Tensor) -> torch.Tensor:
    """Vorticity and divergence by central differences, at inner points."""
    along_x = (fields[..., 1:-1, 2:] - fields[..., 1:-1, :-2]) / (2 * DX)
    along_y = (fields[..., 2:, 1:-1] - fields[..., :-2, 1:-1]) / (2 * DY)
    return torch.stack((along_x[:, 1] - along_y[:, 0], along_x[:, 0] + along_y[:, 1]))


def test_gradient_errors_are_those_at_points_with_known_neighbours() -> None:
    known = FRAMES.known.clone()
    known[:, 0], known[:, -1] = False, False  # one-sided stencils are tested with derivatives
    known[..., 0], known[..., -1] = False, False
    frames = replace(FRAMES, known=known)
    here = known[:, 1:-1, 1:-1] & known[:, 2:, 1:-1] & known[:, :-2, 1:-1]
    here &= known[:, 1:-1, 2:] & known[:, 1:-1, :-2]
    y, p = (inner_gradients(f)[:, here].T.numpy() for f in (frames.truth, frames.prediction))
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


def region_errors(frames, where: torch.Tensor, channels: list[int], scales) -> tuple[float, float]:
    """Mean square error over a mask's points and some channels; and over the energy."""
    scale = torch.tensor(scales, dtype=torch.float64)[: len(frames.spec.channels), None]
    p, y = (
        (f.movedim(1, 0)[:, where] / scale)[channels] for f in (frames.prediction, frames.truth)
    )
    error = (p - y).square()
    return float(error.mean()), float(error.sum() / y.square().sum())


def test_boundary_errors_are_means_over_frames_points_and_channels() -> None:
    found = values_of(BoundaryError(spec=SPEC, normalizer=NORMALIZER), FRAMES)
    assert FRAMES.body is not None
    where = boundary_points(FRAMES.body, SPEC.grid) & FRAMES.known
    for component, channels in {"u": [0], "v": [1], "all": [0, 1]}.items():
        mse, nmse = region_errors(FRAMES, where, channels, (1.0, 1.0))
        assert found["boundary_mse", component] == pytest.approx(mse, rel=1e-12)
        assert found["boundary_nmse", component] == pytest.approx(nmse, rel=1e-12)


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


# By hand: the diameter is 3 rows of 0.2 = 2 columns of 0.3; the body's centre lies at columns 6.5,
# 6.5, 5.5, 5.5, 4.5, half-way places belong to the next column.
COLUMNS = {
    "near_body": [8, 8, 7, 7, 6],
    "wake_core": [11, 11, 10, 10, 9],
    "far_wake": [15, 15, 14, 14, 13],
    "column_11": [3] * 5,
    "column_32": [11] * 5,
    "column_52": [17] * 5,
}
ROWS = [5, 6, 7, 8, 9]
BEHIND = [9, 9, 8, 8, 7]


def component(fields: torch.Tensor, name: str) -> np.ndarray:
    u, v = fields[:, 0].numpy(), fields[:, 1].numpy()
    return {"u": u, "v": v, "|u|": np.hypot(u, v)}[name]


@pytest.mark.parametrize("region", COLUMNS)
@pytest.mark.parametrize("name", ["u", "v", "|u|"])
def test_slice_errors_are_means_over_frames_of_relative_errors(region: str, name: str) -> None:
    found = values_of(Slices(spec=SPEC, has_body=True), FRAMES)
    p, y = (component(f, name) for f in (FRAMES.prediction, FRAMES.truth))
    errors = []
    for t, column in enumerate(COLUMNS[region]):
        known = FRAMES.known[t, :, column].numpy()
        wrong, truth = (p - y)[t, known, column], y[t, known, column]
        errors.append(np.linalg.norm(wrong) / np.linalg.norm(truth))
    assert found[f"slice_{region}_rel_l2", name] == pytest.approx(np.mean(errors), rel=1e-12)


def test_the_wake_line_is_the_row_of_the_centre_behind_the_body() -> None:
    found = values_of(WakeLine(spec=SPEC), FRAMES)
    spun, spin, defined = differentiate(derivatives.vorticity, FRAMES)
    errors: dict[str, list[float]] = {"u": [], "vorticity": []}
    for t, (row, first) in enumerate(zip(ROWS, BEHIND, strict=True)):
        line = (t, row, slice(first, None))
        for name, p, y, here in (
            ("u", FRAMES.prediction[:, 0], FRAMES.truth[:, 0], FRAMES.known),
            ("vorticity", spun, spin, defined),
        ):
            wrong, truth = (p[line] - y[line])[here[line]], y[line][here[line]]
            errors[name].append(float(wrong.norm() / truth.norm()))
    for name, values in errors.items():
        assert found["wake_line_rel_l2", name] == pytest.approx(np.mean(values), rel=1e-12)


@pytest.mark.parametrize(
    ("unit", "length", "expected"),
    [
        ("mm/s", "mm", "1/s"),
        ("m/s", "mm", "m/s/mm"),
        ("1", "D", "U/D"),
        ("U", None, "U/length"),
    ],
)
def test_the_unit_of_a_gradient(unit: str, length: str | None, expected: str) -> None:
    assert gradient_unit(unit, length) == expected


def test_profiles_without_a_body_are_named_by_their_own_columns() -> None:
    found = stations(None, Grid((8, 32), dx=1.0, dy=1.0))
    assert found == {"column 5": 5, "column 16": 16, "column 26": 26}
