"""MATLAB files: version 5 through scipy, version 7.3 (HDF5, axes in reverse) through h5py.

Numeric and logical arrays are read; structs, cells and texts are named in a remark. MATLAB's usual
order is (y, x, t): meshgrid makes rows of y. A vector has two axes there, one of which is 1.
"""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pibert.data.hdf5 import DAMAGED, HDF5Error, open_hdf5
from pibert.data.sources.assembly.lazy import Hdf5Store, Where, damaged
from pibert.data.sources.assembly.roles import Variable
from pibert.data.sources.assembly.trajectory import make_recordings
from pibert.data.sources.recordings import Hints, Recordings, SourceError

TITLE = "MATLAB arrays (.mat)"

_ORDER = "yxtcb"
_CLASSES = {"double": "f8", "single": "f4", "logical": "b1", "char": "U1"}
_CLASSES |= {f"int{8 * size}": f"i{size}" for size in (1, 2, 4, 8)}
_CLASSES |= {f"uint{8 * size}": f"u{size}" for size in (1, 2, 4, 8)}
_PIVLAB = {"u_original", "u_filtered", "typevector_original", "typevector_filtered"}


def recognise(path: Path) -> bool:
    """A .mat file, but not a session of PIVlab."""
    if path.suffix.lower() != ".mat" or not path.is_file():
        return False
    try:
        return not _PIVLAB & {variable.key for variable in _survey(path)}
    except (ValueError, ImportError):
        # It is MATLAB's and broken, or scipy is missing: opening it says so.
        return True


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    variables = _survey(path)
    store = Hdf5Store(path, matlab=True) if _is_hdf5(path) else MatStore(path)
    others = [variable.key for variable in variables if variable.dtype.kind not in "fiub"]
    if others and not any(v.shape for v in variables if v.dtype.kind in "fiub"):
        raise SourceError(
            f"{path}: it holds no arrays of numbers but {', '.join(others)}; structs and cells are "
            f"not read: save the fields of a struct with save('{path.name}', '-struct', NAME)"
        )
    remarks = [f"not read (structs, cells, texts): {', '.join(others)}"] if others else []
    return make_recordings("matlab", store, variables, hints, order=_ORDER, remarks=remarks)


class MatStore:
    """The arrays of a file of version 5; those that were asked for stay in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._arrays: dict[str, np.ndarray] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_arrays": {}}

    def read(self, key: str, where: Where) -> np.ndarray:
        if key not in self._arrays:
            found = call_scipy(self.path, "loadmat", variable_names=[key])
            self._arrays[key] = np.asarray(found[key])
        array = self._arrays[key]
        array = array if len(where) == array.ndim else array.reshape(-1)
        return np.asarray(array[where])


def _is_hdf5(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(10) == b"MATLAB 7.3"
    except OSError as error:
        raise SourceError(f"{path}: it cannot be read ({error.strerror})") from error


def _survey(path: Path) -> list[Variable]:
    """Names, shapes and types; numbers are not read."""
    if _is_hdf5(path):
        return _survey_hdf5(path)
    return [_described(name, shape, kind) for name, shape, kind in call_scipy(path, "whosmat")]


def _survey_hdf5(path: Path) -> list[Variable]:
    try:
        with open_hdf5(path) as file:
            return [
                _described(
                    name,
                    item.shape[::-1] if isinstance(item, h5py.Dataset) else (),
                    bytes(item.attrs.get("MATLAB_class", b"struct")).decode()
                    if "MATLAB_empty" not in item.attrs
                    else "empty",
                )
                for name, item in file.items()
                if not name.startswith("#")
            ]
    except HDF5Error:
        raise
    except DAMAGED as error:
        raise damaged(path, error) from error


def _described(name: str, shape: tuple[int, ...], kind: str) -> Variable:
    if len(shape) == 2 and 1 in shape:
        shape = () if shape == (1, 1) else (max(shape),)
    return Variable(key=name, shape=tuple(shape), dtype=np.dtype(_CLASSES.get(kind, "O")))


def call_scipy(path: Path, function: str, **arguments: Any) -> Any:
    """What a function of ``scipy.io`` makes of a file; ``SourceError`` if that is damaged."""
    try:
        import scipy.io
    except ImportError as error:
        raise ImportError(
            "reading MATLAB files needs scipy: pip install 'pibert-cfd[io]'"
        ) from error
    try:
        return getattr(scipy.io, function)(path, **arguments)
    except MemoryError:
        raise
    except Exception as error:  # scipy meets a damaged file with errors of every kind
        raise SourceError(
            f"{path}: expected a MATLAB file, but it cannot be read ({error}); get a new copy, or "
            "save it again with -v7 or -v7.3"
        ) from error
