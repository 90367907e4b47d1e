"""The ``pibert`` command. Each command imports what it needs when it runs."""

import json
import platform
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer.core import TyperGroup


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


if __name__ == "__main__":
    app()
