"""The heat equation for a scalar u with diffusivity alpha.

    heat:  u_t - alpha lap u = 0

Evaluated midway between the last two frames, second order in dt and of the chosen order in
space (compact Laplacian). With one frame, or without dt, the time derivative is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pibert.fields import Grid
from pibert.physics.derivatives import Order, laplacian
from pibert.physics.families.frames import (
    Coefficient,
    Frames,
    Residuals,
    check_inputs,
    midpoint,
    spread,
)


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Term ``heat`` (1 component); coefficient ``diffusivity``."""

    channel: str = "u"
    """Name of the scalar."""

    name = "heat"
    optional_channels = ()
    frames = 2
    coefficients = {"diffusivity": 0.0}
    terms = ("heat",)
    is_solenoidal = False

    @property
    def channels(self) -> tuple[str, ...]:
        return (self.channel,)

    def frames_to_judge(self, channels: Sequence[str]) -> int:
        return self.frames

    def is_reversible(self, channels: Sequence[str]) -> bool:
        return False

    def residuals(
        self,
        fields: Frames,
        grid: Grid,
        *,
        dt: float | None = None,
        order: Order = 2,
        **coefficients: Coefficient,
    ) -> Residuals:
        """Signed residuals, each (*batch, component, y, x)."""
        check_inputs(self.name, fields, self.channels, coefficients, self.coefficients, dt)
        u, u_t = midpoint(fields[self.channel], dt)
        residual = torch.zeros_like(u) if u_t is None else u_t
        if "diffusivity" in coefficients:
            residual = residual - spread(coefficients["diffusivity"]) * laplacian(u, grid, order)
        return {"heat": residual.unsqueeze(-3)}
