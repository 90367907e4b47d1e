"""Errors of single flows and conditions: by brute force, and as they add up to the pooled ones."""

import csv
import statistics
from typing import Any

import pytest
import torch
from torch import Tensor

import pibert
from pibert.comparison.plan import Job
from pibert.evaluation.by_flow import errors_of, flows_of
from pibert.evaluation.scores import read_scores
from tests.comparison.conftest import Carried
from tests.comparison.setups import changed, value_of

RUN = Job("waves", "fno2d", 3)


def found(carried: Carried, metric: str, lead: int | None = None, job: Job = RUN) -> list[Any]:
    rows: list[Any] = carried.results["by_flow"]
    where = {"model": job.candidate, "seed": job.seed, "metric": metric, "lead": lead}
    return list(value_of(rows, **where)["flows"])


def frames_of(carried: Carried, number: int, lead: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prediction, truth, persistence and what is known, of all frames or starts of a test flow."""
    predictor = pibert.load(RUN.folder(carried.out))
    trajectory = carried.flows.trajectories[number]
    states, known = trajectory.read(), trajectory.known()
    scores = read_scores(RUN.folder(carried.out))
    if lead:
        own = scores.arrays["rollout/trajectory"] == number
        newest = (scores.arrays["rollout/frame"][own] + carried.comparison.history - 1).tolist()
    else:
        newest = list(range(carried.comparison.history - 1, trajectory.num_frames - 1))
    windows = torch.stack([states[n : n + 1] for n in newest])
    seen = torch.stack([known[n] for n in newest])
    steps = max(lead, 1)
    answer = predictor.rollout(windows, steps, dict(trajectory.parameters), seen)[:, -1]
    target = [n + steps for n in newest]
    last = torch.where(seen[:, None], windows[:, -1], torch.nan)
    return answer.double(), states[target].double(), last.double(), known[target]


@pytest.mark.parametrize("lead", [None, 1, 2])
def test_errors_of_a_flow_are_those_of_its_own_frames(carried: Carried, lead: int | None) -> None:
    listed = carried.results["data"]["waves"]["flows"]
    tests = sorted({segment.trajectory for segment in carried.flows.split.test})
    assert [flow["name"] for flow in listed] == [carried.flows.trajectories[n].name for n in tests]
    checked = 0
    for place, number in enumerate(tests):
        if lead and not listed[place]["rollout_starts"]:
            assert found(carried, "nmse", lead)[place] is None
            continue
        answer, truth, last, known = frames_of(carried, number, lead or 0)
        here = known[:, None] & last.isfinite()
        error, energy, still = (
            torch.where(here, values, 0.0).square().sum()
            for values in (answer - truth, truth, last.nan_to_num() - truth)
        )
        expected = {
            "nmse": error / energy,
            "rmse": (error / (2 * known.sum())).sqrt(),
            "skill": 1 - error / still,
        }
        for metric, value in expected.items():
            assert found(carried, metric, lead)[place] == pytest.approx(float(value), rel=1e-4)
        checked += 1
    assert checked >= 3


def test_the_table_of_flows_marks_those_outside_the_training_range(carried: Carried) -> None:
    facts = carried.results["data"]["waves"]
    low, high = facts["training_range"]["Re"]
    far = {f["name"] for f in facts["flows"] if not low <= f["parameters"]["Re"] <= high}
    assert 0 < len(far) < len(facts["flows"])
    with (carried.out / "flows.csv").open() as file:
        assert {row["flow"] for row in csv.DictReader(file) if row["outside"] == "Re"} == far
    where = {"model": RUN.candidate, "seed": RUN.seed, "metric": "nmse_flow_median"}
    median = value_of(carried.results["records"], **where)["value"]
    assert median == pytest.approx(statistics.median(found(carried, "nmse")))


def test_flows_of_a_condition_are_pooled(carried: Carried) -> None:
    scores = read_scores(RUN.folder(carried.out))
    numbers = scores.arrays["rows/trajectory"].unique().tolist()
    stated: list[dict[str, float]] = [{} for _ in scores.card["data"]["names"]]
    for place, number in enumerate(numbers):
        stated[number] = {"Re": 100.0 * (place // 4), "run": float(place)}
    source = {**scores.card["data"]["source"], "group_by": ["Re"]}
    grouped = changed(scores, source=source, parameters=stated)
    facts = flows_of(grouped)
    assert [flow["condition"] for flow in facts["flows"]] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert facts["conditions"] == [
        {"parameters": {"Re": 100.0 * n}, "flows": count} for n, count in enumerate((4, 4, 2))
    ]
    assert [flow["test_frames"] for flow in facts["flows"]] == [18] * 10
    rows: list[Any] = errors_of(grouped)
    error = value_of(rows, metric="rmse", lead=None)
    # All flows have as many known points.
    for group, members in enumerate((slice(0, 4), slice(4, 8), slice(8, 10))):
        squares = [value**2 for value in error["flows"][members]]
        expected = (sum(squares) / len(squares)) ** 0.5
        assert error["conditions"][group] == pytest.approx(expected)
    assert value_of(rows, metric="nmse", lead=2)["conditions"] is not None
    # Where every flow has parameters of its own there is nothing to pool.
    alone = changed(scores, parameters=[{"Re": float(n)} for n in range(len(stated))])
    assert flows_of(alone)["conditions"] is None
    assert all(own["conditions"] is None for own in errors_of(alone))
