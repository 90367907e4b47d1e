"""Training samples on the device: batches by index, without reading and copying.

All frames of the samples are standardised once and stacked, trajectory after trajectory, in one
float32 tensor (n, c, y, x) with a mask (n, y, x), and a second mask if points were filled. A sample
is the index of its first frame in that stack. The batches equal those of ``dataset.make_loader``; N
frames take N (4 c + 1) bytes per grid point, or N (4 c + 2).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from pibert.data.dataset import BatchOrder, Samples, make_batch
from pibert.data.views import frame_blocks
from pibert.fields import Batch


class ResidentLoader:
    """Batches in the given order, as from ``make_loader``, from samples held on a device."""

    def __init__(
        self, samples: Samples, order: BatchOrder, device: torch.device | str = "cpu"
    ) -> None:
        if order.num_samples != len(samples):
            raise ValueError(
                f"the order is for {order.num_samples} samples, but there are {len(samples)}"
            )
        self.order, self.device = order, torch.device(device)
        origins = torch.tensor([samples.locate(index) for index in range(len(samples))])
        home, start = origins.unbind(1)
        # The first and last frame of each trajectory that a sample uses.
        none = torch.zeros(len(samples.trajectories), dtype=torch.int64)
        low = none.scatter_reduce(0, home, start, "amin", include_self=False)
        high = none.scatter_reduce(0, home, start + samples.window.span, "amax")
        # Frame t of a trajectory lies in the stack at t + its shift.
        shift = (high - low).cumsum(0) - high
        self._hold(samples, low, high, shift)

        self._past, self._future = torch.arange(samples.window.span, device=self.device).split(
            (samples.window.history, samples.window.horizon)
        )
        self._first = (start + shift[home]).to(self.device)
        self._home = home.to(self.device)
        self._parameters = samples.parameters.to(self.device)

    def _hold(self, samples: Samples, low: Tensor, high: Tensor, shift: Tensor) -> None:
        """Read frames low <= t < high of every trajectory into the stack."""
        rows, columns = samples.spec.grid.shape
        frames, channels = int((high - low).sum()), len(samples.spec.channels)
        self.nbytes = frames * rows * columns * (4 * channels + 1 + samples.has_filled)
        free = _free_bytes(self.device)
        if free is not None and self.nbytes > free:
            raise ValueError(
                f"the samples take {self.nbytes / 2**30:.2f} GiB, but {self.device} has "
                f"{free / 2**30:.2f} GiB free; use fewer frames or a smaller size, or read them "
                "from the file with make_loader"
            )
        self._fields = torch.empty(frames, channels, rows, columns, device=self.device)
        self._known = torch.empty(frames, rows, columns, dtype=torch.bool, device=self.device)
        self._has_filled = samples.has_filled
        self._measured = torch.empty_like(self._known) if samples.has_filled else self._known
        for index, (start, stop, offset) in enumerate(torch.stack((low, high, shift), 1).tolist()):
            for block in frame_blocks(samples.trajectories[index], start, stop):
                rows_of = slice(block.start + offset, block.stop + offset)
                fields, known, measured = samples.read(index, block)
                self._fields[rows_of], self._known[rows_of] = fields, known
                if samples.has_filled:
                    self._measured[rows_of] = measured

    def __len__(self) -> int:
        """Micro-batches left in the epoch."""
        return len(self.order)

    def __iter__(self) -> Iterator[Batch]:
        return map(self._batch, self.order.batches(self.device))

    def _batch(self, indices: Tensor) -> Batch:
        first = self._first[indices][:, None]
        past, future = first + self._past, first + self._future
        return make_batch(
            (self._fields[past], self._fields[future]),
            (self._known[past], self._measured[future]),
            self._parameters[self._home[indices]],
            indices,
            self._measured[past] if self._has_filled else None,
        )


def _free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a GPU; None on other devices."""
    if device.type != "cuda":
        return None
    free: int = torch.cuda.mem_get_info(device)[0]
    # Memory that torch has reserved and does not use is free too.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
