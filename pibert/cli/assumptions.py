"""Units, spacing and time step of a flow beside the model's, and what is assumed without them."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from pibert.data.counted import counts_frames, counts_points

if TYPE_CHECKING:
    from pibert.fields import Grid, Trajectory
    from pibert.predictor import Predictor

Remark = Callable[[str], None]
SAME_STEP = 0.01
"""Relative: times and time steps that differ by less of a step are the same."""


def in_units(view: "Trajectory", predictor: "Predictor", remark: Remark) -> "Trajectory":
    """In consistent units where those are the model's, else as it is."""
    from pibert.data.units import assume_units, in_consistent_units, names_pixels

    units = predictor.spec.units
    view = assume_units(view, units, remark)
    scaled = in_consistent_units(view)
    fit = view if view.spec.units == units != scaled.spec.units else scaled
    for name, mine, theirs in zip(view.spec.channels, units, fit.spec.units, strict=True):
        if mine != theirs and "1" not in (mine, theirs):
            advice = "; give --scale and --pulse-delay" if names_pixels(theirs) else ""
            raise ValueError(
                f"trajectory {view.name!r}: expected {name!r} in {mine}, as the model was trained, "
                f"found {theirs}{advice}"
            )
    if fit is not view:
        remark("brought to metres and seconds, as the model")
    grid = predictor.spec.grid
    if is_counted(fit, grid):
        remark(
            "no spacing is stated: it is assumed that the points cover the model's domain, "
            f"{grid.shape[1] * grid.dx:.4g} x {grid.shape[0] * grid.dy:.4g} (--dx, --dy)"
        )
    return fit


def is_counted(trajectory: "Trajectory", model: "Grid") -> bool:
    """Whether coordinates are numbers of points, as where nothing states them; not so the model's.

    Args:
        trajectory: Any flow.
        model: The grid of the model.
    """
    return counts_points(trajectory) and (model.dx, model.dy) != (1, 1)


def compare_steps(fit: "Trajectory", predictor: "Predictor", remark: Remark) -> None:
    mine, theirs = predictor.spec.dt, fit.spec.dt
    if mine is not None and counts_frames(fit):
        remark(
            f"no time step is stated: it is assumed that frames are {mine:g} apart, as the steps "
            "of the model; times count frames (--dt)"
        )
    if mine is None or (theirs is not None and math.isclose(mine, theirs, rel_tol=SAME_STEP)):
        return
    rule = "truth is taken only from frames recorded at the times of predicted ones"
    if theirs is None:
        if not counts_frames(fit) and fit.num_frames > 1:
            remark(f"the frames are not evenly apart, the model steps by {mine:g}: {rule}")
        return
    text = f"the frames are {theirs:g} apart, the model steps by {mine:g}: {rule}"
    times = mine / theirs
    if times > 1.5 and math.isclose(times, round(times), rel_tol=0.01):
        text += f"; --stride {round(times)} takes the frames that fit"
    remark(text)
