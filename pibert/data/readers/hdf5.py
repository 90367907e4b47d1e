"""HDF5 files without a special format: datasets are found by their names and shapes.

The unit of a dataset is its attribute ``units``; the names of its dimension scales give the order
of its axes. ``scale_factor``, ``_FillValue`` ... mean what they mean in NetCDF. dt, dx, dy and Re
may be datasets of one number or attributes of the file. Groups with datasets of the same names are
separate flows; datasets of their parent groups (coordinates, time) belong to them too.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pibert.data.format.reading import as_text
from pibert.data.hdf5 import DAMAGED, is_hdf5, open_hdf5
from pibert.data.readers.matlab import is_matlab_hdf5
from pibert.data.readers.recordings import Hints, Recordings, SourceError, reading
from pibert.data.readers.shared.assembly import join, make_recordings
from pibert.data.readers.shared.naming import standard_name
from pibert.data.readers.shared.roles import STEPS, Variable, find_axis
from pibert.data.readers.shared.stores import Hdf5Store

TITLE = "HDF5 with named datasets (.h5, .hdf5)"
HINTS = ("channels", "axes", "shape")
MEASURED = True

UPLOADS = _SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5")
# Marks of formats with another reader.
_FOREIGN_GROUPS = ("measured_data", "t0_fields", "#refs#")


def recognise(path: Path) -> bool:
    if not path.is_file() or not is_hdf5(path):
        return path.suffix.lower() in _SUFFIXES and path.is_file()
    try:
        if is_matlab_hdf5(path):
            return False
        with open_hdf5(path) as file:
            if _text(file.attrs.get("format", "")) == "pibert-trajectories":
                return False
            return "_NCProperties" not in file.attrs and not any(
                name in file for name in _FOREIGN_GROUPS
            )
    except DAMAGED:
        return True  # opening it reports the damage


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    if not is_hdf5(path):
        raise SourceError(
            f"{path}: this is not an HDF5 file, or its head is damaged: get a new copy of it"
        )
    store = Hdf5Store(path)
    file = store.open()
    with reading(path):
        variables, source = _survey(file)
        if any("pandas_type" in item.attrs for item in file.values()):
            raise SourceError(
                f"{path}: pandas tables in HDF5 are not read; write them with DataFrame.to_csv"
            )
    if not variables:
        raise SourceError(f"{path}: an HDF5 file without datasets; write the fields again")
    groups = _flows(variables)
    if len(groups) < 2:
        return make_recordings("hdf5", store, variables, hints, source=source)
    flows = []
    for group in groups:
        inside = [variable for variable in variables if group.startswith(_parent(variable.key))]
        name = group.strip("/").replace("/", "-")
        flows.append(make_recordings("hdf5", store, inside, hints, source=source, name=name))
    return join("hdf5", store.path, flows)


def _survey(file: h5py.File) -> tuple[list[Variable], dict[str, Any]]:
    variables = [
        Variable(key=f"@{name}", shape=(), dtype=np.asarray(value).dtype)
        for name, value in file.attrs.items()
        if name.lower() in STEPS and np.size(value) == 1
    ]

    def visit(name: str | bytes, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(name, bytes):
            raise ValueError(f"the name {name!r} is not text")
        if isinstance(item, h5py.Dataset) and item.shape is not None:
            stated = [item.attrs[key] for key in item.attrs if key.lower() in ("units", "unit")]
            unit = _text(stated[0]) if stated else None
            variables.append(
                Variable(
                    key=name,
                    shape=item.shape,
                    dtype=item.dtype,
                    unit=unit,
                    axes=_axes(item),
                )
            )

    file.visititems(visit)
    wanted = ("title", "doi", "licence", "license", "url")
    return variables, {key: _text(file.attrs[key]) for key in wanted if key in file.attrs}


def _axes(dataset: h5py.Dataset) -> str | None:
    """Return the order of the axes that labels or dimension scales state; None if they do not."""
    names = [
        dim.label or (dim.keys() or [""])[0] or (str(dim[0].name) if len(dim) else "")
        for dim in dataset.dims
    ]
    letters = [find_axis(name.rsplit("/", 1)[-1]) or standard_name(name)[0] for name in names]
    axes = "".join(letter or "?" for letter in letters)
    return axes if {*"xy"} <= {*axes} <= {*"btcyx"} and len(axes) == len({*axes}) else None


def _flows(variables: Sequence[Variable]) -> list[str]:
    """Return the groups that hold fields of the same names; none if there is one flow."""
    fields: dict[str, set[str]] = {}
    for variable in variables:
        if len(variable.shape) >= 2:
            fields.setdefault(_parent(variable.key), set()).add(variable.plain)
    uses = Counter(name for names in fields.values() for name in names)
    return [group for group, names in fields.items() if any(uses[name] > 1 for name in names)]


def _parent(key: str) -> str:
    """Return the group of a dataset with its slash; empty for the root."""
    head, slash, _ = key.rpartition("/")
    return head + slash


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    return as_text(value)
