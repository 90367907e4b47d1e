"""``pibert generate``: data sets from the built-in solvers."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from pibert.cli.completion import complete_case, complete_case_preset
from pibert.cli.options import Json, require_file_name, require_native_name
from pibert.cli.terminal import progress_bar, say, show_json


def generate(
    case: Annotated[
        str,
        typer.Argument(
            help="Simulate this case; without it, list the cases.", autocompletion=complete_case
        ),
    ] = "",
    preset: Annotated[
        str, typer.Option(help="Use this preset of the case.", autocompletion=complete_case_preset)
    ] = "demo",
    out: Annotated[Path | None, typer.Option(help="Write this file (HDF5).")] = None,
    samples: Annotated[int | None, typer.Option(help="Simulate this many trajectories.")] = None,
    seed: Annotated[int | None, typer.Option(help="Set the random seed.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change the recipe, such as --set frames=20.")
    ] = None,
    device: Annotated[
        str, typer.Option(help="Compute on this device: cpu, cuda or auto.")
    ] = "auto",
    overwrite: Annotated[bool, typer.Option(help="Replace a file of another recipe.")] = False,
    as_json: Json = False,
) -> None:
    """Simulate flows and write them in the native format; rerun to resume.

    Example: pibert generate cylinder --preset demo --out wake.h5
    """
    from pibert.config import assignment
    from pibert.data import generate as generation
    from pibert.solver.presets import PRESETS, find_preset

    console = Console(stderr=as_json)
    if not case and as_json:
        return show_json({"cases": {name: list(presets) for name, presets in PRESETS.items()}})
    if not case:
        table = Table("case", "presets")
        for name, presets in PRESETS.items():
            table.add_row(name, ", ".join(presets))
        console.print(table)
        return
    changes = dict(assignment(text) for text in settings or ())
    changes |= {k: v for k, v in (("samples", samples), ("seed", seed)) if v is not None}
    recipe = generation.change(find_preset(case, preset), changes)
    device = _device(device)
    path = out or Path(f"outputs/{case}-{preset}.h5")
    if out is None:
        path.parent.mkdir(exist_ok=True)
    require_file_name(path)
    require_native_name(path)
    code = generation.recipe_hash(recipe)
    say(console, f"{recipe.samples} trajectories of {case}, recipe {code}, on {device}.")
    columns = (
        TextColumn("{task.completed:.1f}/{task.total} trajectories"),
        BarColumn(),
        TimeRemainingColumn(),
    )
    start = time.perf_counter()
    try:
        with progress_bar(console, *columns) as progress:
            task = progress.add_task("generating", total=recipe.samples)
            result = generation.generate(
                recipe,
                path,
                device=device,
                overwrite=overwrite,
                on_progress=lambda done: progress.update(task, completed=done),
            )
    except KeyboardInterrupt as stop:
        said = str(stop) or "interrupted: rerun the command to resume"
        raise KeyboardInterrupt(said) from None
    for lost in result.diverged:
        say(console, f"dropped {lost.name}: {lost.reason}", "yellow")
    if as_json:
        return show_json(
            {
                "recipe": code,
                "trajectories": result.completed,
                "diverged": {lost.name: lost.reason for lost in result.diverged},
                "was_there": result.was_there,
                "written": [str(path)],
            }
        )
    if result.was_there:
        say(console, f"{path} holds this recipe already: {result.completed} trajectories.")
        return
    took = time.perf_counter() - start
    say(
        console,
        f"Wrote {result.completed} trajectories to {path} in {took:.0f} s "
        f"({len(result.diverged)} diverged). Look at them: pibert inspect {path}",
    )


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    count = {"cpu": 1, "cuda": torch.cuda.device_count()}.get(kind, 0)
    if number and not number.isdecimal() or int(number or 0) >= count:
        there = ["auto", "cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        raise ValueError(f"there is no device {name!r}; choose from: {', '.join(there)}")
    return name
