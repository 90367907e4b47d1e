"""Which model is best: all datasets, ranked summary, seeds, paired tests, flows and conditions."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pibert.evaluation.regions import SLICES
from pibert.evaluation.scales import BANDS
from pibert.report.comparison.results import UNTRAINED, DatasetResults, mean_of
from pibert.report.comparison.table import (
    UNKNOWN,
    Cell,
    Metric,
    Numbers,
    Table,
    digits,
    marks,
    measured,
    percent,
    slug,
    span_text,
    table_of,
)
from pibert.report.comparison.tables.cost import (
    BATCH,
    batch_cost,
    cost_column,
    parameters,
    training_time,
)
from pibert.report.comparison.text import shared_device_text


def overview(datasets: Sequence[DatasetResults]) -> Table | None:
    """Rank and NMSE of every model on every dataset; None for one dataset."""
    if len(datasets) < 2:
        return None
    ranks = {data.name: {m: n for n, m in enumerate(data.models, 1)} for data in datasets}
    models = list(dict.fromkeys(m for data in datasets for m in data.models))
    # A model that has not run everywhere has no mean rank.
    means = {
        m: sum(ranking[m] for ranking in ranks.values()) / len(ranks)
        for m in models
        if all(m in ranking for ranking in ranks.values())
    }
    models.sort(key=lambda m: means.get(m, math.inf))
    columns = [Numbers(label="mean rank ↓", values=means, better="lower")]
    for data in datasets:
        errors: dict[str, float | None] = {m: data.value(m, "nmse") for m in models}
        notes = {m: f"#{rank}" for m, rank in ranks[data.name].items()}
        columns.append(_lower(f"{data.name} NMSE", errors, notes))
    return Table(
        name="overview",
        title="All datasets",
        caption="NMSE of all channels in physical units, with the rank (#) on each dataset. Bold: "
        "best of the column. The ranked summaries show which differences are significant.",
        head=("model", *(column.label for column in columns)),
        rows=tuple((Cell(text=m), *(column.cell(m) for column in columns)) for m in models),
    )


def summary(data: DatasetResults) -> Table | None:
    """Models ranked by NMSE, with accuracy and cost side by side."""
    metrics = [
        Metric("NMSE", "nmse", note="interval"),
        Metric("NMSE, mean over flows", "nmse_flow_mean", note="none"),
        Metric("skill", "skill", note="none"),
        Metric("R²", "r2", note="none"),
        Metric("RMSE", "rmse", note="none"),
        Metric("win rate", "win_rate", form=percent, note="none"),
    ]
    columns = [
        *(measured(data, metric) for metric in metrics),
        parameters(data),
        cost_column(data, f"ms at batch {BATCH}", lambda run: batch_cost(run, BATCH)),
        training_time(data),
    ]
    caption = (
        "NMSE of all channels in physical units, with its 95 % interval where the data suffice "
        "(for several seeds: lowest to highest end). Skill is relative to persistence, which has "
        "skill 0. Win rate: share of test frames on which the model has the lowest error; ties are "
        f"shared. {marks(data)} A difference is significant if its 95 % interval, from the same "
        "bootstrap resamples for both models, excludes zero. Intervals cover the choice of test "
        f"frames only.{shared_device_text(data)}"
    )
    if data.incomplete:
        caption += (
            f" Models with seeds that failed or have no finite error come last and have no mean: "
            f"{', '.join(data.incomplete)}."
        )
    table = table_of(data, "summary", f"{data.name}: next frame, ranked", caption, columns)
    if table is None:
        return None
    rows = [(Cell(text=str(n), number=n), *row) for n, row in enumerate(table.rows, 1)]
    return replace(table, head=("rank", *table.head), rows=tuple(rows), header=1)


def seeds(data: DatasetResults) -> Table | None:
    """NMSE of every seed; None for one seed."""
    if len(data.seeds) < 2:
        return None
    found = {m: {r["seed"]: r["value"] for r in data.find(m, "nmse")} for m in data.models}
    known = {m: [v for v in by_seed.values() if v is not None] for m, by_seed in found.items()}
    spread = {m: statistics.stdev(v) if len(v) > 1 else None for m, v in known.items()}
    for model in set(UNTRAINED) & set(found):  # one run holds for every seed
        found[model] = dict.fromkeys(data.seeds, data.value(model, "nmse"))
    columns = [
        _lower("mean NMSE", {m: data.value(m, "nmse") for m in data.models}),
        Numbers(label="standard deviation", values=spread),
        *(
            Numbers(label=f"seed {n}", values={m: found[m].get(n) for m in found}, better="lower")
            for n in data.seeds
        ),
    ]
    caption = "Bold: best of the column. Predictors without training are the same for all seeds."
    return table_of(data, "seeds", "NMSE over seeds", caption, columns)


def paired(data: DatasetResults) -> Table | None:
    """The tested model against every other: ratio of errors and corrected p-value."""
    tests = {test["against"]: test for test in data.facts.get("paired_tests", ())}
    if not tests:
        return None
    tested = next(iter(tests.values()))["model"]
    rows = []
    for model in (model for model in data.models if model in tests):
        test = tests[model]
        note = span_text((test["low"], test["high"]))
        verdict = UNKNOWN
        if test["p_holm"] is not None and test["ratio"] is not None:
            better = tested if test["ratio"] > 1 else model
            verdict = f"{better} better" if test["p_holm"] < 0.05 else "not significant"
        numbers = (_number(test["ratio"], note), _number(test["p"]), _number(test["p_holm"]))
        rows.append((Cell(text=model), *numbers, Cell(text=verdict)))
    seeds = "other flows and other seeds"
    if len(data.seeds) < 2:
        seeds = "other flows, of one seed, which leaves out chance in training"
    if "blocks" in data.facts["intervals"]:
        seeds = seeds.replace("other flows", "other times of this flow")
    caption = (
        f"NMSE of the next frame relative to {tested}, with its 95 % interval: above 1 {tested} is "
        f"better. Intervals are a paired bootstrap over {data.facts['intervals']}, p-values a sign "
        f"flip permutation test; with several seeds also Student's t over seeds, of which the "
        f"larger counts. They are two-sided, about {seeds}, and corrected for {len(tests)} tests "
        "by Holm's method. Significant: corrected p below 0.05."
    )
    return Table(
        name=slug(f"{data.name}-paired"),
        title=f"{tested} against each model",
        caption=caption,
        head=("model", f"NMSE / {tested}", "p", "p, corrected", "result"),
        rows=tuple(rows),
    )


def rates(data: DatasetResults) -> Table | None:
    """How often each model is the best of a frame: along slices and in bands of the spectrum."""
    speed = "|u|" if "v" in data.spec.channels else data.spec.channels[0]
    rated = [("all points", "", "all")]
    if data.info["has_body"]:
        rated += [(key.replace("_", " "), f"slice_{key}_rel_l2_", speed) for key in SLICES]
    rated += [(f"{band} band", "band_spectrum_error_", band) for band in BANDS]
    columns = []
    for label, prefix, component in rated:
        wins, twos = (
            measured(data, Metric(label, f"{prefix}{kind}", component, form=percent, note="none"))
            for kind in ("win_rate", "top_two_rate")
        )
        if wins is not None and twos is not None:
            notes = {m: f"({percent(v)})" for m, v in twos.values.items() if v is not None}
            columns.append(replace(wins, notes=notes))
    caption = (
        "Share of the test frames on which the model has the lowest error and, in brackets, one of "
        f"the two lowest: of the whole frame; relative L2 of {speed} along each slice (columns "
        "are counted on 64, and scaled to the grid width); error of the spectrum in each third of "
        "the wavenumbers, which ignores phase. Ties are shared. The rates depend on which models "
        "take part."
    )
    return table_of(data, "rates", "Win and top-two rates", caption, columns)


def _number(value: float | None, note: str = "") -> Cell:
    return Cell(text=UNKNOWN if value is None else digits(value), number=value, note=note)


def flow_errors(
    data: DatasetResults, model: str, metric: str, lead: int | None = None, kind: str = "flows"
) -> list[float | None]:
    """A metric of every test flow or of ``conditions``, mean over seeds; empty without any."""
    runs = [
        row[kind] or ()
        for row in data.results.get("by_flow", ())
        if (row["data"], row["model"]) == (data.name, model)
        and (row["metric"], row["lead"]) == (metric, lead)
    ]
    lost = [None] * data.failed[model]
    return [mean_of([*seeds, *lost]) for seeds in zip(*runs, strict=True)]


def flows(data: DatasetResults) -> Table | None:
    """How the pooled error is spread over the test flows."""
    errors = {m: values for m in data.models if (values := flow_errors(data, m, "nmse"))}
    if not errors or len(next(iter(errors.values()))) < 2:
        return None
    names = [flow["name"] for flow in data.facts["flows"]]
    known = {m: [v for v in values if v is not None] for m, values in errors.items()}
    known = {m: values for m, values in known.items() if values}
    worst: dict[str, float | None] = {m: max(values) for m, values in known.items()}
    won = dict.fromkeys(errors, 0.0)
    for flow in range(len(names)):
        here = {m: v for m, values in errors.items() if (v := values[flow]) is not None}
        if here:
            won[min(here, key=here.__getitem__)] += 1
    columns = [
        measured(data, Metric("NMSE, pooled", "nmse")),
        measured(data, Metric("mean over flows", "nmse_flow_mean")),
        _lower("median flow", {m: statistics.median(values) for m, values in known.items()}),
        _lower("worst flow", worst, {m: names[errors[m].index(v)] for m, v in worst.items()}),
        measured(data, Metric("share of the worst", "largest_flow_share", form=percent)),
        Numbers(label="flows won ↑", values=won, better="higher", form=lambda n: f"{n:.0f}"),
    ]
    caption = (
        f"NMSE of the next frame, all channels, {len(names)} test flows. Pooled: over all points "
        "of all flows; then mean, median and maximum of the NMSE of single flows. Share of the "
        "worst: contribution of the flow with the largest squared error to the total; "
        f"{percent(1 / len(names))} would be an equal share. Flows won: number of flows on which "
        f"the model has the lowest NMSE. Means over seeds. {marks(data)}"
    )
    return table_of(data, "flows", "Flow by flow", caption, columns)


_MOST_CONDITIONS = 8
"""Conditions that get a column each."""


def conditions(data: DatasetResults) -> Table | None:
    """NMSE of the next frame for every condition; None without conditions, or with many."""
    listed = data.facts.get("conditions") or ()
    if not 1 < len(listed) <= _MOST_CONDITIONS:
        return None
    errors = {m: flow_errors(data, m, "nmse", kind="conditions") for m in data.models}
    columns = []
    for number, condition in enumerate(listed):
        values = condition["parameters"].items()
        label = ", ".join(f"{name} {digits(value)}" for name, value in values)
        known = {m: found[number] for m, found in errors.items() if found}
        columns.append(_lower(f"{label} ({condition['flows']})", known))
    caption = (
        "NMSE of the next frame, all channels, pooled over the flows of each condition, whose "
        "number is in brackets. Bold: best of the column. Means over seeds."
    )
    return table_of(data, "conditions", "Condition by condition", caption, columns)


def _lower(
    label: str, values: Mapping[str, float | None], notes: Mapping[str, str] | None = None
) -> Numbers:
    return Numbers(label=f"{label} ↓", values=values, better="lower", notes=notes or {})
