"""Settings of tuning: learning rates and optimisers that each model tries, and for how long.

Every trained model gets the same trials with the same number of samples, on top of the budget of
the comparison. ``comparison/trials.py`` runs them and chooses.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import get_args

from pibert.training.optimizers import OptimizerName


def check_optimizer(name: str) -> None:
    """Refuse an optimiser that does not exist."""
    if name not in get_args(OptimizerName):
        raise ValueError(
            f"unknown optimizer {name!r}; choose from: {', '.join(get_args(OptimizerName))}"
        )


@dataclass(frozen=True)
class Setting:
    """What a trial tries."""

    optimizer: OptimizerName
    learning_rate: float

    def __str__(self) -> str:
        return f"{self.optimizer} at {self.learning_rate:g}"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Choose learning rate and optimiser of each trained model by its validation error."""

    learning_rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3)
    optimizers: tuple[OptimizerName, ...] = ("muon",)
    """Each is tried with every learning rate."""
    budget: float = 0.5
    """Share of ``samples`` that each trial sees, pretraining included. Short trials favour learning
    rates that are too high for the whole run."""
    seed: int = 0
    """Of all trials."""
    reuse: dict[str, str] = field(default_factory=dict)
    """Data sets that are not tuned on, and the data set whose choice each of them takes."""

    def __post_init__(self) -> None:
        rates = self.learning_rates
        if not rates or len(set(rates)) < len(rates):
            raise ValueError(
                f"expected one or more different learning rates to try, found {list(rates)}"
            )
        if not all(math.isfinite(rate) and rate > 0 for rate in rates):
            raise ValueError(f"expected positive learning rates, found {list(rates)}")
        if not self.optimizers or len(set(self.optimizers)) < len(self.optimizers):
            raise ValueError(
                f"expected one or more different optimizers to try, found {list(self.optimizers)}"
            )
        for name in self.optimizers:
            check_optimizer(name)
        if not 0 < self.budget <= 1:
            raise ValueError(
                f"expected a budget above 0 and at most 1, the share of samples that each trial "
                f"sees, found {self.budget}"
            )
        if self.seed < 0:
            raise ValueError(f"expected a seed of at least 0, found {self.seed}")

    def settings(self, optimizer: OptimizerName | None = None) -> tuple[Setting, ...]:
        """What each model tries; a model with an optimiser of its own tries that one alone."""
        names = self.optimizers if optimizer is None else (optimizer,)
        return tuple(Setting(name, rate) for name in names for rate in self.learning_rates)

    def samples(self, whole: int) -> int:
        """Samples of each trial, given those of the comparison."""
        return max(1, round(self.budget * whole))

    def check_reuse(self, data: Collection[str]) -> None:
        """Refuse data sets that the plan lacks, or that take the choice of an untuned one."""
        for name, source in self.reuse.items():
            unknown = [own for own in (name, source) if own not in data]
            if unknown:
                raise ValueError(
                    f"tuning.reuse: unknown data set {unknown[0]!r}; choose from: {', '.join(data)}"
                )
            if source in self.reuse:
                raise ValueError(
                    f"tuning.reuse: {name!r} takes the choice of {source!r}, which is not tuned on "
                    f"but takes that of {self.reuse[source]!r}; name that one"
                )
