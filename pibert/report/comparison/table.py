"""A table as plain data: cells, columns of numbers over models, and how numbers are written.

A number is the mean over the seeds of a model; with several seeds its standard deviation stands
beside it. The best of a column is bold. A dagger marks a model whose difference to the best one of
that column is not significant for at least one seed.
"""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pibert.report.comparison.results import DatasetResults
from pibert.report.figures import with_unit

UNKNOWN = "–"
"""Written where nothing was measured."""
DAGGER = "†"
_NEAR_ONE = ("r2", "lpcc", "skill", "official_r2")
_ARROWS = {"lower": " ↓", "higher": " ↑"}
Format = Callable[[int | float], str]


def digits(value: int | float, count: int = 3) -> str:
    """A number with so many significant digits; large and small ones as ``2.44e-4``."""
    number = float(value)
    if math.isnan(number):
        return UNKNOWN
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
    if number == 0:
        return "0"
    mantissa, _, exponent = f"{number:.{count - 1}e}".partition("e")
    power = int(exponent)
    if -4 < power < count + 2:
        return f"{float(f'{mantissa}e{power}'):.{max(0, count - 1 - power)}f}"
    return f"{mantissa}e{power}"


def near_one(value: int | float, places: int = 3) -> str:
    """At most 6 decimals, for two digits of the difference from 1; never rounded up to 1."""
    number = float(value)
    missing = 1 - number
    if not math.isfinite(number) or abs(number) >= 10:
        return digits(number)
    if 0 < missing < 1:
        places = max(places, min(6, math.ceil(-math.log10(missing)) + 1))
    text = f"{number:.{places}f}"
    if missing > 0 and float(text) >= 1:
        text = "0." + "9" * places
    return text.removeprefix("-") if float(text) == 0 else text


def percent(value: int | float) -> str:
    return f"{100 * float(value):.0f} %" if math.isfinite(value) else UNKNOWN


def integer(value: int | float) -> str:
    """With commas between thousands."""
    return f"{round(value):,}"


def scaled(value: int | float, unit: str = "") -> str:
    """Three digits with an SI prefix."""
    number, prefixes = float(value), ["", "k", "M", "G", "T"]
    while abs(number) >= 999.5 and len(prefixes) > 1:
        number = number / 1000
        prefixes.pop(0)
    text = f"{number:.0f}" if number == round(number) and not prefixes[0] else digits(number)
    return f"{text} {prefixes[0]}{unit}".rstrip()


def size(value: int | float) -> str:
    return scaled(value, "B")


def duration(seconds: int | float) -> str:
    """In seconds, minutes or hours."""
    if seconds < 99.5:
        return f"{digits(seconds)} s"
    return f"{seconds / 60:.1f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number, or a name."""

    text: str
    number: int | float | None = None
    """The sort key; None for names and where nothing was measured."""
    best: bool = False
    """Whether it is the best of its column."""
    level: bool = False
    """Whether it does not differ significantly from the best."""
    note: str = ""
    """An interval or a spread, in smaller type."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """The content of a table, in any format."""

    name: str
    """For links and labels: lower case with hyphens."""
    title: str
    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    foot: tuple[tuple[Cell, ...], ...] = ()
    """Rows that are not ranked: the values of the data themselves."""
    header: int = 0
    """The column that names the rows."""
    is_folded: bool = False
    """Whether the page hides it until asked."""

    def __post_init__(self) -> None:
        for row in (*self.rows, *self.foot):
            if len(row) != len(self.head):
                raise ValueError(
                    f"expected {len(self.head)} cells in every row of {self.name!r}, found "
                    f"{len(row)}"
                )

    @property
    def word_columns(self) -> set[int]:
        """The header and columns of names, which are aligned left."""
        first = enumerate(self.rows[0]) if self.rows else ()
        words = {n for n, cell in first if cell.number is None and len(cell.text) > 1}
        return words | {self.header}

    @property
    def lines(self) -> tuple[tuple[Cell, ...], ...]:
        return (*self.rows, *self.foot)


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """One column: a number for each model."""

    label: str
    values: Mapping[str, float | None]
    """By model; None where nothing was measured."""
    better: str = "none"
    """lower, higher or none."""
    ideal: float | None = None
    """The best is the one nearest to this value, by ratio."""
    form: Format = digits
    notes: Mapping[str, str] = field(default_factory=dict)
    level: frozenset[str] = frozenset()
    """Models that do not differ significantly from the best one of the column."""
    feet: Mapping[str, Cell] = field(default_factory=dict)
    """Cells below those of the models, which are not ranked with them, by the label of the row."""

    def best(self) -> float | None:
        """The best value; None where all look the same or are off the ideal by a factor of two."""
        known = [v for v in self.values.values() if v is not None and not math.isnan(v)]
        if len({self.form(value) for value in known}) < 2:
            return None
        known = [v for v in known if math.isfinite(v) and (self.ideal is None or v > 0)]
        if not known:
            return None
        if self.ideal is not None:
            ideal = self.ideal
            nearest = min(known, key=lambda v: abs(math.log(v / ideal)))
            return nearest if 0.5 <= nearest / ideal <= 2 else None
        return {"lower": min, "higher": max}[self.better](known) if self.better != "none" else None

    def cell(self, model: str) -> Cell:
        value = self.values.get(model)
        if value is None or math.isnan(value):
            return Cell(text=UNKNOWN)
        best, text = self.best(), self.form(value)
        is_best = best is not None and text == self.form(best)
        level = best is not None and not is_best and model in self.level
        note = self.notes.get(model, "")
        return Cell(text=text, number=value, best=is_best, level=level, note=note)


class Metric(NamedTuple):
    """A column of a table: which records it shows, and how."""

    label: str
    """The head of the column, without unit and arrow."""
    metric: str
    component: str = "all"
    space: str = "physical"
    form: Format | None = None
    """How numbers are written; by default with three digits, or as far from 1 as they are."""
    ideal: float | None = None
    truth: str | None = None
    """The component of the same metric that holds the value of the data."""
    note: str = "spread"
    """Shown beside a number: its ``spread`` over seeds, its 95 % ``interval``, or nothing."""


def measured(data: DatasetResults, column: Metric) -> Numbers | None:
    """The numbers of a column; None where no model has the metric."""
    _, metric, component, space, form, ideal, truth, note = column
    found = {m: data.find(m, metric, component, space) for m in data.models}
    records = [record for rows in found.values() for record in rows]
    if not any(record["value"] is not None for record in records):
        return None
    better = str(records[0]["better"])
    ranked = better != "none" and ideal is None
    beside = {"spread": _spread, "interval": interval_of}.get(note, lambda rows: "")
    form = form or (near_one if metric in _NEAR_ONE else digits)
    seen = [data.value(m, metric, truth, space) for m in data.models] if truth else []
    known = next((value for value in seen if value is not None), None)
    values = {m: data.value(m, metric, component, space) for m in data.models}
    return Numbers(
        label=with_unit(column.label, records[0]["unit"]) + _ARROWS.get(better, ""),
        values=values,
        better=better,
        ideal=ideal,
        form=form,
        notes={m: "" if values[m] is None else beside(rows) for m, rows in found.items()},
        level=frozenset(m for m, rows in found.items() if ranked and is_level(rows)),
        feet={} if known is None else {"(data)": Cell(text=form(known), number=known)},
    )


@dataclass(frozen=True)
class MetricTable:
    """A table whose columns are metrics of the records: called with results it gives a table."""

    name: str
    title: str
    caption: str
    columns: Sequence[Metric]

    def __call__(self, data: DatasetResults) -> Table | None:
        columns = [measured(data, column) for column in self.columns]
        return table_of(data, self.name, self.title, f"{self.caption} {marks(data)}", columns)


def table_of(
    data: DatasetResults, name: str, title: str, caption: str, columns: Sequence[Numbers | None]
) -> Table | None:
    """A row for every model, best first; None without columns that have a value."""
    kept = [c for c in columns if c and any(v is not None for v in c.values.values())]
    if not kept:
        return None
    feet = dict.fromkeys(label for column in kept for label in column.feet)
    return Table(
        name=slug(f"{data.name}-{name}"),
        title=title,
        caption=caption,
        head=("model", *(column.label for column in kept)),
        rows=tuple((Cell(text=m), *(column.cell(m) for column in kept)) for m in data.models),
        foot=tuple(
            (Cell(text=label), *(column.feet.get(label, Cell(text="")) for column in kept))
            for label in feet
        ),
    )


def slug(text: str) -> str:
    """A text for links and labels."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def has_intervals(data: DatasetResults) -> bool:
    """Whether there were intervals to test differences with."""
    return any(record["against_best"] is not None for record in data.records)


def marks(data: DatasetResults) -> str:
    """What bold and dagger mean, for captions."""
    if not has_intervals(data):
        return "Bold: best of the column; too little data for intervals."
    spread = "; ±: standard deviation over seeds" if len(data.seeds) > 1 else ""
    return f"Bold: best of the column; {DAGGER}: not significantly different from it{spread}."


def is_level(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a model does not differ significantly from the best one for some seed."""
    marks = [record["against_best"] for record in records]
    return "best" not in marks and "level" in marks


def interval_of(records: Sequence[Mapping[str, Any]]) -> str:
    """The 95 % interval; with several seeds from the lowest end to the highest."""
    ends = [(r["low"], r["high"]) for r in records if None not in (r["low"], r["high"])]
    return span_text([end for pair in ends for end in pair])


def span_text(ends: Sequence[float | None]) -> str:
    """``[low, high]`` around all ends; empty without any, or if one is not known."""
    known = [float(end) for end in ends if end is not None and math.isfinite(end)]
    if not ends or len(known) < len(ends):
        return ""
    return f"[{digits(min(known))}, {digits(max(known))}]"


def _spread(records: Sequence[Mapping[str, Any]]) -> str:
    values = [float(record["value"]) for record in records if record["value"] is not None]
    return f"± {digits(statistics.stdev(values), 2)}" if len(values) > 1 else ""
