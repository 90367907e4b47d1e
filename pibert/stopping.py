"""Signals that ask the program to stop: Ctrl-C (SIGINT) and SIGTERM.

The command line turns both into ``KeyboardInterrupt``, so that one code path cleans up, and exits
with 130 or 143, like a program that the signal ends. The training loop has its own handlers.
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
    """Record a signal that asks the program to stop."""
    _received.append(number)


def is_asked() -> bool:
    """Whether a signal has asked this process to stop."""
    return bool(_received)


def is_terminated() -> bool:
    """Whether SIGTERM was received. Unlike Ctrl-C, it does not reach child processes."""
    return signal.SIGTERM in _received


def exit_code() -> int:
    """Return the exit code of a stopped program: 143 after SIGTERM, else 130."""
    # After an interrupt inside exec() of a text, as dataclasses use it, Python ends itself with
    # SIGINT whatever the exit code is, unless another text is executed later.
    exec("")
    return 128 + (_received[-1] if _received else signal.SIGINT)


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Make SIGINT and SIGTERM raise ``KeyboardInterrupt`` in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    _received.clear()
    owner, former_hook = os.getpid(), sys.unraisablehook

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked child uses the default handler
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        note(number)
        raise KeyboardInterrupt

    def repeat_if_lost(raised: Any) -> None:
        """Repeat an interrupt that was raised, and lost, in a callback of C code."""
        if _received and issubclass(raised.exc_type, KeyboardInterrupt):
            number = _received[-1]
            if os.name == "nt":  # where os.kill ends the process
                threading.Timer(0.05, signal.raise_signal, (number,)).start()
            else:
                threading.Timer(0.05, os.kill, (owner, number)).start()
        else:
            former_hook(raised)

    former = {number: signal.getsignal(number) for number in STOPPING}
    # A program that was started to ignore a signal (nohup, a background job) still ignores it.
    for number in (n for n in STOPPING if former[n] is not signal.SIG_IGN):
        signal.signal(number, stop)
    sys.unraisablehook = repeat_if_lost
    try:
        yield
    finally:
        sys.unraisablehook = former_hook
        for number, handler in former.items():
            signal.signal(number, handler)
