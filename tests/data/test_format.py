"""The native format: round trips, atomic writing, damage, worker processes."""

import fcntl
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from pibert.data import format as native
from pibert.data.format import FormatError, Reader, Writer, check, write
from pibert.data.resample import represent
from pibert.fields import FieldSpec, Grid, Trajectory
from tests.data.helpers import disc, make_trajectory, random_states
from tests.helpers import refused, small_disk

ROOT = Path(__file__).parents[2]


def moving_body(frames: int) -> torch.Tensor:
    return torch.stack([disc().roll(frame, dims=1) for frame in range(frames)])


def varied() -> list[Trajectory]:
    """A static body; a moving one with missing vectors and a gap; nothing known but the numbers."""
    valid = torch.rand(9, 5, 7, generator=torch.Generator().manual_seed(1)) > 0.3
    states = torch.where(valid[:, None], random_states(9, 3, 5, 7, seed=2), math.nan)
    return [
        make_trajectory("Re 1800, süd", body=disc(), source={"Größe": [1, None, {"a": 0.1}]}),
        make_trajectory(
            "moving",
            states=states,
            channels=("u", "v", "p"),
            body=moving_body(9),
            valid=valid,
            time=1 + 0.05 * torch.tensor([0, 1, 2, 3, 10, 11, 12.5, 13.5, 14.5]).double(),
            re=None,
            local={"stride": 20, "crop": None, "split": "train", "seed": 42},
        ),
        bare(),
    ]


def bare(family: str | None = None) -> Trajectory:
    return Trajectory(
        name="bare",
        states=random_states(4, 1, 2, 3),
        time=torch.tensor([0.0, 1.0, 5.0, 6.0]),
        spec=FieldSpec(channels=("h",), family=family, grid=Grid((2, 3), dx=0.1, dy=1 / 3)),
    )


def assert_same(found: Trajectory, wanted: Trajectory) -> None:
    assert found.name == wanted.name
    states = found.read()
    assert states.dtype == torch.float32
    assert states.numpy().tobytes() == wanted.read().numpy().tobytes()
    assert torch.equal(found.time, wanted.time)
    assert found.spec == wanted.spec
    assert found.parameters == wanted.parameters
    assert torch.equal(found.known(), wanted.known())
    for key in ("source", "local", "length_unit", "time_unit"):
        assert getattr(found, key) == getattr(wanted, key)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the varied trajectories, alone in its folder."""
    target = tmp_path / "flow.h5"
    write(target, varied())
    return target


# Round trips


def test_round_trip_is_bit_identical(path: Path) -> None:
    check(path)
    assert files_in(path.parent) == [path.name]
    with Reader(path) as reader:
        assert reader.names == ("Re 1800, süd", "moving", "bare")
        for found, wanted in zip(reader, varied(), strict=True):
            assert_same(found, wanted)
        assert_same(reader["moving"], varied()[1])
        assert_same(reader[2], varied()[2])


@pytest.mark.parametrize(
    ("frames", "channels"),
    [
        (slice(2, 5), None),
        (slice(1, 9, 3), [2, 0]),
        (slice(-3, None), [1, 1, -1]),
        (slice(4, 4), [0]),
    ],
)
def test_slices_equal_slices_of_the_whole(path: Path, frames: slice, channels: Any) -> None:
    wanted = varied()[1]
    with Reader(path) as reader:
        found = reader["moving"]
        np.testing.assert_array_equal(found.read(frames, channels), wanted.read(frames, channels))
        assert torch.equal(found.known(frames), wanted.known(frames))


# Refusals


@pytest.mark.parametrize(
    ("trajectory", "message"),
    [
        (lambda: spoilt(math.nan), r"'v' is nan .*frame 3, row 4, column 6"),
        (lambda: make_trajectory("ok"), "'ok' already"),
        (lambda: make_trajectory(states=random_states(3, 2, 5, 7).double()), "float32"),
        (lambda: make_trajectory(source={"a": math.nan}), "source must be plain JSON"),
        (lambda: make_trajectory(time=0.05 * torch.tensor([0, 1, 2, 3.2, 4.2, 5.2])), "not dt ="),
        (lambda: bare(family="magic"), "'magic'; choose from: incompressible"),
    ],
)
def test_a_wrong_trajectory_is_refused_and_leaves_no_trace(
    tmp_path: Path, trajectory: Callable[[], Trajectory], message: str
) -> None:
    target = tmp_path / "flow.h5"
    with Writer(target) as writer:
        writer.add(make_trajectory("ok"))
        with pytest.raises(ValueError, match=message):
            writer.add(trajectory())
        writer.add(make_trajectory("next"))
    check(target)
    assert Reader(target).names == ("ok", "next")


def spoilt(value: float) -> Trajectory:
    states = random_states(6, 2, 5, 7)
    states[3, 1, 4, 6] = value
    return make_trajectory(states=states)


# Atomic writing


def test_the_target_changes_with_the_end_of_the_block(tmp_path: Path) -> None:
    target = tmp_path / "flow.h5"
    with Writer(target) as writer:
        writer.add(make_trajectory())
        assert not target.exists()
    assert files_in(tmp_path) == ["flow.h5"]
    with pytest.raises(ValueError, match="closed"):
        writer.add(make_trajectory("late"))
    before = target.read_bytes()
    with pytest.raises(KeyboardInterrupt), Writer(target) as writer:
        writer.add(make_trajectory("new"))
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="no trajectory"), Writer(target):
        pass
    assert target.read_bytes() == before and files_in(tmp_path) == ["flow.h5"]


@pytest.mark.parametrize("limit", [100, 100_000, 283_000])
def test_a_full_disk_is_a_plain_error_and_changes_nothing(path: Path, limit: int) -> None:
    before = path.read_bytes()
    new = make_trajectory("new", frames=1000)
    refusal = pytest.raises(OSError, match=r"flow.h5.*File too large")
    with small_disk(limit), refusal:
        write(path, [new])
    assert path.read_bytes() == before
    assert files_in(path.parent) == [path.name]
    write(path, [new])
    with Reader(path) as reader:
        assert_same(reader[0], new)


SLOW_WRITER = """
import sys, time
from pibert.data.format import Writer
from tests.data.helpers import make_trajectory

with Writer(sys.argv[1]) as writer:
    for number in range(10_000):
        writer.add(make_trajectory(str(number), frames=400))
        print(number, flush=True)
        time.sleep(0.005)
"""


def test_a_killed_writer_leaves_no_target_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    target = tmp_path / "flow [1].h5"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_WRITER, str(target)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        assert process.stdout.readline() == "1\n"
        (partial,) = files_in(tmp_path)
        assert partial.endswith(".partial")

        # While it lives, another writer of the same target leaves its file alone.
        write(target, [make_trajectory()])
        assert process.poll() is None
        assert files_in(tmp_path) == [partial, target.name]
        target.unlink()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert files_in(tmp_path) == [partial]
    write(target, [make_trajectory()])
    check(target)
    assert files_in(tmp_path) == [target.name]


def test_only_partial_files_of_dead_writers_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = {
        "living": f".flow.h5.{os.getpid()}-0.partial",
        "locked": f".flow.h5.{dead.pid}-1.partial",
        "dead": f".flow.h5.{dead.pid}-2.partial",
        "of another target": f".other.h5.{dead.pid}-3.partial",
        "no writer's": ".flow.h5.copy-4.partial",
    }
    for name in names.values():
        (tmp_path / name).touch()
    folder = tmp_path / f".flow.h5.{dead.pid}-5.partial"
    folder.mkdir()
    with (tmp_path / names["locked"]).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write(tmp_path / "flow.h5", [make_trajectory()])
    left = {key for key, name in names.items() if (tmp_path / name).exists()}
    assert left == set(names) - {"dead"} and not folder.exists()


def test_a_file_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.replace

    def watched_fsync(descriptor: int) -> None:
        calls.append(("sync", os.path.realpath(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def watched_replace(old: Path, new: Path) -> None:
        calls.append(("rename", str(old)))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    write(tmp_path / "flow.h5", [make_trajectory()])
    (first, partial), (second, same), (third, folder) = calls
    assert (first, second, third) == ("sync", "rename", "sync")
    assert partial == same and partial.endswith(".partial") and folder == str(tmp_path)


# Damage: what is wrong, and where

FIRST = "trajectories/Re 1800, süd"
Change = Callable[[h5py.File], Any]


def swap(name: str, value: np.ndarray) -> Change:
    """Replace a dataset of the first trajectory."""
    return lambda file: (remove(name)(file), file[FIRST].create_dataset(name, data=value))


def state(name: str, value: Any) -> Change:
    """Replace an attribute of the first trajectory; remove it with None."""
    if value is None:
        return lambda file: file[FIRST].attrs.__delitem__(name)
    return lambda file: file[FIRST].attrs.__setitem__(name, value)


def remove(name: str) -> Change:
    return lambda file: file[FIRST].__delitem__(name)


def store_names_elsewhere(file: h5py.File) -> None:
    """Make a data set of the group whose values, the names, are the text of another file."""
    del file["trajectories"]
    text = [(__file__, 0, h5py.h5f.UNLIMITED)]
    file.create_dataset("trajectories", (3,), "S20", external=text)


BROKEN: list[tuple[Change, str]] = [
    (lambda file: file.attrs.modify("version", 2), "version 2.*install a newer"),
    (lambda file: file.__delitem__("trajectories"), "'trajectories' is missing"),
    (store_names_elsewhere, "'trajectories' is missing"),
    (lambda file: file["trajectories"].create_dataset("d", data=1), "'d' is not a group"),
    (remove("fields"), "'Re 1800, süd': .*'fields' is missing"),
    (
        swap("fields", np.zeros((6, 2, 5), np.float32)),
        r"found \(6, 2, 5\)",
    ),
    (swap("fields", np.full((6, 2, 5, 7), np.nan, np.float32)), "'u' is nan at a known point"),
    (swap("time", np.arange(5.0)), r"= \(5, 2, 5, 7\) from its time"),
    (swap("time", np.array([0, 0.05, 0.1, 0.15, 0.2, 0.26])), "'time' are not dt = 0.05"),
    (
        swap("time", np.array([0, 0.05, 0.1, np.nan, 0.2, 0.25])),
        "'time' must be a list of one or more finite values",
    ),
    (swap("x", np.geomspace(0.1, 1, 7)), "'x' are not uniformly dx = 0.1 apart; resample"),
    (swap("body", np.zeros((7, 5), np.uint8)), r"body mask .*\(5, 7\) or \(6, 5, 7\)"),
    (state("dx", None), "'dx' is missing"),
    (state("channels", "u, v"), "'channels' is not JSON"),
    (state("family", "magic"), "'magic'; choose from: incompressible"),
    (state("parameters", '{"Re": {"value": 3}}'), "'scaling'"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_the_first_problem_is_named(path: Path, change: Change, message: str) -> None:
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(FormatError, match=message) as caught:
        check(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_truncated_and_foreign_files_are_named(path: Path) -> None:
    data = path.read_bytes()
    for content, problem in (
        (data[: len(data) * 2 // 3], "truncated: get a new copy"),
        (data[:5], "not an HDF5 file"),
        (b"x,y,u,v\n0,0,1,2\n", "pibert convert flow.h5 OUT.h5"),
    ):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=problem):
            check(path)
    path.unlink()
    with refused("flow.h5", error=FileNotFoundError):
        check(path)


def test_every_damaged_byte_is_detected(path: Path) -> None:
    """Flipped bits anywhere: an error that names the file, or the data are still the same."""
    data, wanted, caught = path.read_bytes(), varied(), 0
    for place in range(0, len(data), len(data) // 70):
        damaged = bytearray(data)
        damaged[place] ^= 0x5A
        path.write_bytes(damaged)
        try:
            check(path)
        except FormatError as error:
            assert str(error).startswith(f"{path}: ")
            caught += 1
            continue
        with Reader(path) as reader:
            for found, original in zip(reader, wanted, strict=True):
                assert_same(found, original)
    assert caught > 35


# Processes


def test_a_reader_and_its_trajectories_survive_pickling(path: Path) -> None:
    with Reader(path) as reader:
        reader[0].read()
        copy, trajectory = pickle.loads(pickle.dumps((reader, reader[1])))
    assert_same(copy[0], varied()[0])
    assert_same(trajectory, varied()[1])
    with refused("'x'", "Re 1800, süd, moving, bare", error=KeyError):
        copy["x"]
    with pytest.raises(IndexError):
        copy[3]


def test_a_file_replaced_under_a_reader_is_detected(path: Path) -> None:
    reader = Reader(path)
    old = reader[0].read()
    time.sleep(0.01)
    write(path, [make_trajectory("Re 1800, süd", seed=9)])
    assert torch.equal(reader[0].read(), old)  # the open file is still the old one
    copy = pickle.loads(pickle.dumps(reader))
    with refused("replaced", "open it again", error=FormatError):
        copy[0]


# The written specification


def test_the_specification_names_everything_in_a_file(path: Path) -> None:
    page = (ROOT / "docs" / "data-format.md").read_text()
    stated = set(re.findall(r"`([a-z_]+)`", page))
    with h5py.File(path) as file:
        names = set(file) | set(file.attrs)
        for group in file["trajectories"].values():
            names |= set(group) | set(group.attrs)
            names |= {key for dataset in group.values() for key in dataset.attrs}
    assert names <= stated
    assert f"`{native.FORMAT}`" in page and f"version {native.VERSION}" in page


def test_the_example_of_the_specification_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "data-format.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"trajectories": [make_trajectory(frames=30)]}
    exec(compile(code, "data-format.md", "exec"), names)
    assert names["window"].shape == (10, 1, 5, 7) and bool(names["known"].all())


def test_series_are_stored_with_the_frames(tmp_path: Path) -> None:
    displacement = torch.tensor([0.0, 0.1, 0.3, -0.2, 1 / 3, 5.0], dtype=torch.float64)
    trajectory = make_trajectory(series={"displacement": displacement, "lift": 2 * displacement})
    path = tmp_path / "a.h5"
    write(path, [trajectory])
    check(path)
    with Reader(path) as reader:
        assert torch.equal(reader[0].series["displacement"], displacement)
        view = represent(reader[0], stride=2, max_frames=2)
        assert view.series["lift"].tolist() == [0.0, 0.6]
    with h5py.File(path, "r+") as file:
        del file["trajectories/a/series/lift"]
        file["trajectories/a/series/lift"] = np.zeros(4)
    with refused("'lift'", "(6,)", "(4,)", error=FormatError):
        check(path)
    with refused("'lift'", "(6,)", "(5,)"):
        make_trajectory(series={"lift": torch.zeros(5)})
