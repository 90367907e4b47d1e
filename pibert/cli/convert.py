"""``pibert convert``: flow data of any kind into the native format, or into CFDBench's layout."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from pibert.cli import options
from pibert.cli.terminal import progress_bar, say, show_json

if TYPE_CHECKING:
    from pibert.data.measurement import Measurement
    from pibert.data.readers.recordings import Recordings
    from pibert.data.resample import Region
    from pibert.fields import Trajectory

Number = TypeVar("Number", int, float)
_CFDBENCH = "CFDBench's layout (--to cfdbench)"


@options.with_source
def convert(
    path: options.Source,
    out: Annotated[
        Path,
        typer.Argument(
            help="Write this file (.h5); with --to cfdbench, this folder.", show_default=False
        ),
    ],
    stride: Annotated[int, typer.Option(min=1, help="Use every Nth frame.")] = 1,
    max_frames: Annotated[
        int | None, typer.Option(min=1, help="Keep at most this many frames of each trajectory.")
    ] = None,
    frames: Annotated[
        str | None,
        typer.Option(
            help="Keep these frames, counted from 0, the last one not included: 0:900, 900:.",
            metavar="FIRST:END",
        ),
    ] = None,
    crop: Annotated[
        str | None,
        typer.Option(
            help="Keep this part of the grid: x=0:0.02,y=:0.01 in the file's coordinates, or "
            "rows=2:-2,columns=2:-2, which drops two at either end.",
            metavar="NAME=FROM:TO,...",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(help="Keep these channels, in this order: u,v.", metavar="NAME,..."),
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="Resample the fields to this grid.", metavar="ROWSxCOLUMNS")
    ] = None,
    keep_units: Annotated[
        bool,
        typer.Option(
            "--keep-units", help="Keep units instead of converting them to metres and seconds."
        ),
    ] = False,
    piv: Annotated[
        str | None,
        typer.Option(
            help="Simulate a PIV measurement of clean fields first; window, noise, outliers, "
            "missing, seed ... have defaults.",
            metavar="NAME=NUMBER,...",
        ),
    ] = None,
    to: Annotated[
        str, typer.Option(help="Choose the format.", metavar="native|cfdbench")
    ] = "native",
    problem: Annotated[
        str | None,
        typer.Option(
            help="Set the problem.", metavar="cavity|tube|dam|cylinder", rich_help_panel=_CFDBENCH
        ),
    ] = None,
    subset: Annotated[
        str, typer.Option(help="Set the subset.", metavar="prop|bc|geo", rich_help_panel=_CFDBENCH)
    ] = "prop",
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    *,
    source: options.SourceOptions,
) -> None:
    """Convert flow data of any known kind to PIBERT's own format, or to CFDBench's layout.

    Example: pibert convert 'run/B*.txt' run.h5 --scale 0.05mm/px --pulse-delay 1ms --dt 0.01

    Example: pibert convert 're*.h5' all.h5

    Example: pibert convert jet.npz later.h5 --frames 900: --crop y=0.01:0.02

    Example: pibert convert wake.h5 piv.h5 --piv window=3,noise=0.02,outliers=0.01,missing=0.02

    Example: pibert convert cavity.h5 cases --to cfdbench --problem cavity --subset prop
    """
    from pibert.data.wording import counted

    options.choice("--to", to, ("native", "cfdbench"))
    if to == "native" and problem is not None:
        raise ValueError("--problem goes with --to cfdbench")
    model = None if piv is None else _measurement(piv)
    if to == "native":
        options.require_file_name(out)
        if not overwrite:
            options.refuse_existing(path, out)
        options.require_native_name(
            out,
            "--to cfdbench writes a folder; predict, rollout and fill also write .nc, .pvd, .xdmf",
        )
    recordings = source.open()
    if model is not None:
        recordings = _measured(recordings, model)
    console = Console(stderr=as_json)
    for remark in recordings.notes:
        say(console, f"Note: {remark}")
    columns = (TextColumn("{task.percentage:.0f} %"), BarColumn(), TimeRemainingColumn())
    with progress_bar(console, *columns) as progress:
        task = progress.add_task("converting", total=1.0)
        how: dict[str, Any] = {
            "stride": stride,
            "max_frames": max_frames,
            "frames": slice(None) if frames is None else slice(*_ends("frames", frames, int)),
            "region": None if crop is None else _region(crop),
            "channels": None if keep is None else keep.split(","),
            "size": options.two_numbers("size", size),
            "units": "keep" if keep_units else "SI",
            "on_progress": lambda share: progress.update(task, completed=share),
        }
        if to == "native":
            from pibert.data.convert import convert as write

            write(recordings, out, on_note=lambda text: say(console, f"Note: {text}"), **how)
        else:
            out = _write_cfdbench(recordings, out, problem, subset, **how)
    count = sum(file.stat().st_size for file in [out, *out.rglob("*")] if file.is_file())
    if as_json:
        return show_json({"trajectories": len(recordings), "bytes": count, "written": [str(out)]})
    written = counted(len(recordings), "trajectory")
    say(console, f"Wrote {out}: {written}, {count / 1e6:.1f} MB.")


def _ends(option: str, text: str, kind: type[Number]) -> tuple[Number | None, Number | None]:
    """``2:-2``, where either end may be left out."""
    first, mark, last = text.partition(":")
    try:
        if not mark:
            raise ValueError
        return kind(first) if first.strip() else None, kind(last) if last.strip() else None
    except ValueError:
        whole = "whole numbers" if kind is int else "numbers"
        raise ValueError(
            f"--{option} takes a range of {whole} such as 10:20, 10: or :20, found {text!r}"
        ) from None


def _region(text: str) -> "Region":
    """What a text such as ``x=0:0.02,rows=2:-2`` asks for."""
    from pibert.data.resample import Region

    given = options.assignments("crop", text.split(","))
    if len(given) != sum(bool(part) for part in text.split(",")) or not given:
        raise ValueError(f"--crop takes NAME=FROM:TO,... with each name once, found {text!r}")
    known = [field.name for field in fields(Region)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"--crop knows no {', '.join(unknown)}; choose from: {', '.join(known)}")
    ranges: dict[str, Any] = {
        name: _ends("crop", ends, float) if name in ("x", "y") else slice(*_ends("crop", ends, int))
        for name, ends in given.items()
    }
    return Region(**ranges)


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
    frames: slice,
    region: "Region | None",
    channels: list[str] | None,
    size: tuple[int, int] | None,
    units: str,
    on_progress: Callable[[float], None],
) -> Path:
    """All cases or none; the folder that holds them."""
    from pibert.data.readers.cfdbench import PROBLEMS, SUBSETS
    from pibert.data.resample import crop, represent
    from pibert.data.units import in_consistent_units
    from pibert.data.writers.cfdbench import SIZE, write_cfdbench

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
            part = trajectory if region is None else crop(trajectory, region)
            scaled = part if units == "keep" else in_consistent_units(part)
            yield represent(scaled, stride=stride, max_frames=max_frames, frames=frames)
            on_progress((done + 1) / len(recordings))

    made = [folder for folder in (place, *place.parents) if not folder.exists()][-1]
    try:
        write_cfdbench(out, problem, subset, trajectories())  # type: ignore[arg-type]
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return place
