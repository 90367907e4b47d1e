"""What an experiment consists of: data, model, stages of learning, machine; all of it plain values.

An experiment is written as TOML (``configs/``), a section for each part. Nothing else decides the
numbers of a run but the versions of the packages and the machine, which the run records.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pibert import config
from pibert.data.measurement import Measurement
from pibert.data.splits import Shares
from pibert.pretraining.masks import Masking
from pibert.pretraining.negatives import NegativesConfig
from pibert.training.augmentation import Augmentation
from pibert.training.engine import FitConfig, Hardware
from pibert.training.losses import LossWeights
from pibert.training.objectives import RolloutConfig


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which flows to learn from, and how they are parted."""

    path: str | None = None
    """A file or folder of any kind that ``pibert inspect`` reads; or else"""
    case: str | None = None
    """a case of ``pibert generate``, simulated on first use and kept in the cache."""
    preset: str = "demo"
    recipe: dict[str, Any] = field(default_factory=dict)
    """Changes of the preset."""
    kind: str | None = None
    """The kind of data at the path, where it does not tell."""
    hints: dict[str, Any] = field(default_factory=dict)
    """What the data at the path do not say: unit, dt, channels ..."""
    options: dict[str, Any] = field(default_factory=dict)
    """What their reader takes beyond that: scenario and kind of RealPDEBench ..."""
    channels: tuple[str, ...] = ()
    """Channels to learn; empty stands for all."""
    stride: int = 1
    """Every how many frames one is taken."""
    max_frames: int | None = None
    """At most so many frames of each trajectory."""
    size: tuple[int, int] | None = None
    """Rows and columns to bring the fields to."""
    measurement: Measurement | None = None
    """Measure the flows first, as a camera would."""
    outlier_noise: float | None = None
    """Leave out vectors that do not fit their neighbours, as ``pibert fill`` does; the accepted
    fluctuation of a component, in its unit."""
    split: Literal["trajectory", "time", "stated"] = "trajectory"
    """Whole trajectories at random, stretches of time of each, or as the data say."""
    group_by: tuple[str, ...] = ()
    """Parameters: trajectories that agree in all of them, such as repetitions of a condition, go to
    the same part of a split by trajectory."""
    shares: Shares = Shares()
    guard: int = 0
    """Frames left out between two parts of a split in time."""
    split_seed: int = 0
    in_memory: bool = True
    """Read and represent the fields once; otherwise whenever they are asked for."""
    labelled: float = 1.0
    """Share of the training trajectories that are trained on, the same ones for every seed; of a
    single one, its first frames."""

    def __post_init__(self) -> None:
        if (self.path is None) == (self.case is None):
            remedy = "state one of them: data.path or data.case"
            if self.path is not None:
                remedy = "leave one of them out: --set data.case=none or --set data.path=none"
            raise ValueError(
                "expected either a path or a case to simulate, "
                f"found path {self.path!r} and case {self.case!r}; {remedy}"
            )
        if self.group_by and self.split != "trajectory":
            raise ValueError(
                f"group_by goes with split = 'trajectory', found split = {self.split!r}; leave one "
                "of them out"
            )
        if self.outlier_noise is not None and not self.outlier_noise > 0:
            raise ValueError(f"outlier_noise must be positive, found {self.outlier_noise}")
        if not 0 < self.labelled <= 1:
            raise ValueError(f"labelled must be above 0 and at most 1, found {self.labelled}")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model to train."""

    name: str = "pibert-mr"
    preset: str | None = None
    """A named size of the model; its first one if not given."""
    options: dict[str, Any] = field(default_factory=dict)
    """Changes of the preset: width, history, dropout ..."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of the objectives in the loss."""

    supervised: float = 1.0
    mpp: float = 0.0
    ecp: float = 0.0

    def __post_init__(self) -> None:
        weights = (self.supervised, self.mpp, self.ecp)
        if min(weights) < 0 or max(weights) <= 0:
            raise ValueError(
                f"weights must be zero or positive, one of them positive, found {weights}"
            )


PRETRAINING_WEIGHTS = Weights(supervised=0.0, mpp=1.0, ecp=0.1)
"""The paper's."""


@dataclass(frozen=True, kw_only=True)
class Pretraining(FitConfig):
    """A schedule of pretraining; the defaults are the paper's."""

    epochs: int = 50
    batch_size: int = 256
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = 5e-5
    min_learning_rate: float = 1e-7
    warmup_epochs: float = 3.0
    weight_decay: float = 2e-5
    patience: int | None = 45


Scaling = Literal["start", "data"]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides a run."""

    data: DataConfig
    model: ModelConfig = ModelConfig()
    seed: int = 0
    """Of the weights, of the order of samples, and of what is random about them."""
    start: str | None = None
    """A run or model whose weights to begin with."""
    start_scaling: Scaling = "start"
    """Whose mean and deviation of fields and parameters a model that begins with ``start`` uses:
    those that it was trained with, or those of these data, which its weights then adapt to."""
    heads_only: bool = False
    """Pretraining of a model that steps already: its heads for gaps and consistency learn from what
    it knows, all else, and so its stepping, stays as it is."""
    pretraining: Pretraining | None = None
    """The schedule of pretraining; ``pibert train`` does it first where it is given."""
    pretraining_weights: Weights = PRETRAINING_WEIGHTS
    training: FitConfig = FitConfig(monitor="reconstruction")
    """The schedule of training."""
    weights: Weights = Weights()
    """All three positive: joint training."""
    losses: LossWeights | None = None
    """Of the supervised loss; the published ones of the model's preset if not given."""
    rollout: RolloutConfig = RolloutConfig()
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


def load_experiment(path: Path | str, overrides: tuple[str, ...] = ()) -> Experiment:
    """An experiment from a TOML file, with changes such as ``training.epochs=10``."""
    return config.read(Path(path), Experiment, overrides)
