"""``pibert inspect``: what flow data hold, what looks wrong, and a picture."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pibert.cli import options
from pibert.cli.tables import show_columns, show_facts, show_findings
from pibert.cli.terminal import say, show_json


@options.with_source
def inspect(
    path: options.Source,
    picture: Annotated[
        Path | None,
        typer.Option(help="Where the picture goes (PNG) instead of outputs/."),
    ] = None,
    as_json: Annotated[bool, options.json_option("Print JSON, draw no picture.")] = False,
    *,
    source: options.SourceOptions,
) -> None:
    """Summarise a file or folder of flow data, flag problems and plot a preview.

    Example: pibert inspect recording.mat --dt 0.01 --length-unit mm

    Example: pibert inspect data/realpdebench --scenario cylinder --type real
    """
    from pibert.data.inspection.judge import inspect as look
    from pibert.data.sources.recordings import Hints, SourceError

    try:
        recordings = source.open()
    except SourceError as error:
        # A table of curves is one file; of several, what keeps them apart is to be told.
        if path.is_file() and source.identify() == "table" and source.hints == Hints():
            return show_columns(path, str(error), as_json)
        raise
    inspection = look(recordings)
    if as_json:
        show_json(inspection.to_dict())
        return
    console = Console()
    show_facts(console, inspection.facts)
    show_findings(console, inspection.problems)
    from pibert.report.inspection import draw_inspection

    # A pattern is no name for a file.
    name = path.resolve().name.split(".")[0] if path.exists() else recordings.names[0]
    out = picture or Path("outputs") / f"{name}.png"
    say(console, f"Picture: {draw_inspection(out, recordings[0], inspection)}")
