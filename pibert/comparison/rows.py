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

Win rates are shares of the frames of a field. Models that are level share a rank, so the rates of
a field add up to 1 and the top-two rates to 2. A run in several fields has the mean over them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pibert.comparison.plan import Job
from pibert.evaluation.by_flow import condition_numbers, measures_of
from pibert.evaluation.intervals import (
    TooFew,
    ends,
    holding,
    resample_blocks,
    resample_trajectories,
    resampled_values,
)
from pibert.evaluation.leads import LEADS
from pibert.evaluation.measure import Entry, Measure
from pibert.evaluation.scores import Scores, as_number

RESAMPLES = 1000
LEVEL = 0.95
HEADLINE = ("physical", "nmse", "all")
"""The score that models are ranked by."""
CORRELATION_TIMES = 3
"""Length of a block: much shorter ones make intervals too narrow."""
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
    weights, sequence_weights, method = _weights(first)
    by_job: dict[Job, list[Row]] = {job: [] for job in scores}
    for name, measure in measures_of(first).items():
        resampled = sequence_weights if measure.of_sequences else weights
        for job, rows in _measure_rows(scores, name, measure, resampled).items():
            by_job[job] += rows
    for job, card in scores.items():
        by_job[job] += [*_rates(job, scores), *_rollouts(job, card), *_insights(job, card)]
    return [row for rows in by_job.values() for row in rows], method


def _weights(scores: Scores) -> tuple[Tensor | None, Tensor | None, str]:
    """Return resamples of frames and of sequences; None if there is too little to resample."""
    facts = scores.card["data"]
    groups, what = torch.arange(len(facts["names"])), "trajectories"
    if names := facts["source"].get("group_by"):  # repetitions are not independent
        groups, what = torch.tensor(condition_numbers(facts, names)), "conditions"
    units = [groups[scores.arrays[f"{kind}/trajectory"]] for kind in ("rows", "sequences")]
    try:
        frames, sequences = (resample_trajectories(u, resamples=RESAMPLES, seed=0) for u in units)
        return frames, sequences, f"{len(units[0].unique())} {what}"
    except TooFew:
        pass
    time = scores.card["correlation_frames"]
    if time is None:
        return None, None, "none: the flow stays correlated for more than half a recording"
    block = max(2, math.ceil(CORRELATION_TIMES * time))
    try:
        blocks = resample_blocks(_stretches(scores), block=block, resamples=RESAMPLES, seed=0)
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


def _measure_rows(
    scores: Mapping[Job, Scores], name: str, measure: Measure, weights: Tensor | None
) -> dict[Job, list[Row]]:
    """Return the rows of all runs for one measure."""
    terms = {job: scored.arrays[f"terms/{name}"] for job, scored in scores.items()}
    values = {job: measure.values(scored.sum(0)) for job, scored in terms.items()}
    resampled: dict[Job, Tensor] = {}
    if weights is not None:
        resampled = {
            job: resampled_values(measure, scored, weights) for job, scored in terms.items()
        }
    best = [_best(entry, index, values) for index, entry in enumerate(measure.entries)]
    fields = {seed: _field(scores, seed) for seed in {job.seed for job in scores}}
    rows: dict[Job, list[Row]] = {}
    for job, scored in values.items():
        low = high = torch.full_like(scored, math.nan)
        marks: list[str | None] = [None] * len(scored)
        if resampled:
            low, high = holding(scored, *ends(resampled[job], LEVEL))
            rivals = [fields[job.seed].get(model, job) for model in best]
            others = [resampled[rival][:, index] for index, rival in enumerate(rivals)]
            marks = _marks(job, best, resampled[job] - torch.stack(others, dim=1))
        space = name.partition("/")[0]
        columns = zip(measure.entries, scored, low, high, marks, strict=True)
        rows[job] = [
            make_row(job, vars(entry), value, span=(least, most), space=space, mark=mark)
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


def _rollouts(job: Job, scores: Scores) -> Iterator[Row]:
    """Return scores of rollouts: at some lead times, and over all of them."""
    card = scores.card.get("rollout")
    if card is None:
        return
    for lead in (lead for lead in LEADS if lead <= card["steps"]):
        values = scores.arrays["rollout/curves"][lead - 1]
        for entry, value in zip(card["entries"], values, strict=True):
            if entry["component"] == "all":
                name = {"metric": f"rollout_{entry['metric']}", "component": f"lead {lead}"}
                yield make_row(job, {**entry, **name}, value)
    for entry, value in zip(card["summary"], scores.arrays["rollout/summary"], strict=True):
        yield make_row(job, {**entry, "metric": f"rollout_{entry['metric']}"}, value)


def _insights(job: Job, scores: Scores) -> Iterator[Row]:
    """Return scores of ensembles and of embeddings (``evaluation/insight.py``)."""
    for name in ("draws", "embedding"):
        card = scores.card.get(name, {"entries": (), "values": ()})
        for entry, value in zip(card["entries"], card["values"], strict=True):
            yield make_row(job, entry, math.nan if value is None else value)
