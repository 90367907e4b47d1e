"""What is compared: entrants, flows, seeds, and the budget that all of them get.

Every entrant sees the same number of samples, counted with repetition; pretraining, where there is
any, takes its share of them. All have the same batches, schedule and skip from the last frame; the
epoch is chosen on the validation part; the test part is scored once, at the end. With tuning,
learning rate and optimiser are chosen there too, by trials that are the same for all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pibert import config
from pibert.comparison.tuning import Tuning, check_optimizer
from pibert.experiments.experiment import (
    DataConfig,
    Experiment,
    ModelConfig,
    Pretraining,
    Weights,
)
from pibert.models import MODELS, PRESETS
from pibert.models.references.simple import Reference
from pibert.predictor import load
from pibert.pretraining.masks import Masking
from pibert.training.augmentation import Augmentation
from pibert.training.engine import FitConfig, Hardware
from pibert.training.losses import LossWeights
from pibert.training.optimizers import OptimizerName


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """A model as it enters the comparison."""

    model: ModelConfig = ModelConfig()
    run: str | None = None
    """A finished run to take as it is, on the same data; nothing else here counts then."""
    pretraining: float = 0.0
    """Share of its samples that it pretrains on."""
    pretraining_weights: Weights = Weights(supervised=0.0, mpp=1.0, ecp=0.1)
    masking: Masking = Masking()
    losses: LossWeights | None = None
    """Of its supervised loss; the published ones if not given."""
    learning_rate: float | None = None
    """If not that of all."""
    optimizer: OptimizerName | None = None
    """If not that of all."""
    ema: float | None = None
    """If not that of all."""

    def __post_init__(self) -> None:
        if not 0 <= self.pretraining < 1:
            raise ValueError(
                f"expected a share of pretraining of at least 0 and below 1, found "
                f"{self.pretraining}"
            )
        if self.run is not None and not (Path(self.run) / "model.json").exists():
            raise ValueError(f"{self.run}: no finished run, model.json is missing")
        if self.model.name not in MODELS:
            raise ValueError(f"unknown model {self.model.name!r}; choose from: {', '.join(MODELS)}")
        presets = PRESETS[self.model.name]
        if self.model.preset is not None and self.model.preset not in presets:
            raise ValueError(
                f"unknown preset {self.model.preset!r} of {self.model.name}; choose from: "
                f"{', '.join(presets)}"
            )
        if self.optimizer is not None:
            check_optimizer(self.optimizer)

    @property
    def is_trained(self) -> bool:
        """Whether the comparison trains it by steps, so that a seed makes a difference."""
        kind = MODELS[self.model.name]
        return self.run is None and not (isinstance(kind, type) and issubclass(kind, Reference))

    @property
    def history(self) -> int:
        """Frames that the model takes."""
        if self.run is not None:
            return load(self.run).history
        presets = PRESETS[self.model.name]
        chosen = presets[self.model.preset] if self.model.preset else next(iter(presets.values()))
        return int(self.model.options.get("history", chosen.history))


@dataclass(frozen=True, kw_only=True)
class RolloutPlan:
    """Rollouts from test frames."""

    steps: int = 20
    """Frames ahead; 0: no rollouts."""
    starts: int = 16
    """Starts, spread evenly over the test part."""

    def __post_init__(self) -> None:
        if self.steps < 0 or self.starts < 1:
            raise ValueError(
                f"expected steps >= 0 and starts >= 1, found {self.steps} and {self.starts}"
            )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Everything that decides a comparison."""

    data: dict[str, DataConfig]
    """Sets of flows by name."""
    entrants: dict[str, Entrant]
    """Models by the name that they have in tables."""
    seeds: tuple[int, ...] = (0,)
    samples: int = 20_000
    """Samples that every model sees, counted with repetition."""
    training: FitConfig = FitConfig(
        batch_size=32,
        micro_batch=None,
        optimizer="adamw",
        learning_rate=1e-3,
        weight_decay=2e-5,
        monitor="reconstruction",
    )
    """The schedule; epochs and warm-up follow from the samples."""
    warmup: float = 0.05
    """Share of the epochs in which the learning rate rises."""
    tuning: Tuning | None = None
    """Trials that choose learning rate and optimiser of each trained entrant; none: no trials."""
    augmentation: Augmentation = Augmentation()
    rollout: RolloutPlan = RolloutPlan()
    hardware: Hardware = Hardware()
    reference: str = "persistence"
    """The entrant that no comparison goes without."""

    def __post_init__(self) -> None:
        if not self.data or not self.entrants or not self.seeds:
            raise ValueError(
                "expected at least one data set, one entrant and one seed, found "
                f"{len(self.data)}, {len(self.entrants)} and {len(self.seeds)}"
            )
        if self.reference not in self.entrants:
            raise ValueError(
                f"expected the reference {self.reference!r} among the entrants, found "
                f"{', '.join(self.entrants)}"
            )
        if min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"expected different seeds of at least 0, found {list(self.seeds)}")
        if self.samples < 1:
            raise ValueError(f"expected a budget of at least 1 sample, found {self.samples}")
        for name in (*self.data, *self.entrants):
            if not name or name != Path(name).name or name.startswith("."):
                raise ValueError(f"expected names that can be folders, found {name!r}")
        for name, flows in self.data.items():
            if flows.split != "stated" and flows.shares.valid <= 0:
                raise ValueError(
                    f"data set {name!r} has no validation part, so a model could only be chosen "
                    "on test data; give data.shares.valid a share"
                )
        if self.tuning is not None:
            self.tuning.check_reuse(self.data)
            _refuse_own_settings(self.tuning, self.entrants)

    @property
    def history(self) -> int:
        """Frames before those that are predicted in the test part, the same ones for all."""
        return max(entrant.history for entrant in self.entrants.values())

    def jobs(self) -> tuple["Job", ...]:
        """All runs; predictors without training once, whatever the seeds."""
        return tuple(
            Job(data, name, seed)
            for data in self.data
            for name, entrant in self.entrants.items()
            for seed in (self.seeds if entrant.is_trained else self.seeds[:1])
        )


@dataclass(frozen=True)
class Job:
    """One run of the comparison."""

    data: str
    entrant: str
    seed: int

    def folder(self, out: Path) -> Path:
        """Where its run is."""
        return out / "runs" / self.data / f"{self.entrant}-{self.seed}"


def experiment_of(
    comparison: Comparison, job: Job, train_samples: int, labelled_samples: int | None = None
) -> Experiment:
    """The experiment of a job.

    What the whole epochs of pretraining leave of the budget is trained on, so that all entrants see
    the same number of samples to within half an epoch.

    Args:
        comparison: The plan.
        job: One of its jobs.
        train_samples: Windows of the training part, which make an epoch of pretraining.
        labelled_samples: Those of them that make an epoch of training; all if not given.
    """
    entrant = comparison.entrants[job.entrant]
    pretraining, left = None, comparison.samples
    if entrant.pretraining:
        epochs = max(1, round(entrant.pretraining * comparison.samples / train_samples))
        left -= epochs * train_samples
        fit = _schedule(comparison, entrant, epochs)
        plain = {name: getattr(fit, name) for name in fit.__dataclass_fields__}
        pretraining = Pretraining(**{**plain, "monitor": "loss"})
    epochs = round(left / (labelled_samples or train_samples))
    if pretraining is None:
        epochs = max(1, epochs)
    if epochs < 1:
        raise ValueError(
            f"{comparison.samples} samples are too few for {job.entrant!r}: an epoch has "
            f"{train_samples}, and pretraining needs one of its own; raise samples"
        )
    return Experiment(
        data=comparison.data[job.data],
        model=entrant.model,
        seed=job.seed,
        pretraining=pretraining,
        pretraining_weights=entrant.pretraining_weights,
        training=_schedule(comparison, entrant, epochs),
        losses=entrant.losses,
        augmentation=comparison.augmentation,
        masking=entrant.masking,
        hardware=comparison.hardware,
    )


def _schedule(comparison: Comparison, entrant: Entrant, epochs: int) -> FitConfig:
    """The schedule of all over so many epochs, with what is the entrant's own."""
    fit = comparison.training
    rate = entrant.learning_rate or fit.learning_rate
    return replace(
        fit,
        epochs=epochs,
        optimizer=entrant.optimizer or fit.optimizer,
        learning_rate=rate,
        min_learning_rate=min(fit.min_learning_rate, rate),
        warmup_epochs=max(comparison.warmup * epochs, 0.0),
        ema=entrant.ema or fit.ema,
        validate_every=max(1, math.ceil(epochs / 25)),
    )


def _refuse_own_settings(tuning: Tuning, entrants: Mapping[str, Entrant]) -> None:
    """Refuse entrants whose own settings leave them other trials than the rest."""
    for name, entrant in entrants.items():
        if entrant.is_trained and entrant.learning_rate is not None:
            raise ValueError(
                f"entrant {name!r} has a learning_rate of its own ({entrant.learning_rate:g}), "
                "which tuning would choose; leave out one of them"
            )
        if entrant.is_trained and entrant.optimizer is not None and len(tuning.optimizers) > 1:
            raise ValueError(
                f"entrant {name!r} has an optimizer of its own ({entrant.optimizer}), so that "
                f"tuning over {', '.join(tuning.optimizers)} would give it fewer trials than the "
                "others; leave out one of them"
            )


def load_comparison(path: Path | str, overrides: tuple[str, ...] = ()) -> Comparison:
    """A comparison from a TOML file, with changes such as ``samples=1000``."""
    return config.read(Path(path), Comparison, overrides)
