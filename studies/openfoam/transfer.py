"""Train on the wake of one solver, evaluate on the frames of the other, and the other way round.

Each recording is split in time: the first 60 % train, the next 20 % select the weights (and rank
and ridge of DMD), the last 20 % test. Both solvers give a periodic wake, so the test frames of the
training solver repeat its training frames up to their phase; the frames of the other solver have
another period and shape.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pibert
from pibert.data.format import Reader
from pibert.evaluation.vibration import vibration
from pibert.fields import Trajectory
from pibert.inference.stream import RolloutDiverged

SHARES = {"data.split": "time", "data.shares.train": 0.6, "data.shares.valid": 0.2}
EPOCHS, BATCH, NOISE = 40, 8, 0.05
"""Of the trained models; the noise on their input is in standard deviations of the fields."""
MODELS: dict[str, dict[str, Any]] = {
    "persistence": {},
    "dmd": {},
    "pibert-mr": {"training.batch_size": BATCH},
    "pibert-mr, noise": {"training.batch_size": BATCH, "rollout.noise": NOISE},
}
STEPS = 40
"""Frames of the rollouts that are compared with the truth."""
FREE = 250
"""Frames of the rollout whose Strouhal number is measured."""
PROBE = (3.0, 0.5)
"""x and y of the point whose v gives the Strouhal number, in D."""


def measure(files: Mapping[str, Path], out: Path) -> list[dict[str, Any]]:
    """Return one row for each training solver, model and test solver."""
    flows = {solver: Reader(file)[0] for solver, file in files.items()}
    rows = []
    for (source, file), name in itertools.product(files.items(), MODELS):
        model = _train(file, name, out / f"{source}-{name.replace(', ', '-')}")
        for target, flow in flows.items():
            row = {"trained_on": source, "tested_on": target, "model": name}
            rows.append(row | score(model, flow))
            print(rows[-1], flush=True)
    return rows


def _train(file: Path, name: str, out: Path) -> Any:
    model = name.partition(",")[0]
    is_trained = model == "pibert-mr"
    return pibert.fit(
        file,
        model,
        preset="small" if is_trained else None,
        epochs=EPOCHS if is_trained else None,
        out=out,
        device="cpu",
        settings=SHARES | MODELS[name],
        quiet=True,
    )


def score(model: Any, flow: Trajectory) -> dict[str, Any]:
    """Return errors on the last fifth of a flow, and the Strouhal number of a long rollout.

    The values of a rollout that diverges are None.
    """
    states, known = flow.read(slice(None)).float(), flow.known(slice(0, 1))[0]
    test = torch.where(known, states[round(0.8 * len(states)) :], 0.0)
    given = {"parameters": dict(flow.parameters), "mask": known}
    nexts = _rollout(model, test[:-1], 1, given)
    starts = len(test) - STEPS
    ahead = _rollout(model, test[:starts], STEPS, given)
    truth = torch.stack([test[k + 1 : k + 1 + STEPS] for k in range(starts)])
    free = _rollout(model, test[:1], FREE, given)
    return {
        "next_frame": _nmse(nexts, test[1:, None], known),
        "rollout": _nmse(ahead, truth, known),
        "strouhal": None if free is None else strouhal(free[0], flow),
        "diverged": free is None,
        "true_strouhal": strouhal(states, flow),
    }


def _rollout(
    model: Any, frames: torch.Tensor, steps: int, given: dict[str, Any]
) -> torch.Tensor | None:
    """Return (start, steps, channel, y, x); None if a rollout diverges."""
    count = len(frames)
    mask = given["mask"].expand(count, *given["mask"].shape)
    parameters = {name: [value] * count for name, value in given["parameters"].items()}
    try:
        return torch.as_tensor(model.rollout(frames[:, None], steps, parameters, mask))
    except RolloutDiverged:
        return None


def _nmse(found: torch.Tensor | None, true: torch.Tensor, known: torch.Tensor) -> float | None:
    """Return the squared error over the squared values, of u and v together."""
    if found is None:
        return None
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
