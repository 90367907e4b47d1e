"""``pibert calibrate``: prediction intervals and the out-of-distribution warning of a model."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pibert.cli.options import Json, SourceOptions, choice, option, with_options
from pibert.cli.terminal import say, show_json, show_note, show_table
from pibert.notes import Note, Notes, collecting

if TYPE_CHECKING:
    from pibert.inference.calibration import Calibration

_SHOWN = 3
"""Notes on the flows that are printed in full: trajectories may have the same ones."""


@with_options
def calibrate(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="Calibrate this run; with --data any model folder, or a shipped model.",
        ),
    ],
    source: SourceOptions,
    data: Annotated[
        Path | None,
        option(
            "Calibrate on these flows, which neither training nor selection may have seen. "
            "Default: the calibration split of the run, or its test split if it has none."
        ),
    ] = None,
    out: Annotated[Path | None, option("Write to this folder. Default: that of the model.")] = None,
    difficulty: Annotated[
        str | None,
        option(
            "Choose what the interval width follows: constant, residual (tabulated from past "
            "errors) or ensemble (the members' spread). Default: residual; with members, ensemble."
        ),
    ] = None,
    member: Annotated[
        list[Path] | None,
        option("Add another run of the experiment, with another seed. Repeatable."),
    ] = None,
    leads: Annotated[int, option("Calibrate intervals for this many frames ahead.")] = 8,
    starts: Annotated[
        int | None,
        option(
            "Take at most this many rollouts from each trajectory. Default: 16; where windows "
            "count as independent, enough for about 128 in all."
        ),
    ] = None,
    independent: Annotated[
        str | None,
        option(
            "Choose what counts as independent: trajectories or windows. Default: trajectories if "
            "there are 19 or more."
        ),
    ] = None,
    overwrite: Annotated[bool, option("Replace an existing calibration.", "--overwrite")] = False,
    as_json: Json = False,
) -> None:
    """Calibrate prediction intervals and out-of-distribution warnings.

    Uses held-out flows. Writes calibration.json and calibration.safetensors beside the model, or
    to --out.

    Example: pibert calibrate runs/wake

    Example: pibert calibrate runs/wake --member runs/wake-1 --member runs/wake-2

    Example: pibert calibrate cylinder-base --data new.h5 --out calibrated

    Example: pibert calibrate runs/wake --data new.npz --unit m/s --dt 0.01 --out calibrated
    """
    import torch

    from pibert.experiments.calibration import calibrate_on, calibrate_run
    from pibert.inference import load
    from pibert.inference.calibration import CalibrationSettings
    from pibert.inference.difficulty import KINDS

    if independent is not None:
        choice("--independent", independent, ("trajectories", "windows"))
    settings = CalibrationSettings(
        difficulty=choice(
            "--difficulty", difficulty or ("residual", "ensemble")[bool(member)], KINDS
        ),
        leads=leads,
        starts=starts,
        units=independent,  # type: ignore[arg-type]
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    how: Any = {"members": member or [], "device": device, "out": out, "overwrite": overwrite}
    notes = Notes()
    try:
        with collecting(notes):
            if data is None:
                source.refuse_without_data()
                calibration = calibrate_run(folder, settings, **how)
            else:
                stated = source.as_settings()
                calibration = calibrate_on(folder, data, settings, stated=stated, **how)
    finally:
        for note in list(notes)[:_SHOWN]:
            show_note(note)
        if len(notes) > _SHOWN:
            show_note(f"{len(notes) - _SHOWN} more of this kind")
    _show(calibration, load(folder).spec.channels, folder, out or folder, as_json)


def _show(
    calibration: "Calibration", channels: Sequence[str], model: Path, folder: Path, as_json: bool
) -> None:
    from pibert.inference.calibration_file import SHEET, TENSORS, summarise_coverage

    rows = summarise_coverage(calibration, channels)
    if as_json:
        return show_json(
            {
                "rests_on": calibration.assumption(),
                "guide": calibration.difficulty.guide,
                "ood_scores": list(calibration.detector.names),
                "coverage": rows,
                "written": [str(folder / name) for name in (SHEET, TENSORS)],
            }
        )
    console = Console()
    say(console, f"Calibrated on {calibration.assumption()}.")
    say(console, f"Interval widths depend on: {calibration.difficulty.guide}.")
    say(console, f"The out-of-distribution warning uses: {', '.join(calibration.detector.names)}.")
    for note in _notes_on(calibration, rows):
        show_note(note)
    if rows:
        say(console, "Coverage of each trajectory by intervals from the others:")
        columns = ("level", "lead", "channel", "coverage", "lowest", "highest")
        texts = ([v if isinstance(v, str) else f"{v:.3g}" for v in row.values()] for row in rows)
        show_table(console, columns, texts)
    say(console, f"Wrote {folder / SHEET}.")
    elsewhere = model.resolve() != folder.resolve()
    where = f" --calibration {shlex.quote(str(folder))}" if elsewhere else ""
    command = f"pibert predict FILE --model {shlex.quote(str(model))}{where} --level 0.9"
    say(console, f"Predict with intervals: {command} --out next.nc")


def _notes_on(calibration: "Calibration", rows: Sequence[Mapping[str, Any]]) -> Iterator[Note]:
    """Notes on a warning that cannot flag anything, and on intervals that cover too little."""
    from pibert.inference.conformal import is_short

    if (note := calibration.detector.note()) is not None:
        yield note
    if not rows:
        return
    worst = min(rows, key=lambda row: row["coverage"] - row["level"])
    if is_short(worst["coverage"], worst["level"]):
        yield Note(
            "low-coverage",
            f"intervals of level {worst['level']:g} contain only {worst['coverage']:.3f} of the "
            f"true {worst['channel']} at lead {worst['lead']} on flows that did not calibrate: "
            "the flows differ too much",
            "calibrate on more flows",
        )
