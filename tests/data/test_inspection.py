"""Inspection: facts worked out by hand, faults that are found, right data without findings."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pibert.data.format import write
from pibert.data.generate import change, generate
from pibert.data.inspection.checks import Inspection, inspect
from pibert.data.inspection.survey import survey
from pibert.data.readers import open_recordings
from pibert.data.readers.recordings import Hints
from pibert.fields import Boundary, FieldSpec, Grid, Parameter, Sides, Trajectory
from pibert.solver.presets import find_preset
from tests.data.helpers import SHARED, needs_shared, recorded

DX, DY = 0.1, 0.15


def vortices(frames: int = 6, shape: tuple[int, int] = (40, 50), seed: int = 0) -> Tensor:
    """Incompressible: random waves of a stream function, exactly differentiated, in a stream."""
    generator = torch.Generator().manual_seed(seed)
    x, y = Grid(shape, DX, DY).coordinates(torch.float64)
    fields = torch.zeros(frames, 2, *shape, dtype=torch.float64)
    for _ in range(12):
        angle, phase, speed = torch.rand(3, generator=generator, dtype=torch.float64) * 2 * math.pi
        kx, ky = 2.0 * torch.cos(angle), 2.0 * torch.sin(angle)
        for frame in range(frames):
            wave = torch.sin(kx * x + ky * y + phase + 0.1 * frame * speed)
            fields[frame] += 0.2 * torch.stack((-ky * wave, kx * wave))
    fields[:, 0] += 1
    return fields.float()


def flow(
    states: Tensor | None = None,
    *,
    name: str = "a",
    units: tuple[str, ...] = ("m/s", "m/s"),
    length_unit: str | None = "m",
    dt: float | None = 0.1,
    spacing: tuple[float, float] = (DX, DY),
    family: str | None = "incompressible",
    **changes: Any,
) -> Trajectory:
    states = vortices() if states is None else states
    channels = ("u", "v", "p", "T")[: states.shape[1]]
    grid = Grid((states.shape[2], states.shape[3]), *spacing)
    known: dict[str, Any] = {"channels": channels, "units": units, "dt": dt, "family": family}
    spec = FieldSpec(grid=grid, parameters=(Parameter(name="Re"),), **known)
    time = (dt or 1.0) * torch.arange(len(states), dtype=torch.float64)
    fields: dict[str, Any] = {"name": name, "states": states, "time": time, "spec": spec}
    return Trajectory(**(fields | {"length_unit": length_unit, "time_unit": "s"} | changes))


def topics(inspection: Inspection) -> set[str]:
    return {problem.topic for problem in inspection.problems}


def test_facts_are_those_of_the_data() -> None:
    states = torch.zeros(4, 2, 6, 5)
    states[:, 0] = torch.arange(4.0)[:, None, None]  # u is the frame number
    states[:, 1] = 3 * torch.arange(5.0) * 0.1  # v = 3 x: a shear
    body = torch.zeros(6, 5, dtype=torch.bool)
    body[0, :3] = True
    valid = torch.ones(6, 5, dtype=torch.bool)
    valid[5, 0] = False
    first = flow(states, body=body, valid=valid, parameters={"Re": 100.0}, source={"title": "t"})
    second = flow(states, name="b", body=body, valid=valid, parameters={"Re": 300.0})
    facts = survey(recorded(first, second))
    assert (facts.trajectories, facts.opened, facts.frames) == (2, 2, (4, 4))
    assert facts.shape == (6, 5) and facts.spacing == (DX, DY)
    assert facts.body_share == pytest.approx(3 / 30)
    assert facts.missing_share == pytest.approx(1 / 27)
    assert facts.parameters == {"Re": (100.0, 300.0)}
    assert facts.source == {"title": "t"}
    u, v = facts.channels
    assert (u.name, u.unit, u.low, u.high) == ("u", "m/s", 0.0, 3.0)
    # Pairs share frames, but each of the frames 0 to 3 counts once.
    assert u.mean == pytest.approx(1.5)
    assert u.std == pytest.approx(math.sqrt(1.25))
    assert (v.low, v.high) == pytest.approx((0.0, 1.2))
    assert facts.divergence is not None
    assert facts.divergence.rms == pytest.approx(0.0, abs=1e-6)
    assert facts.divergence.gradient == pytest.approx(3.0, rel=1e-5)


def test_the_divergence_of_a_linear_flow_is_exact_away_from_unknown_points() -> None:
    x, y = Grid((9, 8), DX, DY).coordinates()
    states = torch.stack((2 * x + 5 * y, x + 4 * y))[None].repeat(2, 1, 1, 1)
    states[:, :, 3, 3] = 1e6
    valid = torch.ones(9, 8, dtype=torch.bool)
    valid[3, 3] = False
    found = survey(recorded(flow(states, valid=valid))).divergence
    assert found is not None
    assert found.rms == pytest.approx(6.0, rel=1e-4)
    assert found.gradient == pytest.approx(math.sqrt(4 + 25 + 1 + 16), rel=1e-4)
    assert found.as_is.cancellation == pytest.approx(6 / math.sqrt(20), rel=1e-4)
    assert found.as_is.share == pytest.approx(math.sqrt(20 / 46), rel=1e-4)
    assert found.flipped.level == pytest.approx(2 / math.sqrt(46), rel=1e-4)
    assert found.exchanged.level == pytest.approx(6 / math.sqrt(46), rel=1e-4)
    assert found.both.level == pytest.approx(4 / math.sqrt(46), rel=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"length_unit": "mm", "units": ("mm s^-1", "mm·s⁻¹")},
        {"length_unit": "mm", "time_unit": "ms"},  # m/s is mm/ms
        {"length_unit": "D", "time_unit": "D/U", "units": ("1", "1")},
    ],
)
def test_a_consistent_flow_has_no_findings(changes: dict[str, Any]) -> None:
    assert inspect(recorded(flow(**changes))).problems == ()


TURNS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda states: states.flip(2),
    "v": lambda states: states * torch.tensor([1.0, -1.0])[:, None, None],
    "components": lambda states: states[:, [1, 0]],
    "transposed": lambda states: states.transpose(2, 3).contiguous(),
}


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_wrong_axes_are_found(turn: str, noise: float) -> None:
    states = vortices()
    states = states + noise * torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
    assert topics(inspect(recorded(flow(states)))) == set()
    spacing = (DY, DX) if turn == "transposed" else (DX, DY)
    wrong = inspect(recorded(flow(TURNS[turn](states), spacing=spacing)))
    assert topics(wrong) == {"rows flipped" if turn in ("rows", "v") else "axes exchanged"}
    assert wrong.problems[0].serious


def test_the_divergence_is_per_second_whatever_the_units_of_the_file() -> None:
    in_metres = survey(recorded(flow())).divergence
    states = vortices() * torch.tensor([1e3, 1.0])[:, None, None]
    mixed = flow(states, units=("mm/s", "m/s"), length_unit="cm", spacing=(100 * DX, 100 * DY))
    facts = survey(recorded(mixed))
    assert in_metres is not None and facts.divergence is not None
    assert facts.divergence.gradient == pytest.approx(in_metres.gradient, rel=1e-4)
    assert facts.divergence.rms == pytest.approx(in_metres.rms, rel=1e-2)
    assert facts.spacing == (100 * DX, 100 * DY)  # as the file has it


def test_a_compressible_flow_may_expand() -> None:
    """Sound: the gradient of a potential, with du/dx = dv/dy."""
    x, y = Grid((40, 50), DX, DY).coordinates()
    wave = torch.stack((torch.sin(2 * x) * torch.cos(2 * y), torch.cos(2 * x) * torch.sin(2 * y)))
    states = wave * torch.linspace(1, 1.5, 4)[:, None, None, None]
    assert inspect(recorded(flow(states, family="euler"))).problems == ()
    assert inspect(recorded(flow(states))).problems != ()


def test_a_wrong_ratio_of_the_steps_is_found() -> None:
    found = inspect(recorded(flow(spacing=(DX, 2 * DY))))
    assert topics(found) == {"spacing"}
    assert "dy were 0.50 times" in found.problems[0].seen


@pytest.mark.parametrize(
    ("changes", "topic"),
    [
        ({"length_unit": "px"}, "wrong units"),
        ({"length_unit": "px", "spacing": (16.0, 24.0)}, "pixels"),
        ({"units": ("px/frame", "px/frame")}, "pixels"),
        ({"length_unit": None, "units": ("1", "1"), "spacing": (1.0, 1.0)}, "counted points"),
        ({"length_unit": "mm"}, "mixed units"),
        ({"length_unit": None, "units": ("1", "1")}, "no units"),
        ({"units": ("1", "1")}, "unit missing"),
        ({"units": ("ms", "ms")}, "unknown unit"),
        ({"dt": None}, "no time step"),
        ({"dt": None, "time": torch.tensor([0, 1, 2, 5, 6, 7.0]).double()}, "time gaps"),
        ({"dt": None, "time": torch.tensor([0, 1, 2, 3.2, 4, 5.0]).double()}, "uneven time"),
        (
            {"local": {"gridding": {"method": "bilinear", "from": [9, 9], "to": [8, 8]}}},
            "resampled",
        ),
    ],
)
def test_wrong_or_missing_descriptions_are_found(changes: dict[str, Any], topic: str) -> None:
    assert topic in topics(inspect(recorded(flow(**changes))))


BURSTS = 0.1 * torch.tensor([0, 1, 10, 11, 20, 21.0]).double()
MIXED = {"length_unit": "mm", "time_unit": None, "dt": 1e-4}


@pytest.mark.parametrize(
    ("changes", "kind", "topic", "serious"),
    [
        (MIXED, "arrays", "mixed units", False),
        (MIXED, "native", "mixed units", True),  # nothing converts them
        ({"units": ("1", "1"), "length_unit": "mm"}, "arrays", "unit missing", True),
        ({"time": BURSTS}, "arrays", "time gaps", False),
        ({"time": BURSTS, "dt": None}, "arrays", "time gaps", True),
    ],
)
def test_a_problem_is_serious_where_it_makes_wrong_numbers(
    changes: dict[str, Any], kind: str, topic: str, serious: bool
) -> None:
    (finding,) = inspect(recorded(flow(**changes), kind=kind)).problems
    assert (finding.topic, finding.serious) == (topic, serious)


def spoilt(values: float | Tensor, *where: Any) -> Tensor:
    states = vortices()
    states[where] = values
    return states


def with_isolated_zeros() -> Tensor:
    states = vortices()
    for frame in range(len(states)):
        states[frame, :, 5 + frame :: 9, 4::7] = 0
    return states


def with_a_body_of_zeros() -> Tensor:
    return spoilt(0, slice(None), slice(None), slice(10, 20), slice(10, 20))


def with_outliers() -> Tensor:
    states = vortices()
    states[:, :, 4::9, 4::9] = states[:, :, 4::9, 4::9] * -2 + 3
    return states


ALL = slice(None)
HUGE = torch.tensor([300.0, 400.0, 500.0, 900.0])


@pytest.mark.parametrize(
    ("states", "topic", "found"),
    [
        (with_isolated_zeros(), "zero vectors", "move in other frames"),
        (with_a_body_of_zeros(), "zero vectors", "100 points"),
        (with_outliers(), "outliers", "spurious"),
        (spoilt(-999, ALL, 0, slice(3, 5), 3), "fill value", "-999"),
        (spoilt(HUGE, ALL, 0, 3, slice(3, 7)), "huge values", "900"),
        (vortices()[[0, 0, 1, 1, 2, 2]], "repeated frames", "3 of 5"),
        (spoilt(0.25, ALL, 1), "constant channel", "v is 0.25"),
        (vortices()[:1].repeat(6, 1, 1, 1), "same frame", "5 pairs"),
        (vortices().half().float(), "16-bit values", "16-bit"),
        (torch.where(vortices() > 1.9, math.nan, vortices()), "not finite", "NaN"),
    ],
)
def test_wrong_values_are_found(states: Tensor, topic: str, found: str) -> None:
    problems = inspect(recorded(flow(states))).problems
    (finding,) = (problem for problem in problems if problem.topic == topic)
    assert found in finding.seen + finding.why


@pytest.mark.parametrize("pressure", [False, True])
def test_all_zeros_of_a_body_are_counted_and_the_command_is_named(pressure: bool) -> None:
    x, y = Grid((60, 80), 1.0, 1.0).coordinates()
    inside = torch.hypot(x - 30, y - 25) <= 12.3
    states = torch.where(inside, 0.0, vortices(4, (60, 80)))
    if pressure:  # which is not zero inside
        states = torch.cat((states, 1 + states[:, :1]), dim=1)
    whole = flow(states, units=("m/s", "m/s", "Pa")[: states.shape[1]])
    found = inspect(recorded(whole))
    assert (found.facts.zeros_static, found.facts.zeros_varying) == (int(inside.sum()), 0)
    (finding,) = [problem for problem in found.problems if problem.topic == "zero vectors"]
    assert "--body zeros" in finding.advice
    # A vector more that is missing in one frame, and points of the body that are flagged in some.
    states[2, :2, 50, 60] = 0
    valid = torch.rand(4, 60, 80, generator=torch.Generator().manual_seed(0)) > 0.1
    for case in (whole, replace(whole, valid=valid)):
        assert inspect(recorded(case)).facts.zeros_static == int(inside.sum())


def with_fluid_at_rest() -> Tensor:
    x, _ = Grid((40, 50), DX, DY).coordinates()
    front = torch.clamp(1e-3 * torch.exp(-((x / 0.5) ** 8)), min=1e-20)
    return vortices() * torch.where(front > 1e-10, front, 0.0)


def with_a_start_from_rest() -> Tensor:
    states = spoilt(0, 0)
    states[0, 0, -1] = 1  # a lid that moves
    return states


@pytest.mark.parametrize(
    "states",
    [spoilt(0, ..., [0, -1], ALL), with_fluid_at_rest(), with_a_start_from_rest()],
    ids=["walls at the edges", "fluid at rest", "start from rest"],
)
def test_zeros_of_the_flow_are_not_missing_vectors(states: Tensor) -> None:
    assert "zero vectors" not in topics(inspect(recorded(flow(states))))


def test_the_repeated_end_of_a_periodic_box_is_found() -> None:
    def found(states: Tensor) -> set[str]:
        wave = flow(states)
        grid = replace(wave.spec.grid, sides=Sides(left=Boundary.PERIODIC, right=Boundary.PERIODIC))
        return topics(inspect(recorded(replace(wave, spec=replace(wave.spec, grid=grid)))))

    x = torch.linspace(0, 2 * torch.pi, 33)[None, :] + torch.arange(6)[:, None, None]
    y = torch.linspace(0, 1, 20)[:, None]
    states = torch.stack([x.sin() * y, x.cos() * y**2], 1)
    assert "repeated end" in found(states)
    assert "repeated end" not in found(states[..., :-1])
    assert "repeated end" not in topics(inspect(recorded(flow(states))))


def test_zeros_in_the_cells_of_an_openfoam_case_are_fluid() -> None:
    measured = flow(with_a_body_of_zeros())
    converted = replace(measured, local={"kind": "openfoam"})
    assert "zero vectors" in topics(inspect(recorded(measured, kind="native")))
    assert "zero vectors" not in topics(inspect(recorded(converted, kind="native")))
    assert "zero vectors" not in topics(inspect(recorded(measured, kind="openfoam")))


def test_grids_that_differ_and_missing_points_are_reported() -> None:
    (finding,) = inspect(recorded(flow(), flow(vortices(3, (20, 30)), name="small"))).problems
    assert finding.topic == "different grids" and "small" in finding.seen
    valid = torch.zeros(40, 50, dtype=torch.bool)
    nothing = torch.full_like(vortices(), math.nan)
    (finding,) = inspect(recorded(flow(nothing, valid=valid, units=("1", "1")))).problems
    assert finding.topic == "missing points" and finding.serious
    valid[10:30, 10:30] = True
    assert topics(inspect(recorded(flow(valid=valid)))) == {"missing points"}


def test_a_velocity_that_crosses_the_view_many_times_a_frame_is_a_wrong_scale() -> None:
    fast = flow(1000 * vortices())  # about 2000 m/s for 0.1 s in a view of 6 m
    (finding,) = inspect(recorded(fast)).problems
    assert finding.topic == "scale" and finding.serious and "--unit" in finding.advice
    # The same numbers in mm/s are right, and fluid in a closed box has no way out.
    assert "scale" not in topics(inspect(recorded(replace_units(fast, "mm/s"))))
    walls = replace(fast.spec.grid, sides=Sides(*[Boundary.WALL] * 4))
    boxed = replace(fast, spec=replace(fast.spec, grid=walls))
    assert "scale" not in topics(inspect(recorded(boxed)))


def replace_units(trajectory: Trajectory, unit: str) -> Trajectory:
    return replace(trajectory, spec=replace(trajectory.spec, units=(unit, unit)))


@needs_shared
def test_the_measured_jet_passes_and_its_turned_copies_do_not(tmp_path: Path) -> None:
    with np.load(SHARED / "jet_piv_train.npz") as data:
        uv = torch.from_numpy(data["uv"][::100].astype(np.float32))
    step = 1 / 3000
    right = flow(uv, spacing=(step, step), dt=5e-4)
    assert topics(inspect(recorded(right))) == {"16-bit values"}
    for turn, topic in (("rows", "rows flipped"), ("transposed", "axes exchanged")):
        wrong = flow(TURNS[turn](uv), spacing=(step, step))
        assert topic in topics(inspect(recorded(wrong)))


SIMULATED = {
    "heat": {"frames": 4, "shape": [24, 32]},
    "turbulence": {"frames": 4, "shape": [32, 48]},
    "euler": {"samples": 3, "frames": 4, "shape": [32, 48]},
    "cylinder": {
        "frames": 4,
        "warm_up": 6.0,
        "view": [16, 32],
        "body": [7.5, 6.5, 6.0],
        "domain": [14.0, 8.0],
        "upstream": 4.0,
        "scales.diameter": 0.03,
    },
}


@pytest.mark.parametrize("case", SIMULATED)
def test_simulated_flows_have_no_findings(tmp_path: Path, case: str) -> None:
    recipe = change(find_preset(case), {"samples": 2} | SIMULATED[case])
    path = generate(recipe, tmp_path / "set.h5").path
    assert inspect(open_recordings(path)).problems == ()


def test_the_remedy_for_flipped_rows_mends_them(tmp_path: Path) -> None:
    for turn, flip in (("rows", "y"), ("v", "v")):
        write(tmp_path / f"{flip}.h5", [flow(TURNS[turn](vortices()))])
        (finding,) = inspect(open_recordings(tmp_path / f"{flip}.h5")).problems
        assert finding.topic == "rows flipped" and f"--flip {flip}" in finding.advice
        mended = open_recordings(tmp_path / f"{flip}.h5", hints=Hints(flip=(flip,)))
        assert inspect(mended).problems == ()
        torch.testing.assert_close(mended[0].read(), vortices())
