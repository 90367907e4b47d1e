"""Small folders in CFDBench's layout: float64 fields on 64 x 64 points and a flat case.json.

``python -m tests.lookalikes.cfdbench FOLDER`` writes ten cases of every subset of every problem.
"""

import json
import sys
from collections.abc import Sequence
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


SUBSETS = ("bc", "geo", "prop")


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


def write_problem(
    root: Path, problem: str, *, subsets: Sequence[str] = SUBSETS, frames: int = 5
) -> None:
    """Ten cases in each subset: waves along x, whose amplitude is the speed of the case."""
    own = CASES[problem]
    speed = next(key for key in own if key.startswith("vel"))
    t, y, x = np.indices((frames, 64, 64)) / 64
    for subset in subsets:
        for number in range(10):
            case = own | {"viscosity": own["viscosity"] * (1 + number)}
            if subset == "bc":
                case |= {speed: own[speed] * (1 + 0.1 * number)}
            if subset == "geo":  # the size of the flow differs
                size = "width" if "width" in own else "x_max"
                case |= {size: own[size] * (1 + 0.1 * number)}
            phase = (6 + number) * x - 20 * t
            u, v = 1 + 0.3 * np.sin(phase) * np.cos(6 * y), 0.3 * np.cos(phase) * np.sin(6 * y)
            folder = root / problem / subset / f"case{number:04d}"
            write_case(folder, case, fields=case[speed] * np.stack([u, v]))


def write_all(root: Path) -> None:
    """Two cases in every subset of every problem; one of them has a single frame."""
    for problem, case in CASES.items():
        for seed, subset in enumerate(SUBSETS):
            write_case(root / problem / subset / "case0000", case, 3, seed=seed)
            write_case(root / problem / subset / "case0001", case, 1, seed=seed + 10)


if __name__ == "__main__":
    for name in ("cavity", "tube", "cylinder"):
        write_problem(Path(sys.argv[1]), name)
