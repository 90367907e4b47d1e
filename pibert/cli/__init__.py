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
    demo,
    download,
    evaluate,
    export,
    fill,
    generate,
    info,
    inspect,
    predict,
    report,
    rollout,
    serve,
    train,
)
from pibert.cli.terminal import complain, say
from pibert.cli.training_progress import is_first_process
from pibert.remarks import InputWarning

_CONTENTS: dict[str, dict[str, tuple[Any, str]]] = {
    "Data": {
        "generate": (generate.generate, "Simulate flows with the built-in solvers"),
        "download": (download.app, "Fetch published data sets, sizes first"),
        "inspect": (inspect.inspect, "Summarise flow data, flag problems, plot a preview"),
        "convert": (convert.convert, "Bring files of many kinds into PIBERT's format"),
    },
    "Training": {
        "config": (config.app, "Show and explain the settings of an experiment"),
        "pretrain": (train.pretrain, "Pretrain a model on flows alone"),
        "train": (train.train, "Train a model as a configuration says"),
        "resume": (train.resume, "Go on with a run that was stopped"),
    },
    "Comparing": {
        "compare": (compare.compare, "Train models under one protocol and rank them"),
        "evaluate": (evaluate.evaluate, "Score one run on test data"),
        "report": (report.report, "Write the report of a comparison: one page"),
    },
    "Using a model": {
        "predict": (predict.predict, "The next frame from every frame of a recording"),
        "rollout": (rollout.rollout, "Let a model go on alone from a frame"),
        "fill": (fill.fill, "Put in missing and spurious vectors of a measurement"),
        "calibrate": (calibrate.calibrate, "Give a model error bars and an alarm"),
        "export": (export.export, "Write a model for other programs: ONNX, torch.export"),
        "serve": (serve.serve, "Answer over HTTP, with a page to try models"),
    },
    "About": {
        "demo": (demo.demo, "From nothing to a report in a few minutes"),
        "info": (info.info, "Show versions, models and shipped weights"),
    },
}
"""Commands in the order of a workflow, each with its line of the table of contents."""


class _Commands(TyperGroup):
    """Tells errors in one line; exit code 2 is for what a user can put right, 1 for a fault."""

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
    say(Console(stderr=True), f"note: {text}" if is_own else f"note from {package}: {text}")


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
            "--traceback", envvar="PIBERT_TRACEBACK", help="Show where in the code an error arose."
        ),
    ] = False,
) -> None:
    """PIBERT: a physics-informed Fourier-wavelet transformer for flow fields.

    Every command explains itself: pibert generate --help
    """


for _panel, _commands in _CONTENTS.items():
    for _name, (_command, _line) in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel, short_help=_line)
        else:
            app.command(_name, rich_help_panel=_panel, short_help=_line)(_command)
