"""Arrays in the server's own layout, as a recording: npy, npz and safetensors files.

    fields   (time, channel, y, x) or (channel, y, x)
    mask     1 where known, (y, x) or (time, y, x); optional
    body     1 inside a body, likewise

Declared sizes are checked before memory is allocated.
"""

import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, Json, TypeAdapter, ValidationError

from pibert.data.readers.recordings import Hints
from pibert.data.units import VELOCITY
from pibert.fields import FieldSpec, Grid, Parameter, Trajectory
from pibert.serve.answers import Answer, read_npy, read_safetensors
from pibert.serve.limits import Refusal, check_frame_size
from pibert.serve.recordings import Units, fit_to_models, select_frames, take_frames

ARRAYS = {"fields", "mask", "body"}
_MOST_MEMBERS = 64
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Those that NumPy writes. For others zipfile unpacks more at once than requested."""
_NAMES = ("u", "v", "p")
"""Names of the channels, in order, if a file states none."""


class Source(BaseModel):
    """The model that predicted the frames, if one did."""

    model_config = ConfigDict(protected_namespaces=())
    kind: str | None = Field(default=None, max_length=100)
    model: str | None = Field(default=None, max_length=100)
    weights_sha256: str | None = Field(default=None, max_length=100)
    interval_level: FiniteFloat | None = None
    bars_level: FiniteFloat | None = None
    """Its name in earlier versions."""


class Facts(BaseModel):
    """What a file or its sender states about the arrays; None: unknown."""

    channels: list[str] | None = None
    units: list[str] | None = None
    dt: FiniteFloat | None = None
    dx: FiniteFloat | None = None
    dy: FiniteFloat | None = None
    x0: FiniteFloat | None = None
    y0: FiniteFloat | None = None
    t0: FiniteFloat | None = None
    length_unit: str | None = Field(default=None, max_length=40)
    time_unit: str | None = Field(default=None, max_length=40)
    parameters: dict[str, FiniteFloat] | None = None
    source: Source | None = None


_TEXTS = TypeAdapter(dict[str, Json[Any]])


def open_safetensors(data: bytes, hints: Hints, limit: int, units: Units) -> Answer:
    """The frames of a safetensors file, whose metadata may hold facts as JSON texts."""
    arrays, metadata = read_safetensors(data, "the file")
    stated = {key: text for key, text in metadata.items() if key in Facts.model_fields}
    try:
        facts = Facts.model_validate(_TEXTS.validate_python(stated))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))[:100]
        raise Refusal("invalid", f"metadata {where!r}: {first['msg']}") from None
    return open_arrays(arrays, facts, hints, limit, units)


def is_own_layout(arrays: Mapping[str, np.ndarray], units: Units) -> bool:
    """Whether the array ``fields`` is (time, channel, y, x) or (channel, y, x)."""
    shape = arrays["fields"].shape if "fields" in arrays else ()
    return len(shape) in (3, 4) and shape[-3] <= _most_unnamed(units)


def _with_hints(facts: Facts, hints: Hints) -> Facts:
    """The facts of a file with what the sender adds; neither may contradict the other."""
    names = ("dt", "dx", "dy", "length_unit", "time_unit")
    given = {key: value for key in names if (value := getattr(hints, key)) is not None}
    stated = {key: getattr(facts, key) for key in names} | {"unit": facts.units or None}
    added = given | ({} if hints.unit is None else {"unit": hints.unit})
    for key, value in added.items():
        if stated[key] not in (None, value):
            raise Refusal(
                "invalid",
                f"{key}: the file states {stated[key]}, {value} was given; leave it empty",
            )
    return facts.model_copy(update=given)


def read_npz(data: bytes, limit: int) -> dict[str, np.ndarray]:
    """The arrays of a file in the server's own layout; none of another one."""
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
            if set(named) == {"arr_0"}:  # NumPy's name of an array without one
                named = {"fields": members[0]}
            if not set(named) <= ARRAYS:
                return {}
            return {name: _read_member(archive, member) for name, member in named.items()}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, LookupError) as error:
        raise Refusal("malformed", f"expected a whole npz file, found: {error}") from None
    except RuntimeError as error:  # encrypted, or of a later zip version
        raise Refusal("malformed", f"expected an npz file of NumPy, found: {error}") from None


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as packed:
        # One more than stated, to notice a longer member.
        content = packed.read(member.file_size + 1)
    return read_npy(content, repr(member.filename[:80]))


def open_arrays(
    arrays: Mapping[str, np.ndarray], facts: Facts, hints: Hints, limit: int, units: Units
) -> Answer:
    facts = _with_hints(facts, hints)
    if (facts.dx is None) != (facts.dy is None):
        raise Refusal("invalid", "expected the spacing dx and dy, both or none, found one of them")
    others = [name for name in arrays if name not in ("mask", "body")]
    name = "fields" if "fields" in arrays else others[0] if len(others) == 1 else None
    if name is None:
        raise Refusal("invalid", f"expected an array 'fields', found {others[:8]}")
    fields, notes = arrays[name], []
    if fields.dtype.kind not in "iuf" or fields.ndim not in (3, 4) or 0 in fields.shape:
        raise Refusal(
            "invalid",
            "expected numbers of shape (time, channel, y, x) or (channel, y, x), found "
            f"{fields.dtype} of shape {fields.shape}",
        )
    check_frame_size(fields.shape[-3:], limit)
    if not facts.channels:
        notes.append(_note_on_order(fields.shape, units))
        facts.channels = _default_names(fields.shape[-3])
    if hints.unit is not None:
        facts.units = [hints.unit if name in VELOCITY else "1" for name in facts.channels]
    fields = fields[None] if fields.ndim == 3 else fields
    fitting = limit // (4 * math.prod(fields.shape[1:]))
    masks = {key: arrays.get(key) for key in ("mask", "body")}
    if len(fields) > fitting:
        notes.append(f"the first {fitting} of {len(fields)} frames")
        fields = fields[:fitting]
        masks = {
            key: mask[:fitting] if mask is not None and mask.ndim == 3 else mask
            for key, mask in masks.items()
        }
    with np.errstate(over="ignore"):
        # A writable copy: torch warns of arrays that may not be written to.
        states = torch.from_numpy(np.require(fields, np.float32, ["C", "W"]))
    try:
        known, body = (_points(mask, key, states) for key, mask in masks.items())
        recording, changes = fit_to_models(_trajectory(states, known, body, facts), units)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise Refusal("invalid", f"the file: {' '.join(str(error).split())[:300]}") from None
    chosen = select_frames(recording, 0, None, limit)
    answer = take_frames(recording, chosen, [*notes, *changes])
    unknown = {key: None for key in ("units", "t0") if getattr(facts, key) is None}
    grid = {
        key: value if key == "shape" or getattr(facts, key) is not None else None
        for key, value in answer.facts["grid"].items()
    }
    return Answer(answer.arrays, answer.facts | unknown | {"grid": grid})


def _most_unnamed(units: Units) -> int:
    """Most channels of a file that names none; a longer axis is rather that of frames."""
    return max(len(_NAMES), *(len(each) for each in units), 0)


def _note_on_order(shape: tuple[int, ...], units: Units) -> str:
    """A note on channels without names; too many are refused."""
    count, most = shape[-3], _most_unnamed(units)
    if count > most:
        raise Refusal(
            "invalid",
            f"expected shape (time, channel, y, x) with at most {most} channels if the file names "
            f"none, found {shape}; name them in the metadata of a safetensors file",
        )
    names = _default_names(count)
    read = "read as one frame (channel, y, x), " if len(shape) == 3 else ""
    unused = [name for name in names if units and not any(name in each for each in units)]
    text = f"the file names no channels: {read}its {count} are assumed to be {', '.join(names)}"
    return f"{text}; no model takes {', '.join(unused)}" if unused else text


def _default_names(count: int) -> list[str]:
    return [*_NAMES, *(f"c{n}" for n in range(len(_NAMES), count))][:count]


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
    states: torch.Tensor, valid: torch.Tensor | None, body: torch.Tensor | None, facts: Facts
) -> Trajectory:
    parameters = facts.parameters or {}
    grid = Grid(
        (states.shape[2], states.shape[3]),
        1.0 if facts.dx is None else facts.dx,
        1.0 if facts.dy is None else facts.dy,
        origin=(facts.x0 or 0.0, facts.y0 or 0.0),
    )
    spec = FieldSpec(
        channels=tuple(facts.channels or ())[: states.shape[1]],
        units=tuple(facts.units or ()),
        parameters=tuple(Parameter(name=name) for name in parameters),
        dt=facts.dt,
        grid=grid,
        family=None,
    )
    times = torch.arange(len(states), dtype=torch.float64) * (facts.dt or 1.0)
    return Trajectory(
        name="file",
        states=states,
        time=(facts.t0 or 0.0) + times,
        spec=spec,
        parameters=parameters,
        body=body,
        valid=valid,
        source=(facts.source or Source()).model_dump(),
        length_unit=facts.length_unit,
        time_unit=facts.time_unit,
    )
