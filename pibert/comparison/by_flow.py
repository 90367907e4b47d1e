"""Errors by flow and by condition, beside those pooled over the test split.

A pooled error is that of all points of all flows together: a few flows with large errors may carry
most of it. Here are the same scores of each test flow (trajectory), and of each condition, which is
what flows with the same parameters share: of the next frame, and of rollouts by lead time.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pibert.comparison.plan import Job
from pibert.comparison.rows import (
    LEADS,
    Row,
    as_number,
    condition_numbers,
    make_row,
    measures_of,
    spec_of,
)
from pibert.evaluation.leads import LeadTimes
from pibert.evaluation.measure import ALL, Entry
from pibert.evaluation.pointwise import Pointwise
from pibert.evaluation.scores import Scores

METRICS = ("nmse", "skill", "rmse")
SHARE = "squared_error_share"
"""Of a flow or condition in the squared error of all, of the next frame."""
POINTWISE = "physical/pointwise"
COLUMNS = tuple("data flow parameters model seed metric lead unit value".split())
Errors = dict[str, Any]
"""``data, model, seed, metric, unit``; ``lead``: frames ahead in a rollout, None: the next frame
from true ones; ``flows`` and ``conditions``: a value for each, None if there is none."""


def flows_of(scores: Scores) -> dict[str, Any]:
    """The test flows of a data set and their conditions, in the order of the values of ``Errors``.

    ``conditions`` is None if no two flows share one.
    """
    facts = scores.card["data"]
    rows, starts = (scores.arrays.get(f"{own}/trajectory") for own in ("rows", "rollout"))
    assert rows is not None
    numbers = rows.unique().tolist()
    groups = _conditions(scores, numbers)
    flows = [
        {
            "name": facts["names"][number],
            "parameters": facts["parameters"][number],
            "condition": None if groups is None else groups[place],
            "test_frames": int((rows == number).sum()),
            "rollout_starts": 0 if starts is None else int((starts == number).sum()),
        }
        for place, number in enumerate(numbers)
    ]
    if groups is None:
        return {"flows": flows, "conditions": None}
    conditions = []
    for group in range(max(groups) + 1):
        own = [flow for flow in flows if flow["condition"] == group]
        shared = set.intersection(*(set(flow["parameters"].items()) for flow in own))
        conditions.append({"parameters": dict(sorted(shared)), "flows": len(own)})
    return {"flows": flows, "conditions": conditions}


def _conditions(scores: Scores, numbers: list[int]) -> list[int] | None:
    """The number of the condition of each flow."""
    facts = scores.card["data"]
    names = facts["source"].get("group_by") or sorted(set().union(*facts["parameters"]))
    if not names:
        return None
    of_all = condition_numbers(facts, names)
    place = {n: i for i, n in enumerate(dict.fromkeys(of_all[number] for number in numbers))}
    return [place[of_all[n]] for n in numbers] if len(place) < len(numbers) else None


def errors_of(job: Job, scores: Scores) -> list[Errors]:
    """The errors of a run by flow and by condition."""
    numbers, measure, sums = _sums_by_flow(scores)
    groups = _conditions(scores, numbers)
    found = _errors(job, measure.entries, measure.values, sums, groups, lead=None)
    shares = (Entry(metric=SHARE, component=ALL),)
    found += _errors(job, shares, lambda own: _shares(measure, own), sums, groups, lead=None)
    if "rollout" in scores.card:
        leads = LeadTimes(**spec_of(scores))
        terms = scores.arrays["rollout/terms"]  # (start, lead, k)
        sums = _by_number(terms, scores.arrays["rollout/trajectory"], numbers)
        for lead in (lead for lead in LEADS if lead <= terms.shape[1]):
            own = sums[:, lead - 1]
            found += _errors(job, leads.entries, leads.values, own, groups, lead=lead)
    return found


def _sums_by_flow(scores: Scores) -> tuple[list[int], Pointwise, Tensor]:
    """Numbers of the test flows, the pointwise measure, and its summed terms of each flow."""
    homes = scores.arrays["rows/trajectory"]
    numbers, measure = homes.unique().tolist(), measures_of(scores)[POINTWISE]
    assert isinstance(measure, Pointwise)
    return numbers, measure, _by_number(scores.arrays[f"terms/{POINTWISE}"], homes, numbers)


def _by_number(terms: Tensor, homes: Tensor, numbers: list[int]) -> Tensor:
    """Sums of the terms of each trajectory."""
    return torch.stack([terms[homes == number].sum(0) for number in numbers])


def _errors(
    job: Job,
    entries: tuple[Entry, ...],
    values: Any,
    sums: Tensor,
    groups: list[int] | None,
    *,
    lead: int | None,
) -> list[Errors]:
    tables = {"flows": values(sums)}
    if groups is not None:
        pooled = torch.zeros(max(groups) + 1, *sums.shape[1:], dtype=sums.dtype)
        tables["conditions"] = values(pooled.index_add(0, torch.tensor(groups), sums))
    found = []
    for place, entry in enumerate(entries):
        if entry.component == ALL and entry.metric in (*METRICS, SHARE):
            own: Errors = {**job.labels, "metric": entry.metric, "lead": lead, "unit": entry.unit}
            own |= {"conditions": None}
            own |= {name: [as_number(v) for v in t[:, place]] for name, t in tables.items()}
            found.append(own)
    return found


def _shares(measure: Pointwise, sums: Tensor) -> Tensor:
    """(flow, 1)."""
    squares = measure.squared_error(sums)
    return (squares / squares.sum())[:, None]


def summary_of(job: Job, scores: Scores) -> list[Row]:
    """How much of a pooled error a few flows carry; nothing if there is a single flow.

    - nmse_flow_mean: the mean over flows of their own NMSE;
    - largest_flow_share: the share of the flow with the largest squared error in that of all.
    """
    numbers, measure, sums = _sums_by_flow(scores)
    if len(numbers) < 2:
        return []
    names = [(entry.metric, entry.component) for entry in measure.entries]
    nmse = measure.values(sums)[:, names.index(("nmse", ALL))]
    plain = {"component": ALL, "unit": "1"}
    mean = {"metric": "nmse_flow_mean", "better": "lower", **plain}
    share = {"metric": "largest_flow_share", "better": "none", **plain}
    return [
        make_row(job, mean, nmse.mean()),
        make_row(job, share, _shares(measure, sums).max()),
    ]


def table(data: Mapping[str, Mapping[str, Any]], errors: Iterable[Errors]) -> Iterator[Row]:
    """A row for every flow, model, seed, metric and lead; an empty lead is the next frame."""
    for own in errors:
        kept = {key: own[key] for key in ("data", "model", "seed", "metric", "lead", "unit")}
        for flow, value in zip(data[own["data"]]["flows"], own["flows"], strict=True):
            known = " ".join(f"{key}={number:g}" for key, number in flow["parameters"].items())
            yield {**kept, "flow": flow["name"], "parameters": known, "value": value}
