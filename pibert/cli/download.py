"""``pibert download``: published data sets."""

import shlex
from collections.abc import Mapping, Sequence
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

from pibert.cli.options import choice, option
from pibert.cli.terminal import progress_bar, say, show_table

if TYPE_CHECKING:
    from pibert.data.download import Hub, RemoteFile

app = typer.Typer(no_args_is_help=True)

Kinds = Annotated[
    list[str] | None,
    option(
        "Choose measured (real, the default) or simulated (numerical) data. Repeatable.",
        metavar="real|numerical",
    ),
]
Mirror = Annotated[
    Path | None, option("Copy from a folder laid out like the hub instead.", "--from")
]
Revision = Annotated[
    str | None, option("Use this branch, tag or commit of the data set. Default: its main branch.")
]
Endpoint = Annotated[str | None, option("Use another address of the hub, such as a mirror's.")]
DryRun = Annotated[bool, option("Only show the sizes.", "--dry-run")]


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
    kind: Kinds = None,
    what: Annotated[
        str,
        option(
            "Choose splits and parameters (metadata), the fields, or all.",
            metavar="metadata|fields|all",
        ),
    ] = "all",
    mirror: Mirror = None,
    revision: Revision = None,
    endpoint: Endpoint = None,
    dry_run: DryRun = False,
) -> None:
    """Download scenarios of RealPDEBench from the Hugging Face hub, or copy them from a folder.

    Example: pibert download realpdebench cylinder fsi --to data/realpdebench --kind real
    """
    from pibert.data.download import REALPDEBENCH, scenario_files

    kinds = [choice("--kind", name, ("real", "numerical")) for name in kind or ["real"]]
    parts = choice("--what", what, ("metadata", "fields", "all"))
    console, hub = Console(), _hub(REALPDEBENCH, mirror, revision, endpoint)
    wanted = {name: scenario_files(name, kinds, parts) for name in scenarios}
    if not _fetch(console, hub, to, wanted, dry_run, own_bars=mirror is not None):
        return
    if what == "metadata":
        say(console, f"Splits and parameters are in {to}. The fields come with --what fields.")
        return
    for name in scenarios:
        for type_ in kinds:
            _check_shards(to / name / "hf_dataset" / type_, mirror)
    say(console, f"Everything is in {to}. Look at it:")
    for name in scenarios:
        for type_ in kinds:
            command = f"pibert inspect {shlex.quote(str(to))} --scenario {name} --type {type_}"
            say(console, f"  {command}")


@app.command()
def realpde_competition(
    to: Annotated[Path, option("Write to this folder.")],
    kind: Kinds = None,
    mirror: Mirror = None,
    revision: Revision = None,
    endpoint: Endpoint = None,
    dry_run: DryRun = False,
) -> None:
    """Download the training data of the RealPDE competition (NeurIPS 2026): airfoil flows.

    Example: pibert download realpde-competition --to data/realpde-competition
    """
    from pibert.data.download import ARCHIVES, COMPETITION

    kinds = [choice("--kind", name, ("real", "numerical")) for name in kind or ["real"]]
    console, hub = Console(), _hub(COMPETITION, mirror, revision, endpoint)
    archives = [ARCHIVES[name] for name in kinds]
    wanted = {"": ["README.md", *archives]}
    if not _fetch(console, hub, to, wanted, dry_run, own_bars=mirror is not None):
        return
    say(console, "Unpack and look at it:")
    for archive in archives:
        folder = to / archive.removesuffix(".tar.gz")
        packed, here = (shlex.quote(str(path)) for path in (to / archive, to))
        say(console, f"  tar -xzf {packed} -C {here}")
        say(console, f"  pibert inspect {shlex.quote(str(folder))}")


def _hub(repo: str, mirror: Path | None, revision: str | None, endpoint: str | None) -> "Hub":
    from pibert.data.download import FolderHub, HuggingFaceHub

    if mirror is None:
        return HuggingFaceHub(repo, revision=revision, endpoint=endpoint)
    if revision or endpoint:
        raise ValueError("--revision and --endpoint are for the hub, not for a folder (--from)")
    return FolderHub(mirror)


def _check_shards(folder: Path, mirror: Path | None) -> None:
    """Refuse a data set of which the source lacks shards that the data set lists."""
    from pibert.data.readers.realpdebench.rows import missing_shards

    missing, names = missing_shards(folder)
    if missing:
        source = "the hub" if mirror is None else str(mirror)
        raise ValueError(
            f"{folder}: expected the {len(names)} shards that the data set lists, found "
            f"{len(names) - len(missing)}; {source} lacks {', '.join(missing[:3])}: choose a "
            "complete source (--from, --revision), then rerun the command"
        )


def _fetch(
    console: Console,
    hub: "Hub",
    to: Path,
    wanted: Mapping[str, Sequence[str]],
    dry_run: bool,
    *,
    own_bars: bool,
) -> bool:
    """Show the sizes of the files by folder and fetch them; return whether they were fetched."""
    from pibert.data.download import download, size_text

    plans = [download(to, name, files, hub=hub, dry_run=True) for name, files in wanted.items()]
    # Folders share some files.
    missing = {file for plan in plans for file in plan.missing}
    present = {file for plan in plans for file in plan.present}
    free = plans[0].free
    _show_sizes(console, missing, present)
    say(console, f"The disk of {to} has {size_text(free)} left.")
    if dry_run:
        return False
    if (size := sum(file.size for file in missing)) > free:
        raise ValueError(
            f"{to}: {size_text(size)} are to be fetched, but the disk has {size_text(free)} "
            "left; make room or choose another folder"
        )
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    try:
        with progress_bar(console, *columns) as progress:
            for name, files in wanted.items():
                # The hub's library shows its own bars.
                task = progress.add_task(name or "archives", visible=own_bars)
                update = partial(_update, progress, task)
                download(to, name, files, hub=hub, on_progress=update)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted: rerun the command to resume") from None
    return True


def _update(progress: Progress, task: TaskID, done: int, total: int) -> None:
    progress.update(task, completed=done, total=total)


def _show_sizes(console: Console, missing: "set[RemoteFile]", present: "set[RemoteFile]") -> None:
    from pibert.data.download import size_text

    def row(title: str, folder: PurePosixPath | None) -> list[str]:
        groups = [
            [f.size for f in files if folder in (None, PurePosixPath(f.path).parent)]
            for files in (missing, present)
        ]
        return [title, str(sum(map(len, groups))), *(size_text(sum(sizes)) for sizes in groups)]

    folders = sorted({PurePosixPath(file.path).parent for file in missing | present})
    rows = [*(row(str(folder), folder) for folder in folders), row("total", None)]
    show_table(console, ("folder", "files", "to fetch", "already present"), rows, numbers=True)
