"""``pibert info`` and ``pibert demo``: versions and models; a demonstration of the commands."""

import platform
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pibert.cli.options import Json
from pibert.cli.terminal import say, show_json


def info(as_json: Json = False) -> None:
    """Show versions, the models with their presets and sizes, and the shipped weights.

    Example: pibert info
    """
    import numpy
    import torch

    from pibert import __version__
    from pibert.fields import FieldSpec
    from pibert.inference import shipped_models
    from pibert.models import PRESETS, build_model, count_parameters

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    versions = {
        "pibert": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }
    spec = FieldSpec(dt=1.0, family="incompressible")
    sizes: dict[str, dict[str, int | None]] = {}
    for name, presets in PRESETS.items():
        for preset in presets:
            try:
                size = count_parameters(build_model(name, preset=preset, spec=spec))
            except ImportError:
                size = None
            sizes.setdefault(name, {})[preset] = size
    threads, shipped = torch.get_num_threads(), shipped_models()
    if as_json:
        return show_json(
            {
                "versions": versions,
                "device": device,
                "threads": threads,
                "models": sizes,
                "shipped": {name: str(folder) for name, folder in shipped.items()},
            }
        )
    console = Console()
    table = Table(show_header=False, box=None)
    for name, value in (versions | {"device": f"{device}, {threads} threads"}).items():
        table.add_row(name, value)
    console.print(table)
    table = Table("model", "preset")
    table.add_column("parameters", justify="right")
    for name, presets_of in sizes.items():
        for preset, count in presets_of.items():
            table.add_row(name, preset, "not installed" if count is None else f"{count:,}")
    console.print(table)
    say(console, "Sizes are for two channels on 64 x 64 points.")
    say(console, f"Shipped weights: {', '.join(shipped) or 'none'}")


def demo(
    out: Annotated[
        Path, typer.Option(help="Write everything to this folder; finished steps are reused.")
    ] = Path("outputs/demo"),
    preset: Annotated[
        str, typer.Option(help="Run this comparison: tour, or quick (learns nothing).")
    ] = "tour",
) -> None:
    """Roll out the shipped model, train a small one beside baselines, and write the report.

    Shows each command and runs it; takes a few minutes on two cores. Rerun it to resume.

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
