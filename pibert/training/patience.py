"""What happens when a file of a run cannot be written: the run waits, and gives up in the end.

A disk is full for minutes, until somebody or some other program frees space, or for good. In the
first case a run that waits loses nothing. In the second it must not go on as if all were well, and
end with nothing: it stops, with what was saved before.
"""

import time
from collections.abc import Callable

from pibert.training.guards import StopSignals
from pibert.training.processes import Processes

RETRY_SECONDS = 10.0
"""Between two attempts."""
LONGEST_SECONDS = 1800.0
"""After which a run gives up."""


def until_written(
    what: str,
    attempt: Callable[[], str],
    *,
    processes: Processes,
    signals: StopSignals,
    say: Callable[[str], None],
) -> bool:
    """Repeat an attempt to write until it works; False where the run is asked to stop meanwhile.

    Args:
        what: Is written.
        attempt: Gives why it failed, or nothing; the same in all processes.
        processes: Of the run; all of them take part.
        signals: That ask the run to stop.
        say: Told of the trouble, and of its end.

    Raises:
        OSError: It could not be written for too long.
    """
    began, was_told = time.monotonic(), False
    while trouble := attempt():
        is_over = time.monotonic() - began >= LONGEST_SECONDS
        stop, is_over = processes.agree([signals.asked, is_over])
        if stop:
            return False
        if is_over:
            raise OSError(
                f"could not write {what} for {LONGEST_SECONDS / 60:.3g} minutes: {trouble}; the "
                "run stops here; make room, then run the same command again: it goes on from what "
                "was saved before"
            )
        if not was_told:
            say(
                f"could not write {what}: {trouble}; training waits until it can, at most "
                f"{LONGEST_SECONDS / 60:.3g} minutes"
            )
            was_told = True
        signals.wait(RETRY_SECONDS)
    if was_told:
        say(f"{what} is written; training goes on")
    return True
