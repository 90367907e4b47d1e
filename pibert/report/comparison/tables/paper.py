"""The paper's own numbers beside those of a comparison, and what differs between the two."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pibert.evaluation.scales import SCALES
from pibert.report.comparison.published import PUBLISHED, Published
from pibert.report.comparison.results import UNTRAINED, DatasetResults
from pibert.report.comparison.table import (
    UNKNOWN,
    Cell,
    Format,
    Table,
    digits,
    integer,
    near_one,
    percent,
    slug,
)
from pibert.report.comparison.tables.benchmarks import learned, split_text
from pibert.report.comparison.tables.cost import Run, batch_cost, last_epoch, training_seconds

_ERRORS: dict[str, tuple[str, Format]] = {
    "nmse": ("NMSE", digits),
    "lmae": ("LMAE", digits),
    "lpcc": ("LPCC", near_one),
    "r2": ("R²", near_one),
    "rel_l2": ("RelL2", digits),
}
_COSTS: dict[str, tuple[str, float, Format, Callable[[Run], Any]]] = {
    "ms": ("ms per sample", 1, digits, lambda run: batch_cost(run, 1)),
    "parameters": ("parameters", 1, integer, lambda run: run["cost"]["parameters"]),
    "checkpoint": ("checkpoint [MiB]", 2**20, digits, lambda run: run.get("state_bytes")),
    "epoch": ("last epoch [s]", 1, digits, last_epoch),
    "training": ("training [min]", 60, digits, training_seconds),
}
"""Of a published cost: label, our units in it, how ours is written, and that of a run."""
_OURS = {"fourierflow": ("fourierflow-det", "fourierflow")}
"""Our models in the place of one of the paper's, the likest first. Its FourierFlow is a regressor
that predicts one step."""


def published(data: DatasetResults) -> list[Table]:
    """Published and measured numbers side by side, and the differences in protocol."""
    named = data.results.get("comparison", {}).get("published") or {}
    found = PUBLISHED.get(named.get(data.name, ""))
    if found is None:
        return []
    return [_errors(data, found), _costs(data, found), _shares(data, found), _protocol(data, found)]


def _own(data: DatasetResults, model: str) -> str | None:
    """Our model in the place of one of the paper's."""
    return next((m for m in _OURS.get(model, (model,)) if m in data.models), None)


def _printed(value: int | float) -> str:
    return integer(value) if isinstance(value, int) else f"{value:.6g}"


def _pair(
    theirs: int | float | None,
    ours: int | float | None,
    form: Format,
    printed: Format = _printed,
) -> Iterator[Cell]:
    """A published number as it is printed, and ours."""
    for value, write in ((theirs, printed), (ours, form)):
        yield Cell(text=UNKNOWN if value is None else write(value), number=value)


def _head(labels: Mapping[str, str]) -> tuple[str, ...]:
    sides = ("published", "here")
    return tuple(f"{label}, {side}" for label in labels.values() for side in sides)


def _errors(data: DatasetResults, found: Published) -> Table:
    metrics = [m for m in _ERRORS if any(m in errors for errors in found.errors.values())]
    rows = []
    for model, errors in found.errors.items():
        cells = [_name(data, model)]
        for metric in metrics:
            own = _own(data, model)
            ours = data.value(own, metric, space="standardised") if own else None
            cells += _pair(errors.get(metric), ours, _ERRORS[metric][1])
        rows.append(tuple(cells))
    return Table(
        name=slug(f"{data.name}-published-errors"),
        title="The paper's numbers beside ours: errors",
        caption="Published: printed in the paper, not measured here. All channels, standardised "
        "units, test split. The protocols differ (last table of this section), and so do the test "
        "flows or their number: a difference between two columns is not one between two models.",
        head=("model", *_head({m: _ERRORS[m][0] for m in metrics})),
        rows=tuple(rows),
    )


def _name(data: DatasetResults, model: str) -> Cell:
    own = _own(data, model)
    return Cell(text=model, note="" if own in (None, model) else f"here {own}")


def _costs(data: DatasetResults, found: Published) -> Table:
    kinds = [k for k in _COSTS if any(k in costs for costs in found.costs.values())]
    rows = []
    for model, costs in found.costs.items():
        own = _own(data, model)
        run = next((r for r in data.runs if r["model"] == own and "cost" in r), None)
        cells = [_name(data, model)]
        for kind in kinds:
            _, unit, form, read = _COSTS[kind]
            ours = None if run is None else read(run)
            cells += _pair(costs.get(kind), None if ours is None else ours / unit, form)
        rows.append(tuple(cells))
    return Table(
        name=slug(f"{data.name}-published-costs"),
        title="The paper's numbers beside ours: costs",
        caption="Published: printed in the paper, on other hardware. Here: the first seed; "
        "milliseconds at batch 1; the checkpoint has weights and optimiser.",
        head=("model", *_head({k: _COSTS[k][0] for k in kinds})),
        rows=tuple(rows),
        is_folded=True,
    )


def _shares(data: DatasetResults, found: Published) -> Table:
    speed = "|u|" if "v" in data.spec.channels else data.spec.channels[0]
    rows = []
    for key, shares in found.rates.items():
        metric, component = (f"slice_{key}_rel_l2", speed)
        label = key.replace("_", " ")
        if not key.startswith("column"):
            metric, component, label = "band_spectrum_error", key, f"{key} band"
        cells = [Cell(text=label)]
        for share, kind in zip(shares, ("win_rate", "top_two_rate"), strict=True):
            ours = data.value("pibert", f"{metric}_{kind}", component)
            cells += _pair(share, ours, percent, lambda value: f"{100 * value:.1f} %")
        rows.append(tuple(cells))
    for scale, value in zip(SCALES, found.scales, strict=False):
        ours = data.value("pibert", f"scale_{scale}_nmse", space="standardised")
        row = (Cell(text=f"scale {scale} NMSE"), *_pair(value, ours, digits))
        rows.append((*row, Cell(text=""), Cell(text="")))
    return Table(
        name=slug(f"{data.name}-published-shares"),
        title="The paper's numbers beside ours: where PIBERT wins",
        caption="Shares of the test samples on which PIBERT has the lowest error, and one of the "
        "two lowest. Published: among six models, in the paper or its logs. Here: among all models "
        f"of this comparison, along the same columns of {speed}, in physical units, and in thirds "
        "of the spectrum of the kinetic energy; the paper has that of the speed, and does not "
        "state its bands. Scales: NMSE after averaging over so many points, standardised units.",
        head=("error", *_head({"win": "win rate", "two": "top-two rate"})),
        rows=tuple(rows),
        is_folded=True,
    )


def _protocol(data: DatasetResults, found: Published) -> Table:
    """What the paper did beside what this comparison did, as its results state it."""
    plan = data.results["comparison"]
    sizes = {r["cost"]["parameters"] for r in data.runs if r["model"] == "pibert" and "cost" in r}
    references = [model for model in data.models if model in UNTRAINED]
    inputs = "fields, known points, positions and parameters for every network, unless its options"
    here = {
        "split": split_text(data),
        "fields": learned(data),
        "models": f"{len(data.models)}, with {', '.join(references) or 'no references'}",
        "budget": f"{integer(plan['samples'])} samples for each, pretraining included",
        "selection": "on the validation split; the test split is scored once, at the end",
        "skip connection": "for every model",
        "inputs": f"{inputs} say otherwise",
        "size of PIBERT": " or ".join(map(integer, sorted(sizes))) or UNKNOWN,
        "seeds": ", ".join(map(str, plan["seeds"])),
        "intervals": str(data.facts["intervals"]),
        "units of errors": "standardised in this section, physical elsewhere",
        "slices": "the same columns; also 0.75, 2 and 4 diameters behind a body",
    }
    rows = ((Cell(text=k), Cell(text=found.protocol[k]), Cell(text=v)) for k, v in here.items())
    return Table(
        name=slug(f"{data.name}-published-protocol"),
        title="Differences in protocol",
        caption="As the paper states them, or its published logs where that is said. Both predict "
        "the next frame; other reasons for differences are in the documentation (Errata).",
        head=("what", "the paper", "here"),
        rows=tuple(rows),
    )
