"""``pibert info`` and ``pibert demo``: versions and models; a demonstration of the commands."""

import os
import platform
import shlex
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pibert.cli.options import Json, option
from pibert.cli.terminal import say, show_json, show_note, show_table

SHIPPED = "cylinder-mr"
"""The shipped model of the demonstration."""
_ROLLOUT_STEPS = 39
"""To the end of the recording that comes with the weights."""


def info(as_json: Json = False) -> None:
    """Show versions, models, shipped weights and kinds of data.

    Example: pibert info
    """
    import numpy
    import torch

    from pibert import __version__
    from pibert.data.readers import READERS
    from pibert.fields import FieldSpec
    from pibert.inference import shipped_models
    from pibert.models import PRESETS, build_model, count_parameters
    from pibert.plugins import PluginError

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    versions = {
        "pibert": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }
    spec = FieldSpec(dt=1.0, family="incompressible")
    sizes: dict[str, dict[str, int | None]] = {}
    for name in PRESETS:
        try:
            presets = PRESETS[name]
        except PluginError as error:
            show_note(str(error))
            continue
        for preset in presets:
            try:
                size = count_parameters(build_model(name, preset=preset, spec=spec))
            except ImportError:
                size = None
            sizes.setdefault(name, {})[preset] = size
    threads, shipped = torch.get_num_threads(), shipped_models()
    READERS.added()  # notes those that cannot be imported
    kinds = {kind: reader.TITLE for kind, reader in READERS.items()}
    if as_json:
        return show_json(
            {
                "versions": versions,
                "device": device,
                "threads": threads,
                "models": sizes,
                "shipped": {name: str(folder) for name, folder in shipped.items()},
                "kinds": kinds,
            }
        )
    console = Console()
    for name, value in (versions | {"device": f"{device}, {threads} threads"}).items():
        say(console, f"{name:8} {value}")
    rows = [
        (name, preset, "not installed" if count is None else f"{count:,}")
        for name, presets_of in sizes.items()
        for preset, count in presets_of.items()
    ]
    show_table(console, ("model", "preset", "parameters"), rows, numbers=True)
    say(console, "Sizes are for two channels on 64 x 64 points.")
    say(console, f"Shipped weights: {', '.join(shipped) or 'none'}")
    show_table(console, ("kind", "data that can be read"), kinds.items())


def demo(
    out: Annotated[
        Path, option("Write everything to this folder; finished steps are reused.")
    ] = Path("outputs/demo"),
    preset: Annotated[
        str, option("Run this comparison: tour, or quick (too short to learn anything).")
    ] = "tour",
) -> None:
    """Run a demonstration of a few minutes.

    Rolls out a shipped model, trains a small one beside baselines, and writes the report. Shows
    each command and runs it. Rerun it to resume.

    Example: pibert demo --out outputs/demo
    """
    from pibert.cli import app
    from pibert.comparison import find_comparison

    find_comparison(preset)  # a wrong one is reported before anything is written
    out.mkdir(parents=True, exist_ok=True)
    console, start = Console(), time.perf_counter()
    commands, steps, failed = typer.main.get_command(app), demo_steps(out, preset), False
    for number, (text, command) in enumerate(steps.items(), start=1):
        say(console, f"\n[{number}/{len(steps)}] {text}.", "bold")
        say(console, f"$ pibert {shlex.join(command)}")
        console.file.flush()
        code = commands.main(list(command), "pibert", standalone_mode=False)
        if code not in (None, 0, 1):
            raise typer.Exit(code)
        failed = failed or code == 1
    say(console, f"\nDone in {time.perf_counter() - start:.0f} s.", "bold")
    for name in ("rollout.png", "rollout.gif", "comparison/report.html"):
        say(console, f"  {out / name}")
    say(console, "What to try next:")
    for line, purpose in demo_suggestions(out, preset).items():
        say(console, f"  {line}  # {purpose}")
    if failed:
        raise typer.Exit(1)


def demo_steps(out: Path, preset: str) -> dict[str, tuple[str, ...]]:
    """Return the commands of the demonstration, without the word ``pibert``, by description."""
    from pibert.inference import shipped_models

    sample = os.path.relpath(shipped_models()[SHIPPED] / "sample.h5")
    comparison = str(out / "comparison")
    return {
        f"Roll the shipped model {SHIPPED} out on a wake that it was not trained on (about half "
        "a minute)": (
            *("rollout", sample, "--model", SHIPPED, "--steps", str(_ROLLOUT_STEPS)),
            *("--out", str(out / "rollout.png"), "--out", str(out / "rollout.gif")),
            "--overwrite",
        ),
        "Simulate wakes, train small models with the same budget, and score them on wakes that "
        "none of them has seen (about four minutes on two cores)": (
            *("compare", "--preset", preset, "--out", comparison),
        ),
        "Write the report (about half a minute)": ("report", comparison),
    }


def demo_suggestions(out: Path, preset: str) -> dict[str, str]:
    """Return commands to try next, with their purpose."""
    # Of the presets, only tour is a subset of demo.
    folder = out / "comparison" if preset == "tour" else Path("outputs/comparison")
    return {
        f"pibert compare --preset demo --out {folder}": "compare all models",
        f"pibert serve {SHIPPED}": "try the shipped model in a browser",
        "pibert inspect FILE": "summarise your own data and flag problems",
        "pibert --help": "list all commands",
    }
