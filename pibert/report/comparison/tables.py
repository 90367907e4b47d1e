"""All tables of a report: a table is a function of ``DatasetResults`` and a line in ``TABLES``.

A function returns None where nothing was measured for its table. Every table lists all models, best
first.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

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
        m: sum(own[m] for own in ranks.values()) / len(ranks)
        for m in models
        if all(m in own for own in ranks.values())
    }
    models.sort(key=lambda m: means.get(m, math.inf))
    columns = [Numbers(label="mean rank ↓", values=means, better="lower")]
    for data in datasets:
        errors: dict[str, float | None] = {m: data.value(m, "nmse") for m in models}
        notes = {m: f"#{own}" for m, own in ranks[data.name].items()}
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


def summary(data: DatasetResults) -> Table | None:
    """Models ranked by NMSE, with accuracy and cost side by side."""
    column = partial(measured, data, note="none")
    columns = [
        measured(data, "NMSE", "nmse", note="interval"),
        column("NMSE, mean over flows", "nmse_flow_mean"),
        column("skill", "skill"),
        column("R²", "r2"),
        column("RMSE", "rmse"),
        column("win rate", "win_rate", form=percent),
        _cost(data, "parameters", lambda run: run["cost"]["parameters"], integer),
        _cost(data, f"ms at batch {BATCH}", lambda run: _batch(run, BATCH, "ms_per_sample")),
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
    known = {m: [v for v in own.values() if v is not None] for m, own in found.items()}
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


def flow_errors(
    data: DatasetResults, model: str, metric: str, lead: int | None = None
) -> list[float | None]:
    """A metric of every test flow, mean over seeds; empty where it was not measured."""
    runs = [
        own["flows"]
        for own in data.results.get("by_flow", ())
        if (own["data"], own["model"]) == (data.name, model)
        and (own["metric"], own["lead"]) == (metric, lead)
    ]
    return [None if None in own else mean_of(own) for own in zip(*runs, strict=True)]


def flows(data: DatasetResults) -> Table | None:
    """How the pooled error is spread over the test flows."""
    errors = {m: own for m in data.models if (own := flow_errors(data, m, "nmse"))}
    if not errors or len(next(iter(errors.values()))) < 2:
        return None
    names = [flow["name"] for flow in data.facts["flows"]]
    known = {m: [v for v in own if v is not None] for m, own in errors.items()}
    known = {m: own for m, own in known.items() if own}
    worst: dict[str, float | None] = {m: max(own) for m, own in known.items()}
    won = dict.fromkeys(errors, 0.0)
    for flow in range(len(names)):
        here = {m: v for m, values in errors.items() if (v := values[flow]) is not None}
        if here:
            won[min(here, key=here.__getitem__)] += 1
    columns = [
        measured(data, "NMSE, pooled", "nmse"),
        measured(data, "mean over flows", "nmse_flow_mean"),
        _lower("median flow", {m: statistics.median(own) for m, own in known.items()}),
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


def components(data: DatasetResults) -> list[Table]:
    """A table for every channel, the speed, and all channels together."""
    found = dict.fromkeys(r["component"] for r in data.records if r["metric"] == "nmse")
    made = []
    for name in found:
        columns = [measured(data, label, metric, name) for metric, label in _POINTWISE.items()]
        short = {"|u|": "speed"}.get(name, name)
        title = {"|u|": "Speed |u|", "all": "All channels"}.get(name, f"Component {name}")
        caption = f"Next frame, physical units, pooled over all known points. {marks(data)}"
        made.append(table_of(data, f"component-{short}", title, caption, columns))
    return [table for table in made if table is not None]


def standardised(data: DatasetResults) -> Table | None:
    """NMSE and R² in standardised units, for comparison with published tables."""
    found = dict.fromkeys(r["component"] for r in data.records if r["metric"] == "nmse")
    columns = [
        measured(data, f"{label} {name}", metric, name, space="standardised")
        for metric, label in (("nmse", "NMSE"), ("r2", "R²"))
        for name in found
    ]
    caption = (
        "Each channel minus its training mean, divided by its training standard deviation: the "
        f"units of published tables. In these units |u| is not the speed. {marks(data)}"
    )
    return table_of(data, "standardised", "Standardised units", caption, columns)


def scales(data: DatasetResults) -> Table | None:
    """Errors from large to small scales."""
    columns = [
        *(measured(data, f"scale {k}", f"scale_{k}_nmse") for k in (1, 2, 4, 8)),
        *(
            measured(data, f"Haar {group}", "haar_nmse", group)
            for group in ("coarse", "intermediate", "fine")
        ),
    ]
    caption = (
        "NMSE after averaging over k × k points (scale k), and of the sub-bands of a three-level "
        "Haar transform, averaged over channels and bands: coarse is level 3, fine is level 1. "
        f"{marks(data)}"
    )
    return table_of(data, "scales", "Errors by scale", caption, columns)


def haar(data: DatasetResults) -> list[Table]:
    """Errors of every Haar sub-band, a table for each channel."""
    made = []
    names = dict.fromkeys(r["component"] for r in data.records if r["metric"] == "haar_nmse")
    for channel in data.spec.channels:
        start = f"{channel}_"
        columns = [
            measured(data, name.removeprefix(start), "haar_nmse", name)
            for name in names
            if name.startswith(start)
        ]
        caption = (
            "NMSE of each sub-band. L is low, H is high, first along x, then along y; the number "
            f"is the level. {marks(data)}"
        )
        title = f"Haar sub-bands of {channel}"
        made.append(table_of(data, f"haar-{channel}", title, caption, columns))
    return [replace(table, is_folded=True) for table in made if table is not None]


def spectra(data: DatasetResults) -> Table | None:
    """Errors by band of the radial spectrum."""
    column, energy = partial(measured, data), "kinetic_energy"
    bands = ("low", "mid", "high")
    columns = [
        *(column(f"NMSE, {band}", "band_nmse", band) for band in bands),
        *(column(f"spectrum, {band}", "band_spectrum_error", band) for band in bands),
        column("log spectrum", "spectral_log_error", energy),
        column("slope", "spectral_slope", "prediction", truth="truth"),
        column("slope error", "spectral_slope_error", energy),
    ]
    caption = (
        "Bands are thirds of the wavenumber range. NMSE of the band-passed field, which includes "
        "phase errors; relative error of the radial spectrum, which does not; root mean square "
        f"error of the logarithm of the spectrum; and its slope. {marks(data)}"
    )
    return table_of(data, "spectra", "Spectral bands", caption, columns)


def physics(data: DatasetResults) -> Table | None:
    """Vorticity, divergence, boundary and near-body errors."""
    column = partial(measured, data)
    columns = [
        column("vorticity NMSE", "vorticity_nmse", "vorticity"),
        column("vorticity RMSE", "vorticity_rmse", "vorticity"),
        column("divergence RMSE", "divergence_rmse", "divergence"),
        column("mean square divergence", "divergence_mean_square", "prediction", truth="truth"),
        column("boundary NMSE", "boundary_nmse"),
        column("boundary MSE", "boundary_mse"),
        column("near-body NMSE", "near_body_nmse"),
        column("near-body RMSE", "near_body_rmse"),
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
    keys = ("near_body", "wake_core", "far_wake", "column_11", "column_32", "column_52")
    columns = [
        *(measured(data, key.replace("_", " "), f"slice_{key}_rel_l2", velocity) for key in keys),
        measured(data, "wake line u", "wake_line_rel_l2", "u"),
        measured(data, "wake line vorticity", "wake_line_rel_l2", "vorticity"),
    ]
    fixed = "the paper's fixed columns 11, 32 and 52 of 64, scaled to the grid width"
    if columns[2] is None:
        where = fixed
    else:
        where = (
            f"columns 0.75, 2 and 4 diameters downstream of the body's centre, along {fixed}, and "
            "along the row through the body's centre, downstream of it"
        )
    caption = f"Relative L2 error of {velocity} along {where}. {marks(data)}"
    return table_of(data, "slices", "Slices and wake line", caption, columns)


def temporal(data: DatasetResults) -> Table | None:
    """Energy at probes of one-step predictions."""
    columns = [
        *(
            measured(data, f"{band} band", f"psd_ratio_{band}", ideal=1.0, form=digits)
            for band in ("low", "mid", "high")
        ),
        measured(data, "log PSD error", "psd_log_error"),
    ]
    error = data.value("persistence", "psd_log_error")
    known = "" if error is None else f" (log PSD error {digits(error)})"
    caption = (
        "Power at probes, predicted over true, in thirds of the frequency range: 1 is correct, "
        "bold is nearest to 1. One-step (teacher-forced) predictions: each frame is predicted from "
        "the true frame before it. Persistence repeats the truth one step late, so its spectra are "
        f"correct by construction{known}. The numbers show how much energy one step adds or "
        f"removes, not the dynamics of a rollout. {marks(data)}"
    )
    return table_of(data, "temporal", "Energy in time, one-step predictions", caption, columns)


def official(data: DatasetResults) -> Table | None:
    """RealPDEBench's own metrics."""
    found = dict.fromkeys(
        (r["metric"], r["component"]) for r in data.records if r["metric"].startswith("official_")
    )
    columns = [
        measured(data, m.removeprefix("official_").replace("_", " "), m, c) for m, c in found
    ]
    caption = (
        "Computed as in the benchmark's code, including its peculiarities, but for one-step "
        "(teacher-forced) predictions, in which persistence keeps every frequency. The benchmark's "
        f"own tables are for 20 frames at once and are not comparable. {marks(data)}"
    )
    title = "RealPDEBench metrics, one-step predictions"
    return table_of(data, "official", title, caption, columns)


def ensembles(data: DatasetResults) -> Table | None:
    """Scores of single samples and of ensembles, for models that sample."""
    facts = {m: own for m in data.models if (own := data.first(m).card.get("draws"))}
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
    column = partial(_cost, data)
    columns = [
        column("parameters", lambda run: run["cost"]["parameters"], integer),
        column("checkpoint", lambda run: run["cost"]["checkpoint_bytes"], size),
        _training_time(data),
        column("ms at batch 1", lambda run: _batch(run, 1, "ms_per_sample")),
        column(f"ms at batch {BATCH}", lambda run: _batch(run, BATCH, "ms_per_sample")),
        column("peak memory", lambda run: _batch(run, BATCH, "peak_bytes"), size),
        column("FLOPs", lambda run: run["cost"]["flops"], scaled),
        column("sampler steps", lambda run: run["cost"].get("sampler_steps"), integer),
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


def _batch(run: Run, count: int, what: str) -> int | float | None:
    sizes = {batch["batch"]: batch[what] for batch in run["cost"]["batches"]}
    return sizes.get(count)


def _training_time(data: DatasetResults) -> Numbers:
    """With a note where other runs used the device, or where nobody knows."""

    def seconds(run: Run) -> float | None:
        stages = run.get("training", {}).values()
        return sum(stage["seconds"] for stage in stages) if stages else None

    column = _cost(data, "training", seconds, duration)
    notes = {}
    for run in data.runs:
        shared = run.get("shared_device", (run.get("at_a_time") or 1) > 1)
        if shared is not False and column.values.get(run["model"]) is not None:
            notes[run["model"]] = "shared device" if shared else "trained elsewhere"
    return replace(column, notes=notes)


def training(data: DatasetResults) -> Table | None:
    """Budget and chosen epoch of each model."""

    def stage(run: Run) -> Run:
        return run.get("training", {}).get("training", {})

    def reached(run: Run) -> int | float | None:
        monitor = data.results["comparison"]["training"]["monitor"]
        own = {epoch: values.get(monitor) for epoch, values in stage(run).get("curve", [])}
        return own.get(stage(run).get("best_epoch"))

    def pretrained(run: Run) -> int | float | None:
        return run.get("training", {}).get("pretraining", {}).get("epochs")

    def samples(run: Run) -> int | float | None:
        found = [own.get("samples") for own in run.get("training", {}).values()]
        return sum(found) if found and None not in found else None

    column = partial(_cost, data)
    columns = [
        column("samples seen", samples, integer),
        column("pretraining epochs", pretrained, integer),
        column("epochs", lambda run: stage(run).get("epochs"), integer),
        column("best epoch", lambda run: stage(run).get("best_epoch"), integer),
        column("validation loss there", reached),
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
    return sorted(found, key=lambda own: (order.index(own[0]), own[1]))


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
    curves = [own.arrays.get("rollout/curves") for own in data.scores.values()]
    steps = min((0 if own is None else len(own) for own in curves), default=0)
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
    ]
    time = "" if data.spec.dt is None else f" ({data.spec.dt:g} apart)"
    starts = next((run["rollout"]["starts"] for run in data.runs if "rollout" in run), 0)
    caption = (
        f"Each model continues from true frames with its own predictions: {starts} starts spread "
        f"over the test split, lead times in frames{time}. A rollout is stable until its squared "
        "error exceeds half the variance of the flow in time; a rollout that is stable to the end "
        "counts with all its frames, so its horizon is a lower bound. Bold: best of the column."
    )
    return table_of(data, "rollout", "Rollout", caption, columns)


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
    for (model, _), scores in data.scores.items():
        entries = scores.card.get("rollout", {}).get("entries" if lead else "summary", [])
        names = [(entry["metric"], entry["component"]) for entry in entries]
        if model in found and (metric, "all") in names:
            curves, summary = (scores.arrays[f"rollout/{name}"] for name in ("curves", "summary"))
            values = curves[lead - 1] if lead else summary
            found[model].append(float(values[names.index((metric, "all"))]))
    means = {m: mean_of(own) for m, own in found.items()}
    return Numbers(label=label, values=means, better=better, form=form)


Maker = Callable[[DatasetResults], Table | Sequence[Table] | None]
TABLES: tuple[tuple[str, Maker], ...] = (
    ("Ranking", summary),
    ("Ranking", seeds),
    ("Flows", flows),
    ("Components", components),
    ("Components", standardised),
    ("Scales", scales),
    ("Scales", spectra),
    ("Scales", haar),
    ("Physics", physics),
    ("Wake", slices),
    ("Time", temporal),
    ("Benchmark", official),
    ("Model", ensembles),
    ("Cost", cost),
    ("Convergence", tuning),
    ("Convergence", training),
    ("Rollout", rollout),
)
"""Section of the page and function of each table, in the order of the page."""


def tables_of(data: DatasetResults) -> list[tuple[str, Table]]:
    """All tables of a dataset with their sections."""
    found: list[tuple[str, Table]] = []
    for section, make in TABLES:
        made = make(data)
        tables = [made] if isinstance(made, Table) else list(made or ())
        found += [(section, table) for table in tables]
    return found
