"""From scores to records: values by brute force, intervals, ranks, rates, and what is refused."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pibert
from pibert.comparison.plan import Job
from pibert.comparison.records import records_of
from pibert.comparison.results import gather, ranking, read_results, refuse_unlike
from pibert.evaluation.scores import Scores, read_scores, save_scores
from pibert.experiments.flows import Flows
from tests.comparison.conftest import Carried
from tests.comparison.setups import changed, value_of


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
    job = next(job for job in carried.comparison.jobs() if job.entrant == name)
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


def test_every_run_has_every_record_once(carried: Carried) -> None:
    keys = ("model", "seed", "space", "metric", "component")
    found = [tuple(record[key] for key in keys) for record in carried.results["records"]]
    assert len(set(found)) == len(found)
    by_run: dict[Any, set[Any]] = {}
    for model, seed, space, metric, component in found:
        if not metric.startswith("alignment"):  # of the tokens that only PIBERT has
            by_run.setdefault((model, seed), set()).add((space, metric, component))
    assert set(by_run) == {(job.entrant, job.seed) for job in carried.comparison.jobs()}
    assert len(set(map(frozenset, by_run.values()))) == 1


def test_intervals_are_over_trajectories_and_hold_the_value(carried: Carried) -> None:
    assert carried.results["data"]["waves"]["intervals"] == "10 trajectories"
    pooled = [r for r in carried.results["records"] if r["metric"] in ("nmse", "rmse", "mae")]
    assert len(pooled) > 50
    for record in pooled:
        assert record["low"] <= record["value"] <= record["high"], record
        assert record["low"] < record["high"]


@pytest.mark.parametrize(
    ("correlation", "method"),
    [
        (1.9, "blocks of 6 frames"),
        (0.3, "blocks of 2 frames"),
        (20.0, "none: the test part has fewer than ten blocks of 60 frames"),
        (None, "none: the flow does not forget itself"),
    ],
)
def test_few_recordings_are_drawn_in_blocks_longer_than_the_flow_remembers(
    correlation: float | None, method: str, carried: Carried, tmp_path: Path
) -> None:
    jobs = [job for job in carried.comparison.jobs() if job.seed == 3]
    for job in jobs:
        scores = read_scores(job.folder(carried.out))
        arrays = dict(scores.arrays)
        for rows in ("rows/trajectory", "sequences/trajectory"):
            arrays[rows] = torch.zeros_like(arrays[rows])
        job.folder(tmp_path).mkdir(parents=True)
        card = {**scores.card, "correlation_frames": correlation}
        save_scores(job.folder(tmp_path), Scores(card, arrays))
    results = gather(replace(carried.comparison, seeds=(3,)), tmp_path, {})
    assert results["data"]["waves"]["intervals"].startswith(method)
    where = {"model": "fno2d", "space": "physical", "component": "all", "metric": "nmse"}
    record = value_of(results["records"], **where)
    before = value_of(carried.results["records"], **where, seed=3)
    assert record["value"] == before["value"]
    if method.startswith("blocks"):
        assert record["low"] < record["value"] < record["high"]
    else:
        assert record["low"] is record["high"] is record["against_best"] is None


def test_frames_in_pairs_are_drawn_in_blocks_of_pairs(carried: Carried, tmp_path: Path) -> None:
    jobs = [job for job in carried.comparison.jobs() if job.seed == 3]
    for job in jobs:
        scores = read_scores(job.folder(carried.out))
        arrays = dict(scores.arrays)
        count = len(arrays["rows/frame"])
        arrays["rows/trajectory"] = torch.arange(count) // (count // 2)
        arrays["rows/frame"] = 1 + 2 * (torch.arange(count) % (count // 2))
        arrays["sequences/trajectory"] = torch.zeros_like(arrays["sequences/trajectory"])
        job.folder(tmp_path).mkdir(parents=True)
        save_scores(
            job.folder(tmp_path), Scores({**scores.card, "correlation_frames": 1.9}, arrays)
        )
    results = gather(replace(carried.comparison, seeds=(3,)), tmp_path, {})
    assert results["data"]["waves"]["intervals"] == "blocks of 6 frames"
    record = value_of(
        results["records"], model="fno2d", space="physical", component="all", metric="nmse"
    )
    assert record["low"] < record["value"] < record["high"]


@pytest.mark.parametrize(
    ("conditions", "method"), [(10, "10 conditions"), (4, "blocks of 6 frames")]
)
def test_repetitions_of_a_condition_are_drawn_as_one(
    conditions: int, method: str, carried: Carried, tmp_path: Path
) -> None:
    jobs = [job for job in carried.comparison.jobs() if job.seed == 3]
    for job in jobs:
        scores = read_scores(job.folder(carried.out))
        facts = scores.card["data"]
        stated = [{"Re": float(n % conditions)} for n in range(len(facts["names"]))]
        # The ten of the test part are as many conditions, or fewer.
        for place, home in enumerate(scores.arrays["rows/trajectory"].unique().tolist()):
            stated[home] = {"Re": float(place % conditions)}
        data = {**facts, "source": {**facts["source"], "group_by": ["Re"]}, "parameters": stated}
        card = {**scores.card, "data": data, "correlation_frames": 1.9}
        job.folder(tmp_path).mkdir(parents=True)
        save_scores(job.folder(tmp_path), Scores(card, dict(scores.arrays)))
    results = gather(replace(carried.comparison, seeds=(3,)), tmp_path, {})
    assert results["data"]["waves"]["intervals"] == method


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


def made_scores(carried: Carried, job: Job, number: float, error: Tensor) -> Scores:
    """Scores whose squared error is that of a real run times a number."""
    real = read_scores(Job("waves", "fno2d", 3).folder(carried.out))
    arrays = dict(real.arrays) | {"errors/prediction": error}
    for name in (n for n in arrays if n.endswith("/pointwise")):
        arrays[name] = number * arrays[name]
    return Scores({**real.card, "labels": {"model": job.entrant}}, arrays)


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
    records, _ = records_of(scores)
    found = {
        metric: {(r["model"], r["seed"]): r["value"] for r in records if r["metric"] == metric}
        for metric in ("win_rate", "top_two_rate")
    }
    wins = {("a", 0): 0.5, ("b", 0): 0.5, ("a", 1): 0.5, ("b", 1): 0.0, ("once", 0): 0.25}
    assert found["win_rate"] == pytest.approx(wins)
    # In the second field "a" and "once" are the best two of every frame.
    twos = {("a", 0): 1.0, ("b", 0): 1.0, ("a", 1): 1.0, ("b", 1): 0.0, ("once", 0): 0.5}
    assert found["top_two_rate"] == pytest.approx(twos)
    for metric, total in (("win_rate", 1), ("top_two_rate", 2)):
        own = found[metric]
        means = [(own[m, 0] + own[m, 1]) / 2 for m in ("a", "b")] + [own["once", 0]]
        assert sum(means) == pytest.approx(total)


def test_models_are_ranked_by_the_mean_of_their_seeds() -> None:
    plain = {"space": "physical", "metric": "nmse", "component": "all"}
    values: dict[str, list[float | None]] = {"a": [0.5, 0.1], "b": [0.2], "c": [0.25, None]}
    records: list[dict[str, Any]]
    records = [{**plain, "model": m, "value": v} for m, own in values.items() for v in own]
    records += [{**plain, "component": "u", "model": "a", "value": 0.0}]
    found = [(entry["rank"], entry["model"]) for entry in ranking(records)]
    assert found == [(1, "b"), (2, "c"), (3, "a")]
    assert ranking(records)[2]["nmse"] == pytest.approx(0.3)


def test_the_ranking_follows_the_records(carried: Carried) -> None:
    board = carried.results["data"]["waves"]["ranking"]
    assert [entry["model"] for entry in board] == [
        entry["model"] for entry in ranking(carried.results["records"])
    ]
    errors = [entry["nmse"] for entry in board]
    assert errors == sorted(errors) and len(errors) == 4
    assert errors[0] < value_of(board, model="persistence")["nmse"]


@pytest.mark.parametrize("seed", [3, 1])
def test_win_rates_count_the_frames_in_which_no_other_is_better(
    seed: int, carried: Carried
) -> None:
    jobs = [
        Job("waves", name, 3 if name in ("persistence", "linear-extrapolation") else seed)
        for name in carried.comparison.entrants
    ]
    errors = {}
    for job in jobs:
        answer, truth, known = step_through(job.folder(carried.out), carried.flows, 2)
        square = torch.where(known[:, None], answer - truth, 0.0).square().sum((1, 2, 3))
        errors[job.entrant] = square.tolist()
    names, frames = list(errors), len(square)
    for name in ("pibert", "fno2d"):
        places = [sum(errors[o][f] < errors[name][f] for o in names) for f in range(frames)]
        for metric, most in (("win_rate", 0), ("top_two_rate", 1)):
            record = value_of(carried.results["records"], model=name, seed=seed, metric=metric)
            expected = sum(place <= most for place in places) / frames
            assert record["value"] == pytest.approx(expected, abs=1.5 / frames)
    rates = [
        value_of(carried.results["records"], model=job.entrant, seed=job.seed, metric="win_rate")
        for job in jobs
    ]
    if seed == 3:
        assert sum(rate["value"] for rate in rates) == pytest.approx(1, abs=1e-9)


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


def test_results_say_what_they_are_of(carried: Carried) -> None:
    results = read_results(carried.out)
    assert results == json.loads(json.dumps(carried.results))
    (facts,) = results["data"].values()
    assert facts["test_frames"] == 10 * 18 and facts["units"] == ["m/s", "m/s"]
    runs = {(own["model"], own["seed"]): own for own in results["runs"]}
    assert len(runs) == 6
    trained = runs["pibert", 1]
    assert trained["training"]["pretraining"]["epochs"] == 2
    assert trained["training"]["training"]["epochs"] == 3
    assert trained["cost"]["parameters"] > 0 and trained["rollout"]["steps"] == 4
    assert (carried.out / trained["folder"] / "model.safetensors").exists()
    assert runs["persistence", 3]["training"] == {}


def test_a_failed_run_leaves_the_others_their_results(carried: Carried, tmp_path: Path) -> None:
    lost = Job("waves", "pibert", 3)
    out = tmp_path / "out"
    out.mkdir()
    (out / "runs").symlink_to(carried.out / "runs")
    results = gather(carried.comparison, out, {lost: "it burnt down"})
    assert {(r["model"], r["seed"]) for r in results["records"]} == {
        (job.entrant, job.seed) for job in carried.comparison.jobs() if job != lost
    }
    assert value_of(results["runs"], model="pibert", seed=3)["failed"] == "it burnt down"


@pytest.fixture
def pair(carried: Carried) -> dict[Job, Scores]:
    jobs = (Job("waves", "fno2d", 1), Job("waves", "persistence", 3))
    return {job: read_scores(job.folder(carried.out)) for job in jobs}


def test_like_runs_are_compared(pair: dict[Job, Scores]) -> None:
    refuse_unlike(pair)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"source": {"path": "other.h5"}}, r'source\.path is ".*waves.h5" and "other.h5"; judge'),
        ({"split": {"test": [[0, 0, None]]}}, r"split\.test is "),
        (
            {"normalizer": {"mean": [0.0, 0.0], "std": [1.0, 1.0]}},
            r"normalizer\.mean is .* and \[0",
        ),
        ({"test_frames": 7}, "test_frames is 180 and 7"),
    ],
)
def test_runs_of_unlike_data_are_refused_with_what_differs(
    facts: dict[str, Any], message: str, pair: dict[Job, Scores]
) -> None:
    first, second = pair
    pair[second] = changed(pair[second], **facts)
    with pytest.raises(ValueError, match=f"fno2d-1 and persistence-3 cannot be.*{message}"):
        refuse_unlike(pair)


@pytest.mark.parametrize("what", ["channels", "units", "grid"])
def test_runs_of_unlike_fields_are_refused(what: str, pair: dict[Job, Scores]) -> None:
    first, second = pair
    spec = {**pair[second].card["data"]["spec"], what: "something else"}
    pair[second] = changed(pair[second], spec=spec)
    with pytest.raises(ValueError, match=f"{what} of their fields is"):
        refuse_unlike(pair)


def test_runs_judged_on_other_frames_are_refused(pair: dict[Job, Scores]) -> None:
    first, second = pair
    arrays = dict(pair[second].arrays)
    arrays["rows/frame"] = arrays["rows/frame"] - 1
    pair[second] = replace(pair[second], arrays=arrays)
    with pytest.raises(ValueError, match="judged on other frames; evaluate both"):
        refuse_unlike(pair)


def test_a_folder_without_results_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run the comparison first"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text('{"format": 99}')
    with pytest.raises(ValueError, match="expected format 1, found 99"):
        read_results(tmp_path)
