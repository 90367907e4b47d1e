"""PDE families: one module for each governing equation, and the table of them all."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.physics.derivatives import evaluate_known
from pibert.physics.families.burgers import Burgers
from pibert.physics.families.euler import Euler
from pibert.physics.families.family import Family, Frames, Residuals
from pibert.physics.families.heat import Heat
from pibert.physics.families.incompressible import Incompressible, IncompressibleMomentum
from pibert.physics.families.reaction_diffusion import (
    FISHER_KPP,
    GRAY_SCOTT,
    ReactionDiffusion,
)
from pibert.physics.families.wave import FirstOrderWave, Wave
from pibert.physics.grid import Grid

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Incompressible(),
        IncompressibleMomentum(),
        Heat(),
        Wave(),
        FirstOrderWave(),
        ReactionDiffusion("reaction-diffusion", FISHER_KPP),
        ReactionDiffusion("gray-scott", GRAY_SCOTT),
        Euler(),
        Burgers(),
    )
}


def find_family(name: str) -> Family:
    if name not in FAMILIES:
        raise ValueError(f"unknown PDE family {name!r}; choose from: {', '.join(FAMILIES)}")
    return FAMILIES[name]


def masked_residuals(
    family: Family, fields: Frames, grid: Grid, known: Tensor | None = None, **arguments: Any
) -> tuple[Residuals, dict[str, Bool[Tensor, "*batch y x"]]]:
    """Residuals that use known fluid points only, and where they are defined.

    Args:
        family: The governing equation.
        fields: Channel name to tensor (*batch, t, y, x).
        grid: Its body, when it has the fields' resolution, counts as unknown.
        known: Not zero where all channels are known; broadcastable to (*batch, t, y, x).
        arguments: Of ``family.residuals``.

    Returns:
        The residuals, zero where not defined, and one boolean (*batch, y, x) per residual.
    """
    names = [n for n in (*family.channels, *family.optional_channels) if n in fields]
    if grid.body is not None and grid.body.shape == fields[names[0]].shape[-2:]:
        fluid = ~grid.body_on(fields[names[0]].device)
        known = fluid if known is None else known.to(torch.bool) & fluid
    if known is None:
        residuals = family.residuals(fields, grid, **arguments)
        everywhere = {t: torch.ones_like(r[..., 0, :, :]).bool() for t, r in residuals.items()}
        return residuals, everywhere

    known = known.to(torch.bool)
    values, flags = evaluate_known(
        lambda *f: family.residuals(dict(zip(names, f, strict=True)), grid, **arguments),
        *(fields[name] for name in names),
        known=known,
    )
    # A vector is defined where all of its components are. Central differences skip the point
    # itself, which may still be unknown or solid.
    here = known.expand(fields[names[0]].shape).all(dim=-3)
    defined = {term: flag.all(dim=-3) & here for term, flag in flags.items()}
    masks = {term: flag.unsqueeze(-3) for term, flag in defined.items()}
    return {term: torch.where(masks[term], r, 0.0) for term, r in values.items()}, defined


def magnitude(residual: Float[Tensor, "*batch component y x"]) -> Float[Tensor, "*batch y x"]:
    """Euclidean norm over the components; its gradient at zero is zero."""
    if residual.shape[-3] == 1:
        return residual.squeeze(-3).abs()
    return torch.linalg.vector_norm(residual, dim=-3)
