"""The text of a report: its title and the protocol."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pibert.data.wording import counted
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.table import digits, integer
from pibert.report.figures import with_unit

Facts = list[tuple[str, str]]


def title(datasets: Sequence[DatasetResults]) -> str:
    models = {model for data in datasets for model in data.models}
    names = ", ".join(data.name for data in datasets)
    return f"{len(models)} models on {names}" if datasets else "A comparison without results"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def external_runs(results: Mapping[str, Any]) -> list[str]:
    """Models that were trained elsewhere, each with its own budget."""
    return [name for name, settings in _candidates(results).items() if settings.get("run")]


def _candidates(results: Mapping[str, Any]) -> Mapping[str, Any]:
    """The models of the plan by name; older results call them entrants."""
    plan = results.get("comparison", {})
    return dict(plan.get("candidates") or plan.get("entrants") or {})


def protocol(results: Mapping[str, Any], datasets: Sequence[DatasetResults]) -> Facts:
    """What holds for all datasets."""
    plan = results["comparison"]
    fit, rollouts = plan["training"], plan["rollout"]
    runs = [run for run in results["runs"] if "failed" not in run]
    seeds = f"{', '.join(map(str, plan['seeds']))}; predictors without training run once"
    if len(plan["seeds"]) == 1:
        seeds += "; the variation between training runs is unknown"
    devices = dict.fromkeys(
        " / ".join(dict.fromkeys((run["hardware"], run["cost"]["device"]))) for run in runs
    )
    recipe = f"{fit['optimizer']}, learning rate {fit['learning_rate']:g} unless the model's own"
    if plan.get("tuning"):
        recipe = "optimiser and learning rate as tuned for each model"
    elsewhere = _listed(external_runs(results)) or "none"
    rule = next((str(data.reference.card["pick_rule"]) for data in datasets), "none")
    command = results.get("command") or "not recorded"
    return [
        (
            "Budget",
            f"{integer(plan['samples'])} samples for every trained model, repetitions and "
            f"pretraining included; batches of {fit['batch_size']}, {recipe}; trained elsewhere "
            f"with other budgets: {elsewhere}",
        ),
        *([("Tuning", tuning_text(results))] if plan.get("tuning") else []),
        ("Seeds", seeds),
        ("Selection", f"epoch with the lowest {monitored(results)} on the validation split"),
        ("Test", "scored once, at the end; every frame is predicted from true frames before it"),
        (
            "Rollouts",
            f"{rollouts['steps']} frames from {rollouts['starts']} starts"
            if rollouts["steps"]
            else "none",
        ),
        ("Reference", f"{plan['reference']}; its error selects the frames shown: {rule}"),
        ("Precision", str(plan["hardware"]["precision"])),
        ("Hardware", "; ".join(devices) or "not recorded"),
        ("Commit", str(results.get("commit") or "not recorded")),
        ("Versions", ", ".join(f"{name} {v}" for name, v in results["versions"].items())),
        ("Command", command if isinstance(command, str) else shlex.join(command)),
    ]


def monitored(results: Mapping[str, Any]) -> str:
    """The quantity that selects epochs, as text."""
    name = results["comparison"]["training"]["monitor"]
    return {"reconstruction": "next-frame error", "loss": "loss"}.get(name, f"{name} error")


def tuned_models(results: Mapping[str, Any], dataset: str) -> dict[str, Mapping[str, Any]]:
    """Tuning records of the models with a chosen setting on a dataset; empty without tuning."""
    records = results.get("tuning") or ()
    return {
        record["model"]: record
        for record in records
        if record["data"] == dataset and record["chosen"]
    }


def tuning_text(results: Mapping[str, Any]) -> str:
    """How learning rates and optimisers were chosen, and the limits of that choice."""
    plan, records = results["comparison"], results["tuning"]
    tuning = plan["tuning"]
    rates = ", ".join(f"{rate:g}" for rate in sorted(tuning["learning_rates"]))
    count = max((len(record["trials"]) for record in records), default=0)
    samples = integer(max(1, round(tuning["budget"] * plan["samples"])))
    edges = [f"{row['model']} on {row['data']} ({row['edge']})" for row in records if row["edge"]]
    tuned = {record["model"] for record in records}
    reused = [f"{name} (that of {other})" for name, other in tuning["reuse"].items()]
    facts = {
        "Reusing the choice of another data set": reused,
        "Chosen at the edge of the rates tried, so that a better one may lie beyond": edges,
        "Not tuned": [name for name in _candidates(results) if name not in tuned],
    }
    return " ".join(
        [
            f"Learning rates {rates} with {_listed(tuning['optimizers'])}; the trial with the "
            f"lowest {monitored(results)} on the validation split is chosen, and no trial uses the "
            f"test split. Trials of each trained model: {count} of {samples} samples, pretraining "
            f"included, in addition to the budget, with seed {tuning['seed']}.",
            *(f"{what}: {_listed(names)}." for what, names in facts.items() if names),
        ]
    )


def most_at_a_time(data: DatasetResults) -> int:
    """The most runs that shared a device."""
    return max((run.get("at_a_time") or 1 for run in data.runs), default=1)


def shared_device_text(data: DatasetResults) -> str:
    """A warning about training times measured beside other runs; empty if all ran alone."""
    most = most_at_a_time(data)
    if most < 2:
        return ""
    return (
        f" Up to {most} runs at a time shared a device (marked shared device): their training "
        "times are upper bounds and cannot be compared."
    )


def data_facts(data: DatasetResults) -> Facts:
    """What holds for one dataset."""
    info, spec, runs = data.info, data.spec, data.facts.get("free_run")
    ny, nx = spec.grid.shape
    interval = "" if spec.dt is None else f"{spec.dt:.4g} {info.get('time_unit') or ''}".rstrip()
    step = f"; frames {interval} apart" if interval else ""
    spacing = with_unit(f"{spec.grid.dx:.4g} × {spec.grid.dy:.4g}", info["length_unit"])
    channels = zip(spec.channels, spec.units, strict=True)
    source = dict(data.facts["source"])
    for subset in ("calibration", "test"):
        source |= {f"{subset} {key}": value for key, value in source.pop(subset, {}).items()}
    plain = [f"{k} {v if isinstance(v, str) else json.dumps(v)}" for k, v in source.items()]
    plan = data.results.get("comparison", {}).get("data", {}).get(data.name, {})
    split = [f"{name} {_count(pieces)}" for name, pieces in info["split"].items() if pieces]
    facts = {
        "Data": ", ".join(plain),
        "Hash": str(data.facts["hash"]),
        "Split": f"{plan.get('split', 'as stored')}: {', '.join(split)}",
        "Test frames": integer(info["test_frames"]),
        "Filled points": f"{integer(info.get('filled_points', 0))} in these, not scored",
        "Fields": ", ".join(with_unit(name, unit) for name, unit in channels),
        "Grid": f"{ny} rows × {nx} columns, spacing (x × y) {spacing}{step}",
        "Parameters": ", ".join(parameter.name for parameter in spec.parameters) or "none",
        "Intervals (95 %)": str(data.facts["intervals"]),
    }
    if time := data.facts["correlation_frames"]:
        facts["Correlation time"] = f"{digits(time, 2)} frames"
    if runs:
        size = " to ".join(map(str, sorted(set(runs["frames"]))))
        text = f"{runs['runs']} of {size} frames on {runs['flows']} test flows"
        facts["Free runs"] = f"{text}; intervals: {runs['intervals']}"
    return list(facts.items())


def _count(pieces: Sequence[Sequence[int | None]]) -> str:
    """``3 trajectories``, or the frames of a split in time."""
    spans = sorted({(start or 0, "end" if stop is None else stop) for _, start, stop in pieces})
    parts = [] if spans == [(0, "end")] else [f"{start} to {stop}" for start, stop in spans[:3]]
    text = counted(len({piece[0] for piece in pieces}), "trajectory")
    return f"{text} (frames {', '.join(parts)})" if parts else text
