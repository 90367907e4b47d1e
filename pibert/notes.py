"""Notes to the user: an input that can be used, but may not be what was meant.

Results of inference carry their notes (``Prediction.notes``). What returns no result that could
carry them (arrays, files, readers) delivers them with ``warn``: to the ``collecting`` block around
the call, if there is one, else as a Python warning of the category ``InputWarning``.
"""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Literal

Severity = Literal["info", "warning"]


@dataclass(frozen=True)
class Note:
    """One note; the same code and subject tell that two notes are about the same thing."""

    code: str
    """Stable name of this kind of note, such as ``far-values``; to select or silence it."""
    text: str
    """What was found, and what follows from it."""
    remedy: str = ""
    """What to do if it is not intended."""
    severity: Severity = "warning"
    subject: str = field(default="", repr=False)
    """What it is about where a code can occur several times: a channel, a parameter."""

    def __str__(self) -> str:
        return f"{self.text}; {self.remedy}" if self.remedy else self.text

    def to_dict(self) -> dict[str, str]:
        """Plain JSON."""
        return asdict(self)


class InputWarning(UserWarning):
    """A note as a Python warning; ``note`` holds it."""

    def __init__(self, note: Note | str) -> None:
        super().__init__(str(note))
        self.note = as_note(note)


class Notes:
    """Collects notes, each code and subject once.

    Args:
        on_new: Called with every new note.
    """

    def __init__(self, on_new: Callable[[Note], None] | None = None) -> None:
        self._found: dict[tuple[str, str], Note] = {}
        self._on_new = on_new

    def add(self, note: Note | str) -> bool:
        """Take a note; returns whether it is new."""
        note = as_note(note)
        key = (note.code, note.subject or (note.text if note.code == "input" else ""))
        if key in self._found:
            return False
        self._found[key] = note
        if self._on_new is not None:
            self._on_new(note)
        return True

    def extend(self, notes: Iterable[Note]) -> list[Note]:
        """Take some notes; returns the new ones."""
        return [note for note in notes if self.add(note)]

    def __iter__(self) -> Iterator[Note]:
        return iter(tuple(self._found.values()))

    def __len__(self) -> int:
        return len(self._found)


_collected: ContextVar[Notes | None] = ContextVar("collected", default=None)


def as_note(note: Note | str) -> Note:
    """A note; a text alone gets the code ``input``."""
    return note if isinstance(note, Note) else Note("input", note)


def warn(note: Note | str) -> None:
    """Deliver a note; as a Python warning it names the line outside this package."""
    collected = _collected.get()
    if collected is not None:
        collected.add(note)
        return
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pibert."):
        level, frame = level + 1, frame.f_back
    warnings.warn(InputWarning(note), stacklevel=level)


@contextlib.contextmanager
def collecting(into: Notes | None = None) -> Iterator[Notes]:
    """Collect what ``warn`` delivers inside the block, in this thread alone."""
    notes = Notes() if into is None else into
    token = _collected.set(notes)
    try:
        yield notes
    finally:
        _collected.reset(token)
