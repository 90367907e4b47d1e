"""Train on the wake of one solver, evaluate on the frames of the other, and the other way round.

Each recording is split in time: the first 60 % train, the next 20 % select the weights (and rank
and ridge of DMD), the last 20 % test. Both solvers give a periodic wake, so the test frames of the
training solver repeat its training frames up to their phase; the frames of the other solver have
another period and shape.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pibert
from pibert.data.format import Reader
from pibert.evaluation.vibration import vibration
from pibert.fields import Trajectory

SHARES = {"data.split": "time", "data.shares.train": 0.6, "data.shares.valid": 0.2}
EPOCHS = 30
SEEDS = (0, 1)
STEPS = 40
"""Frames of the rollouts that are compared with the truth."""
FREE = 250
"""Frames of the rollout whose Strouhal number is measured."""
PROBE = (3.0, 0.5)
"""x and y of the point whose v gives the Strouhal number, in D."""


def measure(files: Mapping[str, Path], out: Path) -> list[dict[str, Any]]:
    """Return one row for each training solver, model, seed and test solver."""
    flows = {solver: Reader(file)[0] for solver, file in files.items()}
    rows = []
    for source, file in files.items():
        for name in ("persistence", "dmd", "pibert-mr"):
            for seed in SEEDS if name == "pibert-mr" else SEEDS[:1]:
                model = _train(file, name, seed, out / f"{source}-{name}-{seed}")
                for target, flow in flows.items():
                    row = {"trained_on": source, "tested_on": target, "model": name, "seed": seed}
                    rows.append(row | score(model, flow))
                    print(rows[-1], flush=True)
    return rows


def _train(file: Path, name: str, seed: int, out: Path) -> Any:
    trained = name == "pibert-mr"
    return pibert.fit(
        file,
        name,
        preset="small" if trained else None,
        epochs=EPOCHS if trained else None,
        seed=seed,
        out=out,
        device="cpu",
        settings=SHARES,
        quiet=True,
    )


def score(model: Any, flow: Trajectory) -> dict[str, Any]:
    """Return errors on the last fifth of a flow, and the Strouhal number of a long rollout."""
    states, known = flow.read(slice(None)).float(), flow.known(slice(0, 1))[0]
    test = torch.where(known, states[round(0.8 * len(states)) :], 0.0)
    given = {"parameters": dict(flow.parameters), "mask": known}
    nexts = _rollout(model, test[:-1], 1, given)[:, 0]
    starts = len(test) - STEPS
    ahead = _rollout(model, test[:starts], STEPS, given)
    truth = torch.stack([test[k + 1 : k + 1 + STEPS] for k in range(starts)])
    free = _rollout(model, test[:1], FREE, given)[0]
    return {
        "next_frame": _nmse(nexts, test[1:], known),
        "rollout": _nmse(ahead, truth, known),
        "last_step": _nmse(ahead[:, -1], truth[:, -1], known),
        "strouhal": strouhal(free, flow),
        "true_strouhal": strouhal(states, flow),
    }


def _rollout(model: Any, frames: torch.Tensor, steps: int, given: dict[str, Any]) -> torch.Tensor:
    count = len(frames)
    mask = given["mask"].expand(count, *given["mask"].shape)
    parameters = {name: [value] * count for name, value in given["parameters"].items()}
    found = model.rollout(frames[:, None], steps, parameters, mask)
    return torch.as_tensor(found)


def _nmse(found: torch.Tensor, true: torch.Tensor, known: torch.Tensor) -> float:
    """Return the squared error over the squared values, of u and v together."""
    error = torch.where(known, found - true, 0.0)[..., :2, :, :]
    return float(error.square().sum() / torch.where(known, true, 0.0)[..., :2, :, :].square().sum())


def strouhal(frames: torch.Tensor, flow: Trajectory) -> float | None:
    """Return the frequency of v at the probe; None if the wake does not oscillate."""
    grid = flow.spec.grid
    column, row = (
        round((at - start) / step)
        for at, start, step in zip(PROBE, grid.origin, (grid.dx, grid.dy), strict=True)
    )
    v = frames[:, 1, row, column].double().numpy()
    if not np.isfinite(v).all():
        return None
    found = vibration(v, float(flow.time[1] - flow.time[0]) * np.arange(len(v)))
    return found.frequency if found.amplitude > 0.02 else None
