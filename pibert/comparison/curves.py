"""Learning curves of all runs in one table: a row for every epoch, pretraining first.

    data, model, seed, stage, epoch, step, samples, learning_rate, train_loss, valid_loss,
    valid_error, seconds, elapsed, best

``samples`` and ``elapsed`` (seconds) count from the beginning of the run, pretraining included.
Losses are of the objective; ``valid_error`` is the mean squared error of the next frame on the
validation part, standardised. Empty cells were not measured. ``best`` is 1 for an epoch that was
the best so far.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pibert.comparison.plan import Comparison, Job
from pibert.experiments.run import PRETRAINING
from pibert.training.journal import FILE, read_log

COLUMNS = (
    *("data", "model", "seed", "stage", "epoch", "step", "samples", "learning_rate"),
    *("train_loss", "valid_loss", "valid_error", "seconds", "elapsed", "best"),
)
STAGES = {"pretraining": f"{PRETRAINING}/{FILE}", "training": FILE}
"""Where the log of each lies in the folder of a run."""


def curves_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The epochs of a run, in the order in which they were trained."""
    samples: int | None = 0
    elapsed = 0.0
    for stage, name in STAGES.items():
        lines = read_log(folder / name) if (folder / name).exists() else []
        start: dict[str, Any] = next((own for own in lines if own.get("kind") == "start"), {})
        size = start.get("samples_per_epoch")
        for line in (own for own in lines if own.get("kind") == "epoch"):
            samples = None if samples is None or size is None else samples + int(size)
            elapsed += line.get("seconds") or 0.0
            train, valid = (line.get(part) or {} for part in ("train", "valid"))
            yield {
                "stage": stage,
                **{key: line.get(key) for key in ("epoch", "step", "learning_rate", "seconds")},
                "samples": samples,
                "train_loss": train.get("loss"),
                "valid_loss": valid.get("loss"),
                "valid_error": valid.get("reconstruction") if stage == "training" else None,
                "elapsed": round(elapsed, 3),
                "best": int(bool(line.get("best"))),
            }


def as_csv(comparison: Comparison, out: Path) -> str:
    """The curves of all runs of a comparison that have a log."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for job in comparison.jobs():
        name = {"data": job.data, "model": job.entrant, "seed": job.seed}
        writer.writerows(name | epoch for epoch in curves_of(run_folder(comparison, job, out)))
    return text.getvalue()


def run_folder(comparison: Comparison, job: Job, out: Path) -> Path:
    """Where a run was trained: in the folder of the comparison, or elsewhere."""
    source = comparison.entrants[job.entrant].run
    return job.folder(out) if source is None else Path(source)
