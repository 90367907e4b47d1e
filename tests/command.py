"""Calls of the command line in tests."""

from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from pibert.cli import app

Word = str | Path | float


def run(*words: Word, **options: Any) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], **options)


def well(*words: Word) -> Result:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result


def refusal(*words: Word) -> str:
    """The one line of an error that the user can fix: exit code 2, after notes if there are any."""
    result = run(*words)
    assert result.exit_code == 2, result.output
    *notes, error = result.stderr.splitlines()
    assert error.startswith("error: ") and not any(line.startswith("error: ") for line in notes)
    return error
