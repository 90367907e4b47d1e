"""All tables of a report: a table is a function of ``DatasetResults`` and a line in ``TABLES``.

A function returns None where nothing was measured for its table. Every table lists all models, best
first.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pibert.evaluation.family_diagnostics import DATA
from pibert.evaluation.regions import DOWNSTREAM, PAPER_COLUMNS
from pibert.evaluation.scales import BANDS, GROUPS, SCALES
from pibert.physics import find_family
from pibert.report.comparison.results import UNTRAINED, DatasetResults, mean_of
from pibert.report.comparison.table import (
    UNKNOWN,
    Cell,
    Format,
    Numbers,
    Table,
    digits,
    duration,
    has_intervals,
    integer,
    interval_of,
    marks,
    measured,
    percent,
    scaled,
    size,
    slug,
    table_of,
)
from pibert.report.comparison.text import (
    external_runs,
    monitored,
    shared_device_text,
    trial_text,
    tuned_models,
)

BATCH = 128
"""Batch size whose inference time stands in the ranked summary."""
_MOST_CONDITIONS = 8
"""Conditions that get a column each."""
_POINTWISE = {
    "nmse": "NMSE",
    "lmae": "LMAE",
    "lpcc": "LPCC",
    "r2": "R²",
    "rel_l2": "RelL2",
    "rmse": "RMSE",
}
Run = Mapping[str, Any]


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


def _lower(
    label: str, values: Mapping[str, float | None], notes: Mapping[str, str] | None = None
) -> Numbers:
    return Numbers(label=f"{label} ↓", values=values, better="lower", notes=notes or {})


def _metrics(
    data: DatasetResults, name: str, title: str, caption: str, columns: Iterable[Sequence[str]]
) -> Table | None:
    """A table of columns (label, metric, component), the last one optional."""
    numbers = [measured(data, *column) for column in columns]
    return table_of(data, name, title, f"{caption} {marks(data)}", numbers)


def summary(data: DatasetResults) -> Table | None:
    """Models ranked by NMSE, with accuracy and cost side by side."""
    metrics = {
        "NMSE, mean over flows": "nmse_flow_mean",
        "skill": "skill",
        "R²": "r2",
        "RMSE": "rmse",
    }
    columns = [
        measured(data, "NMSE", "nmse", note="interval"),
        *(measured(data, label, metric, note="none") for label, metric in metrics.items()),
        measured(data, "win rate", "win_rate", form=percent, note="none"),
        _parameters(data),
        _cost(data, f"ms at batch {BATCH}", lambda run: batch_cost(run, BATCH)),
        _training_time(data),
    ]
    certain = has_intervals(data)
    over = " (for several seeds: lowest to highest end)" if len(data.seeds) > 1 else ""
    with_interval = f" with its 95 % interval{over}" if certain else ""
    significance = (
        " A difference is significant if its 95 % interval, from the same bootstrap resamples for "
        "both models, excludes zero."
    )
    caption = (
        f"NMSE of all channels in physical units{with_interval}. Skill is relative to persistence, "
        "which has skill 0. Win rate: share of test frames on which the model has the lowest "
        f"error; ties are shared. {marks(data)}{significance if certain else ''}"
        f"{shared_device_text(data)}"
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
        ends = (test["low"], test["high"])
        note = "" if None in ends else f"[{digits(ends[0])}, {digits(ends[1])}]"
        verdict = UNKNOWN
        if test["p_holm"] is not None and test["ratio"] is not None:
            better = tested if test["ratio"] > 1 else model
            verdict = f"{better} better" if test["p_holm"] < 0.05 else "not significant"
        numbers = (_number(test["ratio"], note), _number(test["p"]), _number(test["p_holm"]))
        rows.append((Cell(text=model), *numbers, Cell(text=verdict)))
    caption = (
        f"NMSE of the next frame relative to {tested}, with its 95 % interval: above 1 {tested} is "
        f"better. Paired bootstrap of 10,000 resamples over {data.facts['intervals']} and seeds, "
        f"so no p-value is below 2e-4; p-values are two-sided and corrected for {len(tests)} tests "
        "by Holm's method. Significant: corrected p below 0.05. With few flows or "
        "seeds the true p-values are somewhat larger."
    )
    return Table(
        name=slug(f"{data.name}-paired"),
        title=f"{tested} against each model",
        caption=caption,
        head=("model", f"NMSE / {tested}", "p", "p, corrected", "result"),
        rows=tuple(rows),
    )


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
    return [None if None in seeds else mean_of(seeds) for seeds in zip(*runs, strict=True)]


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
        measured(data, "NMSE, pooled", "nmse"),
        measured(data, "mean over flows", "nmse_flow_mean"),
        _lower("median flow", {m: statistics.median(values) for m, values in known.items()}),
        _lower("worst flow", worst, {m: names[errors[m].index(v)] for m, v in worst.items()}),
        measured(data, "share of the worst", "largest_flow_share", form=percent),
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


def components(data: DatasetResults) -> list[Table]:
    """A table for every channel, the speed, and all channels together."""
    tables = []
    for name in _components(data):
        columns = [(label, metric, name) for metric, label in _POINTWISE.items()]
        short = {"|u|": "speed"}.get(name, name)
        title = {"|u|": "Speed |u|", "all": "All channels"}.get(name, f"Component {name}")
        caption = "Next frame, physical units, pooled over all known points."
        tables.append(_metrics(data, f"component-{short}", title, caption, columns))
    return [table for table in tables if table is not None]


def _components(data: DatasetResults, metric: str = "nmse") -> dict[str, None]:
    """Components of a metric, in the order of the records."""
    return dict.fromkeys(r["component"] for r in data.records if r["metric"] == metric)


def standardised(data: DatasetResults) -> Table | None:
    """NMSE and R² in standardised units, for comparison with published tables."""
    columns = [
        measured(data, f"{label} {name}", metric, name, space="standardised")
        for metric, label in (("nmse", "NMSE"), ("r2", "R²"))
        for name in _components(data)
    ]
    caption = (
        "Each channel minus its training mean, divided by its training standard deviation: the "
        f"units of published tables. In these units |u| is not the speed. {marks(data)}"
    )
    return table_of(data, "standardised", "Standardised units", caption, columns)


def scales(data: DatasetResults) -> Table | None:
    """Errors from large to small scales."""
    columns = [
        *((f"scale {k}", f"scale_{k}_nmse") for k in SCALES),
        *((f"Haar {group}", "haar_nmse", group) for group in GROUPS),
    ]
    caption = (
        "NMSE after averaging over k × k points (scale k), and of the sub-bands of a three-level "
        "Haar transform, averaged over channels and bands: coarse is level 3, fine is level 1."
    )
    return _metrics(data, "scales", "Errors by scale", caption, columns)


def haar(data: DatasetResults) -> list[Table]:
    """Errors of every Haar sub-band, a table for each channel."""
    caption = (
        "NMSE of each sub-band. L is low, H is high, first along x, then along y; the number is "
        "the level."
    )
    tables = []
    for channel in data.spec.channels:
        start = f"{channel}_"
        names = [name for name in _components(data, "haar_nmse") if name.startswith(start)]
        columns = [(name.removeprefix(start), "haar_nmse", name) for name in names]
        title = f"Haar sub-bands of {channel}"
        tables.append(_metrics(data, f"haar-{channel}", title, caption, columns))
    return [replace(table, is_folded=True) for table in tables if table is not None]


def spectra(data: DatasetResults) -> Table | None:
    """Errors by band of the radial spectrum."""
    energy = "kinetic_energy"
    columns = [
        *(measured(data, f"NMSE, {band}", "band_nmse", band) for band in BANDS),
        *(measured(data, f"spectrum, {band}", "band_spectrum_error", band) for band in BANDS),
        measured(data, "log spectrum", "spectral_log_error", energy),
        measured(data, "slope", "spectral_slope", "prediction", truth="truth"),
        measured(data, "slope error", "spectral_slope_error", energy),
    ]
    caption = (
        "Bands are thirds of the wavenumber range. NMSE of the band-passed field, which includes "
        "phase errors; relative error of the radial spectrum, which does not; root mean square "
        f"error of the logarithm of the spectrum; and its slope. {marks(data)}"
    )
    return table_of(data, "spectra", "Spectral bands", caption, columns)


def physics(data: DatasetResults) -> Table | None:
    """Vorticity, divergence, boundary and near-body errors."""
    square = "divergence_mean_square"
    columns = [
        measured(data, "vorticity NMSE", "vorticity_nmse", "vorticity"),
        measured(data, "vorticity RMSE", "vorticity_rmse", "vorticity"),
        measured(data, "divergence RMSE", "divergence_rmse", "divergence"),
        measured(data, "mean square divergence", square, "prediction", truth="truth"),
        measured(data, "boundary NMSE", "boundary_nmse"),
        measured(data, "boundary MSE", "boundary_mse"),
        measured(data, "near-body NMSE", "near_body_nmse"),
        measured(data, "near-body RMSE", "near_body_rmse"),
    ]
    caption = (
        "Compare the divergence with that of the data (last row), which is not zero on a grid; a "
        "lower divergence than that of the data is not an improvement. Near the body: within half "
        f"a diameter. {marks(data)}"
    )
    return table_of(data, "physics", "Vorticity, divergence, boundary", caption, columns)


def slices(data: DatasetResults) -> Table | None:
    """Errors along columns of the grid and along the wake line."""
    velocity = "|u|" if "v" in data.spec.channels else data.spec.channels[0]
    keys = [*DOWNSTREAM, *(f"column_{number}" for number in PAPER_COLUMNS)]
    columns = [
        *((key.replace("_", " "), f"slice_{key}_rel_l2", velocity) for key in keys),
        ("wake line u", "wake_line_rel_l2", "u"),
        ("wake line vorticity", "wake_line_rel_l2", "vorticity"),
    ]
    where = "the paper's fixed columns 11, 32 and 52 of 64, scaled to the grid width"
    if data.info.get("has_body"):
        where = (
            f"columns 0.75, 2 and 4 diameters downstream of the body's centre, along {where}, and "
            "along the row through the body's centre, downstream of it"
        )
    caption = f"Relative L2 error of {velocity} along {where}."
    return _metrics(data, "slices", "Slices and wake line", caption, columns)


def temporal(data: DatasetResults) -> Table | None:
    """Energy at probes of one-step predictions."""
    columns = [
        *(
            measured(data, f"{band} band", f"psd_ratio_{band}", ideal=1.0, form=digits)
            for band in BANDS
        ),
        measured(data, "log PSD error", "psd_log_error"),
    ]
    caption = (
        "Power at probes, predicted over true, in thirds of the frequency range: 1 is correct, "
        "bold is nearest to 1. One-step (teacher-forced) predictions: each frame is predicted from "
        "the true frame before it. Persistence repeats the truth one step late, so its spectra are "
        "correct by construction. The numbers show how much energy one step adds or removes, not "
        f"the dynamics of a rollout. {marks(data)}"
    )
    return table_of(data, "temporal", "Energy in time, one-step predictions", caption, columns)


def official(data: DatasetResults) -> Table | None:
    """RealPDEBench's own metrics."""
    metrics = dict.fromkeys(
        (r["metric"], r["component"]) for r in data.records if r["metric"].startswith("official_")
    )
    columns = [(m.removeprefix("official_").replace("_", " "), m, c) for m, c in metrics]
    caption = (
        "Computed as in the benchmark's code, including its peculiarities, but for one-step "
        "(teacher-forced) predictions, in which persistence keeps every frequency. The benchmark's "
        "own tables are for 20 frames at once and are not comparable."
    )
    title = "RealPDEBench metrics, one-step predictions"
    return _metrics(data, "official", title, caption, columns)


def official_rollouts(data: DatasetResults) -> list[Table]:
    """RealPDEBench's metrics and the scores of its competition, of whole rollouts."""
    found = dict.fromkeys(r["metric"] for r in data.records if r["space"] == "rollout")
    steps = data.first(data.models[0]).card.get("rollout", {}).get("steps", 0)
    texts = {
        "official": (
            "RealPDEBench metrics, rollouts",
            f"Computed as in the benchmark's code for rollouts of {steps} frames. With 20 frames "
            "from 20 and the published split this is the benchmark's protocol.",
        ),
        "competition": (
            "Scores of the RealPDE competition",
            "0 to 100. Intervals are those of an entry that gives none: 5 % of the prediction to "
            "either side. The scores of the competition's leaderboard are for hidden flows.",
        ),
    }
    tables = []
    for prefix, (title, caption) in texts.items():
        columns = [
            measured(data, m.removeprefix(f"{prefix}_").replace("_", " "), m, space="rollout")
            for m in found
            if m.startswith(f"{prefix}_")
        ]
        tables.append(
            table_of(data, f"{prefix}-rollouts", title, f"{caption} {marks(data)}", columns)
        )
    return [table for table in tables if table is not None]


def family(data: DatasetResults) -> Table | None:
    """What solutions of the governing equation satisfy, for whole rollouts."""
    name = data.spec.family
    names = find_family(name).diagnostic_names if name else ()
    columns = [measured(data, m.replace("_", " "), m, space="rollout", truth=DATA) for m in names]
    caption = (
        f"How far rollouts are from what every solution of the equation ({name}) satisfies; zero "
        f"is best. {marks(data)}"
    )
    return table_of(data, "family", "Diagnostics of the equation, rollouts", caption, columns)


def ensembles(data: DatasetResults) -> Table | None:
    """Scores of single samples and of ensembles, for models that sample."""
    facts = {m: card for m in data.models if (card := data.first(m).card.get("draws"))}
    if not facts:
        return None
    components = (*data.spec.channels, "all")
    columns = [
        measured(data, "NMSE of a member", "draw_nmse"),
        measured(data, "NMSE of the mean", "draws_mean_nmse"),
        *(measured(data, f"spread {name}", "draws_spread", name) for name in components),
        *(
            measured(data, f"spread-skill {name}", "spread_skill", name, ideal=1.0)
            for name in components
        ),
        *(measured(data, f"CRPS {name}", "crps", name) for name in components),
    ]
    first = next(iter(facts.values()))
    caption = (
        f"{first['draws']} ensemble members for each of {first['frames']} evenly spaced test "
        "frames, physical units. Spread: root mean square of the standard deviation over members. "
        "Spread-skill: spread over the error of the mean, corrected for the number of members; 1 "
        "is reliable, less is overconfident. CRPS is the fair estimate; for a single prediction it "
        "equals the mean absolute error. Models that do not sample have no row."
    )
    table = table_of(data, "ensembles", "Ensembles", caption, columns)
    if table is None:
        return None
    return replace(table, rows=tuple(row for row in table.rows if row[0].text in facts))


def cost(data: DatasetResults) -> Table | None:
    """Size, time and memory of each model."""
    columns = [
        _parameters(data),
        _cost(data, "checkpoint", lambda run: run["cost"]["checkpoint_bytes"], size),
        _training_time(data),
        _cost(data, "ms at batch 1", lambda run: batch_cost(run, 1)),
        _cost(data, f"ms at batch {BATCH}", lambda run: batch_cost(run, BATCH)),
        _cost(data, "peak memory", lambda run: batch_cost(run, BATCH, "peak_bytes"), size),
        _cost(data, "FLOPs", lambda run: run["cost"]["flops"], scaled),
        _cost(data, "sampler steps", lambda run: run["cost"].get("sampler_steps"), integer),
    ]
    devices = dict.fromkeys(run["cost"]["device"] for run in data.runs if "cost" in run)
    caption = (
        "Milliseconds per sample: median of synchronised calls after warm-up, on "
        f"{'; '.join(devices) or 'an unknown device'}. Peak memory at batch {BATCH}, GPU only. "
        "FLOPs of one sample count matrix products and convolutions, not Fourier transforms. "
        f"Training time includes pretraining.{shared_device_text(data)}"
    )
    return table_of(data, "cost", "Cost", caption, columns)


def _cost(
    data: DatasetResults,
    label: str,
    read: Callable[[Run], int | float | None],
    form: Format = digits,
) -> Numbers:
    """The mean over the runs of each model."""
    values = {
        model: mean_of([read(r) for r in data.runs if r["model"] == model and "cost" in r])
        for model in data.models
    }
    return Numbers(label=label, values=values, form=form)


def _parameters(data: DatasetResults) -> Numbers:
    return _cost(data, "parameters", lambda run: run["cost"]["parameters"], integer)


def batch_cost(run: Run, count: int, what: str = "ms_per_sample") -> int | float | None:
    """The cost of a batch of this size; None where it was not measured."""
    batches = (run.get("cost") or {}).get("batches", ())
    return next((b[what] for b in batches if b["batch"] == count), None)


def training_seconds(run: Run) -> float | None:
    """Training time of a run, pretraining included; None without training."""
    stages = (run.get("training") or {}).values()
    return sum(stage["seconds"] for stage in stages) if stages else None


def _training_time(data: DatasetResults) -> Numbers:
    """Training time, with a note where other runs used the device, or where that is unknown."""
    column = _cost(data, "training", training_seconds, duration)
    notes = {}
    for run in data.runs:
        shared = run.get("shared_device", (run.get("at_a_time") or 1) > 1)
        if shared is not False and column.values.get(run["model"]) is not None:
            notes[run["model"]] = "shared device" if shared else "trained elsewhere"
    return replace(column, notes=notes)


def training(data: DatasetResults) -> Table | None:
    """Budget and chosen epoch of each model."""

    def stage(run: Run, name: str = "training") -> Run:
        return run.get("training", {}).get(name, {})

    def reached(run: Run) -> int | float | None:
        monitor = data.results["comparison"]["training"]["monitor"]
        losses = {epoch: values.get(monitor) for epoch, values in stage(run).get("curve", [])}
        return losses.get(stage(run).get("best_epoch"))

    def pretrained(run: Run) -> int | float | None:
        return stage(run, "pretraining").get("epochs")

    def samples(run: Run) -> int | float | None:
        seen = [stage.get("samples") for stage in run.get("training", {}).values()]
        return sum(seen) if seen and None not in seen else None

    columns = [
        _cost(data, "samples seen", samples, integer),
        _cost(
            data, "pretraining epochs", lambda run: stage(run, "pretraining").get("epochs"), integer
        ),
        _cost(data, "epochs", lambda run: stage(run).get("epochs"), integer),
        _cost(data, "best epoch", lambda run: stage(run).get("best_epoch"), integer),
        _cost(data, "validation loss there", reached),
        _training_time(data),
    ]
    external = [name for name in external_runs(data.results) if name in data.models]
    exempt = f" except {', '.join(external)}, trained elsewhere," if external else ""
    caption = (
        f"All models{exempt} see the same number of samples to within half an epoch, repetitions "
        "and pretraining included. The epoch is chosen on the validation split; if the best epoch "
        f"is the last one, more training might help.{shared_device_text(data)}"
    )
    return table_of(data, "training", "Training", caption, columns)


def tuning(data: DatasetResults) -> Table | None:
    """Validation error of each tuning trial, the chosen one in bold."""
    records = tuned_models(data.results, data.name)
    if not records:
        return None
    settings = tuned_settings(records)
    rows = [_tuned_row(data, model, records.get(model), settings) for model in data.models]
    on = ", ".join(dict.fromkeys(record["tuned_on"] for record in records.values()))
    caption = (
        f"Columns of an optimiser and a rate: {monitored(data.results)} on the validation split, "
        f"best epoch of the trial. Bold: chosen for training. {trial_text(data.results)} Trials "
        f"were run on {on}. Training times exclude them."
    )
    return Table(
        name=slug(f"{data.name}-tuning"),
        title="Tuning",
        caption=caption,
        head=("model", "optimiser", "learning rate", *(f"{o} {r:g}" for o, r in settings)),
        rows=tuple(rows),
    )


def tuned_settings(records: Mapping[str, Run]) -> list[tuple[str, float]]:
    """Optimiser and learning rate of all trials, by optimiser and rising rate."""
    trials = [trial for record in records.values() for trial in record["trials"]]
    order = list(dict.fromkeys(trial["optimizer"] for trial in trials))
    found = {(trial["optimizer"], trial["learning_rate"]) for trial in trials}
    return sorted(found, key=lambda setting: (order.index(setting[0]), setting[1]))


def _tuned_row(
    data: DatasetResults, model: str, record: Run | None, settings: Sequence[tuple[str, float]]
) -> tuple[Cell, ...]:
    if record is None:
        run = next(run for run in data.runs if run["model"] == model)
        name, rate = run.get("optimizer"), run.get("learning_rate")
        first = Cell(text=name or "not tuned", note="not tuned" if name else "")
        known = Cell(text=UNKNOWN if rate is None else f"{rate:g}", number=rate)
        return (Cell(text=model), first, known, *[Cell(text=UNKNOWN)] * len(settings))
    chosen = (record["chosen"]["optimizer"], record["chosen"]["learning_rate"])
    tried = {(trial["optimizer"], trial["learning_rate"]): trial for trial in record["trials"]}

    def error(setting: tuple[str, float]) -> Cell:
        if setting not in tried:
            return Cell(text=UNKNOWN)
        value = tried[setting].get("valid_error")
        if value is None:
            return Cell(text="diverged")
        return Cell(text=digits(value), number=value, best=setting == chosen)

    note = f"{record['edge']} tried" if record["edge"] else ""
    rate = Cell(text=f"{chosen[1]:g}", number=chosen[1], note=note)
    return (Cell(text=model), Cell(text=chosen[0]), rate, *map(error, settings))


def rollout(data: DatasetResults) -> Table | None:
    """Errors at some lead times, and how long rollouts stay useful."""
    curves = [scores.arrays.get("rollout/curves") for scores in data.scores.values()]
    steps = min((0 if curve is None else len(curve) for curve in curves), default=0)
    if not steps:
        return None
    leads = sorted({1, max(1, round(steps / 4)), max(1, round(steps / 2)), steps})
    column = partial(_rolled, data)
    columns = [
        *(column(f"NMSE at {lead} ↓", lead, "nmse", "lower") for lead in leads),
        column(f"correlation at {steps} ↑", steps, "correlation", "higher"),
        column(f"spectral drift at {steps} ↓", steps, "spectral_drift", "lower"),
        column(f"diverged at {steps} ↓", steps, "diverged", "lower", percent),
        column("stable horizon [frames] ↑", None, "stable_horizon", "higher"),
        column("stable to the end ↑", None, "stable_to_end", "higher", percent),
        column("relative L2 ↓", None, "rel_l2", "lower"),
        column("correlated [frames] ↑", None, "correlated_horizon", "higher"),
        column("nRMSE ↓", None, "nrmse", "lower"),
    ]
    time = "" if data.spec.dt is None else f" ({data.spec.dt:g} apart)"
    facts: Run = next((run["rollout"] for run in data.runs if "rollout" in run), {"starts": 0})
    starts, method = facts["starts"], str(facts.get("intervals", "none"))
    certain = "" if method.startswith("none") else f" In brackets: 95 % intervals over {method}."
    caption = (
        f"Each model continues from true frames with its own predictions: {starts} starts spread "
        f"over the test split, lead times in frames{time}. A rollout is stable until its squared "
        "error exceeds half the variance of the flow in time; a rollout that is stable to the end "
        "counts with all its frames, so its horizon is a lower bound. Correlated: frames until the "
        "correlation of the fluctuations with the truth falls below 0.5. Relative L2: over all "
        "frames of a rollout, mean over starts, as in the FNO paper. nRMSE: mean over starts, "
        f"geometric mean over lead times, as in APEBench. Bold: best of the column.{certain}"
    )
    return table_of(data, "rollout", "Rollout", caption, columns)


_STATISTICS = {
    "mean_error": "mean flow error",
    "stress_error": "stress error",
    "energy_ratio": "kinetic energy",
    "strouhal_error": "Strouhal error",
    "drag_error": "drag error",
    "survival": "survival",
    "diverged": "diverged",
}
_MORE_STATISTICS = {
    "mean_profile_error": "mean profiles",
    "stress_profile_error": "stress profiles",
    **{f"spectrum_ratio_{band}": f"{band} wavenumbers" for band in BANDS},
    "psd_log_error": "spectrum at probes",
    "distribution_error": "distribution",
    "memory_ratio": "correlation time",
}
_OF_MODELS = ("survival", "diverged")
"""Statistics that the truth does not have."""


def free_runs(data: DatasetResults) -> Table | None:
    """Statistics of free runs with their intervals, and the true flow's own sampling error."""
    facts = data.facts.get("free_run")
    if facts is None:
        return None
    frames = " to ".join(map(str, sorted(set(facts["frames"]))))
    method = str(facts["intervals"])
    certain = "No intervals, " + method.removeprefix("none: ")
    if not method.startswith("none"):
        certain = f"In brackets: 95 % intervals over {method}"
    caption = (
        f"Each model runs on its own from a true frame: {facts['runs']} runs of {frames} frames on "
        f"{facts['flows']} test flows. Frames then differ from the true ones, but a good model "
        "keeps the statistics. Errors: 0 is perfect. Kinetic energy of the fluctuations: predicted "
        "over true, 1 is perfect, bold is nearest to 1, within a factor of two. Last row: how far "
        "two stretches of the true flow differ, each as long as a run; an error of that size "
        "cannot be told from none. Survival: "
        "frames before a run leaves the range of the flow. Diverged: share of the runs that do; "
        f"the statistics of such a model are infinitely wrong (∞). {certain}. {marks(data)}"
    )
    return _free_run_table(data, "free-runs", "Statistics of free runs", caption, _STATISTICS)


def more_free_runs(data: DatasetResults) -> Table | None:
    """Profiles, spectra and distributions of free runs."""
    caption = (
        "Relative errors of the mean flow and of the Reynolds stresses along columns behind the "
        "body or across the field; energy of the fluctuations in thirds of the wavenumbers, "
        "predicted over true; error of the logarithm (base 10) of the power spectra at probes; "
        "distance between the distributions of values, in standard deviations; correlation time at "
        f"the probes, predicted over true. {marks(data)}"
    )
    title = "More statistics of free runs"
    return _free_run_table(data, "more-free-runs", title, caption, _MORE_STATISTICS)


def _free_run_table(
    data: DatasetResults, name: str, title: str, caption: str, metrics: Mapping[str, str]
) -> Table | None:
    columns, truth = [], [Cell(text="(truth against itself)")]
    lost = {m for m in data.models if (data.value(m, "free_run_diverged") or 0) > 0}
    for metric, label in metrics.items():
        column = measured(
            data,
            label,
            f"free_run_{metric}",
            ideal=1.0 if "ratio" in metric else None,
            form=percent if metric == "diverged" else digits,
            note="none" if metric == "diverged" else "interval",
        )
        if column is None:
            continue
        values = {m: math.inf if v is None and m in lost else v for m, v in column.values.items()}
        columns.append(replace(column, values=values))
        value = None if metric in _OF_MODELS else data.value("truth", f"free_run_{metric}")
        note = interval_of(data.find("truth", f"free_run_{metric}"))
        cell = Cell(text="") if value is None else Cell(text=digits(value), number=value, note=note)
        truth.append(cell)
    table = table_of(data, name, title, caption, columns)
    return None if table is None else replace(table, foot=(tuple(truth),))


def _rolled(
    data: DatasetResults,
    label: str,
    lead: int | None,
    metric: str,
    better: str,
    form: Format = digits,
) -> Numbers:
    """A metric at a lead time, or of the summary; mean over seeds."""
    found: dict[str, list[float | None]] = {model: [] for model in data.models}
    spans: dict[str, list[float]] = {model: [] for model in data.models}
    for (model, _), scores in data.scores.items():
        entries = scores.card.get("rollout", {}).get("entries" if lead else "summary", [])
        names = [(entry["metric"], entry["component"]) for entry in entries]
        if model in found and (metric, "all") in names:
            curves, summary = (scores.arrays[f"rollout/{name}"] for name in ("curves", "summary"))
            values = curves[lead - 1] if lead else summary
            place = names.index((metric, "all"))
            found[model].append(float(values[place]))
            if lead and form is digits and "rollout/low" in scores.arrays:
                ends = (scores.arrays[f"rollout/{end}"][lead - 1, place] for end in ("low", "high"))
                spans[model] += map(float, ends)
    means = {m: mean_of(values) for m, values in found.items()}
    notes = {
        m: f"[{digits(min(ends))}, {digits(max(ends))}]"
        for m, ends in spans.items()
        if ends and all(map(math.isfinite, ends))
    }
    return Numbers(label=label, values=means, better=better, form=form, notes=notes)


Maker = Callable[[DatasetResults], Table | Sequence[Table] | None]
TABLES: tuple[tuple[str, Maker], ...] = (
    ("Ranking", summary),
    ("Ranking", paired),
    ("Ranking", seeds),
    ("Rollout", rollout),
    ("Statistics", free_runs),
    ("Statistics", more_free_runs),
    ("Flows", flows),
    ("Flows", conditions),
    ("Components", components),
    ("Components", standardised),
    ("Scales", scales),
    ("Scales", spectra),
    ("Scales", haar),
    ("Physics", physics),
    ("Physics", family),
    ("Wake", slices),
    ("Time", temporal),
    ("Benchmark", official),
    ("Benchmark", official_rollouts),
    ("Model", ensembles),
    ("Cost", cost),
    ("Convergence", tuning),
    ("Convergence", training),
)
"""Section of the page and function of each table, in the order of the page."""


def tables_of(data: DatasetResults) -> list[tuple[str, Table]]:
    """All tables of a dataset with their sections."""
    found: list[tuple[str, Table]] = []
    for section, make in TABLES:
        tables = make(data)
        tables = [tables] if isinstance(tables, Table) else tables or ()
        found += [(section, table) for table in tables]
    return found
