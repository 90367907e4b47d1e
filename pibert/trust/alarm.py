"""An alarm for windows unlike the training data, with a known rate of false alarms.

Parts (``oddity.py``) have different units. Each is turned into a surprise: minus the logarithm of
its p-value among reference windows, continued beyond their upper tenth by an exponential tail, so
that odd windows differ in how odd they are. The largest surprise of a window counts, and its part
is the reason given. What a largest surprise is worth, other windows say that neither training nor
the reference saw: a conformal p-value, which is at most ``a`` with a chance of at most ``a`` for a
window of a new trajectory of the same kind, where trajectories are the units of the calibration.
Where they are too few for that and windows are taken for independent, false alarms are more
frequent on trajectories that differ: by simulation, 8 % instead of 5 % with ten trajectories, 12 %
with five, 22 % with two. Nothing about faulty windows is needed for this.

A count of n calibration units tells no p-value below 1 / (n + 1): where the accepted rate is below
that, no window raises an alarm, however odd it is, and a warning says so.

Unknown points change most parts, also of a sound window. Where more of them are unknown than in any
calibration window, by more than a negligible share, only the parts count that hidden points cannot
raise (``oddity.rises_with_gaps`` is False): the p-value is then at least that of the same window
without gaps, so the rate holds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.remarks import warn
from pibert.trust.conformal import MORE_FLOWS, grouped_p_values
from pibert.trust.oddity import rises_with_gaps

RATE = 0.05
"""Of false alarms, where none is asked for."""
NEGLIGIBLE = 0.002
"""Share of unknown points beyond those of the calibration that changes the parts too little to
leave any out: a few vectors of a field."""
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
    lowest: float
    """The least p that the calibration can tell; above the rate, no alarm can be raised."""
    limited: Any
    """(batch,): whether more is unknown than in the calibration: only some parts were judged."""
    unknown: Any
    """(batch,): share of unknown points."""
    most_unknown: float
    """Largest such share in the calibration."""


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
    most_unknown: float = 0.0
    """Largest share of unknown points of a calibration window."""
    remedy: str = MORE_FLOWS
    """How there would be more units, in words."""

    @property
    def lowest(self) -> float:
        """The least p-value that it can tell."""
        return 1 / (self.count + 1)

    @property
    def _lowest_told(self) -> float:
        """Rounded up, so that it is accepted."""
        return math.ceil(1000 * self.lowest) / 1000

    def check_rate(self, false_alarms: float | None) -> None:
        """Refuse an accepted rate of false alarms that the calibration cannot tell."""
        if false_alarms is not None and not self.lowest <= false_alarms < 1:
            raise ValueError(
                f"expected a rate of false alarms from {self._lowest_told:g}, the least that "
                f"{self.count} calibration units can tell, to 1, found {false_alarms:g}"
            )

    def p_values(
        self, scores: Float[Tensor, "b part"], limited: Bool[Tensor, " b"] | None = None
    ) -> tuple[Float[Tensor, " b"], Int[Tensor, " b"]]:
        """The p-value of each window, and the place of its oddest part.

        Args:
            scores: Of every part.
            limited: Windows of which only the parts count that gaps cannot raise.
        """
        surprises = self.surprise.parts(scores)
        if limited is not None:
            misled = torch.tensor([rises_with_gaps(name) for name in self.names])
            surprises = surprises.masked_fill(limited[:, None] & misled, -torch.inf)
        largest, place = surprises.max(1)
        return grouped_p_values(largest, self.atoms, self.weights, self.count), place

    def judge(
        self,
        scores: Float[Tensor, "b part"],
        false_alarms: float | None = None,
        unknown: Float[Tensor, " b"] | None = None,
    ) -> Alarm:
        """Raise an alarm for windows that are odder than an accepted share of sound ones.

        Args:
            scores: Of every part.
            false_alarms: That share; if not given, ``RATE``.
            unknown: Share of unknown points of each window; none are if not given.
        """
        self.check_rate(false_alarms)
        lowest = self.lowest
        if false_alarms is None:
            false_alarms = RATE
            if lowest > RATE:
                warn(
                    f"no alarm can be raised: {self.count} calibration units tell p-values from "
                    f"{lowest:.3g} up, above the accepted rate of {RATE:g}; {self.remedy}, or "
                    f"accept a rate of {self._lowest_told:g} (false_alarms; --false-alarms)"
                )
        if unknown is None:
            unknown = torch.zeros(len(scores), dtype=torch.float64)
        limited = unknown > self.most_unknown + NEGLIGIBLE
        p, place = self.p_values(scores, limited)
        raised: Bool[Tensor, " b"] = p <= false_alarms
        parts = tuple(self.names[index] for index in place.tolist())
        return Alarm(p, raised, false_alarms, parts, lowest, limited, unknown, self.most_unknown)


def largest_surprises(
    surprise: Surprise, groups: Sequence[Float[Tensor, "n part"]]
) -> list[Float[Tensor, " n"]]:
    """Of the windows of each group."""
    return [surprise.parts(scores).amax(1) for scores in groups]
