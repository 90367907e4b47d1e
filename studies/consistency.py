"""Equation consistency prediction: detection of every kind of negative on unseen trajectories."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pibert import config
from pibert.data.dataset import Window
from pibert.experiments.assembly import make_negatives
from pibert.experiments.experiment import Experiment
from pibert.experiments.flows import Flows, prepare
from pibert.experiments.run import run
from pibert.inference import load
from pibert.training.engine import Reporter
from studies.consistency_metrics import score_consistency

MOST = 512
"""Windows scored, evenly spread over the test split."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def measure(
    experiment: Experiment, out: Path, reporter: Reporter, most: int = MOST
) -> dict[str, Any]:
    """Pretrain, then score the head on the test trajectories."""
    flows = prepare(experiment.data, device=DEVICE)
    finished = run(experiment, out / "run", stage="pretrain", reporter=reporter, flows=flows)
    return score(experiment, flows, finished.folder, most)


def score(experiment: Experiment, flows: Flows, folder: Path, most: int = MOST) -> dict[str, Any]:
    """Score the head of a pretrained model on the test trajectories."""
    predictor = load(folder, device=DEVICE)
    negatives = make_negatives(experiment, flows, predictor.history)
    samples = flows.samples("test", Window(history=predictor.history))
    records = score_consistency(predictor.model, samples, negatives, most=most)
    return {
        "experiment": config.as_plain(experiment),
        "trajectories": len({segment.trajectory for segment in flows.split.test}),
        "family": flows.spec.family,
        "history": predictor.history,
        "metrics": predictor.card["metrics"],
        "unavailable": negatives.unavailable,
        "rows": [asdict(record) for record in records],
    }
