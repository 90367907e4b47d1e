"""Boards whose numbers are written by hand: what tables and the page make of them is known."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pibert.evaluation.scores import Scores
from pibert.fields import FieldSpec, Grid
from pibert.report.comparison.results import UNTRAINED, DatasetResults

Given = Mapping[str, float | Sequence[float]]


def record(
    model: str, metric: str, value: float | None, *, seed: int = 0, component: str = "all",
    better: str = "lower", unit: str = "1", mark: str | None = None, space: str = "physical",
    ends: tuple[float, float] | None = None, data: str = "wakes",
) -> dict[str, Any]:  # fmt: skip
    low, high = ends or (None, None)
    return {
        "data": data, "model": model, "seed": seed, "space": space, "metric": metric,
        "component": component, "value": value, "low": low, "high": high, "unit": unit,
        "better": better, "against_best": mark,
    }  # fmt: skip


def handmade(
    errors: Given,
    more: Sequence[dict[str, Any]] = (),
    *,
    name: str = "wakes",
    level: Sequence[str] = (),
    marked: bool = True,
    failed: Sequence[tuple[str, str]] = (),
) -> DatasetResults:
    """A data of models with these NMSE, one number a seed, ranked by their mean."""
    values = {m: [v] if isinstance(v, float) else list(v) for m, v in errors.items()}
    means = {m: sum(own) / len(own) for m, own in values.items()}
    order = sorted(means, key=means.__getitem__)
    records = []
    for model, own in values.items():
        mark = "best" if model == order[0] else "level" if model in level else "different"
        for seed, value in enumerate(own):
            ends = (0.9 * value, 1.2 * value) if marked else None
            mine = record(model, "nmse", value, seed=seed, ends=ends, data=name)
            records.append({**mine, "against_best": mark if marked else None})
    runs = [_run(name, m, seed) for m, own in values.items() for seed in range(len(own))]
    runs += [{"data": name, "model": m, "seed": 0, "failed": why} for m, why in failed]
    facts = {
        "source": {"case": "cylinder", "preset": "tiny"},
        "hash": "0123abcd",
        "length_unit": "D",
        "test_frames": 1234,
        "correlation_frames": 3.25,
        "intervals": "blocks of 5 frames" if marked else "none (fewer than ten blocks)",
        "ranking": [{"rank": n, "model": m, "nmse": means[m]} for n, m in enumerate(order, 1)],
    }
    results = {
        "format": 1,
        "comparison": {
            "seeds": [0, 1],
            "samples": 20_000,
            "reference": "persistence",
            "training": {
                "batch_size": 32, "optimizer": "adamw", "learning_rate": 1e-3,
                "monitor": "reconstruction",
            },
            "rollout": {"steps": 4, "starts": 6},
            "hardware": {"precision": "float32"},
        },
        "commit": "c" * 40,
        "versions": {"pibert": "9.9"},
        "data": {name: facts},
        "runs": runs,
        "records": [*records, *more],
    }  # fmt: skip
    scores = {(run["model"], run["seed"]): _scores() for run in runs if "failed" not in run}
    return DatasetResults(name, results, scores)


def together(*datasets: DatasetResults) -> list[DatasetResults]:
    """Boards of one comparison: all share its results."""
    results = dict(datasets[0].results)
    for key in ("records", "runs"):
        results[key] = [own for data in datasets for own in data.results[key]]
    results["data"] = {data.name: data.facts for data in datasets}
    return [DatasetResults(data.name, results, data.scores) for data in datasets]


def _run(name: str, model: str, seed: int) -> dict[str, Any]:
    stage = {
        "epochs": 10, "seconds": 60.0 * (1 + seed), "best_epoch": 8,
        "curve": [[4, {"reconstruction": 0.5}], [8, {"reconstruction": 0.25}]],
    }  # fmt: skip
    learned = model not in UNTRAINED
    early = {"epochs": 2, "seconds": 30.0, "best_epoch": 1, "curve": []}
    stages = {"pretraining": early, "training": stage} if model == "pibert" else {"training": stage}
    return {
        "data": name, "model": model, "seed": seed, "folder": f"runs/{name}/{model}-{seed}",
        "commit": "c" * 40, "hardware": "cpu", "config": {"width": 16}, "name": model,
        "training": stages if learned else {},
        "cost": {
            "parameters": 1_560_232 if learned else 0, "checkpoint_bytes": 6_200_000,
            "flops": 50_680_896, "sampler_steps": None, "device": "a machine",
            "batches": [
                {"batch": 1, "ms_per_sample": 6.676, "peak_bytes": None},
                {"batch": 128, "ms_per_sample": 1.1455, "peak_bytes": None},
            ],
        },
        "rollout": {"steps": 4, "starts": 6},
    }  # fmt: skip


def _scores() -> Scores:
    grid = Grid((12, 20), dx=0.1, dy=0.2)
    spec = FieldSpec(
        family="incompressible", channels=("u", "v"), units=("m/s", "m/s"), grid=grid, dt=0.25
    )
    card = {
        "data": {
            "spec": spec.to_dict(),
            "split": {"train": [[0, 0, None], [2, 0, None]], "valid": [[1, 0, None]],
                      "calibration": [], "test": [[3, 0, None]]},
            "length_unit": "D",
            "test_frames": 1234,
            "has_body": True,
        },
        "pick_rule": "frames picked by a coin",
        "rollout": {
            "entries": [{"metric": "nmse", "component": "all"}],
            "summary": [{"metric": "stable_horizon", "component": "all"},
                        {"metric": "diverged", "component": "all"}],
        },
    }  # fmt: skip
    curves = torch.tensor([[0.1], [0.2], [0.4], [torch.inf]]).double()
    arrays = {"rollout/curves": curves, "rollout/summary": torch.tensor([2.5, 0.5]).double()}
    return Scores(card, arrays)
