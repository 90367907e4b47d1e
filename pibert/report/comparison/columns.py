"""Columns of numbers over models, and tables made of them.

A number is the mean over the seeds of a model; with several seeds its standard deviation over them
stands beside it. The best of a column is bold. A dagger stands where a record says that the
difference to the best model of that very column is not significant, for any of the seeds.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import with_unit
from pibert.report.comparison.markup import DAGGER, Cell, Table, slug
from pibert.report.comparison.numbers import UNKNOWN, digits, near_one

TRUTH = "(data)"
"""What the foot of a table is called."""
_NEAR_ONE = ("r2", "lpcc", "skill", "official_r2")
_ARROWS = {"lower": " ↓", "higher": " ↑"}
Values = Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """One column."""

    label: str
    values: Values
    """By model; None where nothing was measured."""
    better: str = "none"
    """lower, higher or none."""
    ideal: float | None = None
    """A value to be near to by ratio, instead of lower or higher."""
    form: Callable[[int | float], str] = digits
    notes: Mapping[str, str] = field(default_factory=dict)
    level: frozenset[str] = frozenset()
    """Models that are level with the best one of the column."""
    truth: float | None = None
    """What the data have."""

    def best(self) -> float | None:
        """The value that no other beats; None where all look the same."""
        known = [v for v in self.values.values() if v is not None and not math.isnan(v)]
        if len({self.form(value) for value in known}) < 2:
            return None
        if self.ideal is not None:
            ideal = self.ideal
            return min(known, key=lambda v: abs(math.log(v / ideal)) if v > 0 else math.inf)
        return {"lower": min, "higher": max}[self.better](known) if self.better != "none" else None

    def cell(self, model: str) -> Cell:
        value = self.values.get(model)
        if value is None or math.isnan(value):
            return Cell(text=UNKNOWN)
        best = self.best()
        text = self.form(value)
        is_best = best is not None and text == self.form(best)
        return Cell(
            text=text,
            number=value,
            best=is_best,
            level=best is not None and not is_best and model in self.level,
            note=self.notes.get(model, ""),
        )


@dataclass(frozen=True, kw_only=True)
class Column:
    """Which records make a column."""

    label: str
    metric: str
    component: str = "all"
    space: str = "physical"
    form: Callable[[int | float], str] | None = None
    truth: tuple[str, str] | None = None
    """Metric and component that tell what the data have."""
    ideal: float | None = None
    interval: bool = False
    """Whether the 95 % interval stands beside the number, instead of the spread over seeds."""

    def of(self, board: Board) -> Numbers | None:
        """The numbers of all models; None where none has any."""
        found = {m: board.find(m, self.metric, self.component, self.space) for m in board.models}
        records = [record for own in found.values() for record in own]
        if not any(record["value"] is not None for record in records):
            return None
        better = str(records[0]["better"])
        notes = {m: _interval(own) if self.interval else _spread(own) for m, own in found.items()}
        truth = None
        if self.truth:
            seen = (board.value(m, *self.truth, space=self.space) for m in board.models)
            truth = next((value for value in seen if value is not None), None)
        judged = better != "none" and self.ideal is None
        return Numbers(
            label=with_unit(self.label, records[0]["unit"]) + _ARROWS.get(better, ""),
            values={m: _mean(_known(own)) for m, own in found.items()},
            better=better,
            ideal=self.ideal,
            form=self.form or (near_one if self.metric in _NEAR_ONE else digits),
            notes=notes,
            level=frozenset(m for m, own in found.items() if judged and _is_level(own)),
            truth=truth,
        )


def columns_of(board: Board, columns: Iterable[Column]) -> list[Numbers]:
    """Those that anything was measured for."""
    made = [column.of(board) for column in columns]
    return [numbers for numbers in made if numbers is not None]


def table_of(
    name: str, title: str, caption: str, board: Board, columns: Sequence[Numbers]
) -> Table | None:
    """A row for every model, the best first; None without columns."""
    measured = [c for c in columns if any(v is not None for v in c.values.values())]
    if not measured:
        return None
    rows = tuple(
        (Cell(text=model), *(column.cell(model) for column in measured)) for model in board.models
    )
    truths = [_truth(column) for column in measured]
    has_truth = any(cell.text for cell in truths)
    return Table(
        name=slug(f"{board.name}-{name}"),
        title=title,
        caption=caption,
        head=("model", *(column.label for column in measured)),
        rows=rows,
        foot=((Cell(text=TRUTH), *truths),) if has_truth else (),
    )


def several(board: Board) -> bool:
    """Whether any model has more than one seed."""
    return len({seed for _, seed in board.scores}) > 1


def has_marks(board: Board) -> bool:
    """Whether there were intervals to judge differences by."""
    return any(record["against_best"] is not None for record in board.records)


def marks(board: Board) -> str:
    """What bold and dagger mean, for captions."""
    if not has_marks(board):
        return "Bold: best of the column; too little data for intervals."
    spread = "; ±: standard deviation over seeds" if several(board) else ""
    return f"Bold: best of the column; {DAGGER}: not significantly different from it{spread}."


def _truth(column: Numbers) -> Cell:
    if column.truth is None:
        return Cell(text="")
    return Cell(text=column.form(column.truth), number=column.truth)


def _known(records: Sequence[Mapping[str, Any]]) -> list[float]:
    return [float(record["value"]) for record in records if record["value"] is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _spread(records: Sequence[Mapping[str, Any]]) -> str:
    values = _known(records)
    return f"± {digits(statistics.stdev(values), 2)}" if len(values) > 1 else ""


def _interval(records: Sequence[Mapping[str, Any]]) -> str:
    """With several seeds, from the lowest end to the highest."""
    ends = [(r["low"], r["high"]) for r in records if r["low"] is not None]
    ends = [(low, high) for low, high in ends if high is not None]
    if not ends:
        return ""
    return f"[{digits(min(low for low, _ in ends))}, {digits(max(high for _, high in ends))}]"


def _is_level(records: Sequence[Mapping[str, Any]]) -> bool:
    marks = [record["against_best"] for record in records]
    return "best" not in marks and "level" in marks
