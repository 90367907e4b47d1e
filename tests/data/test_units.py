"""Units: what texts mean, and trajectories in metres and seconds with the same physics."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.data.units import doubt_unit, in_consistent_units, parse_unit
from pibert.fields import Grid, Trajectory
from pibert.physics import derivatives
from tests.data.helpers import disc, make_trajectory

SHAPE = (5, 7)


@pytest.mark.parametrize(
    ("text", "factor", "name"),
    [
        ("mm / s", 1e-3, "m/s"),
        ("cm s-1", 1e-2, "m/s"),
        ("m.s^-1", 1.0, "m/s"),
        ("mm/ms", 1.0, "m/s"),
        ("km/h", 1 / 3.6, "m/s"),
        ("1/ms", 1e3, "1/s"),
        ("mm²/s²", 1e-6, "m^2/s^2"),
        ("µm", 1e-6, "m"),
        ("inch/s", 0.0254, "m/s"),
        ("knots", 1852 / 3600, "m/s"),
        ("1/mph", 1 / 0.44704, "s/m"),
        ("day", 86400.0, "s"),
    ],
)
def test_units_are_parsed(text: str, factor: float, name: str) -> None:
    unit = parse_unit(text)
    assert unit is not None
    assert unit.factor == pytest.approx(factor, rel=1e-12) and unit.si_name == name
    again = parse_unit(name)
    assert again is not None and again.factor == 1 and again[:2] == unit[:2]


def test_other_units_are_not_parsed() -> None:
    others = "|1|px|px/frame|m/frame|D/U|Pa|K|unknown|kg/m^3|%"
    assert [parse_unit(text) for text in (None, *others.split("|"))] == [None] * 12


def test_a_unit_that_is_neither_one_of_the_flow_nor_a_scale_is_doubted() -> None:
    sound = {
        "velocity": ("1", "px/frame", "U", "u_tau", "cm/s", "vox/step"),
        "length": (None, "D", "px", "delta", "degrees", "µm", "inches"),
        "time": ("D/U", "h/U_b", "frame", "unknown", "h"),
    }
    for quantity, texts in sound.items():
        assert [doubt_unit(text, quantity) for text in texts] == [None] * len(texts)
    wrong = ("ms", "m/sek", "kt", "10^-3 m/s", "1e-3 m/s", "[mm/s]")
    for text, expected in (*((text, "m/s") for text in wrong), ("MM/S", "mm/s")):
        doubt = doubt_unit(text, "velocity")
        assert doubt is not None and repr(text) in doubt and f" {expected}" in doubt
    assert " m" in str(doubt_unit("s", "length"))


def recording(
    units: tuple[str, ...] = ("m/s", "m/s"),
    length_unit: str | None = "mm",
    time_unit: str | None = "s",
    channels: tuple[str, ...] = ("u", "v"),
    states: Tensor | None = None,
    **changes: Any,
) -> Trajectory:
    """100 x 300 lengths a cell, a reference length of 30, frames 50 times apart."""
    plain = make_trajectory(frames=4, channels=channels, states=states, local={}, **changes)
    grid = Grid(SHAPE, 100.0, 300.0, origin=(-1000.0, 2000.0), body=plain.spec.grid.body)
    scales: dict[str, Any] = {"reference_length": 30.0, "reference_velocity": 60.0}
    scales |= {"viscosity": 7.0, "units": units, "dt": 50.0, "grid": grid}
    spec = replace(plain.spec, **scales)
    time = 1000 + 50 * torch.arange(4, dtype=torch.float64)
    return replace(plain, spec=spec, time=time, length_unit=length_unit, time_unit=time_unit)


def test_millimetres_and_metres_per_second_are_made_consistent() -> None:
    valid = torch.ones(SHAPE, dtype=torch.bool)
    valid[4, 6] = False
    series = {"lift": torch.arange(4.0)}
    original = recording(body=disc(SHAPE), valid=valid, series=series)
    original = replace(original, local={"plane": {"normal": "z", "position": 25.0}})
    scaled = in_consistent_units(original)
    grid, spec = scaled.spec.grid, scaled.spec
    assert (grid.dx, grid.dy) == pytest.approx((0.1, 0.3))
    assert grid.origin == pytest.approx((-1.0, 2.0))
    assert (scaled.length_unit, scaled.time_unit, spec.units) == ("m", "s", ("m/s", "m/s"))
    assert spec.dt == 50.0 and torch.equal(scaled.time, original.time)
    assert scaled.states is original.states
    assert spec.reference_length == pytest.approx(0.03) and spec.reference_velocity == 60.0
    assert spec.viscosity == pytest.approx(7e-3)
    assert scaled.local["plane"] == {"normal": "z", "position": pytest.approx(0.025)}
    assert scaled.local["units"] == {"length": "mm -> m"}
    assert torch.equal(scaled.known(), original.known())
    assert torch.equal(scaled.series["lift"], original.series["lift"])


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
        {"length_unit": "px"},
        {"length_unit": None},
        {"length_unit": "D", "time_unit": "D/U", "units": ("1", "1")},
        {"units": ("m/s", "1")},
        {"units": ("mm/ms", "mm/ms"), "time_unit": None},
        {"length_unit": "m"},
    ],
)
def test_unknown_units_and_si_units_are_not_changed(changes: dict[str, Any]) -> None:
    original = recording(**changes)
    assert in_consistent_units(original) is original
