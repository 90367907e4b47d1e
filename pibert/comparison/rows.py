"""Result rows of one data set: every score of every run, with its interval.

Intervals (95 %) are bootstraps of the test split: over trajectories, or over blocks in time of
three correlation times if there are fewer than ten trajectories. All models share the resamples, so
a difference is that on the same frames.

Runs are compared in fields. The field of a seed has one run of every model: that of the seed, or
else the model's first, since predictors without training have no other.

``against_best`` is about one score, not the whole model. The best model of a score has the best
mean over its seeds; its runs are ``best``. Any other run is compared with the run of that model in
the field of its seed: ``different`` if the interval of the difference excludes zero, else
``level``. None: there is no interval, or neither low nor high is better.

Rollouts and free runs are resampled by flow, or by stretches in time where there are fewer than ten
flows (``evaluation/scores.py``). Rows of the model ``truth`` hold the true flow's sampling error
(``evaluation/statistics.py``).

Win rates are shares of the frames of a field. Models that are level share a rank, so the rates of
a field add up to 1 and the top-two rates to 2. A run in several fields has the mean over them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from pibert.comparison.plan import Job
from pibert.evaluation.by_flow import measures_of, spec_of
from pibert.evaluation.intervals import (
    TooFew,
    Valued,
    ends,
    holding,
    resample_blocks,
    resample_trajectories,
    resampled_values,
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

HEADLINE = ("physical", "nmse", "all")
"""The score that models are ranked by."""
TRUTH = "truth"
"""The model of rows that hold the true flow's own sampling error."""
Row = dict[str, Any]


def ranking(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Rank models by the mean of the headline over their seeds, the best first."""
    by_model: dict[str, list[float]] = {}
    for row in rows:
        key = (row["space"], row["metric"], row["component"])
        if key == HEADLINE and row["value"] is not None:
            by_model.setdefault(row["model"], []).append(row["value"])
    means = {model: sum(values) / len(values) for model, values in by_model.items()}
    return [
        {"rank": rank, "model": model, "nmse": means[model], "seeds": len(by_model[model])}
        for rank, model in enumerate(sorted(means, key=means.__getitem__), start=1)
    ]


def rows_of(scores: Mapping[Job, Scores]) -> tuple[list[Row], str]:
    """Return the rows of one data set, and the method of their intervals."""
    first = next(iter(scores.values()))
    weights, sequence_weights, method = row_weights(first)
    by_job: dict[Job, list[Row]] = {job: [] for job in scores}
    for name, measure in measures_of(first).items():
        resampled = sequence_weights if measure.of_sequences else weights
        terms = {job: scored.arrays[f"terms/{name}"] for job, scored in scores.items()}
        space = name.partition("/")[0]
        for job, rows in _measure_rows(terms, measure, resampled, space=space).items():
            by_job[job] += rows
    for job in scores:
        by_job[job] += _rates(job, scores)
    for found in (_rollouts(scores), _windows(scores), _free_runs(scores)):
        for job, rows in found.items():
            by_job[job] += rows
    for job, card in scores.items():
        by_job[job] += _insights(job, card)
    truth = _sampling_rows(first, next(iter(scores)))
    return [*(row for rows in by_job.values() for row in rows), *truth], method


def row_weights(scores: Scores, seed: int = 0) -> tuple[Tensor | None, Tensor | None, str]:
    """Return resamples of frames and of sequences, and their method; None: too few to resample."""
    facts = scores.card["data"]
    groups, what = torch.arange(len(facts["names"])), "trajectories"
    if names := facts["source"].get("group_by"):  # repetitions are not independent
        groups, what = torch.tensor(condition_numbers(facts, names)), "conditions"
    units = [groups[scores.arrays[f"{kind}/trajectory"]] for kind in ("rows", "sequences")]
    try:
        sampled = (resample_trajectories(u, resamples=RESAMPLES, seed=seed) for u in units)
        frames, sequences = sampled
        return frames, sequences, f"{len(units[0].unique())} {what}"
    except TooFew:
        pass
    block = block_frames(scores.card["correlation_frames"])
    if block is None:
        return None, None, "none: the flow stays correlated for more than half a recording"
    try:
        blocks = resample_blocks(_stretches(scores), block=block, resamples=RESAMPLES, seed=seed)
        return blocks, None, f"blocks of {block} frames"
    except TooFew:
        return None, None, f"none: the test split has fewer than ten blocks of {block} frames"


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


@runtime_checkable
class _Measured(Valued, Protocol):
    """A measure of any kind: values of sums of terms, and what they are."""

    @property
    def entries(self) -> tuple[Entry, ...]: ...


def _measure_rows(
    terms: Mapping[Job, Tensor],
    measure: _Measured,
    weights: Tensor | None,
    *,
    space: str = "physical",
    name: Callable[[Entry], dict[str, str]] = vars_of,
) -> dict[Job, list[Row]]:
    """Return the rows of all runs for one measure; ``name`` gives the entry that a row states."""
    values = {job: measure.values(scored.sum(0)) for job, scored in terms.items()}
    resampled: dict[Job, Tensor] = {}
    if weights is not None:
        resampled = {
            job: resampled_values(measure, scored, weights) for job, scored in terms.items()
        }
    best = [_best(entry, index, values) for index, entry in enumerate(measure.entries)]
    fields = {seed: _field(terms, seed) for seed in {job.seed for job in terms}}
    rows: dict[Job, list[Row]] = {}
    for job, scored in values.items():
        low = high = torch.full_like(scored, math.nan)
        marks: list[str | None] = [None] * len(scored)
        if resampled:
            low, high = holding(scored, *ends(resampled[job], LEVEL))
            rivals = [fields[job.seed].get(model, job) for model in best]
            others = [resampled[rival][:, index] for index, rival in enumerate(rivals)]
            marks = _marks(job, best, resampled[job] - torch.stack(others, dim=1))
        columns = zip(measure.entries, scored, low, high, marks, strict=True)
        rows[job] = [
            make_row(job, name(entry), value, span=(least, most), space=space, mark=mark)
            for entry, value, least, most, mark in columns
        ]
    return rows


def _best(entry: Entry, index: int, values: Mapping[Job, Tensor]) -> str:
    """Return the model with the best mean over its seeds; empty if none is better than another."""
    finite: dict[str, list[float]] = {}
    for job, scored in values.items():
        if math.isfinite(value := float(scored[index])):
            finite.setdefault(job.candidate, []).append(value)
    if entry.better == "none" or not finite:
        return ""
    means = {model: sum(known) / len(known) for model, known in finite.items()}
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
    *,
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


def _rates(job: Job, scores: Mapping[Job, Scores]) -> list[Row]:
    """Return how often a run is the best, or among the best two, of a frame.

    Frames without energy, which have no error, do not count.
    """
    shares: dict[str, list[Tensor]] = {"win_rate": [], "top_two_rate": []}
    for seed in dict.fromkeys(other.seed for other in scores):
        rivals = list(_field(scores, seed).values())
        if job not in rivals:
            continue
        errors = torch.stack([scores[other].arrays["errors/prediction"] for other in rivals])
        errors = errors[:, errors.isfinite().all(0)]
        mine = errors[rivals.index(job)]
        ahead, level = (errors < mine).sum(0), (errors == mine).sum(0)
        for ranks, rates in enumerate(shares.values(), start=1):
            rates.append(((ranks - ahead) / level).clamp(0, 1).double().mean())
    plain = {"component": "all", "unit": "1", "better": "higher"}
    return [
        make_row(job, {"metric": metric, **plain}, torch.stack(rates).mean())
        for metric, rates in shares.items()
    ]


def _rollouts(scores: Mapping[Job, Scores]) -> dict[Job, list[Row]]:
    """Return scores of rollouts: at some lead times, and over all of them."""
    scores = {job: scored for job, scored in scores.items() if "rollout" in scored.card}
    rows: dict[Job, list[Row]] = {job: [] for job in scores}
    if not scores:
        return rows
    first = next(iter(scores.values()))
    weights, _ = _start_weights(first, "rollout", first.card["rollout"]["steps"])
    measure = LeadTimes(**spec_of(first))
    for lead in (lead for lead in LEADS if lead <= first.card["rollout"]["steps"]):
        terms = {job: scored.arrays["rollout/terms"][:, lead - 1] for job, scored in scores.items()}

        def at_lead(entry: Entry, lead: int = lead) -> dict[str, str]:
            return {**_prefixed("rollout", entry), "component": f"lead {lead}"}

        for job, found in _measure_rows(terms, measure, weights, name=at_lead).items():
            pairs = zip(measure.entries, found, strict=True)
            rows[job] += [row for entry, row in pairs if entry.component == ALL]
    horizons, stated = Horizons(), first.card["rollout"]["summary"]
    if [vars_of(entry) for entry in horizons.entries] == stated:
        terms = {job: scored.arrays["rollout/horizon_terms"] for job, scored in scores.items()}
        named = partial(_prefixed, "rollout")
        for job, found in _measure_rows(terms, horizons, weights, name=named).items():
            rows[job] += found
    return rows


def _windows(scores: Mapping[Job, Scores]) -> dict[Job, list[Row]]:
    """Return scores of rollouts as a whole, in the space ``rollout``."""
    scores = {j: s for j, s in scores.items() if s.card.get("rollout", {}).get("windows")}
    rows: dict[Job, list[Row]] = {job: [] for job in scores}
    if not scores:
        return rows
    first = next(iter(scores.values()))
    steps = first.card["rollout"]["steps"]
    weights, _ = _start_weights(first, "rollout", steps)
    for name, measure in window_measures(spec_of(first)["spec"], steps).items():
        terms = {job: scored.arrays[f"terms/{name}"] for job, scored in scores.items()}
        for job, found in _measure_rows(terms, measure, weights, space=ROLLOUT).items():
            rows[job] += found
    return rows


def _free_runs(scores: Mapping[Job, Scores]) -> dict[Job, list[Row]]:
    """Return the statistics of free runs."""
    scores = {job: scored for job, scored in scores.items() if "free_run" in scored.card}
    if not scores:
        return {}
    first = next(iter(scores.values()))
    weights, _ = free_run_weights(first)
    terms = {job: scored.arrays["free_run/terms"] for job, scored in scores.items()}
    named = partial(_prefixed, "free_run")
    return _measure_rows(terms, Statistics(**spec_of(first)), weights, name=named)


def _sampling_rows(scores: Scores, job: Job) -> list[Row]:
    """Return the statistics of the true flow against itself, as rows of the model ``truth``."""
    if "free_run" not in scores.card:
        return []
    weights, _ = free_run_weights(scores)
    truth = Job(job.data, TRUTH, job.seed)
    terms = {truth: scores.arrays["free_run/sampling"]}
    named = partial(_prefixed, "free_run")
    (rows,) = _measure_rows(terms, Statistics(**spec_of(scores)), weights, name=named).values()
    return [row | {"against_best": None} for row in rows]


def free_run_weights(scores: Scores) -> tuple[Tensor | None, str]:
    """Return resamples of the free runs, and the method."""
    return _start_weights(scores, "free_run", int(scores.arrays["free_run/frames"].max()))


def _start_weights(scores: Scores, kind: str, span: int) -> tuple[Tensor | None, str]:
    starts = (scores.arrays[f"{kind}/{name}"] for name in ("trajectory", "frame"))
    return start_weights(scores.card, *starts, span=span)


def _prefixed(kind: str, entry: Entry) -> dict[str, str]:
    return {**vars_of(entry), "metric": f"{kind}_{entry.metric}"}


def _insights(job: Job, scores: Scores) -> Iterator[Row]:
    """Return scores of ensembles and of embeddings (``evaluation/insight.py``)."""
    for name in ("draws", "embedding"):
        card = scores.card.get(name, {"entries": (), "values": ()})
        for entry, value in zip(card["entries"], card["values"], strict=True):
            yield make_row(job, entry, math.nan if value is None else value)
