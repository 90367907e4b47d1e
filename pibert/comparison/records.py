"""Records of one data set: every number of every run, with its interval.

Intervals (95 %) are of the test part by the bootstrap: over trajectories, or over blocks in time
of three correlation times where there are fewer than ten of them. All models share the draws,
so a difference is judged on the same frames: ``against_best`` says whether the interval of the
difference to the best run (of the first run of every model) leaves out zero (``different``), does
not (``level``), or is that very run (``best``).
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pibert.comparison.evaluation import nmse_of
from pibert.comparison.plan import Job
from pibert.evaluation.intervals import TooFew, difference, draw_blocks, draw_trajectories, interval
from pibert.evaluation.measure import Measure
from pibert.evaluation.scores import Scores
from pibert.evaluation.scoring import measures_by_space
from pibert.fields import FieldSpec, Normalizer

DRAWS = 1000
LEVEL = 0.95
HEADLINE = ("physical", "nmse", "all")
"""What models are ranked by."""
CORRELATION_TIMES = 3
"""Length of a block: much shorter ones make intervals too narrow."""
LEADS = (1, 2, 5, 10, 20, 40, 80)
"""Frames ahead at which rollouts get a record."""
Record = dict[str, Any]


def ranking(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Models by the mean of the headline over their seeds, the best first."""
    found: dict[str, list[float]] = {}
    for record in records:
        key = (record["space"], record["metric"], record["component"])
        if key == HEADLINE and record["value"] is not None:
            found.setdefault(record["model"], []).append(record["value"])
    means = {model: sum(values) / len(values) for model, values in found.items()}
    order = sorted(means, key=means.__getitem__)
    return [
        {"rank": place, "model": model, "nmse": means[model], "seeds": len(found[model])}
        for place, model in enumerate(order, start=1)
    ]


def records_of(scores: Mapping[Job, Scores]) -> tuple[list[Record], str]:
    """Records of one data set, and how their intervals were made."""
    first = next(iter(scores.values()))
    measures = _measures(first)
    weights, sequence_weights, method = _weights(first)
    best = _best(scores)
    records: list[Record] = []
    for job, own in scores.items():
        for name, measure in measures.items():
            rows = own.arrays[f"terms/{name}"]
            drawn = sequence_weights if measure.of_sequences else weights
            others = scores[best].arrays[f"terms/{name}"]
            records += _of_measure(job, name, measure, rows, drawn, others, job == best)
        records += [*_rates(job, scores), *_rollouts(job, own)]
    return records, method


def _measures(scores: Scores) -> dict[str, Measure]:
    facts = scores.card["data"]
    spec = FieldSpec.from_dict(facts["spec"])
    normalizer = Normalizer(tuple(facts["normalizer"]["mean"]), tuple(facts["normalizer"]["std"]))
    by_space = measures_by_space(
        spec, normalizer, has_body=facts["has_body"], length_unit=facts["length_unit"]
    )
    found = {f"{space}/{own.name}": own for space, group in by_space.items() for own in group}
    return {name: own for name, own in found.items() if name in scores.card["entries"]}


def _weights(scores: Scores) -> tuple[Tensor | None, Tensor | None, str]:
    """Draws of frames and of sequences; None where there is too little to draw from."""
    homes, sequences = scores.arrays["rows/trajectory"], scores.arrays["sequences/trajectory"]
    try:
        weights = draw_trajectories(homes, draws=DRAWS, seed=0)
        count = len(homes.unique())
        return weights, draw_trajectories(sequences, draws=DRAWS, seed=0), f"{count} trajectories"
    except TooFew:
        pass
    time = scores.card["correlation_frames"]
    if time is None:
        return None, None, "none: the flow does not forget itself within half a recording"
    block = max(2, math.ceil(CORRELATION_TIMES * time))
    try:
        return (
            draw_blocks(_stretches(scores), block=block, draws=DRAWS, seed=0),
            None,
            f"blocks of {block} frames",
        )
    except TooFew:
        return None, None, f"none: the test part has fewer than ten blocks of {block} frames"


def _stretches(scores: Scores) -> Tensor:
    """A number for every frame, the same within a stretch of a trajectory without a gap."""
    homes, frames = scores.arrays["rows/trajectory"], scores.arrays["rows/frame"]
    breaks = (homes.diff() != 0) | (frames.diff() != 1)
    return torch.cat((homes.new_zeros(1), breaks.long().cumsum(0)))


def _best(scores: Mapping[Job, Scores]) -> Job:
    """The run with the least headline among the first runs of all models."""
    firsts = _field(scores, None)
    errors = {job: nmse_of(scores[job].card) for job in firsts}
    known = {job: error for job, error in errors.items() if error is not None}
    return min(known, key=known.__getitem__)


def _of_measure(
    job: Job,
    name: str,
    measure: Measure,
    rows: Tensor,
    weights: Tensor | None,
    others: Tensor,
    is_best: bool,
) -> list[Record]:
    space = name.partition("/")[0]
    if weights is None:
        values = measure.values(rows.sum(0))
        low = high = torch.full_like(values, math.nan)
        marks: list[str | None] = [None] * len(values)
    else:
        values, low, high = interval(measure, rows, weights, level=LEVEL)
        apart = difference(measure, rows, others, weights, level=LEVEL)
        marks = ["best" if is_best else "different" if s else "level" for s in apart.significant]
    numbers = zip(measure.entries, values, low, high, marks, strict=True)
    return [
        _record(job, vars(entry), value, span=(least, most), space=space, mark=mark)
        for entry, value, least, most, mark in numbers
    ]


def _record(
    job: Job,
    entry: Mapping[str, str],
    value: Any,
    *,
    span: tuple[Any, Any] = (math.nan, math.nan),
    space: str = "physical",
    mark: str | None = None,
) -> Record:
    return {
        "data": job.data,
        "model": job.entrant,
        "seed": job.seed,
        "space": space,
        "metric": entry["metric"],
        "component": entry["component"],
        "value": _number(value),
        "low": _number(span[0]),
        "high": _number(span[1]),
        "unit": entry["unit"],
        "better": entry["better"],
        "against_best": mark,
    }


def _field(scores: Mapping[Job, Scores], seed: int | None) -> list[Job]:
    """One run of every model: that of the seed, or else its first, as some have no other."""
    found: dict[str, Job] = {}
    for job in scores:
        if job.entrant not in found or job.seed == seed:
            found[job.entrant] = job
    return list(found.values())


def _rates(job: Job, scores: Mapping[Job, Scores]) -> list[Record]:
    """How often a model is the best, or among the best two, of a frame.

    Models that are level share the place. Frames without energy, which have no error, do not count.
    """
    rivals = _field(scores, job.seed)
    errors = torch.stack([scores[other].arrays["errors/prediction"] for other in rivals])
    errors = errors[:, errors.isfinite().all(0)]
    place = (errors < errors[rivals.index(job)]).sum(0)
    rates = {"win_rate": (place == 0), "top_two_rate": (place <= 1)}
    plain = {"component": "all", "unit": "1", "better": "higher"}
    return [
        _record(job, {"metric": metric, **plain}, share.double().mean())
        for metric, share in rates.items()
    ]


def _rollouts(job: Job, scores: Scores) -> Iterator[Record]:
    """What the rollouts came to: at some lead times, and over all of them."""
    card = scores.card.get("rollout")
    if card is None:
        return
    for lead in LEADS:
        if lead <= card["steps"]:
            values = scores.arrays["rollout/curves"][lead - 1]
            for entry, value in zip(card["entries"], values, strict=True):
                if entry["component"] == "all":
                    name = {"metric": f"rollout_{entry['metric']}", "component": f"lead {lead}"}
                    yield _record(job, {**entry, **name}, value)
    for entry, value in zip(card["summary"], scores.arrays["rollout/summary"], strict=True):
        yield _record(job, {**entry, "metric": f"rollout_{entry['metric']}"}, value)


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
