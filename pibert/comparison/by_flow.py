"""Rows of a comparison on single flows: the errors of ``evaluation/by_flow.py`` for each run."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pibert.comparison.plan import Job
from pibert.comparison.rows import Row, make_row
from pibert.evaluation import by_flow
from pibert.evaluation.scores import Scores

COLUMNS = tuple("data flow parameters outside model seed metric lead unit value".split())


def errors_of(job: Job, scores: Scores) -> list[by_flow.Errors]:
    """Return the errors of a run by flow and by condition."""
    return [{**job.labels, **row} for row in by_flow.errors_of(scores)]


def summary_of(job: Job, scores: Scores) -> list[Row]:
    """Return rows on how a pooled error is spread over flows; none if there is a single flow."""
    plain = {"component": "all", "unit": "1"}
    return [
        make_row(
            job, {"metric": name, "better": "none" if "share" in name else "lower", **plain}, value
        )
        for name, value in by_flow.summary_of(scores).items()
    ]


def table(data: Mapping[str, Mapping[str, Any]], errors: Iterable[by_flow.Errors]) -> Iterator[Row]:
    """Return a row for every flow, model, seed, metric and lead; no lead is the next frame."""
    for row in errors:
        kept = {key: row[key] for key in ("data", "model", "seed", "metric", "lead", "unit")}
        for flow, value in zip(data[row["data"]]["flows"], row["flows"], strict=True):
            known = " ".join(f"{key}={number:g}" for key, number in flow["parameters"].items())
            beyond = " ".join(flow["outside"])
            own = {"flow": flow["name"], "parameters": known, "outside": beyond}
            yield {**kept, **own, "value": value}
