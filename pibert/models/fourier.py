"""The Fourier branch: a separate channel mixing for every kept mode of the half-plane.

With X = rfft2(x) the branch returns irfft2(W(k) X(k)) on the kept modes and drops the others.
Kept are the rows k_y = -M ... M-1 and the columns k_x = 0 ... M//2, in cycles per domain, so the
same weights serve every resolution; modes that a coarser grid does not have are dropped.

For a real field only half of the bins on a self-mirrored column (k_x = 0, and k_x = W/2 for even
W) are free: there W(-k) = conj W(k), the mean and the Nyquist bins are real, and the row -M, whose
partner +M is not kept, is dropped. The redundant weights stay stored (the published parameter
count includes them) but have no effect.

The transforms are truncated and evaluated as real matrix products, which compile to one graph and
export to ONNX.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.models.layers import constant, count, full_precision


def kept_rows(modes: int, ny: int) -> tuple[int, int]:
    """Return the numbers of kept rows k_y >= 0 and k_y < 0 on a grid with ny rows."""
    return min(modes, (ny + 1) // 2), min(modes, ny // 2)


def kept_columns(columns: int, nx: int) -> int:
    """Return the number of kept columns k_x >= 0 on a grid with nx columns."""
    return min(columns, nx // 2 + 1)


@constant
def row_phases(
    modes: int, ny: int, stride: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "2 p r"]:
    """Return cosine and sine of 2 pi k_y y / ny at every stride-th point, for the kept rows."""
    up, down = kept_rows(modes, ny)
    rows = torch.cat((count(0, up, device=device), count(-down, 0, device=device)))
    return _phases(rows, count(0, ny, stride, device=device), ny).to(dtype)


@constant
def column_phases(
    columns: int, nx: int, stride: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "2 p k"]:
    """Return cosine and sine of 2 pi k_x x / nx at every stride-th point, for the kept columns."""
    waves = count(0, kept_columns(columns, nx), device=device)
    return _phases(waves, count(0, nx, stride, device=device), nx).to(dtype)


def _phases(waves: Tensor, points: Tensor, n: int) -> Tensor:
    # Whole turns are removed before the angle is formed: it is exact to round-off.
    angle = (points[:, None] * waves).remainder(n) * (2 * torch.pi / n)
    return torch.stack((angle.cos(), angle.sin()))


@constant
def mirror_factors(
    columns: int, nx: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, " k"]:
    """Return 2 for columns whose mirror image is not stored, 1 for the self-mirrored ones."""
    waves = count(0, kept_columns(columns, nx), device=device)
    return torch.where((waves == 0) | (2 * waves == nx), 1.0, 2.0).to(dtype)


def analyse(
    x: Float[Tensor, "b c y x"], modes: int, columns: int
) -> tuple[Float[Tensor, "b c r k"], Float[Tensor, "b c r k"]]:
    """Return real and imaginary part of the kept bins of rfft2(x)."""
    ny, nx = x.shape[-2:]
    cos_x, sin_x = column_phases(columns, nx, 1, x.dtype, x.device)
    cos_y, sin_y = row_phases(modes, ny, 1, x.dtype, x.device)
    across = x @ torch.cat((cos_x, -sin_x), dim=-1)  # (b, c, y, 2k)
    along = torch.cat((cos_y, sin_y), dim=-1).mT @ across  # (b, c, 2r, 2k)
    by_cos, by_sin = along.split(cos_y.shape[-1], dim=-2)
    cos_re, cos_im = by_cos.split(cos_x.shape[-1], dim=-1)
    sin_re, sin_im = by_sin.split(cos_x.shape[-1], dim=-1)
    return cos_re + sin_im, cos_im - sin_re


def synthesise(
    re: Float[Tensor, "b d r k"],
    im: Float[Tensor, "b d r k"],
    modes: int,
    columns: int,
    shape: tuple[int, int],
) -> Float[Tensor, "b d y x"]:
    """Return the real field whose kept bins are re + i im: irfft2 with zeros for the others."""
    ny, nx = shape
    cos_y, sin_y = row_phases(modes, ny, 1, re.dtype, re.device)
    cos_x, sin_x = column_phases(columns, nx, 1, re.dtype, re.device)
    factors = mirror_factors(columns, nx, re.dtype, re.device) / (ny * nx)
    rows = torch.cat((cos_y, sin_y), dim=-1)  # (y, 2r)
    along_re = rows @ torch.cat((re, -im), dim=-2)  # (b, d, y, k)
    along_im = rows @ torch.cat((im, re), dim=-2)
    across = torch.cat((cos_x * factors, -sin_x * factors), dim=-1)
    return torch.cat((along_re, along_im), dim=-1) @ across.mT


def multiply_modes(
    re: Float[Tensor, "b c r k"], im: Float[Tensor, "b c r k"], weight: Float[Tensor, "r k c d 2"]
) -> tuple[Float[Tensor, "b d r k"], Float[Tensor, "b d r k"]]:
    """Multiply every bin by its complex matrix, as one real product."""
    w_re, w_im = weight.unbind(-1)
    from_re, from_im = torch.stack((w_re, w_im), dim=3), torch.stack((-w_im, w_re), dim=3)
    matrices = torch.stack((from_re, from_im), dim=3)  # (r, k, c, 2, 2, d)
    bins = torch.stack((re, im), dim=2)
    y_re, y_im = torch.einsum("bcprk,rkcpqd->bdqrk", bins, matrices).unbind(2)
    return y_re, y_im


class FourierBranch(nn.Module):
    """Per-frequency mixing of C input channels to D features, in real storage (..., 2)."""

    spectral_weights = ("positive", "negative")
    """Weights (..., in, out, re and im), a complex matrix for each mode."""

    def __init__(
        self,
        in_channels: int,
        width: int,
        modes: int,
        shape: tuple[int, int],
        *,
        unitary: bool = False,
    ) -> None:
        super().__init__()
        ny, nx = shape
        if modes < 1 or modes > ny // 2 or modes // 2 > nx // 2:
            most = min(ny // 2, nx // 2 * 2 + 1)
            raise ValueError(
                f"a {ny} x {nx} grid supports 1 to {most} modes (rows to its Nyquist wavenumber "
                f"{ny // 2}, half as many columns up to {nx // 2}), found {modes}; set "
                f"fourier_modes={most} or fewer (in a configuration: model.options.fourier_modes)"
            )
        if unitary and width < in_channels:
            raise ValueError(
                f"column-unitary mixing needs width >= channels, found {width} < {in_channels}"
            )
        self.modes, self.columns, self.unitary = modes, modes // 2 + 1, unitary
        size = (modes, self.columns, in_channels, width, 2)
        # Columns of unit length on average: the branch starts near an isometry.
        scale = (2 * width) ** -0.5
        self.positive = nn.Parameter(nn.init.normal_(torch.empty(size), std=scale))
        """Weights of the rows k_y = 0 ... M-1."""
        self.negative = nn.Parameter(nn.init.normal_(torch.empty(size), std=scale))
        """Weights of the rows k_y = -M ... -1."""

    def weights(self, shape: tuple[int, int]) -> Float[Tensor, "r k c d 2"]:
        """Return the effective W(k) on a grid: rows 0 ... M-1, -M ... -1, ties applied."""
        ny, nx = shape
        up, down = kept_rows(self.modes, ny)
        columns = kept_columns(self.columns, nx)
        weight = torch.cat((self.positive[:up], self.negative[self.modes - down :]))[:, :columns]
        has_nyquist = nx % 2 == 0 and columns == nx // 2 + 1
        last = columns - 1 if has_nyquist else columns
        pieces = [self._tie(weight[:, 0], up, ny)[:, None], weight[:, 1:last]]
        if has_nyquist:
            pieces.append(self._tie(weight[:, -1], up, ny)[:, None])
        weight = torch.cat(pieces, dim=1)
        if self.unitary:
            weight = orthonormal_columns(weight)
        if up == down and 2 * down != ny:  # row -M has no partner +M on self-mirrored columns
            row = count(0, up + down, device=weight.device)[:, None]
            column = count(0, columns, device=weight.device)
            dropped = (row == up) & ((column == 0) | (2 * column == nx))
            weight = torch.where(dropped[:, :, None, None, None], 0.0, weight)
        return weight

    @staticmethod
    def _tie(column: Float[Tensor, "r c d 2"], up: int, ny: int) -> Float[Tensor, "r c d 2"]:
        """Apply W(-k) = conj W(k), with real mean and Nyquist bins, to a self-mirrored column."""
        imaginary = count(0, 2, device=column.device).to(column.dtype)  # (0, 1)
        real, conjugate = 1 - imaginary, 1 - 2 * imaginary
        down = column.shape[0] - up
        pieces = [column[:1] * real, column[1:up]]
        if up == down:  # the row -M, or the Nyquist row, has no partner
            alone = column[up : up + 1]
            pieces.append(alone * real if 2 * down == ny else alone)
        mirrored = (column[1 : min(up, down + 1)] * conjugate).flip(0)
        return torch.cat([*pieces, mirrored])

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d y x"]:
        shape = (x.shape[-2], x.shape[-1])
        # Spectral sums stay in full precision under autocast.
        with torch.autocast(x.device.type, enabled=False):
            x = full_precision(x)
            re, im = analyse(x, self.modes, self.columns)
            re, im = multiply_modes(re, im, self.weights(shape).to(x.dtype))
            return synthesise(re, im, self.modes, self.columns, shape)


def orthonormal_columns(weight: Float[Tensor, "*batch c d 2"]) -> Float[Tensor, "*batch c d 2"]:
    """Orthonormalise the c complex vectors of length d >= c (last axis: real, imaginary).

    Gram-Schmidt, each vector projected twice against the ones before it: the second pass restores
    the orthogonality of nearly dependent columns to round-off. The result spans the same space and
    is a smooth function of the weight, so gradients flow through it.
    """
    columns: list[Tensor] = []
    for column in weight.unbind(-3):  # (*batch, d, 2)
        for _ in range(2 if columns else 0):
            basis = torch.stack(columns, dim=-3)  # (*batch, j, d, 2)
            rotated = torch.stack((-basis[..., 1], basis[..., 0]), dim=-1)  # i times the basis
            re = torch.einsum("...jdz,...dz->...j", basis, column)
            im = torch.einsum("...jdz,...dz->...j", rotated, column)
            column = column - torch.einsum("...j,...jdz->...dz", re, basis)
            column = column - torch.einsum("...j,...jdz->...dz", im, rotated)
        columns.append(column / column.square().sum((-2, -1), keepdim=True).sqrt())
    return torch.stack(columns, dim=-3)


@constant
def low_waves(
    modes: int, ny: int, nx: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "n m"]:
    """Return orthonormal cosines, then sines, of all waves up to ``modes`` cycles per domain.

    Points run row by row. Of k and -k only one is included: k_x > 0, or k_x = 0 and k_y >= 0.
    Columns are zero for waves that the grid does not resolve.
    """
    rows, columns = count(-modes, modes + 1, device=device), count(0, modes + 1, device=device)
    # Column by column; the first ``modes`` entries have k_x = 0 and k_y < 0.
    ky = rows.repeat(modes + 1)[modes:, None]
    kx = columns.repeat_interleave(2 * modes + 1)[modes:, None]
    y, x = count(0, ny, device=device).repeat_interleave(nx), count(0, nx, device=device).repeat(ny)
    angle = 2 * torch.pi * ((ky * y).remainder(ny) / ny + (kx * x).remainder(nx) / nx)
    resolved = (2 * ky.abs() < ny) & (2 * kx < nx)
    length = ((2.0 - ((ky == 0) & (kx == 0)).double()) / (ny * nx)).sqrt()
    waves = torch.stack((angle.cos(), angle.sin())) * (resolved * length)
    return waves.flatten(0, 1).mT.to(dtype).contiguous()


def as_real(weight: Float[Tensor, "*k c d 2"]) -> Float[Tensor, "*k r s"]:
    """Return complex matrices, stored (..., in, out, 2), as real ones: [[Re, -Im], [Im, Re]]."""
    re, im = weight.unbind(-1)
    return torch.cat((torch.cat((re, -im), -1), torch.cat((im, re), -1)), -2)


class FourierMultiplier(nn.Module):
    """A complex channel mixing for every low wavenumber; other waves are dropped.

    Both transforms are one matrix product, which is fastest up to about a thousand points.
    """

    spectral_weights = ("weight",)

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.number = modes + 1 + modes * (2 * modes + 1)
        # Columns of unit length on average: it starts near an isometry of the kept waves.
        scale = (2 * width) ** -0.5
        self.weight = nn.Parameter(torch.empty(self.number, width, width, 2))
        nn.init.normal_(self.weight, std=scale)

    def forward(
        self, x: Float[Tensor, "b n c"], lattice: tuple[int, int]
    ) -> Float[Tensor, "b n c"]:
        """Filter the points of a lattice, given row by row."""
        waves = low_waves(self.modes, *lattice, x.dtype, x.device)
        amplitudes = (waves.mT @ x).unflatten(1, (2, self.number))  # (b, 2, k, c)
        mixing = as_real(self.weight.to(x.dtype))
        mixed = amplitudes.permute(2, 0, 1, 3).flatten(2) @ mixing  # (k, b, 2c)
        mixed = mixed.unflatten(-1, (2, -1)).permute(1, 2, 0, 3)
        return waves @ mixed.flatten(1, 2)
