"""Result rows of one data set: every score of every run, with its interval.

Intervals (95 %) are bootstraps of the test split: over trajectories, or over blocks in time of
three correlation times if there are fewer than ten trajectories. All models share the resamples, so
a difference is that on the same frames.

Runs are compared in fields. The field of a seed has one run of every model: that of the seed, or
else the model's first, since predictors without training have no other.

A model is complete in a score if all of its planned seeds have a finite value. Means are over all
seeds, and only complete models have one: seeds that failed or diverged must not improve it.

``against_best`` is about one score, not the whole model. The best model of a score has the best
mean of the complete ones; its runs are ``best``. Any other run is compared with the run of that
model in the field of its seed: ``different`` if the interval of the difference excludes zero, else
``level``. None: there is no interval, or neither low nor high is better.

Rollouts and free runs are resampled by flow, or by stretches in time where there are fewer than ten
flows (``evaluation/scores.py``). Rows of the model ``truth`` hold the true flow's sampling error
(``evaluation/statistics.py``), those of ``coarse-solver`` the solver on a coarser grid
(``comparison/coarse_solver.py``).

Win rates are shares of the frames of a field: by the error of the whole frame, of every slice, and
of the spectrum in every band. Models that are level share a rank, so the rates of a field add up to
1 and the top-two rates to 2. A run in several fields has the mean over them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from pibert.comparison.plan import Job
from pibert.evaluation.by_flow import measures_of, spec_of
from pibert.evaluation.interval_scores import IntervalLeads
from pibert.evaluation.intervals import (
    LEAST,
    TooFew,
    Valued,
    ends,
    holding,
    resample_blocks,
    resample_trajectories,
    resampled_values,
    same_flows,
)
from pibert.evaluation.leads import LEADS, Horizons, LeadTimes
from pibert.evaluation.measure import ALL, Entry
from pibert.evaluation.measures import ROLLOUT, window_measures
from pibert.evaluation.scores import (
    LEVEL,
    RESAMPLES,
    Scores,
    as_number,
    block_frames,
    condition_numbers,
    start_weights,
)
from pibert.evaluation.scoring import vars_of
from pibert.evaluation.statistics import Statistics
from pibert.report.comparison.results import COARSE_SOLVER

HEADLINE = ("physical", "nmse", "all")
"""The score that models are ranked by."""
RATES = ("win_rate", "top_two_rate")
RATED = ("physical/slices", "physical/spectra")
"""Measures whose errors of single frames have win rates too."""
TRUTH = "truth"
"""The model of rows that hold the true flow's own sampling error."""
Row = dict[str, Any]


def ranking(rows: Iterable[Row], planned: Mapping[str, int] | None = None) -> list[dict[str, Any]]:
    """Rank models by the mean of the headline over their seeds, the best first.

    Models with ``missing`` seeds, which failed or have no finite error, come after all others and
    have no mean; those that miss fewer come first.

    Args:
        rows: Of one data set.
        planned: The number of seeds of each model; without it, those that have a row.
    """
    by_model: dict[str, list[float | None]] = {}
    for row in rows:
        if (row["space"], row["metric"], row["component"]) == HEADLINE:
            by_model.setdefault(row["model"], []).append(row["value"])
    entries = []
    for model, values in by_model.items():
        known = [value for value in values if value is not None and math.isfinite(value)]
        missing = max(len(values), (planned or {}).get(model, 0)) - len(known)
        mean = sum(known) / len(known) if known else math.inf
        nmse = None if missing else mean
        entry = {"model": model, "nmse": nmse, "seeds": len(known), "missing": missing}
        entries.append(((missing, mean), entry))
    entries.sort(key=lambda pair: pair[0])
    return [{"rank": rank, **entry} for rank, (_, entry) in enumerate(entries, start=1)]


@runtime_checkable
class _Measured(Valued, Protocol):
    """A measure of any kind: values of sums of terms, and what they are."""

    @property
    def entries(self) -> tuple[Entry, ...]: ...


class _Scored(NamedTuple):
    """Terms that all runs have, with the measure that gives their values."""

    measure: _Measured
    array: str
    """The name of the terms."""
    weights: Tensor | None
    """Of the resamples; None: no intervals."""
    space: str = "physical"
    prefix: str = ""
    """Of the names of its metrics in rows."""
    lead: int | None = None
    """Frames ahead, for terms by lead time; only those of all channels have rows."""

    def terms(self, scores: Scores) -> Tensor:
        terms = scores.arrays[self.array]
        return terms if self.lead is None else terms[:, self.lead - 1]

    def labels(self, entry: Entry) -> dict[str, str]:
        """What a row states of an entry."""
        found = {**vars_of(entry), "metric": self.prefix + entry.metric}
        return found if self.lead is None else {**found, "component": f"lead {self.lead}"}


def rows_of(
    scores: Mapping[Job, Scores],
    coarse_solver: Scores | None = None,
    planned: Mapping[str, int] | None = None,
) -> tuple[list[Row], str]:
    """Return the rows of one data set, and the method of their intervals.

    ``planned`` has the number of seeds of each model; without it, those with scores are all.
    """
    first = next(iter(scores.values()))
    weights, sequence_weights, method = row_weights(first)
    by_job: dict[Job, list[Row]] = {job: [] for job in scores}

    def add(scored: _Scored) -> None:
        terms = {job: scored.terms(own) for job, own in scores.items()}
        for job, rows in _measure_rows(terms, scored, planned).items():
            by_job[job] += rows

    for name, measure in measures_of(first).items():
        resampled = sequence_weights if measure.of_sequences else weights
        add(_Scored(measure, f"terms/{name}", resampled, name.partition("/")[0]))
    for job, rows in _rates(scores).items():
        by_job[job] += rows
    for scored in (*_rollouts(first), *_free_runs(first, "terms")):
        add(scored)
    for job, own in scores.items():
        for scored in _intervals_of(own):
            found = _measure_rows({job: scored.terms(own)}, scored)[job]
            by_job[job] += [row | {"against_best": None} for row in found]
        by_job[job] += _insights(job, own)
    rows = [row for rows in by_job.values() for row in rows]
    others = [(TRUTH, first, scored) for scored in _free_runs(first, "sampling")]
    if coarse_solver is not None:
        kinds = (*_rollouts(first), *_free_runs(first, "terms"))
        known = (scored for scored in kinds if scored.array in coarse_solver.arrays)
        others += [(COARSE_SOLVER, coarse_solver, scored) for scored in known]
    for name, own, scored in others:
        job = replace(next(iter(scores)), candidate=name)
        (found,) = _measure_rows({job: scored.terms(own)}, scored).values()
        rows += [row | {"against_best": None} for row in found]
    return rows, method


def _rollouts(first: Scores) -> Iterator[_Scored]:
    """Scores of rollouts: at some lead times, over all of them, and as a whole."""
    if "rollout" not in first.card:
        return
    facts = first.card["rollout"]
    weights, _ = _start_weights(first, "rollout", facts["steps"])
    leads = LeadTimes(**spec_of(first))
    for lead in (lead for lead in LEADS if lead <= facts["steps"]):
        yield _Scored(leads, "rollout/terms", weights, prefix="rollout_", lead=lead)
    if [vars_of(entry) for entry in Horizons().entries] == facts["summary"]:
        yield _Scored(Horizons(), "rollout/horizon_terms", weights, prefix="rollout_")
    if facts.get("windows"):
        for name, measure in window_measures(leads.spec, facts["steps"]).items():
            yield _Scored(measure, f"terms/{name}", weights, ROLLOUT)


def _intervals_of(scores: Scores) -> Iterator[_Scored]:
    """Coverage and CRPS of the prediction intervals of a calibrated model, at some lead times."""
    if "rollout_intervals" in scores.card:
        steps = scores.card["rollout_intervals"]["steps"]
        weights, _ = _start_weights(scores, "rollout_intervals", steps)
        measure = IntervalLeads(spec=spec_of(scores)["spec"])
        for lead in (lead for lead in LEADS if lead <= steps):
            array = "rollout_intervals/terms"
            yield _Scored(measure, array, weights, prefix="rollout_", lead=lead)


def _free_runs(first: Scores, terms: str) -> Iterator[_Scored]:
    """Statistics of free runs, or of the true flow against itself."""
    if "free_run" in first.card:
        measure, (weights, _) = Statistics(**spec_of(first)), free_run_weights(first)
        yield _Scored(measure, f"free_run/{terms}", weights, prefix="free_run_")


def free_run_weights(scores: Scores) -> tuple[Tensor | None, str]:
    """Return resamples of the free runs, and the method."""
    return _start_weights(scores, "free_run", int(scores.arrays["free_run/frames"].max()))


def _start_weights(scores: Scores, kind: str, span: int) -> tuple[Tensor | None, str]:
    starts = (scores.arrays[f"{kind}/{name}"] for name in ("trajectory", "frame"))
    return start_weights(scores.card, *starts, span=span)


def row_weights(scores: Scores, seed: int = 0) -> tuple[Tensor | None, Tensor | None, str]:
    """Return resamples of frames and of sequences, and their method; None: too few to resample."""
    groups, what = _groups(scores)
    units = [groups[scores.arrays[f"{kind}/trajectory"]] for kind in ("rows", "sequences")]
    try:
        sampled = (resample_trajectories(u, resamples=RESAMPLES, seed=seed) for u in units)
        frames, sequences = sampled
        return frames, sequences, f"{len(units[0].unique())} {what}"
    except TooFew:
        pass
    block = block_frames(scores.card["correlation_frames"])
    if block is None:
        return None, None, "none (the flow stays correlated for more than half a recording)"
    try:
        blocks = resample_blocks(_stretches(scores), block=block, resamples=RESAMPLES, seed=seed)
        flows = same_flows(len(scores.arrays["rows/trajectory"].unique()))
        return blocks, None, f"blocks of {block} frames {flows}"
    except TooFew:
        return None, None, f"none (the test split has fewer than ten blocks of {block} frames)"


def independent_units(scores: Scores) -> Tensor | None:
    """Return the number of the independent unit of every test frame; None: fewer than ten.

    Units are trajectories, or conditions; of a single recording blocks of three correlation times.
    """
    trajectories = scores.arrays["rows/trajectory"]
    units = _groups(scores)[0][trajectories].unique(return_inverse=True)[1]
    if len(trajectories.unique()) == 1:
        block = block_frames(scores.card["correlation_frames"]) or len(units)
        units = (torch.arange(len(units)) // block).clamp(max=max(len(units) // block - 1, 0))
    return units if len(units.unique()) >= LEAST else None


def _groups(scores: Scores) -> tuple[Tensor, str]:
    """Return a number for each trajectory, equal for repetitions, and what the numbers count."""
    facts = scores.card["data"]
    if names := facts["source"].get("group_by"):  # repetitions are not independent
        return torch.tensor(condition_numbers(facts, names)), "conditions"
    return torch.arange(len(facts["names"])), "trajectories"


def _stretches(scores: Scores) -> Tensor:
    """Return a number for every frame, the same within a stretch of a trajectory without a gap.

    If frames come in pairs, every second one is evaluated: no two are neighbours, and a gap is
    where their distance is not the usual one.
    """
    indices, frames = scores.arrays["rows/trajectory"], scores.arrays["rows/frame"]
    steps = torch.where(indices.diff() == 0, frames.diff(), 0)
    usual = torch.ones_like(steps)
    for index in indices.unique():
        inside = (indices[1:] == index) & (steps > 0)
        usual[inside] = steps[inside].mode().values if bool(inside.any()) else 1
    breaks = (steps <= 0) | (steps != usual)
    return torch.cat((indices.new_zeros(1), breaks.long().cumsum(0)))


def _measure_rows(
    terms: Mapping[Job, Tensor], scored: _Scored, planned: Mapping[str, int] | None = None
) -> dict[Job, list[Row]]:
    """Return the rows of all runs for one measure."""
    measure, weights = scored.measure, scored.weights
    values = {job: measure.values(own.sum(0)) for job, own in terms.items()}
    resampled: dict[Job, Tensor] = {}
    if weights is not None:
        resampled = {job: resampled_values(measure, own, weights) for job, own in terms.items()}
    best = [_best(entry, index, values, planned) for index, entry in enumerate(measure.entries)]
    fields = {seed: _field(terms, seed) for seed in {job.seed for job in terms}}
    rows: dict[Job, list[Row]] = {}
    for job, found in values.items():
        low = high = torch.full_like(found, math.nan)
        marks: list[str | None] = [None] * len(found)
        if resampled:
            low, high = holding(found, *ends(resampled[job], LEVEL))
            rivals = [fields[job.seed].get(model, job) for model in best]
            others = [resampled[rival][:, index] for index, rival in enumerate(rivals)]
            marks = _marks(job, best, resampled[job] - torch.stack(others, dim=1))
        columns = zip(measure.entries, found, low, high, marks, strict=True)
        rows[job] = [
            make_row(job, scored.labels(entry), value, (least, most), scored.space, mark)
            for entry, value, least, most, mark in columns
            if scored.lead is None or entry.component == ALL
        ]
    return rows


def _best(
    entry: Entry,
    index: int,
    values: Mapping[Job, Tensor],
    planned: Mapping[str, int] | None = None,
) -> str:
    """Return the complete model with the best mean; empty if none is better than another."""
    found: dict[str, list[float]] = {}
    for job, scored in values.items():
        found.setdefault(job.candidate, []).append(float(scored[index]))
    complete = {m: own for m, own in found.items() if len(own) >= (planned or {}).get(m, 0)}
    means = {model: sum(known) / len(known) for model, known in complete.items()}
    means = {model: mean for model, mean in means.items() if math.isfinite(mean)}
    if entry.better == "none" or not means:
        return ""
    return {"lower": min, "higher": max}[entry.better](means, key=means.__getitem__)


def _marks(job: Job, best: Sequence[str], differences: Tensor) -> list[str | None]:
    """Return ``against_best`` of every score, from the resampled differences to the best model."""
    low, high = ends(differences, LEVEL)
    marks: list[str | None] = []
    for model, least, most in zip(best, low.tolist(), high.tolist(), strict=True):
        if not model or math.isnan(least):
            marks.append(None)
        elif model == job.candidate:
            marks.append("best")
        else:
            marks.append("different" if least > 0 or most < 0 else "level")
    return marks


def make_row(
    job: Job,
    entry: Mapping[str, str],
    value: Any,
    span: tuple[Any, Any] = (math.nan, math.nan),
    space: str = "physical",
    mark: str | None = None,
) -> Row:
    return {
        **job.labels,
        "space": space,
        "metric": entry["metric"],
        "component": entry["component"],
        "value": as_number(value),
        "low": as_number(span[0]),
        "high": as_number(span[1]),
        "unit": entry["unit"],
        "better": entry["better"],
        "against_best": mark,
    }


def _field(scores: Iterable[Job], seed: int) -> dict[str, Job]:
    """Return the run of every model in the field of a seed."""
    field: dict[str, Job] = {}
    for job in scores:
        if job.candidate not in field or job.seed == seed:
            field[job.candidate] = job
    return field


def _rates(scores: Mapping[Job, Scores]) -> dict[Job, list[Row]]:
    """Return how often every run is the best, or among the best two, of a frame.

    Frames without energy, which have no error, do not count.
    """
    errors = {job: _frame_errors(own) for job, own in scores.items()}
    fields = [_field(scores, seed) for seed in dict.fromkeys(job.seed for job in scores)]
    rows: dict[Job, list[Row]] = {job: [] for job in scores}
    for prefix, component in next(iter(errors.values())):
        shares: dict[Job, list[Tensor]] = {job: [] for job in scores}
        for field in fields:
            own = torch.stack([errors[job][prefix, component] for job in field.values()])
            own = own[:, own.isfinite().all(0)]
            for job, mine in zip(field.values(), own, strict=True):
                ahead, level = (own < mine).sum(0), (own == mine).sum(0)
                ranks = torch.tensor([[1], [2]], device=own.device)
                shares[job].append(((ranks - ahead) / level).clamp(0, 1).double().mean(1))
        for job, rates in shares.items():
            for kind, rate in zip(RATES, torch.stack(rates).mean(0), strict=True):
                plain = {"component": component, "unit": "1", "better": "higher"}
                rows[job].append(make_row(job, {"metric": prefix + kind, **plain}, rate))
    return rows


def _frame_errors(scores: Scores) -> dict[tuple[str, str], Tensor]:
    """Return the errors of every frame, by prefix of the rates' names and component."""
    found = {("", ALL): scores.arrays["errors/prediction"]}
    measures = measures_of(scores)
    for name in (name for name in RATED if name in measures):
        values = measures[name].values(scores.arrays[f"terms/{name}"])
        for entry, column in zip(measures[name].entries, values.unbind(-1), strict=True):
            if entry.metric.startswith(("slice_", "band_spectrum_error")):
                found[f"{entry.metric}_", entry.component] = column
    return found


def _insights(job: Job, scores: Scores) -> Iterator[Row]:
    """Return scores of embeddings (``evaluation/insight.py``)."""
    card = scores.card.get("embedding", {"entries": (), "values": ()})
    for entry, value in zip(card["entries"], card["values"], strict=True):
        yield make_row(job, entry, math.nan if value is None else value)
