"""Units: what texts mean, and trajectories in metres and seconds with the same physics."""

import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.data.units import doubt_unit, find_conversion, in_consistent_units, parse_unit
from pibert.fields import FieldSpec, Grid, Trajectory
from pibert.physics import derivatives
from tests.data.helpers import disc, make_trajectory, random_states

SHAPE = (5, 7)


@pytest.mark.parametrize(
    ("text", "factor", "name"),
    [
        ("m/s", 1.0, "m/s"),
        ("mm/s", 1e-3, "m/s"),
        ("mm / s", 1e-3, "m/s"),
        ("cm s-1", 1e-2, "m/s"),
        ("mm·s⁻¹", 1e-3, "m/s"),
        ("m.s^-1", 1.0, "m/s"),
        ("mm/ms", 1.0, "m/s"),
        ("km/h", 1 / 3.6, "m/s"),
        ("1/ms", 1e3, "1/s"),
        ("s^-1", 1.0, "1/s"),
        ("mm²/s²", 1e-6, "m^2/s^2"),
        ("cm2/s", 1e-4, "m^2/s"),
        ("m/s/min", 1 / 60, "m/s^2"),
        ("1/mm/s", 1e3, "1/m/s"),
        ("µm", 1e-6, "m"),
        ("min", 60.0, "s"),
        ("in", 0.0254, "m"),
        ("inch/s", 0.0254, "m/s"),
        ("microns", 1e-6, "m"),
        ("knots", 1852 / 3600, "m/s"),
        ("mph", 0.44704, "m/s"),
        ("1/mph", 1 / 0.44704, "s/m"),
    ],
)
def test_what_a_unit_means(text: str, factor: float, name: str) -> None:
    unit = parse_unit(text)
    assert unit is not None
    assert unit.factor == pytest.approx(factor, rel=1e-12) and unit.si_name == name
    again = parse_unit(name)
    assert again is not None and again.factor == 1 and again[:2] == unit[:2]


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        *(("velocity", text) for text in ("1", "px/frame", "m/frame", "U", "u_tau", "cm/s")),
        *(("velocity", text) for text in ("inches/s", "vox/step", "diameter/s", "mph")),
        *(("length", text) for text in (None, "D", "h", "H", "px", "delta", "degrees", "µm")),
        *(("length", text) for text in ("inches", "micron", "voxel", "chord", "diameters")),
        *(("time", text) for text in ("D/U", "h/U_b", "frame", "unknown", "-", "h", "steps")),
    ],
)
def test_units_and_scales_of_a_flow_are_not_doubted(quantity: str, text: str | None) -> None:
    assert doubt_unit(text, quantity) is None


@pytest.mark.parametrize(
    ("quantity", "text", "meant"),
    [
        ("velocity", "ms", "m/s"),
        ("velocity", "m", None),
        ("velocity", "M/S", "m/s"),
        ("velocity", "m/sek", "m/s"),
        ("velocity", "m/furlong", None),
        ("velocity", "furlongs", None),
        ("velocity", "ft/hr", None),  # ft/s is alike, but is none per hour
        ("velocity", "kms/hr", "km/h"),
        ("length", "s", None),
        ("length", "mmm", "mm"),
        ("time", "sek", None),
    ],
)
def test_a_mistyped_unit_is_doubted(quantity: str, text: str, meant: str | None) -> None:
    doubt = doubt_unit(text, quantity)
    assert doubt is not None and repr(text) in doubt
    assert (f"did you mean {meant}?" in doubt) if meant else "expected one such as" in doubt


@pytest.mark.parametrize(
    "text", [None, "", "1", "px", "px/frame", "m/frame", "D/U", "Pa", "K", "unknown", "kg/m^3", "%"]
)
def test_what_is_not_made_of_lengths_and_times(text: str | None) -> None:
    assert parse_unit(text) is None


def recording(
    units: tuple[str, ...] = ("m/s", "m/s"),
    length_unit: str | None = "mm",
    time_unit: str | None = "s",
    channels: tuple[str, ...] = ("u", "v"),
    states: Tensor | None = None,
    **changes: Any,
) -> Trajectory:
    """100 x 300 lengths a cell, a reference length of 30, frames 50 times apart."""
    if states is None:
        states = random_states(4, len(channels), *SHAPE)
    spec = FieldSpec(
        family="incompressible",
        channels=channels,
        units=units,
        dt=50.0,
        grid=Grid((SHAPE[0], SHAPE[1]), 100.0, 300.0, origin=(-1000.0, 2000.0)),
        reference_velocity=60.0,
        reference_length=30.0,
        viscosity=7.0,
    )
    fields: dict[str, Any] = {
        "name": "a",
        "states": states,
        "time": 1000 + 50 * torch.arange(4, dtype=torch.float64),
        "spec": spec,
        "length_unit": length_unit,
        "time_unit": time_unit,
    }
    return Trajectory(**(fields | changes))


def test_lengths_in_millimetres_and_velocities_in_metres_per_second_come_together() -> None:
    valid = torch.ones(SHAPE, dtype=torch.bool)
    valid[4, 6] = False
    original = recording(
        body=disc(SHAPE),
        valid=valid,
        local={"stride": 2},
        series={"lift": torch.arange(4.0)},
    )
    scaled = in_consistent_units(original)
    grid, spec = scaled.spec.grid, scaled.spec
    assert (grid.dx, grid.dy) == pytest.approx((0.1, 0.3))
    assert grid.origin == pytest.approx((-1.0, 2.0))
    assert (scaled.length_unit, scaled.time_unit, spec.units) == ("m", "s", ("m/s", "m/s"))
    assert spec.dt == 50.0 and torch.equal(scaled.time, original.time)
    assert scaled.states is original.states
    assert spec.reference_length == pytest.approx(0.03) and spec.reference_velocity == 60.0
    assert spec.viscosity == pytest.approx(7e-3)
    assert scaled.local == {"stride": 2, "units": {"length": "mm -> m"}}
    assert torch.equal(scaled.known(), original.known())
    assert torch.equal(scaled.series["lift"], original.series["lift"])


def test_the_position_of_the_plane_is_a_length() -> None:
    plane = {"normal": "z", "position": 25.0}
    flow = replace(make_trajectory(), length_unit="mm", local={"plane": plane, "stride": 2})
    local = in_consistent_units(flow).local
    assert local["plane"] == {"normal": "z", "position": pytest.approx(0.025)}
    assert local["stride"] == 2


def test_every_channel_made_of_lengths_and_times_is_scaled_by_its_own_unit() -> None:
    original = recording(
        ("mm/ms", "cm/s", "1/ms", "mm^2/s^2", "Pa", "1"),
        length_unit="cm",
        time_unit="ms",
        channels=("u", "v", "omega", "q", "p", "T"),
    )
    scaled = in_consistent_units(original)
    assert scaled.spec.units == ("mm/ms", "m/s", "1/s", "m^2/s^2", "Pa", "1")
    factors = torch.tensor([1.0, 1e-2, 1e3, 1e-6, 1.0, 1.0])
    torch.testing.assert_close(scaled.read(), original.read() * factors[:, None, None])
    torch.testing.assert_close(scaled.time, original.time * 1e-3)
    assert scaled.spec.dt == pytest.approx(0.05)
    assert (scaled.spec.grid.dx, scaled.spec.grid.dy) == pytest.approx((1.0, 3.0))
    assert scaled.local["units"] == {
        "length": "cm -> m",
        "time": "ms -> s",
        "v": "cm/s -> m/s",
        "omega": "1/ms -> 1/s",
        "q": "mm^2/s^2 -> m^2/s^2",
    }


def test_the_reynolds_number_and_the_equations_do_not_change() -> None:
    """mm, s and mm/s fit together, so every dimensionless number must survive."""
    original = recording(("mm/s", "mm/s"))
    scaled = in_consistent_units(original)

    def numbers(trajectory: Trajectory) -> tuple[float, float]:
        spec = trajectory.spec
        assert spec.reference_velocity and spec.reference_length and spec.viscosity and spec.dt
        u, v = trajectory.read().double().unbind(1)
        turn = derivatives.vorticity(u, v, spec.grid).square().mean().sqrt().item() * spec.dt
        return spec.reference_velocity * spec.reference_length / spec.viscosity, turn

    assert numbers(scaled) == pytest.approx(numbers(original), rel=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"length_unit": "px", "units": ("px/frame", "px/frame")},
        {"length_unit": "px"},
        {"length_unit": None},
        {"length_unit": "D", "time_unit": "D/U", "units": ("1", "1")},
        {"units": ("1", "1")},
        {"units": ("m/s", "1")},
        {"units": ("m", "m")},
        {"units": ("mm/ms", "mm/ms"), "time_unit": None},
        {"time_unit": "frame"},
        {"channels": ("a", "b"), "units": ("1", "1")},
        {"length_unit": "m"},
    ],
)
def test_unknown_units_and_those_of_the_system_are_left_alone(changes: dict[str, Any]) -> None:
    original = recording(**changes)
    assert in_consistent_units(original) is original


def test_a_time_without_unit_may_stay_where_velocities_are_per_second() -> None:
    scaled = in_consistent_units(recording(("mm/s", "mm/s"), time_unit=None))
    assert scaled.length_unit == "m" and scaled.time_unit is None
    assert scaled.spec.dt == 50.0 and scaled.time[0] == 1000


def test_what_is_not_stated_stays_so() -> None:
    bare = recording()
    spec = replace(
        bare.spec, dt=None, reference_length=None, reference_velocity=None, viscosity=None
    )
    scaled = in_consistent_units(replace(bare, spec=spec)).spec
    assert (scaled.dt, scaled.reference_length, scaled.viscosity) == (None, None, None)
    assert scaled.grid.dx == pytest.approx(0.1)


def test_mismatch_is_what_a_velocity_gradient_lacks() -> None:
    """1 m/s per mm is 1000 per second; the bare numbers give 1."""
    found = find_conversion("mm", "s", ("u", "v"), ("m/s", "m/s"))
    assert found is not None and found.mismatch == pytest.approx(1000)
    found = find_conversion("mm", "ms", ("u", "v"), ("m/s", "m/s"))
    assert found is not None and found.mismatch == pytest.approx(1)


class Counting:
    """Half precision, read when asked for."""

    shape = (4, 2, *SHAPE)

    def __init__(self) -> None:
        self.read_frames = 0

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        picked = range(2) if channels is None else channels
        values = torch.tensor([1.5, 3e-3], dtype=torch.float16)[list(picked)]
        count = len(range(*frames.indices(4)))
        self.read_frames += count
        return values[None, :, None, None].expand(count, -1, *SHAPE)


def test_frames_are_scaled_when_they_are_read_and_not_in_half_precision() -> None:
    source = Counting()
    original = recording(("um/s", "km/h"), states=torch.zeros(4, 2, *SHAPE))
    scaled = in_consistent_units(replace(original, states=source))
    assert source.read_frames == 0
    part = scaled.read(slice(1, 3), [1])
    assert source.read_frames == 2 and part.shape == (2, 1, *SHAPE)
    half = torch.tensor(3e-3, dtype=torch.float16).item()
    assert part.dtype == torch.float32 and part[0, 0, 0, 0].item() == pytest.approx(half / 3.6)
    first = scaled.read(slice(0, 1))[0, 0, 0, 0].item()
    assert first == pytest.approx(1.5e-6) and math.isfinite(first)
    again = pickle.loads(pickle.dumps(scaled))
    torch.testing.assert_close(again.read(), scaled.read())


def test_a_trajectory_in_metres_and_seconds_is_itself() -> None:
    trajectory = make_trajectory()
    assert in_consistent_units(trajectory) is trajectory
