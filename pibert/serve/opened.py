"""A file that was sent, as a recording: anything that ``pibert convert`` reads from one file.

It is read in a separate process, as its libraries were not written for hostile input.
"""

import contextlib
import io
import re
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pibert.data.format import FormatError
from pibert.data.hdf5 import HDF5Error
from pibert.data.isolation import Limits
from pibert.data.provenance import counts_frames, counts_points
from pibert.data.readers import UPLOADS, identify, open_recordings
from pibert.data.readers.recordings import (
    PARSING,
    DamagedError,
    Hints,
    SourceError,
    TooLargeError,
    TooSlowError,
)
from pibert.fields import Trajectory
from pibert.notes import collecting
from pibert.serve.answers import NPY_MAGIC, Answer
from pibert.serve.limits import MB, Refusal, check_frame_size
from pibert.serve.recordings import Units, fit_to_models, select_frames, take_frames

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_ZIP_MAGIC = b"PK\x03\x04"
_KNOWN_BY_CONTENT = (".npy", ".npz", ".safetensors")
KNOWN = UPLOADS
"""Suffixes of the files that can be opened."""
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
    suffix = _suffix_of(data, name)
    if suffix == ".npz" and _has_mask_of_known(data):
        hints = replace(hints, channels={"valid": "mask", **hints.channels})
    return _read_isolated(data, name, suffix, trajectory, limit, seconds, units, hints)


def _has_mask_of_known(data: bytes) -> bool:
    """Whether an archive has just ``fields`` and masks: ``mask`` then is that of a request."""
    with contextlib.suppress(*PARSING, zipfile.BadZipFile, RuntimeError):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
        return {"fields", "mask"} <= names <= {"fields", "mask", "body"}
    return False  # the reader says what is wrong


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
    if data.startswith(NPY_MAGIC):
        return ".npy"
    if data.startswith(_ZIP_MAGIC):
        return ".npz"
    if len(data) > 9 and data[8:9] == b"{" and not data.startswith(HDF5_MAGIC):
        return ".safetensors"
    if data.startswith(HDF5_MAGIC):
        return suffix if suffix in KNOWN else ".h5"
    if suffix in KNOWN and suffix not in _KNOWN_BY_CONTENT:
        return suffix
    found = f"a damaged {suffix}" if suffix in KNOWN else suffix[:20] or "a file without a name"
    raise Refusal(
        "malformed",
        f"expected one whole file ({', '.join(sorted(KNOWN))}), found {found}; of data in several "
        "files, make one native .h5 with pibert convert",
    )


def _read_isolated(
    data: bytes,
    name: str,
    suffix: str,
    trajectory: str | None,
    limit: int,
    seconds: float,
    units: Units,
    hints: Hints,
) -> Answer:
    """Read a file with the readers of ``pibert convert``, in a process with limits."""
    with tempfile.TemporaryDirectory(prefix="pibert-") as folder:
        stem = re.sub(r"[^A-Za-z0-9_-]+", "_", Path(name).stem)[:60].strip("_") or "sent"
        path = Path(folder, stem + suffix)
        path.write_bytes(data)
        limits = Limits(8 * limit + 256 * MB, seconds, limit)
        try:
            return _read(path, limits, trajectory, units, hints)
        except Refusal:
            raise
        except TooSlowError:
            raise Refusal("timeout", "the file was not read in time") from None
        except TooLargeError:
            text = "reading the file takes too much memory; send fewer frames"
            raise Refusal("too_large", text) from None
        except (DamagedError, FormatError, HDF5Error, OSError) as error:
            code, message = "malformed", str(error)
        except (ValueError, ImportError) as error:
            code, message = "invalid", str(error)
    text = " ".join(message.replace(str(path), "the file").split())
    raise Refusal(code, _as_hints(text)[:800])


def _read(path: Path, limits: Limits, wanted: str | None, units: Units, hints: Hints) -> Answer:
    """The frames of a trajectory; ``wanted`` None: the first."""
    assert limits.dataset is not None
    try:
        kind = identify(path, isolate=limits)
    except (DamagedError, TooLargeError, TooSlowError):
        raise
    except SourceError:
        raise Refusal(
            "malformed",
            f"expected a {path.suffix} file with a flow in it, found none; call its arrays or "
            "columns u, v, x, y, t",
        ) from None
    with collecting() as raised:
        recordings = open_recordings(path, kind, hints, isolate=limits)
        if wanted is not None and wanted not in recordings.names:
            raise ValueError(f"{path}: there is no trajectory {wanted[:100]!r}")
        found = recordings[0 if wanted is None else wanted]
    check_frame_size((len(found.spec.channels), *found.spec.grid.shape), limits.dataset)
    fit, changes = fit_to_models(found, units)
    notes = [*recordings.notes, *raised, *changes]
    if wanted is None and len(recordings) > 1:
        notes.append(f"the first of {len(recordings)} trajectories")
    chosen = select_frames(fit, 0, None, limits.dataset)
    if len(chosen) < found.num_frames:
        notes.append(f"the first {len(chosen)} of {found.num_frames} frames")
    answer = take_frames(fit, chosen, notes)
    for note in answer.facts["notes"]:
        note |= {key: _as_hints(note[key]) for key in ("text", "remedy")}
    return Answer(answer.arrays, answer.facts | _unknown(found, recordings.kind, hints, answer))


def _unknown(found: Trajectory, kind: str, hints: Hints, answer: Answer) -> dict[str, Any]:
    """None for what a file of another program does not state; a native one states everything."""
    if kind == "native":
        return {}
    unknown: dict[str, Any] = {}
    if hints.dx is None and counts_points(found):
        unknown["grid"] = answer.facts["grid"] | dict.fromkeys(("dx", "dy", "x0", "y0"))
    if counts_frames(found):
        unknown["t0"] = None
    if all(unit == "1" for unit in found.spec.units):
        unknown["units"] = None
    return unknown


def _as_hints(text: str) -> str:
    """Replace options of the command line in a message by their names in a request."""
    options = "|".join(HINTS).replace("_", "-")
    return re.sub(rf"--({options})\b", lambda found: found[1].replace("-", "_"), text)
