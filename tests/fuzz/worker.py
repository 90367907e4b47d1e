"""Opens and reads damaged recordings, one after the other, and records failures.

    python -m tests.fuzz.worker FOLDER SEED START STOP here|isolated

Every case is a function of the seed and its number. FOLDER/case has the number of the current case,
which identifies a crash; FOLDER/failures has the failures. The process may allocate 2 GB and ends
when a case takes more than thirty seconds. ``here`` reads in this process, ``isolated`` in a child.
"""

import faulthandler
import os
import shutil
import site
import sys
import sysconfig
import traceback
import warnings
from pathlib import Path
from random import Random

import h5netcdf  # noqa: F401
import matplotlib.tri  # noqa: F401
import scipy.interpolate
import scipy.io
import scipy.spatial  # noqa: F401
import torch
import xarray  # noqa: F401

from pibert.data.isolation import Limits, limit_memory, remote
from pibert.data.readers import open_recordings
from tests.fuzz.corpus import CORPUS, FRAGILE, HDF5
from tests.fuzz.hdf5 import SECRET, WAYS, lead_out
from tests.fuzz.mutations import mutate

SECONDS = 30
MEMORY = 2 << 30
EXPECTED = (ValueError, OSError)
_READABLE = ("/proc/", "/sys/", "/dev/null", "/dev/urandom", "/etc/")
"""Files that the system's libraries read."""


def main(folder: Path, seed: int, start: int, stop: int, *, isolate: bool) -> None:
    whole, damaged = folder / "whole", folder / "damaged"
    if not whole.exists():
        write_corpus(whole)
    names = sorted(name for name in CORPUS if isolate or name not in FRAGILE)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Two minutes is what users wait for a file that hangs its library; too long here.
    remote.limits_for = lambda path: Limits(MEMORY, SECONDS / 6)
    outside = watch(damaged)
    limit_memory(MEMORY)
    with (folder / "failures").open("a") as failures:
        for number in range(start, stop):
            (folder / "case").write_text(str(number))
            faulthandler.dump_traceback_later(SECONDS, exit=True)
            name = names[number % len(names)]
            problem = run(whole / name, damaged, Random(f"{seed} {number}"), isolate=isolate)
            problem = problem or "".join(f"opened {file}\n" for file in outside)
            outside.clear()
            if problem:
                failures.write(f"case {number} of seed {seed}, {name}: {problem}\0")
                failures.flush()
    faulthandler.cancel_dump_traceback_later()


def write_corpus(folder: Path) -> None:
    folder.mkdir()
    for name, write in CORPUS.items():
        write(folder / name)
        open_recordings(folder / name)[0].read()  # also imports what readers import lazily


def watch(folder: Path) -> list[str]:
    """A list that receives opened files other than those of a case or of Python."""
    roots = [str(folder), *sys.path, sys.prefix, sys.base_prefix, site.getusersitepackages()]
    roots += [sysconfig.get_paths()["stdlib"], str(folder.parent), str(Path(__file__).parents[2])]
    known = tuple(os.path.abspath(root) for root in roots if root) + _READABLE
    outside: list[str] = []

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            file = os.path.abspath(os.fsdecode(arguments[0]))
            if not file.startswith(known):
                outside.append(file)

    sys.addaudithook(note)
    return outside


def run(whole: Path, folder: Path, rng: Random, *, isolate: bool) -> str | None:
    """Damage a recording and read it; return the failure, if any."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / whole.name
    shutil.copytree(whole, path) if whole.is_dir() else shutil.copy(whole, path)
    damage(path, rng)
    try:
        for trajectory in list(open_recordings(path, isolate=isolate))[:3]:
            last = trajectory.num_frames - 1
            for frames in (slice(0, 1), slice(last, last + 1)):
                found = trajectory.read(frames)
                trajectory.measured(frames)
                if bool((found == SECRET).any()):
                    return "it holds the content of another file"
    except EXPECTED as error:
        if path.name not in str(error):
            return f"the message does not name the file:\n{traceback.format_exc()}"
    except BaseException:
        return traceback.format_exc()
    return None


def damage(path: Path, rng: Random) -> None:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    chosen = rng.choice(files)
    if path.name in HDF5 and rng.random() < 0.1:
        lead_out(path, rng.choice(WAYS))
    elif rng.random() < 0.01:
        chosen.unlink()
        os.mkfifo(chosen)
    else:
        chosen.write_bytes(mutate(chosen.read_bytes(), rng))


if __name__ == "__main__":
    _, out, number, first, last, how = sys.argv
    main(Path(out), int(number), int(first), int(last), isolate=how == "isolated")
