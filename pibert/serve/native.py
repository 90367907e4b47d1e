"""Reads a native file that was sent, in a process of its own: it may hold anything."""

from pathlib import Path

from pibert.data.foreign import check_foreign
from pibert.data.format import Reader
from pibert.serve.answers import encode
from pibert.serve.asked import SAFETENSORS
from pibert.serve.recordings import Units, fit_units, take_frames
from pibert.serve.refusal import Refusal

PROBLEM = b"problem: "
"""Stands before what is wrong with a file, in place of its frames."""


def read_native(path: Path, out: Path, limit: int, wanted: str | None, units: Units) -> None:
    """Write the frames of a trajectory as an answer in safetensors, or what is wrong.

    Args:
        path: The file.
        out: What to write.
        limit: Most bytes of a dataset, and of the frames.
        wanted: The name of the trajectory. None: the first.
        units: Of the models.
    """
    try:
        data = _read(path, limit, wanted, units)
    except (ValueError, OSError, MemoryError, Refusal) as error:
        data = PROBLEM + " ".join(str(error).split())[:500].encode()
    out.write_bytes(data)


def _read(path: Path, limit: int, wanted: str | None, units: Units) -> bytes:
    check_foreign(path, limit)
    with Reader(path) as reader:
        if wanted is not None and wanted not in reader.names:
            raise ValueError(f"{path}: there is no trajectory {wanted[:100]!r}")
        chosen, remarks = fit_units(reader[0 if wanted is None else wanted], units)
        if wanted is None and len(reader) > 1:
            remarks.append(f"the first of {len(reader)} trajectories")
        return encode(take_frames(chosen, 0, None, limit, remarks), SAFETENSORS)
