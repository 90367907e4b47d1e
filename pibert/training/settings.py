"""Settings of a training run: the schedule and the hardware; and its result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pibert.config import NO_EFFECT, Bounds, Count, NonNegative, NonNegativeInt, check

LoggerName = Literal["tensorboard", "csv", "mlflow", "wandb", "trackio"]
LoggerChoice = Literal["auto", "none"] | LoggerName | tuple[LoggerName, ...]
Beta = Annotated[float, Bounds(least=0, below=1)]


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Where a run computes."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: Count = 1
    """Per node. Under torchrun or srun, the number of their processes."""
    nodes: Count = 1
    precision: Literal["float32", "bf16"] = "float32"
    """bf16: autocast, with spectral sums and weights in float32."""
    compile: bool = False
    """torch.compile of the model."""
    cuda_graphs: bool = True
    """Capture the work of a piece as CUDA graphs and replay it; for small models on a GPU."""
    resident: bool = True
    """Keep the samples on the device; otherwise read them from the file each time."""
    workers: NonNegativeInt = 0
    """Processes that read ahead if samples are not resident."""
    profile: bool = False
    """Log the shares of data, forward, backward, optimizer ... in the time of an epoch."""

    FORMER_NAMES: ClassVar[Mapping[str, str]] = {"cuda_graphs": "record"}

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """How a model is trained; the defaults are the recipe that did best on wakes and a jet.

    The paper's schedule is in ``configs/cylinder-base.toml``.
    """

    epochs: Count = 20
    batch_size: Count = 64
    """Samples of a step, over all processes."""
    micro_batch: Count | None = 128
    """Samples per forward pass; None: a process's whole share of the batch."""
    optimizer: Literal["adamw", "muon"] = "muon"
    """``muon``: Muon for matrices and kernels, AdamW for the rest; ``adamw``: AdamW for all."""
    learning_rate: NonNegative = 4e-3
    """Its peak."""
    min_learning_rate: NonNegative = 1e-6
    """At the end of the last epoch."""
    warmup_epochs: NonNegative = 1.0
    """Epochs in which the learning rate rises."""
    weight_decay: NonNegative = 1e-4
    betas: tuple[Beta, Beta] = (0.9, 0.99)
    clip: Annotated[float, Bounds(above=0)] | None = 1.0
    """Largest norm of the gradient."""
    ema: Annotated[float, Bounds(above=0, below=1)] | None = None
    """Decay of the running mean of the weights, which is then what is validated and kept."""
    patience: Count | None = None
    """Epochs without improvement after which training stops; needs validation."""
    validate_every: Count = 1
    """Epochs; the last one is always validated."""
    checkpoint_minutes: Annotated[float, Bounds(least=0)] = 5.0
    """Save the state after an epoch, and within one after this time; 0: every step."""
    monitor: str = "loss"
    """The validation value that decides what is best; smaller is better."""

    logger: LoggerChoice = field(default="auto", metadata=NO_EFFECT)
    """Where curves go beside log.jsonl: one name or a list, none, or auto: TensorBoard if it is
    installed; in other stages, the loggers of the training."""

    def __post_init__(self) -> None:
        check(self)
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"expected min_learning_rate <= learning_rate = {self.learning_rate}, "
                f"found {self.min_learning_rate}"
            )


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The result of a training run."""

    metrics: Mapping[str, float]
    """Validation values of the best epoch; those of training without validation."""
    best_epoch: int
    """The first is 1; 0: none was better than the start, or none had a finite value."""
    epochs: int
    """Epochs done."""
    steps: int
    """Steps done."""
    stopped_early: bool
    """Whether patience ran out."""
    resumed_from: int | None
    """The step that the run was resumed from, if it was."""
    start_metrics: Mapping[str, float] = field(default_factory=dict)
    """Validation values of the weights that it started from, if they were a candidate."""
