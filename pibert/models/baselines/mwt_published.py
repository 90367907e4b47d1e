"""MWT as its authors published it for two dimensions, beside our variant in ``mwt.py``.

The basis, the steps between levels, T, the lift and the head are those of ``mwt.py``. The rest
differs:

    here (the authors' code)                     mwt.py
    details: the product G x G alone, k^2 of     all three products, 3 k^2 of them: the transform
    them; G x H and H x G are dropped            is orthogonal and loses nothing
    A: modes of the Fourier transform, each      A: 3x3 convolution, ReLU, pointwise map
    with its own matrix, ReLU, pointwise map
    B, C: 3x3 convolution to c k^2 channels,     the same with ``kernel_width`` channels
    ReLU, pointwise map

``published`` has the size of the authors' example for Darcy flow (k = 4, c = 4, 12 modes, 4
blocks); ``base`` has their k and c for the Navier-Stokes equations and 8 modes, with about as many
parameters as PIBERT. Ours are the initial weights of the Fourier modes, the transforms as real
matrix products, grids of any size and convolutions that wrap at periodic sides. Their batch norm of
the three-dimensional model is not part of the two-dimensional one.

Reference: Gupta, Xiao, Bogdan, Multiwavelet-based operator learning for differential equations,
NeurIPS 2021, and the code published with it.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import Grid
from pibert.models.baselines.fno2d import SpectralConvolution
from pibert.models.baselines.mwt import MWT, Multiwavelets
from pibert.models.layers import GridConv2d
from pibert.models.stepper import BaselineConfig, check_most


@dataclass(frozen=True, kw_only=True, slots=True)
class MWTPublishedConfig(BaselineConfig):
    """Sizes; the defaults are the ``base`` preset."""

    order: int = 3
    """k: polynomials of degree below k in each cell, along each axis."""
    width: int = 4
    """c: channels, each of k^2 coefficients per cell."""
    blocks: int = 4
    modes: int = 8
    """alpha: kept columns, and kept rows in each of the two blocks of a Fourier kernel."""
    head_width: int = 128
    levels: int = 0
    """Largest number of steps down; 0: until the shorter side is one cell."""

    def __post_init__(self) -> None:
        BaselineConfig.__post_init__(self)
        check_most(self, 10, "order")


PRESETS: dict[str, MWTPublishedConfig] = {
    "base": MWTPublishedConfig(),
    "published": MWTPublishedConfig(order=4, modes=12),
}


class FourierKernel(nn.Module):
    """Multiplication of the kept modes, ReLU and a pointwise map."""

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.spectral = SpectralConvolution(channels, modes)
        self.map = nn.Conv2d(channels, channels, 1)

    def forward(self, d: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        return self.map(self.spectral(d).relu())


def _kernel(channels: int, grid: Grid) -> nn.Sequential:
    """Return one of the networks B and C."""
    return nn.Sequential(
        GridConv2d(channels, channels, 3, grid), nn.ReLU(), nn.Conv2d(channels, channels, 1)
    )


class PublishedBlock(nn.Module):
    """An operator in non-standard form: A, B, C at every scale and T at the coarsest."""

    def __init__(self, config: MWTPublishedConfig, grid: Grid) -> None:
        super().__init__()
        self.width, channels = config.width, config.width * config.order**2
        self.wavelets = Multiwavelets(config.order, config.width)
        self.a = FourierKernel(channels, config.modes)
        self.b = _kernel(channels, grid)
        self.c = _kernel(channels, grid)
        self.t = nn.Conv2d(channels, channels, 1)

    def forward(self, s: Float[Tensor, "b s y x"], levels: int) -> Float[Tensor, "b s y x"]:
        answers = []
        for _ in range(levels):
            s, products = self.wavelets.down(s)
            d = products.unflatten(1, (self.width, 3, -1))[:, :, 2].flatten(1, 2)
            answers.append(((self.a(d) + self.b(s)).to(s.dtype), self.c(d).to(s.dtype)))
        s = self.t(s).to(s.dtype)
        for details, averages in reversed(answers):
            d = details.unflatten(1, (self.width, 1, -1))
            dropped = torch.zeros_like(d)
            s = self.wavelets.up(s + averages, torch.cat((dropped, dropped, d), 2).flatten(1, 3))
        return s


class MWTPublished(MWT):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x)."""

    block = PublishedBlock
