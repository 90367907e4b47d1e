"""Foreign files are read in a separate process, with limits."""

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

from pibert.data.isolation import Limits, remote
from pibert.data.readers import ISOLATED, open_recordings
from pibert.data.readers.recordings import Hints, Recordings, SourceError
from pibert.fields import MASKS, Trajectory, read_mask
from tests.fuzz.corpus import CORPUS
from tests.helpers import refused, wait_until
from tests.lookalikes.flow import assert_flow

FILES = (
    *("named.h5", "well.hdf5", "run.h5", "pivlab73.mat", "flow.nc", "old.mat", "classic.nc"),
    *("openpiv.txt", "cells.vtk", "series", "case"),
)


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths that a child opened."""
    opened: list[Path] = []
    open_isolated = remote.open_isolated

    def note(path: Path, *rest: Any) -> Recordings:
        opened.append(path)
        return open_isolated(path, *rest)

    monkeypatch.delenv(remote.IN_PROCESS, raising=False)
    monkeypatch.setattr(remote, "open_isolated", note)
    return opened


def assert_same(mine: Trajectory, theirs: Trajectory) -> None:
    for key in ("name", "spec", "parameters", "source", "local", "length_unit", "time_unit"):
        assert getattr(mine, key) == getattr(theirs, key), key
    torch.testing.assert_close(mine.time, theirs.time, rtol=0, atol=0)
    torch.testing.assert_close(mine.read(), theirs.read(), rtol=0, atol=0, equal_nan=True)
    for key in MASKS:
        one, other = getattr(mine, key), getattr(theirs, key)
        assert (one is None) == (other is None)
        if one is not None:
            assert torch.equal(read_mask(one, slice(None)), read_mask(other, slice(None)))


@pytest.mark.parametrize("name", FILES)
def test_a_child_returns_what_the_reader_returns(
    name: str, tmp_path: Path, isolated: list[Path]
) -> None:
    path = tmp_path / name
    CORPUS[name](path)
    child, here = open_recordings(path), open_recordings(path, isolate=False)
    assert child.kind in ISOLATED and isolated == [path]
    assert (child.kind, child.names, child.notes) == (here.kind, here.names, here.notes)
    for mine, theirs in zip(child, here, strict=True):
        assert_same(mine, theirs)


@pytest.mark.parametrize("position", [145, 184])
def test_a_file_that_makes_its_library_read_beyond_its_buffer_is_refused(
    position: int, tmp_path: Path
) -> None:
    """Whether that crashes the child is a matter of chance."""
    path = tmp_path / "old.mat"
    CORPUS["old.mat"](path)
    data = bytearray(path.read_bytes())
    data[position] = 0xFF
    path.write_bytes(data)
    with pytest.raises(SourceError, match="old.mat: "):
        open_recordings(path)[0].read()


@pytest.mark.skipif(sys.platform != "linux", reason="finds the child in /proc")
def test_a_child_that_crashes_is_reported_and_the_next_file_gets_another(tmp_path: Path) -> None:
    path = tmp_path / "old.mat"
    CORPUS["old.mat"](path)
    server = remote._SERVER
    before = set(children_of(server))
    recordings = open_recordings(path)
    for child in set(children_of(server)) - before:
        os.kill(child, signal.SIGSEGV)
    with refused("old.mat", "damaged", error=SourceError):
        recordings[0].read()
    assert_flow(open_recordings(path)[0])


def children_of(server: remote._Server) -> list[int]:
    if server.process is None:
        return []
    pid = server.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_file_that_takes_too_long_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    CORPUS["flow.nc"](tmp_path / "flow.nc")
    monkeypatch.setattr(remote, "limits_for", lambda path: Limits(1 << 30, 1e-4))
    with refused("flow.nc", "longer", error=SourceError):
        open_recordings(tmp_path / "flow.nc")


def test_a_file_that_takes_too_much_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Zeros that were packed well: 32 MB from 32 kB."""
    content = {name: np.zeros((1000, 2000)) for name in ("u", "v")}
    scipy.io.savemat(tmp_path / "bomb.mat", content, do_compression=True)
    assert open_recordings(tmp_path / "bomb.mat")[0].read().shape == (1, 2, 1000, 2000)
    monkeypatch.setattr(remote, "limits_for", lambda path: Limits(20 << 20, 60.0))
    with refused("bomb.mat", "memory", error=SourceError):
        open_recordings(tmp_path / "bomb.mat")[0].read()


def test_a_script_without_a_guard_reads_in_a_child(tmp_path: Path) -> None:
    """Children do not run the script again, as those of multiprocessing do."""
    CORPUS["old.mat"](tmp_path / "old.mat")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from pibert.data.readers import open_recordings\n"
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
    found = []
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        u = np.full((3, 4, 5), number, float)
        scipy.io.savemat(tmp_path / str(number) / "flow.mat", {"u": u, "v": u})
        monkeypatch.chdir(tmp_path / str(number))
        found.append(open_recordings("flow.mat", hints=Hints(axes="tyx")))
    for number, recordings in enumerate(found, 1):
        copy = pickle.loads(pickle.dumps(recordings[0]))  # as a worker gets it
        assert torch.all(recordings[0].read() == number) and torch.all(copy.read() == number)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")
@pytest.mark.parametrize("end", ["stop", "lose"])
def test_no_child_outlives_the_program(end: str) -> None:
    server = remote._Server()
    connection = server.connect()
    assert server.process is not None and server.control is not None
    wait_until(lambda: bool(children_of(server)))
    (child,) = children_of(server)
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
