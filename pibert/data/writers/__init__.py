"""Output formats by the suffix of a file, and functions that write one.

To add a format: a module here (``frames.FrameWriter``) and a line in ``_FORMATS``. A writer is
imported when it is used, so that the help of the commands can list the formats without torch.
"""

import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pibert.data.readers.recordings import Recordings
    from pibert.data.writers.frames import FrameWriter
    from pibert.fields import Trajectory

_FORMATS = {
    ".h5": ("PIBERT's own format", "native:NativeWriter"),
    ".nc": ("NetCDF", "netcdf:NetcdfWriter"),
    ".pvd": ("ParaView", "paraview:VtkWriter"),
    ".xdmf": ("ParaView", "paraview:XdmfWriter"),
    ".csv": ("text, a line for every point", "csv:TableWriter"),
}
"""The title of each format, and its writer."""

PICTURES = (".png", ".pdf", ".svg")
"""Suffixes of pictures."""

OF_FIELDS = {suffix: title for suffix, (title, _) in _FORMATS.items()}
"""Titles of the formats of fields, by suffix."""
OF_PREDICTIONS = OF_FIELDS | {
    ".csv": "the state of moving bodies",
    **dict.fromkeys(PICTURES, "a strip of frames"),
    ".gif": "animation",
    ".mp4": "animation",
}
"""Titles of the formats of predictions; ``pibert.report.forecast`` has the writers of those that
fields do not have, and of ``.csv``."""

NATIVE = (".h5", ".hdf5")
"""Suffixes of the native format."""


class _Writers(Mapping[str, "type[FrameWriter]"]):
    """The writers; the suffixes and their number are known without an import."""

    def __getitem__(self, suffix: str) -> "type[FrameWriter]":
        writer: type[FrameWriter] = pkgutil.resolve_name(f"{__name__}.{_FORMATS[suffix][1]}")
        return writer

    def __iter__(self) -> Iterator[str]:
        return iter(_FORMATS)

    def __len__(self) -> int:
        return len(_FORMATS)


WRITERS: Mapping[str, "type[FrameWriter]"] = _Writers()


def list_formats(*, predictions: bool = False) -> str:
    """Return the formats for a help text: suffixes with their titles."""
    suffixes: dict[str, list[str]] = {}
    for suffix, title in (OF_PREDICTIONS if predictions else OF_FIELDS).items():
        suffixes.setdefault(title, []).append(suffix)
    return "; ".join(f"{', '.join(each)}: {title}" for title, each in suffixes.items())


def name_formats(*, predictions: bool = False) -> str:
    """Return the formats for a usage line: ``h5|nc|...``."""
    return "|".join(suffix[1:] for suffix in (OF_PREDICTIONS if predictions else OF_FIELDS))


def check_output(out: Path, recordings: "Recordings") -> None:
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
    suffix = out.suffix.lower()
    return WRITERS[suffix if suffix in WRITERS else ".h5"].targets_of(out)


def write_trajectories(out: Path, trajectories: Iterable["Trajectory"]) -> None:
    """Write a file in the format of its suffix, whole or not at all; an older one is replaced.

    Native files hold any number of trajectories, those for other programs one.
    """
    from pibert.data.format import Writer
    from pibert.data.writers.frames import blocks_of, describe

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
