"""``pibert convert``: flow data of any kind into a file of another format."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console

from pibert.cli import options
from pibert.cli.options import option
from pibert.cli.terminal import say, show_json, showing_progress
from pibert.data.writers import list_formats, targets_of

if TYPE_CHECKING:
    from pibert.data.measurement import Measurement
    from pibert.data.readers.recordings import Recordings
    from pibert.data.resample import Region
    from pibert.fields import Trajectory

Number = TypeVar("Number", int, float)
_CFDBENCH = "CFDBench's layout (--to cfdbench)"


@options.with_options
def convert(
    path: options.Source,
    out: Annotated[
        Path,
        typer.Argument(help=f"Write this file. {list_formats()}. With --to cfdbench: this folder."),
    ],
    source: options.SourceOptions,
    stride: Annotated[int, option("Use every Nth frame.", min=1)] = 1,
    max_frames: Annotated[
        int | None,
        option("Keep at most this many frames of each trajectory. Default: all.", min=1),
    ] = None,
    frames: Annotated[
        str | None,
        option(
            "Keep these frames, counted from 0, the last one not included: 0:900, 900:. "
            "Default: all.",
            metavar="FIRST:END",
        ),
    ] = None,
    crop: Annotated[
        str | None,
        option(
            "Keep this part of the grid: x=0:0.02,y=:0.01 in the file's coordinates, or "
            "rows=2:-2,columns=2:-2, which drops two at either end.",
            metavar="NAME=FROM:TO,...",
        ),
    ] = None,
    keep: Annotated[
        str | None,
        option("Keep these channels, in this order: u,v. Default: all.", metavar="NAME,..."),
    ] = None,
    size: Annotated[
        str | None, option("Resample the fields to this grid.", metavar="ROWSxCOLUMNS")
    ] = None,
    keep_units: Annotated[
        bool,
        option("Keep units instead of converting them to metres and seconds.", "--keep-units"),
    ] = False,
    piv: Annotated[
        str | None,
        option(
            "Simulate a PIV measurement of clean fields first; window, noise, outliers, missing, "
            "seed ... have defaults.",
            metavar="NAME=NUMBER,...",
        ),
    ] = None,
    to: Annotated[
        str, option("Write a file, or CFDBench's layout.", metavar="file|cfdbench")
    ] = "file",
    problem: Annotated[
        str | None,
        option("Set the problem.", metavar="cavity|tube|dam|cylinder", panel=_CFDBENCH),
    ] = None,
    subset: Annotated[
        str, option("Set the subset.", metavar="prop|bc|geo", panel=_CFDBENCH)
    ] = "prop",
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Convert flow data of any known kind to a file of another format.

    Masks, marks of filled vectors, units and times are kept.

    Example: pibert convert 'run/B*.txt' run.h5 --scale 0.05mm/px --pulse-delay 1ms --dt 0.01

    Example: pibert convert 'run/B*.txt' run.nc --rotate 90

    Example: pibert convert 're*.h5' all.h5

    Example: pibert convert jet.npz later.h5 --frames 900: --crop y=0.01:0.02

    Example: pibert convert wake.h5 piv.h5 --piv window=3,noise=0.02,outliers=0.01,missing=0.02

    Example: pibert convert cavity.h5 cases --to cfdbench --problem cavity --subset prop
    """
    from pibert.data.convert import convert as write
    from pibert.data.wording import counted

    to = "file" if to == "native" else options.choice("--to", to, ("file", "cfdbench"))
    measurement = None if piv is None else _parse_measurement(piv)
    if to == "file":
        if problem is not None:
            raise ValueError("--problem goes with --to cfdbench")
        if not overwrite:
            options.refuse_existing(path, *targets_of(out))
        options.require_file_name(out)
    recordings = source.open(path)
    if measurement is not None:
        recordings = _measured(recordings, measurement)
    console = Console(stderr=as_json)
    for note in recordings.notes:
        say(console, f"Note: {note}")
    with showing_progress(console) as update:
        how: dict[str, Any] = {
            "stride": stride,
            "max_frames": max_frames,
            "frames": slice(None) if frames is None else slice(*_ends("frames", frames, int)),
            "region": None if crop is None else _parse_region(crop),
            "channels": None if keep is None else keep.split(","),
            "size": options.two_numbers("size", size),
            "units": "keep" if keep_units else "SI",
            "on_progress": update,
        }
        if to == "file":
            write(recordings, out, on_note=lambda text: say(console, f"Note: {text}"), **how)
        else:
            out = _write_cfdbench(recordings, out, problem, subset, **how)
    targets = targets_of(out) if to == "file" else (out,)
    files = [file for target in targets for file in [target, *target.rglob("*")]]
    count = sum(file.stat().st_size for file in files if file.is_file())
    if as_json:
        names = [str(target) for target in targets]
        return show_json({"trajectories": len(recordings), "bytes": count, "written": names})
    written = counted(len(recordings), "trajectory")
    say(console, f"Wrote {out}: {written}, {count / 1e6:.1f} MB.")


def _ends(name: str, text: str, kind: type[Number]) -> tuple[Number | None, Number | None]:
    """Parse ``2:-2``, where either end may be left out."""
    first, colon, last = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return kind(first) if first.strip() else None, kind(last) if last.strip() else None
    except ValueError:
        whole = "whole numbers" if kind is int else "numbers"
        raise ValueError(
            f"--{name} takes a range of {whole} such as 10:20, 10: or :20, found {text!r}"
        ) from None


def _parse_region(text: str) -> "Region":
    """Parse a text such as ``x=0:0.02,rows=2:-2``."""
    from pibert.data.resample import Region

    known = [field.name for field in fields(Region)]
    given = options.assignments("crop", text.split(","))
    for name in given:
        options.choice("--crop", name, known)
    ranges: dict[str, Any] = {
        name: _ends("crop", ends, float) if name in ("x", "y") else slice(*_ends("crop", ends, int))
        for name, ends in given.items()
    }
    return Region(**ranges)


def _parse_measurement(text: str) -> "Measurement":
    """Parse a text such as ``window=3,noise=0.02``."""
    from pibert import config
    from pibert.data.measurement import Measurement

    values = options.numbers("piv", text.split(",")).items()
    plain = {name: int(value) if value.is_integer() else value for name, value in values}
    return config.parse(Measurement, plain, "--piv")


def _measured(recordings: "Recordings", model: "Measurement") -> "Recordings":
    from pibert.data.measurement import measure

    return replace(recordings, load=lambda name: measure(recordings.load(name), model))


def _write_cfdbench(
    recordings: "Recordings",
    out: Path,
    problem: str | None,
    subset: str,
    *,
    region: "Region | None",
    channels: list[str] | None,
    size: tuple[int, int] | None,
    units: str,
    on_progress: Callable[[float], None],
    **kept: Any,
) -> Path:
    """Write all cases or none; returns the folder that holds them."""
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
    folder = out / problem / subset
    if folder.exists():
        raise FileExistsError(f"{folder} exists; remove it or choose another folder")

    def trajectories() -> "Iterator[Trajectory]":
        for done, trajectory in enumerate(recordings):
            view = trajectory if region is None else crop(trajectory, region)
            view = view if units == "keep" else in_consistent_units(view)
            yield represent(view, **kept)
            on_progress((done + 1) / len(recordings))

    created = [path for path in (folder, *folder.parents) if not path.exists()][-1]
    try:
        write_cfdbench(out, problem, subset, trajectories())  # type: ignore[arg-type]
    except BaseException:
        shutil.rmtree(created, ignore_errors=True)
        raise
    return folder
