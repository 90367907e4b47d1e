"""The wave equation for a displacement u with wave speed c.

    wave:  u_tt - c^2 lap u = 0
    rate:  (change of u over the step) / dt - u_t = 0, in the first-order form only

From three frames of u the residual is that at the middle frame. From two frames of u and of its
rate u_t it is that midway between them. Both are second order in dt.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from pibert.physics.derivatives import Order, laplacian
from pibert.physics.diagnostics import SIDES, boundary_reflection, dispersion
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
from pibert.physics.grid import Boundary, Grid


class Wave(Family):
    """Term ``wave`` (1 component), from ``u_t`` if the data has it, else three frames of ``u``.

    Coefficient: ``speed``.
    """

    name = "wave"
    channels: tuple[str, ...] = ("u",)
    optional_channels: tuple[str, ...] = ("u_t",)
    frames = 3
    coefficients = {"speed": 0.0}
    terms: tuple[str, ...] = ("wave",)
    equation = "ddt ddt u = c c Delta u"
    symbols = {"speed": "c"}
    diagnostic_names = ("dispersion_error", "reflection")

    def diagnostics(
        self, fields: Frames, grid: Grid, *, dt: float | None, **coefficients: Coefficient
    ) -> dict[str, Tensor]:
        """Mean relative error of the frequencies in a box, and reflection from open sides."""
        u, speed = fields["u"], coefficients.get("speed")
        if dt is None or speed is None or u.shape[-3] < 3:
            return {}
        if grid.periodic_x and grid.periodic_y:
            found = dispersion(u, grid, dt, speed)
            errors = (found.measured / found.exact - 1).abs()
            errors[..., 0, 0] = torch.nan  # the mean does not oscillate
            return {"dispersion_error": errors.flatten(-2).nanmean(-1)}
        kinds = zip(SIDES, grid.sides, strict=True)
        open_sides = [side for side, kind in kinds if kind in (Boundary.OPEN, Boundary.OUTFLOW)]
        shares = [boundary_reflection(u, grid, dt, speed, side) for side in open_sides]
        return {"reflection": torch.stack(shares).mean(0)} if shares else {}

    def required_frames(self, channels: Sequence[str]) -> int:
        return 2 if "u_t" in channels else self.frames

    def is_reversible(self, channels: Sequence[str]) -> bool:
        return "u_t" not in channels  # the displacement of the wave that travels backwards

    def _residuals(
        self, fields: Frames, grid: Grid, dt: float | None, order: Order, factors: Coefficients
    ) -> Residuals:
        if "u_t" in fields:
            u, _ = midpoint(fields["u"], dt)
            _, u_tt = midpoint(fields["u_t"], dt)
        else:
            u, u_tt = _at_middle_frame(fields["u"], dt)
        residual = torch.zeros_like(u) if u_tt is None else u_tt
        if "speed" in factors:
            residual = residual - spread(factors["speed"]) ** 2 * laplacian(u, grid, order)
        return {"wave": residual.unsqueeze(-3)}

    def omissible_terms(self, known: Collection[str], has_steps: bool) -> tuple[str, ...]:
        return ("restoring",)

    def change_without(self, omission: Omission) -> dict[str, Tensor]:
        """Without the restoring force the displacement continues at its speed: u_tt = 0."""
        u = omission.fields["u"]
        if "u_t" not in omission.fields:
            free = 2 * u[:, -2] - u[:, -3]
            return {"u": free - u[:, -1]}
        assert omission.plan is not None
        rates = omission.fields["u_t"]
        free = u[:, -2] + omission.plan.dt * rates[:, -2]
        return {"u": free - u[:, -1], "u_t": rates[:, -2] - rates[:, -1]}


def _at_middle_frame(frames: Tensor, dt: float | None) -> tuple[Tensor, Tensor | None]:
    """Value and second rate of change at the last but one frame; else last frame and None."""
    after = frames[..., -1, :, :]
    if dt is None or frames.shape[-3] < 3:
        return after, None
    now, before = frames[..., -2, :, :], frames[..., -3, :, :]
    return now, (after - 2 * now + before) / dt**2


class FirstOrderWave(Wave):
    """Terms ``rate``, which compares ``u_t`` with the change of u, and ``wave``."""

    name = "wave-first-order"
    channels = ("u", "u_t")
    optional_channels = ()
    frames = 2
    terms = ("rate", "wave")

    def _residuals(
        self, fields: Frames, grid: Grid, dt: float | None, order: Order, factors: Coefficients
    ) -> Residuals:
        rate, _ = midpoint(fields["u_t"], dt)
        _, change = midpoint(fields["u"], dt)
        mismatch = torch.zeros_like(rate) if change is None else change - rate
        wave = super()._residuals(fields, grid, dt, order, factors)
        return {"rate": mismatch.unsqueeze(-3), **wave}
