"""Whether the places and times of a flow are counts of points and frames: nothing states them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line imports this module before it needs torch
    from pibert.fields import Trajectory

FRAMES = ("frame", "frames")
"""Units of times that count frames in a file's own words."""


def counts_points(trajectory: "Trajectory") -> bool:
    """Whether its coordinates are the numbers of the points."""
    grid = trajectory.spec.grid
    return trajectory.length_unit is None and (grid.dx, grid.dy, *grid.origin) == (1, 1, 0, 0)


def counts_frames(trajectory: "Trajectory") -> bool:
    """Whether its times are the numbers of the frames."""
    stated = trajectory.spec.dt is not None or trajectory.time_unit is not None
    return not stated and bool((trajectory.time == trajectory.time.round()).all())
