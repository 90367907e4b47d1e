"""One run judged: the model of a run folder on the test part of some flows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pibert import config
from pibert.comparison.curves import STAGES
from pibert.comparison.insight import insight
from pibert.comparison.plan import RolloutPlan
from pibert.data.dataset import Samples, Window
from pibert.data.gaps import count_filled
from pibert.data.splits import Segment
from pibert.evaluation.cost import measure_cost
from pibert.evaluation.rollouts import score_rollouts, spread_starts
from pibert.evaluation.scores import FORMAT, Scores, read_card, save_card, save_scores
from pibert.evaluation.scoring import PICK_RULE, judge, sequences, vars_of
from pibert.experiments.calibration import HOW_TO_STATE
from pibert.experiments.flows import Flows
from pibert.experiments.record import commit, versions
from pibert.models.references.simple import Reference
from pibert.predictor import Predictor, load
from pibert.textfiles import read_json
from pibert.training.journal import read_log

RECIPE = ("optimizer", "learning_rate")
"""Settings of its training that the results state of every run."""


def evaluate(
    folder: Path,
    flows: Flows,
    *,
    into: Path | None = None,
    history: int | None = None,
    rollout: RolloutPlan | None = None,
    device: str = "cpu",
    labels: dict[str, Any] | None = None,
    at_a_time: int | None = 1,
) -> Scores:
    """Score the model of a run on the test part, and write the scores.

    Args:
        folder: The run.
        flows: Of the same channels and units as it was trained on.
        into: Folder of the scores; the run's own if not given.
        history: Frames before those that are predicted; the model's own if not given. More of them
            let models of different histories be judged on the same frames.
        rollout: Rollouts to score; none if not given.
        device: Where to compute.
        labels: What the scores are to be known by, such as data set, entrant and seed.
        at_a_time: Most runs that shared the device while this one was trained; None: not known.
    """
    predictor = load(folder, device)
    _refuse_other_flows(predictor, flows, folder)
    window = Window(history=max(history or 0, predictor.history))
    samples = _samples(predictor, flows.split.test, flows, window)
    judged = judge(predictor, samples)
    lead = window.history - predictor.history
    own = _samples(predictor, _later(flows, lead), flows, Window(history=predictor.history))
    seen, more = insight(predictor, samples, own, int(judged.arrays["picks/rows"][1]))
    arrays = judged.arrays | more
    card: dict[str, Any] = {
        "labels": labels or {},
        "identity": identity_of(folder, flows, history, rollout),
        "data": data_facts(flows, samples),
        "model": {
            "name": predictor.card["model"]["name"],
            "config": predictor.card["model"]["config"],
            "weights": predictor.card["weights"]["sha256"],
        },
        "entries": judged.entries,
        "values": judged.values,
        "correlation_frames": judged.correlation_frames,
        "pick_rule": PICK_RULE,
        **seen,
        "training": _training(folder),
        "recipe": _recipe(predictor),
        "at_a_time": at_a_time,
        "commit": commit(),
        "versions": versions(),
        "hardware": _device_name(device),
    }
    if rollout is not None and rollout.steps:
        card["rollout"], found = _rollouts(predictor, flows, rollout, window.history)
        arrays |= found
    scores = Scores(card, arrays)
    save_scores(into or folder, scores)
    return scores


def add_cost(folder: Path, into: Path, device: str) -> None:
    """Measure what the model of a run costs and write it to the card of its scores.

    Apart from the scores: times are true only while nothing else uses the device.
    """
    predictor = load(folder, device)
    cost = asdict(measure_cost(predictor.model, predictor.spec, device, seconds=0.5))
    save_card(into, read_card(into) | {"cost": cost})


def identity_of(
    folder: Path, flows: Flows, history: int | None, rollout: RolloutPlan | None
) -> str:
    """Equal where the same weights are judged in the same way on the same flows."""
    try:
        weights = read_json(folder / "model.json")["weights"]["sha256"]
    except (LookupError, TypeError):
        raise ValueError(
            f"{folder / 'model.json'}: expected the card of a model with the fingerprint of its "
            "weights, found none; train or save the model again"
        ) from None
    plan = None if rollout is None else config.as_plain(rollout)
    facts = {
        "format": FORMAT,
        "weights": weights,
        "data": flows.source,
        "fields": [list(flows.spec.channels), list(flows.spec.grid.shape)],
        "test": [list(segment) for segment in flows.split.test],
        "history": history,
        "rollout": plan,
    }
    return config.fingerprint(facts)


def nmse_of(card: dict[str, Any]) -> float | None:
    """The headline of a run's scores: NMSE of all components, in physical units."""
    entries, values = (card[what]["physical/pointwise"] for what in ("entries", "values"))
    pairs = zip(entries, values, strict=True)
    return next(v for e, v in pairs if (e["metric"], e["component"]) == ("nmse", "all"))


def data_facts(flows: Flows, samples: Samples) -> dict[str, Any]:
    """What must agree between runs that are compared."""
    split = {
        part: [list(segment) for segment in getattr(flows.split, part)]
        for part in ("train", "valid", "calibration", "test")
    }
    return {
        "source": flows.source,
        "split": split,
        # As the model has them, which may have been trained on other flows.
        "spec": samples.spec.to_dict(),
        "normalizer": {"mean": list(samples.normalizer.mean), "std": list(samples.normalizer.std)},
        "length_unit": flows.trajectories[0].length_unit,
        "time_unit": flows.trajectories[0].time_unit,
        "test_frames": len(samples),
        "filled_points": _filled_points(samples),
        "has_body": any(trajectory.body is not None for trajectory in flows.trajectories),
        "names": [trajectory.name for trajectory in flows.trajectories],
        "parameters": [dict(trajectory.parameters) for trajectory in flows.trajectories],
    }


def _filled_points(samples: Samples) -> int:
    """Points of the test frames that were filled, not measured, and so are not scored."""
    found = 0
    for piece in sequences(samples):
        home, first = samples.locate(piece[0])
        begin = first + samples.window.history
        found += count_filled(samples.trajectories[home], slice(begin, begin + len(piece)))[0]
    return found


def _samples(
    predictor: Predictor, segments: Sequence[Segment], flows: Flows, window: Window
) -> Samples:
    return Samples(
        flows.trajectories,
        segments,
        window=window,
        normalizer=predictor.normalizer,
        spec=predictor.spec,
    )


def _refuse_other_flows(predictor: Predictor, flows: Flows, folder: Path) -> None:
    for what in ("channels", "units"):
        mine, theirs = getattr(predictor.spec, what), getattr(flows.spec, what)
        if mine != theirs:
            raise ValueError(
                f"{folder}: the model steps {what} {mine}, the data have {theirs}; {HOW_TO_STATE}"
            )
    if predictor.spec.grid.shape != flows.spec.grid.shape:
        raise ValueError(
            f"{folder}: the model was trained on {predictor.spec.grid.shape} points, the data have "
            f"{flows.spec.grid.shape}; bring them there with data.size"
        )
    mine, theirs = predictor.spec.dt, flows.spec.dt
    if mine and theirs and abs(mine - theirs) > 1e-3 * mine:
        raise ValueError(
            f"{folder}: the model steps by dt = {mine:g}, the data have dt = {theirs:g}; give data "
            "with its time step (stated with --dt), or take every so many frames with data.stride"
        )
    if not flows.split.test:
        raise ValueError("expected a test part to judge on, found none; leave it a share")


def refuse_short_flows(name: str, flows: Flows, history: int, rollout: RolloutPlan) -> None:
    """See that the test part has frames for all that is asked, before anything is trained."""
    try:
        flows.samples("test", Window(history=history))
        if rollout.steps:
            flows.samples("test", Window(history=history, horizon=rollout.steps))
    except ValueError as error:
        raise ValueError(
            f"the test part of {name!r} is too short for {history} frames before the predicted "
            f"ones and rollouts of {rollout.steps} ({error}); leave out entrants with a long "
            "history, or set rollout.steps=0"
        ) from None


def _rollouts(
    predictor: Predictor, flows: Flows, plan: RolloutPlan, history: int
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Rollouts from the same true frames whatever the history of the model."""
    window = Window(history=history, horizon=plan.steps)
    samples = _samples(predictor, flows.split.test, flows, window)
    scores = score_rollouts(predictor, samples, spread_starts(samples, plan.starts))
    arrays = {
        "rollout/terms": scores.terms,
        "rollout/horizon_terms": scores.horizon_terms,
        "rollout/trajectory": scores.trajectories,
        "rollout/frame": scores.frames,
        "rollout/stable": scores.stable,
        "rollout/diverged": scores.diverged,
        "rollout/curves": scores.curves(),
        "rollout/summary": scores.summary(),
    }
    card = {
        "steps": plan.steps,
        "starts": len(scores.frames),
        "entries": [vars_of(entry) for entry in scores.measure.entries],
        "summary": [vars_of(entry) for entry in scores.horizons.entries],
    }
    return card, arrays


def _later(flows: Flows, lead: int) -> tuple[Segment, ...]:
    """The test part without its first frames."""
    return tuple(Segment(s.trajectory, s.start + lead, s.stop) for s in flows.split.test)


def _training(folder: Path) -> dict[str, Any]:
    """How long it took, how much it saw, and its validation curve."""
    found: dict[str, Any] = {}
    for stage, name in STAGES.items():
        lines = read_log(folder / name) if (folder / name).exists() else []
        epochs = [line for line in lines if line.get("kind") == "epoch"]
        if epochs:
            found[stage] = {
                "epochs": len(epochs),
                "samples": _seen(lines, len(epochs)),
                "seconds": sum(line.get("seconds") or 0.0 for line in epochs),
                "curve": [[line["epoch"], line["valid"]] for line in epochs if line.get("valid")],
                "best_epoch": max(
                    (line["epoch"] for line in epochs if line.get("best")), default=0
                ),
            }
    return found


def _recipe(predictor: Predictor) -> dict[str, Any]:
    """What a model was trained with; empty where nothing was trained, or it is not known."""
    if isinstance(predictor.model, Reference):
        return {}
    provenance = predictor.card.get("provenance") or {}
    stated = provenance.get("experiment", {}).get("training", {})
    return {name: stated.get(name) for name in RECIPE}


def _seen(lines: Sequence[Mapping[str, Any]], epochs: int) -> int | None:
    """Samples that a run was trained on, counted with repetition; None in logs that do not tell."""
    start = next((line for line in lines if line.get("kind") == "start"), {})
    size = start.get("samples_per_epoch")
    return None if size is None else epochs * int(size)


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"
