"""Inspection: facts worked out by hand, faults that are found, right data without alarms."""

import json
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
from pibert.data.inspection.judge import Inspection, inspect
from pibert.data.inspection.survey import spread, survey
from pibert.data.sources import open_recordings
from pibert.data.sources.recordings import Hints, Recordings
from pibert.fields import Boundary, FieldSpec, Grid, Parameter, Sides, Trajectory
from pibert.solver.presets import find_preset

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data in this checkout")

DX, DY = 0.1, 0.15


def recordings_of(
    *trajectories: Trajectory, kind: str = "arrays", remarks: tuple[str, ...] = ()
) -> Recordings:
    table = {trajectory.name: trajectory for trajectory in trajectories}
    return Recordings(
        kind=kind,
        path=Path("somewhere/flow.h5"),
        names=tuple(table),
        load=table.__getitem__,
        remarks=remarks,
    )


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
    spec = FieldSpec(
        channels=("u", "v", "p", "T")[: states.shape[1]],
        units=units,
        dt=dt,
        grid=Grid((states.shape[2], states.shape[3]), *spacing),
        parameters=(Parameter(name="Re"),),
        family=family,
    )
    fields: dict[str, Any] = {
        "name": name,
        "states": states,
        "time": (dt or 1.0) * torch.arange(len(states), dtype=torch.float64),
        "spec": spec,
        "length_unit": length_unit,
        "time_unit": "s",
    }
    return Trajectory(**(fields | changes))


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
    facts = survey(recordings_of(first, second, remarks=("rows were flipped",)))
    assert (facts.trajectories, facts.opened, facts.frames) == (2, 2, (4, 4))
    assert facts.shape == (6, 5) and facts.spacing == (DX, DY)
    assert facts.body_share == pytest.approx(3 / 30)
    assert facts.missing_share == pytest.approx(1 / 27)
    assert facts.parameters == {"Re": (100.0, 300.0)}
    assert facts.source == {"title": "t"} and facts.remarks == ("rows were flipped",)
    u, v = facts.channels
    assert (u.name, u.unit, u.low, u.high) == ("u", "m/s", 0.0, 3.0)
    # Pairs share frames, but each of the frames 0 to 3 counts once.
    assert u.mean == pytest.approx(1.5)
    assert u.std == pytest.approx(math.sqrt(1.25))
    assert (v.low, v.high) == pytest.approx((0.0, 1.2))
    assert facts.divergence is not None
    assert facts.divergence.rms == pytest.approx(0.0, abs=1e-6)
    assert facts.divergence.gradient == pytest.approx(3.0, rel=1e-5)


def test_shares_count_every_frame_once() -> None:
    valid = torch.ones(5, 40, 50, dtype=torch.bool)
    valid[2, :20] = False  # half of a frame that two pairs share
    filled = torch.zeros(5, 40, 50, dtype=torch.bool)
    filled[0] = True  # a frame of one pair alone
    facts = survey(recordings_of(flow(vortices(frames=5), valid=valid, filled=filled)))
    assert facts.frames_read == 5
    assert facts.missing_share == pytest.approx(1 / 10)
    assert facts.filled_share == pytest.approx(1 / 5)


def test_the_divergence_of_a_linear_flow_is_exact_away_from_unknown_points() -> None:
    x, y = Grid((9, 8), DX, DY).coordinates()
    states = torch.stack((2 * x + 5 * y, x + 4 * y))[None].repeat(2, 1, 1, 1)
    states[:, :, 3, 3] = 1e6
    valid = torch.ones(9, 8, dtype=torch.bool)
    valid[3, 3] = False
    found = survey(recordings_of(flow(states, valid=valid))).divergence
    assert found is not None
    assert found.rms == pytest.approx(6.0, rel=1e-4)
    assert found.gradient == pytest.approx(math.sqrt(4 + 25 + 1 + 16), rel=1e-4)
    assert found.as_is.cancellation == pytest.approx(6 / math.sqrt(20), rel=1e-4)
    assert found.as_is.share == pytest.approx(math.sqrt(20 / 46), rel=1e-4)
    assert found.flipped.level == pytest.approx(2 / math.sqrt(46), rel=1e-4)
    assert found.exchanged.level == pytest.approx(6 / math.sqrt(46), rel=1e-4)
    assert found.both.level == pytest.approx(4 / math.sqrt(46), rel=1e-4)


def test_a_large_set_is_sampled_evenly_and_the_cost_is_bounded() -> None:
    reads: list[tuple[str, int]] = []

    class Frames:
        shape = (1000, 2, 40, 50)

        def __init__(self, name: str) -> None:
            self.name = name

        def read(self, frames: slice, channels: Any = None) -> Tensor:
            reads.append((self.name, frames.start))
            return vortices(len(range(*frames.indices(1000))))

    def load(name: str) -> Trajectory:
        return replace(
            flow(vortices(2)),
            name=name,
            states=Frames(name),
            time=torch.arange(1000, dtype=torch.float64),
        )

    names = tuple(f"t{i:03}" for i in range(500))
    facts = survey(Recordings(kind="native", path=Path("x"), names=names, load=load))
    assert facts.opened == 16 and facts.trajectories == 500
    assert facts.frames_read == 2 * len(reads) == 64
    assert {"t000", "t499"} <= {name for name, _ in reads}
    assert {0, 998} == {start for _, start in reads}


def test_spread_reaches_both_ends() -> None:
    assert spread(5, 10) == [0, 1, 2, 3, 4]
    assert spread(101, 3) == [0, 50, 100]
    assert spread(7, 1) == [0]


def test_a_right_flow_raises_no_alarm() -> None:
    assert inspect(recordings_of(flow())).problems == ()


def test_json_is_plain_and_whole() -> None:
    states = vortices()
    states[:, 0] = math.nan
    plain = inspect(recordings_of(flow(states))).to_dict()
    again = json.loads(json.dumps(plain, allow_nan=False))
    assert again["shape"] == [40, 50] and again["channels"][0]["low"] is None
    assert "not finite" in {problem["topic"] for problem in again["problems"]}


def turn_rows(states: Tensor) -> Tensor:
    return states.flip(2)


def turn_v(states: Tensor) -> Tensor:
    return states * torch.tensor([1.0, -1.0])[:, None, None]


def exchange_components(states: Tensor) -> Tensor:
    return states[:, [1, 0]]


def transpose(states: Tensor) -> Tensor:
    return states.transpose(2, 3).contiguous()


@pytest.mark.parametrize(
    ("turn", "topic"),
    [
        (turn_rows, "rows flipped"),
        (turn_v, "rows flipped"),
        (exchange_components, "axes exchanged"),
        (transpose, "axes exchanged"),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_wrong_axes_are_found(turn: Callable[[Tensor], Tensor], topic: str, noise: float) -> None:
    states = vortices()
    states = states + noise * torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
    right = flow(states, spacing=(DX, DY))
    assert topics(inspect(recordings_of(right))) == set()
    spacing = (DY, DX) if turn is transpose else (DX, DY)
    wrong = inspect(recordings_of(flow(turn(states), spacing=spacing)))
    assert topics(wrong) == {topic}
    assert wrong.problems[0].serious


def test_a_plane_of_a_flow_in_space_is_not_called_wrong_but_flipped_it_is() -> None:
    """Strain of random direction in space, seen in a plane: mean(ux vy) = -mean(ux^2) / 2."""
    generator = torch.Generator().manual_seed(2)
    x, y = Grid((40, 50), DX, DY).coordinates()
    states = torch.zeros(12, 2, 40, 50)
    for frame in states:
        for _ in range(40):
            wave = torch.randn(3, generator=generator)
            wave = 4 * wave / wave.norm()
            amplitude = torch.linalg.cross(wave, torch.randn(3, generator=generator))[:2]
            phase = 2 * math.pi * torch.rand(1, generator=generator)
            frame += amplitude[:, None, None] * torch.sin(wave[0] * x + wave[1] * y + phase)
    right = inspect(recordings_of(flow(states)))
    assert right.facts.divergence is not None
    assert right.facts.divergence.as_is.cancellation == pytest.approx(0.71, abs=0.12)
    assert right.facts.divergence.level == pytest.approx(0.41, abs=0.08)
    assert topics(right) == set()
    assert topics(inspect(recordings_of(flow(states.flip(2))))) == {"rows flipped"}


def test_noise_has_the_divergence_that_the_report_says() -> None:
    noise = torch.randn(4, 2, 40, 50, generator=torch.Generator().manual_seed(3))
    facts = inspect(recordings_of(flow(noise, spacing=(DX, DX)))).facts
    assert facts.divergence is not None
    assert facts.divergence.level == pytest.approx(0.71, abs=0.02)
    assert facts.divergence.as_is.cancellation == pytest.approx(1.0, abs=0.05)


def test_a_compressible_flow_may_expand() -> None:
    """Sound: the gradient of a potential, with du/dx = dv/dy."""
    x, y = Grid((40, 50), DX, DY).coordinates()
    wave = torch.stack((torch.sin(2 * x) * torch.cos(2 * y), torch.cos(2 * x) * torch.sin(2 * y)))
    states = wave * torch.linspace(1, 1.5, 4)[:, None, None, None]
    assert inspect(recordings_of(flow(states, family="euler"))).problems == ()
    assert inspect(recordings_of(flow(states))).problems != ()


def test_a_wrong_ratio_of_the_steps_is_found() -> None:
    found = inspect(recordings_of(flow(spacing=(DX, 2 * DY))))
    assert topics(found) == {"spacing"}
    assert "dy were 0.50 times" in found.problems[0].seen


@pytest.mark.parametrize(
    ("changes", "topic"),
    [
        ({"length_unit": "px"}, "wrong units"),
        ({"length_unit": "px", "spacing": (16.0, 24.0)}, "pixels"),
        ({"units": ("px/frame", "px/frame")}, "pixels"),
        ({"length_unit": None, "spacing": (16.0, 24.0)}, "pixels"),
        ({"length_unit": "m", "spacing": (16.0, 24.0)}, "pixels"),
        ({"length_unit": None, "units": ("1", "1"), "spacing": (1.0, 1.0)}, "counted points"),
        ({"length_unit": "mm"}, "mixed units"),
        ({"units": ("mm s-1", "mm s-1")}, "mixed units"),
        ({"time_unit": "ms"}, "mixed units"),
        ({"length_unit": None, "units": ("1", "1")}, "no units"),
        ({"length_unit": None}, "unit missing"),
        ({"units": ("1", "1")}, "unit missing"),
        ({"units": ("unknown", "unknown")}, "unit missing"),
        ({"units": ("mm/ms", "mm/ms"), "time_unit": None}, "unit missing"),
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
    assert topic in topics(inspect(recordings_of(flow(**changes))))


@pytest.mark.parametrize("velocity", ["px", "mm"])
def test_pixels_that_are_too_close_are_wrong_units(velocity: str) -> None:
    """PIVPy labels positions in mm as pixels; a scale would make wrong numbers of them."""
    like = replace_units(flow(vortices(), length_unit="px"), velocity)
    found = {finding.topic: finding for finding in inspect(recordings_of(like)).problems}
    assert not {"pixels", "unknown unit"} & set(found)
    assert "--override-units" in found["wrong units"].advice
    assert "--scale" not in found["wrong units"].advice


def test_mixed_units_are_told_and_serious_only_where_nothing_converts_them() -> None:
    mixed = flow(length_unit="mm", time_unit=None, dt=1e-4)
    (finding,) = inspect(recordings_of(mixed)).problems
    assert finding.topic == "mixed units" and not finding.serious
    assert "coordinates in mm, time in s, velocity in m/s" in finding.seen
    assert "factor of 0.001; the divergence told here is right, in 1/s" in finding.why
    assert "metres and seconds" in finding.advice
    (finding,) = inspect(recordings_of(mixed, kind="native")).problems
    assert finding.serious


def test_units_that_fit_are_not_called_mixed() -> None:
    for unit in ("mm/s", "mm s-1", "mm s^-1", "mm·s⁻¹"):
        assert inspect(recordings_of(flow(length_unit="mm", units=(unit, unit)))).problems == ()
    together = flow(length_unit="mm", time_unit="ms")  # m/s is mm/ms
    assert inspect(recordings_of(together)).problems == ()


def test_a_missing_unit_of_velocity_is_serious_where_lengths_are_not_metres() -> None:
    (finding,) = inspect(recordings_of(flow(length_unit="mm", units=("1", "1")))).problems
    assert finding.seen == "velocity unit unknown while lengths are mm"
    assert finding.advice.startswith("pass --unit m/s") and finding.serious
    (finding,) = inspect(recordings_of(flow(units=("1", "1")))).problems
    assert not finding.serious


def test_a_dimensionless_flow_needs_no_units() -> None:
    own = flow(length_unit="D", time_unit="D/U", units=("1", "1"))
    assert inspect(recordings_of(own)).problems == ()
    bare = flow(length_unit=None, time_unit=None, units=("1", "1"))
    assert inspect(recordings_of(bare, kind="native")).problems == ()


def test_a_scalar_called_u_is_no_velocity() -> None:
    scalar = flow(vortices()[:, :1], units=("1",), length_unit="mm", family="heat")
    assert inspect(recordings_of(scalar)).problems == ()


def test_the_divergence_is_per_second_whatever_the_units_of_the_file() -> None:
    in_metres = survey(recordings_of(flow())).divergence
    states = vortices() * torch.tensor([1e3, 1.0])[:, None, None]
    mixed = flow(states, units=("mm/s", "m/s"), length_unit="cm", spacing=(100 * DX, 100 * DY))
    facts = survey(recordings_of(mixed))
    assert in_metres is not None and facts.divergence is not None
    assert facts.divergence.gradient == pytest.approx(in_metres.gradient, rel=1e-4)
    assert facts.divergence.rms == pytest.approx(in_metres.rms, rel=1e-2)
    assert facts.spacing == (100 * DX, 100 * DY)  # told as the file has it


def test_bursts_are_no_fault_where_the_time_step_is_stated() -> None:
    time = 0.1 * torch.tensor([0, 1, 10, 11, 20, 21.0]).double()
    (finding,) = inspect(recordings_of(flow(time=time))).problems
    assert finding.topic == "time gaps" and not finding.serious
    assert "between 1 and 9 times" in finding.seen
    (finding,) = inspect(recordings_of(flow(dt=None, time=time))).problems
    assert finding.serious


def with_isolated_zeros(states: Tensor) -> Tensor:
    states = states.clone()
    for frame in range(len(states)):
        states[frame, :, 5 + frame :: 9, 4::7] = 0
    return states


def with_a_body_of_zeros(states: Tensor) -> Tensor:
    states = states.clone()
    states[:, :, 10:20, 10:20] = 0
    return states


def with_outliers(states: Tensor) -> Tensor:
    states = states.clone()
    states[:, :, 4::9, 4::9] = states[:, :, 4::9, 4::9] * -2 + 3
    return states


def with_a_fill_value(states: Tensor) -> Tensor:
    states = states.clone()
    states[:, 0, 3:5, 3] = -999
    return states


def with_some_huge_values(states: Tensor) -> Tensor:
    states = states.clone()
    states[:, 0, 3, 3:7] = torch.tensor([300.0, 400.0, 500.0, 900.0])
    return states


def with_repeated_frames(states: Tensor) -> Tensor:
    return states[torch.tensor([0, 0, 1, 1, 2, 2])]


def constant_v(states: Tensor) -> Tensor:
    states = states.clone()
    states[:, 1] = 0.25
    return states


@pytest.mark.parametrize(
    ("spoil", "topic", "words"),
    [
        (with_isolated_zeros, "zero vectors", "at points that move in other frames"),
        (with_a_body_of_zeros, "zero vectors", "exactly 0 at 100 points (5.00% of the grid)"),
        (with_outliers, "outliers", "spurious"),
        (with_a_fill_value, "fill value", "-999"),
        (with_some_huge_values, "huge values", "900"),
        (with_repeated_frames, "repeated frames", "3 of 5"),
        (constant_v, "constant channel", "v is 0.25"),
        (lambda states: states[:1].repeat(6, 1, 1, 1), "same frame", "all of 5 pairs"),
        (lambda states: states.half().float(), "16-bit values", "16-bit"),
        (lambda states: torch.where(states > 1.9, math.nan, states), "not finite", "NaN"),
    ],
)
def test_wrong_values_are_found(spoil: Callable[[Tensor], Tensor], topic: str, words: str) -> None:
    found = inspect(recordings_of(flow(spoil(vortices()))))
    finding = next(problem for problem in found.problems if problem.topic == topic)
    assert words in finding.seen + finding.why


@pytest.mark.parametrize("channels", [("u", "v"), ("u", "v", "p")])
def test_all_zeros_of_a_body_are_counted_and_the_command_is_named(
    channels: tuple[str, ...],
) -> None:
    x, y = Grid((60, 80), 1.0, 1.0).coordinates()
    inside = torch.hypot(x - 30, y - 25) <= 12.3
    states = torch.where(inside, 0.0, vortices(4, (60, 80)))
    if len(channels) == 3:  # a pressure that is not zero inside
        states = torch.cat((states, 1 + states[:, :1]), dim=1)
    units = ("m/s", "m/s", "Pa")[: len(channels)]
    whole = flow(states, units=units)
    found = inspect(recordings_of(whole))
    assert found.facts.zeros_static == int(inside.sum())
    assert found.facts.zeros_varying == 0
    (finding,) = [problem for problem in found.problems if problem.topic == "zero vectors"]
    assert "OUT.h5 --body zeros" in finding.advice
    # A vector more that is missing in one frame, and points of the body that are flagged in some.
    states[2, :2, 50, 60] = 0
    valid = torch.rand(4, 60, 80, generator=torch.Generator().manual_seed(0)) > 0.1
    flagged = replace(whole, valid=valid)
    for own in (whole, flagged):
        assert inspect(recordings_of(own)).facts.zeros_static == int(inside.sum())


def test_walls_of_exact_zeros_at_the_edges_are_no_body() -> None:
    states = vortices()
    states[..., [0, -1], :] = 0
    assert "zero vectors" not in topics(inspect(recordings_of(flow(states))))


def test_fluid_at_rest_is_no_missing_vector() -> None:
    x, _ = Grid((40, 50), DX, DY).coordinates()
    front = torch.clamp(1e-3 * torch.exp(-((x / 0.5) ** 8)), min=1e-20)
    states = vortices() * torch.where(front > 1e-10, front, 0.0)
    assert "zero vectors" not in topics(inspect(recordings_of(flow(states))))


def test_a_start_from_rest_is_no_missing_vector() -> None:
    states = vortices()
    states[0] = 0
    states[0, 0, -1] = 1  # a lid that moves
    assert "zero vectors" not in topics(inspect(recordings_of(flow(states))))


def test_zeros_in_the_cells_of_an_openfoam_case_are_fluid() -> None:
    measured = flow(with_a_body_of_zeros(vortices()))
    converted = replace(measured, local={"kind": "openfoam"})
    assert "zero vectors" in topics(inspect(recordings_of(measured, kind="native")))
    assert "zero vectors" not in topics(inspect(recordings_of(converted, kind="native")))
    assert "zero vectors" not in topics(inspect(recordings_of(measured, kind="openfoam")))


def test_grids_that_differ_are_named() -> None:
    found = inspect(recordings_of(flow(), flow(vortices(3, (20, 30)), name="small")))
    (finding,) = found.problems
    assert finding.topic == "different grids" and "small" in finding.seen
    assert not finding.serious


def test_most_points_missing_is_told() -> None:
    valid = torch.zeros(40, 50, dtype=torch.bool)
    valid[10:30, 10:30] = True
    assert topics(inspect(recordings_of(flow(valid=valid)))) == {"missing points"}


def test_of_fields_without_a_value_only_that_is_said() -> None:
    nothing = torch.full_like(vortices(), math.nan)
    missing = flow(nothing, valid=torch.zeros(40, 50, dtype=torch.bool), units=("1", "1"))
    (finding,) = inspect(recordings_of(missing)).problems
    assert finding.seen.startswith("100% of the points") and finding.serious


def test_frames_without_a_value_are_not_called_the_same() -> None:
    valid = torch.ones(6, 40, 50, dtype=torch.bool)
    valid[2:4] = False
    found = inspect(recordings_of(flow(valid=valid)))
    assert found.facts.repeated == 0 and found.facts.pairs == 4


def test_a_velocity_that_crosses_the_view_many_times_a_frame_is_a_wrong_scale() -> None:
    fast = flow(1000 * vortices())  # about 2000 m/s for 0.1 s in a view of 6 m
    (finding,) = inspect(recordings_of(fast)).problems
    assert finding.topic == "scale" and finding.serious and "--unit" in finding.advice
    # The same numbers in mm/s are right, and fluid in a closed box has no way out.
    assert "scale" not in topics(inspect(recordings_of(replace_units(fast, "mm/s"))))
    walls = replace(fast.spec.grid, sides=Sides(*[Boundary.WALL] * 4))
    boxed = replace(fast, spec=replace(fast.spec, grid=walls))
    assert "scale" not in topics(inspect(recordings_of(boxed)))


def replace_units(trajectory: Trajectory, unit: str) -> Trajectory:
    return replace(trajectory, spec=replace(trajectory.spec, units=(unit, unit)))


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"units": ("ms", "ms")}, "'ms' is no known unit of velocity (did you mean m/s?)"),
        ({"units": ("m/furlong",) * 2}, "'m/furlong' is no known unit of velocity"),
        ({"length_unit": "MM"}, "'MM' is no known unit of length (did you mean mm?)"),
        ({"time_unit": "sek"}, "'sek' is no known unit of time"),
    ],
)
def test_a_mistyped_unit_is_found(changes: dict[str, Any], seen: str) -> None:
    (finding,) = inspect(recordings_of(flow(**changes), kind="native")).problems
    assert finding.topic == "unknown unit" and finding.serious and seen in finding.seen


@needs_shared
def test_the_measured_jet_is_right_as_it_is_and_wrong_when_turned(tmp_path: Path) -> None:
    with np.load(SHARED / "jet_piv_train.npz") as data:
        uv = torch.from_numpy(data["uv"][::100].astype(np.float32))
    step = 1 / 3000
    right = flow(uv, spacing=(step, step), dt=5e-4)
    assert topics(inspect(recordings_of(right))) == {"16-bit values"}
    for turn, topic in ((turn_rows, "rows flipped"), (transpose, "axes exchanged")):
        assert topic in topics(inspect(recordings_of(flow(turn(uv), spacing=(step, step)))))


@needs_shared
def test_the_simulated_wake_raises_no_alarm() -> None:
    found = inspect(open_recordings(SHARED / "cylinder_re100_pod.npz"))
    assert not any(problem.serious for problem in found.problems)
    assert found.facts.divergence is not None and found.facts.divergence.level < 0.03


OWN_SETS = {
    "heat": {"frames": 4, "shape": [24, 32]},
    "wave": {"frames": 4, "shape": [24, 32]},
    "reaction-diffusion": {"frames": 3, "shape": [24, 32], "interval": 5.0},
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


@pytest.mark.parametrize("case", OWN_SETS)
def test_what_the_solver_makes_raises_no_alarm(tmp_path: Path, case: str) -> None:
    recipe = change(find_preset(case), {"samples": 2} | OWN_SETS[case])
    path = generate(recipe, tmp_path / "set.h5").path
    assert inspect(open_recordings(path)).problems == ()


@needs_shared
def test_the_jet_lacks_a_unit_until_it_is_told() -> None:
    path = SHARED / "jet_piv_train.npz"
    found = inspect(open_recordings(path)).problems
    assert [p.topic for p in found if p.serious] == ["unit missing"]
    assert found[0].seen == "velocity unit unknown while lengths are mm"
    found = inspect(open_recordings(path, hints=Hints(unit="m/s"))).problems
    assert not any(problem.serious for problem in found)


def test_the_remedy_for_flipped_rows_mends_them(tmp_path: Path) -> None:
    for turn, flip in ((turn_rows, "y"), (turn_v, "v")):
        write(tmp_path / "a.h5", [flow(turn(vortices()))])
        (finding,) = inspect(open_recordings(tmp_path / "a.h5")).problems
        assert finding.topic == "rows flipped" and f"--flip {flip}" in finding.advice
        mended = open_recordings(tmp_path / "a.h5", hints=Hints(flip=(flip,)))
        assert inspect(mended).problems == ()
        torch.testing.assert_close(mended[0].read(), vortices())
