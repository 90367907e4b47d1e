"""Errors by flow and by condition, beside those pooled over the test split.

A pooled error covers all points of all flows: a few flows with large errors may dominate it. This
module computes the same scores for each test flow (trajectory) and each condition (flows with the
same parameters), for the next frame and for rollouts by lead time.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pibert.comparison.plan import Job
from pibert.comparison.rows import (
    LEADS,
    Row,
    as_number,
    make_row,
    measures_of,
    spec_of,
)
from pibert.evaluation.leads import LeadTimes
from pibert.evaluation.measure import ALL, Entry
from pibert.evaluation.pointwise import Pointwise
from pibert.evaluation.scores import Scores, condition_numbers

METRICS = ("nmse", "skill", "rmse")
SHARE = "squared_error_share"
"""The share of a flow or condition in the squared error of all, for the next frame."""
POINTWISE = "physical/pointwise"
COLUMNS = tuple("data flow parameters model seed metric lead unit value".split())
Errors = dict[str, Any]
"""``data, model, seed, metric, unit``; ``lead``: frames ahead in a rollout, None: the next frame
from true ones; ``flows`` and ``conditions``: a value for each, None if there is none."""


def flows_of(scores: Scores) -> dict[str, Any]:
    """Return the test flows of a data set and their conditions, in the order of ``Errors``.

    ``conditions`` is None if no two flows share one.
    """
    facts = scores.card["data"]
    rows, starts = scores.arrays["rows/trajectory"], scores.arrays.get("rollout/trajectory")
    numbers = rows.unique().tolist()
    groups = _conditions(scores, numbers)
    flows = [
        {
            "name": facts["names"][number],
            "parameters": facts["parameters"][number],
            "condition": None if groups is None else groups[index],
            "test_frames": int((rows == number).sum()),
            "rollout_starts": 0 if starts is None else int((starts == number).sum()),
        }
        for index, number in enumerate(numbers)
    ]
    if groups is None:
        return {"flows": flows, "conditions": None}
    conditions = []
    for group in range(max(groups) + 1):
        members = [flow for flow in flows if flow["condition"] == group]
        shared = set.intersection(*(set(flow["parameters"].items()) for flow in members))
        conditions.append({"parameters": dict(sorted(shared)), "flows": len(members)})
    return {"flows": flows, "conditions": conditions}


def _conditions(scores: Scores, numbers: list[int]) -> list[int] | None:
    """Return the number of the condition of each flow."""
    facts = scores.card["data"]
    names = facts["source"].get("group_by") or sorted(set().union(*facts["parameters"]))
    if not names:
        return None
    all_groups = condition_numbers(facts, names)
    groups = [all_groups[number] for number in numbers]
    order = list(dict.fromkeys(groups))
    return [order.index(group) for group in groups] if len(order) < len(numbers) else None


def errors_of(job: Job, scores: Scores) -> list[Errors]:
    """Return the errors of a run by flow and by condition."""
    numbers, measure, sums = _sums_by_flow(scores)
    groups = _conditions(scores, numbers)
    errors = _errors(job, measure.entries, measure.values, sums, groups, lead=None)
    shares = (Entry(metric=SHARE, component=ALL),)
    errors += _errors(job, shares, partial(_shares, measure), sums, groups, lead=None)
    if "rollout" in scores.card:
        leads = LeadTimes(**spec_of(scores))
        terms = scores.arrays["rollout/terms"]  # (start, lead, k)
        sums = _by_number(terms, scores.arrays["rollout/trajectory"], numbers)
        for lead in (lead for lead in LEADS if lead <= terms.shape[1]):
            at_lead = sums[:, lead - 1]
            errors += _errors(job, leads.entries, leads.values, at_lead, groups, lead=lead)
    return errors


def _sums_by_flow(scores: Scores) -> tuple[list[int], Pointwise, Tensor]:
    """Return numbers of the test flows, the pointwise measure, and its sums for each flow."""
    rows = scores.arrays["rows/trajectory"]
    numbers, measure = rows.unique().tolist(), measures_of(scores)[POINTWISE]
    assert isinstance(measure, Pointwise)
    return numbers, measure, _by_number(scores.arrays[f"terms/{POINTWISE}"], rows, numbers)


def _by_number(terms: Tensor, trajectories: Tensor, numbers: list[int]) -> Tensor:
    """Sum the terms of each trajectory."""
    return torch.stack([terms[trajectories == number].sum(0) for number in numbers])


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
    errors = []
    for index, entry in enumerate(entries):
        if entry.component == ALL and entry.metric in (*METRICS, SHARE):
            row: Errors = {**job.labels, "metric": entry.metric, "lead": lead, "unit": entry.unit}
            row |= {"conditions": None}
            row |= {name: [as_number(v) for v in t[:, index]] for name, t in tables.items()}
            errors.append(row)
    return errors


def _shares(measure: Pointwise, sums: Tensor) -> Tensor:
    """Return the share of each flow in the squared error of all, (flow, 1)."""
    squares = measure.squared_error(sums)
    return (squares / squares.sum())[:, None]


def summary_of(job: Job, scores: Scores) -> list[Row]:
    """Return rows on how a pooled error is spread over flows; none if there is a single flow.

    - nmse_flow_mean: the mean over flows of the NMSE of each;
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
    """Return a row for every flow, model, seed, metric and lead; no lead is the next frame."""
    for row in errors:
        kept = {key: row[key] for key in ("data", "model", "seed", "metric", "lead", "unit")}
        for flow, value in zip(data[row["data"]]["flows"], row["flows"], strict=True):
            known = " ".join(f"{key}={number:g}" for key, number in flow["parameters"].items())
            yield {**kept, "flow": flow["name"], "parameters": known, "value": value}
