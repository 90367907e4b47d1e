"""Masked physics prediction against interpolation, on fields that training has not seen.

The same points are hidden from all; what each method puts there is compared with what was there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pibert import config
from pibert.data.dataset import Samples, Window
from pibert.evaluation.filling import MODEL, FillingError, fill_biharmonic, filling_errors
from pibert.experiments.experiment import Experiment
from pibert.experiments.flows import Flows, prepare
from pibert.experiments.run import run
from pibert.predictor import load
from pibert.pretraining.masks import Masking, choose
from pibert.report.figures import write_figure
from pibert.training.engine import Reporter

MASKS = {
    "8 x 8 blocks": Masking(kinds=("blocks",), block=8),
    "single points": Masking(kinds=("pixels",)),
}
MOST = 200
"""Fields judged, evenly spread over the test part; interpolation takes its time."""


def measure(
    experiment: Experiment, out: Path, reporter: Reporter, most: int = MOST
) -> dict[str, Any]:
    """Pretrain, then fill hidden points of test fields."""
    finished = run(experiment, out / "run", stage="pretrain", reporter=reporter)
    predictor = load(finished.folder)
    flows = prepare(experiment.data)
    window = Window(history=predictor.history)
    samples = flows.samples("test", window)
    truth = _truth(experiment, flows, window)
    rows = []
    for name, masking in MASKS.items():
        errors = _errors(predictor.model, samples, truth, masking, most)
        for against, found in errors.items():
            rows += [
                {
                    "mask": name,
                    "against": against,
                    "method": method,
                    "rms": error.standardised,
                    "physical": list(error.physical),
                }
                for method, error in found.items()
            ]
    _draw(predictor.model, samples, out / "filling.png")
    return {
        "experiment": config.as_plain(experiment),
        "units": list(predictor.spec.units),
        "fields": min(most, len(samples)),
        "epochs": finished.fitted.epochs,
        "best_epoch": finished.best_epoch,
        "rows": rows,
    }


def _truth(experiment: Experiment, flows: Flows, window: Window) -> Samples | None:
    """The test fields before they were measured, where the measurement is simulated."""
    if experiment.data.measurement is None:
        return None
    clean = prepare(replace(experiment.data, measurement=None))
    return replace(clean, normalizer=flows.normalizer, spec=flows.spec).samples("test", window)


def _errors(
    model: torch.nn.Module, samples: Samples, truth: Samples | None, masking: Masking, most: int
) -> dict[str, dict[str, FillingError]]:
    """Errors by what they are measured against, and by method."""
    totals: dict[str, dict[str, FillingError]] = {}
    for numbers in _spread(len(samples), most):
        batch = samples.batch(numbers).reseeded(0, 0)
        hidden = choose(batch, masking, samples.spec, samples.normalizer).points
        targets: Mapping[str, torch.Tensor | None] = {"the measurement": None}
        if truth is not None:
            targets = {**targets, "the flow": truth.batch(numbers).x}
        for against, target in targets.items():
            found = filling_errors(
                model, batch, hidden, samples.spec, samples.normalizer, truth=target
            )
            so_far = totals.get(against)
            totals[against] = (
                found if so_far is None else {name: so_far[name] + found[name] for name in found}
            )
    return totals


def _spread(total: int, most: int, size: int = 50) -> Iterator[list[int]]:
    count = min(most, total)
    numbers = [index * total // count for index in range(count)]
    for start in range(0, count, size):
        yield numbers[start : start + size]


@torch.no_grad()
def _draw(model: Any, samples: Samples, path: Path) -> None:
    """One test field, halfway through: as it was, with blocks hidden, and filled by two methods."""
    batch = samples.batch([len(samples) // 2]).reseeded(0, 0)
    masking = MASKS["8 x 8 blocks"]
    hidden = choose(batch, masking, samples.spec, samples.normalizer).points
    left = batch.mask & ~hidden
    seen = torch.where(left[:, None], batch.x, 0.0)
    plate = fill_biharmonic(seen, left, samples.spec.grid)
    learned = torch.where(
        left[:, None], seen, model.eval().reconstruct(seen, batch.parameters, left)
    )
    panels = {
        "as it was": (batch.x, batch.mask),
        "hidden": (batch.x, left),
        "biharmonic": (plate, batch.mask),
        "model": (learned, batch.mask),
    }
    names, units = samples.spec.channels, samples.spec.units
    rows, columns = samples.spec.grid.shape
    figure = Figure(
        figsize=(3.0 * len(panels), (3.2 * rows / columns + 0.35) * len(names)),
        dpi=120,
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(names), len(panels), squeeze=False)
    shown = samples.normalizer.invert(batch.x[:, -len(names) :])[0]
    for row, name in enumerate(names):
        known = shown[row][batch.mask[0]]
        limits = {"vmin": known.min().item(), "vmax": known.max().item()}
        for column, (title, (field, here)) in enumerate(panels.items()):
            values = samples.normalizer.invert(field[:, -len(names) :])[0, row]
            image = axes[row, column].imshow(
                torch.where(here[0], values, torch.nan), origin="lower", cmap="viridis", **limits
            )
            image.cmap.set_bad("0.8")
            axes[row, column].set(xticks=[], yticks=[], title=title if row == 0 else "")
        figure.colorbar(image, ax=list(axes[row]), label=f"{name} [{units[row]}]", shrink=0.85)
    write_figure(figure, path)


def best_classical(rows: list[dict[str, Any]], mask: str, against: str) -> float:
    """The least error of an interpolation."""
    chosen = [
        row["rms"]
        for row in rows
        if row["mask"] == mask and row["against"] == against and row["method"] != MODEL
    ]
    return min(chosen)
