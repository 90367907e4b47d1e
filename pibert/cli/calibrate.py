"""``pibert calibrate``: error bars and an alarm for the model of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pibert.cli.flow_input import noting_warnings
from pibert.cli.options import Json, SourceOptions, with_source
from pibert.cli.terminal import say, show_json

if TYPE_CHECKING:
    from pibert.trust.calibration import Calibration

_NOTED = 3
"""Warnings of the flows that are told in full."""


@with_source
def calibrate(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="A finished run; with --data any model folder, or the name of a shipped model.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Flows that neither training nor selection saw, all of which calibrate; you "
            "vouch for that. If not given: the calibration share of the run.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to, instead of the model's own.")
    ] = None,
    difficulty: Annotated[
        str | None,
        typer.Option(
            help="What the width of a bar follows: constant, residual (tabulated from past "
            "errors) or ensemble (the members' spread). residual if not given, ensemble with "
            "members.",
        ),
    ] = None,
    member: Annotated[
        list[Path] | None,
        typer.Option(help="Another run of the experiment, with another seed; repeat for more."),
    ] = None,
    leads: Annotated[int, typer.Option(help="Frames ahead that get bars of their own.")] = 8,
    starts: Annotated[
        int | None,
        typer.Option(
            help="Rollouts from each trajectory, at most. If not given 16, and where windows count "
            "as independent as many as make about 128 in all.",
            show_default=False,
        ),
    ] = None,
    units: Annotated[
        str | None,
        typer.Option(
            help="What counts as independent: trajectories or windows. Trajectories if not given, "
            "where there are 19 or more."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a calibration that is there.")
    ] = False,
    as_json: Json = False,
    *,
    source: SourceOptions | None,
) -> None:
    """Calibrate error bars and an alarm on flows that neither training nor selection saw.

    Writes calibration.json and calibration.safetensors beside the model, or to --out. The plan of a
    run must have a calibration share (data.shares.calibration), or other flows are given: --data.

    Example: pibert calibrate runs/wake

    Example: pibert calibrate runs/wake --member runs/wake-1 --member runs/wake-2

    Example: pibert calibrate cylinder-base --data new.h5 --out calibrated

    Example: pibert calibrate runs/wake --data new.npz --unit m/s --dt 0.01 --out calibrated
    """
    import torch

    from pibert.experiments.calibration import calibrate_on, calibrate_run
    from pibert.predictor import load
    from pibert.trust.calibration import Settings
    from pibert.trust.difficulty import KINDS

    chosen = difficulty or ("ensemble" if member else "residual")
    if chosen not in KINDS:
        raise ValueError(f"--difficulty: expected one of {', '.join(KINDS)}, found {chosen!r}")
    if units not in (None, "trajectories", "windows"):
        raise ValueError(f"--units: expected trajectories or windows, found {units!r}")
    settings = Settings(
        difficulty=chosen,
        leads=leads,
        starts=starts,
        units=units,  # type: ignore[arg-type]
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    how: Any = {"members": member or [], "device": device, "out": out, "overwrite": overwrite}
    noted: list[str] = []
    try:
        with noting_warnings(noted.append):
            if source is None:
                found = calibrate_run(folder, settings, **how)
            else:
                found = calibrate_on(folder, source.path, settings, stated=source.stated(), **how)
    finally:
        _note(noted)
    _tell(found, load(folder).spec.channels, out or folder, as_json)


def _note(warned: list[str]) -> None:
    """Some of what was warned of the flows: each trajectory may have its own warning."""
    different = list(dict.fromkeys(warned))
    for text in different[:_NOTED]:
        say(Console(stderr=True), f"note: {text}")
    if more := different[_NOTED:]:
        say(Console(stderr=True), f"note: {len(more)} more of this kind")


def _tell(found: "Calibration", channels: Sequence[str], folder: Path, as_json: bool) -> None:
    from pibert.trust.alarm import RATE
    from pibert.trust.artefact import SHEET, TENSORS, summarise_coverage

    rows = summarise_coverage(found, channels)
    if as_json:
        return show_json(
            {
                "rests_on": found.assumption(),
                "guide": found.difficulty.guide,
                "alarm": list(found.watch.names),
                "coverage": rows,
                "written": [str(folder / name) for name in (SHEET, TENSORS)],
            }
        )
    console = Console()
    say(console, f"Rests on {found.assumption()}.")
    guide = found.difficulty.guide
    say(console, f"Bars follow: {guide}. Alarm from: {', '.join(found.watch.names)}.")
    if found.watch.lowest > RATE:
        say(
            console,
            f"No alarm can be raised at the accepted rate of {RATE:g}: {found.count} units tell "
            f"p-values from {found.watch.lowest:.3g} up; {found.remedy}.",
        )
    if rows:
        say(console, "Each trajectory covered by bars from the other ones:")
        table = Table("level", "lead", "channel", "coverage", "lowest", "highest")
        for row in rows:
            shares = (f"{row[key]:.3f}" for key in ("coverage", "lowest", "highest"))
            table.add_row(f"{row['level']:g}", str(row["lead"]), row["channel"], *shares)
        console.print(table)
    say(console, f"Wrote {folder / SHEET}.")
