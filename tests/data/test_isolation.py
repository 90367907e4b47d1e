"""Reading of foreign files in a process of their own."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from typer.testing import CliRunner

from pibert.cli import app
from pibert.data.isolation import remote
from pibert.data.isolation.limits import Limits, limits_for
from pibert.data.sources import ISOLATED, identify, open_recordings
from pibert.data.sources.recordings import Hints, Recordings, SourceError
from pibert.fields import MASKS, Trajectory, read_mask
from tests.fuzz.corpus import CORPUS
from tests.helpers import wait_until
from tests.lookalikes.flow import assert_flow

FILES = (
    *(
        "named.h5",
        "groups.h5",
        "well.hdf5",
        "run.h5",
        "new.mat",
        "pivlab73.mat",
        "flow.nc",
        "old.mat",
    ),
    *("pivlab.mat", "classic.nc", "openpiv.txt", "cells.vtk", "flow.vti", "series", "case"),
)


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What was opened in a child, from now on."""
    opened: list[Path] = []
    open_apart = remote.open_apart

    def note(path: Path, *rest: Any) -> Recordings:
        opened.append(path)
        return open_apart(path, *rest)

    monkeypatch.delenv(remote.IN_PROCESS, raising=False)
    monkeypatch.setattr(remote, "open_apart", note)
    return opened


def assert_same(mine: Trajectory, theirs: Trajectory) -> None:
    for key in ("name", "spec", "parameters", "source", "local", "length_unit", "time_unit"):
        assert getattr(mine, key) == getattr(theirs, key), key
    torch.testing.assert_close(mine.time, theirs.time, rtol=0, atol=0)
    torch.testing.assert_close(mine.read(), theirs.read(), rtol=0, atol=0, equal_nan=True)
    for key in MASKS:
        own, other = getattr(mine, key), getattr(theirs, key)
        assert (own is None) == (other is None)
        if own is not None:
            assert torch.equal(read_mask(own, slice(None)), read_mask(other, slice(None)))


@pytest.mark.parametrize("name", FILES)
def test_a_child_gives_what_the_reader_gives(
    name: str, tmp_path: Path, isolated: list[Path]
) -> None:
    path = tmp_path / name
    CORPUS[name](path)
    apart, here = open_recordings(path), open_recordings(path, isolate=False)
    assert apart.kind in ISOLATED and isolated == [path]
    assert (apart.kind, apart.names, apart.remarks) == (here.kind, here.names, here.remarks)
    for mine, theirs in zip(apart, here, strict=True):
        assert_same(mine, theirs)


def test_hints_reach_the_child_and_its_messages_come_back(tmp_path: Path) -> None:
    path = tmp_path / "odd.mat"
    scipy.io.savemat(path, {"a": np.ones((5, 7, 6)), "b": np.ones((5, 7, 6))})
    with pytest.raises(SourceError, match="u=NAME"):
        open_recordings(path)
    found = open_recordings(path, hints=Hints(channels={"u": "a", "v": "b"}, dx=0.1, dy=0.2))
    assert found[0].spec.channels == ("u", "v") and found[0].spec.grid.dx == 0.1
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_recordings(tmp_path / "absent.mat")


def test_another_process_opens_a_child_of_its_own(tmp_path: Path) -> None:
    CORPUS["flow.nc"](tmp_path / "flow.nc")
    flow = open_recordings(tmp_path / "flow.nc")[0]
    assert_flow(pickle.loads(pickle.dumps(flow)))
    receive, send = os.pipe()
    child = os.fork()
    if not child:  # as a worker of a data loader
        try:
            os.write(send, b"same" if torch.equal(flow.read(), flow.read()) else b"other")
        finally:
            os._exit(0)
    os.close(send)
    os.waitpid(child, 0)
    assert os.read(receive, 10) == b"same"
    assert_flow(flow)


@pytest.mark.parametrize("place", [145, 184])
def test_a_file_that_crashes_its_library_is_reported_as_damaged(place: int, tmp_path: Path) -> None:
    """The library reads beyond its buffer with these bytes."""
    path = tmp_path / "old.mat"
    CORPUS["old.mat"](path)
    data = bytearray(path.read_bytes())
    data[place] = 0xFF
    path.write_bytes(data)
    with pytest.raises(SourceError, match="old.mat: the reader crashed: the file is damaged"):
        open_recordings(path)[0].read()
    CORPUS["old.mat"](path)
    assert_flow(open_recordings(path)[0])  # the next one has a child of its own


def test_convert_leaves_nothing_of_a_file_that_crashes_its_library(tmp_path: Path) -> None:
    CORPUS["old.mat"](tmp_path / "old.mat")
    data = bytearray((tmp_path / "old.mat").read_bytes())
    data[184] = 0xFF
    (tmp_path / "old.mat").write_bytes(data)
    result = CliRunner().invoke(app, ["convert", str(tmp_path / "old.mat"), str(tmp_path / "o.h5")])
    assert result.exit_code == 2
    assert "the reader crashed: the file is damaged" in " ".join(result.output.split())
    assert os.listdir(tmp_path) == ["old.mat"]


def test_a_file_that_takes_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    CORPUS["flow.nc"](tmp_path / "flow.nc")
    monkeypatch.setattr(remote, "limits_for", lambda path: Limits(1 << 30, 1e-4))
    with pytest.raises(SourceError, match="flow.nc: it was not read in many times the time"):
        open_recordings(tmp_path / "flow.nc")


def test_a_file_that_takes_too_much_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Zeros that were packed well: 32 MB from 32 kB."""
    content = {name: np.zeros((1000, 2000)) for name in ("u", "v")}
    scipy.io.savemat(tmp_path / "bomb.mat", content, do_compression=True)
    assert open_recordings(tmp_path / "bomb.mat")[0].read().shape == (1, 2, 1000, 2000)
    monkeypatch.setattr(remote, "limits_for", lambda path: Limits(20 << 20, 60.0))
    with pytest.raises(SourceError, match="bomb.mat: reading it takes much more memory than"):
        open_recordings(tmp_path / "bomb.mat")[0].read()


def test_limits_grow_with_the_data(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("x", "y"):
        (tmp_path / "a" / name).write_bytes(bytes(10**6))
    (tmp_path / "a" / "flow.pvd").write_text("<VTKFile/>")
    none, one = limits_for(tmp_path / "absent"), limits_for(tmp_path / "a" / "x")
    assert one.memory - none.memory == 50 * 10**6 and one.seconds - none.seconds == 10
    folder = limits_for(tmp_path / "a")
    assert folder == limits_for(tmp_path / "a" / "flow.pvd")
    assert folder.memory - none.memory > 100 * 10**6


def test_the_kind_of_a_file_is_looked_for_in_a_child(tmp_path: Path) -> None:
    path = tmp_path / "old.mat"
    CORPUS["old.mat"](path)
    assert identify(path) == "matlab"
    path.write_bytes(path.read_bytes()[:150])
    assert identify(path) == "matlab"  # opening it says what is wrong
    with pytest.raises(SourceError, match="expected a MATLAB file"):
        open_recordings(path)


def test_a_script_without_a_guard_reads_in_a_child(tmp_path: Path) -> None:
    """Children do not run the script again, as those of multiprocessing do."""
    CORPUS["old.mat"](tmp_path / "old.mat")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from pibert.data.sources import open_recordings\n"
        "print('once')\n"
        "print(tuple(open_recordings(sys.argv[1])[0].read().shape))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, script, tmp_path / "old.mat"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert done.stdout == "once\n(6, 2, 5, 7)\n" and done.stderr == ""


def test_a_relative_path_is_that_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading process started elsewhere, and there is a file of the same name."""
    for number, folder in enumerate(("first", "second"), 1):
        (tmp_path / folder).mkdir()
        u = np.full((3, 4, 5), number, float)
        scipy.io.savemat(tmp_path / folder / "flow.mat", {"u": u, "v": u})
    hints = Hints(dt=1.0, dx=1.0, dy=1.0, axes="tyx")
    found = []
    for folder in ("first", "second"):
        monkeypatch.chdir(tmp_path / folder)
        found.append(open_recordings("flow.mat", hints=hints))
    for number, recordings in enumerate(found, 1):
        assert torch.all(recordings[0].read() == number)
        copy = pickle.loads(pickle.dumps(recordings))  # as a worker gets it
        assert torch.all(copy[0].read() == number)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")
@pytest.mark.parametrize("end", ["stop", "lose"])
def test_no_child_outlives_the_program(end: str) -> None:
    server = remote._Server()
    connection = server.connect()
    assert server.process is not None and server.control is not None
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_until(lambda: bool(children.read_text()))
    child = int(children.read_text())
    os.kill(child, signal.SIGSTOP)  # as if it were busy: it does not see that nobody waits
    if end == "stop":
        server.stop()
    else:
        server.control.close()  # as by the end of a program that was killed
        server.process.wait()
    wait_until(lambda: is_gone(child))
    connection.close()


def is_gone(pid: int) -> bool:
    """Whether a process has ended, even if nobody has asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_fork_reads_while_another_thread_of_its_parent_does(tmp_path: Path) -> None:
    CORPUS["old.mat"](tmp_path / "old.mat")
    child = remote.Child(tmp_path / "old.mat")
    with child._lock:  # as a thread holds it that waits for an answer
        pid = os.fork()
        if not pid:  # as a worker of a data loader
            os._exit(0 if child._lock.acquire(blocking=False) else 1)
    assert os.waitpid(pid, 0)[1] == 0
