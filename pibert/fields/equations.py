"""The governing equation of the fields that a spec describes."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.fields.spec import FieldSpec
from pibert.physics.families import Family, find_family, magnitude, masked_residuals
from pibert.physics.families.family import Residuals
from pibert.physics.grid import Grid

REYNOLDS = "Re"
"""The parameter that, with the reference scales of the spec, gives a viscosity U D / Re."""


def is_solenoidal(spec: FieldSpec) -> bool | None:
    """Return whether the velocity is free of divergence; None if the spec names no family."""
    if spec.velocity is None:
        return False
    return None if spec.family is None else find_family(spec.family).is_solenoidal


def known_coefficients(
    family: Family, spec: FieldSpec, parameters: Float[Tensor, "b q"] | None
) -> dict[str, Any]:
    """Return the family's known coefficients: numbers, or tensors (b,).

    Samples whose parameter is unknown (NaN) get the family's value of an unknown coefficient.

    Args:
        family: The governing equation.
        spec: Its viscosity overrides one from the Reynolds number.
        parameters: As ``FieldSpec.encode_parameters`` returns them; None: nothing is known.
    """
    known: dict[str, Any] = {n: _parameter(n, spec, parameters) for n in family.coefficients}
    if "viscosity" in known:
        reynolds = _parameter(REYNOLDS, spec, parameters)
        if spec.viscosity is not None:
            known["viscosity"] = spec.viscosity
        elif spec.reference_velocity and spec.reference_length and reynolds is not None:
            known["viscosity"] = spec.reference_velocity * spec.reference_length / reynolds
    for name, value in known.items():
        if isinstance(value, Tensor):
            known[name] = torch.where(value.isnan(), family.coefficients[name], value)
    return {name: value for name, value in known.items() if value is not None}


def _parameter(name: str, spec: FieldSpec, parameters: Tensor | None) -> Tensor | None:
    if parameters is None or name not in spec.parameter_names:
        return None
    index = spec.parameter_names.index(name)
    if index >= parameters.shape[-1]:
        return None
    return spec.parameters[index].restore(parameters[:, index])


def channel_indices(family: Family, channels: Sequence[str]) -> dict[str, int]:
    """Return the index of each channel that the family uses and the data has."""
    wanted = (*family.channels, *family.optional_channels)
    return {name: channels.index(name) for name in wanted if name in channels}


def has_equations(spec: FieldSpec) -> bool:
    """Return whether the spec names a family and has the channels it needs."""
    return spec.family is not None and set(find_family(spec.family).channels) <= set(spec.channels)


def terms_of(spec: FieldSpec) -> tuple[str, ...]:
    """Return the names of the residuals; empty without equations."""
    return find_family(spec.family).terms if spec.family and has_equations(spec) else ()


def window_residuals(
    frames: Float[Tensor, "b t c y x"],
    spec: FieldSpec,
    parameters: Float[Tensor, "b q"] | None,
    known: Bool[Tensor, "b y x"] | None,
    *,
    family: Family | None = None,
    grid: Grid | None = None,
) -> tuple[Residuals, dict[str, Bool[Tensor, "b y x"]]]:
    """Return the residuals of the newest frames, zero where undefined, and where they are defined.

    Args:
        frames: In physical units, the newest last; one frame gives the steady proxy.
        spec: Has the channels of the family.
        parameters: As ``FieldSpec.encode_parameters`` returns them; None: nothing is known.
        known: Where the frames are known; None: everywhere.
        family: The governing equation; None: that of the spec.
        grid: Of the frames; None: that of the spec.
    """
    family = family or find_family(spec.family or "")
    newest = frames[:, -family.frames :]
    return masked_residuals(
        family,
        {name: newest[:, :, i] for name, i in channel_indices(family, spec.channels).items()},
        grid or spec.grid,
        None if known is None else known[:, None],
        dt=spec.dt,
        **known_coefficients(family, spec, parameters),
    )


def residual_sizes(
    frames: Float[Tensor, "b t c y x"],
    spec: FieldSpec,
    parameters: Float[Tensor, "b 16"],
    seen: Bool[Tensor, "b y x"],
) -> dict[str, Float[Tensor, "b y x"]]:
    """Return the magnitude of each residual term of ``window_residuals``; NaN where undefined."""
    residuals, defined = window_residuals(frames.double(), spec, parameters.double(), seen)
    return {t: torch.where(defined[t], magnitude(r), torch.nan) for t, r in residuals.items()}
