"""Terms of the governing equations that a convolution cannot form, as input channels of a model."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.models.attention import at_resolution
from pibert.models.fourier import analyse, kept_columns, kept_rows, synthesise
from pibert.models.layers import constant, count, full_precision, wrapped
from pibert.physics.derivatives import ddx, ddy

VORTICITY = "omega"
"""The channel whose vorticity gives the velocity."""


class EquationTerms(nn.Module):
    """Nonlinear terms of the governing equations as input features.

    A convolution forms every linear term by itself. It cannot form products, so these are computed
    from the newest frame in physical units:

        advection  u . grad f  of every channel f, where the channels hold a velocity (u, v)
        products   f g         of every pair of channels, squares included; not of the state of a
                               structure, which is constant in space
        velocity   (u, v)      of the vorticity ``omega`` on a periodic grid without a body, and
                               with it the advection, where the channels hold no velocity

    Each is divided by its root mean square over training samples, and is zero where its stencil
    touches an unknown point. Every point of the velocity depends on all points of the vorticity:
    a frame with an unknown one has none.

    Args:
        spec: Of the fields.
        vorticity: Derive the velocity from the vorticity where that is possible.
    """

    mean: Tensor
    std: Tensor
    scales: Tensor

    def __init__(self, spec: FieldSpec, *, vorticity: bool = False) -> None:
        super().__init__()
        self.spec, grid = spec, spec.grid
        periodic = grid.periodic_x and grid.periodic_y and grid.body is None
        derived = vorticity and spec.velocity is None and periodic and VORTICITY in spec.channels
        self._vorticity = spec.channels.index(VORTICITY) if derived else None
        self._fields = channels = len(spec.of_fields.channels)
        pairs = channels * (channels + 1) // 2
        advections = channels if derived or spec.velocity is not None else 0
        self.num_terms = pairs + advections + 2 * derived
        self.register_buffer("mean", torch.zeros(len(spec.channels)))
        self.register_buffer("std", torch.ones(len(spec.channels)))
        self.register_buffer("scales", torch.ones(self.num_terms))
        # Until ``calibrate``: a gradient of one standardised unit per cell.
        self.scales[pairs : pairs + advections] = 1 / min(grid.dx, grid.dy)

    def set_normalizer(self, normalizer: Normalizer) -> None:
        """Set the physical units of standardised values."""
        self.mean.copy_(torch.tensor(normalizer.mean))
        self.std.copy_(torch.tensor(normalizer.std))

    @torch.no_grad()
    def calibrate(self, frame: Float[Tensor, "n c y x"], known: Bool[Tensor, "n y x"]) -> None:
        """Set the scale of each term to its root mean square over standardised frames."""
        terms, defined = self._terms(frame.to(self.mean.dtype), known)
        count = defined.sum((0, 2, 3)).clamp(min=1)
        rms = (terms.double().square().sum((0, 2, 3)) / count).sqrt()
        self.scales.copy_(torch.where(rms > 0, rms, self.scales.double()))

    def forward(
        self, frame: Float[Tensor, "b c y x"], known: Bool[Tensor, "b y x"] | None
    ) -> Float[Tensor, "b k y x"]:
        """Return the scaled terms of standardised frames, zero at unknown points."""
        with torch.autocast(frame.device.type, enabled=False):
            terms, _ = self._terms(full_precision(frame), known)
            return terms / self.scales.to(terms.dtype)[:, None, None]

    def _terms(self, frame: Tensor, known: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the terms in physical units, zero where undefined, and where they are defined."""
        mean, std = (s.to(frame.dtype)[:, None, None] for s in (self.mean, self.std))
        fields = torch.addcmul(mean, frame, std)[:, : self._fields]
        # Slices, not index lists, which would be copied to the device in every call.
        pairs = [fields[:, i : i + 1] * fields[:, i:] for i in range(fields.shape[1])]
        terms = torch.cat(pairs, dim=1)
        everywhere = torch.ones_like(frame[:, :1], dtype=torch.bool)
        here = everywhere if known is None else known[:, None]
        defined = here.expand(-1, terms.shape[1], -1, -1)
        grid = at_resolution(self.spec.grid, (frame.shape[-2], frame.shape[-1]))
        derived, inside = None, here
        if self.spec.velocity is not None:
            u, v = (fields[:, index : index + 1] for index in self.spec.velocity)
            inside = here if known is None else self._eroded(here)
        elif self._vorticity is not None:
            derived = velocity_of(fields[:, self._vorticity : self._vorticity + 1], grid)
            u, v = derived[:, :1], derived[:, 1:]
            inside = here if known is None else here.flatten(1).all(1)[:, None, None, None]
        else:
            return torch.where(defined, terms, 0.0), defined
        more = u * ddx(fields, grid) + v * ddy(fields, grid)
        more = more if derived is None else torch.cat((more, derived), dim=1)
        terms = torch.cat((terms, more), dim=1)
        defined = torch.cat((defined, inside.expand_as(more)), dim=1)
        return torch.where(defined, terms, 0.0), defined

    def _eroded(self, known: Bool[Tensor, "b 1 y x"]) -> Bool[Tensor, "b 1 y x"]:
        """Return the points whose eight neighbours are known or lie beyond a side."""
        unknown = (~known).float()
        periodic = (self.spec.grid.periodic_y, self.spec.grid.periodic_x)
        for dim, wraps in zip((2, 3), periodic, strict=True):
            unknown = wrapped(unknown, 1, dim) if wraps else unknown
        margin = [0 if wraps else 1 for wraps in periodic]
        return F.max_pool2d(unknown, 3, stride=1, padding=(margin[0], margin[1])) == 0


def velocity_of(vorticity: Float[Tensor, "b 1 y x"], grid: Grid) -> Float[Tensor, "b 2 y x"]:
    """Return the velocity (u, v) of mean zero with this vorticity v_x - u_y on a periodic grid.

    It is free of divergence: u = psi_y and v = -psi_x with the stream function lap psi = -omega.
    The transforms are real matrix products, which export to ONNX.
    """
    rows, columns = (vorticity.shape[-2] + 1) // 2, vorticity.shape[-1] // 2 + 1
    re, im = analyse(vorticity, rows, columns)
    spacing = (grid.dy, grid.dx)
    factors = _velocity_factors(grid.shape, spacing, vorticity.dtype, vorticity.device)
    return synthesise(-factors * im, factors * re, rows, columns, grid.shape)


@constant
def _velocity_factors(
    shape: tuple[int, int], spacing: tuple[float, float], dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "2 r k"]:
    """Return k_y / k^2 and -k_x / k^2, zero for the mean and the highest waves."""
    (ny, nx), (dy, dx) = shape, spacing
    up, down = kept_rows((ny + 1) // 2, ny)
    rows = torch.cat((count(0, up, device=device), count(-down, 0, device=device)))[:, None]
    columns = count(0, kept_columns(nx // 2 + 1, nx), device=device)
    ky, kx = 2 * torch.pi / (ny * dy) * rows, 2 * torch.pi / (nx * dx) * columns
    squared = (kx.square() + ky.square()).clamp(min=1e-300)
    # The highest wave of an even axis has a derivative that is zero at all points.
    kept = (-2 * rows != ny) & (2 * columns != nx)
    factors = torch.stack((ky.expand_as(squared), -kx.expand_as(squared))) / squared
    return torch.where(kept, factors, 0.0).to(dtype)
