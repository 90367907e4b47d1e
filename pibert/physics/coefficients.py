"""Coefficients of a governing equation, from what a field spec and a sample's parameters tell."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.fields import FieldSpec
from pibert.physics.families import Family

REYNOLDS = "Re"
"""The parameter that, with the reference scales of the spec, gives a viscosity U D / Re."""


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
