"""Masked physics prediction: corrupt the hidden points.

A share ``Masking.removed`` of the hidden points is unknown to the model: zero in standardised
units, and False in its mask. A share ``Masking.noised`` holds noise, the rest is kept; the model
sees both as known.

The noise is a random-phase surrogate of the sample (Prichard, Theiler, Phys. Rev. Lett. 73 (1994)
951): every Fourier mode is rotated by a random angle, the same in all frames and channels. Mean and
variance are those of the sample over its known points. For a flow without divergence the velocity
derives from a stream function instead,

    u = psi_y,  v = -psi_x,  |psi_k|^2 = (|u_k|^2 + |v_k|^2) / |k|^2,

in physical units: every mode keeps its kinetic energy, and the divergence is zero (spectrally, as
if periodic). Modes that a spectral derivative drops are rotated like the others.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert import sample_rng
from pibert.fields import Batch, FieldSpec, Normalizer, is_solenoidal
from pibert.pretraining.masks import Hidden, Masking

_TINY = 1e-30


class Corrupted(NamedTuple):
    """The input of the model, and where its reconstruction counts."""

    x: Float[Tensor, "b hc y x"]
    mask: Bool[Tensor, "b y x"]
    """True where the model takes the field as known."""
    hidden: Bool[Tensor, "b y x"]
    """True where the reconstruction counts: at hidden points that were measured."""


@torch.no_grad()
def corrupt(
    batch: Batch, hidden: Hidden, masking: Masking, spec: FieldSpec, normalizer: Normalizer
) -> Corrupted:
    """Remove, replace by noise or keep the hidden points, depending on their lots."""
    points, lots = hidden
    removed = points & (lots < masking.removed)
    x = batch.x
    if masking.noised:
        noised = points & ~removed & (lots < masking.removed + masking.noised)
        noise = surrogate(batch, spec, normalizer)
        x = torch.where(noised[:, None], noise, x)
    x = torch.where(removed[:, None], 0.0, x)
    counted = points if batch.filled is None else points & ~batch.filled
    return Corrupted(x, batch.mask & ~removed, counted)


@torch.no_grad()
def surrogate(batch: Batch, spec: FieldSpec, normalizer: Normalizer) -> Float[Tensor, "b hc y x"]:
    """A random field per sample with the sample's spectrum, mean and variance, standardised."""
    c, (ny, nx) = len(spec.channels), batch.x.shape[-2:]
    x = batch.x.unflatten(1, (-1, c))
    known = batch.mask[:, None, None]
    count = known.sum((-2, -1), keepdim=True).clamp(min=1)
    mean = torch.where(known, x, 0.0).sum((-2, -1), keepdim=True) / count
    modes = torch.fft.rfft2(torch.where(known, x - mean, 0.0))
    white = sample_rng.normal(batch.seeds, "phases of noise", ny, nx).to(x.dtype)
    turns = _phase(torch.fft.rfft2(white))[:, None, None]
    turned = modes * turns
    if is_solenoidal(spec):
        turned = _without_divergence(turned, nx, spec, normalizer)
    # Compensates for the variance that unknown points lack.
    fill = (ny * nx / count).sqrt()
    return (mean + fill * torch.fft.irfft2(turned, s=(ny, nx))).flatten(1, 2)


def _without_divergence(
    modes: Tensor, width: int, spec: FieldSpec, normalizer: Normalizer
) -> Tensor:
    """Replace the velocity by one of the same energy without divergence.

    ``modes`` (b, h, c, ky, kx) are those of standardised fluctuations of a field of ``width``
    columns.
    """
    assert spec.velocity is not None
    at_u, at_v = spec.velocity
    std_u, std_v = normalizer.std[at_u], normalizer.std[at_v]
    u, v = modes[:, :, at_u] * std_u, modes[:, :, at_v] * std_v
    ky = _wave_numbers(torch.fft.fftfreq, modes.shape[-2], spec.grid.dy, u)[:, None]
    kx = _wave_numbers(torch.fft.rfftfreq, width, spec.grid.dx, u)
    k = torch.hypot(kx, ky)
    across, along = ky / k.clamp(min=_TINY), kx / k.clamp(min=_TINY)
    turning, spreading = across * u - along * v, along * u + across * v
    energy = u.abs().square() + v.abs().square()
    # A mode that only diverges has no vorticity whose phase could be kept.
    phase = _phase(torch.where(turning.abs() > 1e-3 * spreading.abs(), turning, spreading))
    amplitude = energy.sqrt() * phase
    result = modes.clone()
    result[:, :, at_u] = torch.where(k > 0, across * amplitude, u) / std_u
    result[:, :, at_v] = torch.where(k > 0, -along * amplitude, v) / std_v
    return result


def _wave_numbers(
    frequencies: Callable[..., Tensor], size: int, step: float, like: Tensor
) -> Tensor:
    """Wave numbers as a spectral derivative sees them: without the Nyquist mode of an even size."""
    real = like.real.dtype
    k = 2 * math.pi * frequencies(size, step, dtype=real, device=like.device)
    if size % 2:
        return k
    index = torch.arange(len(k), device=like.device)
    return torch.where(index == size // 2, 0.0, k)


def _phase(modes: Tensor) -> Tensor:
    """Complex numbers of modulus one; 1 in place of the phase of zero."""
    size = modes.abs()
    return torch.where(size > 0, modes / size.clamp(min=torch.finfo(size.dtype).tiny), 1.0)
