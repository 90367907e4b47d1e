"""A file that was sent, as a recording: npy, npz, safetensors or the native format.

What a file declares is checked before memory is taken for it. Arrays are read in memory; HDF5,
whose library was not made for hostile files, in a process of its own and from a folder that is
removed.
"""

import io
import json
import math
import multiprocessing
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pibert.fields import FieldSpec, Grid, Parameter, Trajectory
from pibert.serve.answers import Answer
from pibert.serve.arrays import NPY_MAGIC, read_npy, read_safetensors
from pibert.serve.limits import SIDE
from pibert.serve.native import PROBLEM, read_native
from pibert.serve.recordings import Units, fit_units, take_frames
from pibert.serve.refusal import Refusal

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_ZIP_MAGIC = b"PK\x03\x04"
_MOST_MEMBERS = 64
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Those that NumPy writes. Of others zipfile unpacks more at once than it is asked for."""
# A server of forks has no threads, and what it has imported is there at once.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pibert.serve.native"])
_FACTS = tuple("channels units dt dx dy x0 y0 t0 length_unit time_unit parameters source".split())
_NAMES = ("u", "v", "p")
"""Of channels, in order, where a file names none."""
_CONVERT = "make a native .h5 of it with pibert convert"


def open_file(
    data: bytes, trajectory: str | None, limit: int, seconds: float, units: Units = ()
) -> Answer:
    """The frames of a file, told by its first bytes; as many as ``limit`` bytes hold.

    Args:
        data: The file.
        trajectory: Which one of a native file. None: the first.
        limit: Most bytes of the frames.
        seconds: That reading a native file may take.
        units: Of the models that the frames may be for.
    """
    if data.startswith(HDF5_MAGIC):
        return _open_native(data, trajectory, limit, seconds, units)
    if trajectory is not None:
        raise Refusal("invalid", "trajectory: only a native .h5 file has several")
    if data.startswith(NPY_MAGIC):
        return _as_answer({"fields": read_npy(data, "the file")}, {}, limit, units)
    if data.startswith(_ZIP_MAGIC):
        return _as_answer(_read_npz(data, limit), {}, limit, units)
    if len(data) > 9 and data[8:9] == b"{":
        arrays, metadata = read_safetensors(data, "the file")
        facts = {name: _fact(metadata[name], name) for name in _FACTS if name in metadata}
        return _as_answer(arrays, facts, limit, units)
    raise Refusal(
        "malformed",
        "expected a file in npy, npz, safetensors or the native .h5, found another; where it is of "
        f"a solver or a measurement, {_CONVERT}",
    )


def _fact(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Refusal("malformed", f"metadata {name!r}: expected the text of JSON") from None


def _read_npz(data: bytes, limit: int) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            stated = sum(member.file_size for member in members)
            if len(members) > _MOST_MEMBERS or stated > limit:
                raise Refusal(
                    "too_large",
                    f"expected at most {_MOST_MEMBERS} arrays and {limit / 1e6:.0f} MB unpacked, "
                    f"found {len(members)} and {stated / 1e6:.0f} MB",
                )
            if any(member.compress_type not in _PACKINGS for member in members):
                raise Refusal("malformed", "expected an npz file of NumPy, found another packing")
            return {
                member.filename.removesuffix(".npy"): _read_member(archive, member)
                for member in members
            }
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, LookupError) as error:
        raise Refusal("malformed", f"expected a whole npz file, found: {error}") from None
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or of a later zip version
        raise Refusal("malformed", f"expected an npz file of NumPy, found: {error}") from None


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as packed:
        # One more than stated, to notice if there is more.
        content = packed.read(member.file_size + 1)
    return read_npy(content, repr(member.filename[:80]))


def _as_answer(
    arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any], limit: int, units: Units
) -> Answer:
    mask, body = arrays.get("mask"), arrays.get("body")
    others = [name for name in arrays if name not in ("mask", "body")]
    name = "fields" if "fields" in arrays else others[0] if len(others) == 1 else None
    if name is None:
        raise Refusal("invalid", f"expected an array 'fields', found {others[:8]}")
    fields, remarks = arrays[name], []
    if fields.dtype.kind not in "iuf" or fields.ndim not in (3, 4) or 0 in fields.shape:
        raise Refusal(
            "invalid",
            "expected numbers of shape (time, channel, y, x) or (channel, y, x), found "
            f"{fields.dtype} of shape {fields.shape}",
        )
    if max(fields.shape[-2:]) > SIDE or 4 * math.prod(fields.shape[-3:]) > limit:
        raise Refusal(
            "too_large",
            f"expected at most {SIDE} rows and columns, and a frame of {limit / 1e6:.0f} MB, found "
            f"shape {fields.shape}",
        )
    if not facts.get("channels"):
        remarks.append(_take_in_order(fields.shape, units))
    if fields.ndim == 3:
        fields = fields[None]
    fitting = limit // (4 * math.prod(fields.shape[1:]))
    if len(fields) > fitting:
        remarks.append(f"the first {fitting} of {len(fields)} frames")
        fields = fields[:fitting]
        mask, body = (
            own[:fitting] if own is not None and own.ndim == 3 else own for own in (mask, body)
        )
    with np.errstate(over="ignore"):
        # Read from bytes, they may not be written to, which torch warns of.
        states = torch.from_numpy(np.require(fields, np.float32, ["C", "W"]))
    try:
        masks = _points(mask, "mask", states), _points(body, "body", states)
        recording, changed = fit_units(_trajectory(states, *masks, facts), units)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise Refusal("invalid", f"the file: {' '.join(str(error).split())[:300]}") from None
    answer = take_frames(recording, 0, None, limit, [*remarks, *changed])
    return Answer(answer.arrays, _stated(answer.facts, facts))


def _take_in_order(shape: tuple[int, ...], units: Units) -> str:
    """A remark on channels without names, or a refusal of more than can be meant."""
    count, most = shape[-3], max(len(_NAMES), *(len(own) for own in units), 0)
    if count > most:
        raise Refusal(
            "invalid",
            f"expected shape (time, channel, y, x) with at most {most} channels where the file "
            f"names none, found {shape}; frames of one channel are (time, 1, y, x), and more "
            "channels are named in the metadata of a safetensors file",
        )
    names = _named_in_order(count)
    unused = [name for name in names if units and not any(name in own for own in units)]
    read = "read as one frame (channel, y, x), " if len(shape) == 3 else ""
    said = f"the file names no channels: {read}its {count} are taken in order to be "
    said += ", ".join(names)
    return f"{said}; no model takes {', '.join(unused)}" if unused else said


def _named_in_order(count: int) -> list[str]:
    return [*_NAMES, *(f"c{n}" for n in range(len(_NAMES), count))][:count]


def _stated(found: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a recording, with null for what its file does not state."""
    grid = {key: n if key == "shape" or key in facts else None for key, n in found["grid"].items()}
    unknown = {key: None for key in ("units", "t0") if key not in facts}
    return {**found, **unknown, "grid": grid}


def _points(mask: np.ndarray | None, name: str, states: torch.Tensor) -> torch.Tensor | None:
    if mask is None:
        return None
    t, _, ny, nx = states.shape
    if mask.dtype.kind not in "biuf" or mask.shape not in ((ny, nx), (t, ny, nx)):
        raise ValueError(
            f"expected {name} of shape {(ny, nx)} or {(t, ny, nx)}, found {mask.dtype} of shape "
            f"{mask.shape}"
        )
    return torch.from_numpy(np.ascontiguousarray(mask != 0))


def _trajectory(
    states: torch.Tensor,
    valid: torch.Tensor | None,
    body: torch.Tensor | None,
    facts: Mapping[str, Any],
) -> Trajectory:
    count = states.shape[1]
    channels = facts.get("channels") or _named_in_order(count)
    parameters = {str(k): float(v) for k, v in (facts.get("parameters") or {}).items()}
    dt = facts.get("dt")
    number = {name: _finite(facts.get(name, 0), name) for name in ("x0", "y0", "t0")}
    grid = Grid(
        (states.shape[2], states.shape[3]),
        float(facts.get("dx", 1)),
        float(facts.get("dy", 1)),
        origin=(number["x0"], number["y0"]),
    )
    spec = FieldSpec(
        channels=tuple(str(name) for name in channels[:count]),
        units=tuple(str(unit) for unit in facts.get("units") or ()),
        parameters=tuple(Parameter(name=name) for name in parameters),
        dt=None if dt is None else float(dt),
        grid=grid,
        family=None,
    )
    time = number["t0"] + torch.arange(len(states), dtype=torch.float64) * (spec.dt or 1.0)
    return Trajectory(
        name="file",
        states=states,
        time=time,
        spec=spec,
        parameters=parameters,
        body=body,
        valid=valid,
        source=_source(facts.get("source") or {}),
        length_unit=_text(facts.get("length_unit")),
        time_unit=_text(facts.get("time_unit")),
    )


def _source(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Whether a model made the frames, and which; what else a source states is not told."""
    found = {key: _text(stated.get(key), 100) for key in ("kind", "model", "weights_sha256")}
    level = stated.get("bars_level")
    return {**found, "bars_level": None if level is None else _finite(level, "bars_level")}


def _finite(value: Any, name: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number for {name}, found {number}")
    return number


def _text(value: Any, most: int = 40) -> str | None:
    return None if value is None else str(value)[:most]


def _open_native(
    data: bytes, trajectory: str | None, limit: int, seconds: float, units: Units
) -> Answer:
    with tempfile.TemporaryDirectory(prefix="pibert-") as folder:
        path, out = Path(folder, "sent.h5"), Path(folder, "frames.safetensors")
        path.write_bytes(data)
        reading = _FORKS.Process(target=read_native, args=(path, out, limit, trajectory, units))
        reading.start()
        reading.join(seconds)
        if reading.exitcode is None:
            reading.kill()
            reading.join()
            raise Refusal("timeout", "the file was not read in time")
        if reading.exitcode or not out.is_file():
            raise Refusal("malformed", "expected a native .h5 file, found a damaged one")
        if out.stat().st_size and (problem := out.read_bytes()).startswith(PROBLEM):
            said = problem.removeprefix(PROBLEM).decode().replace(str(path), "the file")
            if "but not of the format" in said:
                said = f"{said.rpartition(';')[0]}; {_CONVERT}"
            raise Refusal("malformed", said)
        arrays, texts = read_safetensors(out.read_bytes())
    facts = {name: json.loads(text) for name, text in texts.items()}
    return Answer({name: arrays[name] for name in sorted(arrays, key=_order)}, facts)


def _order(name: str) -> int:
    return ("fields", "known", "body", "filled").index(name)
