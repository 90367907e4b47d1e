"""The ``pibert`` command. Each command imports what it needs when it runs."""

import json
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

if TYPE_CHECKING:
    from pibert.data.inspect import Finding
    from pibert.data.survey import Survey


class _OneLineErrors(TyperGroup):
    """What a user can get wrong is told in one line, with exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (ValueError, OSError, ImportError, FloatingPointError) as error:
            Console(stderr=True).print(
                f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True
            )
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def main() -> None:
    """PIBERT: a physics-informed Fourier-wavelet transformer for flow fields."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes (PNG).")] = Path(
        "outputs/demo.png"
    ),
    steps: Annotated[int, typer.Option(min=0, help="Training steps.")] = 150,
    ahead: Annotated[int, typer.Option(min=1, help="Frames to step forward.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the model's weights.")] = 0,
) -> None:
    """Train briefly on analytic vortex streets, step unseen ones and draw the result."""
    import torch

    from pibert.demo import TEST_STREETS, TRAINING_STREETS, run_demo
    from pibert.report.figures import picture_path

    out = picture_path(out)  # a bad one is told before anything else
    torch.manual_seed(seed)
    console = Console()
    console.print(
        f"Training the [bold]base[/bold] model for {steps} steps on {TRAINING_STREETS} analytic "
        f"von Karman streets, 64 x 64 points ({torch.get_num_threads()} threads).",
        soft_wrap=True,
    )
    columns = (
        TextColumn("step {task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.2e}"),
        TimeRemainingColumn(),
    )
    start = time.perf_counter()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=steps, loss=float("nan"))
        result = run_demo(
            out,
            steps=steps,
            ahead=ahead,
            on_step=lambda step, loss: progress.update(task, completed=step, loss=loss),
        )
    table = Table(title=f"rms error on {TEST_STREETS} streets not trained on (stream speed 1)")
    for heading in ("frames ahead", "persistence", "model", "model / persistence"):
        table.add_column(heading, justify="right")
    rows = zip(result.persistence, result.model, result.ratios, strict=True)
    for frame, (persistence, model, ratio) in enumerate(rows, start=1):
        table.add_row(str(frame), f"{persistence:.4f}", f"{model:.4f}", f"{ratio:.2f}")
    console.print(table)
    console.print(f"Took {time.perf_counter() - start:.0f} s. Picture: {result.picture}")


@app.command()
def generate(
    case: Annotated[str, typer.Argument(help="What to simulate; without it, the choices.")] = "",
    preset: Annotated[str, typer.Option(help="A ready recipe of the case.")] = "demo",
    out: Annotated[Path | None, typer.Option(help="The file to write (HDF5).")] = None,
    samples: Annotated[int | None, typer.Option(help="How many trajectories.")] = None,
    seed: Annotated[int | None, typer.Option(help="Another set of the same kind.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change the recipe: --set frames=20")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    overwrite: Annotated[bool, typer.Option(help="Replace a file of something else.")] = False,
) -> None:
    """Simulate flows and write them in the native format; the same command goes on after a stop.

    Example: pibert generate cylinder --preset demo --out wake.h5
    """
    import torch

    from pibert.data import generate as generation
    from pibert.solver.presets import PRESETS, find_preset

    console = Console()
    if not case:
        table = Table("case", "presets")
        for name, presets in PRESETS.items():
            table.add_row(name, ", ".join(presets))
        console.print(table)
        return
    changes = dict(_setting(text) for text in settings or ())
    changes |= {k: v for k, v in (("samples", samples), ("seed", seed)) if v is not None}
    recipe = generation.change(find_preset(case, preset), changes)
    path = out or Path(f"outputs/{case}-{preset}.h5")
    if out is None:
        path.parent.mkdir(exist_ok=True)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    code = generation.recipe_hash(recipe)
    console.print(f"{recipe.samples} trajectories of {case}, recipe {code}, on {device}.")
    columns = (
        TextColumn("{task.completed:.1f}/{task.total} trajectories"),
        BarColumn(),
        TimeRemainingColumn(),
    )
    start = time.perf_counter()
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("generating", total=recipe.samples)
            result = generation.generate(
                recipe,
                path,
                device=device,
                overwrite=overwrite,
                on_progress=lambda done: progress.update(task, completed=done),
            )
    except generation.Interrupted as stop:
        console.print(str(stop), style="yellow", markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    for lost in result.diverged:
        console.print(f"dropped {lost.name}: {lost.reason}", style="yellow", markup=False)
    if result.was_there:
        console.print(f"{path} holds this recipe already: {result.completed} trajectories.")
        return
    took = time.perf_counter() - start
    console.print(
        f"Wrote {result.completed} trajectories to {path} in {took:.0f} s "
        f"({len(result.diverged)} diverged). Look at them: pibert inspect {path}",
        soft_wrap=True,
    )


def _setting(text: str) -> tuple[str, Any]:
    """A change of a recipe as the user writes it: KEY=VALUE, the value as in JSON or a word."""
    key, sign, value = text.partition("=")
    if not sign:
        raise ValueError(f"expected KEY=VALUE after --set, found {text!r}")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


@app.command()
def info() -> None:
    """Show versions, and the models with their presets and sizes."""
    import numpy
    import torch

    from pibert import __version__
    from pibert.models import PRESETS, build_model, count_parameters

    console = Console()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    versions = Table(show_header=False, box=None)
    for name, value in {
        "pibert": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "device": f"{device}, {torch.get_num_threads()} threads",
    }.items():
        versions.add_row(name, value)
    console.print(versions)
    models = Table("model", "preset")
    models.add_column("parameters", justify="right")
    for name, presets in PRESETS.items():
        for preset in presets:
            count = count_parameters(build_model(name, preset=preset))
            models.add_row(name, preset, f"{count:,}")
    console.print(models)


_Source = Annotated[Path, typer.Argument(help="A file or folder of flow data.", show_default=False)]
_Kind = Annotated[str | None, typer.Option(help="The kind of data, where PATH does not tell.")]
_Dt = Annotated[float | None, typer.Option(help="Time between frames.")]
_Dx = Annotated[float | None, typer.Option(help="Spacing along x.")]
_Dy = Annotated[float | None, typer.Option(help="Spacing along y.")]
_Unit = Annotated[str | None, typer.Option("--unit", "--units", help="Of velocities, as m/s.")]
_LengthUnit = Annotated[str | None, typer.Option(help="Of coordinates, such as mm.")]
_TimeUnit = Annotated[str | None, typer.Option(help="Of time, such as s.")]
_Channels = Annotated[
    str | None, typer.Option(help="Our names for the file's: u=Vx,v=Vy.", metavar="NAME=THEIRS,...")
]
_Axes = Annotated[str | None, typer.Option(help="Order of the axes of an array, such as tcyx.")]
_Shape = Annotated[
    str | None, typer.Option(help="Rows x columns to resample points to.", metavar="ROWSxCOLUMNS")
]
_Parameters = Annotated[
    list[str] | None, typer.Option(help="A parameter of the flow: Re=100.", metavar="NAME=NUMBER")
]


def _assignments(option: str, texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts if text]
    if any(not (name and mark and value) for name, mark, value in pairs):
        raise ValueError(f"--{option} takes NAME=VALUE, found {','.join(texts)!r}")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _numbers(option: str, texts: list[str]) -> dict[str, float]:
    try:
        return {name: float(value) for name, value in _assignments(option, texts).items()}
    except ValueError:
        raise ValueError(f"--{option} takes NAME=NUMBER, found {' '.join(texts)!r}") from None


def _two_numbers(option: str, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    rows, _, columns = text.lower().partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise ValueError(f"--{option} takes ROWSxCOLUMNS such as 64x128, found {text!r}")
    return int(rows), int(columns)


def _show_facts(console: Console, facts: "Survey") -> None:
    """What a survey found, as tables."""
    (ny, nx), (dx, dy), (x, y) = facts.shape, facts.spacing, facts.origin
    length, clock = (f" {u}" if u else "" for u in (facts.length_unit, facts.time_unit))
    many = facts.frames[0] != facts.frames[1]
    frames = f"{facts.frames[0]} to {facts.frames[1]}" if many else str(facts.frames[0])
    dt = "not stated" if facts.dt is None else f"{facts.dt:g}{clock}"
    rows = {
        "kind": facts.kind,
        "trajectories": f"{facts.trajectories}, with {frames} frames; "
        f"what follows is from {facts.frames_read} frames of {facts.opened}",
        "grid": f"{ny} x {nx} (rows x columns), dx {dx:g}, dy {dy:g}{length}",
        "extent": f"x {x:g} to {x + (nx - 1) * dx:g}, y {y:g} to {y + (ny - 1) * dy:g}{length}",
        "time": "one frame"
        if facts.frames[1] == 1
        else f"{facts.time[0]:g} to {facts.time[1]:g}{clock}, dt {dt}",
        "points": f"body {facts.body_share:.1%}, missing {facts.missing_share:.1%} of the rest",
    }
    if facts.divergence is not None:
        found = facts.divergence
        rows["divergence"] = (
            f"rms {found.rms:.3g}, {found.level:.3f} of the velocity gradient "
            f"({found.as_is.level:.3f} averaged over 3 x 3 points); plane flow 0 to 0.05, "
            "a plane in turbulence about 0.4, noise 0.7"
        )
    if facts.outliers is not None:
        rows["outliers"] = f"{facts.outliers:.2%} of the vectors do not fit their neighbours"
    if facts.parameters:
        rows["parameters"] = ", ".join(
            f"{name} {low:g}" if low == high else f"{name} {low:g} to {high:g}"
            for name, (low, high) in facts.parameters.items()
        )
    if facts.series:
        rows["per frame"] = ", ".join(facts.series)
    rows |= {key: str(value) for key, value in facts.source.items() if value is not None}
    table = Table(show_header=False, box=None)
    for key, value in rows.items():
        table.add_row(Text(key, "bold"), Text(value))
    console.print(table)
    table = Table("channel", "unit", "lowest", "highest", "mean", "deviation")
    for channel in facts.channels:
        numbers = (channel.low, channel.high, channel.mean, channel.std)
        table.add_row(channel.name, channel.unit, *(f"{number:.4g}" for number in numbers))
    console.print(table)
    for remark in facts.remarks:
        console.print(f"note: {remark}", markup=False, highlight=False, soft_wrap=True)


def _show_findings(console: Console, findings: "tuple[Finding, ...]") -> None:
    for finding in findings:
        style, word = ("bold red", "wrong?") if finding.serious else ("bold", "mind")
        text = Text(f"{word} {finding.topic}: ", style)
        text.append(f"{finding.seen}; {finding.why}. ", "not bold default")
        text.append(f"What to do: {finding.advice}.", "not bold default")
        console.print(text, soft_wrap=True)
    if not findings:
        console.print("Nothing looks wrong.")


def _show_columns(path: Path, reason: str, as_json: bool) -> None:
    """A table that holds no field: its columns and their ranges."""
    import json

    from pibert.data.sources.columns import read_columns

    found = read_columns(path)
    ranges = {
        name: (float(values.min()), float(values.max()))
        for name, values in zip(found.names, found.values.T, strict=True)
    }
    if as_json:
        print(json.dumps({"kind": "table", "rows": len(found.values), "columns": ranges}))
        return
    console = Console()
    console.print(f"{path.name}: {len(found.values)} rows", soft_wrap=True)
    table = Table("column", "lowest", "highest")
    for name, (low, high) in ranges.items():
        table.add_row(name, f"{low:.6g}", f"{high:.6g}")
    console.print(table)
    console.print(f"no field: {reason}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def inspect(
    path: _Source,
    picture: Annotated[
        Path | None,
        typer.Option(help="Where the picture goes (PNG) instead of outputs/."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, draw no picture.")] = False,
    kind: _Kind = None,
    dt: _Dt = None,
    dx: _Dx = None,
    dy: _Dy = None,
    unit: _Unit = None,
    length_unit: _LengthUnit = None,
    time_unit: _TimeUnit = None,
    channels: _Channels = None,
    axes: _Axes = None,
    shape: _Shape = None,
    parameter: _Parameters = None,
) -> None:
    """Say what a file or folder of flow data holds and what looks wrong, and draw it."""
    import json

    from pibert.data.inspect import inspect as look
    from pibert.data.sources import identify, open_recordings
    from pibert.data.sources.recordings import Hints, SourceError

    hints = Hints(
        channels=_assignments("channels", (channels or "").split(",")),
        axes=axes,
        dt=dt,
        dx=dx,
        dy=dy,
        length_unit=length_unit,
        time_unit=time_unit,
        unit=unit,
        shape=_two_numbers("shape", shape),
        parameters=_numbers("parameter", parameter or []),
    )
    kind = kind or identify(path)
    try:
        recordings = open_recordings(path, kind, hints)
    except SourceError as error:
        if kind == "table" and hints == Hints():
            return _show_columns(path, str(error), as_json)
        raise
    inspection = look(recordings)
    if as_json:
        print(json.dumps(inspection.to_dict(), ensure_ascii=False, allow_nan=False, indent=2))
        return
    console = Console()
    _show_facts(console, inspection.facts)
    _show_findings(console, inspection.problems)
    from pibert.report.inspection import draw_inspection

    out = picture or Path("outputs") / f"{path.resolve().name.split('.')[0]}.png"
    console.print(f"Picture: {draw_inspection(out, recordings[0], inspection)}", soft_wrap=True)


@app.command()
def convert(
    path: _Source,
    out: Annotated[Path, typer.Argument(help="The file to write (.h5).", show_default=False)],
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
    kind: _Kind = None,
    dt: _Dt = None,
    dx: _Dx = None,
    dy: _Dy = None,
    unit: _Unit = None,
    length_unit: _LengthUnit = None,
    time_unit: _TimeUnit = None,
    channels: _Channels = None,
    axes: _Axes = None,
    shape: _Shape = None,
    parameter: _Parameters = None,
) -> None:
    """Write a file or folder of flow data of any known kind in PIBERT's own format."""
    from pibert.data.convert import convert as write
    from pibert.data.sources import open_recordings
    from pibert.data.sources.recordings import Hints

    hints = Hints(
        channels=_assignments("channels", (channels or "").split(",")),
        axes=axes,
        dt=dt,
        dx=dx,
        dy=dy,
        length_unit=length_unit,
        time_unit=time_unit,
        unit=unit,
        shape=_two_numbers("shape", shape),
        parameters=_numbers("parameter", parameter or []),
    )
    recordings = open_recordings(path, kind, hints)
    console = Console()
    for remark in recordings.remarks:
        console.print(f"note: {remark}", markup=False, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.percentage:.0f} %"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("converting", total=1.0)
        write(
            recordings,
            out,
            stride=stride,
            max_frames=max_frames,
            channels=None if keep is None else keep.split(","),
            size=_two_numbers("size", size),
            on_progress=lambda share: progress.update(task, completed=share),
        )
    megabytes = out.stat().st_size / 1e6
    console.print(
        f"Wrote {out}: {len(recordings)} trajectories, {megabytes:.1f} MB.", soft_wrap=True
    )


if __name__ == "__main__":
    app()
