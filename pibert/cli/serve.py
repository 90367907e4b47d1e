"""``pibert serve``: trained models over HTTP, with a page to try them."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pibert.cli.completion import complete_model
from pibert.cli.flow_input import Device
from pibert.cli.terminal import complain, say


def serve(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Run folders, model folders, .safetensors files or shipped models.",
            autocompletion=complete_model,
            show_default=False,
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    sample: Annotated[
        list[Path] | None,
        typer.Option(help="Recordings (.h5) to offer; repeat for more.", show_default=False),
    ] = None,
    calibration: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder of a calibration of one of the models, told by its weights; repeat for "
            "more. If not given: that in the model's folder.",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="Its first line is the token that callers need; else PIBERT_TOKEN is.",
            show_default=False,
        ),
    ] = None,
    device: Device = "cpu",
    batch: Annotated[int, typer.Option(help="Samples of one model step, at most.")] = 16,
    wait: Annotated[float, typer.Option(help="ms that a request waits for others.")] = 5.0,
    body: Annotated[float, typer.Option(help="MB that a request may send.")] = 64.0,
    steps: Annotated[int, typer.Option(help="Steps of a rollout, at most.")] = 1000,
    samples: Annotated[int, typer.Option(help="Samples of a request, at most.")] = 64,
    queue: Annotated[int, typer.Option(help="Requests of a model that wait or run.")] = 64,
    memory: Annotated[
        float | None,
        typer.Option(
            help="Limit the memory of all requests together, in MB. If not given: 2048, or 32 "
            "times --body if that is more.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a request may take.")] = 120.0,
) -> None:
    """Answer requests for predictions over HTTP, and show a page to try the models.

    Listens on this machine alone unless --host says otherwise. docs/serving.md has the interface.

    Example: pibert serve runs/wake --port 8000 --sample wake.h5

    Example: pibert serve runs/wake runs/other --calibration calibrated
    """
    from pibert.serve.gate import LOOPBACK
    from pibert.serve.limits import MB, SHARE, Limits
    from pibert.serve.server import Setup, serve

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
    setup = Setup(
        models=models,
        samples=sample or [],
        calibrations=calibration or [],
        host=host,
        port=port,
        device=device,
        token=token,
        limits=limits,
    )
    console = Console()

    def tell(text: str) -> None:
        say(console, text)
        console.file.flush()

    serve(setup, tell)


def _token(file: Path | None) -> str | None:
    if file is None:
        found, where = os.environ.get("PIBERT_TOKEN"), "PIBERT_TOKEN"
        if found is None:
            return None
    else:
        found, where = (file.read_text().splitlines() or [""])[0], str(file)
    token = found.strip()
    if len(token) < 8 or not token.isascii():
        raise ValueError(f"{where}: expected a token of at least 8 ASCII characters")
    return token
