"""Reads a file that was sent with the readers of ``pibert convert``, in a separate process.

The file may be hostile: the process has little memory, and a file that refers to others is refused.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import torch

from pibert.data.format import FormatError
from pibert.data.hdf5 import HDF5Error, check_foreign
from pibert.data.isolation import limit_memory
from pibert.data.provenance import counts_frames, counts_points
from pibert.data.readers import identify, open_recordings
from pibert.data.readers.recordings import Hints, SourceError
from pibert.fields import Trajectory
from pibert.notes import as_note, collecting
from pibert.serve.answers import SAFETENSORS, Answer, encode
from pibert.serve.limits import MB, Refusal, check_frame_size
from pibert.serve.recordings import Units, fit_to_models, take_frames

PROBLEM = b"problem: "
"""Precedes the code and the message of a refusal, in place of frames."""


def read_file(
    path: Path, out: Path, limit: int, wanted: str | None, units: Units, hints: Hints
) -> None:
    """Write the frames of a trajectory as an answer in safetensors, or the error.

    Args:
        path: The file.
        out: What to write.
        limit: Most bytes of a dataset, and of the frames.
        wanted: The name of the trajectory. None: the first.
        units: Of the models.
        hints: What the sender states about the file.
    """
    torch.set_num_threads(1)
    limit_memory(8 * limit + 256 * MB)
    try:
        out.write_bytes(encode(_read(path, limit, wanted, units, hints), SAFETENSORS))
        return
    except Refusal as refusal:
        code, message = refusal.code, refusal.message
    except MemoryError:
        code, message = "too_large", "reading the file takes too much memory; send fewer frames"
    except (FormatError, HDF5Error, OSError) as error:
        code, message = "malformed", str(error)
    except (ValueError, ImportError) as error:
        code, message = "invalid", str(error)
    except Exception as error:  # a damaged file may break a reader anywhere
        code = "malformed"
        message = f"{path}: it cannot be read ({type(error).__name__}: {error})"
    out.write_bytes(PROBLEM + json.dumps([code, " ".join(message.split())[:800]]).encode())


def _read(path: Path, limit: int, wanted: str | None, units: Units, hints: Hints) -> Answer:
    check_foreign(path, limit)
    with warnings.catch_warnings(), collecting() as raised:
        warnings.simplefilter("ignore")  # of the libraries that read files
        recordings = open_recordings(path, _kind_of(path), hints, isolate=False)
        if wanted is not None and wanted not in recordings.names:
            raise ValueError(f"{path}: there is no trajectory {wanted[:100]!r}")
        found = recordings[0 if wanted is None else wanted]
    check_frame_size((len(found.spec.channels), *found.spec.grid.shape), limit)
    fit, changes = fit_to_models(found, units)
    notes = [*recordings.notes, *raised, *changes]
    if wanted is None and len(recordings) > 1:
        notes.append(f"the first of {len(recordings)} trajectories")
    answer = take_frames(fit, 0, None, limit, notes)
    if answer.facts["stop"] < found.num_frames:
        text = f"the first {answer.facts['stop']} of {found.num_frames} frames"
        answer.facts["notes"].append(as_note(text).to_dict())
    return Answer(answer.arrays, answer.facts | _unknown(found, recordings.kind, hints, answer))


def _kind_of(path: Path) -> str:
    try:
        return identify(path, isolate=False)
    except SourceError:
        raise Refusal(
            "malformed",
            f"expected a {path.suffix} file with a flow in it, found none; call its arrays or "
            "columns u, v, x, y, t",
        ) from None


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
