"""Modes of the fluctuations x'(t) of a flow: POD, SPOD and DMD.

- POD: x'(t) = sum_k a_k(t) v_k with orthonormal modes v_k, the mean of a_k^2 largest first
  (Sirovich 1987). All points of a uniform grid have the same weight.
- SPOD: the eigenvectors of the cross-spectral density at each frequency, estimated from segments
  of the record that overlap by half, each times a Hann window (Towne, Schmidt, Colonius, J. Fluid
  Mech. 847 (2018) 821). The eigenvalues of a frequency add up to the power spectral density of
  all points.
- DMD: eigenvectors and eigenvalues mu of the linear operator that steps the leading POD
  coefficients by one frame (``models/references/dmd.py``): frequency arg(mu) / (2 pi dt), growth
  log|mu| / dt.

SPOD and DMD work on the POD coefficients. For SPOD that is exact, as all modes are kept.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from pibert.models.reconstruction import principal_components
from pibert.models.references.dmd import States

_NEGLIGIBLE = 1e-12
"""Share of the energy of the first mode below which a mode is rounding."""
LEAST_SEGMENTS = 3
"""Fewer have no cross-spectral density."""
LEAST_SEGMENT = 8
"""Frames."""


@dataclass(frozen=True, eq=False, kw_only=True)
class POD:
    """Modes by energy."""

    energy: Float[Tensor, " r"]
    """Mean square of every coefficient; its sum is that of the fluctuations, over all points."""
    modes: Float[Tensor, "r d"]
    coefficients: Float[Tensor, "t r"]

    @property
    def share(self) -> Float[Tensor, " r"]:
        return self.energy / self.energy.sum()


@dataclass(frozen=True, eq=False, kw_only=True)
class SPOD:
    """Modes by frequency and energy."""

    frequency: Float[Tensor, " f"]
    """From the first above zero."""
    energy: Float[Tensor, "f b"]
    """Eigenvalues: power spectral density, largest first."""
    modes: Complex[Tensor, "f b r"]
    """In POD coefficients, orthonormal at each frequency."""
    segment: int
    """Frames of a segment."""

    def peaks(self, count: int) -> list[int]:
        """Indices of the frequencies with the highest local maxima of the first eigenvalue.

        The lowest frequency is none: segments are too short to see what lies below it.
        """
        first = torch.nn.functional.pad(self.energy[:, 0], (0, 1), value=-1.0)
        top = (first[1:-1] > first[:-2]) & (first[1:-1] >= first[2:])
        found = (1 + top.nonzero().flatten()).tolist()
        return sorted(found, key=lambda index: -float(self.energy[index, 0]))[:count]


@dataclass(frozen=True, eq=False, kw_only=True)
class DMD:
    """Modes by amplitude, one of each conjugate pair."""

    frequency: Float[Tensor, " n"]
    growth: Float[Tensor, " n"]
    """Rate of exponential growth, negative for decay."""
    amplitude: Float[Tensor, " n"]
    """Rms over time of what a mode, with its conjugate, adds to the flow, over all points."""
    modes: Complex[Tensor, "n r"]
    """In POD coefficients, of unit length."""


def pod(fluctuations: Float[Tensor, "t d"]) -> POD:
    """Decompose fluctuations about the mean in time."""
    squares, modes = principal_components(fluctuations, min(fluctuations.shape))
    if not squares[0] > 0:
        raise ValueError("expected a flow that changes in time, found the same field in all frames")
    modes = modes[squares > _NEGLIGIBLE * squares[0]]
    coefficients = fluctuations @ modes.T
    return POD(energy=coefficients.square().mean(0), modes=modes, coefficients=coefficients)


def default_segment(frames: int) -> int:
    """A power of two that divides the record in at least seven half-overlapping segments."""
    return 2 ** max(3, math.floor(math.log2(max(8, frames / 4))))


def segments(series: Float[Tensor, " t *n"], length: int) -> list[Tensor]:
    """Stretches of a length that overlap by half; the whole series if it is shorter."""
    if len(series) < length:
        return [series]
    starts = range(0, len(series) - length + 1, max(1, length // 2))
    return [series[start : start + length] for start in starts]


def spod(coefficients: Float[Tensor, "t r"], dt: float, segment: int) -> SPOD:
    """Decompose POD coefficients, dt apart, by frequency."""
    parts = segments(coefficients, segment)
    if len(parts) < LEAST_SEGMENTS:
        remedy = "choose a shorter --segment" if segment > LEAST_SEGMENT else "record longer"
        raise ValueError(
            f"SPOD needs {LEAST_SEGMENTS} segments of {segment} frames that overlap by half, "
            f"{segment + (LEAST_SEGMENTS - 1) * (segment // 2)} frames together, found "
            f"{len(coefficients)}; {remedy}"
        )
    window = torch.hann_window(segment, periodic=True, dtype=torch.float64)
    blocks = torch.fft.rfft(torch.stack(parts).double() * window[:, None], dim=1)[:, 1:]
    scale = torch.full((blocks.shape[1],), 2 * dt / float(window.square().sum()))
    if segment % 2 == 0:
        scale[-1] /= 2
    matrices = blocks.movedim(0, 1) * (scale / len(parts)).sqrt()[:, None, None]  # (f, b, r)
    _, values, modes = torch.linalg.svd(matrices, full_matrices=False)
    frequency = torch.fft.rfftfreq(segment, dt, dtype=torch.float64)[1:]
    return SPOD(frequency=frequency, energy=values.square(), modes=modes, segment=segment)


def dmd(coefficients: Float[Tensor, "t r"], dt: float, rank: int) -> DMD:
    """Fit a linear operator to POD coefficients, dt apart.

    It has this rank at most, and that of half the frames: with as many modes as frames, DMD of
    fluctuations is a Fourier transform (Chen, Tu, Rowley, J. Nonlinear Sci. 22 (2012) 887).
    """
    states = States(coefficients.shape[1], coefficients.shape[1], coefficients.device)
    states.add(coefficients[:-1], coefficients[1:])
    basis, operator = states.reduce(min(rank, len(coefficients) // 2))
    values, vectors = torch.linalg.eig(operator)
    coordinates = torch.linalg.solve(vectors, (coefficients @ basis.T).T.to(vectors))  # (n, t)
    kept = values.imag >= 0
    # Of a pair c v + conj(c v): twice the real part, whose square has a cross term as v and its
    # conjugate are not orthogonal.
    squares = coordinates.abs().square().mean(1)
    cross = (coordinates.square().mean(1) * vectors.square().sum(0)).real
    amplitude = torch.where(values.imag > 0, 2 * (squares + cross), squares).clamp(min=0).sqrt()
    order = torch.argsort(torch.where(kept, amplitude, -1.0), descending=True)[: int(kept.sum())]
    return DMD(
        frequency=values.angle()[order] / (2 * math.pi * dt),
        growth=values.abs()[order].log() / dt,
        amplitude=amplitude[order],
        modes=(vectors.T @ basis.to(vectors))[order],
    )
