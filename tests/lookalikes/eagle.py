"""Small folders in EAGLE's layout: a jittered mesh of triangles that drifts, with walls around.

``python -m tests.lookalikes.eagle FOLDER`` writes three scenes with the publishers' lists.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np


def make_mesh(
    frames: int = 8, columns: int = 12, rows: int = 12, *, seed: int = 0
) -> dict[str, np.ndarray]:
    """Arrays of ``sim.npz`` and ``triangles``: (columns - 1) (rows - 1) squares, halved."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(0.0, 4.0, columns), np.linspace(1.0, 3.0, rows))
    border = np.ones((rows, columns), bool)
    border[1:-1, 1:-1] = False
    jitter = rng.uniform(-0.3, 0.3, (2, rows, columns)) * ~border
    x, y = x + jitter[0] * 4 / (columns - 1), y + jitter[1] * 2 / (rows - 1)
    drift = 0.05 * np.arange(frames)[:, None]
    points = np.stack([x.ravel() + drift, y.ravel() - drift], -1)
    corner = (np.arange(rows - 1)[:, None] * columns + np.arange(columns - 1)).ravel()
    lower = np.stack([corner, corner + 1, corner + columns], -1)
    upper = np.stack([corner + 1, corner + columns + 1, corner + columns], -1)
    triangles = np.tile(np.concatenate([lower, upper]), (frames, 1, 1))
    t = np.arange(frames)[:, None]
    return {
        "pointcloud": points,
        "VX": 1 + 2 * points[..., 0] - 3 * points[..., 1] + t,
        "VY": points[..., 0] - t,
        "PS": np.sin(points[..., 0]) * np.cos(points[..., 1]),
        "PG": np.full(points.shape[:2], 7.0),
        "mask": np.where(border.ravel(), 6, 0)[None, :, None] * np.ones((frames, 1, 1), int),
        "triangles": triangles,
    }


def write_simulation(folder: Path, mesh: dict[str, np.ndarray] | None = None, **kind: Any) -> None:
    arrays = dict(make_mesh(**kind) if mesh is None else mesh)
    folder.mkdir(parents=True)
    np.save(folder / "triangles.npy", arrays.pop("triangles"))
    np.savez(folder / "sim.npz", **arrays)  # type: ignore[arg-type]


def write_all(root: Path) -> None:
    """Two kinds with a few geometries, and lists that split them."""
    for number, name in enumerate(("Spl/20/2", "Spl/3/1", "Spl/3/2", "Cre/7/1")):
        write_simulation(root / name, seed=number, frames=2, columns=5, rows=4)
    (root / "splits").mkdir()
    (root / "splits" / "train.txt").write_text("Spl/3/2\nSpl/20/2\n")
    (root / "splits" / "valid.txt").write_text("Spl/3/1\n")
    (root / "splits" / "test.txt").write_text("Cre/7/1\n")


def write_root(root: Path) -> None:
    """Three scenes of one kind, whose meshes differ, and lists with one each."""
    (root / "Splits").mkdir(parents=True)
    for number, split in enumerate(("train", "valid", "test"), 1):
        mesh = make_mesh(24, seed=number)
        mesh["pointcloud"] = mesh["pointcloud"] * (1 + 0.01 * number)
        mesh["PG"] = mesh["PS"] * mesh["VX"]
        write_simulation(root / "Spl" / "20" / str(number), mesh)
        (root / "Splits" / f"{split}.txt").write_text(f"Spl/20/{number}\n")


if __name__ == "__main__":
    write_root(Path(sys.argv[1]))
