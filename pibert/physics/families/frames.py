"""What all families share: fields at one instant, their rate of change, and coefficients.

A residual needs its spatial terms and its time derivative at the same instant. From two frames
that instant is their midpoint: the average of both frames and their difference over dt are each
second-order accurate there. With one frame, or without dt, the instant is the last frame and the
time derivative is left out (the steady proxy).
"""

from collections.abc import Collection, Iterable, Mapping

from jaxtyping import Float
from torch import Tensor

Frames = Mapping[str, Float[Tensor, "*batch t y x"]]
Coefficient = float | Tensor
"""One number, or a tensor (*batch,) with one per sample."""
Residuals = dict[str, Float[Tensor, "*batch component y x"]]


def midpoint(frames: Tensor, dt: float | None) -> tuple[Tensor, Tensor | None]:
    """Value and rate of change midway between the last two frames; else last frame and None."""
    now = frames[..., -1, :, :]
    if dt is None or frames.shape[-3] < 2:
        return now, None
    before = frames[..., -2, :, :]
    return (now + before) / 2, (now - before) / dt


def spread(coefficient: Coefficient, axes: int = 2) -> Coefficient:
    """A coefficient that multiplies fields with this many axes behind the batch."""
    if isinstance(coefficient, Tensor):
        return coefficient.reshape(*coefficient.shape, *[1] * axes)
    return coefficient


def check_inputs(
    family: str,
    fields: Mapping[str, object],
    channels: Iterable[str],
    coefficients: Iterable[str],
    known_coefficients: Collection[str],
    dt: float | None,
) -> None:
    """Refuse missing channels, unknown coefficients and a dt that is not positive."""
    missing = [name for name in channels if name not in fields]
    if missing:
        raise ValueError(f"family {family!r} needs channels {missing}, found {list(fields)}")
    unknown = [name for name in coefficients if name not in known_coefficients]
    if unknown:
        raise ValueError(
            f"family {family!r} has coefficients {list(known_coefficients)}, found {unknown}"
        )
    if dt is not None and not dt > 0:
        raise ValueError(f"dt must be positive or None, found {dt}")
