"""Rollouts: lead times, statistics of free runs, benchmark metrics, diagnostics of the equation."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pibert.evaluation.family_diagnostics import DATA
from pibert.evaluation.scales import BANDS
from pibert.physics import find_family
from pibert.report.comparison.results import DatasetResults, mean_of
from pibert.report.comparison.table import (
    Cell,
    Format,
    Numbers,
    Table,
    digits,
    interval_of,
    marks,
    measured,
    percent,
    table_of,
)


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
    facts: Mapping[str, Any] = next(
        (run["rollout"] for run in data.runs if "rollout" in run), {"starts": 0}
    )
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
