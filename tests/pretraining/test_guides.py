"""Where masks are drawn to: which frame the guides look at."""

import torch

from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.pretraining.guides import residual, vorticity
from tests.pretraining.batches import make_batch
from tests.pretraining.windows import solver_set

SPEC = FieldSpec(family="incompressible", grid=Grid((8, 12), dx=0.3, dy=0.2))
NORMALIZER = Normalizer((0.1, 0.0), (2.0, 0.5))


def test_guides_of_one_frame_look_at_the_newest() -> None:
    x = torch.randn(2, 4, 8, 12, generator=torch.Generator().manual_seed(0))
    for guide in (vorticity, residual):
        newest, oldest = (guide(make_batch(f), SPEC, NORMALIZER) for f in (x[:, 2:], x[:, :2]))
        found = guide(make_batch(x), SPEC, NORMALIZER)
        torch.testing.assert_close(found, newest)
        assert float((found - oldest).abs().max()) > 0.1 * float(found.max())


def test_a_residual_in_time_takes_the_newest_frames_that_it_needs() -> None:
    data = solver_set("heat", 3)
    batch = data.samples.batch(range(3))
    found = residual(batch, data.spec, data.normalizer)
    newest = make_batch(batch.x[:, 1:], parameters=batch.parameters)
    torch.testing.assert_close(found, residual(newest, data.spec, data.normalizer))
    oldest = make_batch(batch.x[:, :2], parameters=batch.parameters)
    assert float((found - residual(oldest, data.spec, data.normalizer)).abs().max()) > 0.1
