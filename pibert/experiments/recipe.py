"""The experiment of ``pibert train FLOWS``: settings that fit the amount of data and the machine.

The model and its optimiser are those that did best in our comparisons, multiresolution PIBERT with
Muon. The rest follows from the data, unless the user sets it:

    split       by trajectory; in time if there are too few, with a gap of one fiftieth of the
                frames between two subsets; a short recording goes without validation, then
                without testing
    epochs      20, or as many as make 10,000 samples or 313 steps; the learning rate anneals fully
    batch size  64, or 32 if training sees fewer than 50,000 samples
    model       that of ``start``, if it is given; any other gets the flow's parameters, coordinates
                and known points as inputs, as in comparisons
    preset      base; small without a GPU
    rollouts    a last stage on rollouts of 2, 4 and then 8 calls of the model: 3 epochs for every
                20 of single steps, at an eighth of the learning rate; both stages with noise on
                the input, without which rollouts of short trainings leave the flow and diverge;
                a model that corrects DMD learns without noise, which is larger than its corrections
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pibert import config
from pibert.data.readers import open_recordings
from pibert.data.readers.recordings import Hints
from pibert.data.splits import Shares
from pibert.data.wording import counted
from pibert.experiments.experiment import Experiment, RolloutTraining
from pibert.experiments.flows import as_hints
from pibert.inference import load
from pibert.models import all_inputs, make_config

EPOCHS, SAMPLES = 20, 10_000
"""Least number of epochs, and of training samples, counted with repetition."""
BATCH, LARGE = 32, 50_000
"""The batch size, and samples from which it is 64."""
ROLLOUT_EPOCHS = 3 / 20
"""Epochs on rollouts for each one on single steps: they call the model 0.7 times as often."""
NOISE = 0.03
"""Of the input, in standard deviations of the fields; chosen on validation rollouts
(docs/runs.md)."""
_MODEL = {"model.name", "model.preset", "model.options"}


def recipe_for(
    flows: Path,
    settings: Sequence[str],
    *,
    stated: Mapping[str, Any] | None = None,
    frames: Sequence[int] | None = None,
) -> tuple[Experiment, list[str]]:
    """The experiment that learns from a recording, and notes for the user.

    Args:
        flows: A file or folder of any kind that ``pibert inspect`` reads.
        settings: Settings of the user, such as ``training.epochs=5``.
        stated: Metadata of the flows: ``kind``, ``hints`` and ``options`` of ``DataConfig``.
        frames: Of each flow, if the caller knows them; the file need not exist yet.
    """
    data: dict[str, Any] = {"data": {"path": str(flows), **(stated or {})}}
    given = {name for text in settings for name in _prefixes(config.assignment(text)[0])}
    plain = config.overridden(data, settings)
    starts = plain.get("start") not in (None, config.NONE_WORD)
    if starts and not _MODEL & given:
        model = load(plain["start"]).card["model"]
        plain["model"] = {"name": model["name"], "options": model["config"]}
        given |= _MODEL
    asked = config.parse(Experiment, plain)
    lengths = _lengths(asked, frames)
    chosen, notes = [], []

    def choose(name: str, value: Any) -> None:
        if name not in given:
            chosen.append(f"{name}={value}")

    shares = asked.data.shares
    if "data.split" not in given and len(lengths) < len(shares.positive()):
        guard = max(1, max(lengths) // 50)
        choose("data.split", "time")
        notes.append(
            f"{counted(len(lengths), 'flow')} cannot be split by flow, so each is split in time "
            "(data.split, data.shares, data.guard)"
        )
        if not {"data.shares", "data.guard"} & given:
            shares, guard, more = _shares_in_time(min(lengths), _span(asked), guard, shares)
            for name in ("train", "valid"):
                choose(f"data.shares.{name}", getattr(shares, name))
            notes += more
        choose("data.guard", guard)
    windows = max(1, round(shares.train * sum(max(0, n - 1) for n in lengths)))
    epochs = max(EPOCHS, math.ceil(SAMPLES / max(windows, BATCH)))
    if "training.epochs" in given:
        epochs = asked.training.epochs
    choose("training.epochs", epochs)
    choose("training.batch_size", 64 if epochs * windows >= LARGE else BATCH)
    choose("training.warmup_epochs", epochs / 20)
    choose("training.validate_every", math.ceil(epochs / 25))
    if torch.cuda.is_available():
        choose("hardware.precision", "bf16")
    elif not {"model.name", "model.preset"} & given:
        choose("model.preset", "small")
        notes.append(
            "no GPU found, so the small model is trained; the larger one: --set model.preset=base"
        )
    if not starts:
        model = asked.model
        sees = make_config(model.name, model.preset, **(all_inputs(model.name) | model.options))
        usual = make_config(model.name, model.preset, **model.options)
        for option in all_inputs(model.name):
            if getattr(sees, option) != getattr(usual, option):
                choose(f"model.options.{option}", "true")
    experiment = config.parse(Experiment, config.overridden(plain, chosen))
    stage = asked.rollout_training
    if stage is None and ("rollout_training" in given or not asked.weights.supervised):
        return experiment, notes
    if stage is None and (why := experiment.model.why_no_rollouts):
        notes.append(f"there is no stage on rollouts: {why}")
        return experiment, notes
    by_epochs = max(1, round(ROLLOUT_EPOCHS * epochs))
    whole = RolloutTraining.after(
        experiment.training,
        steps=(stage or RolloutTraining()).rollout.steps,
        epochs=stage.epochs if stage and "rollout_training.epochs" in given else by_epochs,
    )
    corrects_dmd = bool(asked.model.options.get("dmd_modes"))
    choose("rollout.noise", 0.0 if corrects_dmd else NOISE)
    noisy = config.parse(Experiment, config.overridden(plain, chosen)).rollout
    rollout = replace(whole.rollout, noise=noisy.noise, noise_spread=noisy.noise_spread)
    plain["rollout_training"] = config.as_plain(replace(whole, rollout=rollout))
    return config.parse(Experiment, config.overridden(plain, [*settings, *chosen])), notes


def _prefixes(name: str) -> list[str]:
    """``a``, ``a.b`` and ``a.b.c`` of a setting's name."""
    parts = name.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def _span(experiment: Experiment) -> int:
    """Frames of the shortest training sample."""
    model = experiment.model
    return make_config(model.name, model.preset, **model.options).history + 1


def _shares_in_time(
    frames: int, span: int, guard: int, shares: Shares
) -> tuple[Shares, int, list[str]]:
    """Shares and guard of a split in time with at least one sample in each subset, and notes.

    Args:
        frames: Of the shortest flow.
        span: Frames of a sample.
        guard: Frames between two subsets, if there are enough.
        shares: Wanted, if there are enough frames.
    """
    counts = shares.counts(frames - guard * (len(shares.positive()) - 1))
    if all(counts[name] >= span for name in shares.positive()):
        return shares, guard, []
    left = frames - 2 * guard
    if left - 2 * span >= frames / 2:
        fitting = Shares(train=(left - 2 * span) / left, valid=span / left)
        return fitting, guard, []
    if frames < span:
        raise ValueError(
            f"expected at least {counted(span, 'frame')} to learn a step of this model from, found "
            f"{frames}; predict from it with a trained model instead (pibert predict FILE --model "
            "cylinder-mr ...; in Python pibert.load('cylinder-mr').predict(flow)), or record more "
            "frames"
        )
    if frames >= 2 * span:
        text = (
            f"{counted(frames, 'frame')} are few: the last {span} test the model, the others train "
            "it. Possible: a fit of this flow, and a score that is an anecdote. Not possible: "
            "choosing the best epoch (the last one is kept), prediction intervals, any statement "
            "on other flows"
        )
        return Shares(train=(frames - span) / frames, valid=0.0), 0, [text]
    text = (
        f"{counted(frames, 'frame')} are too few to test a model: all train it. Possible: a fit of "
        "this flow. Not possible: a score, choosing the best epoch (the last one is kept), "
        "prediction intervals"
    )
    return Shares(train=1.0, valid=0.0), 0, [text]


def _lengths(experiment: Experiment, frames: Sequence[int] | None) -> list[int]:
    """Frames of every trajectory that training sees."""
    data = experiment.data
    if frames is None:
        hints, options = Hints(**as_hints(data.hints)), as_hints(data.options)
        recordings = open_recordings(Path(str(data.path)), data.kind, hints, options)
        frames = [trajectory.num_frames for trajectory in recordings]
    kept = [min(count, data.max_frames or count) for count in frames]
    return [math.ceil(count / data.stride) for count in kept]
