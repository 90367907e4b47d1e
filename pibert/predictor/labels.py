"""What labels say: units, even coordinates, and the times of the frames to come.

A spec states no units of length and time. They are taken to be those of its velocity: derivatives
mean something only in units that fit together. Where the velocity has none (diameters, convective
times), coordinates are compared as numbers.
"""

from typing import Any

import numpy as np

from pibert.data.counted import FRAMES
from pibert.data.units import VELOCITY, Unit, parse_unit
from pibert.fields import FieldSpec
from pibert.remarks import warn

_PURE = ("", "1", "-", "dimensionless", "none")
EVEN = 0.01
"""Of a step: coordinates may be off by so much."""


def channel_factor(name: str, stated: Any, expected: str) -> float:
    """What brings a channel from the units that are stated to those of the spec."""
    if stated is None or str(stated).strip() == expected.strip():
        return 1.0
    text = str(stated).strip()
    if text.lower() in _PURE and expected.strip().lower() in _PURE:
        return 1.0
    ours, theirs = parse_unit(expected), parse_unit(text)
    if ours is None or theirs is None or not theirs.is_like(ours.length, ours.time):
        raise ValueError(
            f"expected channel {name!r} in {expected!r}, the unit of the model, found {text!r}; "
            "convert it, or mend the attribute units"
        )
    return theirs.factor / ours.factor


def length_factor(axis: str, stated: Any, spec: FieldSpec) -> float:
    """What brings a coordinate to the unit of the spec's lengths."""
    system = _system(spec)
    if stated is None or system is None:
        return 1.0
    unit = parse_unit(str(stated))
    if unit is None or not unit.is_like(1, 0):
        raise ValueError(
            f"expected the coordinate {axis!r} in a unit of length, such as mm, found "
            f"{str(stated)!r}; mend the attribute units"
        )
    return unit.factor / system.of_length


def even_step(axis: str, values: np.ndarray) -> float:
    """Signed distance of two points of an axis; coordinates that are not even are refused."""
    values = np.asarray(values, np.float64)
    step = (values[-1] - values[0]) / (len(values) - 1)
    off = np.abs(values - np.linspace(values[0], values[-1], len(values))).max()
    if not (np.isfinite(step) and step != 0 and off <= EVEN * abs(step)):
        raise ValueError(
            f"expected an evenly spaced coordinate {axis!r}, found one from {values[0]:g} to "
            f"{values[-1]:g} whose points are up to {off:.3g} away from that; interpolate the "
            f"fields: fields.interp({axis}=...)"
        )
    return float(step)


class Clock:
    """The times of the frames that follow some given ones.

    Args:
        times: Of the given frames.
        stated: The unit that they are stated in, if any.
        spec: Its time step counts; where it has none, that of the given frames.
    """

    def __init__(self, times: np.ndarray, stated: Any, spec: FieldSpec) -> None:
        times = np.atleast_1d(times)
        if times.dtype.kind not in "iufmM":
            raise ValueError(
                f"expected times as numbers or datetime64, found {times.dtype}; convert them, or "
                "drop the coordinate time"
            )
        self._last = times[-1]
        self._step = _model_step(times, stated, spec)
        steps = np.diff(times)
        if (steps <= np.zeros(1, steps.dtype)).any():
            raise ValueError(
                "expected frames in the order of time, the newest last, found times that fall or "
                "repeat; sort them: fields.sortby('time')"
            )
        if not len(steps):
            return
        if self._step is None:
            self._step = steps[-1]
        off = np.abs(steps / self._step - 1).max()
        if off > EVEN:
            worst = steps[np.abs(steps / self._step - 1).argmax()]
            warn(
                f"the frames are {worst} apart in time where the model steps by {self._step}: it "
                "sees the flow at another pace; take frames that are one step apart"
            )

    def after(self, start: int, count: int) -> np.ndarray | None:
        """Times of ``count`` frames, the first of which is number ``start`` + 1; None: unknown."""
        if self._step is None:
            return None
        return self._last + self._step * np.arange(start + 1, start + count + 1)


def _model_step(times: np.ndarray, stated: Any, spec: FieldSpec) -> Any:
    if spec.dt is None:
        return None
    system = _system(spec)
    if times.dtype.kind in "mM":
        if system is None:
            raise ValueError(
                f"expected times as numbers in the unit of the model's time step {spec.dt:g}, "
                f"found {times.dtype}: the model does not count seconds; replace the coordinate"
            )
        return np.timedelta64(round(spec.dt * system.of_time * 1e9), "ns")
    if str(stated).strip() in FRAMES:
        warn(
            f"times count frames: predicted frames are numbered on, as if frames were {spec.dt:g} "
            "apart, the model's time step"
        )
        return 1.0
    unit = parse_unit(None if stated is None else str(stated))
    if system is None or unit is None or not unit.is_like(0, 1):
        return spec.dt
    return spec.dt * system.of_time / unit.factor


def _system(spec: FieldSpec) -> Unit | None:
    """The unit of the velocity, if it is one of length and time."""
    for name, text in zip(spec.channels, spec.units, strict=True):
        unit = parse_unit(text)
        if name in VELOCITY and unit is not None and unit.is_like(1, -1):
            return unit
    return None
