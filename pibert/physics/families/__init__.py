"""PDE families: each governing equation, in a file of its own, and the table of them all."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.physics.derivatives import evaluate_known
from pibert.physics.families.burgers import Burgers
from pibert.physics.families.euler import Euler
from pibert.physics.families.family import Coefficient, Family, Frames, Omission, Residuals
from pibert.physics.families.heat import Heat
from pibert.physics.families.incompressible import Incompressible
from pibert.physics.families.reaction_diffusion import GRAY_SCOTT, ReactionDiffusion
from pibert.physics.families.wave import Wave
from pibert.physics.grid import Grid

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Incompressible(),
        Incompressible(form="momentum"),
        Heat(),
        Wave(),
        Wave(form="first-order"),
        ReactionDiffusion(),
        ReactionDiffusion(name="gray-scott", reaction=GRAY_SCOTT),
        Euler(),
        Burgers(),
    )
}


def find_family(name: str) -> Family:
    if name not in FAMILIES:
        raise ValueError(f"unknown PDE family {name!r}; choose from: {', '.join(FAMILIES)}")
    return FAMILIES[name]


def masked_residuals(
    family: Family,
    fields: Frames,
    grid: Grid,
    known: Tensor | None = None,
    **arguments: Any,
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
    fluid = _fluid_points(grid, fields[names[0]])
    if fluid is not None:
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
    # A vector is defined where all of its components are. Central differences skip their own
    # point, which may still be unknown or solid.
    here = _all(known.expand(fields[names[0]].shape))
    defined = {term: _all(flag) & here for term, flag in flags.items()}
    masks = {term: flag.unsqueeze(-3) for term, flag in defined.items()}
    return {term: torch.where(masks[term], r, 0.0) for term, r in values.items()}, defined


def _all(flags: Tensor) -> Tensor:
    """Over frames or components."""
    return flags.squeeze(-3) if flags.shape[-3] == 1 else flags.all(dim=-3)


def _fluid_points(grid: Grid, field: Tensor) -> Tensor | None:
    """The points outside the body; None when there is no body of the field's resolution."""
    if grid.body is None or grid.body.shape != field.shape[-2:]:
        return None
    return ~grid.body_on(field.device)


def magnitude(
    residual: Float[Tensor, "*batch component y x"],
) -> Float[Tensor, "*batch y x"]:
    """Euclidean norm over the components; its gradient at zero is zero."""
    if residual.shape[-3] == 1:
        return residual.squeeze(-3).abs()
    return torch.linalg.vector_norm(residual, dim=-3)


__all__ = [
    "FAMILIES",
    "Burgers",
    "Coefficient",
    "Euler",
    "Family",
    "Frames",
    "Heat",
    "Incompressible",
    "Omission",
    "ReactionDiffusion",
    "Residuals",
    "Wave",
    "find_family",
    "magnitude",
    "masked_residuals",
]
