"""Values at some points as weighted sums of values at others.

A value is the average of the known values in its support, with the weights of the interpolation; it
is missing where less than half of the weight is known.
"""

from typing import NamedTuple

import numpy as np

_BLOCK_VALUES = 1 << 22


class Interpolation(NamedTuple):
    """Each target value is a weighted sum of some of the source's points."""

    sources: np.ndarray
    """(targets, k) numbers of source points."""
    weight: np.ndarray
    """(targets, k); they add up to 1, or to less where points are missing."""

    def apply(self, values: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values (t, n) at the targets, and whether they are known; NaN without any support."""
        if self.sources.shape[1] == 1:
            index, there = self.sources[:, 0], self.weight[:, 0] > 0
            return np.where(there, values[:, index], np.nan), known[:, index] & there
        shape = len(values), len(self.sources)
        result, enough = np.full(shape, np.nan), np.empty(shape, bool)
        block = max(1, _BLOCK_VALUES // self.sources.size)
        for frames in (slice(start, start + block) for start in range(0, len(values), block)):
            weight = self.weight * known[frames][:, self.sources]
            finite = np.where(known[frames], values[frames], 0.0)
            total, share = (weight * finite[:, self.sources]).sum(-1), weight.sum(-1)
            np.divide(total, share, out=result[frames], where=share > 0)
            enough[frames] = share >= 0.5 - 1e-9
        return result, enough

    def covers(self, mask: np.ndarray) -> np.ndarray:
        """Targets (t, m) where half of the weight lies on a mask (t, n)."""
        return (self.weight * mask[:, self.sources]).sum(-1) >= 0.5 - 1e-9
