"""The package works without what only POSIX systems have, and refuses a Python that is too old."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import pibert
from pibert.data import partial
from pibert.experiments.run_folder import only_one

ROOT = Path(__file__).parents[1]

AS_ON_WINDOWS = """
import os, pkgutil, sys, types
import numpy as np, torch, h5py, matplotlib.pyplot  # other packages may use what is removed here
import pibert

for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=lambda *arguments: None)
for name in ("fork", "killpg", "register_at_fork", "pread", "pwrite", "O_CLOEXEC", "getuid"):
    delattr(os, name)
for module in pkgutil.walk_packages(pibert.__path__, "pibert."):
    if not module.name.endswith(("__main__", "isolation.server")):
        __import__(module.name)

u = np.arange(5 * 6 * 8, dtype="float32").reshape(5, 6, 8)
pibert.flow({"u": u, "v": -u}, dx=0.1, dy=0.2, dt=0.01, unit="m/s").save("flow.h5")
assert np.array_equal(pibert.read("flow.h5").numpy()[..., 0, :, :], u)
np.savez("flow.npz", u=u, v=-u)
assert np.array_equal(pibert.read("flow.npz", dx=0.1, dy=0.2, dt=0.01).numpy()[..., 0, :, :], u)
print("done")
"""


def run_python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_every_module_imports_and_files_are_written_without_posix(tmp_path: Path) -> None:
    done = run_python(AS_ON_WINDOWS, tmp_path)
    assert done.stdout.strip() == "done", done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flow.h5", "flow.npz"]


def test_an_old_python_gets_one_clear_message(tmp_path: Path) -> None:
    done = run_python("import sys; sys.version_info = (3, 10, 1); import pibert.cli", tmp_path)
    assert done.returncode and "Python 3.11" in done.stderr.splitlines()[-1]


def test_the_citation_states_this_version() -> None:
    assert f'version: "{pibert.__version__}"' in (ROOT / "CITATION.cff").read_text()


def test_without_fcntl_one_process_at_a_time_trains_into_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: set[tuple[int, int]] = set()

    def locking(descriptor: int, mode: int, count: int) -> None:
        facts = os.fstat(descriptor)
        if (file := (facts.st_dev, facts.st_ino)) in held:
            raise OSError(errno.EACCES, "locked")
        held.add(file)

    msvcrt = ModuleType("msvcrt")
    vars(msvcrt).update(LK_NBLCK=2, locking=locking)
    monkeypatch.setitem(sys.modules, "msvcrt", msvcrt)
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with only_one(tmp_path), pytest.raises(ValueError, match="another process"), only_one(tmp_path):
        pass


def test_on_windows_no_process_is_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "kill", lambda *arguments: pytest.fail("it would end the process"))
    monkeypatch.setattr(os, "name", "nt")
    running = partial._is_running(os.getpid())
    monkeypatch.undo()
    assert running
