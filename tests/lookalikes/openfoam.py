"""Small outputs of OpenFOAM: sampled surfaces and sets, and a case with its field files."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

_HEAD = """FoamFile
{{
    version     2.0;
    format      {form};
    arch        "LSB;label=32;scalar=64";
    class       vol{kind}Field;
    location    "0";
    object      {name};
}}
// * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * //

dimensions      [{dimensions}];

"""
_TAIL = b"""
;

boundaryField
{
    walls
    {
        type            fixedValue;
        value           uniform (0 0 0);
    }
}
"""


def write_raw(path: Path, name: str, points: np.ndarray, values: np.ndarray) -> None:
    """A surface as columns, (n, 3) points and (n,) or (n, 3) values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = [name] if values.ndim == 1 else [f"{name}_{letter}" for letter in "xyz"]
    rows = np.column_stack([points, values])
    lines = [f"# {name}  POINT_DATA {len(points)}", "#  x  y  z  " + "  ".join(columns)]
    path.write_text("\n".join(lines + [" ".join(repr(float(n)) for n in row) for row in rows]))


def write_set(path: Path, points: np.ndarray, *values: np.ndarray) -> None:
    """A set of points with the axis xyz: columns without a head, fields as the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = np.column_stack([points, *values])
    path.write_text("\n".join("\t".join(repr(float(n)) for n in row) for row in rows) + "\n")


def write_field(
    path: Path, values: np.ndarray, dimensions: str = "0 1 -1 0 0 0 0", *, binary: bool = False
) -> None:
    """A field file; one row of values stands for a uniform field."""
    path.parent.mkdir(parents=True, exist_ok=True)
    vector = values.ndim == 2
    head = _HEAD.format(
        form="binary" if binary else "ascii",
        kind="Vector" if vector else "Scalar",
        name=path.name,
        dimensions=dimensions,
    ).encode()
    rows = [_row(row) for row in values]
    if len(values) == 1:
        body = f"internalField   uniform {rows[0]}".encode()
    else:
        start = f"internalField   nonuniform List<{'vector' if vector else 'scalar'}> \n"
        body = f"{start}{len(values)}\n(".encode()
        if binary:
            body += values.astype("<f8").tobytes() + b")"
        else:
            body += ("\n" + "\n".join(rows) + "\n)").encode()
    path.write_bytes(head + body + _TAIL)


def write_case(
    folder: Path, centres: np.ndarray, frames: Mapping[str, np.ndarray], *, binary: bool = False
) -> None:
    """A case with velocities (n, 3) by the name of their time folder."""
    (folder / "system").mkdir(parents=True)
    (folder / "system" / "controlDict").write_text("application icoFoam;\n")
    (folder / "constant").mkdir()
    for time, velocity in frames.items():
        write_field(folder / time / "U", velocity, binary=binary)
        pressure = velocity[:, 0] ** 2
        write_field(folder / time / "p", pressure, "0 2 -2 0 0 0 0", binary=binary)
    write_field(folder / next(iter(frames)) / "C", centres, "0 1 0 0 0 0 0", binary=binary)


def _row(row: np.ndarray) -> str:
    numbers = " ".join(repr(float(n)) for n in np.atleast_1d(row))
    return f"({numbers})" if np.ndim(row) else numbers
