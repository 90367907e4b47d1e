"""``pibert calibrate``: prediction intervals and the out-of-distribution warning of a model."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pibert.cli.options import Json, SourceOptions, with_source
from pibert.cli.terminal import say, show_json, show_note
from pibert.notes import Note, Notes, collecting

if TYPE_CHECKING:
    from pibert.inference.calibration import Calibration

_NOTED = 3
"""Notes on the flows that are printed in full."""


@with_source
def calibrate(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="Calibrate this run; with --data any model folder, or a shipped model.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Calibrate on these flows, which neither training nor selection may have seen. "
            "Default: the calibration split of the run, or its test split if it has none.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write to this folder. Default: the model's own.")
    ] = None,
    difficulty: Annotated[
        str | None,
        typer.Option(
            help="Choose what the interval width follows: constant, residual (tabulated from past "
            "errors) or ensemble (the members' spread). Default: residual; with members, "
            "ensemble.",
        ),
    ] = None,
    member: Annotated[
        list[Path] | None,
        typer.Option(help="Add another run of the experiment, with another seed. Repeatable."),
    ] = None,
    leads: Annotated[int, typer.Option(help="Calibrate intervals for this many frames ahead.")] = 8,
    starts: Annotated[
        int | None,
        typer.Option(
            help="Take at most this many rollouts from each trajectory. Default: 16; where windows "
            "count as independent, enough for about 128 in all.",
            show_default=False,
        ),
    ] = None,
    units: Annotated[
        str | None,
        typer.Option(
            help="Choose what counts as independent: trajectories or windows. Default: "
            "trajectories if there are 19 or more."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing calibration.")
    ] = False,
    as_json: Json = False,
    *,
    source: SourceOptions | None,
) -> None:
    """Calibrate prediction intervals and the out-of-distribution warning on held-out flows.

    Writes calibration.json and calibration.safetensors beside the model, or to --out.

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

    chosen = difficulty or ("ensemble" if member else "residual")
    if chosen not in KINDS:
        raise ValueError(f"--difficulty: expected one of {', '.join(KINDS)}, found {chosen!r}")
    if units not in (None, "trajectories", "windows"):
        raise ValueError(f"--units: expected trajectories or windows, found {units!r}")
    settings = CalibrationSettings(
        difficulty=chosen,
        leads=leads,
        starts=starts,
        units=units,  # type: ignore[arg-type]
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    how: Any = {"members": member or [], "device": device, "out": out, "overwrite": overwrite}
    notes = Notes()
    try:
        with collecting(notes):
            if source is None:
                found = calibrate_run(folder, settings, **how)
            else:
                found = calibrate_on(folder, source.path, settings, stated=source.stated(), **how)
    finally:
        _show_notes(notes)
    _show(found, load(folder).spec.channels, folder, out or folder, as_json)


def _show_notes(notes: Notes) -> None:
    """Some notes: each trajectory may have its own of the same kind."""
    found = list(notes)
    for note in found[:_NOTED]:
        show_note(note)
    if more := found[_NOTED:]:
        show_note(Note("more", f"{len(more)} more of this kind"))


def _show(
    found: "Calibration", channels: Sequence[str], model: Path, folder: Path, as_json: bool
) -> None:
    from pibert.inference.calibration_file import SHEET, TENSORS, summarise_coverage

    rows = summarise_coverage(found, channels)
    if as_json:
        return show_json(
            {
                "rests_on": found.assumption(),
                "guide": found.difficulty.guide,
                "ood_scores": list(found.detector.names),
                "coverage": rows,
                "written": [str(folder / name) for name in (SHEET, TENSORS)],
            }
        )
    console = Console()
    say(console, f"Calibrated on {found.assumption()}.")
    say(console, f"The width of an interval follows: {found.difficulty.guide}.")
    say(console, f"The out-of-distribution warning uses: {', '.join(found.detector.names)}.")
    for note in _notes_on(found, rows):
        show_note(note)
    if rows:
        say(console, "Coverage of each trajectory by intervals from the others:")
        table = Table("level", "lead", "channel", "coverage", "lowest", "highest")
        for row in rows:
            shares = (f"{row[key]:.3f}" for key in ("coverage", "lowest", "highest"))
            table.add_row(f"{row['level']:g}", str(row["lead"]), row["channel"], *shares)
        console.print(table)
    say(console, f"Wrote {folder / SHEET}.")
    own = model.resolve() == folder.resolve()
    where = "" if own else f" --calibration {shlex.quote(str(folder))}"
    command = f"pibert predict FILE --model {shlex.quote(str(model))}{where} --level 0.9"
    say(console, f"Predict with intervals: {command} --out next.nc")


def _notes_on(found: "Calibration", rows: Sequence[Mapping[str, Any]]) -> Iterator[Note]:
    """Notes on a warning that cannot flag anything, and on intervals that cover too little."""
    from pibert.inference.conformal import is_short
    from pibert.inference.ood import RATE

    if found.detector.lowest > RATE:
        text = (
            f"the out-of-distribution warning cannot flag any input at the accepted rate of "
            f"{RATE:g}: with {found.count} calibration units no p-value is below "
            f"{found.detector.lowest:.3g}"
        )
        yield Note("ood-unresolved", text, found.remedy)
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
