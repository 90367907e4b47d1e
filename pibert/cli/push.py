"""``pibert push``: a model to the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pibert.cli.completion import complete_model
from pibert.cli.options import Json, option
from pibert.cli.terminal import say, show_json


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
