"""MATLAB files of version 7.3: HDF5 after 512 bytes of text, with all axes in reverse."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np


def write_matlab_73(path: Path, named: Mapping[str, Any]) -> None:
    """Arrays by name; a dictionary stands for a struct, whose content is left out."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, values in named.items():
            if isinstance(values, dict):
                file.create_group(name).attrs["MATLAB_class"] = np.bytes_("struct")
                continue
            array = np.atleast_2d(values)
            file[name] = array.T
            kind = {"bool": "logical", "float32": "single"}.get(array.dtype.name, "double")
            file[name].attrs["MATLAB_class"] = np.bytes_(kind)
        file.create_group("#refs#")
    write_head_73(path)


def write_head_73(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
