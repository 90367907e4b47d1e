"""EAGLE (Janny et al., ICLR 2023): air driven by a moving source, on meshes that change in time.

    <root>/{Cre,Spl,Tri}/<geometry>/<trajectory 1 or 2>/{sim.npz, triangles.npy}

``sim.npz`` holds ``pointcloud`` (t, n, 2), the velocity ``VX``, ``VY``, two pressures ``PS``,
``PG`` (t, n), and the node types ``mask`` (t, n) or (t, n, 1); ``triangles.npy`` (t, f, 3) the
nodes of every triangle. Units, time step and equations are not stated: unknown without hints.

A mesh is read whole (an archive cannot be mapped) and rasterised when a trajectory is loaded. The
value at a grid point is the barycentric interpolation in the triangle that contains it. A point is
fluid where such a triangle has no disabled node and is not spanned by walls alone. Other points
within the mesh's bounds are body, which moves with the mesh; beyond them nothing is known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pibert.data.readers.arrays import open_archive, open_array, require_keys
from pibert.data.readers.recordings import Hints, Recordings, SourceError, check_channels
from pibert.data.readers.shared.cells import cover
from pibert.data.readers.shared.interpolation import GridError
from pibert.data.splits import Segment, Split
from pibert.fields import FieldSpec, Grid, Trajectory

TITLE = "EAGLE (moving triangle meshes)"
HINTS = ("channels", "shape")
ISOLATED = False

KINDS = ("Cre", "Spl", "Tri", "Stp")
"""Kinds of geometry. Older split lists call ``Cre`` ``Stp``."""
CHANNELS = {"u": "VX", "v": "VY", "ps": "PS", "pg": "PG"}
"""Our names and the file's."""
SHAPE = (64, 64)
"""Default rows and columns of the grid."""

Number = int | float
Box = tuple[Number, Number, Number, Number]
"""Left, right, bottom and top."""


DISABLED, WALL = 2, 6
"""Types of nodes; 0 is fluid, 4 an inlet, 5 an outlet."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MeshTrajectory:
    """One flow on a mesh; nodes move, and every frame has its own triangles."""

    name: str
    channels: tuple[str, ...]
    positions: Float[Tensor, "t n 2"]
    triangles: Int[Tensor, "t f 3"]
    fields: Float[Tensor, "t c n"]
    node_types: Int[Tensor, "t n"]
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_frames(self) -> int:
        return len(self.positions)

    @property
    def bounds(self) -> Box:
        """The box that holds the mesh in all frames."""
        used = self.positions[self.node_types != DISABLED].double()
        (left, bottom), (right, top) = used.amin(0).tolist(), used.amax(0).tolist()
        return left, right, bottom, top


def rasterise(mesh: MeshTrajectory, shape: tuple[int, int], box: Box | None = None) -> Trajectory:
    """Interpolate a flow to the cell centres of a grid, in memory, with a moving mask.

    The grid covers ``box`` (default: the bounds of the mesh) with ``shape`` rows and columns.
    """
    left, right, bottom, top = bounds = mesh.bounds if box is None else box
    if not (left < right and bottom < top):
        raise ValueError(f"expected a box (left, right, bottom, top) with an area, found {bounds}")
    dx, dy = (right - left) / shape[1], (top - bottom) / shape[0]
    grid = Grid(shape, dx, dy, origin=(left + dx / 2, bottom + dy / 2))
    states = np.full((mesh.num_frames, len(mesh.channels), *shape), np.nan, dtype=np.float32)
    fluid = np.zeros((mesh.num_frames, *shape), dtype=bool)
    error = GridError(mesh.channels)
    for t in range(mesh.num_frames):
        points = (mesh.positions[t].double().numpy() - grid.origin) / (grid.dx, grid.dy)
        values, types = mesh.fields[t].double().numpy(), mesh.node_types[t].numpy()
        triangles = mesh.triangles[t].numpy()
        corners = types[triangles]
        disabled, walls = corners == DISABLED, corners == WALL
        triangles = triangles[~disabled.any(1) & ~walls.all(1)]
        covered = cover(points[triangles], shape)
        nodes, index = triangles[covered.triangle], (covered.rows, covered.columns)
        fluid[t][index] = True
        states[t][:, *index] = (values[:, nodes] * covered.weights).sum(-1)
        error.add(points[types == 0], values[:, types == 0], states[t], fluid[t])
    x, y = grid.coordinates(torch.float64)
    left, right, bottom, top = mesh.bounds
    inside = (x >= left) & (x <= right) & (y >= bottom) & (y <= top)
    known = torch.from_numpy(fluid)
    finite = torch.from_numpy(states).isfinite().all(1)
    return Trajectory(
        name=mesh.name,
        states=torch.from_numpy(states),
        time=torch.arange(mesh.num_frames, dtype=torch.float64),
        spec=FieldSpec(channels=mesh.channels, units=("unknown",) * len(mesh.channels), grid=grid),
        body=~known & inside,
        valid=(finite | ~known) & (known | inside),
        source=mesh.source,
        local={"rasterised": {"method": "barycentric, each frame's triangles"} | error.report()},
    )


def recognise(path: Path) -> bool:
    return next(_find_folders(path), None) is not None


def open_recordings(
    path: Path, hints: Hints = Hints(), *, box: Box | None = None, splits: str | None = None
) -> Recordings:
    """Open the simulations under a root, kind, geometry or trajectory folder, on uniform grids.

    ``box`` is the left, right, bottom and top of the grid; default: the box of each mesh over all
    its frames. ``splits`` is the folder of the publishers' lists; default: ``Splits`` below or
    beside the root.
    """
    path = Path(path).absolute()
    check_channels(path, hints, CHANNELS)
    folders = {"_".join(folder.parts[-3:]): folder for folder in _find_folders(path)}
    if not folders:
        raise SourceError(
            f"{path}: no KIND/GEOMETRY/TRAJECTORY/sim.npz with triangles.npy; give an EAGLE "
            f"folder, or {download_command(path)}"
        )
    return Recordings(
        kind="eagle",
        path=path,
        names=tuple(folders),
        load=lambda name: rasterise(read_mesh(folders[name]), hints.shape or SHAPE, box),
        published_split=lambda: published_split(path, tuple(folders), splits),
        notes=(
            f"meshes are rasterised to {' x '.join(map(str, hints.shape or SHAPE))} points when a "
            "trajectory is loaded; its local representation states the interpolation error",
            "scores on rasterised fields do not compare with those published for the meshes",
        ),
    )


def download_command(path: Path) -> str:
    """Where the data are."""
    return (
        "download datasets.liris.cnrs.fr/eagle-version1 and unpack it as .../Spl/20/2/sim.npz and "
        "triangles.npy"
    )


def read_mesh(folder: Path) -> MeshTrajectory:
    """Read one simulation as stored, in float32 and int32."""
    folder = Path(folder)
    path = folder / "sim.npz"
    wanted = ("pointcloud", *CHANNELS.values(), "mask")
    with open_archive(path) as archive:
        require_keys(path, wanted, archive.files)
        stored = {key: archive[key] for key in wanted}
    points = stored["pointcloud"]
    if points.ndim != 3 or points.shape[2] != 2 or not points.size:
        raise SourceError(f"{path}: expected pointcloud of shape (t, n, 2), found {points.shape}")
    t, n, _ = points.shape
    if stored["mask"].shape == (t, n, 1):
        stored["mask"] = stored["mask"][..., 0]
    for key, array in stored.items():
        shape = (t, n, 2) if key == "pointcloud" else (t, n)
        if array.shape != shape or array.dtype.kind not in "fiu":
            raise SourceError(
                f"{path}: expected numbers of shape {shape} as {key!r}, as in pointcloud, found "
                f"{array.dtype} of shape {array.shape}"
            )
        if key in ("pointcloud", "mask") and not np.isfinite(array).all():
            raise SourceError(f"{path}: {key} has values that are not finite")
    if (stored["mask"] == DISABLED).all():
        raise SourceError(f"{path}: all nodes are disabled, so no point is fluid")
    fields = np.stack([stored[key].astype(np.float32) for key in CHANNELS.values()], 1)
    return MeshTrajectory(
        name="_".join(folder.absolute().parts[-3:]),
        channels=tuple(CHANNELS),
        positions=torch.from_numpy(points.astype(np.float32)),
        triangles=torch.from_numpy(_read_triangles(folder / "triangles.npy", t, n)),
        fields=torch.from_numpy(fields),
        node_types=torch.from_numpy(stored["mask"].astype(np.int32)),
        source={
            "title": "EAGLE",
            "url": "https://datasets.liris.cnrs.fr/eagle-version1",
            "kind": "simulated",
            "file": str(folder),
            "frames": t,
            "frame_interval": None,
            "nodes": n,
        },
    )


def published_split(path: Path, names: Sequence[str], lists: str | None = None) -> Split:
    """Return the publishers' split, from the folder with ``{train,valid,test}.txt``.

    Every line names a simulation, such as ``Spl/20/2``. Of a folder of one kind, its lines count;
    all of them must be among ``names``.
    """
    root = path.parent if path.name in KINDS else path
    beside = (root / "Splits", root.parent / "Splits")
    folder = Path(lists) if lists else next(filter(Path.is_dir, beside), beside[0])
    index = {name: number for number, name in enumerate(names)}
    kinds = {name.partition("_")[0] for name in names}
    splits: dict[str, tuple[Segment, ...]] = {}
    for split in ("train", "valid", "test"):
        list_path = folder / f"{split}.txt"
        try:
            lines = list_path.read_text(encoding="utf-8").split()
        except (OSError, ValueError) as error:
            raise SourceError(
                f"{list_path}: expected a list of simulations ({error}); get the lists from "
                "github.com/eagle-dataset/EagleMeshTransformer (Splits), or name their folder: "
                "--set data.options.splits=FOLDER"
            ) from error
        listed = [line.replace("/", "_") for line in lines]
        listed = [name if name in index else name.replace("Stp_", "Cre_") for name in listed]
        listed = [name for name in listed if path == root or name.partition("_")[0] in kinds]
        if absent := [name for name in listed if name not in index]:
            raise SourceError(
                f"{list_path}: {len(absent)} of {len(listed)} simulations are missing, such as "
                f"{absent[0]!r}; {path} holds {len(index)}: unpack the complete archives of "
                "datasets.liris.cnrs.fr/eagle-version1, and name their common folder"
            )
        splits[split] = tuple(Segment(index[name]) for name in listed)
    return Split(splits["train"], splits["valid"], (), splits["test"])


def _find_folders(path: Path) -> Iterator[Path]:
    """Yield the folders of simulations, by kind, geometry and trajectory."""
    kinds = [path] if path.name in KINDS else [path / kind for kind in KINDS]
    geometries = [path, *(geometry for kind in kinds for geometry in _numbered(kind))]
    for folder in (path, *(folder for geometry in geometries for folder in _numbered(geometry))):
        if (folder / "sim.npz").is_file() and (folder / "triangles.npy").is_file():
            yield folder


def _numbered(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = [entry for entry in folder.iterdir() if entry.name.isdecimal() and entry.is_dir()]
    return sorted(found, key=lambda entry: int(entry.name))


def _read_triangles(path: Path, t: int, n: int) -> np.ndarray:
    stored = open_array(path)
    if stored.ndim != 3 or stored.shape[::2] != (t, 3) or stored.dtype.kind not in "iu":
        raise SourceError(
            f"{path}: expected whole numbers of shape ({t}, f, 3), as in sim.npz, found "
            f"{stored.dtype} of shape {stored.shape}"
        )
    if stored.min(initial=0) < 0 or stored.max(initial=0) >= n:
        raise SourceError(
            f"{path}: it names nodes {stored.min()} to {stored.max()}, but there are {n} nodes"
        )
    return stored.astype(np.int32)
