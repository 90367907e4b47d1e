"""From the scores of all runs to one flat list of records.

    {"data", "model", "seed", "space", "metric", "component", "value", "low", "high", "unit",
     "better", "against_best"}

one for every data set, model, seed, component and metric. Intervals (95 %) are of the test part by
the bootstrap: over trajectories, or over blocks in time longer than the correlation time where
there are fewer than ten of them. All models share the draws, so a difference is judged on the same
frames: ``against_best`` says whether the interval of the difference to the best run (of the first
run of every model) leaves out zero (``different``), does not (``level``), or is that very run
(``best``).
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pibert import config
from pibert.comparison.evaluation import nmse_of
from pibert.comparison.plan import Comparison, Job
from pibert.data.partial import replace_file
from pibert.evaluation.intervals import TooFew, difference, draw_blocks, draw_trajectories, interval
from pibert.evaluation.measure import Measure
from pibert.evaluation.scores import Scores, read_scores
from pibert.evaluation.scoring import measures_by_space
from pibert.experiments.record import commit, versions
from pibert.fields import FieldSpec, Normalizer

FORMAT = 1
DRAWS = 1000
LEVEL = 0.95
HEADLINE = ("physical", "nmse", "all")
"""What models are ranked by."""
Record = dict[str, Any]


def gather(
    comparison: Comparison, out: Path, failed: Mapping[Job, str], command: str | None = None
) -> dict[str, Any]:
    """All results of a comparison as plain JSON; written to ``results.json`` and ``.csv``.

    Args:
        comparison: The plan.
        out: Its folder.
        failed: Runs without scores, and why.
        command: What was typed.
    """
    data: dict[str, Any] = {}
    records: list[Record] = []
    for name in comparison.data:
        jobs = [job for job in comparison.jobs() if job.data == name and job not in failed]
        scores = {job: read_scores(job.folder(out)) for job in jobs}
        if not scores:
            continue
        refuse_unlike(scores)
        first = next(iter(scores.values()))
        own, method = _records(scores)
        records += own
        data[name] = {
            **{key: first.card["data"][key] for key in ("source", "length_unit", "test_frames")},
            "hash": config.fingerprint(first.card["data"]["source"]),
            "units": first.card["data"]["spec"]["units"],
            "correlation_frames": first.card["correlation_frames"],
            "intervals": method,
            "ranking": ranking(own),
        }
    results = {
        "format": FORMAT,
        "command": command,
        "comparison": config.as_plain(comparison),
        "commit": commit(),
        "versions": versions(),
        "data": data,
        "runs": _runs(comparison, out, failed),
        "records": records,
    }
    replace_file(out / "results.json", (json.dumps(results, indent=1) + "\n").encode())
    replace_file(out / "results.csv", _as_csv(records).encode())
    return results


def read_results(out: Path) -> dict[str, Any]:
    """What ``gather`` wrote."""
    path = out / "results.json"
    try:
        results = json.loads(path.read_text())
        if results.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}, found {results.get('format')}")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{out}: no results.json; run the comparison first: pibert compare --out {out}"
        ) from None
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path}: not the results of a comparison ({error})") from None
    return dict(results)


def refuse_unlike(scores: Mapping[Any, Scores]) -> None:
    """Refuse runs of different data, splits, units, normalisers or test frames."""
    items = list(scores.items())
    first_name, first = items[0]
    for name, other in items[1:]:
        for what in ("source", "split", "normalizer", "test_frames"):
            mine, theirs = first.card["data"][what], other.card["data"][what]
            if mine != theirs:
                raise ValueError(
                    f"runs {_named(first_name)} and {_named(name)} cannot be compared: {what} is "
                    f"{_short(mine)} there and {_short(theirs)} here; judge both on the same data"
                )
        for what in ("channels", "units", "grid"):
            mine, theirs = (card.card["data"]["spec"][what] for card in (first, other))
            if mine != theirs:
                raise ValueError(
                    f"runs {_named(first_name)} and {_named(name)} cannot be compared: {what} of "
                    f"their fields are {_short(mine)} and {_short(theirs)}"
                )
        for rows in ("rows/trajectory", "rows/frame"):
            if not torch.equal(first.arrays[rows], other.arrays[rows]):
                raise ValueError(
                    f"runs {_named(first_name)} and {_named(name)} were judged on other frames; "
                    "evaluate both with the same history"
                )


def ranking(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Models by the mean of the headline over their seeds, the best first."""
    found: dict[str, list[float]] = {}
    for record in records:
        key = (record["space"], record["metric"], record["component"])
        if key == HEADLINE and record["value"] is not None:
            found.setdefault(record["model"], []).append(record["value"])
    means = {model: sum(values) / len(values) for model, values in found.items()}
    order = sorted(means, key=means.__getitem__)
    return [{"rank": n, "model": m, "nmse": means[m]} for n, m in enumerate(order, start=1)]


def _records(scores: Mapping[Job, Scores]) -> tuple[list[Record], str]:
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
        records += _rates(job, scores)
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
    block = max(2, math.ceil(time) + 1)
    try:
        return (
            draw_blocks(_stretches(scores), block=block, draws=DRAWS, seed=0),
            None,
            f"blocks of {block} frames",
        )
    except TooFew as error:
        return None, None, f"none: {error}"


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
    return [
        {
            "data": job.data,
            "model": job.entrant,
            "seed": job.seed,
            "space": space,
            "metric": entry.metric,
            "component": entry.component,
            "value": _number(value),
            "low": _number(least),
            "high": _number(most),
            "unit": entry.unit,
            "better": entry.better,
            "against_best": mark,
        }
        for entry, value, least, most, mark in zip(
            measure.entries, values, low, high, marks, strict=True
        )
    ]


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
    return [
        {
            "data": job.data,
            "model": job.entrant,
            "seed": job.seed,
            "space": "physical",
            "metric": metric,
            "component": "all",
            "value": _number(share.double().mean()),
            "low": None,
            "high": None,
            "unit": "1",
            "better": "higher",
            "against_best": None,
        }
        for metric, share in rates.items()
    ]


def _runs(comparison: Comparison, out: Path, failed: Mapping[Job, str]) -> list[dict[str, Any]]:
    """What each run was and cost; tensors stay in its folder."""
    found = []
    for job in comparison.jobs():
        own: dict[str, Any] = {"data": job.data, "model": job.entrant, "seed": job.seed}
        if job in failed:
            found.append(own | {"failed": failed[job]})
            continue
        card = read_scores(job.folder(out)).card
        keys = ("cost", "training", "rollout", "commit", "versions", "hardware", "pick_rule")
        found.append(
            own
            | {"folder": str(job.folder(out).relative_to(out))}
            | {key: card[key] for key in keys if key in card}
            | {"config": card["model"]["config"], "name": card["model"]["name"]}
        )
    return found


def _as_csv(records: Iterable[Record]) -> str:
    rows = list(records)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _named(job: Any) -> str:
    return f"{job.entrant}-{job.seed}" if isinstance(job, Job) else str(job)


def _short(value: Any, most: int = 120) -> str:
    text = json.dumps(value)
    return text if len(text) <= most else f"{text[:most]} ..."
