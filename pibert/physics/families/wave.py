"""The wave equation for a displacement u with wave speed c.

    wave:  u_tt - c^2 lap u = 0
    rate:  (change of u over the step) / dt - u_t = 0, in the first-order form only

From three frames of u the residual is that at the middle frame. From two frames of u and of its
rate u_t it is that midway between them. Both are second order in dt.
"""

import math
from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.physics.derivatives import Order, ddx, ddy, laplacian
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

_STRONG = 1e-6
"""Least energy of a mode whose frequency is measured, relative to the strongest mode."""
_INSIDE = 4
"""Points between a side and the line on which its reflection is measured."""


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
        """Relative error of the frequencies in a box, and reflection from open sides.

        The error is a mean over modes, weighted with their energy: the frequency of a mode without
        energy is that of its rounding error. The reflection is that of all open sides together.
        """
        u, speed = fields["u"], coefficients.get("speed")
        if dt is None or speed is None or u.shape[-3] < 3:
            return {}
        if grid.periodic_x and grid.periodic_y:
            measured, exact = dispersion(u, grid, dt, speed)
            errors = (measured / exact - 1).abs()
            energy = torch.fft.rfft2(u).abs().square().sum(-3)
            energy[..., 1 : (u.shape[-1] + 1) // 2] *= 2  # the other half of the spectrum
            energy[..., 0, 0] = 0.0  # the mean does not oscillate
            energy = torch.where(measured.isfinite(), energy, 0.0)
            weighted = torch.where(energy > 0, energy * errors, 0.0)
            return {"dispersion_error": weighted.sum((-2, -1)) / energy.sum((-2, -1))}
        kinds = grid.sides._asdict().items()
        open_sides = [side for side, kind in kinds if kind in (Boundary.OPEN, Boundary.OUTFLOW)]
        if not open_sides:
            return {}
        energies = [_energies_at(u, grid, dt, speed, side) for side in open_sides]
        incoming, outgoing = (torch.stack(part).sum(0) for part in zip(*energies, strict=True))
        return {"reflection": incoming / outgoing}

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


def dispersion(
    frames: Float[Tensor, "*batch t y x"], grid: Grid, dt: float, speed: Coefficient
) -> tuple[Float[Tensor, "*batch ky kx"], Float[Tensor, "*batch ky kx"]]:
    """Measured angular frequency and c |k| of every mode in the layout of ``torch.fft.rfft2``.

    In every Fourier mode a[n+1] - 2 a[n] + a[n-1] = -4 sin^2(w dt / 2) a[n] holds exactly for any
    mix of waves that travel both ways, so w is fitted by least squares over three frames or more
    of a periodic box. It is unique for w dt < pi. Modes without energy are NaN.
    """
    ny, nx = frames.shape[-2:]
    kx = 2 * math.pi * torch.fft.rfftfreq(nx, grid.dx, dtype=frames.dtype, device=frames.device)
    ky = 2 * math.pi * torch.fft.fftfreq(ny, grid.dy, dtype=frames.dtype, device=frames.device)
    modes = torch.fft.rfft2(frames)  # (*batch, t, ky, kx)
    now = modes[..., 1:-1, :, :]
    bend = modes[..., 2:, :, :] - 2 * now + modes[..., :-2, :, :]
    energy = now.abs().square().sum(-3)
    sine = (-(now.conj() * bend).real.sum(-3) / (4 * energy)).clamp(0, 1).sqrt()
    strong = energy > _STRONG * energy.amax((-2, -1), keepdim=True)
    measured = torch.where(strong, 2 / dt * torch.asin(sine), math.nan)
    return measured, (spread(speed) * torch.hypot(ky[:, None], kx)).expand_as(measured)


def boundary_reflection(
    frames: Float[Tensor, "*batch t y x"], grid: Grid, dt: float, speed: Coefficient, side: str
) -> Float[Tensor, "*batch"]:
    """Share of the outgoing wave energy that comes back from a side: 0 open, 1 a hard wall.

    On a line inside the side, with n pointing outwards, u_t - c u_n holds the outgoing wave and
    u_t + c u_n the incoming one. The ratio of their squares, summed over the line and all frames
    (three or more at equal intervals), is the energy reflection coefficient. The frames must cover
    the passage out and back. The split is exact at normal incidence; waves at the angle a to the
    normal count as reflected by at least ((1 - cos a) / (1 + cos a))^2.
    """
    incoming, outgoing = _energies_at(frames, grid, dt, speed, side)
    return incoming / outgoing


def _energies_at(
    frames: Float[Tensor, "*batch t y x"], grid: Grid, dt: float, speed: Coefficient, side: str
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """The squares of the incoming and the outgoing wave on a line inside a side, summed."""
    dim, derivative = (-1, ddx) if side in ("left", "right") else (-2, ddy)
    outward = 1 if side in ("right", "top") else -1
    index = frames.shape[dim] - 1 - _INSIDE if outward > 0 else _INSIDE
    u_t = (frames[..., 2:, :, :] - frames[..., :-2, :, :]).select(dim, index) / (2 * dt)
    u_n = outward * derivative(frames[..., 1:-1, :, :], grid).select(dim, index)
    c = spread(speed)
    incoming = (u_t + c * u_n).square().sum((-2, -1))
    outgoing = (u_t - c * u_n).square().sum((-2, -1))
    return incoming, outgoing
