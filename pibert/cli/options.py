"""Options that several commands share, and how their values are parsed."""

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pibert.cli.terminal import stdout_for_json

if TYPE_CHECKING:
    from pibert.data.readers.recordings import Recordings

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


Device = Annotated[str, typer.Option(help="Compute on this device: cpu, cuda or auto.")]
Json = Annotated[bool, json_option("Print the result as JSON; all else goes to standard error.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")]
_READ_HERE = (".h5", ".npy", ".npz", ".csv", ".tsv", ".txt", ".dat", ".vec", ".arrow")
"""Suffixes of files that are most often read without a process of their own."""
_REGIONS = (
    "zeros, circle:X,Y,R, polygon:X,Y,X,Y,..., a .csv file of corners, or an image (white pixels; "
    "black ones with dark:IMAGE). Repeatable."
)


def _option(
    kind: Any, text: str, *names: str, metavar: str | None = None, panel: str = "Metadata overrides"
) -> Any:
    option = typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel)
    return Annotated[kind | None, option]


_UNIT = "Set the unit of velocities, such as m/s."
_OF_SOURCES: dict[str, Any] = {
    "kind": _option(
        str,
        "Choose the reader, such as piv or netcdf, for data that are not recognised.",
        panel="Data source",
    ),
    "scenario": _option(
        str, "Choose the scenario of RealPDEBench data: cylinder, fsi ...", panel="Data source"
    ),
    "type_": _option(
        str,
        "Choose measured or simulated RealPDEBench data.",
        "--type",
        metavar="real|numerical",
        panel="Data source",
    ),
    "dt": _option(
        float,
        "Set the time between frames (vector fields), in --time-unit (default: the file's unit, or "
        "seconds if velocities are per second). For the time between the two images of a pair use "
        "--pulse-delay.",
    ),
    "dx": _option(float, "Set the spacing along x, in --length-unit."),
    "dy": _option(float, "Set the spacing along y, in --length-unit."),
    "unit": _option(str, _UNIT, "--unit", "--units"),
    "length_unit": _option(str, "Set the unit of coordinates, such as mm."),
    "time_unit": _option(str, "Set the unit of times and of --dt, such as ms."),
    "scale": _option(
        str,
        "Convert pixels to metres: the size of a pixel, such as 0.05mm/px or 20px/mm. Default: "
        "what the file states.",
        metavar="LENGTH/px",
    ),
    "pulse_delay": _option(
        str,
        "Convert displacements to m/s, with --scale: the time between the two images of a PIV "
        "pair, such as 27ms. Default: what the file states.",
        metavar="TIME",
    ),
    "override_units": _option(
        bool,
        "Let units, --dt, --dx, --dy, --scale and --pulse-delay replace what the file states. "
        "Without this option, a contradiction is an error.",
        "--override-units",
    ),
    "channels": _option(
        str,
        "Name columns or arrays of the file, such as u=Vx,v=Vy; also coordinates (x, y, t) and "
        "flags (valid, invalid).",
        metavar="NAME=THEIRS,...",
    ),
    "axes": _option(str, "Set the order of axes of an array, such as tcyx."),
    "flip": _option(
        str,
        "Reverse the order of columns (x) or rows (y), or the sign of u or v, such as y,v.",
        metavar="x,y,u,v",
    ),
    "shape": _option(
        str,
        "Resample points to a grid with this many rows and columns, such as 64x128.",
        metavar="ROWSxCOLUMNS",
    ),
    "parameter": _option(
        list[str],
        "Set a parameter of the flow, such as Re=100. Repeatable.",
        metavar="NAME=NUMBER",
    ),
    "body": _option(list[str], f"Mark a solid body: {_REGIONS}", metavar="REGION"),
    "mask": _option(
        list[str],
        "Mark a region without measurements, given in the same ways. zeros: all vectors that are "
        "exactly zero, frame by frame.",
        metavar="REGION",
    ),
    "family": _option(
        str,
        "State the PDE family, such as incompressible, heat or euler; none if no known family "
        "fits.",
        metavar="NAME",
    ),
    "sides": _option(
        str,
        "State the boundaries of the grid: periodic (all sides), x=periodic, or "
        "left=inflow,right=outflow,bottom=wall,top=wall.",
        "--sides",
        metavar="KIND|NAME=KIND,...",
    ),
    "override_metadata": _option(
        bool,
        "Let --parameter, --sides and --family replace what the file states.",
        "--override-metadata",
    ),
}
"""Options of every command that reads flow data."""


def with_source(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of flow data; it takes them together, as ``source``.

    The data are its argument ``path``, or its option ``data``: without that, ``source`` is None.
    """
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "source"]
    names = {p.name for p in own}
    where = "path" if "path" in names else "data"
    # A command with an option --units of its own takes --unit alone.
    alone = {"unit": _option(str, _UNIT, "--unit")} if "units" in names else {}
    kinds = _OF_SOURCES | alone
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
            raise ValueError(f"--{option} goes with --data, whose metadata it overrides")
        command(source=None if path is None else SourceOptions(path, **taken), **given)

    # Typer reads a command's options from these.
    whole.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    whole.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
    return whole


class SourceOptions:
    """The options of flow data: the path, the reader, and metadata overrides."""

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
        from pibert.data.readers.recordings import NO_FAMILY, Hints
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
        """The same as settings of the data of an experiment: ``kind``, ``hints``, ``options``."""
        from pibert.data.readers.recordings import Hints

        plain, given = vars(Hints()), {"scenario": self.scenario, "kind": self.type}
        return {
            "kind": self.kind,
            "hints": {name: v for name, v in vars(self.hints).items() if v != plain[name]},
            "options": {name: value for name, value in given.items() if value is not None},
        }

    def identify(self) -> str:
        """The stated or recognised kind of the data."""
        from pibert.data.readers import identify

        return self.kind or identify(self.path)

    def open(self) -> "Recordings":
        """Open the data; ValueError for options that the reader does not have."""
        from pibert.data.readers import READERS, open_recordings, options_of

        if self.kind is not None:
            choice("--kind", self.kind, READERS)
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


def require_file_name(out: Path) -> None:
    if out.is_dir():
        raise IsADirectoryError(f"{out} is a folder; name a file in it, such as {out / 'flow.h5'}")


def require_native_name(out: Path, others: str = "") -> None:
    """Raise for a name that promises another format than PIBERT's own."""
    if out.suffix.lower() not in (".h5", ".hdf5"):
        found = out.suffix or repr(out.name)
        more = f"; {others}" if others else ""
        raise ValueError(
            f"{out}: expected a name that ends in .h5, found {found}: this command writes PIBERT's "
            f"own format (HDF5){more}"
        )


def refuse_existing(source: Path, *targets: Path) -> None:
    """Raise for existing targets, and for the input itself."""
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
