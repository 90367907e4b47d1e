"""Learning samples that live on the device: batches by index, without reading and copying.

All frames that the samples touch are standardised once and stacked, trajectory after trajectory,
into one tensor (n, c, y, x) of float32 with a mask (n, y, x), and a second mask where some points
are filled. A sample is the number of its first frame in that stack, so a batch is one gather of
rows for the inputs and one for the targets. The batches are those of ``dataset.make_loader``; a set
of N frames takes N (4 c + 1) bytes a grid point, or N (4 c + 2).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from pibert.data.dataset import BatchOrder, Samples
from pibert.fields import Batch
from pibert.sample_rng import sample_seeds

_BLOCK_BYTES = 1 << 26


class ResidentLoader:
    """Batches in the given order from samples that are read once and held on a device.

    ``order`` is as for ``make_loader``; its ``go_to`` chooses the epoch and the step to start at.
    """

    def __init__(
        self, samples: Samples, order: BatchOrder, device: torch.device | str = "cpu"
    ) -> None:
        if order.num_samples != len(samples):
            raise ValueError(
                f"the order is for {order.num_samples} samples, but there are {len(samples)}"
            )
        self.order, self.device = order, torch.device(device)
        places = torch.tensor([samples.locate(index) for index in range(len(samples))])
        home, start = places.unbind(1)
        # Of every trajectory the frames from the first to the last that a sample touches.
        none = torch.zeros(len(samples.trajectories), dtype=torch.int64)
        low = none.scatter_reduce(0, home, start, "amin", include_self=False)
        high = none.scatter_reduce(0, home, start + samples.window.span, "amax")
        # Frame t of a trajectory lies in the stack at t + its shift.
        shift = (high - low).cumsum(0) - high
        self._hold(samples, low, high, shift)

        past, span = samples.window.history, samples.window.span
        future = range(past, span) if samples.window.horizon else range(past - 1, past)
        self._past, self._future, self._inputs, self._targets = (
            torch.tensor(list(part), device=self.device)
            for part in (range(past), future, samples.inputs, samples.targets)
        )
        self._first = (start + shift[home]).to(self.device)
        self._home = home.to(self.device)
        self._parameters = samples.parameters.to(self.device)

    def _hold(self, samples: Samples, low: Tensor, high: Tensor, shift: Tensor) -> None:
        """Read frames low <= t < high of every trajectory into the stack."""
        rows, columns = samples.spec.grid.shape
        frames, channels = int((high - low).sum()), len(samples.channels)
        self.nbytes = frames * rows * columns * (4 * channels + 1 + samples.has_filled)
        free = _free_bytes(self.device)
        if free is not None and self.nbytes > free:
            raise ValueError(
                f"the samples take {self.nbytes / 2**30:.2f} GiB, but {self.device} has "
                f"{free / 2**30:.2f} GiB free; take fewer frames or a smaller size, or read them "
                "from the file with make_loader"
            )
        self._fields = torch.empty(frames, channels, rows, columns, device=self.device)
        self._known = torch.empty(frames, rows, columns, dtype=torch.bool, device=self.device)
        self._has_filled = samples.has_filled
        self._measured = torch.empty_like(self._known) if samples.has_filled else self._known
        block = max(1, _BLOCK_BYTES // (4 * channels * rows * columns))
        for index, (start, stop, offset) in enumerate(torch.stack((low, high, shift), 1).tolist()):
            for first in range(start, stop, block):
                last = min(first + block, stop)
                place = slice(first + offset, last + offset)
                fields, known, measured = samples.read(index, slice(first, last))
                self._fields[place], self._known[place] = fields, known
                if samples.has_filled:
                    self._measured[place] = measured

    def __len__(self) -> int:
        """Pieces left in the epoch."""
        return len(self.order)

    def __iter__(self) -> Iterator[Batch]:
        return map(self._batch, self.order.batches(self.device))

    def _batch(self, indices: Tensor) -> Batch:
        first = self._first[indices][:, None]
        past, future = first + self._past, first + self._future
        known, target_mask = self._known[past], self._measured[future]
        y, filled = self._gather(future, self._targets), None
        if self._has_filled:
            y = torch.where(target_mask[:, :, None], y, 0.0)
            filled = (known & ~self._measured[past]).any(1)
        return Batch(
            x=self._gather(past, self._inputs).flatten(1, 2),
            y=y,
            parameters=self._parameters[self._home[indices]],
            mask=known.all(1),
            target_mask=target_mask,
            sample=indices,
            seeds=sample_seeds(0, 0, indices),
            filled=filled,
        )

    def _gather(self, frames: Tensor, channels: Tensor) -> Tensor:
        """Channels (b, t, c, y, x) of frames (b, t)."""
        count = self._fields.shape[1]
        rows = frames[..., None] * count + channels
        return self._fields.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, rows.shape)


def _free_bytes(device: torch.device) -> int | None:
    """Free memory of a GPU; None where it is not known."""
    if device.type != "cuda":
        return None
    free: int = torch.cuda.mem_get_info(device)[0]
    # What torch keeps for itself and does not use is free too.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
