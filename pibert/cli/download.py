"""``pibert download``: published data sets."""

import shlex
from collections import Counter
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from pibert.cli import options
from pibert.cli.terminal import progress_bar, say

if TYPE_CHECKING:
    from pibert.data.download import Plan, RemoteFile

app = typer.Typer(no_args_is_help=True)


@app.callback()
def main() -> None:
    """Download published data sets; rerun to resume an interrupted transfer.

    Example: pibert download realpdebench cylinder --to data --dry-run
    """


@app.command()
def realpdebench(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            help="Download these scenarios: cylinder, fsi, controlled_cylinder, foil ...",
            show_default=False,
        ),
    ],
    to: Annotated[Path, typer.Option(help="Write to this folder.", show_default=False)],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Choose measured (default) or simulated data. Repeatable.",
            metavar="real|numerical",
        ),
    ] = None,
    what: Annotated[
        str,
        typer.Option(
            help="Choose splits and parameters, the fields, or all.", metavar="metadata|fields|all"
        ),
    ] = "all",
    mirror: Annotated[
        Path | None,
        typer.Option("--from", help="Copy from a folder laid out like the hub instead."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Use this branch, tag or commit of the data set.")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Use another address of the hub, such as a mirror's.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the sizes.")] = False,
) -> None:
    """Download scenarios of RealPDEBench from the Hugging Face hub, or copy them from a folder.

    Example: pibert download realpdebench cylinder fsi --to data/realpdebench --kind real
    """
    from pibert.data.download import FolderHub, Hub, HuggingFaceHub, download

    kinds = [options.choice("--kind", name, ("real", "numerical")) for name in kind or ["real"]]
    parts = options.choice("--what", what, ("metadata", "fields", "all"))
    if mirror is not None and (revision or endpoint):
        raise ValueError("--revision and --endpoint are for the hub, not for a folder (--from)")
    hub: Hub = HuggingFaceHub(revision=revision, endpoint=endpoint)
    if mirror is not None:
        hub = FolderHub(mirror)
    plans = [download(to, name, kinds, parts, hub=hub, dry_run=True) for name in scenarios]
    console = Console()
    _show_sizes(console, to, plans)
    if dry_run:
        return
    _check_space(to, plans)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    try:
        with progress_bar(console, *columns) as progress:
            for name in scenarios:
                # The hub's library draws bars of its own.
                task = progress.add_task(name, visible=mirror is not None)
                show = partial(_update, progress, task)
                download(to, name, kinds, parts, hub=hub, on_progress=show)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted: rerun the command to resume") from None
    _show_end(console, to, scenarios, kinds, parts)


def _update(progress: Progress, task: TaskID, done: int, total: int) -> None:
    progress.update(task, completed=done, total=total)


def _missing(plans: "list[Plan]") -> "set[RemoteFile]":
    """All scenarios have the files beside them in common."""
    return {file for plan in plans for file in plan.missing}


def _show_sizes(console: Console, to: Path, plans: "list[Plan]") -> None:
    from pibert.data.download import size_text

    missing = _missing(plans)
    present = {file for plan in plans for file in plan.present}
    table = Table("folder")
    for heading in ("files", "to fetch", "there already"):
        table.add_column(heading, justify="right")
    folders = [PurePosixPath(file.path).parent for file in missing | present]
    for folder, count in sorted(Counter(folders).items()):
        sizes = [
            sum(file.size for file in files if PurePosixPath(file.path).parent == folder)
            for files in (missing, present)
        ]
        table.add_row(str(folder), str(count), *map(size_text, sizes))
    table.add_section()
    totals = [size_text(sum(file.size for file in files)) for files in (missing, present)]
    table.add_row("total", str(len(folders)), *totals)
    console.print(table)
    say(console, f"The disk of {to} has {size_text(plans[0].free)} left.")


def _check_space(to: Path, plans: "list[Plan]") -> None:
    """For all scenarios together, before any of them is begun."""
    from pibert.data.download import size_text

    wanted, free = sum(file.size for file in _missing(plans)), plans[0].free
    if wanted > free:
        raise ValueError(
            f"{to}: {size_text(wanted)} are to be fetched, but the disk has {size_text(free)} "
            "left; make room or choose another folder"
        )


def _show_end(
    console: Console, to: Path, scenarios: list[str], kinds: list[str], parts: str
) -> None:
    if parts == "metadata":
        say(console, f"Splits and parameters are in {to}. The fields come with --what fields.")
        return
    say(console, f"Everything is in {to}. Look at it:")
    for scenario in scenarios:
        for kind in kinds:
            place = shlex.quote(str(to))
            say(console, f"  pibert inspect {place} --scenario {scenario} --type {kind}")
