"""Arrays in the server's own layout, as a recording: npy, npz and safetensors files.

    fields   (time, channel, y, x) or (channel, y, x)
    mask     1 where known, (y, x) or (time, y, x); may be left out
    body     1 inside a body, likewise

What a file declares is checked before memory is taken for it. Facts are those of the metadata of a
safetensors file, or what the user states.
"""

import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from pibert.data.readers.recordings import Hints
from pibert.data.units import VELOCITY
from pibert.fields import FieldSpec, Grid, Parameter, Trajectory
from pibert.serve.answers import Answer, read_npy, read_safetensors
from pibert.serve.limits import SIDE, Refusal
from pibert.serve.recordings import Units, fit_to_models, take_frames

ARRAYS = {"fields", "mask", "body"}
_MOST_MEMBERS = 64
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Those that NumPy writes. Of others zipfile unpacks more at once than it is asked for."""
_FACTS = tuple("channels units dt dx dy x0 y0 t0 length_unit time_unit parameters source".split())
_NAMES = ("u", "v", "p")
"""Of channels, in order, where a file names none."""


def open_safetensors(data: bytes, hints: Hints, limit: int, units: Units) -> Answer:
    """The frames of a safetensors file, whose metadata may hold facts as JSON texts."""
    arrays, metadata = read_safetensors(data, "the file")
    stated = {key: _fact(metadata[key], key) for key in _FACTS if key in metadata}
    return open_arrays(arrays, with_hints(stated, hints), limit, units)


def is_own_layout(arrays: Mapping[str, np.ndarray], units: Units) -> bool:
    """Whether the array ``fields`` is (time, channel, y, x) or (channel, y, x)."""
    shape = arrays["fields"].shape if "fields" in arrays else ()
    return len(shape) in (3, 4) and shape[-3] <= _most_nameless(units)


def with_hints(stated: Mapping[str, Any], hints: Hints) -> dict[str, Any]:
    """The facts of a file with what the user adds; neither may contradict the other."""
    given = {
        key: value
        for key in ("dt", "dx", "dy", "length_unit", "time_unit")
        if (value := getattr(hints, key)) is not None
    }
    if hints.unit is not None:
        given["unit"] = hints.unit
    known = dict(stated) | ({"unit": stated["units"]} if stated.get("units") else {})
    for key, value in given.items():
        if known.get(key) not in (None, value):
            raise Refusal(
                "invalid", f"{key}: the file states {known[key]}, {value} was given; leave it empty"
            )
    return {**stated, **given}


def _fact(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Refusal("malformed", f"metadata {name!r}: expected the text of JSON") from None


def read_npz(data: bytes, limit: int) -> dict[str, np.ndarray]:
    """The arrays of a file in the server's own layout; of another one, none."""
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
            named = {member.filename.removesuffix(".npy"): member for member in members}
            if set(named) == {"arr_0"}:  # as NumPy calls an array without a name
                named = {"fields": members[0]}
            if not set(named) <= ARRAYS:
                return {}
            return {name: _read_member(archive, member) for name, member in named.items()}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, LookupError) as error:
        raise Refusal("malformed", f"expected a whole npz file, found: {error}") from None
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or of a later zip version
        raise Refusal("malformed", f"expected an npz file of NumPy, found: {error}") from None


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as packed:
        # One more than stated, to notice if there is more.
        content = packed.read(member.file_size + 1)
    return read_npy(content, repr(member.filename[:80]))


def open_arrays(
    arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any], limit: int, units: Units
) -> Answer:
    mask, body = arrays.get("mask"), arrays.get("body")
    if ("dx" in facts) != ("dy" in facts):
        raise Refusal("invalid", "expected the spacing dx and dy, both or none, found one of them")
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
    if "unit" in facts:
        names = facts.get("channels") or _named_in_order(fields.shape[-3])
        facts = {**facts, "units": [facts["unit"] if n in VELOCITY else "1" for n in names]}
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
        recording, changed = fit_to_models(_trajectory(states, *masks, facts), units)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise Refusal("invalid", f"the file: {' '.join(str(error).split())[:300]}") from None
    answer = take_frames(recording, 0, None, limit, [*remarks, *changed])
    return Answer(answer.arrays, _stated(answer.facts, facts))


def _most_nameless(units: Units) -> int:
    """Most channels that may be meant where a file names none; more are rather frames."""
    return max(len(_NAMES), *(len(own) for own in units), 0)


def _take_in_order(shape: tuple[int, ...], units: Units) -> str:
    """A remark on channels without names, or a refusal of more than can be meant."""
    count, most = shape[-3], _most_nameless(units)
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
