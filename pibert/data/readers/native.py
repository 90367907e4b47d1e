"""Native files, and folders and patterns of them.

The files of a folder or of a pattern such as ``re*.h5`` are one set: an interrupted generation
leaves its finished trajectories in several files. A name that occurs in more than one of them gets
the file's name as a prefix.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from pibert.data.format import FORMAT, Reader
from pibert.data.format.reading import as_text
from pibert.data.hdf5 import is_hdf5, open_hdf5
from pibert.data.readers.recordings import Hints, Recordings, SourceError, reading
from pibert.data.readers.shared.files import expand_pattern, label, shared_folder
from pibert.fields import Trajectory

TITLE = "PIBERT's own files (HDF5)"
HINTS = ()
ISOLATED = False
MEASURED = True


def recognise(path: Path) -> bool:
    files = [path] if path.is_file() else _files(path)
    return bool(files) and all(map(_is_native, files))


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    readers = [Reader(file) for file in ([path] if path.is_file() else _files(path))]
    if not readers:
        raise SourceError(f"{path}: the folder holds no .h5 file; name the file or its folder")
    uses = Counter(name for reader in readers for name in reader.names)
    base = shared_folder([reader.path for reader in readers])
    stored = {
        (name if uses[name] == 1 else f"{label(reader.path, base)}-{name}"): (reader, name)
        for reader in readers
        for name in reader.names
    }

    def load(name: str) -> Trajectory:
        reader, inside = stored[name]
        return replace(reader[inside], name=name)

    return Recordings(kind="native", path=path, names=tuple(stored), load=load)


def _files(path: Path) -> list[Path]:
    found = path.glob("*.h5") if path.is_dir() else expand_pattern(path)
    return sorted(file for file in found if file.is_file() and not file.name.startswith("."))


def _is_native(path: Path) -> bool:
    if not is_hdf5(path):
        return False
    with reading(path), open_hdf5(path, deep=False) as file:
        stated = file.attrs.get("format")
        return isinstance(stated, str | bytes) and as_text(stated) == FORMAT
