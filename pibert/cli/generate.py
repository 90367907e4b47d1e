"""``pibert generate``: data sets from the built-in solvers."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pibert.cli.options import (
    Device,
    Json,
    complete_case,
    complete_case_preset,
    option,
    require_native_name,
)
from pibert.cli.terminal import say, show_json, show_table, showing_progress


def generate(
    case: Annotated[
        str,
        typer.Argument(
            help="Simulate this case; without it, list the cases.", autocompletion=complete_case
        ),
    ] = "",
    preset: Annotated[
        str, option("Use this preset of the case.", autocompletion=complete_case_preset)
    ] = "demo",
    out: Annotated[
        Path | None, option("Write this file (HDF5). Default: outputs/CASE-PRESET.h5.")
    ] = None,
    samples: Annotated[
        int | None, option("Simulate this many trajectories. Default: the preset's number.")
    ] = None,
    seed: Annotated[int | None, option("Set the random seed. Default: the preset's seed.")] = None,
    settings: Annotated[
        list[str] | None,
        option(
            "Change the recipe, such as --set frames=20. Repeatable.",
            "--set",
            metavar="NAME=VALUE",
        ),
    ] = None,
    device: Device = "auto",
    overwrite: Annotated[bool, option("Replace a file of another recipe.", "--overwrite")] = False,
    as_json: Json = False,
) -> None:
    """Simulate flows with the built-in solvers.

    Writes PIBERT's own format. Rerun the same command to resume an interrupted simulation.

    Example: pibert generate cylinder --preset demo --out wake.h5
    """
    from pibert.config import assignment
    from pibert.data import generate as generation
    from pibert.solver.presets import PRESETS, find_preset

    console = Console(stderr=as_json)
    if not case and as_json:
        return show_json({"cases": {name: list(presets) for name, presets in PRESETS.items()}})
    if not case:
        rows = ((name, ", ".join(presets)) for name, presets in PRESETS.items())
        return show_table(console, ("case", "presets"), rows)
    changes = dict(assignment(text) for text in settings or ())
    changes |= {k: v for k, v in (("samples", samples), ("seed", seed)) if v is not None}
    recipe = generation.change(find_preset(case, preset), changes)
    device = _check_device(device)
    path = out or Path(f"outputs/{case}-{preset}.h5")
    if out is None:
        path.parent.mkdir(exist_ok=True)
    require_native_name(path)
    code = generation.recipe_hash(recipe)
    say(console, f"{recipe.samples} trajectories of {case}, recipe {code}, on {device}.")
    text = "{task.completed:.1f}/{task.total} trajectories"
    start = time.perf_counter()
    try:
        with showing_progress(console, recipe.samples, text) as update:
            result = generation.generate(
                recipe, path, device=device, overwrite=overwrite, on_progress=update
            )
    except KeyboardInterrupt as stop:
        reason = str(stop) or "interrupted: rerun the command to resume"
        raise KeyboardInterrupt(reason) from None
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
        return say(console, f"{path} holds this recipe already: {result.completed} trajectories.")
    say(
        console,
        f"Wrote {result.completed} trajectories to {path} in {time.perf_counter() - start:.0f} s "
        f"({len(result.diverged)} diverged). Look at them: pibert inspect {path}",
    )


def _check_device(name: str) -> str:
    import torch

    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if name == "auto":
        return "cuda" if gpus else "cpu"
    if name not in ("cpu", *gpus) and not (name == "cuda" and gpus):
        known = ", ".join(["auto", "cpu", *gpus])
        raise ValueError(f"there is no device {name!r}; choose from: {known}")
    return name
