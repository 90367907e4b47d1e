"""The heat equation for a scalar u with diffusivity alpha: u_t - alpha lap u = 0."""

from collections.abc import Collection

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.physics.derivatives import Order, laplacian
from pibert.physics.families.family import (
    Coefficient,
    Coefficients,
    Family,
    Frames,
    Omission,
    Residuals,
    midpoint,
    spread,
)
from pibert.physics.grid import Grid


class Heat(Family):
    """Term ``heat`` (1 component); coefficient ``diffusivity``."""

    name = "heat"
    channels = ("u",)
    coefficients = {"diffusivity": 0.0}
    terms = ("heat",)
    equation = "ddt u = alpha Delta u"
    symbols = {"diffusivity": "alpha"}
    diagnostic_names = ("amount_drift", "overshoot")

    def diagnostics(
        self, fields: Frames, grid: Grid, *, dt: float | None, **coefficients: Coefficient
    ) -> dict[str, Tensor]:
        """Mean size of the change of the total in a box, and the violated maximum principle."""
        if not (grid.periodic_x and grid.periodic_y):
            return {}
        drift = amount_change(fields["u"], grid).abs().mean(-1)
        return {"amount_drift": drift, "overshoot": overshoot(fields["u"])}

    def _residuals(
        self, fields: Frames, grid: Grid, dt: float | None, order: Order, factors: Coefficients
    ) -> Residuals:
        u, u_t = midpoint(fields["u"], dt)
        residual = torch.zeros_like(u) if u_t is None else u_t
        if "diffusivity" in factors:
            residual = residual - spread(factors["diffusivity"]) * laplacian(u, grid, order)
        return {"heat": residual.unsqueeze(-3)}

    def omissible_terms(self, known: Collection[str], has_steps: bool) -> tuple[str, ...]:
        return ("diffusion",)

    def change_without(self, omission: Omission) -> dict[str, Tensor]:
        """Without diffusion the field stays: u_t = 0."""
        u = omission.fields["u"]
        return {"u": u[:, -2] - u[:, -1]}


def amount_change(field: Float[Tensor, "*batch t y x"], grid: Grid) -> Float[Tensor, "*batch t"]:
    """Change of the total since the first frame, relative to that frame.

    Zero for diffusion with periodic or no-flux sides. Every point stands for an equal cell; cells
    of the grid's body do not count.
    """
    if grid.body is not None and grid.body.shape == field.shape[-2:]:
        field = torch.where(grid.body_on(field.device), 0.0, field)
    amount = field.sum((-2, -1))  # (*batch, t)
    scale = field[..., :1, :, :].abs().sum((-2, -1))
    return (amount - amount[..., :1]) / scale


def overshoot(field: Float[Tensor, "*batch t y x"]) -> Float[Tensor, "*batch"]:
    """How far values leave the range of the first frame, relative to that range.

    Zero for diffusion with periodic or no-flux sides: no new maximum or minimum appears.
    """
    first = field[..., 0, :, :]
    low, high = first.amin((-2, -1)), first.amax((-2, -1))
    above, below = field.amax((-3, -2, -1)) - high, low - field.amin((-3, -2, -1))
    return torch.maximum(above, below).clamp(min=0) / (high - low)
