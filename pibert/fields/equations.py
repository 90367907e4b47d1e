"""The governing equation of the fields that a spec describes."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.fields.spec import FieldSpec
from pibert.physics.families import Family, find_family, magnitude, masked_residuals

REYNOLDS = "Re"
"""The parameter that, with the reference scales of the spec, gives a viscosity U D / Re."""


def is_solenoidal(spec: FieldSpec) -> bool | None:
    """Whether the fields are a velocity without divergence; None where no family is stated."""
    if spec.velocity is None:
        return False
    return None if spec.family is None else find_family(spec.family).is_solenoidal


def known_coefficients(
    family: Family, spec: FieldSpec, parameters: Float[Tensor, "b q"] | None
) -> dict[str, Any]:
    """The family's coefficients as far as they are known: numbers, or tensors (b,).

    A sample whose parameter is unknown (NaN) gets what the family takes for an unknown one.

    Args:
        family: The governing equation.
        spec: Its viscosity comes before a viscosity from the Reynolds number.
        parameters: As ``FieldSpec.encode_parameters`` makes them; None: nothing is known.
    """
    found: dict[str, Any] = {}
    reynolds = _parameter(REYNOLDS, spec, parameters)
    for name in family.coefficients:
        if name == "viscosity" and spec.viscosity is not None:
            found[name] = spec.viscosity
        elif (
            name == "viscosity"
            and spec.reference_velocity
            and spec.reference_length
            and reynolds is not None
        ):
            found[name] = spec.reference_velocity * spec.reference_length / reynolds
        elif (value := _parameter(name, spec, parameters)) is not None:
            found[name] = value
    for name, value in found.items():
        if isinstance(value, Tensor):
            found[name] = torch.where(value.isnan(), family.coefficients[name], value)
    return found


def _parameter(name: str, spec: FieldSpec, parameters: Tensor | None) -> Tensor | None:
    if parameters is None or name not in spec.parameter_names:
        return None
    index = spec.parameter_names.index(name)
    if index >= parameters.shape[-1]:
        return None
    return spec.parameters[index].restore(parameters[:, index])


def channel_places(family: Family, channels: Sequence[str]) -> dict[str, int]:
    """Where the fields that a family uses are among the channels, as far as they are there."""
    wanted = (*family.channels, *family.optional_channels)
    return {name: channels.index(name) for name in wanted if name in channels}


def has_equations(spec: FieldSpec) -> bool:
    """Whether the spec names equations and has the fields that they are about."""
    return spec.family is not None and set(find_family(spec.family).channels) <= set(spec.channels)


def terms_of(spec: FieldSpec) -> tuple[str, ...]:
    """The names of the residuals."""
    return find_family(spec.family).terms if spec.family and has_equations(spec) else ()


def residual_sizes(
    frames: Float[Tensor, "b t c y x"],
    spec: FieldSpec,
    parameters: Float[Tensor, "b 16"],
    seen: Bool[Tensor, "b y x"],
) -> dict[str, Float[Tensor, "b y x"]]:
    """Magnitude of every residual term of the newest frames; NaN where it is not defined.

    Args:
        frames: In physical units, the newest last; with one frame the time derivative is left out.
        spec: Names a family whose channels it has.
        parameters: As ``FieldSpec.encode_parameters`` makes them.
        seen: Where the frames are known.
    """
    assert spec.family is not None
    family = find_family(spec.family)
    newest = frames[:, -family.frames :].double()
    residuals, defined = masked_residuals(
        family,
        {name: newest[:, :, i] for name, i in channel_places(family, spec.channels).items()},
        spec.grid,
        seen[:, None],
        dt=spec.dt,
        **known_coefficients(family, spec, parameters.double()),
    )
    return {t: torch.where(defined[t], magnitude(r), torch.nan) for t, r in residuals.items()}
