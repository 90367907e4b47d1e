"""How far frames are from their governing equations, point by point, in physical units."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.fields import FieldSpec
from pibert.physics.coefficients import known_coefficients
from pibert.physics.families import find_family, magnitude, masked_residuals


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
        frames: The newest last; with one frame the time derivative is left out.
        spec: Names a family whose channels it has.
        parameters: As ``FieldSpec.encode_parameters`` makes them.
        seen: Where the frames are known.
    """
    assert spec.family is not None
    family = find_family(spec.family)
    newest = frames[:, -family.frames :].double()
    wanted = (*family.channels, *family.optional_channels)
    places = {name: spec.channels.index(name) for name in wanted if name in spec.channels}
    residuals, defined = masked_residuals(
        family,
        {name: newest[:, :, place] for name, place in places.items()},
        spec.grid,
        seen[:, None],
        dt=spec.dt,
        **known_coefficients(family, spec, parameters.double()),
    )
    return {t: torch.where(defined[t], magnitude(r), torch.nan) for t, r in residuals.items()}
