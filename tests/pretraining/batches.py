"""Small batches that the tests of masks share."""

import torch
from torch import Tensor

from pibert.fields import Batch


def make_batch(
    x: Tensor, mask: Tensor | None = None, *, parameters: Tensor | None = None, seed: int = 0
) -> Batch:
    """A batch of standardised inputs; what it should predict does not matter."""
    b, _, ny, nx = x.shape
    known = torch.ones(b, ny, nx, dtype=torch.bool) if mask is None else mask.expand(b, ny, nx)
    numbers = torch.arange(b)
    batch = Batch(
        x=torch.where(known[:, None], x, 0.0),
        y=torch.zeros(b, 1, 1, ny, nx),
        parameters=torch.zeros(b, 16) if parameters is None else parameters,
        mask=known,
        target_mask=known[:, None],
        sample=numbers,
        seeds=numbers,
    )
    return batch.reseeded(seed, 0)
