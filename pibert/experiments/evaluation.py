"""Evaluate a run: the model of a run folder on the test split of some flows."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from pibert import config
from pibert.config import Count, NonNegativeInt
from pibert.data.dataset import Samples, Window
from pibert.data.filling import count_filled
from pibert.data.splits import Segment
from pibert.evaluation import by_flow
from pibert.evaluation.cost import measure_cost
from pibert.evaluation.insight import insight
from pibert.evaluation.interval_scores import IntervalLeads, score_intervals
from pibert.evaluation.intervals import Valued, interval
from pibert.evaluation.leads import Horizons, LeadTimes
from pibert.evaluation.measures import window_measures
from pibert.evaluation.rollouts import (
    Replay,
    RolloutPredictor,
    longest_free_run,
    score_free_runs,
    score_rollouts,
    spread_starts,
)
from pibert.evaluation.scores import (
    FORMAT,
    LEVEL,
    Scores,
    as_number,
    as_numbers,
    read_card,
    save_card,
    save_scores,
    start_weights,
)
from pibert.evaluation.scoring import PICK_RULE, score_frames, sequences, vars_of
from pibert.evaluation.statistics import LEAST_FRAMES, Statistics
from pibert.evaluation.structure import displacement_intervals, score_structure
from pibert.experiments.flows import IDENTITIES, Flows
from pibert.experiments.held_out import check_fields, flows_to_score
from pibert.experiments.run_folder import commit, samples_of, stage_logs, versions
from pibert.files import read_json
from pibert.inference import Predictor, load
from pibert.inference.calibrated import load_calibrated
from pibert.inference.calibration_file import SHEET, read_sheet
from pibert.inference.model_file import find_model, shipped_models
from pibert.inference.predictor import PRECISION
from pibert.models.references.simple import Reference
from pibert.notes import Note, warn

RECIPE = ("optimizer", "learning_rate")
"""Settings of the training that the results state for every run."""
FREE_RUN = 200
"""Most frames of a free run, unless the plan says otherwise."""


@dataclass(frozen=True, kw_only=True)
class RolloutPlan:
    """Rollouts from test frames."""

    steps: NonNegativeInt = 20
    """Frames ahead; 0: no rollouts."""
    starts: Count = 16
    """Starts, spread evenly over the test split."""
    windows: bool = False
    """Also score every rollout as a whole, with the diagnostics of its PDE family and the metrics
    of RealPDEBench."""
    free_run: NonNegativeInt | None = None
    """Most frames of a free run, whose statistics are compared; from the start of each test flow,
    and further ones where it is long enough, up to ``starts`` in all. 0: no such runs. None: up to
    200, if the test flows have at least 40."""

    def __post_init__(self) -> None:
        config.check(self)


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
    """Score the model of a run on the test split, and write the scores.

    Args:
        folder: The run.
        flows: Of the same channels and units as it was trained on.
        into: Folder of the scores; the run's own if not given.
        history: Frames before the predicted ones; the model's own number if not given. With more,
            models of different histories are evaluated on the same frames.
        rollout: Rollouts to score; none if not given.
        device: Where to compute.
        labels: Data set, candidate and seed, for instance.
        at_a_time: Most runs that shared the device while this one was trained; None: not known.
    """
    predictor = load(folder, device)
    where = predictor.device
    check_fields(predictor.spec, flows, folder)
    if not flows.split.test:
        raise ValueError(
            "expected frames that training set aside for a test, found none: the recording was too "
            "short, or data.shares.test is 0; score the model on other flows: --data FILE"
        )
    window = Window(history=max(history or 0, predictor.history))
    if rollout is not None and rollout.steps:
        _refuse_long_rollout(flows, rollout.steps, window.history)
    into = into or folder
    samples = _samples(predictor, flows.split.test, flows, window)
    scored = score_frames(predictor, samples)
    extra = window.history - predictor.history  # the same frames with the model's own history
    later = [Segment(s.trajectory, s.start + extra, s.stop) for s in flows.split.test]
    shorter = _samples(predictor, later, flows, Window(history=predictor.history))
    seen, more = insight(predictor, samples, shorter, int(scored.arrays["picks/rows"][1]))
    arrays = scored.arrays | more
    card: dict[str, Any] = {
        "labels": labels or {},
        "identity": identity_of(folder, flows, history, rollout),
        "data": data_facts(flows, samples),
        "model": {
            "name": predictor.card["model"]["name"],
            "config": predictor.card["model"]["config"],
            "weights": predictor.card["weights"]["sha256"],
        },
        "entries": scored.entries,
        "values": scored.values,
        "correlation_frames": scored.correlation_frames,
        "pick_rule": PICK_RULE,
        **seen,
        "training": _training(folder),
        "state_bytes": _state_bytes(folder),
        "recipe": _recipe(predictor),
        "at_a_time": at_a_time,
        "commit": commit(),
        "versions": versions(),
        "hardware": torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
        "precision": PRECISION,
    }
    needs_intervals = bool(predictor.spec.moving) or (rollout is not None and rollout.steps > 0)
    has_intervals = needs_intervals and _has_fresh_calibration(folder, flows)
    if rollout is not None and rollout.steps:
        card["rollout"], more = _rollouts(predictor, flows, rollout, window.history, card)
        arrays |= more
        if has_intervals:
            card["rollout_intervals"], more = _interval_scores(
                folder, flows, rollout, window.history, card
            )
            arrays |= more
    if rollout is not None and (frames := _free_run_frames(rollout, samples)):
        card["free_run"], more = _free_runs(predictor, samples, frames, rollout.starts, card)
        arrays |= more
    if predictor.spec.moving:
        card["structure"], more = score_structure(predictor, samples)
        arrays |= _named("structure", more)
        if has_intervals:
            ends = displacement_intervals(load_calibrated(folder, device), samples)
            arrays |= _named("structure", ends)
    scores = Scores(card, arrays)
    into.mkdir(parents=True, exist_ok=True)
    save_scores(into, scores)
    return scores


def evaluate_frames(
    predictor: RolloutPredictor | Replay,
    flows: Flows,
    history: int,
    plan: RolloutPlan,
    card: Mapping[str, Any],
) -> Scores:
    """Score the rollouts of what is not a trained model, on the same frames as one that is.

    Args:
        predictor: Its rollouts by lead time are scored unless its frames are computed already.
        flows: With the test split.
        history: Frames before the predicted ones.
        plan: The rollouts.
        card: That of a model with scores on these flows.
    """
    found: dict[str, Any] = {}
    arrays: dict[str, torch.Tensor] = {}
    if plan.steps and not isinstance(predictor, Replay):
        found["rollout"], arrays = _rollouts(predictor, flows, plan, history, card)
    samples = _samples(predictor, flows.split.test, flows, Window(history=history))
    if frames := _free_run_frames(plan, samples):
        found["free_run"], more = _free_runs(predictor, samples, frames, plan.starts, card)
        arrays |= more
    return Scores(found, arrays)


def score_model(
    model: Path | str,
    data: Path | str | None = None,
    stated: Mapping[str, Any] | None = None,
    *,
    into: Path | None = None,
    rollout: RolloutPlan | None = None,
    device: str = "auto",
) -> tuple[Scores, Path]:
    """Score a model on the test split of its run or on other flows; the scores and their folder.

    Args:
        model: A run; with ``data`` any model folder, or the name of a shipped model.
        data: A file or folder of flows.
        stated: Metadata of ``data``, as for ``as_trained``.
        into: Folder of the scores; by default inside the run, or for a shipped model in the current
            folder.
        rollout: Rollouts to score.
        device: Where to compute; the cost is measured on the CPU.
    """
    folder = find_model(model)
    flows = flows_to_score(folder, data, stated)
    if into is None:
        # Not beside the weights: those scores belong to the comparison that the run is in.
        name = "evaluation" if data is None else f"evaluation-{_slug(Path(data))}"
        shipped = folder in shipped_models().values()
        into = Path(f"{folder.name}-{name}") if shipped else folder / name
    scores = evaluate(folder, flows, into=into, rollout=rollout, device=device)
    add_cost(folder, into, "cpu")
    summary = {name: as_number(value) for name, value in by_flow.summary_of(scores).items()}
    flows_found = by_flow.flows_of(scores)
    errors = {"by_flow": {**flows_found, "errors": by_flow.errors_of(scores), **summary}}
    scores = Scores(read_card(into) | errors, scores.arrays)
    save_card(into, scores.card)
    if empty := int(scores.arrays["errors/prediction"].isnan().sum()):
        text = f"{empty} of the frames hold no flow at known points and are not scored"
        warn(Note("empty-frames", text))
    if ((skill := scores["skill"]["all"]) or 0) < -0.01:
        text = f"the skill is {skill:.4g}: repeating the last frame has a smaller error"
        remedy = "train the model longer, or on flows like these; check units and time step"
        warn(Note("negative-skill", text, remedy))
    if beyond := [flow["outside"] for flow in flows_found["flows"] if flow["outside"]]:
        names, seen = sorted(set().union(*beyond)), flows_found["training_range"]
        ranges = (f"{name} {low:g} to {high:g}" for name in names for low, high in [seen[name]])
        text = (
            f"{len(beyond)} of {len(flows_found['flows'])} flows are outside the training range "
            f"({', '.join(ranges)}): their scores are of an extrapolation"
        )
        warn(Note("extrapolation", text, severity="info"))
    return scores, into


def _slug(data: Path) -> str:
    """Return a folder name for a file, a folder or a pattern."""
    return re.sub(r"[^\w.-]+", "-", data.resolve().stem).strip("-") or "data"


def add_cost(folder: Path, into: Path, device: str) -> None:
    """Measure what the model of a run costs and add it to its scores.

    Separate from the scores, because times are valid only while nothing else uses the device.
    """
    predictor = load(folder, device)
    cost = asdict(measure_cost(predictor.model, predictor.spec, device, seconds=0.5))
    save_card(into, read_card(into) | {"cost": cost})


def identity_of(
    folder: Path, flows: Flows, history: int | None, rollout: RolloutPlan | None
) -> str:
    """Return a hash, equal if the same weights are evaluated in the same way on the same flows."""
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
    """Return the main score of a run: NMSE of all components, in physical units."""
    return Scores(card)["nmse"]["all"]


def data_facts(flows: Flows, samples: Samples) -> dict[str, Any]:
    """Return facts that must agree between runs that are compared."""
    split = {
        name: [list(segment) for segment in getattr(flows.split, name)]
        for name in ("train", "valid", "calibration", "test")
    }
    return {
        "source": flows.source,
        "split": split,
        # Those of the model, which may have been trained on other flows.
        "spec": samples.spec.to_dict(),
        "normalizer": {"mean": list(samples.normalizer.mean), "std": list(samples.normalizer.std)},
        "origin": _origin(flows),
        "length_unit": flows.trajectories[0].length_unit,
        "time_unit": flows.trajectories[0].time_unit,
        "test_frames": len(samples),
        "filled_points": _filled_points(samples),
        "has_body": any(trajectory.body is not None for trajectory in flows.trajectories),
        "names": [trajectory.name for trajectory in flows.trajectories],
        "parameters": [dict(trajectory.parameters) for trajectory in flows.trajectories],
    }


def _origin(flows: Flows) -> dict[str, Any]:
    """Return what the source states of the flows, as far as the first is like all."""
    first = flows.trajectories[0]
    stated = ("title", "scenario", "kind", "method", "url", "licence", "data_version")
    resized = first.local.get("resize") or {"from": list(first.spec.grid.shape)}
    return {
        **{name: first.source[name] for name in stated if first.source.get(name) is not None},
        "stored_grid": first.source.get("grid") or resized["from"],
        "stride": first.local.get("stride") or 1,
        "frames": [trajectory.num_frames for trajectory in flows.trajectories],
    }


def _filled_points(samples: Samples) -> int:
    """Count points of the test frames that were filled, not measured; they are not scored."""
    count = 0
    for piece in sequences(samples):
        index, first = samples.locate(piece[0])
        begin = first + samples.window.history
        count += count_filled(samples.trajectories[index], slice(begin, begin + len(piece)))[0]
    return count


def _samples(
    predictor: RolloutPredictor | Replay, segments: Sequence[Segment], flows: Flows, window: Window
) -> Samples:
    return Samples(
        flows.trajectories,
        segments,
        window=window,
        normalizer=predictor.normalizer,
        spec=predictor.spec,
    )


def _refuse_long_rollout(flows: Flows, steps: int, history: int) -> None:
    longest = flows.longest("test")
    if longest < history + steps:
        most = longest - history
        remedy = f"choose --rollout {most} or less" if most > 0 else "leave --rollout out"
        raise ValueError(
            f"--rollout {steps}: expected test flows of at least {history + steps} consecutive "
            f"frames, {history} as input, found at most {longest}; {remedy}, or give longer "
            "flows: --data FILE"
        )


def refuse_short_flows(name: str, flows: Flows, history: int, rollout: RolloutPlan) -> None:
    """Check, before any training, that the test split has enough frames."""
    try:
        flows.samples("test", Window(history=history))
        if rollout.steps:
            flows.samples("test", Window(history=history, horizon=rollout.steps))
    except ValueError as error:
        raise ValueError(
            f"the test split of {name!r} is too short for {history} frames before the predicted "
            f"ones and rollouts of {rollout.steps} ({error}); leave out candidates with a long "
            "history, or set rollout.steps=0"
        ) from None


Part = tuple[dict[str, Any], dict[str, torch.Tensor]]
"""Facts for the card of the scores, and arrays."""


def _rollouts(
    predictor: RolloutPredictor,
    flows: Flows,
    plan: RolloutPlan,
    history: int,
    card: Mapping[str, Any],
) -> Part:
    """Score rollouts, from the same true frames whatever the history of the model."""
    window = Window(history=history, horizon=plan.steps)
    samples = _samples(predictor, flows.split.test, flows, window)
    numbers = spread_starts(samples, plan.starts)
    found = score_rollouts(predictor, samples, numbers, windows=plan.windows)
    measure = LeadTimes(spec=predictor.spec, normalizer=predictor.normalizer)
    method, ends = _intervals(measure, found, card, plan.steps)
    facts: dict[str, Any] = {
        "steps": plan.steps,
        "starts": len(numbers),
        "intervals": method,
        "entries": [vars_of(entry) for entry in measure.entries],
        "summary": [vars_of(entry) for entry in Horizons().entries],
    }
    whole = window_measures(predictor.spec, plan.steps) if plan.windows else {}
    arrays = {f"terms/{name}": found.pop(name) for name in whole}
    if plan.windows:
        facts["windows"] = {
            own.name: dict(
                zip(
                    (f"{entry.metric} {entry.component}" for entry in own.entries),
                    as_numbers(own.values(arrays[f"terms/{name}"].sum(0))),
                    strict=True,
                )
            )
            for name, own in whole.items()
        }
    return facts, arrays | _named("rollout", found | ends)


def _named(kind: str, arrays: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{kind}/{name}": value for name, value in arrays.items()}


def _intervals(
    measure: Valued, found: Mapping[str, torch.Tensor], card: Mapping[str, Any], span: int
) -> tuple[str, dict[str, torch.Tensor]]:
    """Return the method and both ends of the intervals of scored starts; no ends: too few."""
    weights, method = start_weights(card, found["trajectory"], found["frame"], span=span)
    if weights is None:
        return method, {}
    ends = interval(measure, found["terms"], weights, level=LEVEL)
    return method, {"low": ends.low, "high": ends.high}


def _has_fresh_calibration(folder: Path, flows: Flows) -> bool:
    """Return whether a model has a calibration, and from other flows than those of the test."""
    if not (folder / SHEET).exists():
        return False
    source = read_sheet(folder).get("provenance", {}).get("data") or {}
    known = {name: source[name] for name in IDENTITIES if source.get(name)}
    is_same = any(flows.source.get(name) == value for name, value in known.items())
    if not is_same or flows.split.calibration:
        return True
    text = "the flows of this test calibrated the intervals: coverage and CRPS are not measured"
    warn(Note("calibrated-on-test", text, "give other flows: --data FILE", "info"))
    return False


def _interval_scores(
    folder: Path, flows: Flows, plan: RolloutPlan, history: int, card: Mapping[str, Any]
) -> Part:
    """Score the prediction intervals of rollouts, as far as lead times are calibrated."""
    calibrated = load_calibrated(folder)
    steps = min(plan.steps, calibrated.calibration.leads)
    window = Window(history=max(history, calibrated.predictor.history), horizon=steps)
    samples = _samples(calibrated.predictor, flows.split.test, flows, window)
    level, found = score_intervals(calibrated, samples, spread_starts(samples, plan.starts))
    measure = IntervalLeads(spec=calibrated.predictor.spec)
    method, ends = _intervals(measure, found, card, steps)
    curves = measure.values(found["terms"].sum(0))
    facts = {
        "level": level,
        "steps": steps,
        "entries": [vars_of(entry) for entry in measure.entries],
        "values": [as_numbers(row) for row in curves],
        "intervals": method,
    }
    return facts, _named("rollout_intervals", found | {"curves": curves, **ends})


def _free_run_frames(plan: RolloutPlan, samples: Samples) -> int:
    """Frames of the free runs of a plan; 0: none."""
    if plan.free_run is not None:
        return plan.free_run
    longest = longest_free_run(samples)
    return min(FREE_RUN, longest) if longest >= 2 * LEAST_FRAMES else 0


def _free_runs(
    predictor: RolloutPredictor | Replay,
    samples: Samples,
    frames: int,
    starts: int,
    card: Mapping[str, Any],
) -> Part:
    """Score free runs of the test flows: statistics, and the true flow's sampling error."""
    found = score_free_runs(predictor, samples, frames, starts)
    measure = Statistics(spec=predictor.spec, normalizer=predictor.normalizer)
    facts: dict[str, Any] = {
        "frames": found["frames"].tolist(),
        "survived": measure.survived(found["terms"]).tolist(),
        "entries": [vars_of(entry) for entry in measure.entries],
    }
    for name, rows in (("values", found["terms"]), ("sampling", found["sampling"])):
        method, ends = _intervals(measure, found | {"terms": rows}, card, max(facts["frames"]))
        facts |= {"intervals": method, name: as_numbers(measure.values(rows.sum(0)))}
        if ends:
            pairs = zip(as_numbers(ends["low"]), as_numbers(ends["high"]), strict=True)
            facts[f"{name}_intervals"] = [None if None in pair else list(pair) for pair in pairs]
    return facts, _named("free_run", found)


def _training(folder: Path) -> dict[str, Any]:
    """Return durations, samples seen and validation curve of each stage."""
    stages: dict[str, Any] = {}
    for stage, lines in stage_logs(folder).items():
        epochs = [line for line in lines if line.get("kind") == "epoch"]
        start = next((line for line in lines if line.get("kind") == "start"), {})
        if epochs:
            seen = [samples_of(start, line) for line in epochs]
            stages[stage] = {
                "epochs": len(epochs),
                "samples": None if None in seen else sum(filter(None, seen)),
                "seconds": sum(line.get("seconds") or 0.0 for line in epochs),
                "last_epoch_seconds": epochs[-1].get("seconds"),
                "curve": [[line["epoch"], line["valid"]] for line in epochs if line.get("valid")],
                "best_epoch": max(
                    (line["epoch"] for line in epochs if line.get("best")), default=0
                ),
            }
    return stages


def _state_bytes(folder: Path) -> int | None:
    """Return the size of the checkpoint to resume from, with the optimiser; None: there is none."""
    state = folder / "state.safetensors"
    return state.stat().st_size if state.is_file() else None


def _recipe(predictor: Predictor) -> dict[str, Any]:
    """Return settings that a model was trained with; empty if it was not trained."""
    if isinstance(predictor.model, Reference):
        return {}
    provenance = predictor.card.get("provenance") or {}
    stated = provenance.get("experiment", {}).get("training", {})
    return {name: stated.get(name) for name in RECIPE}
