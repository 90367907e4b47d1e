"""Small outputs of OpenFOAM: sampled surfaces and sets, and a case with its mesh and field files.

``tests/openfoam/data`` has files that OpenFOAM itself wrote; these hold flows whose values are
known at every point.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

_HEAD = """FoamFile
{{
    version     2.0;
    format      {form};
    arch        "LSB;label=32;scalar=64";
    class       {kind};
    object      {name};
}}
// * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * * //

"""
SIDES = ("left", "right", "bottom", "top")


def write_raw(path: Path, name: str, points: np.ndarray, values: np.ndarray) -> None:
    """A surface as columns, (n, 3) points and (n,) or (n, 3) values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = [name] if values.ndim == 1 else [f"{name}_{letter}" for letter in "xyz"]
    rows = np.column_stack([points, values])
    lines = [f"# {name}  POINT_DATA {len(points)}", "#  x  y  z  " + "  ".join(columns)]
    path.write_text("\n".join(lines + [" ".join(repr(float(n)) for n in row) for row in rows]))


def write_set(path: Path, points: np.ndarray, *values: np.ndarray) -> None:
    """A set of points with the axis xyz: columns without a head, fields as in the file name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = np.column_stack([points, *values])
    path.write_text("\n".join("\t".join(repr(float(n)) for n in row) for row in rows) + "\n")


def write_field(
    path: Path,
    values: np.ndarray,
    dimensions: str = "0 1 -1 0 0 0 0",
    *,
    binary: bool = False,
    conditions: Mapping[str, str] = {},
) -> None:
    """A field file of values (n,) or (n, 3); one row of them stands for a uniform field."""
    path.parent.mkdir(parents=True, exist_ok=True)
    vector = values.ndim == 2
    kind = "volVectorField" if vector else "volScalarField"
    head = _head(path.name, kind, binary) + f"dimensions      [{dimensions}];\n\n".encode()
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
    patches = {name: conditions.get(name, "type freestream;") for name in SIDES}
    listed = "".join(f"    {name} {{ {text} }}\n" for name, text in patches.items())
    tail = f";\n\nboundaryField\n{{\n{listed}    frontAndBack {{ type empty; }}\n}}\n"
    path.write_bytes(head + body + tail.encode())


def write_mesh(
    folder: Path, x: np.ndarray, y: np.ndarray, z: float = 0.5, kinds: Mapping[str, str] = {}
) -> None:
    """A ``polyMesh`` of one layer of hexahedra between lines of points at x and y, around z."""
    nx, ny = len(x) - 1, len(y) - 1
    points = [(a, b, c) for c in (z - 0.05, z + 0.05) for b in y for a in x]

    def number(i: int, j: int, layer: int) -> int:
        return (layer * (ny + 1) + j) * (nx + 1) + i

    def upright(i: int, j: int, k: int, m: int) -> list[int]:
        return [number(i, j, 0), number(k, m, 0), number(k, m, 1), number(i, j, 1)]

    cells = [(i, j) for j in range(ny) for i in range(nx)]
    inner = [(j * nx + i, upright(i + 1, j, i + 1, j + 1)) for i, j in cells if i < nx - 1]
    inner += [(j * nx + i, upright(i + 1, j + 1, i, j + 1)) for i, j in cells if j < ny - 1]
    patches = {
        "left": [(j * nx, upright(0, j + 1, 0, j)) for j in range(ny)],
        "right": [(j * nx + nx - 1, upright(nx, j, nx, j + 1)) for j in range(ny)],
        "bottom": [(i, upright(i, 0, i + 1, 0)) for i in range(nx)],
        "top": [((ny - 1) * nx + i, upright(i + 1, ny, i, ny)) for i in range(nx)],
        "frontAndBack": [
            (j * nx + i, [number(a, b, layer) for a, b in corners][:: 1 if layer else -1])
            for layer in (0, 1)
            for i, j in cells
            for corners in [((i, j), (i + 1, j), (i + 1, j + 1), (i, j + 1))]
        ],
    }
    faces, boundary = list(inner), []
    for name, group in patches.items():
        kind = kinds.get(name, "empty" if name == "frontAndBack" else "patch")
        boundary.append(
            f"    {name} {{ type {kind}; nFaces {len(group)}; startFace {len(faces)}; }}"
        )
        faces += group
    texts = {
        "points": ("vectorField", [_row(np.array(point)) for point in points]),
        "faces": ("faceList", [f"4({' '.join(map(str, face))})" for _, face in faces]),
        "owner": ("labelList", [str(cell) for cell, _ in faces]),
        "boundary": ("polyBoundaryMesh", boundary),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, (kind, lines) in texts.items():
        body = f"{len(lines)}\n(\n" + "\n".join(lines) + "\n)\n"
        (folder / name).write_bytes(_head(name, kind) + body.encode())


def write_case(
    folder: Path,
    x: np.ndarray,
    y: np.ndarray,
    frames: Mapping[str, np.ndarray],
    *,
    binary: bool = False,
) -> None:
    """A case with cell centres at uniform x and y; velocities (n, 3) by the name of their time."""
    (folder / "system").mkdir(parents=True)
    (folder / "system" / "controlDict").write_text("application icoFoam;\n")
    write_mesh(folder / "constant" / "polyMesh", edges(x), edges(y))
    for time, velocity in frames.items():
        write_field(folder / time / "U", velocity, binary=binary)
        pressure = velocity[:, 0] ** 2
        write_field(folder / time / "p", pressure, "0 2 -2 0 0 0 0", binary=binary)


def edges(centres: np.ndarray) -> np.ndarray:
    """The lines between cells of one size with these centres, and around them."""
    step = centres[1] - centres[0]
    return np.append(centres - step / 2, centres[-1] + step / 2)


def _head(name: str, kind: str, binary: bool = False) -> bytes:
    return _HEAD.format(form="binary" if binary else "ascii", kind=kind, name=name).encode()


def _row(row: np.ndarray) -> str:
    numbers = " ".join(repr(float(n)) for n in np.atleast_1d(row))
    return f"({numbers})" if np.ndim(row) else numbers
