"""An alarm for windows unlike the training data, with a known rate of false alarms.

Parts (``oddity.py``) have different units. Each is turned into a surprise: minus the logarithm of
its p-value among reference windows, continued beyond their upper tenth by an exponential tail, so
that odd windows differ in how odd they are. The largest surprise of a window counts, and its part
is the reason given. What a largest surprise is worth, other windows say that neither training nor
the reference saw: a conformal p-value, which is at most ``a`` with a chance of at most ``a`` for a
window of a new trajectory of the same kind. Nothing about faulty windows is needed for this.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.trust.conformal import grouped_p_values

RATE = 0.05
"""Of false alarms, where none is asked for."""
TAIL = 0.1
"""Share of the reference beyond which the exponential tail begins."""


@dataclass(frozen=True, eq=False)
class Alarm:
    """What is thought of each window of a batch."""

    p: Any
    """(batch,): how likely a window as odd is among those of new trajectories like the training
    ones; small is odd."""
    raised: Any
    """(batch,): whether p is at most the accepted rate of false alarms."""
    rate: float
    """That rate."""
    parts: tuple[str, ...]
    """The oddest part of each window."""


@dataclass(frozen=True, eq=False)
class Surprise:
    """Scores of reference windows, part by part."""

    reference: Float[Tensor, "part n"]
    """In increasing order."""

    @classmethod
    def of(cls, scores: Float[Tensor, "n part"]) -> "Surprise":
        return cls(scores.T.sort(dim=1).values.contiguous())

    def parts(self, scores: Float[Tensor, "b part"]) -> Float[Tensor, "b part"]:
        """Minus the logarithm of each score's p-value."""
        n = self.reference.shape[1]
        above = n - torch.searchsorted(self.reference, scores.T.contiguous())
        start = min(n - 1, int((1 - TAIL) * n))
        edge = self.reference[:, start, None]
        beyond = (self.reference[:, start:] - edge).mean(1, keepdim=True)
        spread = (edge - self.reference[:, n // 2, None]).abs()
        # Where the upper tenth is nearly one value, its own width says little of what is odd.
        step = beyond.maximum(0.1 * spread).maximum(0.01 * (1 + edge.abs()))
        share = (n - start + 1) / (n + 1)
        body = -torch.log((above + 1) / (n + 1))
        tail = torch.maximum(body, (scores.T - edge) / step - torch.log(torch.tensor(share)))
        return torch.where(scores.T > edge, tail, body).T


@dataclass(frozen=True, eq=False)
class Watch:
    """Judges windows by their surprises."""

    names: tuple[str, ...]
    surprise: Surprise
    atoms: Float[Tensor, "group m"]
    """Largest surprises of calibration windows, group by group."""
    weights: Float[Tensor, " group"]
    count: int
    """Exchangeable units among them."""

    def p_values(
        self, scores: Float[Tensor, "b part"]
    ) -> tuple[Float[Tensor, " b"], Int[Tensor, " b"]]:
        """The p-value of each window, and the place of its oddest part."""
        largest, place = self.surprise.parts(scores).max(1)
        return grouped_p_values(largest, self.atoms, self.weights, self.count), place

    def judge(self, scores: Float[Tensor, "b part"], false_alarms: float | None = None) -> Alarm:
        """Raise an alarm for windows that are odder than an accepted share of sound ones.

        Args:
            scores: Of every part.
            false_alarms: That share; if not given, ``RATE``, or the least that can be told.
        """
        lowest = 1 / (self.count + 1)
        if false_alarms is None:
            false_alarms = max(RATE, lowest)
        if not lowest <= false_alarms < 1:
            raise ValueError(
                f"expected a rate of false alarms from {lowest:.3g}, the least that {self.count} "
                f"calibration units can tell, to 1, found {false_alarms:g}"
            )
        p, place = self.p_values(scores)
        raised: Bool[Tensor, " b"] = p <= false_alarms
        return Alarm(p, raised, false_alarms, tuple(self.names[index] for index in place.tolist()))


def largest_surprises(
    surprise: Surprise, groups: Sequence[Float[Tensor, "n part"]]
) -> list[Float[Tensor, " n"]]:
    """Of the windows of each group."""
    return [surprise.parts(scores).amax(1) for scores in groups]
