"""The paper's full schedule of its base model on one device, and where the time goes."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pibert import config
from pibert.data.dataset import Window
from pibert.experiments.experiment import Experiment
from pibert.experiments.flows import prepare
from pibert.experiments.run import PRETRAINING, run
from pibert.inference import load
from pibert.training.engine import Reporter
from studies import consistency, labels
from studies.labels import DEVICE


def measure(experiment: Experiment, out: Path, reporter: Reporter) -> dict[str, Any]:
    """Pretraining and training end to end, from data on the disk to the best weights."""
    experiment = replace(experiment, hardware=replace(experiment.hardware, profile=True))
    flows = prepare(experiment.data, device=DEVICE)  # simulated before the clock starts
    pairs = len(flows.samples("train", Window()))
    start = time.perf_counter()
    finished = run(experiment, out / "run", reporter=reporter)
    seconds = time.perf_counter() - start
    stages = {
        "pretraining": _summary(out / "run" / PRETRAINING),
        "training": _summary(out / "run"),
    }
    return {
        "experiment": config.as_plain(experiment),
        "pairs": pairs,
        "total_seconds": seconds,
        "stages": stages,
        "best_epoch": finished.best_epoch,
        "valid": dict(finished.metrics),
        "test": labels.score(load(finished.folder), flows),
        "consistency": consistency.score(experiment, flows, out / "run" / PRETRAINING),
    }


def _summary(folder: Path) -> dict[str, Any]:
    """Epochs, seconds, and the seconds of each part of the work."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    parts: dict[str, float] = {}
    for line in epochs:
        for name, share in line.get("timing", {}).items():
            parts[name] = parts.get(name, 0.0) + share * line["seconds"]
    return {
        "epochs": len(epochs),
        "steps": epochs[-1]["step"],
        "seconds": sum(line["seconds"] for line in epochs),
        "parts": parts,
    }
