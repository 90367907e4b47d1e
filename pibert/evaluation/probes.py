"""Points at which a flow is watched in time, and what truth and prediction do there.

Probes are chosen by a rule that looks at no prediction:

- wake: with a body, the points nearest to 1, 1.5, 2 and 3 D downstream (along x) of its centre and
  D/2 below, level with and D/2 above it. The body is what is solid in half of the frames or more,
  of several the one that ``geometry.locate`` takes. D is its height;
- lattice: without a body, or where no probe of the wake can be used, the middles of 4 x 4 equal
  parts of the grid.

A probe outside the grid, or known in less than nine tenths of the frames, is left out. What is
missing is put in linearly in time, in truth and prediction alike, at the same frames.

RealPDEBench has probes of its own (``official_probes``), for its profiles of the mean velocity.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.evaluation.geometry import locate
from pibert.evaluation.measure import Frames

Probes = tuple[tuple[int, int], ...]
"""Row and column of each."""
DOWNSTREAM = (1.0, 1.5, 2.0, 3.0)
"""Probes of a wake behind the centre of the body, in D."""
ACROSS = (-0.5, 0.0, 0.5)
"""... and above it."""
LATTICE = 4
"""Probes along each axis where there is no body."""
KNOWN_SHARE = 0.9
"""Of the frames in which a probe must be known."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ProbeSeries:
    """What truth and prediction do at some points."""

    rule: Literal["wake", "lattice"]
    places: Probes
    channels: tuple[str, ...]
    dt: float
    """1 where the time between frames is not known."""
    truth: Float[Tensor, "t probe c"]
    prediction: Float[Tensor, "t probe c"]


def probe_series(frames: Frames) -> ProbeSeries:
    """Series at the probes of a trajectory, of which there may be none."""
    known, shape = frames.known, frames.spec.grid.shape
    enough = known.double().mean(0) >= KNOWN_SHARE  # (y, x)
    rule: Literal["wake", "lattice"] = "wake"
    places = _usable(_wake_places(frames), enough)
    if not places:
        rule, places = "lattice", _usable(_lattice_places(shape), enough)
    rows, columns = [row for row, _ in places], [column for _, column in places]
    here = known[:, rows, columns].cpu().numpy()
    return ProbeSeries(
        rule=rule,
        places=tuple(places),
        channels=frames.spec.channels,
        dt=frames.spec.dt or 1.0,
        truth=_bridged(frames.truth[:, :, rows, columns], here),
        prediction=_bridged(frames.prediction[:, :, rows, columns], here),
    )


def body_extent(frames: Frames) -> tuple[float, float, float] | None:
    """Row and column of the centre and height of the usual body of a trajectory, in points."""
    if frames.body is None:
        return None
    solid = frames.body.double().mean(0) >= 0.5
    place = locate(solid[None], frames.spec.grid)
    if not bool(place.present):
        return None
    height = round(float(place.diameter) / frames.spec.grid.dy)
    return float(place.centre_y), float(place.centre_x), float(height)


def official_probes(
    shape: tuple[int, int],
    *,
    centre: tuple[int, int],
    diameter: int,
    stride: int = 1,
    corrected: bool = False,
) -> Probes:
    """Row and column of the 36 probes of mvpe: nine rows at four stations downstream.

    Args:
        shape: Rows and columns of the fields.
        centre: Of the cylinder, (x, y) in points before striding; (32, 32) in their cylinder set.
        diameter: In points before striding; 18 there.
        stride: Of the fields.
        corrected: Stations are 1, 2, 3 and 4 diameters off; where the farthest does not fit, 1,
            1.5, 2 and 2.5. As coded it is the second that must fit: the fourth may lie outside.
    """
    ny, nx = shape
    tested = centre[0] + (4 if corrected else 2) * diameter
    steps = (1.0, 2.0, 3.0, 4.0) if tested // stride < nx else (1.0, 1.5, 2.0, 2.5)
    columns = [int((centre[0] + step * diameter) / stride) for step in steps]
    rows = [centre[1] // stride + 2 * j for j in range(-4, 5)]
    if max(columns) >= nx or min(rows) < 0 or max(rows) >= ny:
        raise ValueError(
            f"expected probes within {ny} rows and {nx} columns, found rows {rows[0]} to "
            f"{rows[-1]} and columns {columns}; corrected=True keeps stations inside"
        )
    return tuple((row, column) for column in columns for row in rows)


def body_probes(frames: Frames, *, corrected: bool = False) -> Probes:
    """The official probes behind a trajectory's body; none without one, or where they do not fit.

    The body is that of ``body_extent``, its diameter is taken in columns.
    """
    body, grid = body_extent(frames), frames.spec.grid
    if body is None:
        return ()
    row, column, height = body
    centre, diameter = (round(column), round(row)), max(1, round(height * grid.dy / grid.dx))
    try:
        return official_probes(grid.shape, centre=centre, diameter=diameter, corrected=corrected)
    except ValueError:
        return ()


def _wake_places(frames: Frames) -> list[tuple[int, int]]:
    body, grid = body_extent(frames), frames.spec.grid
    if body is None:
        return []
    row, column, height = body
    wide = height * grid.dy / grid.dx  # D in columns
    return [
        (round(row + across * height), round(column + along * wide))
        for along in DOWNSTREAM
        for across in ACROSS
    ]


def _lattice_places(shape: tuple[int, int]) -> list[tuple[int, int]]:
    middles = [[int((i + 0.5) * n / LATTICE) for i in range(LATTICE)] for n in shape]
    return [(row, column) for row in middles[0] for column in middles[1]]


def _usable(places: list[tuple[int, int]], enough: Bool[Tensor, "y x"]) -> list[tuple[int, int]]:
    (ny, nx), allowed = enough.shape, enough.cpu()
    inside = (p for p in dict.fromkeys(places) if 0 <= p[0] < ny and 0 <= p[1] < nx)
    return [place for place in inside if bool(allowed[place])]


def _bridged(
    values: Float[Tensor, "t c probe"], known: Bool[np.ndarray, "t probe"]
) -> Float[Tensor, "t probe c"]:
    """The series with frames that are not known put in linearly in time."""
    found = values.double().transpose(1, 2).contiguous()
    times = np.arange(len(known))
    for probe in np.flatnonzero(~known.all(0)).tolist():
        here = known[:, probe]
        for channel in range(found.shape[2]):
            series = found[:, probe, channel].cpu().numpy()
            filled = np.interp(times, times[here], series[here])
            found[:, probe, channel] = torch.from_numpy(filled).to(found)
    return found
