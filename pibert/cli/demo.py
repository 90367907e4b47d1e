"""``pibert demo``: a short pretraining and training, judged and drawn."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pibert.cli.terminal import say
from pibert.cli.training_progress import TrainingProgress


def demo(
    out: Annotated[Path, typer.Option(help="Where the picture goes (PNG).")] = Path(
        "outputs/demo.png"
    ),
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of training.")] = 4,
    ahead: Annotated[int, typer.Option(min=1, help="Frames to step forward.")] = 4,
    seed: Annotated[int, typer.Option(help="Of the weights and the order of samples.")] = 0,
) -> None:
    """Simulate wakes, train briefly on some, step the others and draw the result.

    Example: pibert demo --out demo.png
    """
    from pibert.demo import EXPERIMENT, run_demo
    from pibert.report.figures import picture_path

    out = picture_path(out)  # a bad one is told before anything else
    experiment = replace(
        EXPERIMENT, seed=seed, training=replace(EXPERIMENT.training, epochs=epochs)
    )
    console = Console()
    say(
        console,
        f"Simulating wakes (kept in the cache), pretraining, then training for {epochs} epochs.",
    )
    start = time.perf_counter()
    with TrainingProgress(console) as progress:
        result = run_demo(out, experiment=experiment, ahead=ahead, reporter=progress)
    reynolds = ", ".join(f"{value:.0f}" for value in result.reynolds)
    table = Table(title=f"rms error on unseen wakes (Re {reynolds}), in U")
    for heading in ("frames ahead", "persistence", "model", "model / persistence"):
        table.add_column(heading, justify="right")
    rows = zip(result.persistence, result.model, result.ratios, strict=True)
    for frame, (persistence, model, ratio) in enumerate(rows, start=1):
        table.add_row(str(frame), f"{persistence:.4g}", f"{model:.4g}", f"{ratio:.2f}")
    console.print(table)
    say(console, f"Took {time.perf_counter() - start:.0f} s. Picture: {result.picture}")
    say(
        console, f"The model: pibert.load({str(result.run)!r})  Its curves: {result.run}/curves.png"
    )
