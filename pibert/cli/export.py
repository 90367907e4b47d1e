"""``pibert export``: a trained model as ONNX or a torch.export program."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pibert.cli.completion import complete_model
from pibert.cli.options import Json
from pibert.cli.terminal import say, show_json


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Export this run folder, model folder, .safetensors file or shipped model.",
            autocompletion=complete_model,
            show_default=False,
        ),
    ],
    to: Annotated[
        str,
        typer.Option(help="Choose the format.", metavar="onnx|torch-export", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="Write this file (.onnx, .pt2).", show_default=False)],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Check it on these flows (.h5). Default: random fields with the model's "
            "statistics.",
            show_default=False,
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(help="Accept this difference, relative to the fluctuations of a channel."),
    ] = 1e-4,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Export a trained model as ONNX or a torch.export program, physical fields in and out.

    The file is checked against the model and written only if it agrees.

    Example: pibert export runs/wake --to onnx --out wake.onnx --data wake.h5
    """
    from pibert.export import export_model
    from pibert.inference import read_model

    made = export_model(
        read_model(model), out, to, data=data, tolerance=tolerance, overwrite=overwrite
    )
    difference = made.difference
    if as_json:
        inputs = made.inputs.items()
        return show_json(
            {
                "inputs": {n: {"dtype": kind, "shape": shape} for n, (kind, shape) in inputs},
                "frames": made.frames,
                "checked_on": made.samples,
                "difference": difference.absolute,
                "relative_difference": difference.relative,
                "bytes": made.size,
                "written": [str(made.path)],
            }
        )
    console = Console()

    def sizes(shape: tuple[int | str, ...]) -> str:
        return f"({', '.join(map(str, shape))})"

    for name, (dtype, shape) in made.inputs.items():
        say(console, f"in   {name} {sizes(shape)} {dtype}")
    say(console, f"out  frames {sizes(made.frames)} float32")
    apart = ", ".join(f"{name} {value:.2g}" for name, value in difference.absolute.items())
    say(
        console,
        f"Largest difference to the model on {made.samples}, batches of 1 and 3: {apart}; "
        f"relative {difference.relative:.2g}",
    )
    say(console, f"Wrote {made.path} ({made.size / 1e6:.1f} MB)")
