"""First guesses at unknown points, which a reconstruction corrects.

Either a thin plate through the known points (``fill_smoothly``), the field of least bending energy

    sum f_xx^2 + 2 f_xy^2 + f_yy^2,

or the most likely field under a Gaussian fitted to the training fields (``PODModes``),

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
"""Conjugate gradient steps on the grid itself."""
_CHECKED, _CONVERGED = 20, 1e-20
"""Steps between two tests for convergence, and the limit of the squared residual, relative to the
first one."""
COARSE_STEPS, COARSE_LEVELS = 6, 3
"""Steps on each coarser grid, and their number; still coarser grids are only interpolated."""


def fill_smoothly(
    x: Fields,
    known: Bool[Tensor, "b y x"],
    spacing: tuple[float, float] = (1.0, 1.0),
    steps: int = PLATE_STEPS,
) -> Fields:
    """Fill unknown points by a thin plate; fields without any known point become zero.

    Args:
        x: Zero at unknown points.
        known: True at known points.
        spacing: (dy, dx).
        steps: Conjugate gradient steps on the grid itself.
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
            filled = _relaxed(filled, unknown, aspect, COARSE_STEPS if level else steps)
    return filled


def _averages(x: Tensor, known: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return mean over known points times their share, and the share, from fine to coarse."""
    levels = [(x, known[:, None].to(x.dtype))]
    while max(levels[-1][0].shape[-2:]) > 1:
        both = torch.cat(levels[-1], dim=1)
        odd = (0, both.shape[-1] % 2, 0, both.shape[-2] % 2)
        both = F.avg_pool2d(F.pad(both, odd) if any(odd) else both, 2)
        levels.append((both[:, :-1], both[:, -1:]))
    return levels


def _relaxed(guess: Tensor, unknown: Tensor, aspect: float, steps: int) -> Tensor:
    """Improve a guess by conjugate gradient steps on the unknown points."""
    weights, tiny = _weights(guess, aspect), torch.finfo(guess.dtype).tiny
    residual = torch.where(unknown, -_bend(guess, *weights), 0.0)
    direction, energy = residual, _sum(residual * residual)
    first = energy
    for number in range(steps):
        if number and not number % _CHECKED and bool((energy <= _CONVERGED * first).all()):
            break
        bent = torch.where(unknown, _bend(direction, *weights), 0.0)
        step = _ratio(energy, _sum(direction * bent))
        guess = torch.addcmul(guess, step, direction)
        residual = torch.addcmul(residual, step, bent, value=-1)
        last, energy = energy, _sum(residual * residual)
        direction = torch.addcmul(residual, energy / last.clamp(min=tiny), direction)
    return guess


def _weights(x: Tensor, aspect: float) -> tuple[Tensor, Tensor]:
    """Return (dx / dy)^2 for rows (y, 1) and its inverse for columns (x,), zero at the sides."""
    rows, columns = (torch.arange(size, device=x.device) for size in x.shape[-2:])
    inner = [(index > 0) & (index < len(index) - 1) for index in (rows, columns)]
    row_weights, column_weights = (inside.to(x.dtype) for inside in inner)
    return row_weights[:, None] * aspect**2, column_weights * aspect**-2


def _bend(f: Tensor, row_weights: Tensor, column_weights: Tensor) -> Tensor:
    """Return the gradient of half the bending energy in units of dx dy.

    With B the second difference along an axis (fields continue as constants beyond the sides), and
    P zero at the two sides of that axis and one elsewhere, the three terms of the energy give

        (dx / dy)^2 B_y P_y B_y f,  2 B_y B_x f,  (dy / dx)^2 B_x P_x B_x f.
    """
    wide = F.pad(f, (1, 1, 1, 1), mode="replicate")
    along_y = (wide[..., 2:, 1:-1] + wide[..., :-2, 1:-1]).sub_(f, alpha=2)
    along_x = (wide[..., 1:-1, 2:] + wide[..., 1:-1, :-2]).sub_(f, alpha=2)
    moment_y = torch.addcmul(along_x, row_weights, along_y)
    moment_x = torch.addcmul(along_y, column_weights, along_x)
    tall = F.pad(moment_y, (0, 0, 1, 1), mode="replicate")
    wide = F.pad(moment_x, (1, 1, 0, 0), mode="replicate")
    total = (tall[..., 2:, :] + tall[..., :-2, :]).add_(wide[..., 2:]).add_(wide[..., :-2])
    return total.sub_(moment_y, alpha=2).sub_(moment_x, alpha=2)


def _sum(f: Tensor) -> Tensor:
    """Return the sum over each field, (b, c, 1, 1)."""
    return f.sum((-2, -1), keepdim=True)


POD_STEPS = 24
"""Conjugate gradient steps; the number is fixed so that the graph is."""
LEAST_NOISE = 1e-2
"""In standardised units: no recording is more precise, and amplitudes stay bounded."""


class PODModes(nn.Module):
    """Mean and POD modes of training fields (c, y, x); zero until ``fit``."""

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
        """Compute mean and modes of fields; unknown points count as the mean."""
        if len(x) <= len(self.modes):
            raise ValueError(
                f"expected more fields than the {len(self.modes)} modes, found {len(x)}; "
                "use fewer modes"
            )
        weight = known[:, None].to(torch.float64)
        fields = x.to(torch.float64) * weight
        mean = fields.sum(0) / weight.sum(0).clamp(min=1)
        deviation = ((fields - mean) * weight).flatten(1)
        squares, modes = principal_components(deviation, len(self.modes))
        tiny = squares[0] * 1e-12
        rest = (deviation.square().sum() - squares.sum()).clamp(min=0)
        points = deviation.shape[1] - len(self.modes)
        self.mean.copy_(mean)
        self.modes.copy_(torch.where((squares > tiny)[:, None], modes, 0.0).view_as(self.modes))
        self.variances.copy_(squares / len(x))
        self.noise.copy_((rest / (len(x) * max(points, 1))).sqrt().clamp(min=LEAST_NOISE))

    def forward(self, x: Fields, known: Bool[Tensor, "b y x"]) -> Fields:
        """Return the most likely complete fields; x is arbitrary but finite at unknown points."""
        basis = self.modes.flatten(1)
        weight = known[:, None].expand_as(x).flatten(1).to(x.dtype)
        ridge = self.noise.square() / self.variances.clamp(min=torch.finfo(x.dtype).tiny)
        scale = 1 / (weight.mean(1, keepdim=True) + ridge)
        residual = ((x - self.mean).flatten(1) * weight) @ basis.T
        amplitudes = torch.zeros_like(residual)
        direction = scaled = scale * residual
        energy = _dot(residual, scaled)
        for _ in range(POD_STEPS):
            image = ((direction @ basis) * weight) @ basis.T + ridge * direction
            step = _ratio(energy, _dot(direction, image))
            amplitudes = torch.addcmul(amplitudes, step, direction)
            residual = torch.addcmul(residual, step, image, value=-1)
            scaled = scale * residual
            last, energy = energy, _dot(residual, scaled)
            direction = torch.addcmul(scaled, _ratio(energy, last), direction)
        return (amplitudes @ basis).view_as(x) + self.mean


def principal_components(deviation: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return squared singular values of (fields, points), largest first, and their modes."""
    fields, points = deviation.shape
    few = fields < points
    gram = deviation @ deviation.T if few else deviation.T @ deviation
    values, vectors = torch.linalg.eigh(gram)
    squares, vectors = values.flip(0)[:count].clamp(min=0), vectors.flip(1)[:, :count]
    if not few:
        return squares, vectors.T
    size = squares.clamp(min=squares[0] * 1e-12).sqrt()
    return squares, vectors.T @ deviation / size[:, None]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(1, keepdim=True)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """Divide, with zero where the conjugate gradients have converged."""
    return torch.where(below > 0, above / below.clamp(min=torch.finfo(below.dtype).tiny), 0.0)


def first_guess(
    x: Fields, known: Bool[Tensor, "b y x"], grid: Grid, modes: PODModes | None
) -> Fields:
    """Return a thin plate or the most likely field at unknown points, x at the others.

    ``x`` is zero at unknown points; its resolution may differ from that of the grid.
    """
    ny, nx = x.shape[-2:]
    if modes is None:
        spacing = (grid.dy * grid.shape[0] / ny, grid.dx * grid.shape[1] / nx)
        return fill_smoothly(x, known, spacing)
    if tuple(modes.mean.shape[-2:]) != (ny, nx):
        raise ValueError(
            f"the POD modes are for fields on {tuple(modes.mean.shape[-2:])} points, found "
            f"({ny}, {nx}); resample the field, or train with fill_modes=0"
        )
    with torch.autocast(x.device.type, enabled=False):
        x = x.to(modes.mean.dtype)
        return torch.where(known[:, None], x, modes(x, known))
