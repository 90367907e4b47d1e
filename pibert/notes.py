"""Notes to the user: an input is usable, but may not be what was meant.

Results of inference carry their notes (``Prediction.notes``). Functions whose result cannot carry
notes (arrays, files, readers) deliver them with ``warn``: to the enclosing ``collecting`` block, if
any, else as a Python warning of the category ``InputWarning``.
"""

import contextlib
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Literal

Severity = Literal["info", "warning"]

_COMMAND = re.compile(r"((?:pibert|python -m) [a-z][\w.]* [^;,()]*)")
_SETTING = re.compile(r"--set ([\w.]+)=([\w.:]*\w)")
_FLAG = re.compile(r"--(no-)?(over(?:write|ride-(?:units|metadata))|fill-masked|flag-outliers)\b")
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)( (?=[A-Z\d]|\w+/\w))?")
_PAIR = r"\w+=(?:\.{3}|[\w.:]*\w)"
_CHANNELS = re.compile(rf"--channels ({_PAIR}(?:,{_PAIR})*)")
_DATA = re.compile(r"--data FILE")
_BOTH = re.compile(r"--[\w-]+ \S+, in Python ")
_PARAMETER = re.compile(r"--parameter (\w+)=(\w+)")


@dataclass(frozen=True)
class Note:
    """One note; notes with equal code and subject are about the same thing."""

    code: str
    """Stable name of this kind of note, such as ``far-values``, to select or silence it."""
    text: str
    """The finding and its consequence."""
    remedy: str = ""
    """The action to take if it is not intended."""
    severity: Severity = "warning"
    subject: str = field(default="", repr=False)
    """The channel or parameter, if a code can occur several times."""

    def __str__(self) -> str:
        return f"{self.text}; {self.remedy}" if self.remedy else self.text

    def to_dict(self) -> dict[str, str]:
        """Plain JSON."""
        return asdict(self)


class InputWarning(UserWarning):
    """A note as a Python warning; ``note`` holds it."""

    def __init__(self, note: Note | str) -> None:
        self.note = as_note(note)
        super().__init__(in_python(str(note)))


class Notes:
    """Collects notes, each code and subject once; calls ``on_new`` with every new note."""

    def __init__(self, on_new: Callable[[Note], None] | None = None) -> None:
        self._notes: dict[tuple[str, str], Note] = {}
        self._on_new = on_new

    def add(self, note: Note | str) -> bool:
        """Add a note; return whether it is new."""
        note = as_note(note)
        key = (note.code, note.subject or (note.text if note.code == "input" else ""))
        if key in self._notes:
            return False
        self._notes[key] = note
        if self._on_new is not None:
            self._on_new(note)
        return True

    def extend(self, notes: Iterable[Note]) -> list[Note]:
        """Add notes; return the new ones."""
        return [note for note in notes if self.add(note)]

    def __iter__(self) -> Iterator[Note]:
        return iter(tuple(self._notes.values()))

    def __len__(self) -> int:
        return len(self._notes)


_collected: ContextVar[Notes | None] = ContextVar("collected", default=None)


def as_note(note: Note | str) -> Note:
    """Return a note; a plain text gets the code ``input``."""
    return note if isinstance(note, Note) else Note("input", note)


def in_python(text: str) -> str:
    """A message of a command with keyword arguments in place of options."""
    parts = _COMMAND.split(text)
    for index in range(0, len(parts), 2):  # not within a whole command
        part = _BOTH.sub("", parts[index])
        part = _SETTING.sub(r'settings={"\1": "\2"}', part)
        part = _DATA.sub("flow=FLOW", part)
        part = _PARAMETER.sub(r'parameters={"\1": \2}', part)
        part = _CHANNELS.sub(lambda found: f"channels={_as_dict(found[1])}", part)
        part = _FLAG.sub(lambda found: f"{found[2].replace('-', '_')}={not found[1]}", part)
        parts[index] = _OPTION.sub(lambda found: f"{found[1].replace('-', '_')}=", part)
    return "".join(parts)


def _as_dict(pairs: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in pairs.split(","))


def warn(note: Note | str) -> None:
    """Deliver a note; a Python warning names the calling line outside this package."""
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
    """Collect the notes that ``warn`` delivers inside the block, in this thread only."""
    notes = Notes() if into is None else into
    token = _collected.set(notes)
    try:
        yield notes
    finally:
        _collected.reset(token)
