"""The plan of a comparison: candidates, flows, seeds, and the budget that all of them get.

Every candidate sees the same number of samples, counted with repetition; pretraining and training
on rollouts take their share of them. Batches, schedule and the skip from the last frame are the
same for all. The validation split chooses the epoch and, with tuning, learning rate and optimiser;
the test split is scored once, at the end.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pibert import config
from pibert.config import Bounds, Count, NonNegative, NonNegativeInt, Positive
from pibert.experiments.evaluation import RolloutPlan
from pibert.experiments.experiment import (
    PRETRAINING_WEIGHTS,
    DataConfig,
    Experiment,
    ModelConfig,
    Pretraining,
    RolloutTraining,
    Weights,
)
from pibert.inference import load
from pibert.models import MODELS, PRESETS
from pibert.models.references.simple import Reference
from pibert.pretraining.masks import Masking
from pibert.report.comparison.published import PUBLISHED
from pibert.training.augmentation import Augmentation
from pibert.training.losses import LossWeights
from pibert.training.objectives import RolloutConfig
from pibert.training.optimizers import OptimizerName
from pibert.training.settings import FitConfig, Hardware

FORMER_KEY = "entrants"
"""The name of ``candidates`` in files of earlier versions."""


@dataclass(frozen=True)
class Setting:
    """The settings of a tuning trial."""

    optimizer: OptimizerName
    learning_rate: float

    def __str__(self) -> str:
        return f"{self.optimizer} at {self.learning_rate:g}"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Choose learning rate and optimiser of each trained model by its validation error.

    Every trained model gets the same trials with the same number of samples, in addition to the
    budget of the comparison.
    """

    learning_rates: tuple[Positive, ...] = (1e-3, 2e-3, 4e-3, 8e-3)
    optimizers: tuple[OptimizerName, ...] = ("muon",)
    """Each is tried with every learning rate."""
    budget: Annotated[float, Bounds(above=0, most=1)] = 0.5
    """Share of ``samples`` that each trial sees, pretraining included. Short trials favour learning
    rates that are too high for the whole run."""
    seed: NonNegativeInt = 0
    """Seed of all trials."""
    reuse: dict[str, str] = field(default_factory=dict)
    """Data sets that are not tuned on, and the data set whose choice each of them takes."""

    def __post_init__(self) -> None:
        config.check(self)
        for name in ("learning_rates", "optimizers"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"expected one or more different {name}, found {list(values)}")

    def settings(self, optimizer: OptimizerName | None = None) -> tuple[Setting, ...]:
        """Return the settings to try; a model with its own optimiser tries only that one."""
        names = self.optimizers if optimizer is None else (optimizer,)
        return tuple(Setting(name, rate) for name in names for rate in self.learning_rates)

    def samples(self, whole: int) -> int:
        """Return the samples of each trial, given those of the comparison."""
        return max(1, round(self.budget * whole))

    def check_reuse(self, data: Collection[str]) -> None:
        """Refuse unknown data sets, and those that reuse the choice of one that is not tuned on."""
        for name, source in self.reuse.items():
            if unknown := [key for key in (name, source) if key not in data]:
                raise ValueError(
                    f"tuning.reuse: unknown data set {unknown[0]!r}; choose from: {', '.join(data)}"
                )
            if source in self.reuse:
                raise ValueError(
                    f"tuning.reuse: {name!r} takes the choice of {source!r}, which takes that of "
                    f"{self.reuse[source]!r}; name that one"
                )


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model under comparison."""

    model: ModelConfig = ModelConfig()
    run: str | None = None
    """A finished run on the same data, used as it is; all other settings here are ignored."""
    pretraining: Annotated[float, Bounds(least=0, below=1)] = 0.0
    """Share of its samples used for pretraining."""
    pretraining_weights: Weights = PRETRAINING_WEIGHTS
    masking: Masking = Masking()
    losses: LossWeights | None = None
    """Weights of its supervised loss; the published ones if not given."""
    learning_rate: float | None = None
    """None: that of ``training``."""
    optimizer: OptimizerName | None = None
    """None: that of ``training``."""
    ema: float | None = None
    """None: that of ``training``."""

    def __post_init__(self) -> None:
        config.check(self)
        if self.run is not None and not (Path(self.run) / "model.json").exists():
            raise ValueError(f"{self.run}: not a finished run, model.json is missing")
        if self.model.name not in MODELS:
            raise ValueError(f"unknown model {self.model.name!r}; choose from: {', '.join(MODELS)}")
        presets = PRESETS[self.model.name]
        if self.model.preset is not None and self.model.preset not in presets:
            raise ValueError(
                f"unknown preset {self.model.preset!r} of {self.model.name}; choose from: "
                f"{', '.join(presets)}"
            )

    @property
    def is_trained(self) -> bool:
        """Return whether the comparison trains it by steps, so that the seed matters."""
        kind = MODELS[self.model.name]
        return self.run is None and not (isinstance(kind, type) and issubclass(kind, Reference))

    @property
    def history(self) -> int:
        """Return the number of input frames of the model."""
        if self.run is not None:
            return load(self.run).history
        presets = PRESETS[self.model.name]
        chosen = presets[self.model.preset] if self.model.preset else next(iter(presets.values()))
        return int(self.model.options.get("history", chosen.history))


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All settings of a comparison."""

    data: dict[str, DataConfig]
    """Data sets by name."""
    candidates: dict[str, Candidate]
    """Models by the name that they have in tables."""
    seeds: tuple[NonNegativeInt, ...] = (0,)
    samples: Count = 20_000
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
    """Trials that choose learning rate and optimiser of each trained candidate; none: no trials."""
    rollout_share: Annotated[float, Bounds(least=0, below=1)] = 0.0
    """Share of the samples for training on rollouts, after training on single steps; a sample
    counts as often as it calls the model. 0: single steps alone."""
    rollout_steps: Count = 8
    """Calls of the model in the longest of these rollouts."""
    noise: NonNegative = field(default=0.0, metadata=config.ADDED)
    """On the input in training, in standard deviations of the fields, for every model that can
    learn from rollouts."""
    noise_spread: Annotated[float, Bounds(least=1)] = field(default=1.0, metadata=config.ADDED)
    """Every sample has noise of its own strength, log-uniform from noise / spread to noise times
    spread; 1: all have the same."""
    augmentation: Augmentation = Augmentation()
    rollout: RolloutPlan = RolloutPlan()
    hardware: Hardware = Hardware()
    reference: str = "persistence"
    """The candidate that every comparison includes."""
    published: dict[str, str] = field(default_factory=dict)
    """Data sets beside whose results the report shows the paper's own numbers, and the benchmark
    that these are of: ``cylinder-real`` or ``fsi-real``."""
    tested: str | None = None
    """The candidate that is tested against every other one; None: pibert-mr or else pibert."""

    def __post_init__(self) -> None:
        config.check(self)
        if not self.data or not self.candidates or not self.seeds:
            raise ValueError(
                "expected at least one data set, one candidate and one seed, found "
                f"{len(self.data)}, {len(self.candidates)} and {len(self.seeds)}"
            )
        if self.reference not in self.candidates:
            raise ValueError(
                f"expected the reference {self.reference!r} among the candidates, found "
                f"{', '.join(self.candidates)}"
            )
        for name, benchmark in self.published.items():
            if name not in self.data or benchmark not in PUBLISHED:
                raise ValueError(
                    f"published: expected one of the data sets {', '.join(self.data)} and one of "
                    f"the benchmarks {', '.join(PUBLISHED)}, found {name} = {benchmark!r}; change "
                    "it or leave it out"
                )
        if self.tested not in (None, *self.candidates):
            raise ValueError(
                f"expected the tested model {self.tested!r} among the candidates, found "
                f"{', '.join(self.candidates)}; set tested to one of them"
            )
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"expected different seeds, found {list(self.seeds)}")
        for name in (*self.data, *self.candidates):
            if not name or name != Path(name).name or name.startswith("."):
                raise ValueError(f"expected names that can be folders, found {name!r}")
        for name, flows in self.data.items():
            if flows.split != "stated" and flows.shares.valid <= 0:
                raise ValueError(
                    f"data set {name!r} has no validation split, so a model could only be chosen "
                    "on test data; give data.shares.valid a share"
                )
        if self.tuning is not None:
            self.tuning.check_reuse(self.data)
            _check_same_trials(self.tuning, self.candidates)

    @property
    def history(self) -> int:
        """Return the number of frames before predicted test frames, the same for all."""
        return max(candidate.history for candidate in self.candidates.values())

    @property
    def tested_model(self) -> str | None:
        """Return the candidate of the paired tests; None: no candidate is a PIBERT."""
        usual = (name for name in ("pibert-mr", "pibert") if name in self.candidates)
        return self.tested or next(usual, None)

    def jobs(self) -> tuple["Job", ...]:
        """Return all runs; a predictor that is not trained runs once, whatever the seeds."""
        return tuple(
            Job(data, name, seed)
            for data in self.data
            for name, candidate in self.candidates.items()
            for seed in (self.seeds if candidate.is_trained else self.seeds[:1])
        )


@dataclass(frozen=True)
class Job:
    """One run of the comparison."""

    data: str
    candidate: str
    seed: int

    def folder(self, out: Path) -> Path:
        """Return its run folder."""
        return out / "runs" / self.data / f"{self.candidate}-{self.seed}"

    @property
    def labels(self) -> dict[str, Any]:
        """Return ``data``, ``model`` and ``seed``, as results have them."""
        return {"data": self.data, "model": self.candidate, "seed": self.seed}


def experiment_of(
    comparison: Comparison, job: Job, train_samples: int, labelled_samples: int | None = None
) -> Experiment:
    """Return the experiment of a job.

    Pretraining and training on rollouts take whole epochs and training the rest, so that all
    candidates see the same number of samples to within half an epoch. An epoch of pretraining has
    ``train_samples`` windows, one of training ``labelled_samples`` of them, or all.
    """
    candidate = comparison.candidates[job.candidate]
    pretraining, left = None, comparison.samples
    if candidate.pretraining:
        epochs = max(1, round(candidate.pretraining * comparison.samples / train_samples))
        left -= epochs * train_samples
        schedule = vars(_schedule(comparison, candidate, epochs))
        pretraining = Pretraining(**{**schedule, "monitor": "loss"})
    size, rollouts = labelled_samples or train_samples, None
    noise = _noise(comparison) if candidate.model.learns_rollouts else {}
    if comparison.rollout_share and candidate.model.learns_rollouts:
        like = _schedule(comparison, candidate, 1)
        rollouts = _on_rollouts(comparison, like, size, job.candidate)
        left -= rollouts.calls * size
    epochs = round(left / size)
    if pretraining is None:
        epochs = max(1, epochs)
    if epochs < 1:
        raise ValueError(
            f"{comparison.samples} samples are too few for {job.candidate!r}: an epoch has "
            f"{train_samples} on {job.data!r}, and pretraining needs one of its own; raise samples "
            f"(two epochs have {2 * train_samples}) or leave the model out"
        )
    return Experiment(
        data=comparison.data[job.data],
        model=candidate.model,
        seed=job.seed,
        pretraining=pretraining,
        pretraining_weights=candidate.pretraining_weights,
        training=_schedule(comparison, candidate, epochs),
        losses=candidate.losses,
        rollout=RolloutConfig(**noise),
        rollout_training=rollouts,
        augmentation=comparison.augmentation,
        masking=candidate.masking,
        hardware=comparison.hardware,
    )


def _schedule(comparison: Comparison, candidate: Candidate, epochs: int) -> FitConfig:
    """Return the common schedule over these epochs, with the candidate's own settings."""
    fit = comparison.training
    rate = candidate.learning_rate or fit.learning_rate
    return replace(
        fit,
        epochs=epochs,
        optimizer=candidate.optimizer or fit.optimizer,
        learning_rate=rate,
        min_learning_rate=min(fit.min_learning_rate, rate),
        warmup_epochs=max(comparison.warmup * epochs, 0.0),
        ema=candidate.ema or fit.ema,
        validate_every=max(1, math.ceil(epochs / 25)),
    )


def _on_rollouts(
    comparison: Comparison, training: FitConfig, size: int, name: str
) -> RolloutTraining:
    """Return the stage on rollouts: as many epochs of ``size`` samples as its share pays for."""
    budget = comparison.rollout_share * comparison.samples

    def over(epochs: int) -> RolloutTraining:
        steps = comparison.rollout_steps
        # Shorter rollouts would spend less than the budget.
        return RolloutTraining.after(training, steps=steps, epochs=epochs, shorten=False)

    epochs = 1
    while over(epochs + 1).calls * size <= budget:
        epochs += 1
    stage = over(epochs)
    if stage.calls * size > budget:
        raise ValueError(
            f"{comparison.samples} samples are too few to train {name!r} on rollouts: an epoch has "
            f"{size}, each of {stage.calls} calls, but their share is {budget:g}; raise samples or "
            "rollout_share, or lower rollout_steps"
        )
    return replace(stage, rollout=replace(stage.rollout, **_noise(comparison)))


def _noise(comparison: Comparison) -> dict[str, Any]:
    """Return the settings of noise on the input, in both stages of training."""
    return {"noise": comparison.noise, "noise_spread": comparison.noise_spread}


def _check_same_trials(tuning: Tuning, candidates: Mapping[str, Candidate]) -> None:
    """Refuse candidates whose own settings give them other trials than the rest."""
    for name, candidate in candidates.items():
        if candidate.is_trained and candidate.learning_rate is not None:
            raise ValueError(
                f"candidate {name!r} has a learning_rate of its own ({candidate.learning_rate:g}), "
                "which tuning would choose; leave out one of them"
            )
        if candidate.is_trained and candidate.optimizer is not None and len(tuning.optimizers) > 1:
            raise ValueError(
                f"candidate {name!r} has an optimizer of its own ({candidate.optimizer}), so that "
                f"tuning over {', '.join(tuning.optimizers)} would give it fewer trials than the "
                "others; leave out one of them"
            )


def load_comparison(path: Path | str, overrides: tuple[str, ...] = ()) -> Comparison:
    """Read a comparison from a TOML file, with changes such as ``samples=1000``."""
    changes = [re.sub(rf"^{FORMER_KEY}(?=[.=])", "candidates", text) for text in overrides]
    return config.read(path, Comparison, changes, upgrade=with_candidates)


def with_candidates(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain data of a plan, with the key of earlier versions replaced."""
    if "model" in plan:
        raise ValueError(
            "expected a plan with candidates, found the settings of one model; run pibert train "
            "--config FILE --out RUN, or choose a plan in configs/comparisons/"
        )
    if FORMER_KEY in plan and "candidates" in plan:
        raise ValueError(f"expected candidates or {FORMER_KEY}, found both; leave out {FORMER_KEY}")
    return {"candidates" if key == FORMER_KEY else key: value for key, value in plan.items()}
