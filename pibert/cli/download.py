"""``pibert download``: published data sets."""

import shlex
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

from pibert.cli.options import choice, option
from pibert.cli.terminal import progress_bar, say

if TYPE_CHECKING:
    from pibert.data.download import RemoteFile

app = typer.Typer(no_args_is_help=True)


@app.callback()
def main() -> None:
    """Download published data sets.

    Rerun the same command to resume an interrupted download.

    Example: pibert download realpdebench cylinder --to data --dry-run
    """


@app.command()
def realpdebench(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            help="Download these scenarios: cylinder, fsi, controlled_cylinder, foil ..."
        ),
    ],
    to: Annotated[Path, option("Write to this folder.")],
    kind: Annotated[
        list[str] | None,
        option(
            "Choose measured (real, the default) or simulated (numerical) data. Repeatable.",
            metavar="real|numerical",
        ),
    ] = None,
    what: Annotated[
        str,
        option(
            "Choose splits and parameters (metadata), the fields, or all.",
            metavar="metadata|fields|all",
        ),
    ] = "all",
    mirror: Annotated[
        Path | None, option("Copy from a folder laid out like the hub instead.", "--from")
    ] = None,
    revision: Annotated[
        str | None,
        option("Use this branch, tag or commit of the data set. Default: its main branch."),
    ] = None,
    endpoint: Annotated[
        str | None, option("Use another address of the hub, such as a mirror's.")
    ] = None,
    dry_run: Annotated[bool, option("Only show the sizes.", "--dry-run")] = False,
) -> None:
    """Download scenarios of RealPDEBench from the Hugging Face hub, or copy them from a folder.

    Example: pibert download realpdebench cylinder fsi --to data/realpdebench --kind real
    """
    from pibert.data.download import FolderHub, Hub, HuggingFaceHub, download, size_text

    kinds = [choice("--kind", name, ("real", "numerical")) for name in kind or ["real"]]
    parts = choice("--what", what, ("metadata", "fields", "all"))
    if mirror is not None and (revision or endpoint):
        raise ValueError("--revision and --endpoint are for the hub, not for a folder (--from)")
    hub: Hub = HuggingFaceHub(revision=revision, endpoint=endpoint)
    if mirror is not None:
        hub = FolderHub(mirror)
    get = partial(download, to, kinds=kinds, what=parts, hub=hub)
    plans = [get(name, dry_run=True) for name in scenarios]
    # Scenarios share some files.
    missing = {file for plan in plans for file in plan.missing}
    present = {file for plan in plans for file in plan.present}
    console, free = Console(), plans[0].free
    _show_sizes(console, missing, present)
    say(console, f"The disk of {to} has {size_text(free)} left.")
    if dry_run:
        return
    if (wanted := sum(file.size for file in missing)) > free:
        raise ValueError(
            f"{to}: {size_text(wanted)} are to be fetched, but the disk has {size_text(free)} "
            "left; make room or choose another folder"
        )
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    try:
        with progress_bar(console, *columns) as progress:
            for name in scenarios:
                # The hub's library shows its own bars.
                task = progress.add_task(name, visible=mirror is not None)
                get(name, on_progress=partial(_update, progress, task))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted: rerun the command to resume") from None
    if what == "metadata":
        say(console, f"Splits and parameters are in {to}. The fields come with --what fields.")
        return
    say(console, f"Everything is in {to}. Look at it:")
    for name in scenarios:
        for type_ in kinds:
            command = f"pibert inspect {shlex.quote(str(to))} --scenario {name} --type {type_}"
            say(console, f"  {command}")


def _update(progress: Progress, task: TaskID, done: int, total: int) -> None:
    progress.update(task, completed=done, total=total)


def _show_sizes(console: Console, missing: "set[RemoteFile]", present: "set[RemoteFile]") -> None:
    from pibert.data.download import size_text

    table = Table("folder")
    for heading in ("files", "to fetch", "already present"):
        table.add_column(heading, justify="right")

    def row(title: str, folder: PurePosixPath | None) -> list[str]:
        groups = [
            [f.size for f in files if folder in (None, PurePosixPath(f.path).parent)]
            for files in (missing, present)
        ]
        return [title, str(sum(map(len, groups))), *(size_text(sum(sizes)) for sizes in groups)]

    for folder in sorted({PurePosixPath(file.path).parent for file in missing | present}):
        table.add_row(*row(str(folder), folder))
    table.add_section()
    table.add_row(*row("total", None))
    console.print(table)
