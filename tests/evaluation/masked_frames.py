"""Frames for tests of measures: a non-square grid of unequal spacing with a body and gaps."""

import torch
from torch import Tensor

from pibert.evaluation.measure import Frames, Measure
from pibert.fields import FieldSpec, Grid, Normalizer

SHAPE = (13, 22)
SPEC = FieldSpec(units=("m/s", "m/s"), grid=Grid(SHAPE, dx=0.3, dy=0.2), dt=0.1)
NORMALIZER = Normalizer((1.1, -0.2), (0.8, 0.5))
MIXED = FieldSpec(channels=("u", "v", "p"), units=("m/s", "m/s", "Pa"), grid=SPEC.grid)
MIXED_NORMALIZER = Normalizer((1.1, -0.2, 900.0), (0.8, 0.5, 40.0))


def make_body(moving: bool, count: int = 5) -> Tensor:
    """A block of 3 rows and 4 columns; one that moves climbs a row and steps back every frame."""
    body = torch.zeros(count, *SHAPE, dtype=torch.bool)
    for t in range(count):
        up, back = (t, t // 2) if moving else (0, 0)
        body[t, 4 + up : 7 + up, 5 - back : 9 - back] = True
    return body


def make_frames(
    spec: FieldSpec = SPEC, *, body: Tensor | None = None, count: int = 5, seed: int = 0
) -> Frames:
    """Random fields with a mean; a tenth of the points is unknown, and has meaningless values.

    A block of 8 x 8 points has no gaps in every second frame.
    """
    generator = torch.Generator().manual_seed(seed)

    def field() -> Tensor:
        shape = (count, len(spec.channels), *spec.grid.shape)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    truth = field() + 1.5
    known = torch.rand((count, *spec.grid.shape), generator=generator) > 0.1
    known[::2, :8, 8:16] = True
    if body is not None:
        known &= ~body
    frames = [truth + 0.3 * field(), truth, truth + 0.7 * field()]
    poisoned = [torch.where(known[:, None], f, 1e3 * field()) for f in frames]
    return Frames(
        prediction=poisoned[0],
        truth=poisoned[1],
        last=poisoned[2],
        known=known,
        body=body,
        spec=spec,
    )


def values_of(measure: Measure, frames: Frames) -> dict[tuple[str, str], float]:
    """All values of a measure by metric and component."""
    values = measure.values(measure.terms(frames).sum(0))
    assert values.shape == (len(measure.entries),)
    keys = [(entry.metric, entry.component) for entry in measure.entries]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, values.tolist(), strict=True))
