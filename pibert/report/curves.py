"""Learning curves of a run, plotted from its log.

The log has one JSON object per line. Those of kind ``epoch`` have ``epoch``, ``learning_rate``, the
means ``train`` and ``valid`` by quantity, and ``best`` where the validation has improved. A stage
on rollouts has the validation of the weights that it starts from in the line of kind ``start``,
drawn as epoch 0. Quantities with the same name before a slash (``auc/noise``, ``auc/shuffled``)
share a panel. After a resume an epoch may be in the log twice: the later one counts.
"""

import itertools
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from pibert.report.figures import blank, picture_path, write_figure
from pibert.training.journal import read_log

_TRAIN, _VALID = "#8fa9c4", "#c1440e"
_MANY = ("#c1440e", "#1f6f8b", "#5b8c2a", "#8a4f9e", "#b8860b", "#4a4a4a", "#d1739c", "#2aa198")
_COLUMNS, _WIDTH, _HEIGHT = 3, 3.9, 2.5
_DOTS_UP_TO = 30
"""Up to this many epochs each has a dot: a single one would not show as a line."""


def draw_curves(log: str | os.PathLike[str], picture: str | os.PathLike[str]) -> Path:
    """Draw losses, validation results and the learning rate over the epochs of a ``log.jsonl``.

    The folder of the picture, a PNG file, is created; an older file is replaced atomically.
    """
    picture = picture_path(picture)
    epochs = read_epochs(log)
    if not epochs:
        raise ValueError(f"{os.fspath(log)}: expected at least one epoch, found none; train first")
    panels = _panels(epochs)
    count = len(panels) + 1
    columns = 2 if count in (2, 4) else min(_COLUMNS, count)
    rows = -(-count // columns)
    figure = blank(columns * _WIDTH, rows * _HEIGHT + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    best = best_epoch(epochs)
    for ax, (title, names) in zip(axes, panels.items(), strict=False):
        _draw_panel(ax, title, names, epochs, best)
    _draw_rate(axes[len(panels)], epochs)
    for ax in axes[len(panels) + 1 :]:
        ax.set_axis_off()
    figure.suptitle(_headline(epochs, best), fontsize=10, x=0.01, ha="left")
    return write_figure(figure, picture)


def read_epochs(log: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of the epochs in their order, the last one of each."""
    latest: dict[int, dict[str, Any]] = {}
    for record in read_log(Path(log)):
        if record.get("kind") == "epoch":
            latest[record["epoch"]] = record
        elif record.get("kind") == "start" and isinstance(record.get("valid"), dict):
            latest[0] = {**record, "epoch": 0, "best": True}
    return [latest[epoch] for epoch in sorted(latest)]


def best_epoch(epochs: Sequence[dict[str, Any]]) -> int | None:
    """The epoch of the best validation: the last that was the best so far, None without any.

    Without such marks in the log, the epoch of the lowest validation loss.
    """
    stated = [e["epoch"] for e in epochs if e.get("best") and e.get("valid")]
    if stated:
        return int(stated[-1])
    losses = {e["epoch"]: _as_number((e.get("valid") or {}).get("loss")) for e in epochs}
    finite = {epoch: loss for epoch, loss in losses.items() if math.isfinite(loss)}
    return min(finite, key=finite.__getitem__) if finite else None


def _panels(epochs: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Quantities by panel; the loss comes first, then those that are validated.

    Quantities that always equal the loss (its only term) have no panel, nor has the error of
    persistence, which does not change.
    """
    means = [mean for split in ("valid", "train") for e in epochs if (mean := e.get(split))]
    names = dict.fromkeys(name for mean in means for name in mean)
    panels: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: name != "loss"):
        is_loss = all(mean.get(name) == mean.get("loss") for mean in means)
        if name == "loss" or (name != "persistence" and not is_loss):
            panels.setdefault(name.split("/")[0], []).append(name)
    return panels


def _draw_panel(
    ax: Axes, title: str, names: Sequence[str], epochs: Sequence[dict[str, Any]], best: int | None
) -> None:
    many, values = len(names) > 1, list[float]()
    for name, colour in zip(names, itertools.cycle(_MANY), strict=False):
        for split in ("train", "valid"):
            # Epochs without validation are left out; a value that is not finite leaves a gap.
            found = {e["epoch"]: e[split][name] for e in epochs if name in (e.get(split) or {})}
            x, y = np.array(list(found)), np.array([_as_number(v) for v in found.values()])
            if not np.isfinite(y).any():
                continue
            values.extend(y[np.isfinite(y)])
            is_train = split == "train"
            style: dict[str, Any] = {"color": _TRAIN if is_train else _VALID, "label": split}
            if many:
                label = "_nolegend_" if is_train else name.partition("/")[2] or name
                style = {"color": colour, "label": label, "ls": "--" if is_train else "-"}
            _draw_line(ax, x, y, lw=1.0 if is_train else 1.4, **style)
            if not is_train and best is not None and best in found:
                ring = {"mfc": "white", "mec": style["color"], "mew": 1.4, "ms": 6, "zorder": 5}
                ax.plot(best, y[x == best][0], "o", **ring)
    _finish(ax, title, epochs, values)
    if best is not None:
        ax.axvline(best, color="0.6", lw=0.8, ls=":", zorder=0)
    if many or title == "loss":  # the colours are the same in the other panels
        ax.legend(fontsize=7, frameon=False, ncols=2 if len(names) > 4 else 1)


def _draw_line(ax: Axes, x: np.ndarray, y: np.ndarray, **style: Any) -> None:
    ax.plot(x, y, marker="o" if len(x) <= _DOTS_UP_TO else "", ms=3, **style)


def _draw_rate(ax: Axes, epochs: Sequence[dict[str, Any]]) -> None:
    x = np.array([record["epoch"] for record in epochs])
    rate = np.array([_as_number(record.get("learning_rate")) for record in epochs])
    _draw_line(ax, x, rate, color="0.35", lw=1.2)
    _finish(ax, "learning rate", epochs, rate[np.isfinite(rate)].tolist())


def _finish(
    ax: Axes, title: str, epochs: Sequence[dict[str, Any]], values: Sequence[float]
) -> None:
    """Title, ticks and scale: logarithmic where all is positive and spans a factor of two."""
    if title != "skill" and values and min(values) > 0 and max(values) > 2 * min(values):
        ax.set_yscale("log")
        few = max(values) < 300 * min(values)  # powers of ten alone would be too few labels
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}")
    ax.set_title(title.replace("_", " "), fontsize=10, loc="left")
    ax.set_xlabel("epoch", fontsize=8)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    first, last = epochs[0]["epoch"], epochs[-1]["epoch"]
    slack = 0.04 * (last - first) or 1.0
    ax.set_xlim(first - slack, last + slack)
    ax.tick_params(labelsize=8, length=2)
    ax.grid(True, color="0.92", lw=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _headline(epochs: Sequence[dict[str, Any]], best: int | None) -> str:
    text = f"epoch {epochs[-1]['epoch']}"
    if best is None:
        return text
    rollouts = "rollouts, " if epochs[0]["epoch"] == 0 else ""
    before = ", before this stage" if best == 0 else ""
    return f"{rollouts}{text}; best validation in epoch {best}{before}"


def _as_number(value: Any) -> float:
    """A number; NaN, which leaves a gap, where nothing finite was measured."""
    number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if number else math.nan
