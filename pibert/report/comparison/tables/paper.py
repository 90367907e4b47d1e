"""The paper's own numbers beside those of a comparison, and what differs between the two."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pibert.evaluation.scales import SCALES
from pibert.report.comparison.published import Published
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
_BEST = {f"Scale-{size} NMSE": (f"scale_{size}_nmse", "all") for size in SCALES} | {
    f"{channel}-{band} NMSE": ("haar_nmse", f"{channel}_{band}")
    for channel in "uv"
    for band in ("LH1", "HL1", "HH1")
}
"""Our metric and component in the place of the paper's diagnostic, where the definitions agree."""
_HAAR = (
    " LH1, HL1, HH1: the finest Haar bands; L: low, H: high, here first along x, which the paper "
    "does not state."
)


def published(data: DatasetResults) -> list[Table]:
    """Published and measured numbers side by side, and the differences in protocol."""
    found = data.published
    if found is None:
        return []
    makers = (_errors, _components, _best, _costs, _shares, _protocol)
    return [table for make in makers if (table := make(data, found)).rows]


def _printed(value: int | float) -> str:
    return integer(value) if isinstance(value, int) else f"{value:.6g}"


def _decimals(count: int) -> Format:
    return lambda value: f"{value:.{count}f}"


def _percent(value: int | float) -> str:
    return f"{100 * value:.1f} %"


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
            ours = _standardised(data, model, metric)
            cells += _pair(errors.get(metric), ours, _ERRORS[metric][1], _decimals(found.decimals))
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


def _components(data: DatasetResults, found: Published) -> Table:
    """The paper's tables of PIBERT and one other model."""
    metrics = [m for m in ("nmse", "lpcc", "r2") if m in found.components["all"]["pibert"]]
    has_gain = "gain" in found.components["all"]["pibert"]
    rows = []
    for component, errors in found.components.items():
        ours = {
            model: [_standardised(data, model, metric, component) for metric in metrics]
            for model in errors
        }
        for model, printed in errors.items():
            cells = [Cell(text=component), _name(data, model)]
            for metric, value in zip(metrics, ours[model], strict=True):
                form = _ERRORS[metric][1]
                cells += _pair(printed[metric], value, form, _decimals(found.decimals))
            if has_gain:
                nmse = [values[0] for values in ours.values()]
                gain = 1 - nmse[0] / nmse[1] if nmse[0] is not None and nmse[1] else None
                is_first = model == "pibert"
                cells += _pair(printed.get("gain"), gain if is_first else None, _percent, _percent)
            rows.append(tuple(cells))
    labels = {m: _ERRORS[m][0] for m in metrics} | ({"gain": "gain in NMSE"} if has_gain else {})
    return Table(
        name=slug(f"{data.name}-published-components"),
        title="The paper's numbers beside ours: component by component",
        caption="Published: printed in the paper, not measured here. Standardised units, in which "
        "|u| is the norm of two standardised channels."
        + (" Gain: by how much the NMSE of PIBERT is lower." if has_gain else ""),
        head=("component", "model", *_head(labels)),
        rows=tuple(rows),
        is_folded=True,
    )


def _standardised(
    data: DatasetResults, model: str, metric: str, component: str = "all"
) -> float | None:
    own = data.in_place_of(model)
    return data.value(own, metric, component, "standardised") if own else None


def _best(data: DatasetResults, found: Published) -> Table:
    """PIBERT's error, and the best model's, of scales, wavelet bands and diagnostics."""
    rows, printed = [], _decimals(found.best_decimals)
    for label, (value, winner, best) in found.best.items():
        ours, own, least = None, UNKNOWN, None
        if label in _BEST:
            ours = data.value("pibert", *_BEST[label], "standardised")
            errors = {m: data.value(m, *_BEST[label], "standardised") for m in data.models}
            known = {m: error for m, error in errors.items() if error is not None}
            if known:
                own = min(known, key=known.__getitem__)
                least = known[own]
        cells = [Cell(text=label), *_pair(value, ours, digits, printed)]
        cells += [Cell(text=winner), Cell(text=own), *_pair(best, least, digits, printed)]
        rows.append(tuple(cells))
    return Table(
        name=slug(f"{data.name}-published-best"),
        title="The paper's numbers beside ours: scales and diagnostics",
        caption="Published: printed in the paper, not measured here. Here: all models, references "
        "included; standardised units. Nothing stands beside published diagnostics that are "
        "defined otherwise or not defined (Errata): ours are in the section on scales, the drag "
        "in that on free runs." + (_HAAR if _BEST.keys() & found.best.keys() else ""),
        head=("error", *_head({"pibert": "PIBERT", "best": "best model", "value": "its value"})),
        rows=tuple(rows),
        is_folded=True,
    )


def _name(data: DatasetResults, model: str) -> Cell:
    own = data.in_place_of(model)
    return Cell(text=model, note="" if own in (None, model) else f"here {own}")


def _costs(data: DatasetResults, found: Published) -> Table:
    kinds = [k for k in _COSTS if any(k in costs for costs in found.costs.values())]
    rows = []
    for model, costs in found.costs.items():
        own = data.in_place_of(model)
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
            cells += _pair(share, ours, percent, _percent)
        rows.append(tuple(cells))
    return Table(
        name=slug(f"{data.name}-published-shares"),
        title="The paper's numbers beside ours: where PIBERT wins",
        caption="Shares of the test samples on which PIBERT has the lowest error, and one of the "
        "two lowest. Published: among six models, in the paper or its logs. Here: among all models "
        f"of this comparison, along the same columns of {speed}, in physical units, and in thirds "
        "of the spectrum of the kinetic energy; the paper has that of the speed, and does not "
        "state its bands.",
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
