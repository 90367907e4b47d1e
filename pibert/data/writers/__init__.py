"""Frames into files of several formats, one block at a time (``frames.FrameWriter``)."""

from collections.abc import Iterable
from pathlib import Path

from pibert.data.format import Writer
from pibert.data.readers.recordings import Recordings
from pibert.data.writers.frames import Block, Description, FrameWriter, blocks_of, describe
from pibert.data.writers.native import NativeWriter
from pibert.data.writers.netcdf import NetcdfWriter
from pibert.data.writers.paraview import VtkWriter, XdmfWriter
from pibert.fields import Trajectory

__all__ = [
    "NATIVE",
    "WRITERS",
    "Block",
    "Description",
    "FrameWriter",
    "blocks_of",
    "check_output",
    "describe",
    "targets_of",
    "write_trajectories",
]

WRITERS: dict[str, type[FrameWriter]] = {
    ".h5": NativeWriter,
    ".nc": NetcdfWriter,
    ".pvd": VtkWriter,
    ".xdmf": XdmfWriter,
}
"""By the suffix of the file."""

NATIVE = (".h5", ".hdf5")
"""Suffixes of the native format."""


def check_output(out: Path, recordings: Recordings) -> None:
    """Raise if the format of the name is not written, or cannot hold all recordings."""
    suffix = out.suffix.lower()
    if suffix not in (*WRITERS, *NATIVE):
        raise ValueError(
            f"{out}: expected a name that ends in {', '.join(WRITERS)}, found "
            f"{suffix or out.name!r}; choose one of these formats"
        )
    if suffix not in NATIVE and len(recordings) > 1:
        raise ValueError(
            f"{out}: a {suffix} file holds one recording, found {len(recordings)} in "
            f"{recordings.path}; write a .h5 file, or take the files one by one"
        )


def targets_of(out: Path) -> tuple[Path, ...]:
    """Return the files and folders that are written for a name, itself first."""
    return WRITERS.get(out.suffix.lower(), NativeWriter).targets_of(out)


def write_trajectories(out: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write a file in the format of its suffix, whole or not at all; an older one is replaced.

    Native files hold any number of trajectories, those for other programs one.
    """
    if out.suffix.lower() in NATIVE:
        with Writer(out) as native:
            for trajectory in trajectories:
                native.add(trajectory)
        return
    for trajectory in trajectories:
        kind = WRITERS[out.suffix.lower()]
        with kind(out, describe(trajectory), overwrite=True) as writer:
            for block in blocks_of(trajectory):
                writer.append(block)
