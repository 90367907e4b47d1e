"""From scores to records: values by brute force, intervals, ranks, rates, and what is refused."""

import csv
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pibert
from pibert.comparison.plan import Job
from pibert.comparison.results import (
    CURVE_COLUMNS,
    gather,
    ranking,
    ranking_table,
    read_results,
    refuse_unlike,
)
from pibert.comparison.rows import _best, rows_of
from pibert.evaluation.by_flow import measures_of
from pibert.evaluation.measure import Entry
from pibert.evaluation.scores import Scores, read_scores, save_scores
from pibert.experiments.flows import Flows
from tests.comparison.conftest import Carried
from tests.comparison.setups import (
    changed,
    value_of,
)
from tests.helpers import refused


def step_through(folder: Path, flows: Flows, history: int) -> tuple[Tensor, Tensor, Tensor]:
    """Predictions, truth and what is known of all test frames, through the public interface."""
    predictor = pibert.load(folder)
    answers, truths, masks = [], [], []
    for segment in flows.split.test:
        trajectory = flows.trajectories[segment.trajectory]
        states, known = trajectory.read(), trajectory.known()
        frames = range(history, trajectory.num_frames)
        past = [slice(frame - predictor.history, frame) for frame in frames]
        windows = torch.stack([states[part] for part in past])
        seen = torch.stack([known[part].all(0) for part in past])
        answers.append(predictor.step(windows, dict(trajectory.parameters), seen)[:, 0])
        truths.append(states[history:])
        masks.append(known[history:])
    return torch.cat(answers).double(), torch.cat(truths).double(), torch.cat(masks)


@pytest.mark.parametrize("name", ["pibert", "fno2d", "persistence", "linear-extrapolation"])
def test_records_are_the_plain_pooled_errors_of_the_saved_model(
    name: str, carried: Carried
) -> None:
    job = next(job for job in carried.comparison.jobs() if job.candidate == name)
    answer, truth, known = step_through(job.folder(carried.out), carried.flows, 2)
    assert len(truth) == 10 * 18 and not known.all()
    where: dict[str, Any] = {"model": name, "seed": job.seed, "metric": "nmse"}
    std = torch.tensor(carried.flows.normalizer.std).double()[:, None, None]
    mean = torch.tensor(carried.flows.normalizer.mean).double()[:, None, None]
    for space, scale, shift in (("physical", 1.0, 0.0), ("standardised", std, mean)):
        error = torch.where(known[:, None], (answer - truth) / scale, 0.0).square()
        energy = torch.where(known[:, None], (truth - shift) / scale, 0.0).square()
        for component, place in (("u", slice(0, 1)), ("v", slice(1, 2)), ("all", slice(None))):
            record = value_of(carried.results["records"], space=space, component=component, **where)
            expected = error[:, place].sum() / energy[:, place].sum()
            assert record["value"] == pytest.approx(expected.item(), rel=1e-4)


def test_intervals_are_over_trajectories_and_hold_the_value(carried: Carried) -> None:
    assert carried.results["data"]["waves"]["intervals"] == "10 trajectories"
    pooled = [r for r in carried.results["records"] if r["metric"] in ("nmse", "rmse", "mae")]
    assert len(pooled) > 50
    for record in pooled:
        assert record["low"] <= record["value"] <= record["high"], record
        assert record["low"] < record["high"]


def one_recording(scores: Scores) -> Scores:
    """The same test frames as if all were of one trajectory."""
    arrays = dict(scores.arrays)
    for rows in ("rows/trajectory", "sequences/trajectory"):
        arrays[rows] = torch.zeros_like(arrays[rows])
    return Scores(scores.card, arrays)


def in_pairs(scores: Scores) -> Scores:
    """Two trajectories whose frames come in pairs."""
    arrays = dict(one_recording(scores).arrays)
    count = len(arrays["rows/frame"])
    arrays["rows/trajectory"] = torch.arange(count) // (count // 2)
    arrays["rows/frame"] = 1 + 2 * (torch.arange(count) % (count // 2))
    return Scores(scores.card, arrays)


def repeated(scores: Scores, conditions: int) -> Scores:
    """Return the ten test trajectories as repetitions of these conditions."""
    facts = scores.card["data"]
    stated = [{"Re": float(n % conditions)} for n in range(len(facts["names"]))]
    for place, home in enumerate(scores.arrays["rows/trajectory"].unique().tolist()):
        stated[home] = {"Re": float(place % conditions)}
    return changed(scores, source={**facts["source"], "group_by": ["Re"]}, parameters=stated)


@pytest.mark.parametrize(
    ("change", "correlation", "method"),
    [
        (one_recording, 1.9, "blocks of 6 frames (valid for other times of this flow"),
        (one_recording, 0.3, "blocks of 2 frames"),
        (one_recording, 20.0, "none (the test split has fewer than ten blocks of 60"),
        (one_recording, None, "none (the flow stays correlated"),
        (in_pairs, 1.9, "blocks of 6 frames (valid for other times of these 2 flows"),
        (partial(repeated, conditions=10), 1.9, "10 conditions"),
        (partial(repeated, conditions=4), 1.9, "blocks of 6 frames"),
    ],
)
def test_intervals_resample_conditions_or_blocks_of_several_correlation_times(
    change: Callable[[Scores], Scores],
    correlation: float | None,
    method: str,
    carried: Carried,
    tmp_path: Path,
) -> None:
    for job in (job for job in carried.comparison.jobs() if job.seed == 3):
        scores = change(read_scores(job.folder(carried.out)))
        job.folder(tmp_path).mkdir(parents=True)
        card = {**scores.card, "correlation_frames": correlation}
        save_scores(job.folder(tmp_path), replace(scores, card=card))
    results = gather(replace(carried.comparison, seeds=(3,)), tmp_path, {})
    assert results["data"]["waves"]["intervals"].startswith(method)
    where = {"model": "fno2d", "space": "physical", "component": "all", "metric": "nmse"}
    record = value_of(results["records"], **where)
    assert record["value"] == value_of(carried.results["records"], **where, seed=3)["value"]
    if method.startswith("none"):
        assert record["low"] is record["high"] is record["against_best"] is None
    else:
        assert record["low"] < record["value"] < record["high"]


def test_a_model_with_a_seed_that_diverged_is_not_the_best() -> None:
    values = {("a", 0): 0.1, ("a", 1): math.inf, ("b", 0): 0.2, ("b", 1): 0.3}
    jobs = {Job("waves", *key): torch.tensor([value]) for key, value in values.items()}
    entry = Entry(metric="error", component="all")
    assert _best(entry, 0, jobs) == "b"
    # Of three planned seeds of "b" one has failed.
    assert _best(entry, 0, jobs, {"a": 2, "b": 3}) == ""


def test_a_model_with_a_failed_seed_is_neither_first_nor_best_nor_tested(
    carried: Carried, tmp_path: Path
) -> None:
    given = carried.comparison.candidates
    candidates = {name: given[name] for name in ("pibert", "fno2d", "persistence")}
    plan = replace(carried.comparison, candidates=candidates)
    for job in carried.comparison.jobs():
        save_into = job.folder(tmp_path)
        save_into.mkdir(parents=True)
        save_scores(save_into, read_scores(job.folder(carried.out)))
    complete = gather(plan, tmp_path, {})["data"]["waves"]
    first, second = (row["model"] for row in complete["ranking"][:2])
    assert candidates[first].is_trained
    tested = "pibert" if first == "fno2d" else "fno2d"
    plan = replace(plan, tested=tested)
    complete = gather(plan, tmp_path, {})["data"]["waves"]
    lost = Job("waves", first, 1)
    results = gather(plan, tmp_path, {lost: "its loss is not finite"})
    facts = results["data"]["waves"]
    assert [row["model"] for row in facts["ranking"]][-1] == first
    assert facts["ranking"][-1] | {"nmse": None, "seeds": 1, "missing": 1} == facts["ranking"][-1]
    where = {"metric": "nmse", "component": "all", "space": "physical", "seed": 3}
    assert facts["ranking"][0]["model"] == second
    assert value_of(results["records"], model=second, **where)["against_best"] == "best"
    assert value_of(results["records"], model=first, **where)["against_best"] != "best"
    tests = {test["against"]: test for test in facts["paired_tests"]}
    assert tests[first]["ratio"] is tests[first]["p"] is tests[first]["p_holm"] is None
    others = {test["against"]: test["p"] for test in complete["paired_tests"]} | {first: None}
    assert {model: test["p"] for model, test in tests.items()} == others
    shown = list(ranking_table(results, "waves"))[-1]
    assert shown[1] == f"{first} (1 of 2 seeds missing)" and shown[2:5] == ("–", "–", "–")
    without = gather(plan, tmp_path, {Job("waves", tested, 1): "failed"})
    assert without["data"]["waves"]["paired_tests"] == []


def test_marks_compare_with_the_best_model_of_each_number(carried: Carried) -> None:
    by_number: dict[Any, list[dict[str, Any]]] = {}
    for record in carried.results["records"]:
        key = (record["space"], record["metric"], record["component"])
        by_number.setdefault(key, []).append(record)
    winners = set()
    for key, records in by_number.items():
        if all(record["against_best"] is None for record in records):
            continue
        means: dict[str, float] = {}
        for model in {record["model"] for record in records}:
            known = [r["value"] for r in records if r["model"] == model and r["value"] is not None]
            means |= {model: sum(known) / len(known)} if known else {}
        pick = {"lower": min, "higher": max}[records[0]["better"]]
        best = pick(means, key=means.__getitem__)
        winners.add(best)
        for record in records:
            assert (record["against_best"] == "best") == (record["model"] == best), key
    assert len(winners) > 1  # not one model is the best of everything
    headline = by_number["physical", "nmse", "all"]
    worst = max(headline, key=lambda r: r["value"])
    top = max(r["high"] for r in headline if r["against_best"] == "best")
    assert worst["low"] > top and worst["against_best"] == "different"


def test_models_are_ranked_by_the_mean_of_their_seeds() -> None:
    plain = {"space": "physical", "metric": "nmse", "component": "all"}
    values: dict[str, list[float | None]]
    values = {"a": [0.5, 0.1], "b": [0.2, 0.2], "c": [0.01, None], "d": [math.inf, math.nan]}
    values |= {"e": [0.02]}
    records: list[dict[str, Any]]
    records = [{**plain, "model": m, "value": v} for m, own in values.items() for v in own]
    records += [{**plain, "component": "u", "model": "a", "value": 0.0}]
    found = ranking(records, {"a": 2, "b": 2, "c": 2, "d": 2, "e": 2})
    # A seed that failed (c), has no row (e), or no finite error (d) is worse than none.
    assert [(row["rank"], row["model"]) for row in found] == list(enumerate("baced", 1))
    by_model = {row["model"]: row for row in found}
    assert by_model["a"]["nmse"] == pytest.approx(0.3) and by_model["a"]["missing"] == 0
    for model, missing in {"c": 1, "d": 2, "e": 1}.items():
        assert by_model[model]["nmse"] is None and by_model[model]["missing"] == missing
    assert [row["model"] for row in ranking(records)][0] == "e"  # one seed was planned


def test_the_table_is_the_list_of_records(carried: Carried) -> None:
    with (carried.out / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    stored = json.loads((carried.out / "results.json").read_text())["records"]
    assert stored == carried.results["records"] and len(rows) == len(stored)
    for row, record in zip(rows, stored, strict=True):
        assert list(row) == [*record, "optimizer", "learning_rate"]
        for key, value in record.items():
            if isinstance(value, float):
                assert float(row[key]) == value
            else:
                assert row[key] == ("" if value is None else str(value))


def test_results_state_data_runs_and_training(carried: Carried) -> None:
    results = read_results(carried.out)
    assert results == json.loads(json.dumps(carried.results))
    (facts,) = results["data"].values()
    assert facts["test_frames"] == 10 * 18 and facts["units"] == ["m/s", "m/s"]
    runs = {(own["model"], own["seed"]): own for own in results["runs"]}
    assert len(runs) == 6
    trained = runs["pibert", 1]
    stages = {stage: (own["epochs"], own["samples"]) for stage, own in trained["training"].items()}
    windows = 10 * 19
    assert stages == {"pretraining": (2, 2 * windows), "training": (3, 3 * windows)}
    assert trained["cost"]["parameters"] > 0 and trained["rollout"]["steps"] == 4
    assert (carried.out / trained["folder"] / "model.safetensors").exists()
    assert runs["persistence", 3]["training"] == {}


@pytest.fixture
def pair(carried: Carried) -> dict[Job, Scores]:
    jobs = (Job("waves", "fno2d", 1), Job("waves", "persistence", 3))
    return {job: read_scores(job.folder(carried.out)) for job in jobs}


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"source": {"path": "other.h5"}}, ("source.path", "waves.h5", "other.h5")),
        ({"split": {"test": [[0, 0, None]]}}, ("split.test",)),
        ({"normalizer": {"mean": [0.0, 0.0], "std": [1.0, 1.0]}}, ("normalizer.mean", "[0.0")),
        ({"spec": {"units": ["1", "1"]}}, ("units",)),
    ],
)
def test_runs_of_unlike_data_are_refused_with_what_differs(
    facts: dict[str, Any], named: tuple[object, ...], pair: dict[Job, Scores]
) -> None:
    _, second = pair
    if "spec" in facts:
        facts = {"spec": pair[second].card["data"]["spec"] | facts["spec"]}
    pair[second] = changed(pair[second], **facts)
    with refused("fno2d-1", "persistence-3", *named):
        refuse_unlike(pair)


def test_runs_evaluated_on_other_frames_are_refused(pair: dict[Job, Scores]) -> None:
    _, second = pair
    frames = {"rows/frame": pair[second].arrays["rows/frame"] - 1}
    pair[second] = replace(pair[second], arrays=dict(pair[second].arrays) | frames)
    with refused("fno2d-1", "persistence-3", "frames"):
        refuse_unlike(pair)


def test_every_epoch_of_every_run_has_a_row(carried: Carried) -> None:
    with (carried.out / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == CURVE_COLUMNS
    own = [row for row in rows if (row["model"], row["seed"]) == ("pibert", "1")]
    assert [row["stage"] for row in own] == ["pretraining"] * 2 + ["training"] * 3
    folder = Job("waves", "pibert", 1).folder(carried.out)
    lines = [json.loads(text) for text in (folder / "log.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    for row, line in zip(own[2:], epochs, strict=True):
        assert int(row["epoch"]) == line["epoch"] and int(row["step"]) == line["step"]
        assert float(row["learning_rate"]) == line["learning_rate"]
        assert float(row["train_loss"]) == line["train"]["loss"]
        assert float(row["valid_error"]) == line["valid"]["reconstruction"]
        assert row["best"] == str(int(line["best"]))
    size = lines[0]["samples_per_epoch"]
    assert [int(row["samples"]) for row in own] == [size * n for n in range(1, 6)]
    elapsed = [float(row["elapsed"]) for row in own]
    assert elapsed == sorted(elapsed)
    assert elapsed[-1] == pytest.approx(sum(float(row["seconds"]) for row in own), abs=0.01)
    assert not any(row["model"] == "persistence" for row in rows)


def made_scores(carried: Carried, job: Job, number: float, error: Tensor) -> Scores:
    """Scores whose squared error is that of a real run times a number."""
    real = read_scores(Job("waves", "fno2d", 3).folder(carried.out))
    arrays = dict(real.arrays) | {"errors/prediction": error}
    for name in (n for n in arrays if n.endswith("/pointwise")):
        arrays[name] = number * arrays[name]
    return Scores({**real.card, "labels": {"model": job.candidate}}, arrays)


def test_win_rates_of_models_add_up_over_seeds_and_level_ones_share(carried: Carried) -> None:
    frames = len(read_scores(Job("waves", "fno2d", 3).folder(carried.out)).arrays["rows/frame"])
    ones = torch.ones(frames, dtype=torch.float64)
    half = torch.where(torch.arange(frames) % 2 == 0, 0.5, 2.0).double()
    errors = {
        Job("w", "a", 0): ones,
        Job("w", "a", 1): half,
        Job("w", "b", 0): ones,
        Job("w", "b", 1): 3 * ones,
        Job("w", "once", 0): 1.5 * ones,  # has no seeds, and is in both fields
    }
    scores = {job: made_scores(carried, job, 1.0, error) for job, error in errors.items()}
    records, _ = rows_of(scores)
    found = {
        metric: {(r["model"], r["seed"]): r["value"] for r in records if r["metric"] == metric}
        for metric in ("win_rate", "top_two_rate")
    }
    wins = {("a", 0): 0.5, ("b", 0): 0.5, ("a", 1): 0.5, ("b", 1): 0.0, ("once", 0): 0.25}
    assert found["win_rate"] == pytest.approx(wins)
    # In the second field "a" and "once" are the best two of every frame.
    twos = {("a", 0): 1.0, ("b", 0): 1.0, ("a", 1): 1.0, ("b", 1): 0.0, ("once", 0): 0.5}
    assert found["top_two_rate"] == pytest.approx(twos)
    # These runs share their terms, and so the errors of all slices.
    shared = {(r["model"], r["seed"]): r["value"] for r in records if r["component"] == "u"
              and r["metric"] == "slice_column_32_rel_l2_win_rate"}  # fmt: skip
    assert len(shared) == 5 and list(shared.values()) == pytest.approx([1 / 3] * 5)
    for metric, total in (("win_rate", 1), ("top_two_rate", 2)):
        own = found[metric]
        means = [(own[m, 0] + own[m, 1]) / 2 for m in ("a", "b")] + [own["once", 0]]
        assert sum(means) == pytest.approx(total)


def test_slices_have_win_rates_by_the_error_of_each_frame(carried: Carried) -> None:
    jobs = [job for job in carried.comparison.jobs() if job.seed == 3]
    scores = {job: read_scores(job.folder(carried.out)) for job in jobs}
    measure = measures_of(next(iter(scores.values())))["physical/slices"]
    (place,) = (
        n
        for n, entry in enumerate(measure.entries)
        if (entry.metric, entry.component) == ("slice_column_11_rel_l2", "v")
    )
    errors = torch.stack(
        [measure.values(own.arrays["terms/physical/slices"])[:, place] for own in scores.values()]
    )
    records: list[Mapping[str, Any]] = [*rows_of(scores)[0]]
    ranks = errors.argsort(0).argsort(0)
    for job, mine in zip(jobs, ranks, strict=True):
        for kind, most in (("win_rate", 1), ("top_two_rate", 2)):
            metric = f"slice_column_11_rel_l2_{kind}"
            found = value_of(records, metric=metric, component="v", **job.labels)["value"]
            assert found == pytest.approx((mine < most).double().mean().item())


def test_calibrated_models_have_coverage_and_crps_by_lead_time(carried: Carried) -> None:
    """Starts of two frames: 8 of 10 values inside, then 5; scores of 0.1 and 0.3 each.

    Their starts depend on the leads of the calibration, so no model is named the best.
    """
    job, other = (Job("waves", name, 3) for name in ("fno2d", "persistence"))
    scores = {j: read_scores(j.folder(carried.out)) for j in carried.comparison.jobs()}
    one = scores[job]
    channels = len(one.card["data"]["spec"]["channels"])
    lead = [[10.0, 8.0, 1.0] * channels, [10.0, 5.0, 3.0] * channels]
    flows = one.arrays["rows/trajectory"].unique()
    arrays = {
        "rollout_intervals/terms": torch.tensor([lead] * len(flows), dtype=torch.float64),
        "rollout_intervals/trajectory": flows,
        "rollout_intervals/frame": torch.zeros_like(flows),
    }
    scores[job] = Scores(
        one.card | {"rollout_intervals": {"steps": 2, "level": 0.9}}, {**one.arrays, **arrays}
    )
    rows, _ = rows_of(scores)
    found = {
        (row["model"], row["metric"], row["component"]): row["value"]
        for row in rows
        if row["metric"] in ("rollout_coverage", "rollout_crps")
    }
    assert found == {
        ("fno2d", "rollout_coverage", "lead 1"): pytest.approx(0.8),
        ("fno2d", "rollout_coverage", "lead 2"): pytest.approx(0.5),
        ("fno2d", "rollout_crps", "lead 1"): pytest.approx(0.1),
        ("fno2d", "rollout_crps", "lead 2"): pytest.approx(0.3),
    }
    assert other.candidate not in {model for model, _, _ in found}
    scored = [row for row in rows if row["metric"] in ("rollout_coverage", "rollout_crps")]
    assert all(row["low"] is not None and row["against_best"] is None for row in scored)
