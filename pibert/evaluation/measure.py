"""What a measure is: terms of every frame that add up, and values of their sum.

    values(sum over frames of terms(frames))

A mean squared error over its energy is two terms, a correlation six. Sums are exact over batches
and processes, whatever their order to rounding, and the interval of a value comes from sums over
frames drawn anew (``evaluation/intervals.py``), without any prediction at hand. Terms are float64.

A measure of whole sequences (a spectrum in time, a mean profile) gives one row of terms for a
sequence instead of one for each of its frames.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor

from pibert.fields import FieldSpec


@dataclass(frozen=True, eq=False, kw_only=True)
class Frames:
    """Predicted and true frames of one trajectory in the order of time.

    Values at points that are not known mean nothing: they may be anything finite.
    """

    prediction: Float[Tensor, "t c y x"]
    truth: Float[Tensor, "t c y x"]
    last: Float[Tensor, "t c y x"]
    """The newest frame that the model saw: what persistence predicts."""
    known: Bool[Tensor, "t y x"]
    """Where the truth is known: measured, not filled."""
    body: Bool[Tensor, "t y x"] | None
    """Inside a solid body; None: there is none."""
    spec: FieldSpec
    """Channels, units, spacing; ``spec.dt`` is the time between two frames."""


def in_parts(frames: Frames, lengths: Iterable[int]) -> Iterator[Frames]:
    """Frames one after the other, so many at a time, until there are no more."""
    start = 0
    for length in lengths:
        if start >= len(frames.truth):
            return
        part = slice(start, start + length)
        yield replace(
            frames,
            prediction=frames.prediction[part],
            truth=frames.truth[part],
            last=frames.last[part],
            known=frames.known[part],
            body=None if frames.body is None else frames.body[part],
        )
        start += length


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One number of a measure."""

    metric: str
    """Such as ``nmse``; lower case, words joined by underscores."""
    component: str
    """A channel, ``|u|``, or ``all``; or what else a metric is of."""
    unit: str = "1"
    """As in ``FieldSpec.units``; 1 for what has none."""
    better: Literal["lower", "higher", "none"] = "lower"
    """Whether a lower or a higher value is better, or neither."""


@runtime_checkable
class Measure(Protocol):
    """Terms that add up, and what numbers they give."""

    @property
    def name(self) -> str:
        """By which its terms are kept."""
        ...

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What ``values`` gives, in order."""
        ...

    @property
    def of_sequences(self) -> bool:
        """Whether all frames of a trajectory give one row of terms together."""
        ...

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        """What is added up, float64: a row for each frame, or one for all of them."""
        ...

    def values(self, sums: Float[Tensor, "*draws k"]) -> Float[Tensor, "*draws entry"]:
        """The numbers that sums of terms give; NaN where nothing can be said."""
        ...
