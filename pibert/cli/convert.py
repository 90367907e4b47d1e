"""``pibert convert``: flow data of any kind into the native format, or into CFDBench's layout."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from pibert.cli import options
from pibert.cli.terminal import progress_bar, say, show_json

if TYPE_CHECKING:
    from pibert.data.measurement import Measurement
    from pibert.data.sources.recordings import Recordings
    from pibert.fields import Trajectory

_CFDBENCH = "CFDBench's layout (--to cfdbench)"


@options.with_source
def convert(
    path: options.Source,
    out: Annotated[
        Path,
        typer.Argument(
            help="The file to write (.h5); with --to cfdbench the folder.", show_default=False
        ),
    ],
    stride: Annotated[int, typer.Option(min=1, help="Every how many frames one is taken.")] = 1,
    max_frames: Annotated[
        int | None, typer.Option(min=1, help="At most so many frames of each trajectory.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Channels to keep, in this order: u,v.", metavar="NAME,...")
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Resize the fields.", metavar="ROWSxCOLUMNS")
    ] = None,
    keep_units: Annotated[
        bool, typer.Option("--keep-units", help="Do not bring known units to metres and seconds.")
    ] = False,
    piv: Annotated[
        str | None,
        typer.Option(
            help="Measure clean fields first, as PIV would; window, noise, outliers, missing, "
            "seed ... have values of their own where they are left out.",
            metavar="NAME=NUMBER,...",
        ),
    ] = None,
    to: Annotated[str, typer.Option(help="What to write.", metavar="native|cfdbench")] = "native",
    problem: Annotated[
        str | None,
        typer.Option(metavar="cavity|tube|dam|cylinder", rich_help_panel=_CFDBENCH),
    ] = None,
    subset: Annotated[str, typer.Option(metavar="prop|bc|geo", rich_help_panel=_CFDBENCH)] = "prop",
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    *,
    source: options.SourceOptions,
) -> None:
    """Write flow data of any known kind in PIBERT's own format, or in CFDBench's layout.

    Example: pibert convert 'run/B*.txt' run.h5 --dt 0.01 --length-unit mm

    Example: pibert convert wake.h5 piv.h5 --piv window=3,noise=0.02,outliers=0.01,missing=0.02

    Example: pibert convert cavity.h5 cases --to cfdbench --problem cavity --subset prop
    """
    options.choice("--to", to, ("native", "cfdbench"))
    if to == "native" and problem is not None:
        raise ValueError("--problem goes with --to cfdbench")
    model = None if piv is None else _measurement(piv)
    if to == "native":
        options.require_file_name(out)
        if not overwrite:
            options.refuse_existing(path, out)
    recordings = source.open()
    if model is not None:
        recordings = _measured(recordings, model)
    console = Console(stderr=as_json)
    for remark in recordings.remarks:
        say(console, f"note: {remark}")
    columns = (TextColumn("{task.percentage:.0f} %"), BarColumn(), TimeRemainingColumn())
    with progress_bar(console, *columns) as progress:
        task = progress.add_task("converting", total=1.0)
        how: dict[str, Any] = {
            "stride": stride,
            "max_frames": max_frames,
            "channels": None if keep is None else keep.split(","),
            "size": options.two_numbers("size", size),
            "units": "keep" if keep_units else "SI",
            "on_progress": lambda share: progress.update(task, completed=share),
        }
        if to == "native":
            from pibert.data.convert import convert as write

            write(recordings, out, on_remark=lambda text: say(console, f"note: {text}"), **how)
        else:
            out = _write_cfdbench(recordings, out, problem, subset, **how)
    count = sum(file.stat().st_size for file in [out, *out.rglob("*")] if file.is_file())
    if as_json:
        return show_json({"trajectories": len(recordings), "bytes": count, "written": [str(out)]})
    say(console, f"Wrote {out}: {len(recordings)} trajectories, {count / 1e6:.1f} MB.")


def _measurement(text: str) -> "Measurement":
    """The model that a text such as ``window=3,noise=0.02`` asks for."""
    from pibert.data.measurement import Measurement

    values = options.numbers("piv", text.split(","))
    known = {field.name: field.type for field in fields(Measurement)}
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ValueError(f"--piv knows no {', '.join(unknown)}; choose from: {', '.join(known)}")
    whole = {name: value for name, value in values.items() if known[name] is int}
    broken = [name for name, value in whole.items() if not value.is_integer()]
    if broken:
        raise ValueError(f"--piv takes a whole number as {broken[0]}, found {whole[broken[0]]:g}")
    given: dict[str, Any] = values | {name: int(value) for name, value in whole.items()}
    return Measurement(**given)


def _measured(recordings: "Recordings", model: "Measurement") -> "Recordings":
    from pibert.data.measurement import measure

    return replace(recordings, load=lambda name: measure(recordings.load(name), model))


def _write_cfdbench(
    recordings: "Recordings",
    out: Path,
    problem: str | None,
    subset: str,
    *,
    stride: int,
    max_frames: int | None,
    channels: list[str] | None,
    size: tuple[int, int] | None,
    units: str,
    on_progress: Callable[[float], None],
) -> Path:
    """All cases or none; the folder that holds them."""
    from pibert.data.resample import represent
    from pibert.data.sources.cfdbench.case_files import PROBLEMS, SUBSETS
    from pibert.data.sources.cfdbench.writer import SIZE, write_cfdbench
    from pibert.data.units import in_consistent_units

    if channels is not None or size is not None:
        raise ValueError(
            f"--keep and --size do not go with --to cfdbench: its cases have u and v, {SIZE[0]} x "
            f"{SIZE[1]} points"
        )
    if problem is None:
        raise ValueError(f"--to cfdbench needs --problem, one of {', '.join(PROBLEMS)}")
    options.choice("--problem", problem, PROBLEMS)
    options.choice("--subset", subset, SUBSETS)
    place = out / problem / subset
    if place.exists():
        raise FileExistsError(f"{place} exists; remove it or choose another folder")

    def trajectories() -> "Iterator[Trajectory]":
        for done, trajectory in enumerate(recordings):
            scaled = trajectory if units == "keep" else in_consistent_units(trajectory)
            yield represent(scaled, stride=stride, max_frames=max_frames)
            on_progress((done + 1) / len(recordings))

    made = [folder for folder in (place, *place.parents) if not folder.exists()][-1]
    try:
        write_cfdbench(out, problem, subset, trajectories())  # type: ignore[arg-type]
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return place
