"""Masked physics prediction against interpolation, on fields that training has not seen.

The same points are hidden from all; what each method puts there is compared with what was there.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pibert import config
from pibert.data.dataset import Samples, Window
from pibert.experiments.experiment import Experiment
from pibert.experiments.flows import Flows, prepare
from pibert.experiments.run import run
from pibert.experiments.run_folder import read_config
from pibert.inference import load
from pibert.pretraining.masks import Masking, choose
from pibert.report.figures import write_figure
from pibert.training.engine import Reporter
from studies.filling_metrics import (
    MODEL,
    MODES,
    FillingError,
    fill_biharmonic,
    fill_hidden,
    filling_error,
)

MASKS = {
    "8 x 8 blocks": Masking(kinds=("blocks",), block=8),
    "single points": Masking(kinds=("pixels",)),
}
MOST = 200
"""Fields scored, evenly spread over the test split; interpolation takes its time."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def measure(
    experiment: Experiment, out: Path, reporter: Reporter, *, train: bool = True, most: int = MOST
) -> dict[str, Any]:
    """Pretrain, unless that is done, then fill hidden points of test fields."""
    flows = prepare(experiment.data, device=DEVICE)
    folder = out / "run"
    if train:
        run(experiment, folder, stage="pretrain", reporter=reporter, flows=flows)
    predictor = load(folder)
    window = Window(history=predictor.history)
    samples = flows.samples("test", window)
    truth = _truth(experiment, flows, window)
    rows = []
    for name, masking in MASKS.items():
        for against, found in _errors(predictor.model, samples, truth, masking, most).items():
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
    plain = config.as_plain(experiment)
    if experiment.data.path is not None:
        plain["data"]["path"] = Path(experiment.data.path).name  # where it lay is nobody's business
    return {
        "experiment": plain,
        "units": list(predictor.spec.units),
        "fields": min(most, len(samples)),
        "metrics": predictor.card["metrics"],
        "trained_on": read_config(folder / "config.json")["hardware"]["name"],
        "rows": rows,
    }


def _truth(experiment: Experiment, flows: Flows, window: Window) -> Samples | None:
    """The test fields before they were measured, where the measurement is simulated."""
    if experiment.data.measurement is None:
        return None
    clean = prepare(replace(experiment.data, measurement=None, outlier_noise=None))
    return replace(clean, normalizer=flows.normalizer, spec=flows.spec).samples("test", window)


def _errors(
    model: torch.nn.Module, samples: Samples, truth: Samples | None, masking: Masking, most: int
) -> dict[str, dict[str, FillingError]]:
    """Errors by what they are measured against, and by method."""
    totals: dict[str, dict[str, FillingError]] = {}
    spec, normalizer = samples.spec, samples.normalizer
    for numbers in _spread(len(samples), most):
        batch = samples.batch(numbers).reseeded(0, 0)
        hidden = choose(batch, masking, spec, normalizer).points & batch.mask
        answers = fill_hidden(model, batch, hidden, spec)
        targets = {"the measurement": batch.x}
        if truth is not None:
            targets["the flow"] = truth.batch(numbers).x
        for against, target in targets.items():
            found = {
                name: filling_error(answer, target, hidden, normalizer)
                for name, answer in answers.items()
            }
            former = totals.get(against)
            totals[against] = {n: e if former is None else former[n] + e for n, e in found.items()}
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
        if (row["mask"], row["against"]) == (mask, against) and row["method"] not in (MODEL, MODES)
    ]
    return min(chosen)
