"""A file that was sent, as a recording: anything that ``pibert convert`` reads from one file.

Arrays in the server's own layout (``serve/layout.py``) are read in memory. Every other file is read
in a separate process, as its libraries were not written for hostile input.
"""

import json
import multiprocessing
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.readers.recordings import Hints
from pibert.serve.answers import NPY_MAGIC, Answer, read_npy, read_safetensors
from pibert.serve.layout import (
    Facts,
    is_own_layout,
    open_arrays,
    open_safetensors,
    read_npz,
)
from pibert.serve.limits import Refusal
from pibert.serve.reading import PROBLEM, read_file
from pibert.serve.recordings import Units

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_ZIP_MAGIC = b"PK\x03\x04"
_SUFFIXES = {
    "NumPy": (".npy", ".npz"),
    "safetensors": (".safetensors",),
    "HDF5": (".h5", ".hdf5"),
    "NetCDF": (".nc", ".nc4", ".cdf"),
    "MATLAB": (".mat",),
    "VTK": (".vtk", ".vti", ".vtr", ".vts", ".vtu", ".vtp"),
    "text": (".csv", ".tsv", ".txt", ".dat", ".vec"),
}
"""Of files that do not refer to others, as .pvd does: a server must not open those."""
KNOWN = tuple(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes)
_ON_HDF5 = (*_SUFFIXES["HDF5"], *_SUFFIXES["NetCDF"], *_SUFFIXES["MATLAB"])
# A fork server has no threads, and has imported the readers already.
_FORKS = multiprocessing.get_context("forkserver")
PRELOADED = ["pibert.serve.reading", "scipy.io", "xarray", "h5netcdf"]
_FORKS.set_forkserver_preload(PRELOADED)
HINTS = (
    *("dt", "dx", "dy", "unit", "length_unit", "time_unit", "scale", "pulse_delay"),
    *("channels", "axes"),
)
"""Query arguments that describe a file, named as the options of ``pibert convert``."""


def open_file(
    data: bytes,
    trajectory: str | None,
    limit: int,
    seconds: float,
    units: Units = (),
    *,
    name: str = "",
    hints: Hints = Hints(),
) -> Answer:
    """The frames of a file; as many as ``limit`` bytes hold.

    Args:
        data: The file.
        trajectory: Which one of several. None: the first.
        limit: Most bytes of the frames.
        seconds: Time limit of reading it.
        units: Of the models that the frames may be for.
        name: Its name; the suffix states the format if the first bytes do not.
        hints: What the sender states about it.
    """
    arrays: dict[str, np.ndarray] = {}
    chosen = [key for key in ("channels", "axes", "scale", "pulse_delay") if getattr(hints, key)]
    if trajectory is not None:
        chosen.append("trajectory")
    if data.startswith(NPY_MAGIC):
        suffix, arrays = ".npy", {"fields": read_npy(data, "the file")}
    elif data.startswith(_ZIP_MAGIC):
        suffix, arrays = ".npz", read_npz(data, limit)
    elif len(data) > 9 and data[8:9] == b"{" and not data.startswith(HDF5_MAGIC):
        if chosen:
            text = f"a safetensors file states its {' and '.join(chosen)} itself; leave it empty"
            raise Refusal("invalid", text)
        return open_safetensors(data, hints, limit, units)
    else:
        suffix = _suffix_of(data, name)
    if not chosen and is_own_layout(arrays, units):
        return open_arrays(arrays, Facts(), hints, limit, units)
    return _read_in_process(data, name, suffix, trajectory, limit, seconds, units, hints)


def read_hints(given: Mapping[str, str | float | None]) -> Hints:
    """The hints of a request, by the names in ``HINTS``; None: not given."""
    stated: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "channels" in stated:
        pairs = [text.partition("=") for text in stated["channels"].split(",")]
        stated["channels"] = {name.strip(): theirs.strip() for name, _, theirs in pairs}
        if not all(name and theirs for name, theirs in stated["channels"].items()):
            raise Refusal("invalid", "channels: expected NAME=NAME in the file, as u=Vx,v=Vy")
    try:
        return Hints(**stated)
    except ValueError as error:
        raise Refusal("invalid", str(error)) from None


def _suffix_of(data: bytes, name: str) -> str:
    """The suffix of the file where it is read: readers go by it."""
    suffix = Path(name).suffix.lower()
    if data.startswith(HDF5_MAGIC):
        return suffix if suffix in _ON_HDF5 else ".h5"
    if suffix in KNOWN and suffix not in (*_SUFFIXES["NumPy"], *_SUFFIXES["safetensors"]):
        return suffix
    kinds = "; ".join(f"{kind} ({', '.join(each)})" for kind, each in _SUFFIXES.items())
    found = f"a damaged {suffix}" if suffix in KNOWN else suffix[:20] or "a file without a name"
    raise Refusal(
        "malformed",
        f"expected one whole file: {kinds}; found {found}. Of data in several files, make one "
        "native .h5 with pibert convert",
    )


def _read_in_process(
    data: bytes,
    name: str,
    suffix: str,
    trajectory: str | None,
    limit: int,
    seconds: float,
    units: Units,
    hints: Hints,
) -> Answer:
    """Read a file with the readers of ``pibert convert``, in a process that may be ended."""
    with tempfile.TemporaryDirectory(prefix="pibert-") as folder:
        stem = re.sub(r"[^A-Za-z0-9_-]+", "_", Path(name).stem)[:60].strip("_") or "sent"
        path, out = Path(folder, stem + suffix), Path(folder, "frames.safetensors.out")
        path.write_bytes(data)
        arguments = (path, out, limit, trajectory, units, hints)
        reading = _FORKS.Process(target=read_file, args=arguments)
        reading.start()
        reading.join(seconds)
        if reading.exitcode is None:
            reading.kill()
            reading.join()
            raise Refusal("timeout", "the file was not read in time")
        # The exit code of a process that ended may be wrong where threads ask for it at once.
        if not out.is_file():
            raise Refusal("malformed", f"expected a whole {suffix} file, found a damaged one")
        answer = out.read_bytes()
        if answer.startswith(PROBLEM):
            code, message = json.loads(answer.removeprefix(PROBLEM))
            raise Refusal(code, _as_hints(message.replace(str(path), "the file")))
    arrays, texts = read_safetensors(answer)
    facts = {name: json.loads(text) for name, text in texts.items()}
    for note in facts["notes"]:
        note |= {key: _as_hints(note[key]) for key in ("text", "remedy")}
    order = ("fields", "known", "body", "filled").index
    return Answer({name: arrays[name] for name in sorted(arrays, key=order)}, facts)


def _as_hints(text: str) -> str:
    """Replace options of the command line in a message by their names in a request."""
    options = "|".join(HINTS).replace("_", "-")
    return re.sub(rf"--({options})\b", lambda found: found[1].replace("-", "_"), text)
