"""Settings of a training run: the schedule, the hardware, and what comes of it.

Plain frozen values that are checked when they are made; a configuration file is made of them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Where a run computes."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: int = 1
    """Per node. Under torchrun or srun their number of processes counts."""
    nodes: int = 1
    precision: Literal["float32", "bf16"] = "float32"
    """bf16: autocast, with spectral sums and weights in float32."""
    compile: bool = False
    """torch.compile of the model."""
    record: bool = True
    """Record the work of a piece as CUDA graphs and replay it; for small models on a GPU."""
    resident: bool = True
    """Samples are held on the device; otherwise they are read from the file again and again."""
    workers: int = 0
    """Processes that read ahead where samples are not resident."""
    profile: bool = False
    """Measure the shares of data, forward, backward, optimizer ... in the time of an epoch."""

    def __post_init__(self) -> None:
        for name, least in (("devices", 1), ("nodes", 1), ("workers", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"expected {name} >= {least}, found {getattr(self, name)}")
        for name, choices in (
            ("accelerator", ("auto", "cpu", "cuda", "mps")),
            ("precision", ("float32", "bf16")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"unknown {name} {getattr(self, name)!r}; choose from: {', '.join(choices)}"
                )


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """How a model is trained; the defaults are the recipe that did best on wakes and a jet.

    The paper's schedule is in ``configs/cylinder-base.toml``.
    """

    epochs: int = 20
    batch_size: int = 64
    """Samples of a step, over all processes."""
    micro_batch: int | None = 128
    """Samples that are on a device at once; None: a process's whole share of the batch."""
    optimizer: Literal["adamw", "muon"] = "muon"
    """``muon``: Muon for matrices and kernels, AdamW for the rest; ``adamw``: AdamW for all."""
    learning_rate: float = 4e-3
    """Its peak."""
    min_learning_rate: float = 1e-6
    """At the end of the last epoch."""
    warmup_epochs: float = 1.0
    """Epochs in which the learning rate rises; with more than there are it stays below its peak."""
    weight_decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    clip: float | None = 1.0
    """Largest norm of the gradient."""
    ema: float | None = None
    """Decay of the running mean of the weights; with one, it is what is validated and kept."""
    patience: int | None = None
    """Epochs without improvement after which training stops; needs validation."""
    validate_every: int = 1
    """Epochs; the last one is always validated."""
    checkpoint_minutes: float = 5.0
    """The state is saved after an epoch, and within one after so much time; 0: every step."""
    monitor: str = "loss"
    """Which of the validation values says what is best; smaller is better."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "micro_batch", "patience", "validate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"expected {name} of at least 1, found {value}")
        for name in ("learning_rate", "min_learning_rate", "warmup_epochs", "weight_decay"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"expected {name} of at least 0, found {value}")
        if self.min_learning_rate > self.learning_rate:
            raise ValueError(
                f"expected min_learning_rate <= learning_rate = {self.learning_rate}, "
                f"found {self.min_learning_rate}"
            )
        if self.optimizer not in ("adamw", "muon"):
            raise ValueError(f"unknown optimizer {self.optimizer!r}; choose from: adamw, muon")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"expected betas in [0, 1), found {self.betas}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"expected ema between 0 and 1, or none, found {self.ema}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"expected a positive clip, or none, found {self.clip}")
        if not self.checkpoint_minutes >= 0:
            raise ValueError(
                f"expected checkpoint_minutes of at least 0, found {self.checkpoint_minutes}"
            )


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What came of a training run."""

    metrics: Mapping[str, float]
    """Validation values of the best epoch; those of training where there is no validation."""
    best_epoch: int
    """The first is 1; 0: no epoch had a finite value."""
    epochs: int
    """Epochs done."""
    steps: int
    """Steps done."""
    stopped_early: bool
    """Whether patience ran out."""
    resumed_from: int | None
    """The step that the run went on from, if it was resumed."""
