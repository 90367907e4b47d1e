"""Options that several commands share, and what users write after them."""

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pibert.cli.terminal import stdout_for_json

if TYPE_CHECKING:
    from pibert.data.sources.recordings import Recordings

Source = Annotated[
    Path,
    typer.Argument(
        help="A file or folder of flow data, or a quoted pattern such as 'run/B*.txt'.",
        show_default=False,
    ),
]


def json_option(text: str) -> Any:
    """An option ``--json`` that reserves standard output for the JSON."""

    def reserve(context: Any, wanted: bool) -> bool:
        if wanted and not context.resilient_parsing:
            context.with_resource(stdout_for_json())
        return wanted

    return typer.Option("--json", help=text, callback=reserve)


Json = Annotated[bool, json_option("Print the result as JSON, all else to standard error.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it is there.")]
_READER, _HINTS = "Data source", "Metadata overrides"
Kind = Annotated[
    str | None,
    typer.Option(
        help="Choose the reader, such as piv or netcdf, for data that are not recognised.",
        rich_help_panel=_READER,
    ),
]
Scenario = Annotated[
    str | None,
    typer.Option(
        help="Choose the scenario of RealPDEBench data: cylinder, fsi ...", rich_help_panel=_READER
    ),
]
Type = Annotated[
    str | None,
    typer.Option(
        "--type",
        help="Choose measured or simulated RealPDEBench data.",
        metavar="real|numerical",
        rich_help_panel=_READER,
    ),
]
Dt = Annotated[
    float | None,
    typer.Option(
        help="Set the time between frames (vector fields), in --time-unit (default: the file's "
        "unit, or seconds if velocities are per second). For the time between the two images of a "
        "pair use --pulse-delay.",
        rich_help_panel=_HINTS,
    ),
]
Dx = Annotated[
    float | None,
    typer.Option(help="Set the spacing along x, in --length-unit.", rich_help_panel=_HINTS),
]
Dy = Annotated[
    float | None,
    typer.Option(help="Set the spacing along y, in --length-unit.", rich_help_panel=_HINTS),
]
_UNIT_HELP = "Set the unit of velocities, such as m/s."
Unit = Annotated[
    str | None,
    typer.Option("--unit", "--units", help=_UNIT_HELP, rich_help_panel=_HINTS),
]
_ONLY_UNIT = Annotated[str | None, typer.Option("--unit", help=_UNIT_HELP, rich_help_panel=_HINTS)]
"""For a command with an option ``--units`` of its own."""
LengthUnit = Annotated[
    str | None,
    typer.Option(help="Set the unit of coordinates, such as mm.", rich_help_panel=_HINTS),
]
TimeUnit = Annotated[
    str | None,
    typer.Option(help="Set the unit of times and of --dt, such as ms.", rich_help_panel=_HINTS),
]
Scale = Annotated[
    str | None,
    typer.Option(
        help="Convert pixels to metres: the size of a pixel, such as 0.05mm/px or 20px/mm. "
        "Default: what the file states.",
        metavar="LENGTH/px",
        rich_help_panel=_HINTS,
    ),
]
PulseDelay = Annotated[
    str | None,
    typer.Option(
        help="Convert displacements to m/s, with --scale: the time between the two images of a "
        "PIV pair, such as 27ms. Default: what the file states.",
        metavar="TIME",
        rich_help_panel=_HINTS,
    ),
]
OverrideUnits = Annotated[
    bool,
    typer.Option(
        "--override-units",
        help="Let units, --dt, --dx, --dy, --scale and --pulse-delay replace what the file "
        "states. Without this option, a contradiction is an error.",
        rich_help_panel=_HINTS,
    ),
]
Channels = Annotated[
    str | None,
    typer.Option(
        help="Name columns or arrays of the file, such as u=Vx,v=Vy; also coordinates (x, y, t) "
        "and flags (valid, invalid).",
        metavar="NAME=THEIRS,...",
        rich_help_panel=_HINTS,
    ),
]
Flip = Annotated[
    str | None,
    typer.Option(
        help="Reverse the order of columns (x) or rows (y), or the sign of u or v, such as y,v.",
        metavar="x,y,u,v",
        rich_help_panel=_HINTS,
    ),
]
Axes = Annotated[
    str | None,
    typer.Option(help="Set the order of axes of an array, such as tcyx.", rich_help_panel=_HINTS),
]
Shape = Annotated[
    str | None,
    typer.Option(
        help="Resample points to a grid of so many rows and columns, such as 64x128.",
        metavar="ROWSxCOLUMNS",
        rich_help_panel=_HINTS,
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        help="Set a parameter of the flow, such as Re=100. May be given several times.",
        metavar="NAME=NUMBER",
        rich_help_panel=_HINTS,
    ),
]
_READ_HERE = (".h5", ".npy", ".npz", ".csv", ".tsv", ".txt", ".dat", ".vec", ".arrow")
"""Suffixes of files that are most often read without a process of their own."""
_REGIONS = (
    "zeros, circle:X,Y,R, polygon:X,Y,X,Y,..., a .csv file of corners, or an image (white pixels; "
    "black ones with dark:IMAGE). Repeatable."
)
Body = Annotated[
    list[str] | None,
    typer.Option(help=f"Mark a solid body: {_REGIONS}", metavar="REGION", rich_help_panel=_HINTS),
]
Mask = Annotated[
    list[str] | None,
    typer.Option(
        help="Mark a region without measurements, given in the same ways. zeros: all vectors that "
        "are exactly zero, frame by frame.",
        metavar="REGION",
        rich_help_panel=_HINTS,
    ),
]

Family = Annotated[
    str | None,
    typer.Option(
        help="State the PDE family, such as incompressible, heat or euler; none if no known "
        "family fits.",
        metavar="NAME",
        rich_help_panel=_HINTS,
    ),
]
Sides = Annotated[
    str | None,
    typer.Option(
        "--sides",
        help="State the boundaries of the grid: periodic (all sides), x=periodic, or "
        "left=inflow,right=outflow,bottom=wall,top=wall.",
        metavar="KIND|NAME=KIND,...",
        rich_help_panel=_HINTS,
    ),
]
OverrideMetadata = Annotated[
    bool | None,
    typer.Option(
        "--override-metadata",
        help="Let --parameter, --sides and --family replace what the file states.",
        rich_help_panel=_HINTS,
    ),
]


def with_source(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of flow data; it takes them together, as ``source``.

    The data are its argument ``path``, or its option ``data``: without that, ``source`` is None.
    """
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "source"]
    names = {p.name for p in own}
    where = "path" if "path" in names else "data"
    kinds = _OF_SOURCES | ({"unit": _ONLY_UNIT} if "units" in names else {})
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in kinds.items()
    ]

    @functools.wraps(command)
    def whole(**given: Any) -> None:
        taken = {name: given.pop(name) for name in _OF_SOURCES}
        path = given[where]
        if path is None and (idle := [name for name, value in taken.items() if value]):
            option = idle[0].strip("_").replace("_", "-")
            raise ValueError(f"--{option} goes with --data: it says what those do not")
        command(source=None if path is None else SourceOptions(path, **taken), **given)

    # Typer reads a command's options from these.
    whole.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    whole.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
    return whole


class SourceOptions:
    """What the user says of flow data: where they are, their kind, and what they do not tell."""

    def __init__(
        self,
        path: Path,
        *,
        kind: str | None,
        scenario: str | None,
        type_: str | None,
        channels: str | None,
        shape: str | None,
        flip: str | None,
        parameter: list[str] | None,
        body: list[str] | None,
        mask: list[str] | None,
        family: str | None,
        sides: str | None,
        override_metadata: bool | None,
        **as_given: Any,
    ) -> None:
        from pibert.data.isolation import remote

        if path.suffix.lower() not in _READ_HERE:
            remote.start()  # it imports while this process does
        from pibert.data.sources.recordings import NO_FAMILY, Hints
        from pibert.physics import FAMILIES

        if family is not None:
            choice("--family", family, (*FAMILIES, NO_FAMILY))
        self.path, self.kind, self.scenario, self.type = path, kind, scenario, type_
        for name in ("dt", "dx", "dy"):
            if (value := as_given[name]) is not None and not 0 < value < math.inf:
                raise ValueError(f"--{name} takes a positive number, found {value:g}")
        self.hints = Hints(
            channels=assignments("channels", (channels or "").split(",")),
            shape=two_numbers("shape", shape),
            flip=tuple(flip.split(",")) if flip else (),
            parameters=numbers("parameter", parameter or []),
            family=family,
            sides=sides or "",
            override_metadata=bool(override_metadata),
            override_units=bool(as_given.pop("override_units")),
            body=tuple(body or ()),
            mask=tuple(mask or ()),
            **as_given,
        )

    def stated(self) -> dict[str, Any]:
        """What was said, as settings of the data of an experiment: ``kind``, ``hints`` ..."""
        from pibert.data.sources.recordings import Hints

        plain, given = vars(Hints()), {"scenario": self.scenario, "kind": self.type}
        return {
            "kind": self.kind,
            "hints": {name: v for name, v in vars(self.hints).items() if v != plain[name]},
            "options": {name: value for name, value in given.items() if value is not None},
        }

    def identify(self) -> str:
        """The kind that the user names, or that the data show."""
        from pibert.data.sources import identify

        return self.kind or identify(self.path)

    def open(self) -> "Recordings":
        """Open data of any kind; options that its reader does not have are refused."""
        from pibert.data.sources import SOURCES, open_recordings, options_of

        if self.kind is not None:
            choice("--kind", self.kind, SOURCES)
        kind = self.identify()
        if self.type is not None:
            choice("--type", self.type, ("real", "numerical"))
        given = {"scenario": ("--scenario", self.scenario), "kind": ("--type", self.type)}
        options = {name: value for name, (_, value) in given.items() if value is not None}
        foreign = [given[name][0] for name in options if name not in options_of(kind)]
        if foreign:
            raise ValueError(
                f"{self.path}: only RealPDEBench takes {' and '.join(foreign)}; this is of kind "
                f"{kind!r}"
            )
        return open_recordings(self.path, kind, self.hints, options)


_OF_SOURCES: dict[str, Any] = {
    "kind": Kind,
    "scenario": Scenario,
    "type_": Type,
    "dt": Dt,
    "dx": Dx,
    "dy": Dy,
    "unit": Unit,
    "length_unit": LengthUnit,
    "time_unit": TimeUnit,
    "scale": Scale,
    "pulse_delay": PulseDelay,
    "override_units": OverrideUnits,
    "channels": Channels,
    "axes": Axes,
    "flip": Flip,
    "shape": Shape,
    "parameter": Parameters,
    "body": Body,
    "mask": Mask,
    "family": Family,
    "sides": Sides,
    "override_metadata": OverrideMetadata,
}


def require_file_name(out: Path) -> None:
    if out.is_dir():
        raise IsADirectoryError(f"{out} is a folder; name a file in it, such as {out / 'flow.h5'}")


def require_native_name(out: Path, others: str = "") -> None:
    """Refuse a name that promises another format than PIBERT's own."""
    if out.suffix.lower() not in (".h5", ".hdf5"):
        found = out.suffix or repr(out.name)
        more = f"; {others}" if others else ""
        raise ValueError(
            f"{out}: expected a name that ends in .h5, found {found}: this command writes PIBERT's "
            f"own format (HDF5){more}"
        )


def refuse_existing(source: Path, *targets: Path) -> None:
    """Refuse to replace what is there; the input itself is refused in words of its own."""
    from pibert.data.convert import refuse_overwriting

    for target in targets:
        refuse_overwriting(source, target)
        if target.exists():
            raise FileExistsError(f"{target} exists; add --overwrite or choose another name")


def choice(option: str, value: str, choices: Iterable[str]) -> Any:
    """The value, if it is among the choices."""
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"{option} takes one of {', '.join(choices)}; found {value!r}")
    return value


def assignments(option: str, texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts if text]
    if any(not (name and mark and value) for name, mark, value in pairs):
        raise ValueError(f"--{option} takes NAME=VALUE, found {','.join(texts)!r}")
    return {name.strip(): value.strip() for name, _, value in pairs}


def numbers(option: str, texts: list[str]) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in assignments(option, texts).items()}
    except ValueError:
        raise ValueError(f"--{option} takes NAME=NUMBER, found {' '.join(texts)!r}") from None


def two_numbers(option: str, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    rows, _, columns = text.lower().partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise ValueError(f"--{option} takes ROWSxCOLUMNS such as 64x128, found {text!r}")
    return int(rows), int(columns)
