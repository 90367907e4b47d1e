"""When a rollout has diverged, beside a true flow.

It diverges with its first frame that is not finite, or whose distance to the true mean flow exceeds
three times the largest such distance of a true frame, and a tenth of the mean flow itself: a flow
that hardly moves does not diverge with the first error. Distances are root sums of squares over
known points and all channels. The true frames are those of the same time for a free run, and all of
the flow for rollouts by lead time, which are short.

``survival`` counts the frames before. Without a true flow a rollout is judged by the range of the
training data (``inference/stream.py``).
"""

from jaxtyping import Float, Int
from torch import Tensor

LOST = 3.0
STILL = 0.1


def limit_of(largest: float, mean: float) -> float:
    """The largest distance of a rollout that has not diverged.

    Args:
        largest: Distance of a true frame to the mean flow.
        mean: Size of the mean flow, in the same norm.
    """
    return max(LOST * largest, STILL * mean)


def survived(
    distance: Float[Tensor, "*batch t"], limit: Float[Tensor, "*batch 1"]
) -> Int[Tensor, "*batch"]:
    """Frames before the first that is lost; a distance that is not finite is."""
    return (~(distance <= limit)).cumsum(-1).eq(0).sum(-1)
