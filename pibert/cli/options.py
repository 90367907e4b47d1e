"""Options that several commands share, and how their values are parsed."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from pibert.cli.terminal import stdout_for_json
from pibert.data.writers import WRITERS

if TYPE_CHECKING:
    from pibert.data.readers.recordings import Hints, Recordings


def option(text: str, *names: str, panel: str | None = None, **settings: Any) -> Any:
    """Return a Typer option with this help text."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **settings)


def json_option(text: str) -> Any:
    """Return an option ``--json`` that reserves standard output for the JSON."""

    def reserve(context: Any, wanted: bool) -> bool:
        if wanted and not context.resilient_parsing:
            context.with_resource(stdout_for_json())
        return wanted

    return option(text, "--json", callback=reserve)


Source = Annotated[
    Path,
    typer.Argument(help="A file or folder of flow data, or a quoted pattern such as 'run/B*.txt'."),
]
Device = Annotated[str, option("Compute on this device: cpu, cuda or auto.")]
Json = Annotated[bool, json_option("Print the result as JSON; all else goes to standard error.")]
Overwrite = Annotated[bool, option("Replace OUT if it exists.", "--overwrite")]
_READ_HERE = (".h5", ".npy", ".npz", ".csv", ".tsv", ".txt", ".dat", ".vec", ".arrow")
"""Suffixes of files that are usually read without a separate process."""
_SOURCE = "Data source"
_METADATA = "Metadata overrides"


def _metadata(text: str, *names: str, metavar: str | None = None) -> Any:
    return option(text, *names, metavar=metavar, panel=_METADATA)


@dataclasses.dataclass(kw_only=True)
class SourceOptions:
    """The reader of flow data and metadata overrides: options of every command that reads them."""

    kind: Annotated[
        str | None,
        option("Choose the reader, such as piv or netcdf. Default: recognise it.", panel=_SOURCE),
    ] = None
    scenario: Annotated[
        str | None,
        option("Choose the scenario of RealPDEBench data: cylinder, fsi ...", panel=_SOURCE),
    ] = None
    type_: Annotated[
        str | None,
        option(
            "Choose measured or simulated RealPDEBench data.",
            "--type",
            metavar="real|numerical",
            panel=_SOURCE,
        ),
    ] = None
    dt: Annotated[
        float | None,
        _metadata(
            "Set the time between frames (vector fields), in --time-unit (default: the file's "
            "unit, or seconds if velocities are per second). For the time between the two images "
            "of a pair use --pulse-delay."
        ),
    ] = None
    dx: Annotated[float | None, _metadata("Set the spacing along x, in --length-unit.")] = None
    dy: Annotated[float | None, _metadata("Set the spacing along y, in --length-unit.")] = None
    unit: Annotated[
        str | None, _metadata("Set the unit of velocities, such as m/s.", "--unit", "--units")
    ] = None
    length_unit: Annotated[str | None, _metadata("Set the unit of coordinates, such as mm.")] = None
    time_unit: Annotated[
        str | None, _metadata("Set the unit of times and of --dt, such as ms.")
    ] = None
    scale: Annotated[
        str | None,
        _metadata(
            "Convert pixels to metres: the size of a pixel, such as 0.05mm/px or 20px/mm. "
            "Default: what the file states.",
            metavar="LENGTH/px",
        ),
    ] = None
    pulse_delay: Annotated[
        str | None,
        _metadata(
            "Convert displacements to m/s, with --scale: the time between the two images of a PIV "
            "pair, such as 27ms. Default: what the file states.",
            metavar="TIME",
        ),
    ] = None
    override_units: Annotated[
        bool,
        _metadata(
            "Let units, --dt, --dx, --dy, --scale and --pulse-delay replace what the file states. "
            "Without this option, a contradiction is an error.",
            "--override-units",
        ),
    ] = False
    channels: Annotated[
        str | None,
        _metadata(
            "Name columns or arrays of the file, such as u=Vx,v=Vy; also coordinates (x, y, t) "
            "and flags (valid, invalid).",
            metavar="NAME=THEIRS,...",
        ),
    ] = None
    axes: Annotated[str | None, _metadata("Set the order of axes of an array, such as tcyx.")] = (
        None
    )
    flip: Annotated[
        str | None,
        _metadata(
            "Reverse the order of columns (x) or rows (y), or the sign of u or v, such as y,v; "
            "x,u or y,v mirror the flow.",
            metavar="x,y,u,v",
        ),
    ] = None
    rotate: Annotated[
        int,
        _metadata(
            "Rotate the flow, anticlockwise about the origin: 90, 180 or 270. --body, --mask and "
            "--sides then refer to the rotated flow.",
            metavar="DEGREES",
        ),
    ] = 0
    shape: Annotated[
        str | None,
        _metadata(
            "Resample points to a grid with this many rows and columns, such as 64x128.",
            metavar="ROWSxCOLUMNS",
        ),
    ] = None
    parameter: Annotated[
        list[str] | None,
        _metadata(
            "Set a parameter of the flow, such as Re=100. Repeatable.", metavar="NAME=NUMBER"
        ),
    ] = None
    body: Annotated[
        list[str] | None,
        _metadata(
            "Mark a solid body: zeros, circle:X,Y,R, polygon:X,Y,X,Y,..., a .csv file of corners, "
            "or an image (white pixels; black ones with dark:IMAGE). Repeatable.",
            metavar="REGION",
        ),
    ] = None
    mask: Annotated[
        list[str] | None,
        _metadata(
            "Mark a region without measurements, given in the same ways. zeros: all vectors that "
            "are exactly zero, frame by frame.",
            metavar="REGION",
        ),
    ] = None
    family: Annotated[
        str | None,
        _metadata(
            "State the PDE family, such as incompressible, heat or euler; none if no known family "
            "fits.",
            metavar="NAME",
        ),
    ] = None
    sides: Annotated[
        str | None,
        _metadata(
            "State the boundaries of the grid: periodic (all sides), x=periodic, or kinds of left, "
            "right, bottom and top, such as left=inflow,top=wall.",
            metavar="KIND|NAME=KIND,...",
        ),
    ] = None
    override_metadata: Annotated[
        bool,
        _metadata(
            "Let --parameter, --sides and --family replace what the file states.",
            "--override-metadata",
        ),
    ] = False

    def refuse_without_data(self, data: str = "--data") -> None:
        """Raise for options that have no flow data to apply to; ``data`` is how to give it."""
        for name, value in vars(self).items():
            if value:
                given = name.strip("_").replace("_", "-")
                raise ValueError(f"--{given} goes with {data}, whose metadata it overrides")

    @functools.cached_property
    def hints(self) -> "Hints":
        from pibert.data.readers.recordings import Hints

        same = "axes dt dx dy unit length_unit time_unit scale pulse_delay family rotate"
        return Hints(
            channels=assignments("channels", (self.channels or "").split(",")),
            shape=two_numbers("shape", self.shape),
            flip=tuple(self.flip.split(",")) if self.flip else (),
            parameters=numbers("parameter", self.parameter or []),
            sides=self.sides or "",
            body=tuple(self.body or ()),
            mask=tuple(self.mask or ()),
            override_metadata=self.override_metadata,
            override_units=self.override_units,
            **{name: getattr(self, name) for name in same.split()},
        )

    @property
    def reader_options(self) -> dict[str, str]:
        if self.type_ is not None:
            choice("--type", self.type_, ("real", "numerical"))
        given = {"scenario": self.scenario, "kind": self.type_}
        return {name: value for name, value in given.items() if value is not None}

    def as_settings(self) -> dict[str, Any]:
        """Return settings of ``DataConfig``: ``kind``, ``hints`` and ``options``."""
        defaults = vars(type(self.hints)())
        return {
            "kind": self.kind,
            "hints": {name: v for name, v in vars(self.hints).items() if v != defaults[name]},
            "options": self.reader_options,
        }

    def open(self, path: Path, **changes: Any) -> "Recordings":
        """Open flow data; ``changes`` replace hints."""
        from pibert.data.isolation import remote

        if path.suffix.lower() not in _READ_HERE:
            remote.start()  # it imports while this process does
        from pibert.data.readers import open_recordings

        hints = dataclasses.replace(self.hints, **changes)
        return open_recordings(path, self.kind, hints, self.reader_options)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Turn every parameter of a command that is a dataclass into one option for each field."""
    parameters = inspect.signature(command).parameters.values()
    groups: dict[str, Any] = {
        p.name: p.annotation for p in parameters if dataclasses.is_dataclass(p.annotation)
    }
    flat = {p.name: p for p in parameters if p.name not in groups}
    for group in groups.values():
        kinds = get_type_hints(group, include_extras=True)
        for field in dataclasses.fields(group):
            required = field.default is dataclasses.MISSING
            flat[field.name] = inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if required else field.default,
                annotation=kinds[field.name],
            )

    @functools.wraps(command)
    def whole(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{f.name: given.pop(f.name) for f in dataclasses.fields(group)})
        command(**given)

    # Typer reads the options of a command from these.
    ordered = sorted(flat.values(), key=lambda p: p.default is not inspect.Parameter.empty)
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in ordered]
    whole.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    whole.__annotations__ = {p.name: p.annotation for p in keyword}
    return whole


def require_file_name(out: Path) -> None:
    if out.is_dir():
        raise IsADirectoryError(f"{out} is a folder; name a file in it, such as {out / 'flow.h5'}")


def require_native_name(out: Path) -> None:
    """Raise for a folder, and for a name that promises another format than PIBERT's own."""
    require_file_name(out)
    if out.suffix.lower() not in (".h5", ".hdf5"):
        others = ", ".join(suffix for suffix in WRITERS if suffix != ".h5")
        raise ValueError(
            f"{out}: expected a name that ends in .h5, found {out.suffix or repr(out.name)}: this "
            f"command writes PIBERT's own format (HDF5); convert it to {others}"
        )


def refuse_existing(source: Path, *targets: Path) -> None:
    """Raise for existing targets, and for the input itself."""
    from pibert.data.convert import refuse_overwriting

    for target in targets:
        refuse_overwriting(source, target)
        if target.exists():
            raise FileExistsError(f"{target} exists; add --overwrite or choose another name")


def choice(name: str, value: str, choices: Iterable[str]) -> Any:
    """Return the value if it is among the choices."""
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"{name} takes one of {', '.join(choices)}; found {value!r}")
    return value


def assignments(name: str, texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts if text]
    if any(not (key and sign and value) for key, sign, value in pairs):
        raise ValueError(f"--{name} takes NAME=VALUE, found {','.join(texts)!r}")
    return {key.strip(): value.strip() for key, _, value in pairs}


def numbers(name: str, texts: list[str]) -> dict[str, float]:
    try:
        return {key: float(value) for key, value in assignments(name, texts).items()}
    except ValueError:
        raise ValueError(f"--{name} takes NAME=NUMBER, found {' '.join(texts)!r}") from None


def two_numbers(name: str, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    rows, _, columns = text.lower().partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise ValueError(f"--{name} takes ROWSxCOLUMNS such as 64x128, found {text!r}")
    return int(rows), int(columns)


# Shell completion beyond the names of commands and options


def complete_model(incomplete: str) -> list[str]:
    """Complete shipped models and paths."""
    from pibert.inference import shipped_models

    folder, slash, start = incomplete.rpartition("/")
    parent = Path(folder + slash or ".")
    entries = sorted(parent.iterdir()) if parent.is_dir() else []
    visible = (path for path in entries if start.startswith(".") or path.name[0] != ".")
    paths = [f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}" for path in visible]
    return _matching([*shipped_models(), *paths], incomplete)


def complete_case(incomplete: str) -> list[str]:
    from pibert.solver.presets import PRESETS

    return _matching(PRESETS, incomplete)


def complete_case_preset(ctx: Any, incomplete: str) -> list[str]:
    from pibert.solver.presets import PRESETS

    case = ctx.params.get("case")
    names = PRESETS.get(case, {}) if case else {n for presets in PRESETS.values() for n in presets}
    return _matching(sorted(names), incomplete)


def complete_comparison(incomplete: str) -> list[str]:
    from pibert.comparison.presets import PRESETS

    return _matching(PRESETS, incomplete)


def complete_candidates(ctx: Any, incomplete: str) -> list[str]:
    """Complete the last name of a list with commas."""
    from pibert.comparison.presets import PRESETS

    plan = PRESETS.get(ctx.params.get("preset") or "demo", PRESETS["demo"])
    named = incomplete.split(",")[:-1]
    before = "".join(f"{name}," for name in named)
    return _matching([before + name for name in plan.candidates if name not in named], incomplete)


def _matching(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]
