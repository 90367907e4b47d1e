"""The text of a report: which model wins, by how much and how certain that is; and the protocol."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pibert.report.comparison.results import UNTRAINED, DatasetResults
from pibert.report.comparison.table import digits, has_intervals, integer, interval_of, is_level
from pibert.report.figures import with_unit

Facts = list[tuple[str, str]]
_SPLITS = {"train": "training", "valid": "validation"}


def title(datasets: Sequence[DatasetResults]) -> str:
    models = {model for data in datasets for model in data.models}
    names = ", ".join(data.name for data in datasets)
    return f"{len(models)} models on {names}" if datasets else "A comparison without results"


def verdict(data: DatasetResults, *, short: bool = False) -> str:
    """The winner, its margin, and how certain the ranking is; short: without the other ranks."""
    models, best = data.models, data.models[0]
    frames = integer(data.facts["test_frames"])
    sentences = [
        f"On {data.name}, over {frames} test frames, {best} predicts the next frame most "
        f"accurately of {len(models)} models: NMSE {_error(data, best)}."
    ]
    if "persistence" in models:
        sentences.append(_persistence(data))
    if not short:
        sentences += _other_ranks(data)
    sentences += _free_runs(data)
    sentences.append(_certainty(data))
    return " ".join(sentences)


def _error(data: DatasetResults, model: str) -> str:
    interval = interval_of(data.find(model, "nmse"))
    known = f" (95 % interval {interval})" if interval else ""
    return digits(data.value(model, "nmse") or 0.0) + known


def _times(data: DatasetResults, model: str, other: str) -> str:
    """The error of the other model over that of the first."""
    error, other_error = data.value(model, "nmse"), data.value(other, "nmse")
    return digits(other_error / error) if error and other_error else "∞"


def _persistence(data: DatasetResults) -> str:
    best = data.models[0]
    if best == "persistence":
        return "No model beats repeating the last frame."
    error = digits(data.value("persistence", "nmse") or 0.0)
    worse = data.models[data.models.index("persistence") + 1 :]
    verb = "are" if len(worse) > 1 else "is"
    lost = f"; {_listed(worse)} {verb} worse than that" if worse else ""
    times = _times(data, best, "persistence")
    return f"Repeating the last frame (persistence) gives {error}, {times} times as much{lost}."


def _other_ranks(data: DatasetResults) -> list[str]:
    """The second, the first trained network, and PIBERT."""
    models, sentences = data.models, []
    if len(models) > 1:
        best, second = models[:2]
        sentences.append(
            f"Second is {second} with {_error(data, second)}, {_times(data, best, second)} times "
            f"the error of {best}."
        )
    trained = [model for model in models if model not in UNTRAINED]
    if models[0] in UNTRAINED and trained:
        sentences.append(
            "The winner is a reference predictor, not a trained network; the best network is "
            f"{trained[0]}, ranked {models.index(trained[0]) + 1} with "
            f"{_error(data, trained[0])}."
        )
    elif not trained:
        sentences.append("No trained network was compared.")
    if "pibert" in models and "pibert" not in (*models[:2], *trained[:1]):
        rank = models.index("pibert") + 1
        sentences.append(f"pibert is ranked {rank} with {_error(data, 'pibert')}.")
    return sentences


def _free_runs(data: DatasetResults) -> list[str]:
    """The best statistics of free runs, and how many models diverge."""
    facts, metric = data.facts.get("free_run"), "free_run_stress_error"
    if facts is None:
        return []
    errors = {m: v for m in data.models if (v := data.value(m, metric)) is not None}
    lost = [m for m in data.models if (data.value(m, "free_run_diverged") or 0) > 0]
    best, sentences = min(errors, key=errors.__getitem__, default=""), []
    if not errors or errors[best] >= 1:
        sentences.append(
            f"Running on its own for up to {max(facts['frames'])} frames, no model has Reynolds "
            "stresses closer to the truth than none at all."
        )
    else:
        sampling = data.value("truth", metric)
        limit = "" if sampling is None else f"; sampling error of the truth {digits(sampling)}"
        interval = interval_of(data.find(best, metric))
        known = f" {interval}" if interval else ""
        sentences.append(
            f"Running on its own for up to {max(facts['frames'])} frames, {best} has the smallest "
            f"error of the Reynolds stresses: {digits(errors[best])}{known}{limit}."
        )
    if lost:
        sentences.append(f"Runs of {_listed(lost)} diverge.")
    return sentences


def _certainty(data: DatasetResults) -> str:
    seeds = "There is one seed, so the variation between training runs is unknown."
    if len(data.seeds) > 1:
        seeds = f"Numbers are means over {len(data.seeds)} seeds."
    if not has_intervals(data):
        return f"There are too few test frames for intervals, so nothing here is certain. {seeds}"
    level = [model for model in data.models if is_level(data.find(model, "nmse"))]
    if level:
        finding = f"Not significantly different from {data.models[0]}: {_listed(level)}."
    else:
        finding = f"All other models differ significantly from {data.models[0]}."
    return f"{finding} Intervals cover the choice of test frames only. {seeds}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def external_runs(results: Mapping[str, Any]) -> list[str]:
    """Models that were trained elsewhere, each with its own budget."""
    return [
        name for name, settings in _candidates(results).items() if settings.get("run") is not None
    ]


def _candidates(results: Mapping[str, Any]) -> Mapping[str, Any]:
    """The models of the plan by name; older results call them entrants."""
    plan = results.get("comparison", {})
    return dict(plan.get("candidates") or plan.get("entrants") or {})


def protocol(results: Mapping[str, Any], datasets: Sequence[DatasetResults]) -> Facts:
    """What holds for all datasets."""
    plan = results["comparison"]
    fit, rollouts = plan["training"], plan["rollout"]
    runs = [run for run in results["runs"] if "failed" not in run]
    devices = dict.fromkeys(
        " / ".join(dict.fromkeys((run["hardware"], run["cost"]["device"]))) for run in runs
    )
    recipe = "optimiser and learning rate as tuned for each model"
    if not plan.get("tuning"):
        rate = f"{fit['learning_rate']:g}"
        recipe = f"{fit['optimizer']}, learning rate {rate} unless the model sets its own"
    external = external_runs(results)
    exempt = f" except {', '.join(external)}, trained elsewhere" if external else ""
    rule = next((str(data.reference.card["pick_rule"]) for data in datasets), "none")
    command = results.get("command")
    if command is None:
        command = "not recorded; all settings are listed under Provenance"
    return [
        (
            "Budget",
            f"{integer(plan['samples'])} samples for every trained model{exempt}, repetitions and "
            f"pretraining included; batches of {fit['batch_size']}, {recipe}",
        ),
        *([("Tuning", tuning_text(results))] if plan.get("tuning") else []),
        ("Seeds", f"{', '.join(map(str, plan['seeds']))}; predictors without training run once"),
        ("Selection", f"epoch with the lowest {monitored(results)} on the validation split"),
        ("Test", "scored once, at the end; every frame is predicted from true frames before it"),
        ("Rollouts", f"{rollouts['steps']} frames from {rollouts['starts']} starts"),
        ("Reference", f"{plan['reference']}; its error selects the frames shown: {rule}"),
        ("Precision", str(plan["hardware"]["precision"])),
        ("Hardware", "; ".join(devices) or "not recorded"),
        ("Commit", str(results.get("commit") or "not recorded")),
        ("Versions", ", ".join(f"{name} {v}" for name, v in results["versions"].items())),
        ("Command", command if isinstance(command, str) else shlex.join(command)),
    ]


def monitored(results: Mapping[str, Any]) -> str:
    """The quantity that selects epochs, in words."""
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


def trial_text(results: Mapping[str, Any]) -> str:
    """The tuning budget of every model."""
    plan = results["comparison"]
    tuning = plan["tuning"]
    count = max((len(record["trials"]) for record in results["tuning"]), default=0)
    samples = integer(max(1, round(tuning["budget"] * plan["samples"])))
    return (
        f"Every trained model gets {count} {'trial' if count == 1 else 'trials'} of {samples} "
        f"samples ({100 * tuning['budget']:g} % of the budget, to within half an epoch), "
        f"pretraining included, in addition to the budget, with seed {tuning['seed']}."
    )


def tuning_text(results: Mapping[str, Any]) -> str:
    """How learning rates and optimisers were chosen, and the limits of that choice."""
    plan, records = results["comparison"], results["tuning"]
    tuning = plan["tuning"]
    rates = ", ".join(f"{rate:g}" for rate in sorted(tuning["learning_rates"]))
    sentences = [
        f"Learning rates {rates} with {_listed(tuning['optimizers'])}; the trial with the lowest "
        f"{monitored(results)} on the validation split is chosen, and no trial uses the test "
        f"split. {trial_text(results)}"
    ]
    sentences += [f"{name} uses the choice of {other}." for name, other in tuning["reuse"].items()]
    edges = [f"{row['model']} on {row['data']} ({row['edge']})" for row in records if row["edge"]]
    if edges:
        sentences.append(
            "Chosen at the edge of the rates tried, so a better one may lie beyond: "
            f"{_listed(edges)}."
        )
    tuned = {record["model"] for record in records}
    others = [name for name in _candidates(results) if name not in tuned]
    if others:
        sentences.append(f"Not tuned: {_listed(others)}.")
    return " ".join(sentences)


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
    info, spec = data.info, data.spec
    ny, nx = spec.grid.shape
    step = "" if spec.dt is None else f"; frames {spec.dt:g} apart"
    spacing = with_unit(f"{spec.grid.dx:.4g} × {spec.grid.dy:.4g}", info["length_unit"])
    channels = zip(spec.channels, spec.units, strict=True)
    source = data.facts["source"].items()
    plain = [f"{key} {v if isinstance(v, str) else json.dumps(v)}" for key, v in source]
    plan = data.results.get("comparison", {}).get("data", {}).get(data.name, {})
    rule = f"{plan['split']}: " if ":" in str(plan.get("split", "")) else ""
    facts = [
        ("Data", ", ".join(plain)),
        ("Hash", str(data.facts["hash"])),
        ("Split", f"{rule}{split_text(info['split'])}; {integer(info['test_frames'])} test frames"),
        ("Fields", ", ".join(with_unit(name, unit) for name, unit in channels)),
        ("Grid", f"{ny} rows × {nx} columns, spacing (x × y) {spacing}{step}"),
        ("Parameters", ", ".join(parameter.name for parameter in spec.parameters) or "none"),
        ("Intervals", _intervals(data)),
    ]
    if runs := data.facts.get("free_run"):
        size = " to ".join(map(str, sorted(set(runs["frames"]))))
        text = f"{runs['runs']} of {size} frames on {runs['flows']} test flows"
        facts.append(("Free runs", f"{text}; intervals: {runs['intervals']}"))
    if filled := info.get("filled_points"):
        facts.insert(3, ("Filled points", f"{integer(filled)} in the test frames, not scored"))
    if set(spec.units) == {"1"}:
        scale = ": velocity over the reference velocity" if spec.velocity else ""
        facts.insert(4, ("Units", f"dimensionless{scale}"))
    return facts


def _intervals(data: DatasetResults) -> str:
    method = str(data.facts["intervals"])
    if method.startswith("none"):
        return method
    time = data.facts["correlation_frames"]
    known = "" if time is None else f"; correlation time of the flow: {digits(time, 2)} frames"
    return f"95 %, paired bootstrap over {method}, the same resamples for all models{known}"


def split_text(split: Mapping[str, Sequence[Sequence[int | None]]]) -> str:
    """``training 3 trajectories, validation 1 trajectory``, or frames of one trajectory."""
    sentences = []
    for name, pieces in split.items():
        if not pieces:
            continue
        homes = len({piece[0] for piece in pieces})
        spans = {(piece[1], piece[2]) for piece in pieces}
        text = f"{homes} {'trajectory' if homes == 1 else 'trajectories'}"
        if len(spans) > 1:
            text = f"segments of {text}"
        elif spans != {(0, None)}:
            first, end = spans.pop()
            last = "the last" if end is None else str(end - 1)
            text = f"frames {first} to {last} of {text}"
        sentences.append(f"{_SPLITS.get(name, name)} {text}")
    return ", ".join(sentences)
