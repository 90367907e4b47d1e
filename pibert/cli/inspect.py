"""``pibert inspect``: a summary of flow data, flagged problems and a preview."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pibert.cli import options
from pibert.cli.terminal import say, show_json, show_table

if TYPE_CHECKING:
    from pibert.data.inspection.checks import Finding
    from pibert.data.inspection.survey import Survey


@options.with_options
def inspect(
    path: options.Source,
    source: options.SourceOptions,
    picture: Annotated[
        Path | None,
        options.option(
            "Write the preview to this .png, .pdf or .svg file. Default: outputs/NAME.png."
        ),
    ] = None,
    as_json: Annotated[
        bool, options.json_option("Print JSON instead of tables, without a preview.")
    ] = False,
) -> None:
    """Summarise flow data, flag problems, plot a preview.

    Example: pibert inspect recording.mat --dt 0.01 --length-unit mm

    Example: pibert inspect data/realpdebench --scenario cylinder --type real
    """
    from pibert.data.inspection.checks import inspect as run_checks
    from pibert.data.readers import identify
    from pibert.data.readers.recordings import Hints, SourceError

    try:
        recordings = source.open(path)
    except SourceError as error:
        is_table = path.is_file() and (source.kind or identify(path)) == "table"
        if is_table and source.hints == Hints():
            return _show_columns(path, str(error), as_json)
        raise
    inspection = run_checks(recordings)
    if as_json:
        return show_json(inspection.to_dict())
    console = Console()
    _show_facts(console, inspection.facts)
    _show_findings(console, inspection.problems)
    from pibert.report.inspection import draw_inspection

    # A pattern is not a file name.
    name = path.resolve().name.split(".")[0] if path.exists() else recordings.names[0]
    out = picture or Path("outputs") / f"{name}.png"
    say(console, f"Picture: {draw_inspection(out, recordings[0], inspection)}")


def _show_facts(console: Console, facts: "Survey") -> None:
    from pibert.data.wording import counted

    (ny, nx), (dx, dy), (x, y) = facts.shape, facts.spacing, facts.origin
    length, clock = (f" {u}" if u else "" for u in (facts.length_unit, facts.time_unit))
    fewest, most = facts.frames
    frames = f"{fewest} to " if fewest != most else ""
    dt = "not stated" if facts.dt is None else f"{facts.dt:g}{clock}"
    times = f"{facts.time[0]:g} to {facts.time[1]:g}{clock}, dt {dt}"
    rows = {
        "kind": facts.kind,
        "trajectories": f"{facts.trajectories}, with {frames}{counted(most, 'frame')}; "
        f"what follows is from {counted(facts.frames_read, 'frame')} of {facts.opened}",
        "grid": f"{ny} x {nx} (rows x columns), dx {dx:g}, dy {dy:g}{length}",
        "extent": f"x {x:g} to {x + (nx - 1) * dx:g}, y {y:g} to {y + (ny - 1) * dy:g}{length}",
        "time": "one frame" if most == 1 else times,
        "sides": _describe_sides(facts.sides),
        "family": facts.family or "not stated",
        "points": f"body {facts.body_share:.1%}, missing {facts.missing_share:.1%} of the rest",
    }
    if facts.filled_share:
        rows["points"] += f", filled {facts.filled_share:.2%}"
    if facts.divergence is not None:
        found, rate = facts.divergence, "" if facts.conversion is None else " 1/s"
        rows["divergence"] = (
            f"rms {found.rms:.3g}{rate}, {found.level:.3f} of the velocity gradient "
            f"({found.as_is.level:.3f} averaged over 3 x 3 points); plane flow 0 to 0.05, "
            "a plane in turbulence about 0.4, noise 0.7"
        )
    if facts.outliers is not None:
        rows["outliers"] = f"{facts.outliers:.2%} of the vectors do not fit their neighbours"
    if facts.parameters:
        rows["parameters"] = ", ".join(
            f"{name} {low:g}" if low == high else f"{name} {low:g} to {high:g}"
            for name, (low, high) in facts.parameters.items()
        )
    if facts.series:
        rows["per frame"] = ", ".join(facts.series)
    for key, value in facts.source.items():
        if value is not None:
            rows[f"stated {key}" if key in rows else key] = str(value)
    table = Table(show_header=False, box=None)
    for key, value in rows.items():
        table.add_row(Text(key, "bold"), Text(value))
    console.print(table)
    columns = ("channel", "unit", "lowest", "highest", "mean", "deviation")
    statistics = []
    for channel in facts.channels:
        numbers = (channel.low, channel.high, channel.mean, channel.std)
        shown = ("–" if facts.is_empty else f"{number:.4g}" for number in numbers)
        statistics.append((channel.name, channel.unit, *shown))
    show_table(console, columns, statistics)
    for note in facts.notes:
        say(console, f"Note: {note}")


def _describe_sides(sides: Sequence[str]) -> str:
    left, right, bottom, top = ("not stated" if kind == "open" else kind for kind in sides)
    if left == right == bottom == top:
        return left
    return f"left {left}, right {right}, bottom {bottom}, top {top}"


def _show_findings(console: Console, findings: "tuple[Finding, ...]") -> None:
    for finding in findings:
        style, word = ("bold red", "check") if finding.serious else ("bold", "note")
        text = Text(f"{word} {finding.topic}: ", style)
        text.append(f"{finding.seen}; {finding.why}. ", "not bold default")
        text.append(f"What to do: {finding.advice}.", "not bold default")
        console.print(text, soft_wrap=True)
    if not findings:
        console.print("Nothing looks wrong.")


def _show_columns(path: Path, reason: str, as_json: bool) -> None:
    """Show the columns of a table that holds no field, and their ranges."""
    from pibert.data.readers.shared.files import read_columns
    from pibert.data.wording import counted

    content = read_columns(path)
    ranges = {
        name: (float(values.min()), float(values.max()))
        for name, values in zip(content.names, content.values.T, strict=True)
    }
    if as_json:
        return show_json({"kind": "table", "rows": len(content.values), "columns": ranges})
    console = Console()
    say(console, f"{path.name}: {counted(len(content.values), 'row')}")
    rows = ((name, f"{low:.6g}", f"{high:.6g}") for name, (low, high) in ranges.items())
    show_table(console, ("column", "lowest", "highest"), rows)
    say(console, f"no field: {reason}")
