"""Measures of a vibrating body: amplitude, frequency, regime, phase error of a prediction.

They take plain arrays: the displacement and its time, evenly spaced.

    amplitude   sqrt(2) times the standard deviation over the last whole number of periods: the
                amplitude of a sine. In the unit of the displacement
    frequency   the highest peak of the power spectrum (Hann window), between the bins by a parabola
                through the logarithm of the power. Unknown below two periods
    regime      ``lock-in`` if the body vibrates near its natural frequency f_n in the fluid,
                |f / f_n - 1| <= 0.2, by at least 0.05 diameters; ``at rest`` below 0.005; else
                ``outside``
    phase error of a prediction after n periods: |phase' - phase| / 2 pi, in periods, not wrapped.
                The phase at a time is that of a sine of the true frequency, fitted to the period
                around it
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEAST_PERIODS = 2.0
"""Periods below which a frequency is not known."""
LOCKED = 0.2
"""Largest distance of the frequency from the natural one in lock-in, as a share of that."""
LOCKED_AMPLITUDE = 0.05
"""Least amplitude in lock-in, in diameters."""
AT_REST = 0.005
"""Amplitude below which a body is at rest, in diameters."""
EVEN = 1e-3
"""Largest relative difference of time steps that count as equal."""
_STILL = 1e-6
"""Relative range of a displacement up to which it is constant but for rounding."""
_PADDING = 8
"""Length of the padded series over its own, for a finer spectrum."""

Regime = Literal["lock-in", "outside", "at rest"]


@dataclass(frozen=True, kw_only=True)
class Vibration:
    """How a body vibrates."""

    mean: float
    """Position about which it vibrates."""
    amplitude: float
    frequency: float | None
    """None if fewer than two periods were recorded, or the body is at rest."""

    def regime(self, natural_frequency: float, diameter: float = 1.0) -> Regime | None:
        """Lock-in or not; None where the frequency is unknown.

        Args:
            natural_frequency: In the fluid, in the unit of ``frequency``.
            diameter: In the unit of ``amplitude``.
        """
        if self.amplitude < AT_REST * diameter:
            return "at rest"
        if self.frequency is None:
            return None
        is_near = abs(self.frequency / natural_frequency - 1) <= LOCKED
        return "lock-in" if is_near and self.amplitude >= LOCKED_AMPLITUDE * diameter else "outside"


def natural_frequency(
    reduced_velocity: float, mass_ratio: float = math.inf, *, speed: float = 1.0
) -> float:
    """Return the natural frequency of a cylinder in still fluid, in diameters per time.

    Args:
        reduced_velocity: U / (f D) with the frequency f in vacuum.
        mass_ratio: Mass over that of the displaced fluid, which is the added mass; infinite: in
            vacuum.
        speed: U, in diameters per time.
    """
    return speed / (reduced_velocity * math.sqrt(1 + 1 / mass_ratio))


def vibration(displacement: ArrayLike, time: ArrayLike) -> Vibration:
    """Return how a body vibrates, from its displacement at evenly spaced times."""
    y, t = _checked(displacement, time)
    frequency = _peak(y - y.mean(), float(t[1] - t[0]))
    if frequency is not None and frequency * (t[-1] - t[0]) < LEAST_PERIODS:
        frequency = None
    if frequency is not None:
        periods = int(frequency * (t[-1] - t[0]))
        y = y[-round(periods / (frequency * (t[1] - t[0]))) :]
    return Vibration(
        mean=float(y.mean()), amplitude=float(np.sqrt(2) * y.std()), frequency=frequency
    )


def phase_error(
    predicted: ArrayLike, true: ArrayLike, time: ArrayLike, periods: float = 5.0
) -> float | None:
    """Return the phase error after ``periods`` of the true motion, in periods.

    None if the true frequency is unknown, or the series ends before. The series begin with the
    prediction.
    """
    (mine, t), (theirs, _) = _checked(predicted, time), _checked(true, time)
    frequency = vibration(theirs, t).frequency
    if frequency is None or (periods + 0.5) / frequency > t[-1] - t[0] + 0.5 * (t[1] - t[0]):
        return None
    # Neighbouring phases, half a period apart, do not differ by more than half a turn.
    centres = np.unique([*np.arange(0.5, periods, 0.5), periods]) / frequency + t[0]
    turned = [
        _phasor(mine, t, frequency, at) * np.conj(_phasor(theirs, t, frequency, at))
        for at in centres
    ]
    if min(map(abs, turned)) == 0.0 or np.ptp(mine) <= _STILL * np.abs(mine).max():
        return None  # no motion, no phase
    return float(abs(np.unwrap(np.angle(turned))[-1]) / (2 * np.pi))


@dataclass(frozen=True, kw_only=True)
class VibrationErrors:
    """A predicted vibration compared with the true one; None: unknown."""

    predicted: Vibration
    true: Vibration
    amplitude: float | None
    """|A' / A - 1|; None where the true frequency is unknown."""
    frequency: float | None
    """|f' / f - 1|."""
    phase: float | None
    """In periods, after ``phase_periods``."""
    rms: float
    """Root mean square of the error of the displacement over the true standard deviation."""


def compare_vibrations(
    predicted: ArrayLike, true: ArrayLike, time: ArrayLike, *, phase_periods: float = 5.0
) -> VibrationErrors:
    """Compare a predicted displacement with the true one at the same times."""
    mine, theirs = vibration(predicted, time), vibration(true, time)
    difference = np.asarray(predicted, dtype=float) - np.asarray(true, dtype=float)
    frequency = None
    if mine.frequency is not None and theirs.frequency is not None:
        frequency = abs(mine.frequency / theirs.frequency - 1)
    vibrates = theirs.frequency is not None
    std = float(np.std(np.asarray(true, dtype=float)))
    return VibrationErrors(
        predicted=mine,
        true=theirs,
        amplitude=abs(mine.amplitude / theirs.amplitude - 1) if vibrates else None,
        frequency=frequency,
        phase=phase_error(predicted, true, time, phase_periods),
        rms=float(np.sqrt(np.mean(difference**2))) / std if std else np.inf,
    )


def _checked(displacement: ArrayLike, time: ArrayLike) -> tuple[NDArray[np.float64], ...]:
    y, t = np.asarray(displacement, dtype=float), np.asarray(time, dtype=float)
    if y.ndim != 1 or y.shape != t.shape or len(y) < 4:
        raise ValueError(
            f"expected displacement and time of one length, at least 4, found shapes {y.shape} and "
            f"{t.shape}"
        )
    if not (np.isfinite(y).all() and np.isfinite(t).all()):
        bad = int(np.flatnonzero(~(np.isfinite(y) & np.isfinite(t)))[0])
        raise ValueError(f"expected finite values, found {y[bad]} at time {t[bad]} (frame {bad})")
    steps = np.diff(t)
    if steps.min() <= 0 or np.ptp(steps) > EVEN * steps.mean():
        raise ValueError(
            f"expected evenly spaced times, found steps from {steps.min():g} to {steps.max():g}; "
            "take one stretch without gaps"
        )
    return y, t


def _peak(y: NDArray[np.float64], dt: float) -> float | None:
    """The frequency of the highest peak; None for a series without any."""
    power = np.abs(np.fft.rfft(y * np.hanning(len(y)), _PADDING * len(y))) ** 2
    # What remains of the mean lies below one period per record.
    first = _PADDING
    if len(power) < first + 3 or not power.max() > 0:
        return None
    top = first + int(power[first:-1].argmax())
    left, middle, right = np.log(power[top - 1 : top + 2] + 1e-300)
    curvature = left - 2 * middle + right
    shift = 0.5 * (left - right) / curvature if curvature < 0 else 0.0
    return float((top + np.clip(shift, -0.5, 0.5)) / (_PADDING * len(y) * dt))


def _phasor(y: NDArray[np.float64], t: NDArray[np.float64], frequency: float, at: float) -> complex:
    """The complex amplitude of a sine, fitted with a constant to the period around a time."""
    near = np.abs(t - at) <= 0.5 / frequency * (1 + 1e-9)
    angle = 2 * np.pi * frequency * t[near]
    columns = np.stack([np.cos(angle), -np.sin(angle), np.ones_like(angle)], axis=1)
    cosine, sine, _ = np.linalg.lstsq(columns, y[near], rcond=None)[0]
    return complex(cosine, sine)
