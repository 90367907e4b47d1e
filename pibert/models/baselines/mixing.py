"""Frequency-guided Fourier mixing: a token lattice mixed per wave, waves weighted by frequency.

    X = FFT(norm(x));  H = relu(w_1 W_1 X + b_1);  Y = shrink(w_2 W_2 H + b_2);  x + FFT^-1(Y)

and then an MLP with a skip. W_1 and W_2 are complex matrices, block-diagonal over the channels and
the same for every wave; relu and soft shrinkage act on real and imaginary parts. What lets the
layer treat frequencies differently is the weight of each map, with a learned gamma_i:

    "magnitude"    w_i = 1 + gamma_i |X|    of the channel and wave itself, as in the published code
    "wavenumber"   w_i = 1 + gamma_i |k|    another reading: |k| = 1 at the Nyquist limit of an axis

gamma starts at zero. Transforms are orthonormal and run in single precision under autocast. They
are evaluated by ``fft``, or by ``dft``: real matrix products, which export to ONNX.

Reference: Wang, Pan, Wu, Zhang, Wu, "FourierFlow", arXiv 2506.00862; Guibas et al., "Adaptive
Fourier neural operators", arXiv 2111.13587.
"""

import math
from collections.abc import Callable
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float
from torch import Tensor, nn

from pibert.models.baselines.salient import make_mlp
from pibert.models.constant import constant, count
from pibert.models.fourier import Evaluation, analyse, synthesise

FreqWeight = Literal["magnitude", "wavenumber"]

_SHRINK = 0.01


class BlockLinear(nn.Module):
    """A complex matrix, block-diagonal over the channels; the numbers are stored as real pairs."""

    spectral_weights = ("weight",)

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        if width % blocks:
            raise ValueError(f"width must be a multiple of blocks, found {width} and {blocks}")
        size = width // blocks
        self.weight = nn.Parameter(torch.randn(blocks, size, size, 2) * (2 * size) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(blocks, size, 2))

    def forward(
        self, x: Complex[Tensor, "b ky kx d"], scale: Tensor
    ) -> Complex[Tensor, "b ky kx d"]:
        """The product times a scale that broadcasts to it, plus the bias."""
        weight, bias = torch.view_as_complex(self.weight), torch.view_as_complex(self.bias)
        parts = x.unflatten(-1, weight.shape[:2])
        product = torch.einsum("...gi,gio->...go", parts, weight).flatten(-2)
        return product * scale + bias.flatten()

    def paired(self, re: Tensor, im: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """The same of real and imaginary part, each (b, ky, kx, d)."""
        w_re, w_im = self.weight.unbind(-1)
        bias_re, bias_im = self.bias.flatten(0, 1).unbind(-1)

        def product(x: Tensor, weight: Tensor) -> Tensor:
            parts = x.unflatten(-1, weight.shape[:2])
            return torch.einsum("byxgi,gio->byxgo", parts, weight).flatten(-2)

        return (
            (product(re, w_re) - product(im, w_im)) * scale + bias_re,
            (product(re, w_im) + product(im, w_re)) * scale + bias_im,
        )


class FourierMixing(nn.Module):
    """One block: mixing of waves with a skip, then an MLP with a skip."""

    def __init__(
        self,
        width: int,
        blocks: int,
        mlp_ratio: int = 4,
        freq_weight: FreqWeight = "magnitude",
    ) -> None:
        super().__init__()
        self.freq_weight = freq_weight
        self.evaluation: Evaluation = "fft"
        self.norm = nn.LayerNorm(width)
        self.maps = nn.ModuleList(BlockLinear(width, blocks) for _ in range(2))
        self.gain = nn.Parameter(torch.zeros(2))
        """gamma of each map."""
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = make_mlp(width, mlp_ratio)

    def forward(self, x: Float[Tensor, "b n d"], shape: tuple[int, int]) -> Float[Tensor, "b n d"]:
        x = x + self.mix(self.norm(x), shape)
        return x + self.mlp(self.norm_mlp(x))

    def mix(self, x: Float[Tensor, "b n d"], shape: tuple[int, int]) -> Float[Tensor, "b n d"]:
        """What the waves make of tokens on a lattice of a shape."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
            if self.evaluation == "dft":
                return self._mix_by_products(x, shape)
            spectrum = torch.fft.rfft2(x.unflatten(1, shape), dim=(1, 2), norm="ortho")
            frequency = self._frequency(spectrum.abs, shape, x)
            hidden = self.maps[0](spectrum, 1 + self.gain[0] * frequency)
            hidden = torch.view_as_complex(F.relu(torch.view_as_real(hidden)))
            mixed = self.maps[1](hidden, 1 + self.gain[1] * frequency)
            mixed = torch.view_as_complex(F.softshrink(torch.view_as_real(mixed), _SHRINK))
            field = torch.fft.irfft2(mixed, s=shape, dim=(1, 2), norm="ortho")
        return field.flatten(1, 2)

    def _mix_by_products(self, x: Tensor, shape: tuple[int, int]) -> Tensor:
        whole, every = math.sqrt(math.prod(shape)), 2 * max(shape)  # as many modes as there are
        parts = analyse(x.mT.unflatten(-1, shape), every)  # (b, d, ky, kx)
        re, im = (part.permute(0, 2, 3, 1) / whole for part in parts)
        frequency = self._frequency((re.square() + im.square()).sqrt, shape, x)
        first, second = (cast(BlockLinear, part).paired for part in self.maps)
        re, im = (F.relu(part) for part in first(re, im, 1 + self.gain[0] * frequency))
        parts = second(re, im, 1 + self.gain[1] * frequency)
        re, im = (F.softshrink(part, _SHRINK).permute(0, 3, 1, 2) for part in parts)
        return (synthesise(re, im, every, shape) * whole).flatten(2).mT

    def _frequency(
        self, magnitude: Callable[[], Tensor], shape: tuple[int, int], x: Tensor
    ) -> Tensor:
        if self.freq_weight == "magnitude":
            return magnitude()
        return wavenumbers(*shape, device=x.device, dtype=x.dtype)


@constant
def wavenumbers(ny: int, nx: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """|k| of the waves of a real lattice, (y, x / 2 + 1, 1); 1 at the Nyquist limit of an axis."""
    rows = count(0, ny, device=device)
    ky = torch.minimum(rows, ny - rows) / ny
    kx = count(0, nx // 2 + 1, device=device) / nx
    return (2 * torch.hypot(ky[:, None], kx))[..., None].to(dtype)
