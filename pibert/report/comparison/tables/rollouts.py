"""Rollouts: lead times, statistics of free runs, benchmark metrics, diagnostics of the equation."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pibert.evaluation.leads import LEADS
from pibert.evaluation.measures import DATA
from pibert.evaluation.scales import BANDS
from pibert.evaluation.scores import Scores
from pibert.evaluation.structure import PHASE_PERIODS
from pibert.evaluation.vibration import AT_REST
from pibert.physics import find_family
from pibert.report.comparison.results import (
    COARSE_SOLVER,
    WAKE_OSCILLATOR,
    DatasetResults,
    describe_solver,
    mean_of,
)
from pibert.report.comparison.table import (
    Cell,
    Format,
    Metric,
    MetricTable,
    Numbers,
    Table,
    digits,
    interval_of,
    marks,
    measured,
    percent,
    span_text,
    table_of,
)

AllScores = Mapping[tuple[str, int], Scores]
"""By model and seed."""
SOLVER_ROW = "(solver, coarser grid)"


def rollout(data: DatasetResults) -> Table | None:
    """Errors at some lead times, and how long rollouts stay useful."""
    curves = [scores.arrays.get("rollout/curves") for scores in data.scores.values()]
    steps = min((0 if curve is None else len(curve) for curve in curves), default=0)
    if not steps:
        return None
    leads = sorted({1, max(1, round(steps / 4)), max(1, round(steps / 2)), steps})

    def columns(scores: AllScores) -> list[Numbers]:
        return [
            *(_rolled(scores, f"NMSE at {lead} ↓", lead, "nmse") for lead in leads),
            _rolled(scores, f"correlation at {steps} ↑", steps, "correlation"),
            _rolled(scores, f"spectral drift at {steps} ↓", steps, "spectral_drift"),
            _rolled(scores, "survival [frames] ↑", None, "survival"),
            _rolled(scores, "diverged ↓", None, "diverged", percent),
            _rolled(scores, "stable horizon [frames] ↑", None, "stable_horizon"),
            _rolled(scores, "stable to the end ↑", None, "stable_to_end", percent),
            _rolled(scores, "relative L2 ↓", None, "rel_l2"),
            _rolled(scores, "correlated [frames] ↑", None, "correlated_horizon"),
            _rolled(scores, "nRMSE ↓", None, "nrmse"),
        ]

    facts = next((run["rollout"] for run in data.runs if "rollout" in run), {"starts": 0})
    caption = (
        f"Each model continues from true frames with its own predictions: {facts['starts']} starts "
        "spread over the test split, lead times in frames. A rollout is stable until its squared "
        "error exceeds half the variance of the flow in time; one that is stable to the end counts "
        "with all its frames. Survival: frames before a rollout diverges: leaves the range "
        "of the flow. Correlated: frames until the correlation of the fluctuations with the truth "
        "falls below 0.5. Relative L2: over all frames of a rollout, mean over starts, "
        "as in the FNO paper. nRMSE: mean over starts, geometric mean over lead times, as in "
        f"APEBench. Bold: best of the column. Intervals (95 %): {facts.get('intervals', 'none')}."
    )
    shown, solver = columns(data.scores), data.coarse_solver
    # A mean over some of the seeds would look like that over all.
    shown = [
        replace(c, values={m: None if data.failed[m] else v for m, v in c.values.items()})
        for c in shown
    ]
    if solver is not None and "rollout" in solver.card:
        caption += f" Last row: {describe_solver(data.facts['coarse_solver'])}."
        shown = [
            replace(column, feet={SOLVER_ROW: own.cell(COARSE_SOLVER)})
            for column, own in zip(shown, columns({(COARSE_SOLVER, 0): solver}), strict=True)
        ]
    return table_of(data, "rollout", "Rollout", caption, shown)


def _rolled(
    scores: AllScores, label: str, lead: int | None, metric: str, form: Format = digits
) -> Numbers:
    """A metric at a lead time, or of the summary; mean over seeds."""
    found: dict[str, list[float | None]] = {model: [] for model, _ in scores}
    spans: dict[str, list[float]] = {model: [] for model, _ in scores}
    for (model, _), own in scores.items():
        entries = own.card.get("rollout", {}).get("entries" if lead else "summary", [])
        names = [(entry["metric"], entry["component"]) for entry in entries]
        if (metric, "all") in names:
            place, arrays = names.index((metric, "all")), own.group("rollout")
            values = arrays["curves"][lead - 1] if lead else arrays["summary"]
            found[model].append(float(values[place]))
            if lead and form is digits and "low" in arrays:
                spans[model] += [float(arrays[end][lead - 1, place]) for end in ("low", "high")]
    return Numbers(
        label=label,
        values={m: mean_of(values) for m, values in found.items()},
        better="higher" if label.endswith("↑") else "lower",
        form=form,
        notes={m: span_text(ends) for m, ends in spans.items()},
    )


def intervals(data: DatasetResults) -> Table | None:
    """Coverage and CRPS of prediction intervals by lead time; only calibrated models have them."""
    cards = (scores.card.get("rollout_intervals") for scores in data.scores.values())
    levels = {card["level"] for card in cards if card}
    columns = [
        Metric(f"{label} at {lead}", f"rollout_{name}", f"lead {lead}", note="interval", form=form)
        for name, label, form in (("coverage", "coverage", percent), ("crps", "CRPS", digits))
        for lead in LEADS
    ]
    caption = (
        "Prediction intervals of rollouts, by lead time in frames, of the models that have a "
        f"calibration from other flows. Nominal coverage: {', '.join(map(percent, levels))}."
    )
    title = "Prediction intervals in rollouts"
    return MetricTable("rollout-intervals", title, caption, columns)(data)


_VIBRATIONS = {
    "amplitude": "amplitude error ↓",
    "frequency": "frequency error ↓",
    "phase": f"phase error after {PHASE_PERIODS:g} periods ↓",
    "rms": "rms error ↓",
}


def vibrations(data: DatasetResults) -> Table | None:
    """Errors of the vibration of bodies, of all models and of the wake oscillator."""
    found = data.vibrations
    columns = []
    for measure, label in _VIBRATIONS.items():
        errors = {name: _errors(rows, measure) for name, rows in found.items()}
        known = {body for own in errors.values() for body, error in own if error < math.inf}
        shown = {name: [e for body, e in own if body in known] for name, own in errors.items()}
        values = {name: statistics.median(own) if own else None for name, own in shown.items()}
        columns.append(Numbers(label=label, values=values, better="lower"))
    shares: dict[str, tuple[str, Callable[[Mapping[str, Any]], bool]]] = {
        "right regime ↑": ("higher", _is_right_regime),
        "stopped ↓": ("lower", lambda row: row["stopped"]),
    }
    if not any("regime" in row["true"] for rows in found.values() for row in rows):
        del shares["right regime ↑"]
    for label, (better, counts) in shares.items():
        values = {n: sum(map(counts, rows)) / len(rows) for n, rows in found.items()}
        columns.append(Numbers(label=label, values=values, better=better, form=percent))
    caption = (
        "Every test flow is rolled out from its start to its end. Medians over flows of the errors "
        "of amplitude and frequency, relative to the true ones; of the phase, in periods; and of "
        "the displacement, over its standard deviation; bodies at rest are left out. Stopped: the "
        "rollout is not finite any more, or the body leaves the domain. ∞: it stopped, or the body "
        "stands still, in at least half of the flows. Regime: lock-in, outside of it, or at rest. "
        f"{_oscillator_text(data)} Bold: best of the column."
    )
    if WAKE_OSCILLATOR in found:
        columns = [replace(c, feet={WAKE_OSCILLATOR: c.cell(WAKE_OSCILLATOR)}) for c in columns]
    return table_of(data, "vibrations", "Vibration of bodies", caption, columns)


def _errors(rows: Sequence[Mapping[str, Any]], measure: str) -> list[tuple[tuple[str, str], float]]:
    """The error of every body that moves, by flow and name; infinite where nothing is predicted."""
    moving = (row for row in rows if row["true"]["amplitude"] >= AT_REST)
    found = (((row["flow"], row["body"]), row.get("errors", {}).get(measure)) for row in moving)
    return [(body, math.inf if error is None else error) for body, error in found]


def _is_right_regime(row: Mapping[str, Any]) -> bool:
    if row["stopped"]:
        return False
    true = row["true"].get("regime")
    return true is not None and row["predicted"]["regime"] == true


def _oscillator_text(data: DatasetResults) -> str:
    facts = data.facts.get("wake_oscillator", {})
    if "reason" in facts:
        return f"No wake oscillator: {facts['reason']}."
    return (
        "The wake oscillator of Facchinetti, de Langre and Biolley (2004), with coefficients "
        "fitted on the training flows, predicts the displacement alone, from three frames on."
    )


_STATISTICS = {
    "mean_error": "mean flow error",
    "stress_error": "stress error",
    "energy_ratio": "energy",
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
    "lift_rms_ratio": "rms lift",
    "lift_frequency_error": "lift frequency error",
}


def free_runs(data: DatasetResults) -> Table | None:
    """Statistics of free runs with their intervals, and the true flow's own sampling error."""
    facts = data.facts.get("free_run")
    if facts is None:
        return None
    frames = " to ".join(map(str, sorted(set(facts["frames"]))))
    caption = (
        f"Each model runs on its own from a true frame: {facts['runs']} runs of {frames} frames on "
        f"{facts['flows']} test flows. Frames then differ from the true ones, but a good model "
        "keeps the statistics. Errors: 0 is perfect; stress error: of the "
        f"{data.stresses}. Energy of the fluctuations: predicted over true, 1 is perfect, bold is "
        "nearest to 1. Last row: how far two stretches of the true flow differ, from the halves of "
        "each run; an error of that size is no different from zero. "
        f"{_solver_text(data)}"
        "Survival: frames before a run diverges, that is, leaves the range of the flow. Diverged: "
        "share of the runs that do; the statistics of such a model are infinitely wrong (∞). "
        f"Intervals (95 %): {facts['intervals']}. {marks(data)}"
    )
    return _free_run_table(data, "free-runs", "Statistics of free runs", caption, _STATISTICS)


def _solver_text(data: DatasetResults) -> str:
    facts = data.facts.get("coarse_solver")
    return f"Row before it: {describe_solver(facts)}. " if facts else ""


def more_free_runs(data: DatasetResults) -> Table | None:
    """Profiles, spectra and distributions of free runs."""
    caption = (
        f"Relative errors of the mean flow and of the {data.stresses} along columns behind the "
        "body or across the field; energy of the fluctuations in thirds of the wavenumbers, "
        "predicted over true; error of the logarithm (base 10) of the power spectra at probes; "
        "distance between the distributions of values, in standard deviations; correlation time at "
        "the probes, predicted over true. Where a model predicts the lift of a moving body: its "
        f"standard deviation, predicted over true, and the error of its frequency. {marks(data)}"
    )
    title = "More statistics of free runs"
    return _free_run_table(data, "more-free-runs", title, caption, _MORE_STATISTICS)


def _free_run_table(
    data: DatasetResults, name: str, title: str, caption: str, metrics: Mapping[str, str]
) -> Table | None:
    others = {"truth": "(truth against itself)"}
    if data.coarse_solver is not None:
        others = {COARSE_SOLVER: SOLVER_ROW, **others}
    columns: list[Numbers] = []
    lost = {m for m in data.models if (data.value(m, "free_run_diverged") or 0) > 0}
    for metric, label in metrics.items():
        ideal = 1.0 if "ratio" in metric else None
        form, note = (percent, "none") if metric == "diverged" else (digits, "interval")
        metric = f"free_run_{metric}"
        column = measured(data, Metric(label, metric, form=form, ideal=ideal, note=note))
        if column is None:
            continue
        values = {m: math.inf if v is None and m in lost else v for m, v in column.values.items()}
        feet = {}
        for model, foot in others.items():
            value, feet[foot] = data.value(model, metric), Cell(text="")
            if value is not None and (model != "truth" or label not in ("survival", "diverged")):
                spread = "" if note == "none" else interval_of(data.find(model, metric))
                feet[foot] = Cell(text=form(value), number=value, note=spread)
        columns.append(replace(column, values=values, feet=feet))
    return table_of(data, name, title, caption, columns)


def _of_rollouts(data: DatasetResults, prefix: str, title: str, caption: str) -> Table | None:
    """All metrics of whole rollouts whose names begin with a prefix."""
    found = dict.fromkeys(r["metric"] for r in data.records if r["space"] == "rollout")
    columns = [
        Metric(metric.removeprefix(prefix).replace("_", " "), metric, space="rollout")
        for metric in found
        if metric.startswith(prefix)
    ]
    return MetricTable(f"{prefix[:-1]}-rollouts", title, caption, columns)(data)


def official_rollouts(data: DatasetResults) -> Table | None:
    """RealPDEBench's metrics of whole rollouts."""
    caption = (
        "Computed as in the benchmark's code for whole rollouts. With 20 frames from 20 and the "
        "published split this is the benchmark's protocol."
    )
    return _of_rollouts(data, "official_", "RealPDEBench metrics, rollouts", caption)


def competition(data: DatasetResults) -> Table | None:
    """Scores of the RealPDE competition, of whole rollouts."""
    caption = (
        "0 to 100. Intervals are those of an entry that gives none: 5 % of the prediction to "
        "either side. The scores of the competition's leaderboard are for hidden flows."
    )
    return _of_rollouts(data, "competition_", "Scores of the RealPDE competition", caption)


def family(data: DatasetResults) -> Table | None:
    """What solutions of the governing equation satisfy, for whole rollouts."""
    name = data.spec.family
    names = find_family(name).diagnostic_names if name else ()
    columns = [Metric(m.replace("_", " "), m, space="rollout", truth=DATA) for m in names]
    caption = (
        f"How far rollouts are from what every solution of the equation ({name}) satisfies; zero "
        "is best."
    )
    title = "Diagnostics of the equation, rollouts"
    return MetricTable("family", title, caption, columns)(data)
