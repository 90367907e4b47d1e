"""Controls of APEBench's Kolmogorov flow: what predictors that learn nothing score.

    python -m studies.kolmogorov_controls STATES.npz --samples 10

``STATES.npz`` has APEBench's test states as ``data`` (sample, time, channel, y, x), which are minus
the vorticity. The true flow is simulated from them for 100 frames. Compared with it are the first
frame, the first frame times the best factor for each lead time (fitted to the test flows), and the
same solver on coarser grids.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pibert.physics.spectral import on_grid
from pibert.solver.presets import find_preset
from pibert.solver.vorticity import Kolmogorov

FRAMES = 100


def simulate(start: Tensor, recipe: Kolmogorov) -> Tensor:
    """Return the frames from states (sample, 1, y, x) as (sample, frame, 1, y, x)."""
    frames = [start]
    for _ in range(FRAMES):
        frames.append(recipe.advance(frames[-1], {}))
    return torch.stack(frames, 1)


def mean_nrmse(prediction: Tensor, truth: Tensor) -> float:
    """Return the geometric mean over lead times of the mean nRMSE over samples."""
    error = (prediction - truth)[:, 1:].flatten(2).norm(dim=2)
    nrmse = error / truth[:, 1:].flatten(2).norm(dim=2)
    return float(nrmse.mean(0).log().mean().exp())


def controls(start: Tensor) -> dict[str, float]:
    """Return the score of every control, given vorticity (sample, 1, y, x)."""
    recipe = find_preset("kolmogorov", "apebench")
    assert isinstance(recipe, Kolmogorov)
    points = start.shape[-1]
    truth = simulate(start, replace(recipe, shape=(points, points)))
    first = truth[:, :1].expand_as(truth)
    factor = (first * truth).sum((0, 2, 3, 4)) / first.square().sum((0, 2, 3, 4))
    scores = {
        "persistence": mean_nrmse(first, truth),
        "scaled persistence": mean_nrmse(first * factor[:, None, None, None], truth),
    }
    for coarse in (64, 80):
        frames = simulate(on_grid(start, (coarse,) * 2), replace(recipe, shape=(coarse,) * 2))
        scores[f"solver on {coarse} x {coarse}"] = mean_nrmse(on_grid(frames, (points,) * 2), truth)
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("states", type=Path, help="Read the first states from this file.")
    parser.add_argument("--samples", type=int, help="Use the first N states. Default: all.")
    given = parser.parse_args()
    if not given.states.is_file():
        parser.error(f"{given.states}: there is no such file")
    with np.load(given.states) as file:
        states = -file["data"][: given.samples, 0].astype(np.float64)
    for name, score in controls(torch.from_numpy(states)).items():
        print(f"{name:20} {score:.4f}")


if __name__ == "__main__":
    main()
