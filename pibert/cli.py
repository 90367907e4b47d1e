"""The ``pibert`` command. Each command imports what it needs when it runs."""

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
        except (ValueError, OSError) as error:
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
