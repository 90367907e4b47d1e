"""Changes of a field that keep its spectrum: every Fourier mode is rotated by an angle.

    f'_k = f_k exp(i theta_k),  theta_{-k} = -theta_k

Mean, variance and power spectrum of f' are those of f. The change is measured by its root mean
square over that of the fluctuation about the mean,

    amplitude^2 = sum_k |f_k|^2 4 sin^2(theta_k / 2) / sum_k |f_k|^2,  k = 0 left out.

Unknown points are zero before and after: alternately, the remainder there is reflected about zero
and the sizes of the modes are restored (Gerchberg, Saxton, Optik 35 (1972) 237); in the end mean
and variance over the known points are restored. The spectrum then differs by little, and the change
is smaller than requested by about the share of unknown points.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert import sample_rng

Fields = Float[Tensor, "b f y x"]
Angles = Float[Tensor, "b f ky kx"]
Known = Bool[Tensor, "b y x"]

ROUNDS = 12
"""Alternations between zero at unknown points and the sizes of the modes."""
LEAST_FLUCTUATION = 0.05
"""Smallest fluctuation that amplitudes refer to, in standardised units."""
REFLECTION = 0.9
"""Share of the remainder at unknown points that enters the next round with the other sign."""


def random_angles(seeds: Int[Tensor, " b"], purpose: str, fields: Fields) -> Angles:
    """Normal angles of variance 1 for every mode of every field, zero for the mean."""
    ny, nx = fields.shape[-2:]
    raw = sample_rng.normal(seeds, purpose, fields.shape[1], ny, nx // 2 + 1).to(fields.dtype)
    # ``antisymmetric`` averages two numbers there.
    raw = torch.where(_counted_once(nx, raw), raw * 2.0**0.5, raw)
    return antisymmetric(raw, nx)


def antisymmetric(angles: Angles, columns: int) -> Angles:
    """Project any numbers onto angles of a real field: theta_{-k} = -theta_k.

    In the layout of ``torch.fft.rfft2`` only the column of kx = 0, and that of the highest kx of an
    even number of columns, hold both k and -k. The angle of the mean becomes zero.
    """
    opposite = angles.flip(-2).roll(1, -2)
    return torch.where(_counted_once(columns, angles), (angles - opposite) / 2, angles)


def angles_of_size(fields: Fields, angles: Angles, amplitude: Float[Tensor, " b"]) -> Angles:
    """Scale angles so that rotating by them changes every field by the amplitude."""
    energy, wanted = mode_energy(fields), amplitude[:, None]
    # The first factor is right for small angles, the second corrects it.
    angles = angles * _ratio(wanted, (energy * angles.square()).sum((-2, -1)).sqrt())
    change = (energy * (2 - 2 * torch.cos(angles))).sum((-2, -1)).sqrt()
    return angles * _ratio(wanted, change)


def turned(fields: Fields, angles: Angles, known: Known, rounds: int = ROUNDS) -> Fields:
    """The fields with every mode rotated; zero where not known."""
    spectrum = torch.fft.rfft2(fields)
    size, shape = spectrum.abs(), fields.shape[-2:]
    here = known[:, None]
    result = torch.fft.irfft2(spectrum * torch.polar(torch.ones_like(angles), angles), s=shape)
    tiny = torch.finfo(fields.dtype).tiny
    kept = torch.where(here, 1.0, -REFLECTION).to(fields.dtype)
    for _ in range(rounds):
        result = torch.fft.irfft2(torch.fft.rfft2(result * kept).sgn() * size, s=shape)
    mean, spread = moments(fields, known)
    new_mean, new_spread = moments(result, known)
    scale = torch.where(new_spread > 0, spread / new_spread.clamp(min=tiny), 0.0)
    return torch.where(here, (result - new_mean) * scale + mean, 0.0)


def moments(
    fields: Fields, known: Known
) -> tuple[Float[Tensor, "b f 1 1"], Float[Tensor, "b f 1 1"]]:
    """Mean and standard deviation of every field over its known points."""
    here = known[:, None]
    count = here.sum((-2, -1), keepdim=True).clamp(min=1)
    mean = torch.where(here, fields, 0.0).sum((-2, -1), keepdim=True) / count
    square = torch.where(here, fields - mean, 0.0).square().sum((-2, -1), keepdim=True) / count
    return mean, square.sqrt()


def scale_to(
    change: Fields, fields: Fields, known: Known, amplitude: Float[Tensor, " b"]
) -> Float[Tensor, "b 1 1 1"]:
    """Factors that give a change, zero where not known, its amplitude.

    The amplitude is relative to the joint fluctuation of the fields that change.
    """
    spread = moments(fields, known)[1].clamp(min=LEAST_FLUCTUATION)
    size = change.square().sum((-2, -1), keepdim=True)
    count = known.sum((-2, -1)).clamp(min=1)[:, None, None, None]
    reference = torch.where(size > 0, spread, 0.0).square().sum(1, keepdim=True).sqrt()
    present = (size / count).sum(1, keepdim=True).sqrt()
    wanted = amplitude[:, None, None, None].to(change.dtype) * reference
    return torch.where(present > 0, wanted / present, 0.0)


def mode_energy(fields: Fields) -> Angles:
    """Share of each mode in the variance of its field, that of -k included; 0 for the mean."""
    spectrum = torch.fft.rfft2(fields)
    energy = spectrum.real.square() + spectrum.imag.square()
    energy = torch.where(_counted_once(fields.shape[-1], energy), energy, 2 * energy)
    energy[..., 0, 0] = 0.0
    total = energy.sum((-2, -1), keepdim=True)
    return energy / total.clamp(min=torch.finfo(fields.dtype).tiny)


def smooth_weight(shape: tuple[int, int], cutoff: float, like: Tensor) -> Float[Tensor, "ky kx"]:
    """exp(-(k / k_c)^2), k_c the given share of the highest wave number along each axis."""
    rows, columns = shape
    ky = torch.fft.fftfreq(rows, dtype=like.dtype, device=like.device)[:, None]
    kx = torch.fft.rfftfreq(columns, dtype=like.dtype, device=like.device)
    return torch.exp(-(ky.square() + kx.square()) / (0.5 * cutoff) ** 2)


def _counted_once(columns: int, like: Tensor) -> Bool[Tensor, " kx"]:
    """The columns of a half spectrum that hold both k and -k."""
    column = torch.arange(like.shape[-1], device=like.device)
    return (column == 0) | (2 * column == columns)


def _ratio(wanted: Tensor, found: Tensor) -> Tensor:
    """Wanted / found for each field; 1 for a field without fluctuation."""
    return torch.where(found > 0, wanted / found, 1.0)[..., None, None]
