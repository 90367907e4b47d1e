"""``pibert demo``: the commands of the demonstration, each shown before it runs."""

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pibert.cli.terminal import say


def demo(
    out: Annotated[
        Path, typer.Option(help="The folder that everything goes to; what is done stays.")
    ] = Path("outputs/demo"),
    preset: Annotated[
        str, typer.Option(help="The comparison: tour, or quick (learns nothing).")
    ] = "tour",
) -> None:
    """Roll out the shipped model, train a small one beside baselines, and write the report.

    Runs the commands that it shows, for a few minutes on two cores. The same command goes on after
    a stop.

    Example: pibert demo --out outputs/demo
    """
    from pibert.cli import app
    from pibert.comparison import find_comparison
    from pibert.demo import steps, suggestions

    find_comparison(preset)  # a wrong one is told before anything is written
    out.mkdir(parents=True, exist_ok=True)
    console, begun = Console(), time.perf_counter()
    commands, plan, partly = typer.main.get_command(app), steps(out, preset), False
    for number, step in enumerate(plan, start=1):
        say(console, f"\n[{number}/{len(plan)}] {step.happens} (about {step.lasts}).", "bold")
        say(console, f"$ pibert {shlex.join(step.command)}")
        console.file.flush()
        code = commands.main(list(step.command), "pibert", standalone_mode=False)
        if code not in (None, 0, 1):
            raise typer.Exit(code)
        partly = partly or code == 1
    say(console, f"\nDone in {time.perf_counter() - begun:.0f} s.", "bold")
    for name in ("rollout.png", "rollout.gif", "comparison/report.html"):
        say(console, f"  {out / name}")
    say(console, "What to try next:")
    for command, does in suggestions(out, preset).items():
        say(console, f"  {command}  # {does}")
    if partly:
        raise typer.Exit(1)
