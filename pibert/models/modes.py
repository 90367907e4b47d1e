"""What fields look like: mean and principal modes, and the likeliest field through some points.

Fields are taken as draws of a Gaussian,

    f = mean + sum_k a_k v_k + noise,   a_k ~ N(0, s_k^2),   noise ~ N(0, e^2) at every point,

with the orthonormal modes v_k and variances s_k^2 of training fields (proper orthogonal
decomposition) and e^2 the variance that the kept modes leave, spread over the points
(probabilistic principal components: Tipping, Bishop, J. R. Stat. Soc. B 61 (1999) 611). Given the
known points K of a field, the likeliest amplitudes solve

    (V_K^T V_K + e^2 diag(1 / s_k^2)) a = V_K^T (f - mean)_K,

gappy POD with a prior (Everson, Sirovich, J. Opt. Soc. Am. A 12 (1995) 1657). Over all points V^T V
is the identity, so conjugate gradients preconditioned by the diagonal take few steps.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pibert.fields import Grid
from pibert.models.smoothing import fill_smoothly

STEPS = 24
"""Of the conjugate gradients; their number is fixed."""
LEAST_NOISE = 1e-2
"""In standardised units: no recording is known better, and the amplitudes stay bounded."""

Fields = Float[Tensor, "b c y x"]


class FieldModes(nn.Module):
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
        for _ in range(STEPS):
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
    x: Fields, known: Bool[Tensor, "b y x"], grid: Grid, modes: FieldModes | None
) -> Fields:
    """What a reconstruction corrects: known points, and a smooth or the likeliest field elsewhere.

    Args:
        x: Zero at unknown points.
        known: Where it is known.
        grid: Of the model; x may have another resolution on the same domain.
        modes: Of training fields; None: a thin plate through the known points.
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
