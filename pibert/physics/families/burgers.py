"""The viscous Burgers equation for a velocity (u, v) with viscosity nu.

momentum:  u_t + u u_x + v u_y - nu lap u = 0, and the same for v
"""

from collections.abc import Collection

from torch import Tensor

from pibert.physics.derivatives import Order, laplacian
from pibert.physics.families.family import (
    Coefficients,
    Family,
    Frames,
    Omission,
    Residuals,
    advection,
    material_derivative,
    spread,
    stacked,
)
from pibert.physics.grid import Grid
from pibert.physics.stepping import ORDER, step


class Burgers(Family):
    """Term ``momentum`` (2 components); coefficient ``viscosity``."""

    name = "burgers"
    channels = ("u", "v")
    velocity = channels
    coefficients = {"viscosity": 0.0}
    terms = ("momentum",)
    equation = "ddt u + u dot nabla u = nu Delta u"
    symbols = {"viscosity": "nu"}

    def _residuals(
        self, fields: Frames, grid: Grid, dt: float | None, order: Order, factors: Coefficients
    ) -> Residuals:
        velocity, residual = material_derivative(fields, grid, dt, order)
        if "viscosity" in factors:
            viscosity = spread(factors["viscosity"], axes=3)
            residual = residual - viscosity * laplacian(velocity, grid, order)
        return {"momentum": residual}

    def omissible_terms(self, known: Collection[str], has_steps: bool) -> tuple[str, ...]:
        return ("advection", "diffusion") if "viscosity" in known else ()

    def change_without(self, omission: Omission) -> dict[str, Tensor]:
        """Without advection u_t = nu lap u; without diffusion u_t = -(u . grad) u."""
        plan = omission.plan
        assert plan is not None
        viscosity = plan.diffusion * spread(omission.coefficients["viscosity"], 3)
        carried, diffused = (spread(omission.keep[t], 3) for t in ("advection", "diffusion"))
        grid = plan.wrapped

        def rate(f: Tensor) -> Tensor:
            moved = carried * advection(f, grid, ORDER)
            return moved + diffused * viscosity * laplacian(f, grid, ORDER)

        before, now = (stacked(omission.fields, self.velocity, frame) for frame in (-2, -1))
        change = step(before, now, omission.known, rate, plan) - now
        return dict(zip(self.velocity, change.unbind(1), strict=True))
