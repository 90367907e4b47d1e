"""Where a flow is active: what draws structured masks.

Both guides take known points alone, are zero where a stencil touches an unknown one, and are
non-negative; only their proportions within a sample matter. They look at the newest frame, and with
it at as many earlier ones as the residual needs and the history holds.

Statistics enter as numbers and not as the normaliser's tensors, which would have to travel to the
device in every step.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.fields import Batch, FieldSpec, Normalizer
from pibert.physics import derivatives, find_family, magnitude, masked_residuals
from pibert.physics.coefficients import known_coefficients

Guide = Literal["vorticity", "residual"]


@torch.no_grad()
def vorticity(batch: Batch, spec: FieldSpec, normalizer: Normalizer) -> Float[Tensor, "b y x"]:
    """|dv/dx - du/dy| of the newest frame."""
    if spec.velocity is None:
        raise ValueError(
            f"masks guided by the vorticity need a velocity (u, v), found channels "
            f"{list(spec.channels)} of family {spec.family!r}; set guide to 'residual'"
        )
    newest = batch.x[:, -len(spec.channels) :]
    u, v = (newest[:, index] * normalizer.std[index] for index in spec.velocity)
    grid = spec.grid
    value, _ = derivatives.where_defined(
        lambda u, v: derivatives.vorticity(u, v, grid), u, v, known=batch.mask
    )
    return value.abs()


@torch.no_grad()
def residual(batch: Batch, spec: FieldSpec, normalizer: Normalizer) -> Float[Tensor, "b y x"]:
    """The residuals of the PDE family, each divided by its mean over the sample, added up."""
    if spec.family is None:
        raise ValueError(
            "masks guided by the residual need a PDE family, and the field spec names none; set "
            "guide to 'vorticity'"
        )
    family, names = find_family(spec.family), spec.channels
    missing = [name for name in family.channels if name not in names]
    if missing:
        raise ValueError(
            f"the residual of {family.name!r} needs channels {list(family.channels)}, "
            f"found {list(names)}; set guide to 'vorticity' or leave structured masks out"
        )
    frames = batch.x.unflatten(1, (-1, len(names)))[:, -family.frames :]
    places = [names.index(n) for n in (*family.channels, *family.optional_channels) if n in names]
    values, _ = masked_residuals(
        family,
        {
            names[place]: frames[:, :, place] * normalizer.std[place] + normalizer.mean[place]
            for place in places
        },
        replace(spec.grid, body=None),  # the batch's mask has it
        batch.mask[:, None],
        dt=spec.dt,
        **known_coefficients(family, spec, batch.parameters),
    )
    total = torch.zeros_like(frames[:, 0, 0])
    for value in values.values():
        size = magnitude(value)
        mean = size.mean((1, 2), keepdim=True)
        total = total + torch.where(mean > 0, size / mean, 0.0)
    return total


GUIDES: dict[str, Callable[[Batch, FieldSpec, Normalizer], Tensor]] = {
    "vorticity": vorticity,
    "residual": residual,
}
assert set(GUIDES) == set(get_args(Guide))
