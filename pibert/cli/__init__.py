"""The ``pibert`` command: one module per command, which imports what it needs when it runs.

``docs/commands.md`` is the contract with scripts: exit codes, ``--json``, completion, environment.
"""

import sys
import traceback
import warnings
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from typer.core import TyperGroup

from pibert import stopping
from pibert.cli import (
    calibrate,
    compare,
    config,
    convert,
    download,
    evaluate,
    export,
    fill,
    generate,
    info,
    inspect,
    predict,
    serve,
    train,
)
from pibert.cli.terminal import complain, is_first_process, say
from pibert.notes import InputWarning

_CONTENTS: dict[str, dict[str, tuple[Any, str]]] = {
    "Data": {
        "generate": (generate.generate, "Simulate flows with the built-in solvers"),
        "download": (download.app, "Download published data sets"),
        "inspect": (inspect.inspect, "Summarise flow data, flag problems, plot a preview"),
        "convert": (convert.convert, "Convert files of many kinds to PIBERT's format"),
    },
    "Training": {
        "config": (config.app, "Show and explain the settings of an experiment"),
        "pretrain": (train.pretrain, "Pretrain a model: masked physics, equation consistency"),
        "train": (train.train, "Train a model on a recording, or from a configuration file"),
        "resume": (train.resume, "Resume an interrupted run"),
    },
    "Comparing": {
        "compare": (compare.compare, "Train models under one protocol and rank them"),
        "evaluate": (evaluate.evaluate, "Score one run on test data"),
        "report": (compare.report, "Write the report page of a comparison"),
    },
    "Using a model": {
        "predict": (predict.predict, "Predict the next frame from every frame of a recording"),
        "rollout": (predict.rollout, "Roll a model out autoregressively"),
        "fill": (fill.fill, "Fill missing vectors and replace outliers"),
        "calibrate": (
            calibrate.calibrate,
            "Calibrate prediction intervals and out-of-distribution warning",
        ),
        "export": (export.export, "Export a model: ONNX, torch.export"),
        "serve": (serve.serve, "Serve models over HTTP with a web viewer"),
    },
    "About": {
        "demo": (info.demo, "Run a demonstration of a few minutes"),
        "info": (info.info, "Show versions, models and shipped weights"),
    },
}
"""Commands in the order of a workflow, each with its line in the help."""


class _Commands(TyperGroup):
    """Prints errors in one line; exit code 2 is for what a user can fix, 1 for a fault."""

    _traceback = False

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for panel in _CONTENTS.values() for name in panel]

    def main(self, *arguments: Any, **how: Any) -> Any:
        try:
            return super().main(*arguments, **how)
        except Exception as error:
            if self._traceback or not how.get("standalone_mode", True):
                raise
            if stopping.is_asked():
                complain("interrupted")
                sys.exit(stopping.exit_code())
            kind = type(error).__name__
            complain(f"error: {kind}: {_in_words(error)}; see where with: pibert --traceback ...")
            sys.exit(1)

    def invoke(self, ctx: Any) -> Any:
        self._traceback = ctx.params["traceback"]
        try:
            with stopping.signals_raise(), warnings.catch_warnings():
                warnings.showwarning = _show_in_a_line
                return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (ValueError, OSError, ImportError, FloatingPointError, MemoryError) as error:
            if stopping.is_asked():
                raise  # an interrupt in the middle of an import comes out as an error of it
            if is_first_process():  # the others of a run on several devices meet the same
                if self._traceback:
                    traceback.print_exc()
                complain(f"error: {_in_words(error)}")
            raise typer.Exit(2) from None
        except KeyboardInterrupt as stop:
            if is_first_process():
                complain(str(stop) or "interrupted")
            raise typer.Exit(stopping.exit_code()) from None


def _show_in_a_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning as a note; one of another package with the package's name."""
    if not is_first_process():
        return
    _, installed, inside = filename.replace("\\", "/").rpartition("/site-packages/")
    package = inside.partition("/")[0] if installed else ""
    is_own = issubclass(category, InputWarning) or package in ("", "pibert")
    text = " ".join(str(message).split())
    say(Console(stderr=True), f"Note: {text}" if is_own else f"Note from {package}: {text}")


def _in_words(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        # Without the number, and with the file in front as in all our messages.
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(line.strip() for line in text.splitlines())


class _App(typer.Typer):
    """Stops in one line also while the commands are set up and the options are parsed."""

    def __call__(self, *arguments: Any, **how: Any) -> Any:
        try:
            with stopping.signals_raise():
                return super().__call__(*arguments, **how)
        except KeyboardInterrupt:
            complain("interrupted")
            sys.exit(stopping.exit_code())
        except SystemExit as end:
            if end.code == 130 and stopping.is_asked():  # to Typer every interrupt is Ctrl-C
                sys.exit(stopping.exit_code())
            raise


app = _App(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _show_version(wanted: bool | None) -> None:
    if wanted:
        from pibert import __version__

        typer.echo(f"pibert {__version__}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool | None,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = None,
    traceback: Annotated[
        bool,
        typer.Option(
            "--traceback",
            envvar="PIBERT_TRACEBACK",
            help="Show where in the code an error occurred.",
        ),
    ] = False,
) -> None:
    """PIBERT: a physics-informed Fourier-wavelet transformer for flow fields.

    Help on a command: pibert generate --help
    """


for _panel, _commands in _CONTENTS.items():
    for _name, (_command, _line) in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel, short_help=_line)
        else:
            app.command(_name, rich_help_panel=_panel, short_help=_line)(_command)
