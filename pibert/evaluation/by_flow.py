"""Errors by flow and by condition, beside those pooled over the test split.

A pooled error covers all points of all flows: a few flows with large errors may dominate it. This
module computes the same scores for each test flow (trajectory) and each condition (flows with the
same parameters), for the next frame and for rollouts by lead time.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pibert.evaluation.leads import LEADS, LeadTimes
from pibert.evaluation.measure import ALL, Entry, Measure
from pibert.evaluation.measures import measures_by_space
from pibert.evaluation.pointwise import Pointwise
from pibert.evaluation.scores import Scores, as_number, condition_numbers
from pibert.fields import FieldSpec, Normalizer

METRICS = ("nmse", "skill", "rmse")
SHARE = "squared_error_share"
"""The share of a flow or condition in the squared error of all, for the next frame."""
POINTWISE = "physical/pointwise"
Errors = dict[str, Any]
"""``metric``, ``unit``; ``lead``: frames ahead in a rollout, None: the next frame from true ones;
``flows`` and ``conditions``: a value for each, None if there is none."""


def spec_of(scores: Scores) -> dict[str, Any]:
    """Return ``spec`` and ``normalizer`` of the scored fields."""
    facts = scores.card["data"]
    mean, std = (tuple(facts["normalizer"][name]) for name in ("mean", "std"))
    return {"spec": FieldSpec.from_dict(facts["spec"]), "normalizer": Normalizer(mean, std)}


def measures_of(scores: Scores) -> dict[str, Measure]:
    """Return the measures that scores have terms of, by ``space/name``."""
    facts = scores.card["data"]
    by_space = measures_by_space(
        **spec_of(scores), has_body=facts["has_body"], length_unit=facts["length_unit"]
    )
    named = {
        f"{space}/{measure.name}": measure for space, group in by_space.items() for measure in group
    }
    return {name: measure for name, measure in named.items() if name in scores.card["entries"]}


def flows_of(scores: Scores) -> dict[str, Any]:
    """Return the test flows of a data set and their conditions, in the order of ``Errors``.

    ``conditions`` is None if no two flows share one. ``training_range`` has the lowest and highest
    value of the parameters in training, ``outside`` of a flow those of its parameters beyond it.
    """
    facts = scores.card["data"]
    rows, starts = scores.arrays["rows/trajectory"], scores.arrays.get("rollout/trajectory")
    numbers = rows.unique().tolist()
    groups = _conditions(scores, numbers)
    seen = {
        own.name: (own.lowest, own.highest)
        for own in spec_of(scores)["spec"].parameters
        if own.lowest is not None and own.highest is not None
    }
    flows = [
        {
            "name": facts["names"][number],
            "parameters": facts["parameters"][number],
            "outside": _outside(facts["parameters"][number], seen),
            "condition": None if groups is None else groups[index],
            "test_frames": int((rows == number).sum()),
            "rollout_starts": 0 if starts is None else int((starts == number).sum()),
        }
        for index, number in enumerate(numbers)
    ]
    found = {"flows": flows, "training_range": {name: list(ends) for name, ends in seen.items()}}
    if groups is None:
        return {**found, "conditions": None}
    conditions = []
    for group in range(max(groups) + 1):
        members = [flow for flow in flows if flow["condition"] == group]
        shared = set.intersection(*(set(flow["parameters"].items()) for flow in members))
        conditions.append({"parameters": dict(sorted(shared)), "flows": len(members)})
    return {**found, "conditions": conditions}


def _outside(parameters: Mapping[str, float], seen: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the parameters with values beyond those of training."""
    known = {name: value for name, value in parameters.items() if name in seen}
    return [name for name, value in known.items() if not seen[name][0] <= value <= seen[name][1]]


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


def errors_of(scores: Scores) -> list[Errors]:
    """Return the errors of a run by flow and by condition."""
    numbers, measure, sums = _sums_by_flow(scores)
    groups = _conditions(scores, numbers)
    errors = _errors(measure.entries, measure.values, sums, groups, lead=None)
    shares = (Entry(metric=SHARE, component=ALL),)
    errors += _errors(shares, partial(_shares, measure), sums, groups, lead=None)
    if "rollout" in scores.card:
        leads = LeadTimes(**spec_of(scores))
        terms = scores.arrays["rollout/terms"]  # (start, lead, k)
        sums = _by_number(terms, scores.arrays["rollout/trajectory"], numbers)
        for lead in (lead for lead in LEADS if lead <= terms.shape[1]):
            at_lead = sums[:, lead - 1]
            errors += _errors(leads.entries, leads.values, at_lead, groups, lead=lead)
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
            row: Errors = {"metric": entry.metric, "lead": lead, "unit": entry.unit}
            row |= {"conditions": None}
            row |= {name: [as_number(v) for v in t[:, index]] for name, t in tables.items()}
            errors.append(row)
    return errors


def _shares(measure: Pointwise, sums: Tensor) -> Tensor:
    """Return the share of each flow in the squared error of all, (flow, 1)."""
    squares = measure.squared_error(sums)
    return (squares / squares.sum())[:, None]


def summary_of(scores: Scores) -> dict[str, float]:
    """Return how a pooled error is spread over flows; nothing if there is a single flow.

    - nmse_flow_mean, nmse_flow_median: over flows, of the NMSE of each;
    - largest_flow_share: the share of the flow with the largest squared error in that of all.
    """
    numbers, measure, sums = _sums_by_flow(scores)
    if len(numbers) < 2:
        return {}
    names = [(entry.metric, entry.component) for entry in measure.entries]
    nmse = measure.values(sums)[:, names.index(("nmse", ALL))]
    return {
        "nmse_flow_mean": float(nmse.mean()),
        "nmse_flow_median": float(nmse.quantile(0.5)),
        "largest_flow_share": float(_shares(measure, sums).max()),
    }
