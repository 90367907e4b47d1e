"""Compressible Euler equations of an ideal gas: density rho, velocity (u, v), pressure p.

    mass:      rho_t + (rho u)_x + (rho v)_y = 0
    momentum:  (rho u)_t + (rho u u + p)_x + (rho u v)_y = 0, and the same for rho v
    energy:    E_t + ((E + p) u)_x + ((E + p) v)_y = 0,  E = p / (gamma - 1) + rho |u|^2 / 2

Channels are the primitive variables, residuals are those of the conserved ones, with the average
of the fluxes of both frames.

The differential form does not hold across a shock, where the discrete residual grows like 1/h on
the exact solution. Residuals are therefore weighted by 1 - s with a smooth sensor s that is near
1 in shocks and near 0 elsewhere.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.physics.derivatives import Order, divergence, gradient
from pibert.physics.families.family import (
    Coefficient,
    Coefficients,
    Family,
    Frames,
    Omission,
    Residuals,
    spread,
    stacked,
)
from pibert.physics.grid import Grid
from pibert.physics.stepping import ORDER, step

Field = Float[Tensor, "*batch y x"]
AIR = 1.4
"""Ratio of specific heats where none is given."""
_POSITIVE = ("rho", "p")


@dataclass(frozen=True, kw_only=True)
class Euler(Family):
    """Terms ``mass`` (1 component), ``momentum`` (2) and ``energy`` (1).

    Coefficient: ``gamma``, the ratio of specific heats; 1.4 if unknown.
    """

    shock_threshold: float | None = 0.05
    """Relative jump per cell at which the sensor is 1/2; None keeps the residuals in shocks."""

    name = "euler"
    channels = ("rho", "u", "v", "p")
    velocity = ("u", "v")
    coefficients = {"gamma": AIR}
    terms = ("mass", "momentum", "energy")
    equation = (
        "ddt rho + nabla dot rho u = 0 & rho ddt u + rho u dot nabla u = - nabla p "
        "& ddt e + nabla dot ( e + p ) u = 0"
    )
    symbols = {"gamma": "gamma"}
    diagnostic_names = ("mass_drift", "momentum_drift", "energy_drift", "unphysical_share")

    def __post_init__(self) -> None:
        if self.shock_threshold is not None and not self.shock_threshold > 0:
            raise ValueError(
                f"shock_threshold must be positive or None, found {self.shock_threshold}"
            )

    def diagnostics(
        self, fields: Frames, grid: Grid, *, dt: float | None, **coefficients: Coefficient
    ) -> dict[str, Tensor]:
        """Mean size of the changes of total mass, momentum and energy in a box, and positivity.

        ``unphysical_share`` is the share of values of density and pressure that are not positive.
        """
        wrong = [
            (fields[name] <= 0).to(fields[name].dtype).mean((-3, -2, -1)) for name in _POSITIVE
        ]
        found = {"unphysical_share": torch.stack(wrong).mean(0)}
        if not (grid.periodic_x and grid.periodic_y) or grid.body is not None:
            return found
        drifts = euler_conservation(fields, grid, gamma=coefficients.get("gamma", AIR))
        sizes = {
            f"{term}_drift": torch.linalg.vector_norm(drift, dim=-2).mean(-1)
            for term, drift in drifts.items()
        }
        return sizes | found

    def _residuals(
        self, fields: Frames, grid: Grid, dt: float | None, order: Order, factors: Coefficients
    ) -> Residuals:
        gamma = factors.get("gamma", AIR)
        last = 1 if dt is None else min(2, fields["rho"].shape[-3])
        # Each (last, *batch, y, x): coefficients (*batch,) then spread over both frames.
        rho, u, v, p = (fields[n][..., -last:, :, :].movedim(-3, 0) for n in self.channels)
        conserved = torch.stack(conserved_variables(rho, u, v, p, gamma), dim=-3)
        still = torch.zeros_like(p)
        along_x = conserved * u.unsqueeze(-3) + torch.stack((still, p, still, p * u), dim=-3)
        along_y = conserved * v.unsqueeze(-3) + torch.stack((still, still, p, p * v), dim=-3)
        residual = divergence(along_x.mean(0), along_y.mean(0), grid, order)
        if dt is not None and last == 2:
            residual = residual + (conserved[1] - conserved[0]) / dt
        if self.shock_threshold is not None:
            sensor = shock_sensor(
                rho, u, v, p, grid, gamma=gamma, threshold=self.shock_threshold, order=order
            )
            residual = residual * (1 - sensor.amax(0)).unsqueeze(-3)
        return dict(zip(self.terms, residual.split((1, 2, 1), dim=-3), strict=True))

    def omissible_terms(self, known: Collection[str], has_steps: bool) -> tuple[str, ...]:
        return ("pressure",)

    def change_without(self, omission: Omission) -> dict[str, Tensor]:
        """Without the force of the pressure on the velocity: u_t = -(u . grad) u."""
        assert omission.plan is not None
        grid = omission.plan.wrapped
        gamma = spread(omission.coefficients.get("gamma", AIR))

        def rate(state: Tensor) -> Tensor:
            rho, u, v, p = state.unbind(1)
            along_x, along_y = gradient(state, grid, ORDER)
            moved = -(u[:, None] * along_x + v[:, None] * along_y)
            still = torch.zeros_like(rho)
            squeezed = torch.stack((rho, still, still, gamma * p), dim=1)
            return moved - squeezed * divergence(u, v, grid, ORDER)[:, None]

        before, now = (stacked(omission.fields, self.channels, frame) for frame in (-2, -1))
        later = step(before, now, omission.known, rate, omission.plan, slack=0.5)
        return dict(zip(self.channels, (later - now).unbind(1), strict=True))


def conserved_variables(
    rho: Field, u: Field, v: Field, p: Field, gamma: Coefficient = AIR
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(rho, rho u, rho v, E) of an ideal gas."""
    return rho, rho * u, rho * v, p / (spread(gamma) - 1) + rho * (u**2 + v**2) / 2


def shock_sensor(
    rho: Field,
    u: Field,
    v: Field,
    p: Field,
    grid: Grid,
    *,
    gamma: Coefficient = AIR,
    threshold: float = 0.05,
    order: Order = 2,
) -> Field:
    """Near 1 in and next to shocks, near 0 in smooth flow, expansions and contacts; smooth.

    Two numbers are large in a shock and of order h elsewhere: the pressure jump per cell
    j = |(dx p_x, dy p_y)| / p, and the compression k = max(-h div u, 0) / c with the speed of
    sound c. The sensor is q / (1 + q) with q = (j k / threshold^2)^2, hence 1/2 where their
    geometric mean reaches the threshold. Each point takes the largest value within reach of the
    stencil of the given order, since its residual sees the shock too.
    """
    p_x, p_y = gradient(p, grid)
    jump = (grid.dx * p_x) ** 2 + (grid.dy * p_y) ** 2  # times p^-2
    compression = (grid.cell_length * -divergence(u, v, grid)).clamp(min=0) ** 2  # times c^-2
    strong = jump * compression * rho
    weak = spread(gamma) * p**3 * threshold**4
    sensor = strong / (strong + weak + torch.finfo(p.dtype).tiny)
    for _ in range(1 if order == 2 else 2):
        sensor = _largest_nearby(sensor, -1, grid.periodic_x)
        sensor = _largest_nearby(sensor, -2, grid.periodic_y)
    return sensor


def _largest_nearby(f: Tensor, dim: int, periodic: bool) -> Tensor:
    size = f.shape[dim]
    first, final = f.narrow(dim, 0, 1), f.narrow(dim, size - 1, 1)
    ahead = torch.cat((f.narrow(dim, 1, size - 1), first if periodic else final), dim)
    behind = torch.cat((final if periodic else first, f.narrow(dim, 0, size - 1)), dim)
    return torch.maximum(f, torch.maximum(ahead, behind))


def euler_conservation(
    fields: Frames, grid: Grid, *, gamma: Coefficient = AIR
) -> dict[str, Float[Tensor, "*batch component t"]]:
    """Change of total mass, momentum and energy on a periodic box since the first frame.

    Zero for every solution, with or without shocks. Mass and energy are relative to their totals
    in the first frame, momentum to the square root of the product of both.
    """
    if not (grid.periodic_x and grid.periodic_y) or grid.body is not None:
        raise ValueError("conservation holds on a doubly periodic grid without a body")
    rho, u, v, p = (fields[name] for name in Euler.channels)
    factor = gamma[..., None] if isinstance(gamma, Tensor) else gamma  # frames are a batch axis
    totals = [q.sum((-2, -1)) for q in conserved_variables(rho, u, v, p, factor)]  # (*batch, t)
    mass, energy = totals[0][..., :1], totals[3][..., :1]
    inertia = (mass * energy).sqrt()
    drifts = [
        (total - total[..., :1]) / scale
        for total, scale in zip(totals, (mass, inertia, inertia, energy), strict=True)
    ]
    stacked = torch.stack(drifts, dim=-2)
    return dict(zip(Euler.terms, stacked.split((1, 2, 1), dim=-2), strict=True))
