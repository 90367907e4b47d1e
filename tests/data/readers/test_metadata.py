"""Metadata that the user states: units, spacing, time step, family, sides and parameters."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data.convert import convert
from pibert.data.format import Reader, write
from pibert.data.readers import open_recordings
from pibert.data.readers.recordings import Hints, Recordings, SourceError
from pibert.data.readers.shared.metadata import family_note, state
from pibert.data.units import in_consistent_units
from pibert.fields import FieldSpec, Grid, Trajectory
from pibert.notes import InputWarning
from tests.data.helpers import make_trajectory
from tests.helpers import refused


def trajectory_of(
    *,
    channels: tuple[str, ...] = ("u", "v"),
    units: tuple[str, ...] = ("1", "1"),
    length_unit: str | None = None,
    time: list[float] | None = None,
    dt: float | None = None,
    time_unit: str | None = None,
    dx: float = 16.0,
    dy: float = 8.0,
) -> Trajectory:
    times = torch.tensor([0.0, 1.0, 2.0] if time is None else time)
    rng = np.random.default_rng(0)
    states = torch.from_numpy(rng.normal(size=(len(times), len(channels), 4, 5)))
    grid = Grid((4, 5), dx, dy, origin=(2 * dx, dy))
    return Trajectory(
        name="a",
        states=states.float(),
        time=times,
        spec=FieldSpec(channels=channels, units=units, dt=dt, grid=grid, family=None),
        length_unit=length_unit,
        time_unit=time_unit,
    )


def netcdf(path: Path, velocity: str = "m/s", length: str = "mm", clock: str = "s") -> Path:
    xarray = pytest.importorskip("xarray")
    values = np.random.default_rng(0).normal(size=(3, 4, 5))
    axes = {
        "x": ("x", 0.5 * np.arange(5), {"units": length}),
        "y": ("y", 0.25 * np.arange(4), {"units": length}),
        "time": ("time", (1 if clock == "frame" else 0.1) * np.arange(3), {"units": clock}),
    }
    fields = {name: (("time", "y", "x"), values, {"units": velocity}) for name in "uv"}
    xarray.Dataset(fields, axes).to_netcdf(path, engine="h5netcdf")
    return path


def opened(path: Path, **hints: Any) -> Recordings:
    return open_recordings(path, hints=Hints(**hints))


@pytest.mark.parametrize("name", ["a.nc", "a.h5"])
def test_units_that_contradict_the_file_need_override_units(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "a.nc":
        netcdf(path)
    else:
        write(path, [trajectory_of(units=("m/s", "m/s"), length_unit="mm", time_unit="s", dt=1.0)])
    plain = opened(path)[0]
    for option, given, stated in (("unit", "mm/s", "m/s"), ("length_unit", "cm", "mm")):
        message = f"--{option.replace('_', '-')} {given} .* in {stated}; .*--override-units"
        with pytest.raises(SourceError, match=message):
            opened(path, **{option: given})
    recordings = opened(path, unit="mm/s", length_unit="cm", override_units=True)
    flow = recordings[0]
    assert flow.spec.units[:2] == ("mm/s", "mm/s") and flow.length_unit == "cm"
    assert torch.equal(flow.read(), plain.read()) and flow.spec.grid == plain.spec.grid
    assert any("--unit mm/s replaced" in note for note in recordings.notes)
    same = opened(path, unit="m s-1", length_unit="millimetres")[0]
    assert same.spec.units[:2] == ("m/s", "m/s") and same.length_unit == "mm"


def test_the_user_states_missing_units(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", u=np.ones((2, 4, 5)), v=np.ones((2, 4, 5)))
    stated = {"dt": 0.1, "dx": 0.5, "dy": 0.25, "length_unit": "mm", "unit": "m/s"}
    flow = opened(tmp_path / "a.npz", **stated)[0]
    assert flow.spec.units == ("m/s", "m/s") and flow.length_unit == "mm"
    assert (flow.spec.grid.dx, flow.spec.grid.dy, flow.spec.dt) == (0.5, 0.25, 0.1)
    assert flow.time_unit == "s"  # as velocities are per second
    assert flow.local["hints"] == stated
    assert opened(tmp_path / "a.npz", unit="U", dt=0.1)[0].time_unit is None
    with pytest.warns(InputWarning, match="'furlongs'"):
        opened(tmp_path / "a.npz", unit="furlongs")
    for option, found in (("unit", "m"), ("length_unit", "s"), ("time_unit", "m")):
        with pytest.raises(SourceError, match=f"--{option.replace('_', '-')}: '{found}'"):
            opened(tmp_path / "a.npz", **{option: found})


def test_contradictory_spacing_and_times_are_refused(tmp_path: Path) -> None:
    path = netcdf(tmp_path / "a.nc")
    for hints, stated in (
        ({"dx": 2.0, "dy": 0.25}, "0.5 mm along x"),
        ({"dt": 0.2}, "0.1 s"),
        ({"time_unit": "ms"}, "times in s"),
    ):
        with pytest.raises(SourceError, match=stated):
            opened(path, **hints)
    recordings = opened(path, dx=2.0, dt=0.2, time_unit="ms", override_units=True)
    flow, grid = recordings[0], recordings[0].spec.grid
    assert (grid.dx, grid.dy) == pytest.approx((2.0, 0.25)) and flow.time_unit == "ms"
    assert flow.time.tolist() == pytest.approx([0.0, 0.2, 0.4])
    assert any("--dx 2 replaced" in note for note in recordings.notes)
    agreeing = opened(path, dx=0.5, dy=0.25, dt=0.1)[0].spec
    assert (agreeing.grid.dx, agreeing.dt) == pytest.approx((0.5, 0.1))
    # Positions in pixels need a scale, not another spacing.
    with pytest.raises(SourceError, match=r"16 along x; .*--scale"):
        state(trajectory_of(), Hints(dx=0.8, dy=0.4))


def test_counted_points_accept_a_spacing() -> None:
    counted = trajectory_of(dx=1.0, dy=1.0)
    grid = state(counted, Hints(dx=0.5, dy=0.25))[0].spec.grid
    assert (grid.dx, grid.dy) == (0.5, 0.25) and grid.origin == (1.0, 0.25)
    with pytest.raises(SourceError, match="along one axis only.* give --dy"):
        state(counted, Hints(dx=0.5))


def test_a_time_step_scales_frame_numbers() -> None:
    for unit in (None, "frame"):
        counted = trajectory_of(time=[5.0, 6.0, 7.0], dt=1.0, time_unit=unit)
        flow, _ = state(counted, Hints(dt=0.5))
        assert flow.time.tolist() == [0.0, 0.5, 1.0] and flow.spec.dt == 0.5
        assert flow.time_unit is None
    every_fifth = trajectory_of(time=[0.0, 5.0, 10.0], dt=5.0, time_unit="frame")
    flow, _ = state(every_fifth, Hints(dt=0.5))
    assert flow.time.tolist() == [0.0, 2.5, 5.0] and flow.spec.dt == 2.5
    with refused("--dt 0.5", "of 2", error=SourceError):
        state(trajectory_of(time=[0.0, 2.0, 4.0], dt=2.0), Hints(dt=0.5))
    for unit, dt in ((None, None), (None, 1.0), ("frame", 1.0)):
        missing = trajectory_of(time=[3.0, 4.0, 7.0], dt=dt, time_unit=unit)
        flow, _ = state(missing, Hints(dt=0.5))
        assert flow.time.tolist() == [0.0, 0.5, 2.0] and flow.spec.dt == 0.5
    apart, notes = state(trajectory_of(time=[0.0, 2.0, 5.0]), Hints(dt=0.5))
    assert apart.time.tolist() == [0.0, 1.0, 2.5] and apart.spec.dt is None
    assert any("steps of 2 to 3 were read as frame numbers" in note for note in notes)
    with refused("in frame", "time between frames", error=SourceError):
        state(trajectory_of(time_unit="frame", dt=1.0), Hints(time_unit="s"))


FIVES, SMALL = [0.0, 5.0, 10.0, 15.0, 30.0, 35.0], [0.0, 1.0, 2.0, 4.0, 5.0, 6.0]
UNEVEN = [0.0, 5.0, 12.0, 20.0, 26.0, 35.0]


def timed(path: Path, time: list[float], suffix: str = ".npz") -> Path:
    """A recording with these times, which have no unit."""
    fields = np.random.default_rng(0).normal(size=(2, len(time), 4, 5))
    if suffix == ".npz":
        x, y = 0.5 * np.arange(5.0), 0.25 * np.arange(4.0)
        named = {"u": fields[0], "v": fields[1], "x": x, "y": y, "t": np.array(time)}
        save: Any = np.savez
        save(path.with_suffix(suffix), **named)
    else:
        mesh = np.meshgrid(time, np.arange(4.0), np.arange(5.0), indexing="ij")
        columns = [mesh[0], mesh[2], mesh[1], *fields]
        rows = np.stack([column.ravel() for column in columns], 1)
        np.savetxt(path.with_suffix(suffix), rows, delimiter=",", header="t,x,y,u,v", comments="")
    return path.with_suffix(suffix)


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_a_time_step_that_disagrees_with_stated_times_is_refused(
    tmp_path: Path, suffix: str
) -> None:
    path = timed(tmp_path / "a", FIVES, suffix)
    agreeing = opened(path, dt=5.0, time_unit="ms")[0]
    assert agreeing.time.tolist() == FIVES and agreeing.spec.dt == 5 and agreeing.time_unit == "ms"
    for dt, unit in ((0.002, None), (1.0, "ms")):
        with refused(f"--dt {dt:g}", "steps of 5", error=SourceError):
            opened(path, dt=dt, time_unit=unit)
    path = timed(tmp_path / "b", SMALL, suffix)
    with refused("--dt 0.5 ms", "steps of 1 ms", error=SourceError):
        opened(path, dt=0.5, time_unit="ms")
    counted = opened(path, dt=0.5)[0]
    assert counted.time.tolist() == [0.0, 0.5, 1.0, 2.0, 2.5, 3.0] and counted.spec.dt == 0.5
    path = timed(tmp_path / "c", UNEVEN, suffix)
    with refused("--dt 5 ms", "time steps from 5 to 9 ms", error=SourceError):
        opened(path, dt=5.0, time_unit="ms")
    uneven = opened(path, time_unit="ms")[0]
    assert uneven.time.tolist() == UNEVEN and uneven.spec.dt is None and uneven.time_unit == "ms"


@pytest.mark.parametrize("kind", ["npz", "csv", "native"])
@pytest.mark.parametrize("missing", [False, True])
def test_a_unit_of_time_does_not_make_frame_numbers_times(
    tmp_path: Path, kind: str, missing: bool
) -> None:
    numbers = [0, 1, 2, 4] if missing else [0, 1, 2, 3]
    path, times = tmp_path / "run", [float(number) for number in numbers]
    if kind == "native":
        counted = trajectory_of(units=("m/s", "m/s"), length_unit="m", time=times)
        write(path := tmp_path / "a.h5", [counted])
    elif kind == "npz":
        times = [0.0, 1.0, 2.0, 3.0]
        np.savez(path := tmp_path / "a.npz", u=np.ones((4, 4, 5)), v=np.ones((4, 4, 5)))
    else:
        path.mkdir()
        for number in numbers:
            rows = [f"{x},{y},{number + x}" for y in range(4) for x in range(5)]
            (path / f"f{number}.csv").write_text("\n".join(["x,y,u [m/s]", *rows]))
    recordings = opened(path, time_unit="ms")
    flow = recordings[0]
    assert flow.spec.dt is None and flow.time_unit is None and flow.time.tolist() == times
    assert in_consistent_units(flow).time.tolist() == times
    assert any("no time between the frames" in note for note in recordings.notes)
    known = opened(path, time_unit="ms", dt=4.0)[0]
    assert known.time.tolist() == [4 * time for time in times]
    assert known.spec.dt == 4 and known.time_unit == "ms"


def test_a_time_step_agrees_with_times_that_keep_it_but_for_gaps() -> None:
    bursts = [0.0, 0.1, 0.2, 1.05, 1.15, 1.25]
    flow, _ = state(trajectory_of(time=bursts, time_unit="s"), Hints(dt=0.1))
    assert flow.spec.dt == 0.1 and flow.time.tolist() == pytest.approx(bursts)
    with refused("--dt 0.2 s", "from 0.1 to 0.85 s", error=SourceError):
        state(trajectory_of(time=bursts, time_unit="s"), Hints(dt=0.2))


def test_a_replaced_time_step_keeps_missing_frames() -> None:
    hints = Hints(dt=0.2, override_units=True)
    gap = trajectory_of(time=[0.5, 0.6, 0.7, 1.0], dt=0.1, time_unit="s")
    flow, notes = state(gap, hints)
    assert flow.time.tolist() == pytest.approx([0.5, 0.7, 0.9, 1.5]) and flow.spec.dt == 0.2
    assert any("--dt 0.2 s replaced what the data state: steps of 0.1 s" in n for n in notes)
    assert flow.time.diff()[:2].tolist() == pytest.approx([0.2, 0.2], rel=1e-12)
    uneven, _ = state(trajectory_of(time=[0.0, 0.1, 0.4, 0.9], time_unit="s"), hints)
    assert uneven.time.tolist() == pytest.approx([0.0, 0.2, 0.4, 0.6]) and uneven.spec.dt == 0.2


def test_times_in_frames_are_counts_where_velocities_are_per_second(tmp_path: Path) -> None:
    counted = trajectory_of(
        units=("m/s", "m/s"), length_unit="mm", time=[0.0, 1.0, 2.0], dt=1.0, time_unit="frame"
    )
    flow, _ = state(counted, Hints())
    assert flow.spec.dt is None and flow.time_unit is None
    assert in_consistent_units(flow).spec.grid.dx == pytest.approx(0.016)
    pixels = replace(counted, spec=replace(counted.spec, units=("px", "px")), length_unit="px")
    assert state(pixels, Hints())[0].time_unit == "frame"
    path = netcdf(tmp_path / "a.nc", clock="frame")
    assert any("no time between the frames" in note for note in opened(path).notes)
    assert not any("no time between" in note for note in opened(path, dt=0.1).notes)


def arrays(path: Path, *names: str) -> Path:
    """An archive of random fields of these names, which states nothing else."""
    generator = np.random.default_rng(0)
    fields: dict[str, Any] = {name: generator.normal(size=(3, 4, 6)) for name in names}
    np.savez(path, **fields, x=np.arange(6.0), y=np.arange(4.0), t=np.arange(3.0))
    return path


def reopen(path: Path, **hints: Any) -> Trajectory:
    return open_recordings(path, hints=Hints(**hints))[0]


def test_an_inferred_family_is_dropped_with_its_channels(tmp_path: Path) -> None:
    path, notes = arrays(tmp_path / "a.npz", "u", "v", "p"), list[str]()
    convert(open_recordings(path), tmp_path / "all.h5", on_note=notes.append)
    assert any("assuming incompressible" in note for note in notes)
    stored = Reader(tmp_path / "all.h5")[0]
    assert stored.spec.family == "incompressible" and "inferred" in stored.local["family"]
    assert reopen(tmp_path / "all.h5", family="heat").spec.family == "heat"
    convert(open_recordings(path), tmp_path / "v.h5", channels=("v",), on_note=notes.append)
    stored = Reader(tmp_path / "v.h5")[0]
    assert stored.spec.family is None and "family" not in stored.local
    assert any("no PDE family is stated" in note for note in notes)
    assert reopen(tmp_path / "v.h5").spec.family is None


@pytest.mark.parametrize("channels", [("T",), ("u", "v", "rho"), ("u", "v", "T")])
def test_other_channels_have_no_inferred_family(tmp_path: Path, channels: tuple[str, ...]) -> None:
    found = reopen(arrays(tmp_path / "a.npz", *channels))
    assert found.spec.family is None and "family" not in found.local
    assert "no PDE family is stated" in str(family_note(found))


def test_the_user_states_a_family_or_none(tmp_path: Path) -> None:
    path = arrays(tmp_path / "a.npz", "u", "v")
    heat = reopen(path, family="heat")
    assert heat.spec.family == "heat" and "family" not in heat.local
    unknown = reopen(path, family="none")
    assert unknown.spec.family is None and family_note(unknown) is None
    with pytest.raises(ValueError, match="'stokes'; choose from: incompress"):
        open_recordings(path, hints=Hints(family="stokes"))
    assert "p, rho" in str(family_note(reopen(path, family="euler")))


@pytest.mark.parametrize(
    ("hints", "message"),
    [
        ({"parameters": {"Re": 100.0}}, "Re is 1800 .*100"),
        ({"sides": "x=periodic"}, "left is inflow .*periodic"),
        ({"family": "heat"}, "incompressible .*heat"),
        ({"family": "none"}, "incompressible .*none"),
    ],
)
def test_contradictory_facts_need_override_metadata(
    tmp_path: Path, hints: dict[str, Any], message: str
) -> None:
    write(tmp_path / "a.h5", [make_trajectory()])
    with pytest.raises(ValueError, match=f"{message}.*--override-metadata"):
        reopen(tmp_path / "a.h5", **hints)
    with pytest.warns(InputWarning, match="replaced"):
        found = reopen(tmp_path / "a.h5", override_metadata=True, **hints)
    family = hints.get("family", "incompressible")
    assert found.parameters == hints.get("parameters", {"Re": 1800.0})
    assert found.spec.grid.periodic_x == ("sides" in hints)
    assert found.spec.family == (None if family == "none" else family)
    stated = {"parameters": {"Re": 1800.0}, "sides": "left=inflow", "family": "incompressible"}
    assert reopen(tmp_path / "a.h5", **stated).spec == make_trajectory().spec


@pytest.mark.parametrize(
    ("hints", "found"),
    [
        ({"sides": "perodic"}, "periodic, wall.*x=perodic"),
        ({"sides": "left=periodic"}, "left and right"),
        ({"parameters": {"Re": float("nan")}}, "'Re' .*nan"),
        ({"scale": "0.05mm"}, "0.05mm/px, 50um/px or 20px/mm, found '0.05mm'"),
        ({"scale": "0mm/px"}, "'0mm/px'"),
        ({"pulse_delay": "27 mm"}, "27ms or 500us, found '27 mm'"),
    ],
)
def test_wrong_hints_are_refused(hints: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        Hints(**hints)


@pytest.mark.parametrize(("unit", "density"), [("Pa", 1000.0), ("m2/s2", None)])
def test_momentum_equations_need_kinematic_pressure(
    tmp_path: Path, unit: str, density: float | None
) -> None:
    flow = make_trajectory(channels=("u", "v", "p"))
    spec = replace(flow.spec, family=None, units=("m/s", "m/s", unit))
    write(tmp_path / "a.h5", [replace(flow, spec=spec)])
    assert reopen(tmp_path / "a.h5", family="incompressible").spec.family == "incompressible"
    stated: dict[str, Any] = {"family": "incompressible-momentum"}
    if density is not None:
        with pytest.raises(ValueError, match=f"p is in {unit}, .*--parameter density=NUMBER"):
            reopen(tmp_path / "a.h5", **stated)
        stated["parameters"] = {"density": density}
    found = reopen(tmp_path / "a.h5", **stated)
    assert found.spec.family == stated["family"] and found.parameters.get("density") == density


def test_unknown_units_in_the_data_get_a_note(tmp_path: Path) -> None:
    x, y = np.arange(4.0), np.arange(3.0)
    u, v = np.ones((2, 2, 3, 4))

    def notes(stated: str, **hints: Any) -> str:
        text = "".join(
            f"{a:g},{b:g},{c:g},{d:g}\n"
            for a, b, c, d in zip(
                np.tile(x, 3), np.repeat(y, 4), u[0].ravel(), v[0].ravel(), strict=True
            )
        )
        path = tmp_path / "flow.csv"
        path.write_text(f"x [mm],y [mm],u [{stated}],v [{stated}]\n{text}")
        return "\n".join(open_recordings(path, hints=Hints(**hints)).notes)

    for unit in ("kt", "10^-3 m/s"):
        said = notes(unit)
        assert repr(unit) in said and "nothing is converted" in said and "--unit" in said
        assert "known unit" not in notes(unit, unit="m/s", override_units=True)
    assert "known unit" not in notes("mm/s") + notes("px/frame") + notes("U")
