"""``pibert demo``: a short training, judged and drawn."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from pibert.cli.terminal import progress_bar, say


def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes (PNG).")] = Path(
        "outputs/demo.png"
    ),
    steps: Annotated[int, typer.Option(min=0, help="Training steps.")] = 400,
    ahead: Annotated[int, typer.Option(min=1, help="Frames to step forward.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the model's weights.")] = 0,
) -> None:
    """Simulate wakes, train briefly on some, step the others and draw the result.

    Example: pibert demo --out demo.png
    """
    import torch

    from pibert.demo import run_demo
    from pibert.report.figures import picture_path
    from pibert.solver.presets import find_preset

    out = picture_path(out)  # a bad one is told before anything else
    torch.manual_seed(seed)
    console = Console()
    say(console, f"Simulating wakes (kept beside the picture), then training for {steps} steps.")
    columns = (
        TextColumn("{task.description} {task.completed:.0f}/{task.total}"),
        BarColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    start = time.perf_counter()
    with progress_bar(console, *columns) as progress:
        wakes = progress.add_task("wake", total=find_preset("cylinder").samples, loss="")
        training = progress.add_task("step", total=steps, loss="")
        result = run_demo(
            out,
            steps=steps,
            ahead=ahead,
            on_wakes=lambda done: progress.update(wakes, completed=done),
            on_step=lambda step, loss: progress.update(
                training, completed=step, loss=f"loss {loss:.2e}"
            ),
        )
    reynolds = ", ".join(f"{value:.0f}" for value in result.reynolds)
    table = Table(title=f"rms error on unseen wakes (Re {reynolds}), in U")
    for heading in ("frames ahead", "persistence", "model", "model / persistence"):
        table.add_column(heading, justify="right")
    rows = zip(result.persistence, result.model, result.ratios, strict=True)
    for frame, (persistence, model, ratio) in enumerate(rows, start=1):
        table.add_row(str(frame), f"{persistence:.4g}", f"{model:.4g}", f"{ratio:.2f}")
    console.print(table)
    say(console, f"Took {time.perf_counter() - start:.0f} s. Picture: {result.picture}")
