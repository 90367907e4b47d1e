"""Filling missing vectors and replacing outliers of a recording with a pretrained model."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pibert.data.filling import FillSettings
from pibert.fields import FieldSpec, Grid, Trajectory
from pibert.inference.predictor import Predictor
from pibert.inference.recording import AddNote, check_units, fit_units, units_of
from pibert.notes import Note, Notes

_SAME_SPACING = 0.01
_OTHER_UNITS = 0.9
"""A spacing that differs by more (a factor of ten) must be in other units."""


def fill_settings(
    predictor: Predictor,
    folder: Path,
    *,
    flag_outliers: bool = True,
    noise: float | None = None,
    fill_masked: bool = False,
) -> FillSettings:
    """Settings to fill recordings with the reconstruction head of a model.

    Args:
        predictor: With a trained reconstruction head.
        folder: Of the model.
        flag_outliers: Whether vectors that do not fit their neighbours are replaced.
        noise: Accepted fluctuation of the velocity; None: a tenth of its deviation in a recording.
        fill_masked: Also fill points that no frame of a recording knows.
    """
    if not predictor.card["trained"]["reconstruct"]:
        remedy = "pretrain one: pibert pretrain --config FILE --out RUN"
        if (folder / "pretraining" / "model.json").exists():
            remedy = f"use its pretraining: --model {folder / 'pretraining'}"
        raise ValueError(
            f"{folder}: this model was not trained to fill gaps; {remedy}, or fill "
            "without a model: pibert fill FILE --out OUT (in Python flow.fill())"
        )
    spec = predictor.spec
    if spec.velocity is None and noise is None:
        flag_outliers = False  # there are no vectors to test
    weights = predictor.card.get("weights", {}).get("sha256")
    # Parameters that a recording does not state are unknown, without a note on every window.
    unknown = dict.fromkeys(spec.parameter_names, math.nan)
    return FillSettings(
        repair=lambda fields, known, given: predictor.fill(fields, known, unknown | dict(given)),
        spec=spec,
        history=predictor.history,
        noise=("usual" if noise is None else noise) if flag_outliers else None,
        fill_masked=fill_masked,
        provenance={"model": folder.resolve().name, "weights_sha256": weights},
        fit=fit_to(spec, predictor.history),
    )


def fit_to(
    spec: FieldSpec, history: int
) -> Callable[[Trajectory, Callable[[str], None]], Trajectory]:
    """``fit_for_filling`` to a model, as ``FillSettings`` takes it."""
    return lambda recording, note: fit_for_filling(
        recording, spec, history, lambda found: note(str(found))
    )


def fit_for_filling(
    trajectory: Trajectory, spec: FieldSpec, history: int, add_note: AddNote
) -> Trajectory:
    """The trajectory in the model's units, if it has the model's channels and grid."""
    name, given = f"trajectory {trajectory.name!r}", trajectory.spec
    if given.channels != spec.channels:
        raise ValueError(
            f"{name}: expected the channels {list(spec.channels)} of the model, found "
            f"{list(given.channels)}; choose and order them with pibert convert --keep, or name "
            "them with --channels"
        )
    if given.grid.shape != spec.grid.shape:
        (ny, nx), (rows, columns) = spec.grid.shape, given.grid.shape
        raise ValueError(
            f"{name}: expected the {ny} x {nx} points of the model, found {rows} x {columns}; "
            f"resample them with pibert convert --size {ny}x{nx}, or train on this grid"
        )
    if trajectory.num_frames < history:
        raise ValueError(
            f"{name}: expected at least {history} frames, which the model takes, found "
            f"{trajectory.num_frames}; take a longer recording"
        )
    notes = Notes()
    fit = fit_units(trajectory, [units_of(spec)], notes.add)
    codes = {note.code for note in notes}
    if "units-assumed" in codes or _alike(given.grid, spec.grid) and given.units == spec.units:
        fit = trajectory  # assumed units are not written to the filled file
    check_units(fit, spec)
    dx, dy = fit.spec.grid.dx, fit.spec.grid.dy
    spacing = f"points are ({dx:g}, {dy:g}) apart, those of the model ({spec.grid.dx:g}, "
    spacing += f"{spec.grid.dy:g})"
    if not _alike(fit.spec.grid, spec.grid, _OTHER_UNITS):
        raise ValueError(
            f"{name}: {spacing}; is the unit of length another one? State it with --length-unit, "
            "or the spacing with --dx and --dy"
        )
    for note in notes:
        if note.code == "units-assumed" or fit is not trajectory:
            text = f"{trajectory.name}: {note.text}"
            add_note(replace(note, text=text, subject=trajectory.name))
    if not _alike(fit.spec.grid, spec.grid):
        add_note(Note("spacing", f"{trajectory.name}: {spacing}", subject=trajectory.name))
    return fit


def _alike(grid: Grid, other: Grid, tolerance: float = _SAME_SPACING) -> bool:
    """Whether the spacings agree."""
    pairs = ((grid.dx, other.dx), (grid.dy, other.dy))
    return all(math.isclose(mine, theirs, rel_tol=tolerance) for mine, theirs in pairs)
