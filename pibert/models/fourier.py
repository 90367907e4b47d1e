"""The Fourier branch: a separate channel mixing for every kept mode of the half-plane.

With X = rfft2(x) the branch returns irfft2(W(k) X(k)) on the kept modes and drops the others.
Kept are the rows k_y = -M ... M-1 and the columns k_x = 0 ... M//2, in cycles per domain, so the
same weights serve every resolution; modes that a coarser grid does not have are dropped.

For a real field only half of the bins on a self-mirrored column (k_x = 0, and k_x = W/2 for even
W) are free: there W(-k) = conj W(k), the mean and the Nyquist bins are real, and the row -M, whose
partner +M is not kept, is dropped. The redundant weights stay stored (the published parameter
count includes them) but do nothing.

The transforms are truncated and evaluated as real matrix products, which compile to one graph and
export to ONNX.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.models.layers import constant, count


def kept_rows(modes: int, ny: int) -> tuple[int, int]:
    """How many rows k_y >= 0 and how many k_y < 0 are kept on a grid with ny rows."""
    return min(modes, (ny + 1) // 2), min(modes, ny // 2)


def kept_columns(modes: int, nx: int) -> int:
    return min(modes // 2 + 1, nx // 2 + 1)


@constant
def row_phases(
    modes: int, ny: int, stride: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "2 p r"]:
    """Cosine and sine of 2 pi k_y y / ny at every stride-th point, for the kept rows."""
    up, down = kept_rows(modes, ny)
    rows = torch.cat((count(0, up, device=device), count(-down, 0, device=device)))
    return _phases(rows, count(0, ny, stride, device=device), ny).to(dtype)


@constant
def column_phases(
    modes: int, nx: int, stride: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "2 p k"]:
    """Cosine and sine of 2 pi k_x x / nx at every stride-th point, for the kept columns."""
    columns = count(0, kept_columns(modes, nx), device=device)
    return _phases(columns, count(0, nx, stride, device=device), nx).to(dtype)


def _phases(waves: Tensor, points: Tensor, n: int) -> Tensor:
    # Whole turns are taken off before the angle is formed: it is exact to round-off.
    angle = (points[:, None] * waves).remainder(n) * (2 * torch.pi / n)
    return torch.stack((angle.cos(), angle.sin()))


@constant
def mirror_factors(
    modes: int, nx: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, " k"]:
    """2 for the columns whose mirror image is not stored, 1 for the self-mirrored ones."""
    columns = count(0, kept_columns(modes, nx), device=device)
    return torch.where((columns == 0) | (2 * columns == nx), 1.0, 2.0).to(dtype)


def analyse(
    x: Float[Tensor, "b c y x"], modes: int, column_modes: int | None = None
) -> tuple[Float[Tensor, "b c r k"], Float[Tensor, "b c r k"]]:
    """Real and imaginary part of the kept bins of rfft2(x), by matrix products."""
    ny, nx = x.shape[-2:]
    cos_x, sin_x = column_phases(column_modes or modes, nx, 1, x.dtype, x.device)
    cos_y, sin_y = row_phases(modes, ny, 1, x.dtype, x.device)
    across = x @ torch.cat((cos_x, -sin_x), dim=-1)  # (b, c, y, 2k)
    along = torch.cat((cos_y, sin_y), dim=-1).mT @ across  # (b, c, 2r, 2k)
    rows, columns = cos_y.shape[-1], cos_x.shape[-1]
    cos_part, sin_part = along.split(rows, dim=-2)
    cos_re, cos_im = cos_part.split(columns, dim=-1)
    sin_re, sin_im = sin_part.split(columns, dim=-1)
    return cos_re + sin_im, cos_im - sin_re


def synthesise(
    re: Float[Tensor, "b d r k"],
    im: Float[Tensor, "b d r k"],
    modes: int,
    shape: tuple[int, int],
) -> Float[Tensor, "b d y x"]:
    """The real field on the grid whose kept half-plane bins are re + i im, by matrix products."""
    ny, nx = shape
    cos_y, sin_y = row_phases(modes, ny, 1, re.dtype, re.device)
    cos_x, sin_x = column_phases(modes, nx, 1, re.dtype, re.device)
    factors = mirror_factors(modes, nx, re.dtype, re.device) / (ny * nx)
    along_re = cos_y @ re - sin_y @ im  # (b, d, y, k)
    along_im = cos_y @ im + sin_y @ re
    across = torch.cat((cos_x * factors, -sin_x * factors), dim=-1)
    return torch.cat((along_re, along_im), dim=-1) @ across.mT


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
        self.modes, self.unitary = modes, unitary
        size = (modes, modes // 2 + 1, in_channels, width, 2)
        # Columns of unit length on average: the branch starts near an isometry.
        scale = (2 * width) ** -0.5
        self.positive = nn.Parameter(scale * torch.randn(size))
        """Weights of the rows k_y = 0 ... M-1."""
        self.negative = nn.Parameter(scale * torch.randn(size))
        """Weights of the rows k_y = -M ... -1."""

    def weights(self, shape: tuple[int, int]) -> Float[Tensor, "r k c d 2"]:
        """The W(k) in force on a grid: rows 0 ... M-1, -M ... -1, ties applied."""
        ny, nx = shape
        up, down = kept_rows(self.modes, ny)
        columns = kept_columns(self.modes, nx)
        weight = torch.cat((self.positive[:up], self.negative[self.modes - down :]))[:, :columns]
        nyquist_column = nx % 2 == 0 and columns == nx // 2 + 1
        parts = [self._tie(weight[:, 0], up, ny)[:, None], weight[:, 1:]]
        if nyquist_column and columns > 1:
            parts[1:] = [weight[:, 1:-1], self._tie(weight[:, -1], up, ny)[:, None]]
        weight = torch.cat(parts, dim=1)
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
        """One self-mirrored column with W(-k) = conj W(k) and real mean and Nyquist bins."""
        imaginary = count(0, 2, device=column.device).to(column.dtype)  # (0, 1)
        real, conjugate = 1 - imaginary, 1 - 2 * imaginary
        down = column.shape[0] - up
        parts = [column[:1] * real, column[1:up]]
        if up == down:  # the row -M, or the Nyquist row, has no partner
            alone = column[up : up + 1]
            parts.append(alone * real if 2 * down == ny else alone)
        mirrored = (column[1 : min(up, down + 1)] * conjugate).flip(0)
        return torch.cat([*parts, mirrored])

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b d y x"]:
        ny, nx = x.shape[-2:]
        # Spectral sums stay in full precision under autocast.
        with torch.autocast(x.device.type, enabled=False):
            x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
            weight = self.weights((ny, nx)).to(x.dtype)
            re, im = analyse(x, self.modes)
            w_re, w_im = weight.unbind(-1)
            y_re = torch.einsum("bcrk,rkcd->bdrk", re, w_re) - torch.einsum(
                "bcrk,rkcd->bdrk", im, w_im
            )
            y_im = torch.einsum("bcrk,rkcd->bdrk", re, w_im) + torch.einsum(
                "bcrk,rkcd->bdrk", im, w_re
            )
            return synthesise(y_re, y_im, self.modes, (ny, nx))


def orthonormal_columns(
    weight: Float[Tensor, "*batch c d 2"],
) -> Float[Tensor, "*batch c d 2"]:
    """Orthonormalise the c complex vectors of length d (last axis: real, imaginary).

    Gram-Schmidt, each vector projected twice against the ones before it: the second pass brings
    the orthogonality of nearly dependent columns back to round-off. The result spans the same
    space and is a smooth function of the weight, so gradients flow through it.
    """
    num_columns, length = weight.shape[-3], weight.shape[-2]
    if num_columns > length:
        raise ValueError(
            f"{num_columns} orthonormal columns need at least that many rows, found {length}"
        )
    columns: list[Tensor] = []
    for index in range(num_columns):
        column = weight[..., index, :, :]  # (*batch, d, 2)
        for _ in range(2 if columns else 0):
            basis = torch.stack(columns, dim=-3)  # (*batch, j, d, 2)
            re = torch.einsum("...jdz,...dz->...j", basis, column)
            im = torch.einsum("...jd,...d->...j", basis[..., 0], column[..., 1]) - torch.einsum(
                "...jd,...d->...j", basis[..., 1], column[..., 0]
            )
            shadow_re = torch.einsum("...j,...jdz->...dz", re, basis)
            turned = torch.stack((-basis[..., 1], basis[..., 0]), dim=-1)  # i times the basis
            column = column - shadow_re - torch.einsum("...j,...jdz->...dz", im, turned)
        columns.append(column / column.square().sum((-2, -1), keepdim=True).sqrt())
    return torch.stack(columns, dim=-3)


@constant
def low_waves(
    modes: int, ny: int, nx: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "n m"]:
    """Orthonormal cosines, then sines, of all waves up to ``modes`` cycles per domain.

    Points row by row. Of k and -k only one is there: k_x > 0, or k_x = 0 and k_y >= 0. Columns are
    zero for waves that the grid does not resolve.
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
    """Complex matrices, stored (..., in, out, 2), as real ones: [[Re, -Im], [Im, Re]]."""
    re, im = weight.unbind(-1)
    return torch.cat((torch.cat((re, -im), -1), torch.cat((im, re), -1)), -2)


class FourierMultiplier(nn.Module):
    """A complex channel mixing of its own for every low wavenumber; other waves are dropped.

    Both transforms are one matrix product, which is fastest up to about a thousand points.
    """

    spectral_weights = ("weight",)

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.number = modes + 1 + modes * (2 * modes + 1)
        # Columns of unit length on average: it starts near an isometry of the kept waves.
        scale = (2 * width) ** -0.5
        self.weight = nn.Parameter(scale * torch.randn(self.number, width, width, 2))

    def forward(
        self, x: Float[Tensor, "b n c"], lattice: tuple[int, int]
    ) -> Float[Tensor, "b n c"]:
        """Points row by row."""
        waves = low_waves(self.modes, *lattice, x.dtype, x.device)
        found = (waves.mT @ x).unflatten(1, (2, self.number))  # (b, 2, k, c)
        mixing = as_real(self.weight.to(x.dtype))
        mixed = found.permute(2, 0, 1, 3).flatten(2) @ mixing  # (k, b, 2c)
        mixed = mixed.unflatten(-1, (2, -1)).permute(1, 2, 0, 3)
        return waves @ mixed.flatten(1, 2)
