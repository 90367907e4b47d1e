"""The wave equation for a displacement u with wave speed c, and two diagnostics of waves.

    wave:  u_tt - c^2 lap u = 0
    rate:  (dU/dt of the displacement channel) - u_t = 0, in the first-order form only

From three frames of u the residual is that at the middle frame. From two frames of u and of its
rate u_t it is that midway between them. Both are second order in dt and of the chosen order in
space. With fewer frames, or without dt, the time derivative is left out (the steady proxy, on
the last frame).
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
from pibert.physics.grid import Grid

Side = Literal["left", "right", "bottom", "top"]


@dataclass(frozen=True, kw_only=True)
class Wave(Family):
    """Term ``wave`` and, in the first-order form, ``rate`` (1 component each).

    Coefficient: ``speed``. The second-order form uses ``u_t`` when it is there and three frames
    of ``u`` otherwise; the first-order form needs ``u_t`` and also holds it to the change of u.
    """

    form: Literal["second-order", "first-order"] = "second-order"

    coefficients = {"speed": 0.0}
    equation = "ddt ddt u = c c Delta u"
    symbols = {"speed": "c"}

    def __post_init__(self) -> None:
        if self.form not in ("second-order", "first-order"):
            raise ValueError(f"form must be 'second-order' or 'first-order', found {self.form!r}")

    @property
    def name(self) -> str:
        return "wave" if self.form == "second-order" else "wave-first-order"

    @property
    def channels(self) -> tuple[str, ...]:
        return ("u",) if self.form == "second-order" else ("u", "u_t")

    @property
    def optional_channels(self) -> tuple[str, ...]:
        return ("u_t",) if self.form == "second-order" else ()

    @property
    def frames(self) -> int:
        return 3 if self.form == "second-order" else 2

    @property
    def terms(self) -> tuple[str, ...]:
        return ("wave",) if self.form == "second-order" else ("rate", "wave")

    def required_frames(self, channels: Sequence[str]) -> int:
        return 2 if "u_t" in channels else self.frames

    def is_reversible(self, channels: Sequence[str]) -> bool:
        return "u_t" not in channels  # the displacement of the wave that runs backwards

    def _residuals(
        self, fields: Frames, grid: Grid, dt: float | None, order: Order, factors: Coefficients
    ) -> Residuals:
        if "u_t" in fields:
            u, change = midpoint(fields["u"], dt)
            rate, u_tt = midpoint(fields["u_t"], dt)
        else:
            u, u_tt = _at_middle_frame(fields["u"], dt)
        wave = torch.zeros_like(u) if u_tt is None else u_tt
        if "speed" in factors:
            wave = wave - spread(factors["speed"]) ** 2 * laplacian(u, grid, order)
        residuals = {"wave": wave.unsqueeze(-3)}
        if self.form == "first-order":
            mismatch = torch.zeros_like(u) if change is None else change - rate
            residuals = {"rate": mismatch.unsqueeze(-3)} | residuals
        return residuals

    def omissible_terms(self, known: Collection[str], has_steps: bool) -> tuple[str, ...]:
        return ("restoring",)

    def change_without(self, omission: Omission) -> dict[str, Tensor]:
        """Without the restoring force the displacement goes on as it went: u_tt = 0."""
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


class Dispersion(NamedTuple):
    """Angular frequency of every Fourier mode, in the layout of ``torch.fft.rfft2``."""

    wavenumber: Float[Tensor, "ky kx"]
    """Length |k| of the wave vector."""
    exact: Float[Tensor, "*batch ky kx"]
    """c |k|."""
    measured: Float[Tensor, "*batch ky kx"]
    """NaN for modes that hold no energy."""


def dispersion(
    frames: Float[Tensor, "*batch t y x"],
    grid: Grid,
    dt: float,
    speed: Coefficient,
    floor: float = 1e-6,
) -> Dispersion:
    """Measured frequency against c |k| of a wave field on a periodic box, three frames or more.

    In every Fourier mode a[n+1] - 2 a[n] + a[n-1] = -4 sin^2(w dt / 2) a[n] holds exactly for any
    mix of waves that travel both ways, so w is fitted by least squares over the frames. It is
    unique for w dt < pi. Modes with less than the share ``floor`` of the strongest mode's energy
    are not measured.
    """
    if not (grid.periodic_x and grid.periodic_y):
        raise ValueError("dispersion is measured on a doubly periodic grid only")
    if frames.shape[-3] < 3:
        raise ValueError(f"dispersion needs at least 3 frames, found {frames.shape[-3]}")
    ny, nx = frames.shape[-2:]
    kx = 2 * math.pi * torch.fft.rfftfreq(nx, grid.dx, dtype=frames.dtype, device=frames.device)
    ky = 2 * math.pi * torch.fft.fftfreq(ny, grid.dy, dtype=frames.dtype, device=frames.device)
    wavenumber = torch.hypot(ky[:, None], kx)
    modes = torch.fft.rfft2(frames)  # (*batch, t, ky, kx)
    now = modes[..., 1:-1, :, :]
    bend = modes[..., 2:, :, :] - 2 * now + modes[..., :-2, :, :]
    energy = now.abs().square().sum(-3)
    sine = (-(now.conj() * bend).real.sum(-3) / (4 * energy)).clamp(0, 1).sqrt()
    strong = energy > floor * energy.amax((-2, -1), keepdim=True)
    measured = torch.where(strong, 2 / dt * torch.asin(sine), math.nan)
    exact = (spread(speed) * wavenumber).expand_as(measured)
    return Dispersion(wavenumber, exact, measured)


def boundary_reflection(
    frames: Float[Tensor, "*batch t y x"],
    grid: Grid,
    dt: float,
    speed: Coefficient,
    side: Side = "right",
    distance: int = 4,
    order: Order = 2,
) -> Float[Tensor, "*batch"]:
    """Share of the outgoing wave energy that comes back from a side: 0 open, 1 a hard wall.

    On a line ``distance`` points inside the side, with n pointing outwards, u_t - c u_n holds the
    outgoing wave and u_t + c u_n the incoming one. The ratio of their squares, summed over the line
    and all frames (three or more at equal intervals), is the energy reflection coefficient. The
    frames must cover the passage out and back. The split is exact at normal incidence; waves at the
    angle a to the normal count as reflected by at least ((1 - cos a) / (1 + cos a))^2.
    """
    if side not in ("left", "right", "bottom", "top"):
        raise ValueError(f"side must be left, right, bottom or top, found {side!r}")
    if frames.shape[-3] < 3:
        raise ValueError(f"boundary_reflection needs at least 3 frames, found {frames.shape[-3]}")
    dim, derivative = (-1, ddx) if side in ("left", "right") else (-2, ddy)
    outward = 1 if side in ("right", "top") else -1
    index = frames.shape[dim] - 1 - distance if outward > 0 else distance
    u_t = (frames[..., 2:, :, :] - frames[..., :-2, :, :]).select(dim, index) / (2 * dt)
    u_n = outward * derivative(frames[..., 1:-1, :, :], grid, order).select(dim, index)
    c = spread(speed)
    incoming = (u_t + c * u_n).square().sum((-2, -1))
    outgoing = (u_t - c * u_n).square().sum((-2, -1))
    return incoming / outgoing
