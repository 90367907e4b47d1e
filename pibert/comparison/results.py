"""From the scores of all runs to one flat list of records.

    {"data", "model", "seed", "space", "metric", "component", "value", "low", "high", "unit",
     "better", "against_best"}

one for every data set, model, seed, component and metric (``comparison/records.py``), beside plan,
commit, versions, and what every run was and cost. ``tuning`` has the trials that chose learning
rate and optimiser of every tuned model (``comparison/trials.py``). ``by_flow`` has the main errors
of every test flow and condition (``comparison/by_flow.py``), which ``data`` lists.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from pibert import config
from pibert.comparison import by_flow, curves, trials
from pibert.comparison.evaluation import RECIPE
from pibert.comparison.plan import Comparison, Job
from pibert.comparison.records import Record, ranking, records_of
from pibert.data.partial import replace_file
from pibert.evaluation.scores import Scores, read_scores
from pibert.experiments.record import commit, versions
from pibert.textfiles import read_json

FORMAT = 1
FILES = ("results.json", "results.csv", "flows.csv", "curves.csv")
"""What a comparison leaves in its folder beside its runs."""
_KEPT = (
    "cost",
    "training",
    "at_a_time",
    "rollout",
    "draws",
    "embedding",
    "commit",
    "versions",
    "hardware",
    "pick_rule",
)
"""What the results tell of a run beside its records."""


def gather(
    comparison: Comparison, out: Path, failed: Mapping[Job, str], command: str | None = None
) -> dict[str, Any]:
    """All results of a comparison as plain JSON.

    Written to ``results.json``; the records also to ``results.csv``, the errors by flow to
    ``flows.csv`` and the learning curves to ``curves.csv``.

    Args:
        comparison: The plan.
        out: Its folder.
        failed: Runs without scores, and why.
        command: What was typed.
    """
    data: dict[str, Any] = {}
    records: list[Record] = []
    errors: list[by_flow.Errors] = []
    for name in comparison.data:
        jobs = [job for job in comparison.jobs() if job.data == name and job not in failed]
        scores = {job: read_scores(job.folder(out)) for job in jobs}
        if not scores:
            continue
        refuse_unlike(scores)
        first = next(iter(scores.values()))
        own, method = records_of(scores)
        for job, found in scores.items():
            own += by_flow.summary_of(job, found)
            errors += by_flow.errors_of(job, found)
        records += own
        data[name] = {
            **{key: first.card["data"][key] for key in ("source", "length_unit", "test_frames")},
            "hash": config.fingerprint(first.card["data"]["source"]),
            "units": first.card["data"]["spec"]["units"],
            "correlation_frames": first.card["correlation_frames"],
            "intervals": method,
            "ranking": ranking(own),
            **by_flow.flows_of(first),
        }
    runs = _runs(comparison, out, failed)
    results = {
        "format": FORMAT,
        "command": command,
        "comparison": config.as_plain(comparison),
        "commit": commit(),
        "versions": versions(),
        "data": data,
        "tuning": trials.as_records(comparison, out),
        "runs": runs,
        "records": records,
        "by_flow": errors,
    }
    texts = (
        json.dumps(results, indent=1) + "\n",
        _as_csv(records, runs),
        by_flow.as_csv(data, errors),
        curves.as_csv(comparison, out),
    )
    for file, text in zip(FILES, texts, strict=True):
        replace_file(out / file, text.encode())
    return results


def read_results(out: Path) -> dict[str, Any]:
    """What ``gather`` wrote."""
    path = out / "results.json"
    try:
        results = read_json(path)
        if results.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}, found {results.get('format')}")
    except (FileNotFoundError, NotADirectoryError):
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
                place, here, there = config.first_difference(mine, theirs, what)
                raise ValueError(
                    f"runs {_named(first_name)} and {_named(name)} cannot be compared: {place} is "
                    f"{_short(here)} and {_short(there)}; judge both on the same data"
                )
        for what in ("channels", "units", "grid"):
            mine, theirs = (card.card["data"]["spec"][what] for card in (first, other))
            if mine != theirs:
                place, here, there = config.first_difference(mine, theirs, what)
                raise ValueError(
                    f"runs {_named(first_name)} and {_named(name)} cannot be compared: {place} of "
                    f"their fields is {_short(here)} and {_short(there)}"
                )
        for rows in ("rows/trajectory", "rows/frame"):
            if not torch.equal(first.arrays[rows], other.arrays[rows]):
                raise ValueError(
                    f"runs {_named(first_name)} and {_named(name)} were judged on other frames; "
                    "evaluate both with the same history"
                )


def _runs(comparison: Comparison, out: Path, failed: Mapping[Job, str]) -> list[dict[str, Any]]:
    """What each run was and cost; tensors stay in its folder."""
    found = []
    for job in comparison.jobs():
        own: dict[str, Any] = {"data": job.data, "model": job.entrant, "seed": job.seed}
        if job in failed:
            found.append(own | {"failed": failed[job]})
            continue
        card = read_scores(job.folder(out)).card
        found.append(
            own
            | {"folder": str(job.folder(out).relative_to(out))}
            | {key: card[key] for key in _KEPT if key in card}
            | {"shared_device": shares_device(card)}
            | {name: card.get("recipe", {}).get(name) for name in RECIPE}
            | {"config": card["model"]["config"], "name": card["model"]["name"]}
            | {"identity": card["identity"]}
        )
    return found


def shares_device(card: Mapping[str, Any]) -> bool | None:
    """Whether times of training are upper bounds: other runs used the device; None: not known."""
    count = card.get("at_a_time", 1)
    return None if count is None else count > 1


def _as_csv(records: Iterable[Record], runs: Iterable[Mapping[str, Any]]) -> str:
    """The records, each with the optimiser and the learning rate of its run."""
    recipes = {
        (run["data"], run["model"], run["seed"]): {name: run.get(name) for name in RECIPE}
        for run in runs
    }
    rows = [own | recipes[own["data"], own["model"], own["seed"]] for own in records]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _named(job: Any) -> str:
    return f"{job.entrant}-{job.seed}" if isinstance(job, Job) else str(job)


def _short(value: Any, most: int = 120) -> str:
    text = json.dumps(value)
    return text if len(text) <= most else f"{text[:most]} ..."
