"""Does pretraining help where labels are few? Fine-tuning with and without it (the paper's RQ3).

All training trajectories are there for pretraining; a share of them has labels. Both ways take
the same number of training steps at every share, the validation trajectories choose the epoch, and
the test trajectories are scored once.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pibert import config
from pibert.data.dataset import BatchOrder, Samples, Window
from pibert.data.resident import ResidentLoader
from pibert.experiments.experiment import Experiment
from pibert.experiments.flows import Flows, prepare
from pibert.experiments.run import run
from pibert.inference import Predictor, load
from pibert.training.engine import Reporter

SHARES = (1.0, 0.25, 0.1)
SEEDS = (0, 1, 2)
STEPS = 400
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def measure(
    experiment: Experiment,
    out: Path,
    reporter: Reporter,
    *,
    steps: int,
    shares: Sequence[float] = SHARES,
    seeds: Sequence[int] = SEEDS,
) -> dict[str, Any]:
    """Pretrain once for each seed; train at every share from there and from scratch."""
    rows: list[dict[str, Any]] = []
    flows = prepare(experiment.data, device=DEVICE)
    for seed in seeds:
        here = replace(experiment, seed=seed)
        folder = out / f"seed-{seed}"
        begun = run(
            here, folder / "pretraining", stage="pretrain", reporter=reporter, flows=flows
        ).folder
        for share in shares:
            for start in (None, str(begun)):
                name = f"{share:g}-{'scratch' if start is None else 'pretrained'}"
                plan = replace(here, pretraining=None, start=start)
                plan = _equal_steps(plan, flows, share, steps)
                finished = run(plan, folder / name, reporter=reporter, flows=flows)
                row = {
                    "seed": seed,
                    "share": share,
                    "pretrained": start is not None,
                    "best_epoch": finished.best_epoch,
                    **score(load(finished.folder), flows),
                }
                rows.append(row)
                reporter.say(f"{name}, seed {seed}: nmse {row['nmse']:.4g}")
    return {"experiment": config.as_plain(experiment), "steps": steps, "rows": rows}


def _equal_steps(experiment: Experiment, flows: Flows, share: float, steps: int) -> Experiment:
    """Return the epochs that give about the same number of steps at every share."""
    data = replace(experiment.data, labelled=share)
    samples = len(flows.samples(flows.labelled(share), Window()))
    per_epoch = math.ceil(samples / experiment.training.batch_size)
    epochs = max(1, round(steps / per_epoch))
    plan = replace(
        experiment.training,
        epochs=epochs,
        warmup_epochs=epochs * 0.05,
        validate_every=max(1, epochs // 20),
    )
    return replace(experiment, data=data, training=plan)


@torch.no_grad()
def score(predictor: Predictor, flows: Flows) -> dict[str, float]:
    """Error of the next frame over all test pairs, in standardised units, and persistence's."""
    predictor = predictor.to(DEVICE)
    samples = flows.samples("test", Window(history=predictor.history))
    sums = torch.zeros(3, dtype=torch.float64, device=DEVICE)
    for batch in _batches(samples, DEVICE):
        known = batch.target_mask.unsqueeze(2)
        wrong = predictor.model(batch.x, batch.parameters, batch.mask).unsqueeze(1) - batch.y
        still = batch.x[:, None, -batch.y.shape[2] :] - batch.y
        for place, value in enumerate((wrong, still, batch.y)):
            sums[place] += torch.where(known, value, 0.0).double().square().sum()
    model, persistence, energy = sums.tolist()
    return {"nmse": model / energy, "persistence_nmse": persistence / energy}


def _batches(samples: Samples, device: str) -> ResidentLoader:
    return ResidentLoader(samples, BatchOrder(len(samples), 128, seed=0, shuffle=False), device)
