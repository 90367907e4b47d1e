"""The ``pibert`` command: one module per command, which imports what it needs when it runs.

``docs/commands.md`` is the contract with scripts: exit codes, ``--json``, completion, environment.
"""

import re
import sys
import traceback
import warnings
from collections import Counter
from inspect import getdoc
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

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
    stats,
    train,
)
from pibert.cli.options import option
from pibert.cli.terminal import complain, is_first_process, say
from pibert.notes import InputWarning
from pibert.plugins import add_named

_COMMANDS: dict[str, dict[str, Any]] = {
    "Data": {
        "generate": generate.generate,
        "download": download.app,
        "inspect": inspect.inspect,
        "convert": convert.convert,
        "stats": stats.stats,
    },
    "Training": {
        "config": config.app,
        "pretrain": train.pretrain,
        "train": train.train,
        "resume": train.resume,
    },
    "Comparing": {
        "compare": compare.compare,
        "evaluate": evaluate.evaluate,
        "report": compare.report,
    },
    "Using a model": {
        "predict": predict.predict,
        "rollout": predict.rollout,
        "fill": fill.fill,
        "calibrate": calibrate.calibrate,
        "export": export.export,
        "push": export.push,
        "serve": serve.serve,
    },
    "About": {"demo": info.demo, "info": info.info},
}
"""Commands in the order of a workflow. The help lists the first line of each docstring."""


class _Commands(TyperGroup):
    """Prints errors in one line; exit code 2 is for what a user can fix, 1 for a fault."""

    _traceback = False

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for panel in _COMMANDS.values() for name in panel]

    def main(self, *arguments: Any, **settings: Any) -> Any:
        try:
            return super().main(*arguments, **settings)
        except Exception as error:
            if self._traceback or not settings.get("standalone_mode", True):
                raise
            if stopping.is_asked():
                complain("interrupted")
                sys.exit(stopping.exit_code())
            kind = type(error).__name__
            complain(f"error: {kind}: {_message(error)}; see where with: pibert --traceback ...")
            sys.exit(1)

    def invoke(self, ctx: Any) -> Any:
        self._traceback = ctx.params["traceback"]
        try:
            with stopping.signals_raise(), warnings.catch_warnings():
                warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (ValueError, OSError, ImportError, FloatingPointError, MemoryError) as error:
            if stopping.is_asked():
                raise  # an interrupted import raises an ImportError
            if is_first_process():  # the others of a run on several devices meet the same error
                if self._traceback:
                    traceback.print_exc()
                complain(f"error: {_message(error)}")
            raise typer.Exit(2) from None
        except KeyboardInterrupt as stop:
            if is_first_process():
                complain(str(stop) or "interrupted")
            raise typer.Exit(stopping.exit_code()) from None


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, *more: Any, **others: Any
) -> None:
    """Print a warning as a note; one of another package with the package's name."""
    if not is_first_process():
        return
    _, installed, inside = filename.replace("\\", "/").rpartition("/site-packages/")
    package = inside.partition("/")[0] if installed else ""
    is_ours = issubclass(category, InputWarning) or package in ("", "pibert")
    text = str(message.note if isinstance(message, InputWarning) else message)
    text = " ".join(text.split())
    say(Console(stderr=True), f"Note: {text}" if is_ours else f"Note from {package}: {text}")


def _message(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        # Without the number, and with the file first as in all our messages.
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(line.strip() for line in text.splitlines())


class _Command(TyperCommand):
    """Refuses an option that is given twice, where the last value would silently replace others."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # completion
            parsed: Any = self.make_parser(ctx).parse_args(args=list(args))
            for parameter, count in Counter(parsed[2]).items():
                is_option = parameter.param_type_name == "option"
                if count > 1 and is_option and not (parameter.multiple or parameter.is_flag):
                    raise ValueError(
                        f"{parameter.opts[0]} takes one value, found {count}; give it once (lists "
                        "have commas)"
                    )
        return super().parse_args(ctx, args)


class _App(typer.Typer):
    """Also handles interrupts while commands are set up and options are parsed."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        try:
            with stopping.signals_raise():
                return super().__call__(*arguments, **settings)
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
        option("Show the version.", "--version", callback=_show_version, is_eager=True),
    ] = None,
    traceback: Annotated[
        bool,
        option(
            "Show where in the code an error occurred.", "--traceback", envvar="PIBERT_TRACEBACK"
        ),
    ] = False,
    modules: Annotated[
        list[str] | None,
        option(
            "Import this file or installed module, which adds models, readers or metrics. "
            "Repeatable.",
            "--import",
            metavar="FILE.py|MODULE",
        ),
    ] = None,
) -> None:
    """PIBERT: a physics-informed Fourier-wavelet transformer for flow fields.

    Help on a command: pibert generate --help
    """
    if modules:
        add_named(modules)


for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            # One line per paragraph: the terminal wraps it.
            _help = re.sub(r"(?<!\n)\n(?!\n)", " ", getdoc(_command) or "")
            app.command(_name, cls=_Command, rich_help_panel=_panel, help=_help)(_command)
