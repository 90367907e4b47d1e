"""The wavelet branch: undecimated band-pass filters that conserve the energy exactly.

One angle field theta on the frequency circle gives a low-pass g0 = cos(theta) and a high-pass
g1 = sin(theta); their separable products are the four filters LL, LH, HL, HH (first letter: x).
Because g0^2 + g1^2 = 1 at every frequency the wavelets form a Parseval (tight) frame: the energies
of the sub-bands add up to the field's, and filtering once more with each and summing gives it back.

Level j of J splits the LL band of the level before with the angles at 2^j omega (no decimation),
so a field becomes 3 J + 1 sub-bands. Everything is separable and real: a sub-band is two products
with symmetric circulant matrices.

The angle is fixed, or trained as theta = pi/2 sin^2(omega/2 + sum_k a_k sin(k omega)): even, smooth
and periodic, in [0, pi/2] for any a, zero at the mean and pi/2 at Nyquist; a = 0 is the fixed one.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.models.fourier import orthonormal_columns
from pibert.models.layers import constant, count, full_precision

Wavelet = Literal["fixed", "trained"]
NUM_HARMONICS = 4


@constant
def _waves(n: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "n n"]:
    """Return cos(2 pi k m / n) / n, which maps an even response to circulant entries."""
    k = count(0, n, device=device)
    return (turn(k[:, None] * k, n).cos() / n).to(dtype)


def turn(waves: Tensor, n: int) -> Tensor:
    """Return 2 pi waves / n modulo 2 pi: exact to round-off, so the windows are exactly even."""
    return waves.remainder(n) * (2 * torch.pi / n)


@constant
def _offsets(n: int, device: torch.device) -> Tensor:
    points = torch.arange(n, device=device)
    return (points[:, None] - points) % n


class WaveletTransform(nn.Module):
    """Analysis into 3 J + 1 sub-bands; its adjoint is its inverse."""

    def __init__(self, levels: int = 1, kind: Wavelet = "fixed") -> None:
        super().__init__()
        self.levels = levels
        self.harmonics: nn.Parameter | None = None
        """The a_k of the angle field, per level."""
        if kind == "trained":
            self.harmonics = nn.Parameter(torch.zeros(levels, NUM_HARMONICS))

    @property
    def num_bands(self) -> int:
        return 3 * self.levels + 1

    def windows(self, n: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "j 2 n"]:
        """Return g0 and g1 of each level at the n frequencies of a grid line."""
        levels = 2.0 ** count(0, self.levels, device=device)
        waves = levels[:, None] * count(0, n, device=device)  # (j, n)
        half = turn(waves, n).to(dtype) / 2
        if self.harmonics is not None:
            orders = count(1, NUM_HARMONICS + 1, device=device)
            sines = turn(waves[..., None] * orders, n).to(dtype).sin()
            half = half + torch.einsum("jnk,jk->jn", sines, self.harmonics.to(dtype))
        theta = (torch.pi / 2) * half.sin().square()
        return torch.stack((theta.cos(), theta.sin()), dim=1)

    def _filters(self, n: int, like: Tensor) -> Float[Tensor, "j 2 n n"]:
        """Return the circulant matrices of each level, earlier low-passes included."""
        windows = self.windows(n, like.dtype, like.device)
        smooth = torch.ones_like(windows[0, 0])
        cascade = []
        for low, high in windows.unbind(0):
            cascade.append(torch.stack((smooth * low, smooth * high)))
            smooth = smooth * low
        taps = torch.stack(cascade) @ _waves(n, like.dtype, like.device)  # (j, 2, n)
        return taps[..., _offsets(n, like.device)]

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b s y x"]:
        """Return LH, HL, HH of each level, finest first, then LL; C channels each."""
        filters_y, filters_x = self._filters(x.shape[-2], x), self._filters(x.shape[-1], x)
        bands = []
        for (low_y, high_y), (low_x, high_x) in zip(filters_y, filters_x, strict=True):
            smooth, rough = x @ low_x, x @ high_x  # symmetric matrices
            bands += [high_y @ smooth, low_y @ rough, high_y @ rough]
        return torch.cat([*bands, low_y @ smooth], dim=1)


class WaveletBranch(nn.Module):
    """Wavelet transform, then a 1x1 mixing of its sub-bands to D features."""

    def __init__(
        self,
        in_channels: int,
        width: int,
        *,
        levels: int = 1,
        kind: Wavelet = "fixed",
        unitary: bool = False,
    ) -> None:
        super().__init__()
        self.transform = WaveletTransform(levels, kind)
        self.unitary = unitary
        num_inputs = self.transform.num_bands * in_channels
        if unitary and width < num_inputs:
            raise ValueError(
                f"orthonormal mixing of {num_inputs} sub-band channels needs width >= "
                f"{num_inputs}, found {width}"
            )
        self.mix = nn.Conv2d(num_inputs, width, 1)
        # Columns of unit length on average, as in the Fourier branch.
        nn.init.normal_(self.mix.weight, std=width**-0.5)
        assert self.mix.bias is not None
        nn.init.zeros_(self.mix.bias)

    def mixing(self) -> Float[Tensor, "d s"]:
        """Return the effective matrix, with orthonormal columns in the unitary mode."""
        weight = self.mix.weight[:, :, 0, 0]
        if not self.unitary:
            return weight
        columns = weight.mT  # (s, d)
        padded = torch.stack((columns, torch.zeros_like(columns)), dim=-1)
        return orthonormal_columns(padded)[..., 0].mT

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d y x"]:
        with torch.autocast(x.device.type, enabled=False):
            x = full_precision(x)
            bands = self.transform(x)
            mixed = torch.einsum("bsyx,ds->bdyx", bands, self.mixing().to(x.dtype))
            assert self.mix.bias is not None
            return mixed + self.mix.bias.to(x.dtype)[:, None, None]
