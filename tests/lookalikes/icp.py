"""Small files laid out like the ICP plasma data: image and spectrum pairs, and runs of fields."""

from pathlib import Path

import h5py
import numpy as np

SPECIES = ("Ar", "O2p", "F")


def write_pair(folder: Path, *, seed: int = 0, column: bool = False) -> None:
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    np.save(folder / "image.npy", rng.random((96, 128, 3), dtype=np.float32))
    spectrum = rng.random(3072, dtype=np.float32)
    np.save(folder / "spectra.npy", spectrum[:, None] if column else spectrum)


def write_pairs(root: Path, per_setpoint: int = 4, setpoints: int = 5) -> np.ndarray:
    """Write folders in the publishers' layout; return their settings in alphabetical order."""
    settings = np.random.default_rng(1).random((setpoints, 7)).astype(np.float32)
    for sample in range(per_setpoint * setpoints):
        write_pair(root / f"train_paired{sample:06d}", seed=sample, column=sample % 2 == 1)
    return settings.repeat(per_setpoint, 0)


def write_run(
    path: Path, frames: int = 3, columns: int = 9, rows: int = 6, *, seed: int = 0
) -> dict[str, np.ndarray]:
    """One run as the converter of the paper's authors expects it: (1, t, n) at scattered nodes."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(0.0, 0.4, columns), np.linspace(0.0, 0.1, rows))
    inner = np.zeros((rows, columns))
    inner[1:-1, 1:-1] = 1.0
    x = x + 0.01 * inner * rng.uniform(-1, 1, x.shape)
    y = y + 0.004 * inner * rng.uniform(-1, 1, y.shape)
    nodes = np.stack([x.ravel(), y.ravel()], 1)
    t = np.arange(frames)[:, None]
    arrays = {
        "conditions": np.arange(7.0) + seed,
        "node/node_pos": nodes,
        "state/t": 0.5 * np.arange(frames),
        "state/ne": (1 + nodes[:, 0] + t)[None],
        "state/te": (2 - nodes[:, 1] + t)[None],
        "state/v": (3 * nodes[:, 0] - nodes[:, 1] + 0 * t)[None],
        "state/T": (300 + 100 * nodes[:, 0] - 50 * nodes[:, 1] + t)[None],
    }
    for number, name in enumerate(SPECIES):
        arrays[f"state/num_of_density/{name}"] = (number + nodes[:, 0] * t)[None]
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for key, array in arrays.items():
            file[key] = array
    return arrays
