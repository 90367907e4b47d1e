"""The settings of an experiment: data, model, pretraining, training, hardware.

An experiment is a TOML file (``configs/``). Apart from the versions of packages and the machine,
which ``config.json`` of the run states, nothing else decides the numbers of a run.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pibert import config
from pibert.config import Bounds, Count, NonNegative
from pibert.data.measurement import Measurement
from pibert.data.splits import Shares, SplitRule
from pibert.models import MODELS
from pibert.models.references.simple import Reference
from pibert.pretraining.masks import Masking
from pibert.pretraining.negatives import NegativesConfig
from pibert.training.augmentation import Augmentation
from pibert.training.engine import FitConfig, Hardware
from pibert.training.losses import LossWeights
from pibert.training.objectives import RolloutConfig


@dataclass(frozen=True, kw_only=True)
class OtherFlows:
    """Flows that are not those of training: longer ones, or flows simulated anew."""

    path: str | None = None
    """A file or folder of them; or else"""
    recipe: dict[str, Any] = field(default_factory=dict)
    """changes to the recipe of the simulated data: seed, and samples, frames ..."""

    def __post_init__(self) -> None:
        config.check(self)
        if (self.path is None) == (not self.recipe):
            raise ValueError(
                "data.test or data.calibration: expected either a path or changes to the recipe, "
                f"found path {self.path!r} and recipe {self.recipe}; state one of them"
            )


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which flows to learn from, and how they are split."""

    path: str | None = None
    """A file or folder of any kind that ``pibert inspect`` reads; or else"""
    case: str | None = None
    """a case of ``pibert generate``, simulated on first use and kept in the cache."""
    preset: str = "demo"
    recipe: dict[str, Any] = field(default_factory=dict)
    """Changes to the preset."""
    kind: str | None = None
    """The format of the data at the path, if it cannot be detected."""
    hints: dict[str, Any] = field(default_factory=dict)
    """Metadata that the data at the path lack: unit, dt, channels ..."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of their reader: scenario and kind of RealPDEBench ..."""
    channels: tuple[str, ...] = ()
    """Channels to learn; empty stands for all."""
    stride: int = 1
    """Use every Nth frame."""
    max_frames: int | None = None
    """Use at most this many frames of each trajectory."""
    size: tuple[int, int] | None = None
    """Rows and columns to resample the fields to."""
    measurement: Measurement | None = None
    """Simulate a PIV measurement of the flows first."""
    outlier_noise: Annotated[float, Bounds(above=0)] | None = None
    """Leave out vectors that do not fit their neighbours, as ``pibert fill`` does; the accepted
    fluctuation of a component, in its unit."""
    split: str = "trajectory"
    """By whole trajectories at random, ``time`` within each, as ``stated`` by the data or their
    publishers, or by parameters: ``interpolation:Re``, ``higher:Re``, ``lower:Re``, each also with
    a range of test values (``higher:Re:8000``), or ``conditions``."""
    group_by: tuple[str, ...] = ()
    """Parameters: trajectories that agree in all of them, such as repetitions of a condition, stay
    together in a split by trajectory."""
    shares: Shares = Shares()
    guard: int = 0
    """Frames left out between the subsets of a split in time."""
    split_seed: int = 0
    in_memory: bool = True
    """Read and convert the fields once; otherwise each time they are used."""
    labelled: Annotated[float, Bounds(above=0, most=1)] = 1.0
    """Share of the training trajectories used for training, the same ones for every seed; of a
    single one, its first frames."""
    test: OtherFlows | None = field(default=None, metadata=config.ADDED)
    """Flows that replace the test split, which is then not used at all."""
    calibration: OtherFlows | None = field(default=None, metadata=config.ADDED)
    """Flows that replace the calibration split in the same way."""

    def __post_init__(self) -> None:
        config.check(self)
        SplitRule.parse(self.split)
        if (self.path is None) == (self.case is None):
            remedy = "state one of them: data.path or data.case"
            if self.path is not None:
                remedy = "leave one of them out: --set data.case=none or --set data.path=none"
            raise ValueError(
                "expected either a path or a case to simulate, "
                f"found path {self.path!r} and case {self.case!r}; {remedy}"
            )
        for subset, others in self.other_flows().items():
            if others.recipe and self.case is None:
                raise ValueError(
                    f"data.{subset}.recipe changes the recipe of simulated data, found data.path = "
                    f"{self.path!r}; give these flows as data.{subset}.path"
                )
        if self.group_by and self.split != "trajectory":
            raise ValueError(
                f"group_by goes with split = 'trajectory', found split = {self.split!r}; leave one "
                "of them out"
            )

    def other_flows(self) -> dict[str, OtherFlows]:
        """Return the flows that replace a split, by the name of the split."""
        others = {"calibration": self.calibration, "test": self.test}
        return {subset: flows for subset, flows in others.items() if flows is not None}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model to train."""

    name: str = "pibert-mr"
    preset: str | None = None
    """A named size of the model; the first one if not given."""
    options: dict[str, Any] = field(default_factory=dict)
    """Changes to the preset: width, history, dropout ..."""

    @property
    def learns_rollouts(self) -> bool:
        """Whether it is trained, by a loss that can be that of a rollout."""
        return self.why_no_rollouts is None

    @property
    def why_no_rollouts(self) -> str | None:
        """Why it cannot be trained on rollouts; None if it can."""
        kind = MODELS.get(self.name)
        if not isinstance(kind, type) or issubclass(kind, Reference):
            return f"{self.name} is not trained by gradients"
        if getattr(kind, "objective", None) == "flow_matching":
            return (
                f"{self.name} learns by flow matching, whose loss is that of a velocity between "
                "noise and the next frame: no frame is predicted that could be fed back"
            )
        return None


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of the objectives in the loss."""

    supervised: NonNegative = 1.0
    mpp: NonNegative = 0.0
    ecp: NonNegative = 0.0

    def __post_init__(self) -> None:
        config.check(self)
        if not any(vars(self).values()):
            raise ValueError("expected a weight above 0, found supervised = mpp = ecp = 0")


PRETRAINING_WEIGHTS = Weights(supervised=0.0, mpp=1.0, ecp=0.1)
"""The paper's."""


@dataclass(frozen=True, kw_only=True)
class Pretraining(FitConfig):
    """A schedule of pretraining; the defaults are the paper's."""

    epochs: Count = 50
    batch_size: Count = 256
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: NonNegative = 5e-5
    min_learning_rate: NonNegative = 1e-7
    warmup_epochs: NonNegative = 3.0
    weight_decay: NonNegative = 2e-5
    patience: Count | None = 45


ROLLOUT_RATE = 1 / 8
"""The learning rate of training on rollouts, as a share of that of single steps."""


@dataclass(frozen=True, kw_only=True)
class RolloutTraining(FitConfig):
    """The stage after training on single steps: rollouts that grow longer.

    The weights whose rollouts on the validation split have the least error are kept; those of
    single steps, if no epoch is better.
    """

    epochs: Count = 3
    learning_rate: NonNegative = ROLLOUT_RATE * FitConfig.learning_rate
    warmup_epochs: NonNegative = 0.15
    monitor: str = "reconstruction"
    rollout: RolloutConfig = RolloutConfig(steps=8, first=2, curriculum_epochs=2, recompute=True)
    validation_steps: Annotated[int, Bounds(least=2)] = 20
    """Calls of the model in the rollouts that decide which weights are kept; fewer if the
    validation recordings are shorter than twice as many frames."""
    shorten: bool = True
    """Shorten the rollouts, or leave the stage out, where recordings are too short; otherwise they
    are refused."""

    @classmethod
    def after(cls, training: FitConfig, *, steps: int, epochs: int, shorten: bool = True) -> Self:
        """The stage after a training: 2, 4 ... ``steps`` calls, each for as many epochs."""
        rate = ROLLOUT_RATE * training.learning_rate
        first = min(2, steps)
        lengths = 1 + math.ceil(math.log2(steps / first))
        return cls(
            **{
                **vars(training),
                "epochs": epochs,
                "learning_rate": rate,
                "min_learning_rate": min(rate, training.min_learning_rate),
                "warmup_epochs": epochs / 20,
                "validate_every": 1,
                "shorten": shorten,
                "rollout": RolloutConfig(
                    steps=steps,
                    first=first,
                    curriculum_epochs=round(epochs * (lengths - 1) / lengths),
                    recompute=True,
                ),
            }
        )

    @property
    def calls(self) -> int:
        """Calls of the model for a training sample, over all epochs."""
        return sum(self.rollout.steps_at(epoch) for epoch in range(self.epochs))


Scaling = Literal["start", "data"]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All settings of a run."""

    data: DataConfig
    model: ModelConfig = ModelConfig()
    seed: int = 0
    """Seed of the weights, the order of the samples, and their random numbers."""
    start: str | None = None
    """A run or model whose weights to start from."""
    start_scaling: Scaling = "start"
    """Which mean and deviation of fields and parameters a model that starts from ``start`` uses:
    those that it was trained with, or those of these data, which its weights then adapt to."""
    heads_only: bool = False
    """Pretraining of a trained model: only its heads for gaps and consistency learn; all other
    weights, and so its predictions, do not change."""
    pretraining: Pretraining | None = None
    """The schedule of pretraining; ``pibert train`` pretrains first if it is given."""
    pretraining_weights: Weights = PRETRAINING_WEIGHTS
    training: FitConfig = FitConfig(monitor="reconstruction")
    """The schedule of training."""
    weights: Weights = Weights()
    """All three positive: joint training."""
    losses: LossWeights | None = None
    """Weights of the supervised loss; the published ones of the model's preset if not given."""
    rollout: RolloutConfig = RolloutConfig()
    """Rollouts in training."""
    rollout_training: RolloutTraining | None = None
    """The stage that follows training, if it is given."""
    augmentation: Augmentation = Augmentation()
    masking: Masking = Masking()
    negatives: NegativesConfig = NegativesConfig()
    hardware: Hardware = Hardware()

    def __post_init__(self) -> None:
        if self.start is not None and self.pretraining is not None and not self.heads_only:
            raise ValueError(
                "expected a model to start from or a pretraining, found both: "
                f"start {self.start!r} and a section [pretraining]; leave one out: --set "
                "pretraining=none or --set start=none"
            )
        if self.start_scaling == "data" and (self.start is None or self.heads_only):
            raise ValueError(
                "start_scaling = 'data': expected a model to start from, all of whose weights are "
                f"trained, found start {self.start!r} and heads_only = {self.heads_only}"
            )
        if self.heads_only and (self.start is None or self.pretraining_weights.supervised):
            raise ValueError(
                "heads_only: expected a model to start from and pretraining_weights.supervised = "
                f"0, found start {self.start!r} and {self.pretraining_weights.supervised}"
            )
        if self.rollout_training is not None and not self.weights.supervised:
            raise ValueError(
                "rollout_training needs a model that predicts, found weights.supervised = 0; leave "
                "one out: --set rollout_training=none"
            )


def load_experiment(path: Path | str, overrides: tuple[str, ...] = ()) -> Experiment:
    """An experiment from a TOML file, with changes such as ``training.epochs=10``."""
    return config.read(Path(path), Experiment, overrides, upgrade=_no_plan)


def _no_plan(data: dict[str, Any]) -> dict[str, Any]:
    """Return plain data of an experiment; a plan of several models is refused."""
    if {"candidates", "entrants"} & set(data):
        raise ValueError(
            "expected the settings of one model, found a plan that compares several; run pibert "
            "compare --config FILE --out FOLDER, or choose an experiment in configs/"
        )
    return data
