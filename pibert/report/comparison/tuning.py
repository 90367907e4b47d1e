"""Tuning: validation error of every trial, and the learning rate and optimiser that were chosen."""

from collections.abc import Mapping, Sequence
from typing import Any

from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import Drawn
from pibert.report.comparison.markup import Cell, Table, slug
from pibert.report.comparison.numbers import UNKNOWN, digits
from pibert.report.comparison.plots import Label, frame, label_ends, line_style, logarithmic, sheet
from pibert.report.comparison.wording import monitored, trial_text, tuned_models

NOT_TUNED = "not tuned"
Setting = tuple[str, float]
"""Optimiser and learning rate."""


def tuning_table(board: Board) -> Table | None:
    """What each model was trained with, and the validation error of each trial, chosen one bold."""
    records = tuned_models(board.results, board.name)
    if not records:
        return None
    settings = _settings(records.values())
    rows = [_row(board, model, records.get(model), settings) for model in board.models]
    caption = (
        f"Columns of an optimiser and a rate: {monitored(board.results)} on the validation part, "
        f"best epoch of the trial. Bold: chosen and trained with. {trial_text(board.results)} "
        f"Trials were run on {', '.join(_tuned_on(records))}. Training times leave them out."
    )
    return Table(
        name=slug(f"{board.name}-tuning"),
        title="Tuning",
        caption=caption,
        head=("model", "optimiser", "learning rate", *(f"{o} {r:g}" for o, r in settings)),
        rows=tuple(rows),
    )


def tuning(board: Board) -> Drawn | None:
    """Validation error against learning rate, a panel for each optimiser; a ring: chosen."""
    records = tuned_models(board.results, board.name)
    records = {model: records[model] for model in board.models if model in records}
    rates = {rate for _, rate in _settings(records.values())}
    if len(rates) < 2:
        return None
    panels = {
        optimizer: {m: line for m, own in records.items() if (line := _line(own, optimizer))}
        for optimizer in dict.fromkeys(name for name, _ in _settings(records.values()))
    }
    errors = [e for lines in panels.values() for line in lines.values() for e in line.values()]
    if not errors or min(errors) <= 0:
        return None
    height = max(3.4, 0.16 * len(records) + 1.2)
    figure, axes = sheet(1.6 + 5.0 * len(panels), height, 1, len(panels), sharey=True)
    for ax, (optimizer, lines) in zip(axes[0], panels.items(), strict=True):
        logarithmic(ax, "x", sorted(rates))
        ax.set_xticks(sorted(rates), [f"{rate:g}" for rate in sorted(rates)])
        ax.set_xticks([], minor=True)
        logarithmic(ax, "y", errors)
        left = f"{monitored(board.results)} (validation)" if ax is axes[0, 0] else ""
        frame(ax, optimizer, x="learning rate", y=left)
        for model, line in lines.items():
            style, chosen = line_style(board, model), records[model]["chosen"]
            ax.plot(list(line), list(line.values()), **style, marker=".")
            if chosen["optimizer"] == optimizer:
                at = chosen["learning_rate"]
                ring = {"mfc": "white", "mec": style["color"], "ms": 5.5, "mew": 1.3}
                ax.plot(at, line[at], "o", **ring, zorder=6, clip_on=False)
    for ax, lines in zip(axes[0], panels.values(), strict=True):
        ends = [(*list(line.items())[-1], model) for model, line in lines.items()]
        label_ends(ax, [Label(x, y, model, board.colour(model)) for x, y, model in ends])
    caption = (
        f"Data set {board.name}: {monitored(board.results)} on the validation part of "
        f"{', '.join(_tuned_on(records))} against the learning rate, best epoch of each trial. "
        "Rings mark the setting that each model was then trained with. Trials that diverged are "
        "left out."
    )
    alt = f"Validation error of {len(records)} models against {len(rates)} learning rates."
    return Drawn(figure, caption, alt)


def _settings(records: Any) -> list[Setting]:
    """All that were tried, by optimiser and rising rate."""
    trials = [trial for record in records for trial in record["trials"]]
    order = list(dict.fromkeys(trial["optimizer"] for trial in trials))
    found = {(trial["optimizer"], trial["learning_rate"]) for trial in trials}
    return sorted(found, key=lambda own: (order.index(own[0]), own[1]))


def _tuned_on(records: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(record["tuned_on"] for record in records.values()))


def _line(record: Mapping[str, Any], optimizer: str) -> dict[float, float]:
    """Validation error by learning rate; trials that diverged have none."""
    errors = {
        trial["learning_rate"]: trial.get("valid_error")
        for trial in record["trials"]
        if trial["optimizer"] == optimizer
    }
    return {rate: error for rate, error in sorted(errors.items()) if error is not None}


def _row(
    board: Board, model: str, record: Mapping[str, Any] | None, settings: Sequence[Setting]
) -> tuple[Cell, ...]:
    if record is None:
        run = board.run(model)
        name, rate = run.get("optimizer"), run.get("learning_rate")
        known = "" if rate is None else f"{rate:g}"
        first = Cell(text=NOT_TUNED if name is None else name, note=NOT_TUNED if name else "")
        rest = [Cell(text=UNKNOWN)] * len(settings)
        return (Cell(text=model), first, Cell(text=known or UNKNOWN, number=rate), *rest)
    chosen, edge = record["chosen"], record["edge"]
    rate = chosen["learning_rate"]
    note = f"{edge} tried" if edge else ""
    tried = {(trial["optimizer"], trial["learning_rate"]): trial for trial in record["trials"]}
    best = (chosen["optimizer"], rate)
    return (
        Cell(text=model),
        Cell(text=chosen["optimizer"]),
        Cell(text=f"{rate:g}", number=rate, note=note),
        *(_error(tried.get(setting), is_chosen=setting == best) for setting in settings),
    )


def _error(trial: Mapping[str, Any] | None, *, is_chosen: bool) -> Cell:
    if trial is None:
        return Cell(text=UNKNOWN)
    error = trial.get("valid_error")
    if error is None:
        return Cell(text="diverged")
    return Cell(text=digits(error), number=error, best=is_chosen)
