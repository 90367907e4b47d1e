"""The interface of metrics, and what they share: frames, components, units, ratios.

    values(sum over frames of terms(frames))

A mean squared error over its energy is two terms, a correlation six. Sums are exact over batches
and processes, and the interval of a value comes from sums over resampled frames
(``evaluation/intervals.py``), without any prediction. Terms are float64. A metric of whole
sequences (a spectrum in time, a mean profile) has one row of terms for each sequence.

A field has a component per channel, the speed ``|u|`` where it has a velocity, and ``all``: the
values of all channels as one sample, without the state of a structure. Where units differ ``all``
takes each channel in units of its standard deviation in the training set.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.units import parse_unit
from pibert.fields import FieldSpec, Normalizer

ALL = "all"
SPEED = "|u|"


@dataclass(frozen=True, eq=False, kw_only=True)
class Frames:
    """Predicted and true frames of one trajectory in the order of time.

    Values at unknown points are meaningless: they may be any finite number.
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
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Of the trajectory."""

    def __getitem__(self, which: slice) -> Self:
        """Some of the frames."""
        return replace(
            self,
            prediction=self.prediction[which],
            truth=self.truth[which],
            last=self.last[which],
            known=self.known[which],
            body=None if self.body is None else self.body[which],
        )


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One number of a measure."""

    metric: str
    """Such as ``nmse``; lower case, words joined by underscores."""
    component: str
    """A channel, ``|u|``, ``all``, or another quantity."""
    unit: str = "1"
    """As in ``FieldSpec.units``; 1 for what has none."""
    better: Literal["lower", "higher", "none"] = "lower"
    """Whether a lower or a higher value is better, or neither."""


@dataclass(frozen=True, kw_only=True)
class Measure(ABC):
    """Terms that add up over frames, and the values of their sum."""

    spec: FieldSpec
    name: ClassVar[str]
    """The name under which its terms are stored."""
    of_sequences: ClassVar[bool] = False
    """Whether all frames of a trajectory give one row of terms together."""

    @property
    @abstractmethod
    def entries(self) -> tuple[Entry, ...]:
        """The entries of ``values``, in order."""

    @abstractmethod
    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        """Terms to be added up, float64: a row for each frame, or one for all of them."""

    @abstractmethod
    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        """The values that sums of terms give; NaN where undefined."""


def channel_scales(spec: FieldSpec, normalizer: Normalizer) -> tuple[float, ...]:
    """What ``all`` divides each channel by: 1 where they have one unit, else their std.

    Infinite for the state of a structure, which ``all`` leaves out.
    """
    if len(normalizer.std) != len(spec.channels):
        raise ValueError(
            f"expected a mean and a std for each of {spec.channels}, found {len(normalizer.std)}"
        )
    fields = spec.of_fields
    scales = (1.0,) * len(fields.channels)
    if len(set(fields.units)) > 1:
        scales = normalizer.std[: len(fields.channels)]
    return (*scales, *[math.inf] * len(spec.state))


def common_unit(spec: FieldSpec) -> str:
    """The unit of ``all``."""
    units = set(spec.of_fields.units)
    return spec.units[0] if len(units) == 1 else "1"


def squared_unit(unit: str) -> str:
    """``(m/s)^2`` of ``m/s``."""
    return "1" if unit == "1" else f"({unit})^2"


def gradient_unit(unit: str, length_unit: str | None) -> str:
    """The unit of a derivative in space: ``1/s`` of ``m/s`` over ``m``.

    Without a length unit it is the one that fits the field: metres for SI units, none for
    dimensionless fields. D is that of flows in units of U and D.
    """
    if unit == "1" and length_unit in (None, "D"):
        return "1" if length_unit is None else "U/D"
    field, length = parse_unit(unit), parse_unit(length_unit or "m")
    if field is not None and length is not None and field.of_time == 1.0:
        if (field.length, field.of_length) == (length.length, length.of_length):
            return field._replace(length=0).si_name
    return f"{unit}/{length_unit or 'length'}"


def velocity_unit(spec: FieldSpec) -> str:
    """The unit of u, which is that of v too."""
    assert spec.velocity is not None
    return spec.units[spec.velocity[0]]


def require_velocity(spec: FieldSpec, purpose: str) -> None:
    """Raise an error for fields without a velocity."""
    if spec.velocity is None:
        raise ValueError(
            f"expected a velocity, channels 'u' and 'v' of a flow, for {purpose}, found "
            f"{spec.channels} of family {spec.family}; leave this metric out"
        )


def known_values(
    fields: Float[Tensor, "t c y x"], known: Bool[Tensor, "#t y x"]
) -> Float[Tensor, "t c y x"]:
    """In double precision, with zero where not known."""
    return torch.where(known[:, None], fields.double(), 0.0)


def uniform_series(
    values: Float[Tensor, "t y x"], known: Bool[Tensor, "t y x"]
) -> Float[Tensor, " t"]:
    """The values of a state of a structure, which are the same at all points of a frame."""
    return torch.where(known, values.double(), 0.0).sum((1, 2)) / known.sum((1, 2))


def with_speed(fields: Float[Tensor, "t c y x"], spec: FieldSpec) -> Float[Tensor, "t m y x"]:
    """The channels, and the speed as one more where there is a velocity."""
    if spec.velocity is None:
        return fields
    u, v = (fields[:, channel] for channel in spec.velocity)
    return torch.cat((fields, torch.hypot(u, v)[:, None]), dim=1)


def names_with_speed(spec: FieldSpec) -> tuple[str, ...]:
    """The names of the channels of ``with_speed``."""
    return spec.channels if spec.velocity is None else (*spec.channels, SPEED)


def ratio(above: Float[Tensor, "*n"], below: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """A quotient, NaN unless the denominator is positive."""
    return torch.where(below > 0, above / below, torch.nan)


@dataclass(frozen=True, kw_only=True)
class SquaredErrors(Measure):
    """A metric of squared errors over some points, and of the energy there.

    Three terms for each channel: points, sum of squared errors, sum of squared true values. The
    sums of ``all`` follow from them.
    """

    normalizer: Normalizer

    @property
    def components(self) -> tuple[str, ...]:
        return (*self.spec.channels, ALL)

    @property
    def units(self) -> tuple[str, ...]:
        return (*self.spec.units, common_unit(self.spec))

    def error_terms(
        self,
        prediction: Float[Tensor, "t c y x"],
        truth: Float[Tensor, "t c y x"],
        where: Bool[Tensor, "t y x"],
    ) -> Float[Tensor, "t k"]:
        """The terms of frames over the points of a mask."""
        truth = known_values(truth, where)
        error = known_values(prediction, where) - truth
        count = where.sum((1, 2)).double()[:, None].expand(truth.shape[:2])
        sums = (count, error.square().sum((2, 3)), truth.square().sum((2, 3)))
        return torch.stack(sums, dim=-1).flatten(1)

    def totals(self, sums: Float[Tensor, "*batch k"]) -> tuple[Tensor, Tensor, Tensor]:
        """Points, squared errors and energy, each (*batch, component)."""
        each = sums.unflatten(-1, (len(self.spec.channels), 3))
        scales = channel_scales(self.spec, self.normalizer)
        weight = torch.tensor(scales, dtype=sums.dtype, device=sums.device) ** -2
        counted = (weight > 0).to(weight)
        weights = torch.stack((counted, weight, weight), dim=-1)
        pooled = (weights * each).sum(-2, keepdim=True)
        count, error, energy = torch.cat((each, pooled), dim=-2).unbind(-1)
        return count, error, energy
