"""The ``pibert`` command: one module per command, which imports what it needs when it runs."""

from typing import Any

import typer
from typer.core import TyperGroup

from pibert.cli import (
    compare,
    config,
    convert,
    demo,
    download,
    fill,
    generate,
    info,
    inspect,
    train,
)
from pibert.cli.terminal import complain
from pibert.cli.training_progress import is_first_process


class _OneLineErrors(TyperGroup):
    """What a user can get wrong is told in one line, with exit code 2; an interrupt, with 130."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (ValueError, OSError, ImportError, FloatingPointError) as error:
            if is_first_process():  # the others of a run on several devices meet the same
                complain(f"error: {_in_words(error)}")
            raise typer.Exit(2) from None
        except MemoryError as error:
            complain(f"error: {_in_words(error)}")
            raise typer.Exit(2) from None
        except KeyboardInterrupt as stop:
            if is_first_process():
                complain(str(stop) or "interrupted")
            raise typer.Exit(130) from None


def _in_words(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        # Without the number, and with the file in front as in all our messages.
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(line.strip() for line in text.splitlines())


app = typer.Typer(
    cls=_OneLineErrors,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def main() -> None:
    """PIBERT: a physics-informed Fourier-wavelet transformer for flow fields.

    Every command explains itself: pibert generate --help
    """


_DATA, _TRAINING, _JUDGING, _MODELS = "Flow data", "Training", "Judging", "Models"

app.command(rich_help_panel=_DATA)(generate.generate)
app.add_typer(download.app, name="download", rich_help_panel=_DATA)
app.command(rich_help_panel=_DATA)(inspect.inspect)
app.command(rich_help_panel=_DATA)(convert.convert)
app.command(rich_help_panel=_TRAINING)(train.train)
app.command(rich_help_panel=_TRAINING)(train.pretrain)
app.command(rich_help_panel=_TRAINING)(train.resume)
app.add_typer(config.app, name="config", rich_help_panel=_TRAINING)
app.command(rich_help_panel=_JUDGING)(compare.compare)
app.command(rich_help_panel=_JUDGING)(compare.evaluate)
app.command(rich_help_panel=_JUDGING)(compare.report)
app.command(rich_help_panel=_MODELS)(fill.fill)
app.command(rich_help_panel=_MODELS)(demo.demo)
app.command(rich_help_panel=_MODELS)(info.info)
