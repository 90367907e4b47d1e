"""What measures of frames share: components and their units, sums over known points, safe ratios.

A field has a component per channel, the speed ``|u|`` where it has a velocity, and ``all``: the
values of all channels as one sample. Channels of different units can not be added up, so where
units differ ``all`` takes each channel in units of its standard deviation in the training set.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.units import parse_unit
from pibert.fields import FieldSpec, Normalizer

ALL = "all"
SPEED = "|u|"


def channel_scales(spec: FieldSpec, normalizer: Normalizer) -> tuple[float, ...]:
    """What ``all`` divides each channel by: 1 where they have one unit, else their std."""
    if len(normalizer.std) != len(spec.channels):
        raise ValueError(
            f"expected a mean and a std for each of {spec.channels}, found {len(normalizer.std)}"
        )
    return normalizer.std if len(set(spec.units)) > 1 else (1.0,) * len(spec.channels)


def common_unit(spec: FieldSpec) -> str:
    """The unit of ``all``."""
    return spec.units[0] if len(set(spec.units)) == 1 else "1"


def squared_unit(unit: str) -> str:
    """``(m/s)^2`` of ``m/s``."""
    return "1" if unit == "1" else f"({unit})^2"


def gradient_unit(unit: str, length_unit: str | None) -> str:
    """The unit of a derivative in space: ``1/s`` of ``m/s`` over ``m``.

    Args:
        unit: Of the field.
        length_unit: Of the grid's spacing; None: the one that fits the field, which is metres for
            SI units and none for dimensionless fields. D is that of flows in units of U and D.
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
    """Refuse fields without a velocity."""
    if spec.velocity is None:
        raise ValueError(
            f"expected a velocity, channels 'u' and 'v' of a flow, for {purpose}, found "
            f"{spec.channels} of family {spec.family}; leave this measure out"
        )


def known_values(
    fields: Float[Tensor, "t c y x"], known: Bool[Tensor, "#t y x"]
) -> Float[Tensor, "t c y x"]:
    """In double precision, with zero where not known."""
    return torch.where(known[:, None], fields.double(), 0.0)


def with_speed(fields: Float[Tensor, "t c y x"], spec: FieldSpec) -> Float[Tensor, "t m y x"]:
    """The channels, and the speed as one more where there is a velocity."""
    if spec.velocity is None:
        return fields
    u, v = (fields[:, place] for place in spec.velocity)
    return torch.cat((fields, torch.hypot(u, v)[:, None]), dim=1)


def names_with_speed(spec: FieldSpec) -> tuple[str, ...]:
    """The names of what ``with_speed`` gives."""
    return spec.channels if spec.velocity is None else (*spec.channels, SPEED)


def ratio(above: Float[Tensor, "*n"], below: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """A quotient, NaN unless the denominator is positive."""
    return torch.where(below > 0, above / below, torch.nan)


@dataclass(frozen=True, kw_only=True)
class SquaredErrors:
    """Squared errors of every channel over some points, and the energy of the truth there.

    Three terms for each channel: points, sum of squared errors, sum of squared true values. The
    sums of ``all`` follow from them.
    """

    spec: FieldSpec
    normalizer: Normalizer

    @property
    def components(self) -> tuple[str, ...]:
        return (*self.spec.channels, ALL)

    @property
    def units(self) -> tuple[str, ...]:
        return (*self.spec.units, common_unit(self.spec))

    def terms(
        self,
        prediction: Float[Tensor, "t c y x"],
        truth: Float[Tensor, "t c y x"],
        where: Bool[Tensor, "t y x"],
    ) -> Float[Tensor, "t k"]:
        """Of frames, over the points of a mask."""
        truth = known_values(truth, where)
        error = known_values(prediction, where) - truth
        count = where.sum((1, 2)).double()[:, None].expand(truth.shape[:2])
        sums = (count, error.square().sum((2, 3)), truth.square().sum((2, 3)))
        return torch.stack(sums, dim=-1).flatten(1)

    def totals(self, sums: Float[Tensor, "*draws k"]) -> tuple[Tensor, Tensor, Tensor]:
        """Points, squared errors and energy, each (*draws, component)."""
        count, error, energy = sums.unflatten(-1, (len(self.spec.channels), 3)).unbind(-1)
        scales = channel_scales(self.spec, self.normalizer)
        weight = torch.tensor(scales, dtype=sums.dtype, device=sums.device) ** -2
        pooled = (count.sum(-1), (weight * error).sum(-1), (weight * energy).sum(-1))
        each = (count, error, energy)
        count, error, energy = (
            torch.cat((part, total[..., None]), dim=-1)
            for part, total in zip(each, pooled, strict=True)
        )
        return count, error, energy
