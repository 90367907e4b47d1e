"""Lines of text on a terminal, in a log and in a notebook."""

import io

import pytest
from rich.console import Console

from pibert.progress import say

LONG = "a note with many words " * 10


def test_a_notebook_gets_wrapped_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("rich.jupyter.display", lambda segments, text: shown.append(text))
    say(Console(force_jupyter=True, width=200), LONG)
    lines = "".join(shown).splitlines()
    assert len(lines) > 2 and max(map(len, lines)) <= 100


def test_a_log_gets_a_line_as_it_is() -> None:
    file = io.StringIO()
    say(Console(file=file, width=60), f"[x] {LONG}")
    assert file.getvalue() == f"[x] {LONG}\n"
