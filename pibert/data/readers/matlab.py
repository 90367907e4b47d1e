"""MATLAB files: version 5 through scipy, version 7.3 (HDF5, axes in reverse) through h5py.

Numeric and logical arrays are read; a note names structs, cells and texts. The usual order is
(y, x, t): meshgrid makes rows of y. A MATLAB vector has two axes, one of which has length 1.
"""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pibert.data.hdf5 import is_hdf5, open_hdf5
from pibert.data.readers.recordings import Hints, Recordings, SourceError, reading
from pibert.data.readers.shared.assembly import make_recordings
from pibert.data.readers.shared.roles import Variable
from pibert.data.readers.shared.stores import Hdf5Store, MemoryStore, Store
from pibert.data.wording import import_extra

TITLE = "MATLAB arrays (.mat)"
HINTS = ("channels", "axes", "shape")
MEASURED = True
UPLOADS = (".mat",)

_ORDER = "yxtcb"
_CLASSES = {"double": "f8", "single": "f4", "logical": "b1", "char": "U1"}
_CLASSES |= {f"int{8 * size}": f"i{size}" for size in (1, 2, 4, 8)}
_CLASSES |= {f"uint{8 * size}": f"u{size}" for size in (1, 2, 4, 8)}
PIVLAB = {"u_original", "u_filtered", "typevector_original", "typevector_filtered"}
PIVLAB |= {"resultslist", "pivlab_data"}
"""Variables of PIVlab, one of which is in each of its files."""


def recognise(path: Path) -> bool:
    """Recognise a .mat file, but not one of PIVlab, or HDF5 of another program."""
    if path.suffix.lower() != ".mat" or not path.is_file():
        return False
    if is_hdf5(path) and not is_matlab_hdf5(path):
        return False
    try:
        return not PIVLAB & {variable.key for variable in _survey(path)}
    except (ValueError, ImportError):
        # The file is damaged, or scipy is missing: opening it reports that.
        return True


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    variables = _survey(path)
    store: Store = MemoryStore(path, _read_variable)
    if is_matlab_hdf5(path):
        store = Hdf5Store(path, matlab=True)
    others = [variable.key for variable in variables if variable.dtype.kind not in "fiub"]
    if others and not any(v.shape for v in variables if v.dtype.kind in "fiub"):
        raise SourceError(
            f"{path}: expected arrays of numbers, found {', '.join(others)}; structs and cells are "
            f"not read: save the fields of a struct with save('{path.name}', '-struct', NAME)"
        )
    notes = [f"not read (structs, cells, texts): {', '.join(others)}"] if others else []
    return make_recordings("matlab", store, variables, hints, order=_ORDER, notes=notes)


def _read_variable(path: Path, key: str) -> np.ndarray:
    return np.asarray(call_scipy(path, "loadmat", variable_names=[key])[key])


def is_matlab_hdf5(path: Path) -> bool:
    """Return whether a file has MATLAB's format 7.3."""
    try:
        with path.open("rb") as file:
            return file.read(10) == b"MATLAB 7.3"
    except OSError as error:
        raise SourceError(f"{path}: it cannot be read ({error.strerror})") from error


def _survey(path: Path) -> list[Variable]:
    """Read names, shapes and types, not the numbers."""
    found: list[tuple[str, tuple[int, ...], str]] = []
    if not is_matlab_hdf5(path):
        found = call_scipy(path, "whosmat")
    else:
        with reading(path), open_hdf5(path) as file:
            for name in (name for name in file if not name.startswith("#")):
                item, kind = file[name], "empty"
                if "MATLAB_empty" not in item.attrs:
                    kind = bytes(item.attrs.get("MATLAB_class", b"struct")).decode()
                shape = item.shape[::-1] if isinstance(item, h5py.Dataset) else ()
                found.append((name, shape, kind))
    variables = []
    for name, shape, kind in found:
        if len(shape) == 2 and 1 in shape:
            shape = () if shape == (1, 1) else (max(shape),)
        dtype = np.dtype(_CLASSES.get(kind, "O"))
        variables.append(Variable(key=name, shape=tuple(shape), dtype=dtype))
    return variables


def call_scipy(path: Path, function: str, **arguments: Any) -> Any:
    """Call a function of ``scipy.io`` with a file; ``SourceError`` if it is damaged."""
    library = import_extra("scipy.io", "reading MATLAB files")
    try:
        return getattr(library, function)(path, **arguments)
    except MemoryError:
        raise
    except Exception as error:  # scipy raises errors of every kind on damaged files
        raise SourceError(
            f"{path}: expected a MATLAB file, but it cannot be read ({error}); get a new copy, or "
            "save it again with -v7 or -v7.3"
        ) from error
