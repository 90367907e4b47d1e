"""MWT: an operator learned in a basis of Legendre multiwavelets, scale by scale.

Basis: on the unit interval phi_i(x) = sqrt(2 i + 1) P_i(2 x - 1), i < k, are orthonormal
polynomials; shifted and scaled to the cells of level n they span V_n. Alpert's multiwavelets
psi_i (SIAM J. Math. Anal. 24, 1993) span the rest of V_{n+1}. Coefficients pass between levels by

    s^n_l = H0 s^{n+1}_2l + H1 s^{n+1}_{2l+1},      d^n_l = G0 s^{n+1}_2l + G1 s^{n+1}_{2l+1}
    s^{n+1}_2l = H0^T s^n_l + G0^T d^n_l,           s^{n+1}_{2l+1} = H1^T s^n_l + G1^T d^n_l

with the orthogonal matrix [[H0, H1], [G0, G1]]. In two dimensions the basis is the product of both
axes: k^2 averages s and 3 k^2 details d per cell. A step down is one 2x2 convolution of stride 2
with fixed orthogonal weights, a step up its transpose.

Operator: a block applies a kernel in its non-standard form, with networks A, B and C that are
shared by all scales, and a linear map T at the coarsest one:

    U_d^n = A d^n + B s^n,     U_s^n = C d^n,     U_s^0 = T s^0

and sums the scales on the way up; ReLU stands between blocks. Reference: Gupta, Xiao, Bogdan,
Multiwavelet-based operator learning for differential equations, NeurIPS 2021, which leaves A, B and
C open.

    ``mwt``, our variant                         ``mwt-published``, the authors' code in 2-D
    details: all three products, 3 k^2: the      the product G x G alone, k^2 of them; G x H and
    transform is orthogonal and loses nothing    H x G are dropped
    A: 3x3 convolution, ReLU, pointwise map      modes of the Fourier transform, each with its own
                                                 matrix, ReLU, pointwise map
    B, C: the same, ``kernel_width`` channels    the same, c k^2 channels between
    weights start as PyTorch's layers do         the matrices of the modes, T and the head start
                                                 normal by Xavier's rule

Grids are extended to multiples of 2^levels by repetition; convolutions wrap at periodic sides.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid
from pibert.models.baselines.fno2d import SpectralConvolution
from pibert.models.layers import (
    Answer,
    Fields,
    GridConv2d,
    Parameters,
    constant,
    padded_to_multiple,
)
from pibert.models.stepper import BaselineConfig, Stepper, check_most, zero

Rows = tuple[tuple[float, ...], ...]
"""A matrix as plain numbers: a hashable key of cached constants."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MultiwaveletConfig(BaselineConfig):
    """Sizes of both variants."""

    order: int = 3
    """k: polynomials of degree below k in each cell, along each axis."""
    width: int = 4
    """c: channels, each of k^2 coefficients per cell."""
    blocks: int = 4
    head_width: int = 128
    levels: int = 0
    """Largest number of steps down; 0: until the shorter side is one cell."""

    def __post_init__(self) -> None:
        BaselineConfig.__post_init__(self)
        check_most(self, 10, "order")


@dataclass(frozen=True, kw_only=True, slots=True)
class MWTConfig(MultiwaveletConfig):
    """Sizes; the defaults are the ``base`` preset."""

    kernel_width: int = 152
    """Channels between the two layers of A, B and C."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MWTPublishedConfig(MultiwaveletConfig):
    """Sizes; the defaults are the ``base`` preset."""

    modes: int = 8
    """alpha: kept columns, and kept rows in each of the two blocks of a Fourier kernel."""


PRESETS: dict[str, MWTConfig] = {
    "base": MWTConfig(),
    "small": MWTConfig(width=2, kernel_width=64, head_width=64),
}
PUBLISHED_PRESETS: dict[str, MWTPublishedConfig] = {
    # The authors' k and c for the Navier-Stokes equations, about as many parameters as PIBERT.
    "base": MWTPublishedConfig(),
    # The authors' example for Darcy flow.
    "published": MWTPublishedConfig(order=4, modes=12),
}


def legendre(order: int, x: np.ndarray) -> np.ndarray:
    """Return phi_0 to phi_{order - 1} at points of the unit interval, a row each."""
    values = np.polynomial.legendre.legvander(2 * x - 1, order - 1).T
    return values * np.sqrt(2 * np.arange(order) + 1)[:, None]


def filter_matrix(order: int) -> np.ndarray:
    """Return the orthogonal matrix [[H0, H1], [G0, G1]], 2k x 2k, in float64."""
    # With 2k points the quadrature is exact for products of polynomials of degree below 2k.
    nodes, weights = np.polynomial.legendre.leggauss(2 * order)
    nodes, weights = (nodes + 1) / 2, weights / 2
    basis = legendre(order, nodes) * weights
    halves = [legendre(2 * order, (nodes + side) / 2) @ basis.T for side in (0, 1)]
    moments = np.concatenate(halves, axis=1) / np.sqrt(2)
    # Row p: the polynomial of degree p in V_1. Orthonormalised in order, the first k span V_0 and
    # each next one is orthogonal to one more degree: Alpert's wavelets.
    q, r = np.linalg.qr(moments.T)
    return (q * np.sign(np.diag(r))).T


def filter_bank(order: int) -> Float[Tensor, "p q 2 2"]:
    """Return the step down in two dimensions as a convolution weight, averages first, float64."""
    k = order
    matrix = filter_matrix(k).reshape(2, k, 2, k)  # band, i, side, j
    both = np.einsum("aisj,bmtn->abimjnst", matrix, matrix)
    return torch.from_numpy(both.reshape(4 * k * k, k * k, 2, 2))


@constant
def _bank(rows: Rows, order: int, copies: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the filter bank for several channels."""
    bank = torch.tensor(rows, dtype=torch.float64, device=device).to(dtype)
    return bank.view(4 * order**2, order**2, 2, 2).repeat(copies, 1, 1, 1)


class Multiwavelets(nn.Module):
    """The transform between neighbouring levels, for c channels of k^2 coefficients."""

    def __init__(self, order: int, channels: int) -> None:
        super().__init__()
        self.order, self.channels = order, channels
        # Not a buffer, which would be rounded to the model's precision.
        self._rows: Rows = tuple(map(tuple, filter_bank(order).flatten(1).tolist()))

    def down(
        self, s: Float[Tensor, "b s y x"]
    ) -> tuple[Float[Tensor, "b s v w"], Float[Tensor, "b d v w"]]:
        """Return averages and details of the next coarser level."""
        b, _, ny, nx = s.shape
        with torch.autocast(s.device.type, enabled=False):
            both = F.conv2d(s, self._weight(s), stride=2, groups=self.channels)
        bands = both.view(b, self.channels, 4 * self.order**2, ny // 2, nx // 2)
        averages, details = bands.split((self.order**2, 3 * self.order**2), dim=2)
        return averages.flatten(1, 2), details.flatten(1, 2)

    def up(
        self, s: Float[Tensor, "b s v w"], d: Float[Tensor, "b d v w"]
    ) -> Float[Tensor, "b s y x"]:
        """Return the averages of the next finer level."""
        bands = [band.unflatten(1, (self.channels, -1)) for band in (s, d)]
        both = torch.cat(bands, dim=2).flatten(1, 2)
        with torch.autocast(s.device.type, enabled=False):
            return F.conv_transpose2d(both, self._weight(both), stride=2, groups=self.channels)

    def _weight(self, like: Tensor) -> Tensor:
        return _bank(self._rows, self.order, self.channels, like.dtype, like.device)


def _kernel(num_in: int, hidden: int, num_out: int, grid: Grid) -> nn.Sequential:
    """Return a 3x3 convolution, ReLU and a pointwise map."""
    return nn.Sequential(
        GridConv2d(num_in, hidden, 3, grid), nn.ReLU(), nn.Conv2d(hidden, num_out, 1)
    )


class Block(nn.Module):
    """An operator in non-standard form: A, B, C at every scale and T at the coarsest."""

    def __init__(self, config: Any, grid: Grid) -> None:
        super().__init__()
        self.width, averages = config.width, config.width * config.order**2
        self.wavelets = Multiwavelets(config.order, config.width)
        self.a, self.b, self.c = self.kernels(config, averages, grid)
        self.t = nn.Conv2d(averages, averages, 1)

    def kernels(
        self, config: Any, averages: int, grid: Grid
    ) -> tuple[nn.Module, nn.Module, nn.Module]:
        """Return A, B and C."""
        details, hidden = 3 * averages, config.kernel_width
        return (
            _kernel(details, hidden, details, grid),
            _kernel(averages, hidden, details, grid),
            _kernel(details, hidden, averages, grid),
        )

    def down(self, s: Tensor) -> tuple[Tensor, Tensor]:
        return self.wavelets.down(s)

    def up(self, s: Tensor, d: Tensor) -> Tensor:
        return self.wavelets.up(s, d)

    def forward(self, s: Float[Tensor, "b s y x"], levels: int) -> Float[Tensor, "b s y x"]:
        answers = []
        for _ in range(levels):
            s, d = self.down(s)
            # Sums over scales stay in the precision of the transform under autocast.
            answers.append(((self.a(d) + self.b(s)).to(s.dtype), self.c(d).to(s.dtype)))
        s = self.t(s).to(s.dtype)
        for details, averages in reversed(answers):
            s = self.up(s + averages, details)
        return s


class FourierKernel(nn.Module):
    """Multiplication of the kept modes, ReLU and a pointwise map."""

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.spectral = SpectralConvolution(channels, modes)
        # Xavier's rule for a complex kernel of channels x channels x modes x modes.
        nn.init.normal_(self.spectral.weight, std=(2 * channels) ** -0.5 / modes)
        self.map = nn.Conv2d(channels, channels, 1)

    def forward(self, d: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        return self.map(self.spectral(d).relu())


class PublishedBlock(Block):
    """The block of the authors' code: only the products of wavelets along both axes."""

    def kernels(
        self, config: Any, averages: int, grid: Grid
    ) -> tuple[nn.Module, nn.Module, nn.Module]:
        return (
            FourierKernel(averages, config.modes),
            _kernel(averages, averages, averages, grid),
            _kernel(averages, averages, averages, grid),
        )

    def down(self, s: Tensor) -> tuple[Tensor, Tensor]:
        s, products = self.wavelets.down(s)
        return s, products.unflatten(1, (self.width, 3, -1))[:, :, 2].flatten(1, 2)

    def up(self, s: Tensor, d: Tensor) -> Tensor:
        d = d.unflatten(1, (self.width, 1, -1))
        dropped = torch.zeros_like(d)
        return self.wavelets.up(s, torch.cat((dropped, dropped, d), 2).flatten(1, 3))


class MWT(Stepper):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x)."""

    block: ClassVar[type[nn.Module]] = Block

    def __init__(self, config: Any, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        width = config.width * config.order**2
        self.lift = nn.Conv2d(
            self.num_inputs + self.num_coordinates + self.num_parameters, width, 1
        )
        self.blocks = nn.ModuleList(self.block(config, spec.grid) for _ in range(config.blocks))
        self.head = nn.Sequential(
            nn.Conv2d(width, config.head_width, 1),
            nn.ReLU(),
            nn.Conv2d(config.head_width, self.out_channels, 1),
        )
        if config.residual:
            zero(self.head[-1])

    def levels(self, ny: int, nx: int) -> int:
        """Return the number of steps down on a grid."""
        possible = max(1, (min(ny, nx) - 1).bit_length())
        return min(possible, self.config.levels or possible)

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        ny, nx = x.shape[-2:]
        levels = self.levels(ny, nx)
        inputs = self.with_parameters(self.with_coordinates(x), parameters)
        s = self.lift(padded_to_multiple(inputs, 2**levels)).to(x.dtype)
        for number, block in enumerate(self.blocks):
            s = block(s if number == 0 else s.relu(), levels)
        return self.head(s[..., :ny, :nx]).contiguous()


class MWTPublished(MWT):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x)."""

    block = PublishedBlock

    def __init__(self, config: MWTPublishedConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        coarsest: list[Any] = [block.t for block in self.blocks]
        for layer in (*coarsest, self.head[0], self.head[-1]):
            nn.init.xavier_normal_(layer.weight)
        if config.residual:
            zero(self.head[-1])
