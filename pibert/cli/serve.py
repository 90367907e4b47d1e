"""``pibert serve``: models over HTTP with a web viewer."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pibert.cli.options import Device, complete_model, option
from pibert.cli.terminal import complain, say


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Serve these run folders, model folders, .safetensors files or shipped models.",
            autocompletion=complete_model,
        ),
    ],
    port: Annotated[int, option("Listen on this port; 0: a free one.", min=0, max=65535)] = 8000,
    host: Annotated[str, option("Listen on this address.")] = "127.0.0.1",
    sample: Annotated[
        list[Path] | None, option("Offer this recording (.h5) in the viewer. Repeatable.")
    ] = None,
    calibration: Annotated[
        list[Path] | None,
        option(
            "Use the calibration in this folder for the model it was made for. Repeatable. "
            "Default: that in the model's folder."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        option(
            "Read the token that callers need from the first line of this file. Default: "
            "PIBERT_TOKEN."
        ),
    ] = None,
    device: Device = "cpu",
    batch: Annotated[int, option("Limit the samples of one model step.")] = 16,
    wait: Annotated[float, option("Wait this many ms for requests to batch.")] = 5.0,
    body: Annotated[float, option("Limit the size of a request, in MB.")] = 64.0,
    steps: Annotated[int, option("Limit the steps of a rollout.")] = 1000,
    samples: Annotated[int, option("Limit the samples of a request.")] = 64,
    queue: Annotated[int, option("Limit the requests of a model that wait or run.")] = 64,
    memory: Annotated[
        float | None,
        option(
            "Limit the memory of all requests together, in MB. Default: 2048, or 32 times --body "
            "if that is more."
        ),
    ] = None,
    timeout: Annotated[float, option("Limit the time of a request, in seconds.")] = 120.0,
) -> None:
    """Serve models over HTTP with a web viewer.

    Listens on this machine only, unless --host is given. docs/serving.md describes the interface.

    Example: pibert serve runs/wake --port 8000 --sample wake.h5

    Example: pibert serve runs/wake runs/other --calibration calibrated
    """
    from pibert.serve.limits import LOOPBACK, MB, SHARE, Limits
    from pibert.serve.server import serve

    limits = Limits(
        body=int(body * MB),
        steps=steps,
        samples=samples,
        queue=queue,
        memory=max(2048 * MB, SHARE * int(body * MB)) if memory is None else int(memory * MB),
        seconds=timeout,
        batch=batch,
        wait=wait / 1000,
    )
    token = _token(token_file)
    if host not in LOOPBACK and token is None:
        complain(
            f"warning: everyone who can reach {host} may use this server; set a token with "
            "--token-file"
        )
    console = Console()

    def report(text: str) -> None:
        say(console, text)
        console.file.flush()

    serve(
        models,
        report,
        samples=sample or [],
        calibrations=calibration or [],
        host=host,
        port=port,
        device=device,
        token=token,
        limits=limits,
    )


def _token(file: Path | None) -> str | None:
    if file is not None:
        token, where = (file.read_text().splitlines() or [""])[0].strip(), str(file)
    elif (stated := os.environ.get("PIBERT_TOKEN")) is not None:
        token, where = stated.strip(), "PIBERT_TOKEN"
    else:
        return None
    if len(token) < 8 or not token.isascii():
        raise ValueError(f"{where}: expected a token of at least 8 ASCII characters")
    return token
