"""When predicted frames are, and what the recording holds at those times.

Frames of an even recording whose time step is the model's within 1 % count as one step apart, as
those of rounded times are. Otherwise predicted frames go on by the step of the model, and have a
truth only where a recorded time agrees.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pibert.cli.assumptions import SAME_STEP
from pibert.data.counted import counts_frames

if TYPE_CHECKING:
    from torch import Tensor

    from pibert.cli.flow_input import Flow


class Pace:
    """Times of predicted frames, and recorded frames at those times.

    Args:
        flow: What a model goes on from.
    """

    def __init__(self, flow: "Flow") -> None:
        self._flow = flow
        trajectory, own = flow.trajectory, flow.predictor.spec.dt
        even = trajectory.spec.dt is not None or trajectory.num_frames == 1
        same = own is None or math.isclose(own, flow.dt, rel_tol=SAME_STEP)
        self.fits = counts_frames(trajectory) or (even and same)
        """Whether neighbouring frames of a stretch are one step of the model apart."""
        self.step = flow.dt if self.fits or own is None else own
        """Time from a predicted frame to the next of a rollout."""

    def time_after(self, frame: int, steps: int, stop: int) -> float:
        """Of what is predicted so many steps after a recorded frame.

        Args:
            frame: The newest that the model saw.
            steps: At least 1.
            stop: First frame after its stretch.
        """
        time = self._flow.trajectory.time
        # By recorded times as far as they go: those may be rounded.
        last = min(frame + steps, stop - 1) if self.fits else frame
        return float(time[last]) + self.step * (frame + steps - last)

    def truth_after(self, pairs: Sequence[tuple[int, int]], stop: int) -> "Tensor":
        """The truth of predicted frames, (t, c, y, x), NaN where there is none.

        Args:
            pairs: Newest frame and number of steps of each.
            stop: First frame after their stretch.
        """
        import torch

        flow = self._flow
        places = [self._recorded(frame, steps, stop) for frame, steps in pairs]
        shape = flow.trajectory.states.shape[1:]
        truth = torch.full((len(places), *shape), torch.nan)
        there = [place for place in places if place is not None]
        if there and places[: len(there)] == list(range(there[0], there[0] + len(there))):
            truth[: len(there)] = flow.truth(slice(there[0], there[-1] + 1))
            return truth
        for row, place in enumerate(places):
            if place is not None:
                truth[row] = flow.truth(slice(place, place + 1))[0]
        return truth

    def _recorded(self, frame: int, steps: int, stop: int) -> int | None:
        """The frame that was recorded so many steps later; None where there is none."""
        if self._flow.is_predicted:
            return None
        if self.fits:
            return frame + steps if frame + steps < stop else None
        later = self._flow.trajectory.time[frame + 1 : stop]
        if not len(later):
            return None
        off = (later - self.time_after(frame, steps, stop)).abs()
        nearest = int(off.argmin())
        return frame + 1 + nearest if float(off[nearest]) <= SAME_STEP * self.step else None

    def why_no_truth(self, newest: int, stop: int) -> str:
        """Why nothing predicted from a frame on can be compared."""
        if self._flow.is_predicted:
            return "the recording is itself a prediction, not ground truth: nothing to compare with"
        if newest + 1 >= stop:
            return "the recording ends at the start: nothing to compare with"
        if self.fits:
            return "no point of the predicted frames was measured: nothing to compare with"
        return (
            f"no frame was recorded at the time of a predicted one (recorded {self._flow.dt:g} "
            f"apart, the model steps by {self.step:g}): nothing to compare with"
        )
