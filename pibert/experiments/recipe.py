"""The experiment of ``pibert train FLOWS``: settings that fit the amount of data and the machine.

The model and its optimiser are those that did best in our comparisons, multiresolution PIBERT with
Muon. The rest follows from the data, unless the user sets it:

    split       by trajectory; in time if there are too few, with a gap of one fiftieth of the
                frames between two subsets
    epochs      20, or as many as make 10,000 samples; the learning rate anneals fully
    batch size  64, or 32 if training sees fewer than 50,000 samples
    preset      base; small without a GPU
    rollouts    a last stage on rollouts of 2, 4 and then 8 calls of the model: 3 epochs for every
                20 of single steps, at an eighth of the learning rate
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pibert import config
from pibert.data.readers import open_recordings
from pibert.data.readers.recordings import Hints
from pibert.data.wording import counted
from pibert.experiments.experiment import Experiment, RolloutTraining
from pibert.experiments.flows import as_hints

EPOCHS, SAMPLES = 20, 10_000
"""Least number of epochs, and of training samples, counted with repetition."""
LARGE = 50_000
"""Samples from which batches of 64 are used."""
ROLLOUT_EPOCHS = 3 / 20
"""Epochs on rollouts for each one on single steps: they call the model 0.7 times as often."""


def recipe_for(flows: Path, settings: Sequence[str]) -> tuple[Experiment, list[str]]:
    """The experiment that learns from a recording, and notes for the user.

    Args:
        flows: A file or folder of any kind that ``pibert inspect`` reads.
        settings: Settings of the user, such as ``training.epochs=5``.
    """
    data: dict[str, Any] = {"data": {"path": str(flows)}}
    plain = config.overridden(data, settings)
    stated = config.parse(Experiment, plain)
    given = {name for text in settings for name in _prefixes(config.assignment(text)[0])}
    lengths = _lengths(stated)
    chosen, notes = [], []

    def choose(name: str, value: Any) -> None:
        if name not in given:
            chosen.append(f"{name}={value}")

    shares = stated.data.shares
    if "data.split" not in given and len(lengths) < len(shares.positive()):
        guard = max(1, max(lengths) // 50)
        choose("data.split", "time")
        choose("data.guard", guard)
        notes.append(
            f"{counted(len(lengths), 'flow')} cannot be split by flow, so each is split in time "
            "(data.split, data.shares, data.guard)"
        )
    windows = max(1, round(shares.train * sum(max(0, n - 1) for n in lengths)))
    epochs = max(EPOCHS, math.ceil(SAMPLES / windows))
    if "training.epochs" in given:
        epochs = stated.training.epochs
    choose("training.epochs", epochs)
    choose("training.batch_size", 64 if epochs * windows >= LARGE else 32)
    choose("training.warmup_epochs", epochs / 20)
    choose("training.validate_every", math.ceil(epochs / 25))
    if torch.cuda.is_available():
        choose("hardware.precision", "bf16")
    elif not {"model.name", "model.preset", "model.options"} & given:
        choose("model.preset", "small")
        notes.append(
            "no GPU found, so the small model is trained; the larger one: --set model.preset=base"
        )
    experiment = config.parse(Experiment, config.overridden(plain, chosen))
    asked = stated.rollout_training
    if asked is None and ("rollout_training" in given or not stated.weights.supervised):
        return experiment, notes
    if asked is None and (why := experiment.model.why_no_rollouts):
        notes.append(f"there is no stage on rollouts: {why}")
        return experiment, notes
    by_epochs = max(1, round(ROLLOUT_EPOCHS * epochs))
    stage = RolloutTraining.after(
        experiment.training,
        steps=(asked or RolloutTraining()).rollout.steps,
        epochs=asked.epochs if asked and "rollout_training.epochs" in given else by_epochs,
    )
    plain["rollout_training"] = config.as_plain(stage)
    return config.parse(Experiment, config.overridden(plain, [*settings, *chosen])), notes


def _prefixes(name: str) -> list[str]:
    """``a``, ``a.b`` and ``a.b.c`` of a setting's name."""
    parts = name.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def _lengths(experiment: Experiment) -> list[int]:
    """Frames of every trajectory that training sees."""
    data = experiment.data
    hints = Hints(**as_hints(data.hints))
    recordings = open_recordings(Path(str(data.path)), data.kind, hints, as_hints(data.options))
    kept = [min(t.num_frames, data.max_frames or t.num_frames) for t in recordings]
    return [math.ceil(frames / data.stride) for frames in kept]
