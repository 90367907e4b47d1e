"""Signals that ask the program to stop: Ctrl-C (SIGINT) and SIGTERM.

Both raise ``KeyboardInterrupt`` if the command line has asked for it, so that one code path cleans
up. The exit code of the command is 130 or 143, as that of a program that the signal ends. The
training loop has its own handlers.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM)
_received: list[int] = []


def note(number: int) -> None:
    """Remember a signal that asks the program to stop."""
    _received.append(number)


def is_asked() -> bool:
    """Whether a signal has asked this process to stop."""
    return bool(_received)


def is_terminated() -> bool:
    """Whether it was SIGTERM, which, unlike Ctrl-C, child processes do not get by themselves."""
    return signal.SIGTERM in _received


def exit_code() -> int:
    """Of a program that stops because it was asked to: 143 after SIGTERM, else 130."""
    # An interrupt that passed through exec() of a text, as dataclasses do it, makes Python end
    # itself with SIGINT whatever the exit code is, unless another text was executed after it.
    exec("")
    return 128 + (_received[-1] if _received else signal.SIGINT)


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """SIGINT and SIGTERM raise ``KeyboardInterrupt`` in the main thread meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    _received.clear()
    owner, former_hook = os.getpid(), sys.unraisablehook

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked child: as if nobody had set a handler
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        note(number)
        raise KeyboardInterrupt

    def repeat_if_lost(raised: Any) -> None:
        """Send an interrupt again that was raised in a callback of C code, where it gets lost."""
        if _received and issubclass(raised.exc_type, KeyboardInterrupt):
            threading.Timer(0.05, os.kill, (owner, _received[-1])).start()
        else:
            former_hook(raised)

    former = {number: signal.getsignal(number) for number in STOPPING}
    # A program that was started to ignore a signal (nohup, a background job) goes on doing so.
    for number in (n for n in STOPPING if former[n] is not signal.SIG_IGN):
        signal.signal(number, stop)
    sys.unraisablehook = repeat_if_lost
    try:
        yield
    finally:
        sys.unraisablehook = former_hook
        for number, handler in former.items():
            signal.signal(number, handler)
