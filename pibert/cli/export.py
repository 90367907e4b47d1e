"""``pibert export``: a trained model as ONNX or a torch.export program."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pibert.cli.completion import complete_model
from pibert.cli.options import Json, option
from pibert.cli.terminal import say, show_json


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Export this run folder, model folder, .safetensors file or shipped model.",
            autocompletion=complete_model,
        ),
    ],
    to: Annotated[str, option("Choose the format.", metavar="onnx|torch-export")],
    out: Annotated[Path, option("Write this file (.onnx, .pt2).")],
    data: Annotated[
        Path | None,
        option(
            "Check it on these flows (.h5). Default: random fields with the model's statistics."
        ),
    ] = None,
    tolerance: Annotated[
        float, option("Accept this difference, relative to the fluctuations of a channel.")
    ] = 1e-4,
    overwrite: Annotated[bool, option("Replace an existing file.", "--overwrite")] = False,
    as_json: Json = False,
) -> None:
    """Export a model as ONNX or a torch.export program.

    The file takes and returns physical fields. It is checked against the model and written only if
    it agrees.

    Example: pibert export runs/wake --to onnx --out wake.onnx --data wake.h5
    """
    from pibert.export import export_model
    from pibert.inference import read_model

    exported = export_model(
        read_model(model), out, to, data=data, tolerance=tolerance, overwrite=overwrite
    )
    difference = exported.difference
    if as_json:
        inputs = exported.inputs.items()
        return show_json(
            {
                "inputs": {n: {"dtype": kind, "shape": shape} for n, (kind, shape) in inputs},
                "frames": exported.frames,
                "checked_on": exported.samples,
                "difference": difference.absolute,
                "relative_difference": difference.relative,
                "bytes": exported.size,
                "written": [str(exported.path)],
            }
        )
    console = Console()

    def sizes(shape: tuple[int | str, ...]) -> str:
        return f"({', '.join(map(str, shape))})"

    for name, (dtype, shape) in exported.inputs.items():
        say(console, f"in   {name} {sizes(shape)} {dtype}")
    say(console, f"out  frames {sizes(exported.frames)} float32")
    largest = ", ".join(f"{name} {value:.2g}" for name, value in difference.absolute.items())
    say(
        console,
        f"Largest difference from the model on {exported.samples}, batches of 1 and 3: {largest}; "
        f"relative {difference.relative:.2g}",
    )
    say(console, f"Wrote {exported.path} ({exported.size / 1e6:.1f} MB)")
