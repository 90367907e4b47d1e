"""Nonlinear terms of the governing equations as input features of a model.

A convolution forms every linear term (divergence, vorticity, Laplacian) by itself. It cannot form
products, so these are computed here, from the newest frame in physical units:

    advection  u . grad f  of every channel f, where the channels hold a velocity (u, v)
    products   f g         of every pair of channels, squares included

Each is divided by its root mean square over training samples, and is zero where its stencil touches
an unknown point. Normaliser and scales are buffers: a saved or exported model carries them.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Normalizer
from pibert.models.bias import at_resolution
from pibert.models.convolution import wrapped
from pibert.physics.derivatives import ddx, ddy


class EquationTerms(nn.Module):
    """Advection and products of the channels of a frame."""

    mean: Tensor
    std: Tensor
    scales: Tensor

    def __init__(self, spec: FieldSpec) -> None:
        super().__init__()
        self.spec = spec
        channels = len(spec.channels)
        pairs = channels * (channels + 1) // 2
        self.num_terms = pairs + (channels if spec.velocity is not None else 0)
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("std", torch.ones(channels))
        self.register_buffer("scales", torch.ones(self.num_terms))
        if spec.velocity is not None:
            # Until ``calibrate``: a gradient of one standardised unit per cell.
            self.scales[pairs:] = 1 / min(spec.grid.dx, spec.grid.dy)

    def set_normalizer(self, normalizer: Normalizer) -> None:
        """Set what one standardised unit of each channel is in physical units."""
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
        """The scaled terms of standardised frames, zero at unknown points."""
        with torch.autocast(frame.device.type, enabled=False):
            frame = frame.float() if frame.dtype in (torch.float16, torch.bfloat16) else frame
            terms, _ = self._terms(frame, known)
            return terms / self.scales.to(terms.dtype)[:, None, None]

    def _terms(self, frame: Tensor, known: Tensor | None) -> tuple[Tensor, Tensor]:
        """The terms in physical units, zero where they are not defined, and where they are."""
        mean, std = (part.to(frame.dtype)[:, None, None] for part in (self.mean, self.std))
        fields = torch.addcmul(mean, frame, std)
        # Slices, not index lists: those would be copied to the device in every call.
        pairs = [fields[:, i : i + 1] * fields[:, i:] for i in range(fields.shape[1])]
        terms = torch.cat(pairs, dim=1)
        everywhere = torch.ones_like(frame[:, :1], dtype=torch.bool)
        here = everywhere if known is None else known[:, None]
        defined = here.expand(-1, terms.shape[1], -1, -1)
        if self.spec.velocity is not None:
            u, v = (fields[:, place : place + 1] for place in self.spec.velocity)
            grid = at_resolution(self.spec.grid, (frame.shape[-2], frame.shape[-1]))
            advection = u * ddx(fields, grid) + v * ddy(fields, grid)
            inside = here if known is None else self._eroded(here)
            terms = torch.cat((terms, advection), dim=1)
            defined = torch.cat((defined, inside.expand_as(advection)), dim=1)
        return torch.where(defined, terms, 0.0), defined

    def _eroded(self, known: Bool[Tensor, "b 1 y x"]) -> Bool[Tensor, "b 1 y x"]:
        """Points whose eight neighbours are all known; beyond sides without a partner all are."""
        unknown = (~known).float()
        periodic = (self.spec.grid.periodic_y, self.spec.grid.periodic_x)
        for dim, wraps in zip((2, 3), periodic, strict=True):
            unknown = wrapped(unknown, 1, dim) if wraps else unknown
        margin = [0 if wraps else 1 for wraps in periodic]
        return F.max_pool2d(unknown, 3, stride=1, padding=(margin[0], margin[1])) == 0
