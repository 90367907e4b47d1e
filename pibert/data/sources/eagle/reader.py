"""EAGLE (Janny et al., ICLR 2023): air driven by a moving source, on meshes that change in time.

    <root>/{Cre,Spl,Tri}/<geometry>/<trajectory 1 or 2>/{sim.npz, triangles.npy}

``sim.npz`` holds ``pointcloud`` (t, n, 2), the velocity ``VX``, ``VY`` and two pressures ``PS``,
``PG`` (t, n), and the type of every node, ``mask`` (t, n) or (t, n, 1); ``triangles.npy`` (t, f, 3)
the nodes of every triangle. Units, the time between frames and the governing equation are not
stated in the files; they stay unknown unless hints tell them.

A mesh is kept as a mesh (``read_mesh``), or brought to a grid (``eagle_mesh.rasterise``). An
archive cannot be mapped, so a mesh is read whole: 990 frames of 3400 nodes and 6500 triangles take
about 180 MB, and 65 MB once they are rasterised to 64 x 64. ``open_recordings`` does both when a
trajectory is loaded, because the box and the interpolation error are known only then.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

from pibert.data.sources.arrays import open_archive, open_array, require_keys
from pibert.data.sources.eagle.mesh import Box, MeshTrajectory, NodeType, rasterise
from pibert.data.sources.recordings import Hints, Recordings, SourceError, check_channels
from pibert.data.splits import Segment, Split
from pibert.fields import Trajectory

TITLE = "EAGLE (moving triangle meshes)"

KINDS = ("Cre", "Spl", "Tri", "Stp")
"""Of geometry. ``Stp`` is what older split lists call ``Cre``."""
CHANNELS = {"u": "VX", "v": "VY", "ps": "PS", "pg": "PG"}
"""Our names and the file's."""
SHAPE = (64, 64)
"""Of the grid, unless hints state another."""


def recognise(path: Path) -> bool:
    try:
        return bool(_find_folders(path, first_only=True))
    except OSError:
        return False


def open_recordings(path: Path, hints: Hints = Hints(), *, box: Box | None = None) -> Recordings:
    """The simulations under a root, kind, geometry or trajectory folder, on uniform grids.

    Args:
        path: The folder.
        hints: ``shape`` of the grid, ``dt`` and units.
        box: Left, right, bottom and top of the grid; the box of each mesh over all its frames if
            not given.
    """
    path = Path(path).absolute()
    check_channels(path, hints, CHANNELS)
    folders = {"_".join(folder.parts[-3:]): folder for folder in _find_folders(path)}
    if not folders:
        raise SourceError(
            f"{path}: expected an EAGLE folder with {'|'.join(KINDS)}/<geometry>/<trajectory>/"
            "sim.npz and triangles.npy; found none"
        )
    return Recordings(
        kind="eagle",
        path=path,
        names=tuple(folders),
        load=partial(_load, folders=folders, hints=hints, box=box),
        remarks=(
            f"meshes are rasterised to {' x '.join(map(str, hints.shape or SHAPE))} points when a "
            "trajectory is loaded; its local representation states the interpolation error",
            "scores on rasterised fields do not compare with those published for the meshes",
        ),
    )


def read_mesh(folder: Path) -> MeshTrajectory:
    """One simulation as it is stored, in float32 and int32."""
    folder = Path(folder)
    path = folder / "sim.npz"
    wanted = ("pointcloud", *CHANNELS.values(), "mask")
    with open_archive(path) as archive:
        require_keys(path, wanted, archive.files)
        stored = {key: archive[key] for key in wanted}
    points = stored["pointcloud"]
    numbers = points.dtype.kind in "fiu"
    if points.ndim != 3 or points.shape[2] != 2 or not points.size or not numbers:
        raise SourceError(
            f"{path}: expected pointcloud as numbers of shape (t, n, 2), found {points.dtype} of "
            f"shape {points.shape}"
        )
    t, n, _ = points.shape
    if stored["mask"].shape == (t, n, 1):
        stored["mask"] = stored["mask"][..., 0]
    for key in (*CHANNELS.values(), "mask"):
        if stored[key].shape != (t, n) or stored[key].dtype.kind not in "fiu":
            raise SourceError(
                f"{path}: expected numbers of shape {(t, n)} as {key!r}, to go with its "
                f"pointcloud, found {stored[key].dtype} of shape {stored[key].shape}"
            )
    if not np.isfinite(points).all():
        raise SourceError(f"{path}: pointcloud has positions that are not finite")
    if not np.isfinite(stored["mask"]).all():
        raise SourceError(f"{path}: mask has types of nodes that are not finite")
    if (stored["mask"] == NodeType.DISABLED).all():
        raise SourceError(f"{path}: all nodes are disabled, so there is nothing to see")
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


def published_split(recordings: Recordings, lists: Path) -> Split:
    """The publishers' split, from the folder with their ``train.txt``, ``valid.txt``, ``test.txt``.

    Every line names a simulation, such as ``Spl/20/2``. All of them must be among the recordings.
    """
    places = {name: index for index, name in enumerate(recordings.names)}
    parts: dict[str, tuple[Segment, ...]] = {}
    for part in ("train", "valid", "test"):
        path = Path(lists) / f"{part}.txt"
        try:
            lines = path.read_text(encoding="utf-8").split()
        except (OSError, ValueError) as error:
            raise SourceError(f"{path}: expected a list of simulations ({error})") from error
        names = [line.replace("/", "_") for line in lines]
        # Older lists say Stp where the data say Cre.
        names = [name if name in places else name.replace("Stp_", "Cre_") for name in names]
        absent = [line for line, name in zip(lines, names, strict=True) if name not in places]
        if absent:
            raise SourceError(
                f"{path}: {len(absent)} of {len(lines)} entries point nowhere, the first is "
                f"{absent[0]!r}; {recordings.path} holds {len(places)} simulations, open the root "
                "of the complete data set"
            )
        parts[part] = tuple(Segment(places[name]) for name in names)
    return Split(parts["train"], parts["valid"], (), parts["test"])


def _find_folders(path: Path, *, first_only: bool = False) -> list[Path]:
    """The folders of simulations, by kind, geometry and trajectory."""
    kinds = [path] if path.name in KINDS else [path / kind for kind in KINDS]
    found = [path] if _is_simulation(path) else _simulations(path)
    for kind in kinds:
        for geometry in sorted(_numbered(kind), key=lambda folder: int(folder.name)):
            found += _simulations(geometry)
            if found and first_only:
                return found
    return found


def _simulations(geometry: Path) -> list[Path]:
    folders = [folder for folder in _numbered(geometry) if _is_simulation(folder)]
    return sorted(folders, key=lambda folder: int(folder.name))


def _numbered(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [place for place in folder.iterdir() if place.name.isdecimal() and place.is_dir()]


def _is_simulation(folder: Path) -> bool:
    return (folder / "sim.npz").is_file() and (folder / "triangles.npy").is_file()


def _read_triangles(path: Path, t: int, n: int) -> np.ndarray:
    stored = open_array(path)
    if stored.ndim != 3 or stored.shape[::2] != (t, 3) or stored.dtype.kind not in "iu":
        raise SourceError(
            f"{path}: expected whole numbers of shape ({t}, f, 3), to go with sim.npz, found "
            f"{stored.dtype} of shape {stored.shape}"
        )
    strays = (stored < 0) | (stored >= n)
    if strays.any():
        frame = int(strays.any((1, 2)).argmax())
        raise SourceError(
            f"{path}: frame {frame} names node {stored[strays][0]}, but there are {n} nodes"
        )
    return stored.astype(np.int32)


def _load(name: str, *, folders: Mapping[str, Path], hints: Hints, box: Box | None) -> Trajectory:
    return rasterise(read_mesh(folders[name]), hints.shape or SHAPE, box)
