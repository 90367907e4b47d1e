"""The measurement model: transfer function, statistics of errors, lazy reading."""

import math
import pickle
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.data.format import Reader, check, write
from pibert.data.measurement import Measurement, measure, spurious
from pibert.data.resample import represent
from pibert.fields import FieldSpec, Grid, Trajectory
from tests.data.helpers import disc, make_trajectory, random_states

CLEAN: dict[str, Any] = {"noise": 0.0, "outliers": 0.0, "missing": 0.0}


def still(frames: int = 20, shape: tuple[int, int] = (30, 40), **changes: Any) -> Trajectory:
    """Fluid at rest, reference velocity 0.06: all that is measured is error."""
    return make_trajectory(states=torch.zeros(frames, 2, *shape), **changes)


def periodic(states: Tensor) -> Trajectory:
    grid = Grid.periodic((states.shape[2], states.shape[3]), dx=0.5, dy=0.2)
    time = torch.arange(float(len(states)))
    return Trajectory(
        name="box", states=states, time=time, spec=FieldSpec(family="incompressible", grid=grid)
    )


# Averaging


@pytest.mark.parametrize("along", ["x", "y"])
@pytest.mark.parametrize(
    ("window", "transfer"),
    [
        (1, lambda k: 1.0),
        (2, lambda k: math.cos(k / 2) ** 2),
        (3, lambda k: math.sin(1.5 * k) / (3 * math.sin(k / 2))),
        (4, lambda k: (1 + 2 * math.cos(k) + math.cos(2 * k)) / 4),
        (5, lambda k: math.sin(2.5 * k) / (5 * math.sin(k / 2))),
    ],
)
def test_a_wave_is_damped_by_the_transfer_function(window: int, transfer: Any, along: str) -> None:
    """On a periodic box, without ends; k is the phase per point."""
    waves, n = 3, 24
    k = 2 * math.pi * waves / n
    wave = torch.cos(k * torch.arange(n, dtype=torch.float64))
    field = wave.expand(10, n) if along == "x" else wave[:, None].expand(n, 10)
    trajectory = periodic(torch.stack((field, 2 * field))[None])
    found = measure(trajectory, Measurement(window=window, **CLEAN)).read()
    torch.testing.assert_close(found, transfer(k) * trajectory.read(), rtol=0, atol=1e-12)


def test_only_fluid_enters_an_average_and_bodies_are_left_alone() -> None:
    body = torch.zeros(2, 4, 6, dtype=torch.bool)
    body[0, :, 2] = body[1, :, 3] = True
    states = random_states(2, 2, 4, 6)
    states[0, :, :, 2] = math.nan
    states[1, :, :, 3] = 1e9
    valid = torch.ones(4, 6, dtype=torch.bool)
    valid[0, 5] = False
    states[:, :, 0, 5] = math.inf
    trajectory = make_trajectory(states=states, body=body, valid=valid)
    measured = measure(trajectory, Measurement(window=3, **CLEAN))
    found, known = measured.read(), trajectory.known()
    assert torch.equal(measured.known(), known)
    for t, row, column in known.nonzero().tolist():
        rows = slice(max(row - 1, 0), row + 2)
        columns = slice(max(column - 1, 0), column + 2)
        near = states[t, :, rows, columns][:, known[t, rows, columns]]
        torch.testing.assert_close(found[t, :, row, column], near.mean(1))
    inside = (~known)[:, None].expand_as(states)
    torch.testing.assert_close(found[inside], states[inside], rtol=0, atol=0, equal_nan=True)


# Noise, outliers, missing vectors


@pytest.mark.parametrize("window", [1, 2, 3])
def test_noise_has_its_level_and_its_correlation(window: int) -> None:
    model = Measurement(window=window, noise=0.1, outliers=0.0, missing=0.0)
    found = measure(still(40), model).read() / (0.1 * 0.06)
    assert found.mean().item() == pytest.approx(0, abs=0.02)
    assert found.std().item() == pytest.approx(1, abs=0.02)
    assert (found[:, 0] * found[:, 1]).mean().item() == pytest.approx(0, abs=0.02)
    edges = torch.cat((found[..., 0, :].flatten(), found[..., -1].flatten()))
    assert edges.std().item() == pytest.approx(1, abs=0.05)
    for lag in (1, 2, 3):
        share = max(0.0, 1 - lag / window)
        for shifted, plain in (
            (found[..., lag:], found[..., :-lag]),
            (found[..., lag:, :], found[..., :-lag, :]),
        ):
            assert (shifted * plain).mean().item() == pytest.approx(share, abs=0.03)
    # Frames are independent.
    assert (found[1:] * found[:-1]).mean().item() == pytest.approx(0, abs=0.02)


def test_outliers_have_their_share_and_range_and_are_not_marked() -> None:
    model = Measurement(noise=0.0, outliers=0.05, outlier_range=3.0, missing=0.0)
    trajectory = still(body=disc((30, 40)))
    measured, wrong = measure(trajectory, model), spurious(trajectory, model)
    assert measured.valid is None
    assert wrong[trajectory.known()].float().mean().item() == pytest.approx(0.05, abs=0.005)
    assert not wrong[~trajectory.known()].any()
    fields = measured.read()
    assert torch.equal(fields.ne(0).any(1), wrong)
    values = fields.movedim(1, 0)[:, wrong] / 0.06  # (2, points)
    assert values.abs().max().item() == pytest.approx(3, abs=0.05) and values.abs().max() <= 3
    assert values.square().mean(1).tolist() == pytest.approx([3, 3], rel=0.08)


def test_missing_vectors_are_not_valid_and_more_so_near_a_body() -> None:
    valid = torch.rand(30, 40, generator=torch.Generator().manual_seed(1)) > 0.1
    body = torch.zeros(30, 40, dtype=torch.bool)
    body[10:20, 10:15] = True
    trajectory = still(40, valid=valid, body=body)
    model = Measurement(window=5, missing=0.02, missing_near_body=0.5, outliers=0.1)
    measured = measure(trajectory, model)
    known, near = measured.known(), torch.zeros_like(body)
    near[8:22, 8:17] = True  # the windows of points up to two away touch the body
    assert known[:, near & ~body & valid].float().mean().item() == pytest.approx(0.5, abs=0.04)
    assert known[:, ~near & valid].float().mean().item() == pytest.approx(0.98, abs=0.005)
    assert not known[:, ~valid].any()
    assert not (spurious(trajectory, model) & ~known).any()
    assert measured.read().isfinite().all(1)[known].all()


# Lazy, repeatable, stored


def test_a_frame_is_the_same_however_it_is_read() -> None:
    trajectory = make_trajectory(frames=9, channels=("p", "v", "u"), body=disc())
    model = Measurement(window=2, noise=0.3, outliers=0.2, missing=0.2, missing_near_body=0.5)
    measured = measure(trajectory, model)
    whole, known = measured.load().read(), measured.known()
    assert whole.dtype == torch.float32 and measured.states.shape == (9, 2, 5, 7)
    again = pickle.loads(pickle.dumps(measured))
    for frames in (slice(4, 5), slice(1, 9, 3), slice(0, 0), slice(-2, None)):
        torch.testing.assert_close(
            again.read(frames), whole[frames], rtol=0, atol=0, equal_nan=True
        )
        part = measured.read(frames, [1])
        torch.testing.assert_close(part, whole[frames][:, [1]], rtol=0, atol=0, equal_nan=True)
        assert torch.equal(again.known(frames), known[frames])
        assert torch.equal(spurious(trajectory, model, frames), spurious(trajectory, model)[frames])


def test_only_velocities_are_measured_and_local_records_the_settings(tmp_path: Path) -> None:
    trajectory = make_trajectory(channels=("p", "v", "u"), series={"lift": torch.arange(6.0)})
    spec = replace(trajectory.spec, units=("Pa", "m/s", "cm/s"), family="incompressible")
    trajectory = replace(trajectory, spec=spec)
    model = Measurement(window=1, **CLEAN, seed=4)
    compressible = replace(trajectory, spec=replace(spec, family="euler"))
    assert measure(compressible, model).spec.family is None  # no camera sees its fields
    measured = measure(trajectory, model)
    assert measured.spec.channels == ("u", "v") and measured.spec.units == ("cm/s", "m/s")
    assert torch.equal(measured.read(), trajectory.read()[:, [2, 1]])
    assert measured.source == trajectory.source and measured.spec.family == "incompressible"
    assert measured.local == {
        "stride": 1,
        "channels": ["u", "v"],
        "measurement": asdict(model) | {"velocity": 0.06},
    }
    write(tmp_path / "piv.h5", [measure(trajectory, Measurement())])
    check(tmp_path / "piv.h5")
    stored = Reader(tmp_path / "piv.h5")[0]
    assert stored.local["measurement"]["window"] == 3 and list(stored.series) == ["lift"]
    assert represent(stored, size=(2, 3)).read().shape == (6, 2, 2, 3)


# Bad input


def test_trajectories_that_cannot_be_measured_are_refused() -> None:
    box = periodic(torch.zeros(1, 2, 3, 4))
    for trajectory, found in (
        (make_trajectory(channels=("T",)), r"\['u', 'v'\]; choose from: T"),
        (box, "'box': it has no reference velocity; give"),
        (measure(box, Measurement(velocity=2.0)), "'box': it is a measurement already"),
    ):
        with pytest.raises(ValueError, match=found):
            measure(trajectory, Measurement())
