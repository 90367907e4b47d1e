"""HDF5 files that lead to other files."""

from pathlib import Path

import h5py
import numpy as np

SECRET = 1234.5


def write_secret(path: Path) -> None:
    """A file of somebody else, as HDF5 and as raw numbers of every type that readers accept."""
    with h5py.File(path, "w") as file:
        for kind in ("f4", "f8"):
            file[kind] = np.full(10_000, SECRET, kind)


def find_fields(file: h5py.File) -> str:
    """The data set of floating-point numbers with the most values."""
    sizes: dict[str, int] = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind == "f":
            sizes[name] = item.size

    file.visititems(visit)
    return max(sizes, key=lambda name: sizes[name])


def lead_out(path: Path, way: str) -> None:
    """Replace the fields of a file by the content of another one."""
    secret = path.parent / "secret"
    write_secret(secret)
    with h5py.File(path, "r+") as file:
        name = find_fields(file)
        item = file[name]
        shape, kind, attributes = item.shape, item.dtype, dict(item.attrs)
        del file[name]
        if way == "external link":
            file[name] = h5py.ExternalLink(secret, kind.str[1:])
            return
        if way == "soft link to an external link":
            file.create_group("aside/deep")["link"] = h5py.ExternalLink(secret, kind.str[1:])
            file[name] = h5py.SoftLink("/aside/deep/link")
            return
        if way == "virtual data set":
            layout = h5py.VirtualLayout(shape, kind)
            flat = h5py.VirtualSource(secret, kind.str[1:], (10_000,))
            if len(shape) == 1:
                layout[:] = flat[: shape[0]]
            dataset = file.create_virtual_dataset(name, layout)
        else:
            dataset = file.create_dataset(
                name, shape, kind, external=[(secret, 0, h5py.h5f.UNLIMITED)]
            )
        for key, value in attributes.items():
            if key != "DIMENSION_LIST":
                dataset.attrs[key] = value


WAYS = ("external link", "soft link to an external link", "virtual data set", "external storage")
