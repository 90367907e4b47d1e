"""``pibert export`` and ``push``: a trained model as ONNX or torch.export, and to the hub."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pibert.cli.options import Json, complete_model, option
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


def push(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Upload this run folder, model folder or shipped model.",
            autocompletion=complete_model,
        ),
    ],
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Upload to this repository.")],
    public: Annotated[bool, option("Make a new repository public.", "--public")] = False,
    revision: Annotated[
        str | None, option("Upload to this branch. Default: the main branch.", metavar="BRANCH")
    ] = None,
    message: Annotated[str | None, option("Describe the upload.")] = None,
    dry_run: Annotated[
        bool, option("Only show the files and the model card.", "--dry-run")
    ] = False,
    as_json: Json = False,
) -> None:
    """Upload a model to the Hugging Face hub.

    A model card is made from its run. Log in first (hf auth login). Load the model with --model
    hf://OWNER/NAME, or from Python with pibert.load("hf://OWNER/NAME"). The address that is printed
    ends in @COMMIT: with it, a later upload does not change what is loaded.

    Example: pibert push runs/wake me/wake --dry-run

    Example: pibert push runs/wake me/wake --public
    """
    from pibert.inference.hub import README, files_of, parse_address, push_model
    from pibert.inference.model_file import find_model, read_model

    console = Console()
    parse_address(f"hf://{repo}")
    if dry_run:
        folder = find_model(model)
        source = folder if folder.is_dir() else folder.parent
        files = files_of(Path(source), read_model(folder).card, repo)
        if as_json:
            return show_json({"files": {name: len(data) for name, data in files.items()}})
        for name, content in files.items():
            say(console, f"{name}: {len(content):,} bytes")
        say(console, files[README].decode())
        return None
    address = push_model(model, repo, private=not public, revision=revision, message=message)
    if as_json:
        return show_json({"address": address})
    say(console, f"Uploaded. Load it: pibert.load({address!r})")
    return None
