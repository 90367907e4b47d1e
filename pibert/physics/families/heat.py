"""The heat equation for a scalar u with diffusivity alpha: u_t - alpha lap u = 0."""

from collections.abc import Collection

import torch
from torch import Tensor

from pibert.physics.derivatives import Order, laplacian
from pibert.physics.diagnostics import overshoot, species_conservation
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
        drift = species_conservation([fields["u"]], grid).abs().mean(-1)
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
