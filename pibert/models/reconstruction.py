"""What a reconstruction starts from: a first guess at unknown points.

Either a thin plate through the known points (``fill_smoothly``), the field of least bending energy

    sum f_xx^2 + 2 f_xy^2 + f_yy^2,

or the likeliest of the fields seen in training (``PODModes``), taken as samples of a Gaussian

    f = mean + sum_k a_k v_k + noise,   a_k ~ N(0, s_k^2),   noise ~ N(0, e^2) at every point

with the orthonormal modes v_k and variances s_k^2 of proper orthogonal decomposition, and e^2 the
variance that the kept modes leave (Tipping, Bishop, J. R. Stat. Soc. B 61 (1999) 611). Given the
known points K of a field, the likeliest amplitudes solve

    (V_K^T V_K + e^2 diag(1 / s_k^2)) a = V_K^T (f - mean)_K,

gappy POD with a prior (Everson, Sirovich, J. Opt. Soc. Am. A 12 (1995) 1657).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pibert.fields import Grid

Fields = Float[Tensor, "b c y x"]

PLATE_STEPS = 16
"""On the grid itself."""
COARSE_STEPS, COARSE_LEVELS = 6, 3
"""On each of so many coarser ones; the coarsest are only interpolated."""


def fill_smoothly(
    x: Fields, known: Bool[Tensor, "b y x"], spacing: tuple[float, float] = (1.0, 1.0)
) -> Fields:
    """The field with unknown pixels filled; zero where nothing at all is known.

    Args:
        x: Zero at unknown pixels.
        known: Where it is known.
        spacing: (dy, dx).
    """
    aspect, eps = spacing[1] / spacing[0], torch.finfo(x.dtype).eps
    levels = _averages(x, known)
    value, share = levels.pop()
    filled = value / share.clamp(min=eps)
    for level in reversed(range(len(levels))):
        value, share = levels[level]
        size = (value.shape[-2], value.shape[-1])
        coarse = F.interpolate(filled, scale_factor=2.0, mode="bicubic", align_corners=False)
        coarse = coarse[..., : size[0], : size[1]]
        unknown = share < 0.5
        mean = value if level == 0 else value / share.clamp(min=eps)
        filled = torch.where(unknown, coarse, mean)
        if level <= COARSE_LEVELS and min(size) >= 3:
            filled = _relaxed(filled, unknown, aspect, COARSE_STEPS if level else PLATE_STEPS)
    return filled


def _averages(x: Tensor, known: Tensor) -> list[tuple[Tensor, Tensor]]:
    """From fine to coarse: mean over the known pixels times their share, and the share."""
    levels = [(x, known[:, None].to(x.dtype))]
    while max(levels[-1][0].shape[-2:]) > 1:
        both = torch.cat(levels[-1], dim=1)
        odd = (0, both.shape[-1] % 2, 0, both.shape[-2] % 2)
        both = F.avg_pool2d(F.pad(both, odd) if any(odd) else both, 2)
        levels.append((both[:, :-1], both[:, -1:]))
    return levels


def _relaxed(guess: Tensor, unknown: Tensor, aspect: float, steps: int) -> Tensor:
    """The guess after some conjugate gradient steps on the unknown pixels."""
    weights, tiny = _weights(guess, aspect), torch.finfo(guess.dtype).tiny
    residual = torch.where(unknown, -_bend(guess, *weights), 0.0)
    direction, energy = residual, _sum(residual * residual)
    for _ in range(steps):
        bent = torch.where(unknown, _bend(direction, *weights), 0.0)
        step = _ratio(energy, _sum(direction * bent))
        guess = torch.addcmul(guess, step, direction)
        residual = torch.addcmul(residual, step, bent, value=-1)
        last, energy = energy, _sum(residual * residual)
        direction = torch.addcmul(residual, energy / last.clamp(min=tiny), direction)
    return guess


def _weights(x: Tensor, aspect: float) -> tuple[Tensor, Tensor]:
    """(dx / dy)^2 for rows (y, 1) and its inverse for columns (x,), zero at the sides."""
    rows, columns = (torch.arange(size, device=x.device) for size in x.shape[-2:])
    inner = [(place > 0) & (place < len(place) - 1) for place in (rows, columns)]
    of_rows, of_columns = (inside.to(x.dtype) for inside in inner)
    return of_rows[:, None] * aspect**2, of_columns * aspect**-2


def _bend(f: Tensor, of_rows: Tensor, of_columns: Tensor) -> Tensor:
    """The gradient of half the bending energy in units of dx dy.

    With B the second difference along an axis of what goes on as a constant beyond the sides, and P
    zero at the two sides that B leaves, the three terms of the energy give

        (dx / dy)^2 B_y P_y B_y f,  2 B_y B_x f,  (dy / dx)^2 B_x P_x B_x f.
    """
    wide = F.pad(f, (1, 1, 1, 1), mode="replicate")
    along_y = (wide[..., 2:, 1:-1] + wide[..., :-2, 1:-1]).sub_(f, alpha=2)
    along_x = (wide[..., 1:-1, 2:] + wide[..., 1:-1, :-2]).sub_(f, alpha=2)
    moment_y = torch.addcmul(along_x, of_rows, along_y)
    moment_x = torch.addcmul(along_y, of_columns, along_x)
    tall = F.pad(moment_y, (0, 0, 1, 1), mode="replicate")
    wide = F.pad(moment_x, (1, 1, 0, 0), mode="replicate")
    total = (tall[..., 2:, :] + tall[..., :-2, :]).add_(wide[..., 2:]).add_(wide[..., :-2])
    return total.sub_(moment_y, alpha=2).sub_(moment_x, alpha=2)


def _sum(f: Tensor) -> Tensor:
    """Over a field, (b, c, 1, 1)."""
    return f.sum((-2, -1), keepdim=True)


POD_STEPS = 24
"""Of the conjugate gradients; their number is fixed."""
LEAST_NOISE = 1e-2
"""In standardised units: no recording is known better, and the amplitudes stay bounded."""


class PODModes(nn.Module):
    """Mean and modes of training fields; zero until ``fit``.

    Args:
        count: Modes to keep.
        shape: (c, y, x) of the fields.
    """

    mean: Tensor
    modes: Tensor
    variances: Tensor
    noise: Tensor

    def __init__(self, count: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("modes", torch.zeros(count, *shape))
        self.register_buffer("variances", torch.zeros(count))
        self.register_buffer("noise", torch.ones(()))

    @torch.no_grad()
    def fit(self, x: Fields, known: Bool[Tensor, "b y x"]) -> None:
        """Take mean and modes from fields; what is not known of them counts as the mean."""
        if len(x) <= len(self.modes):
            raise ValueError(
                f"expected more fields than the {len(self.modes)} modes, found {len(x)}; "
                "take fewer modes"
            )
        here = known[:, None].to(torch.float64)
        fields = x.to(torch.float64) * here
        mean = fields.sum(0) / here.sum(0).clamp(min=1)
        spread = ((fields - mean) * here).flatten(1)
        squares, modes = _principal(spread, len(self.modes))
        tiny = squares[0] * 1e-12
        left = (spread.square().sum() - squares.sum()).clamp(min=0)
        points = spread.shape[1] - len(self.modes)
        self.mean.copy_(mean)
        self.modes.copy_(torch.where((squares > tiny)[:, None], modes, 0.0).view_as(self.modes))
        self.variances.copy_(squares / len(x))
        self.noise.copy_((left / (len(x) * max(points, 1))).sqrt().clamp(min=LEAST_NOISE))

    def forward(self, x: Fields, known: Bool[Tensor, "b y x"]) -> Fields:
        """The likeliest whole fields.

        Args:
            x: Anything finite at unknown pixels.
            known: Where it is known.
        """
        basis = self.modes.flatten(1)
        here = known[:, None].expand_as(x).flatten(1).to(x.dtype)
        ridge = self.noise.square() / self.variances.clamp(min=torch.finfo(x.dtype).tiny)
        scale = 1 / (here.mean(1, keepdim=True) + ridge)
        residual = ((x - self.mean).flatten(1) * here) @ basis.T
        amplitudes = torch.zeros_like(residual)
        direction = scaled = scale * residual
        energy = _dot(residual, scaled)
        for _ in range(POD_STEPS):
            image = ((direction @ basis) * here) @ basis.T + ridge * direction
            step = _ratio(energy, _dot(direction, image))
            amplitudes = torch.addcmul(amplitudes, step, direction)
            residual = torch.addcmul(residual, step, image, value=-1)
            scaled = scale * residual
            last, energy = energy, _dot(residual, scaled)
            direction = torch.addcmul(scaled, _ratio(energy, last), direction)
        return (amplitudes @ basis).view_as(x) + self.mean


def _principal(spread: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Squared singular values of (fields, points), the largest first, and their modes."""
    fields, points = spread.shape
    few = fields < points
    values, vectors = torch.linalg.eigh(spread @ spread.T if few else spread.T @ spread)
    squares, vectors = values.flip(0)[:count].clamp(min=0), vectors.flip(1)[:, :count]
    if not few:
        return squares, vectors.T
    size = squares.clamp(min=squares[0] * 1e-12).sqrt()
    return squares, vectors.T @ spread / size[:, None]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(1, keepdim=True)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """Zero where there is nothing left to do."""
    return torch.where(below > 0, above / below.clamp(min=torch.finfo(below.dtype).tiny), 0.0)


def first_guess(
    x: Fields, known: Bool[Tensor, "b y x"], grid: Grid, modes: PODModes | None
) -> Fields:
    """What a reconstruction corrects: a thin plate or the likeliest field at unknown points.

    ``x`` is zero at unknown points and may have another resolution than the grid on the same
    domain.
    """
    ny, nx = x.shape[-2:]
    if modes is None:
        spacing = (grid.dy * grid.shape[0] / ny, grid.dx * grid.shape[1] / nx)
        return fill_smoothly(x, known, spacing)
    if tuple(modes.mean.shape[-2:]) != (ny, nx):
        raise ValueError(
            f"the modes are of fields on {tuple(modes.mean.shape[-2:])} points, found "
            f"({ny}, {nx}); resample the field, or train with fill_modes=0"
        )
    with torch.autocast(x.device.type, enabled=False):
        x = x.to(modes.mean.dtype)
        return torch.where(known[:, None], x, modes(x, known))
