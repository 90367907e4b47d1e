"""Small folders in CFDBench's layout: float64 fields on 64 x 64 points and a flat case.json."""

import json
from pathlib import Path
from typing import Any

import numpy as np

CASES: dict[str, dict[str, Any]] = {
    "cavity": {"vel_top": 10, "density": 2.0, "viscosity": 0.01, "height": 0.02, "width": 0.01},
    "tube": {"vel_in": 0.5, "density": 100.0, "viscosity": 0.1, "height": 0.1, "width": 1.0},
    # The example of the publishers' documentation.
    "dam": {
        "case_no": 0.0,
        "velocity": 0.05,
        "density": 100.0,
        "viscosity": 0.1,
        "barrier_height": 0.1,
        "barrier_width": 0.05,
        "height": 0.4,
        "width": 1.5,
        "dx": 0.0234375,
        "dy": 0.00625,
    },
    "cylinder": {
        "vel_in": 1.0,
        "density": 10.0,
        "viscosity": 0.001,
        "radius": 0.01,
        "x_min": -0.06,
        "x_max": 0.16,
        "y_min": -0.05,
        "y_max": 0.07,
        "rotated": False,
    },
}


def write_case(
    folder: Path,
    case: dict[str, Any],
    frames: int = 6,
    *,
    seed: int = 0,
    fields: np.ndarray | None = None,
) -> np.ndarray:
    """Write one case and return its fields (2, t, y, x)."""
    if fields is None:
        fields = np.random.default_rng(seed).normal(size=(2, frames, 64, 64))
    folder.mkdir(parents=True)
    np.save(folder / "u.npy", fields[0])
    np.save(folder / "v.npy", fields[1])
    (folder / "case.json").write_text(json.dumps(case))
    return fields


def write_all(root: Path) -> None:
    """Two cases in every subset of every problem; one of them has a single frame."""
    for problem, case in CASES.items():
        for seed, subset in enumerate(("bc", "geo", "prop")):
            write_case(root / problem / subset / "case0000", case, 3, seed=seed)
            write_case(root / problem / subset / "case0001", case, 1, seed=seed + 10)
