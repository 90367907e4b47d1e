"""The objective of masked physics prediction: where the error counts, and how samples add up."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pibert.fields import Batch, FieldSpec, Normalizer
from pibert.pretraining.corruption import corrupt
from pibert.pretraining.masks import Masking, choose
from pibert.training.losses import LossScales
from pibert.training.masked import masked_physics
from tests.helpers import randomise, tiny_model, tiny_spec
from tests.pretraining.batches import make_batch

SPEC = tiny_spec((16, 24))
NORMALIZER = Normalizer((0.5, 0.0), (2.0, 0.7))
SCALES = LossScales.from_training(SPEC, NORMALIZER)


class Answer(nn.Module):
    """A model that answers what it is told, and keeps what it was shown."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self.answer = nn.Parameter(answer.clone())

    def reconstruct(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
        self.x, self.mask = x, mask
        return self.answer


def some_batch(b: int = 6, frames: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(0)
    known = torch.rand(b, 16, 24, generator=generator) > 0.2
    known[0] = False  # a sample of which nothing is known
    return make_batch(torch.randn(b, 2 * frames, 16, 24, generator=generator), known)


@pytest.mark.parametrize("kind", ["pixels", "blocks", "structured", "sensors", "regions"])
def test_the_loss_is_the_mean_over_samples_of_their_own_mean_over_hidden_points(kind: str) -> None:
    batch = some_batch()
    masking = Masking(kinds=(kind,), block=4, ratio=0.3)  # type: ignore[arg-type]
    model = Answer(torch.randn_like(batch.x))
    loss, logs = masked_physics(masking, SPEC, NORMALIZER, SCALES)(model, batch)
    hidden = choose(batch, masking, SPEC, NORMALIZER)
    seen = corrupt(batch, hidden, masking, SPEC, NORMALIZER)
    assert torch.equal(model.x, seen.x) and torch.equal(model.mask, seen.mask)
    error = (model.answer.detach() - batch.x).square()
    means = [float(error[i, :, hidden.points[i]].mean()) for i in range(1, 6)]
    assert float(loss.detach()) == pytest.approx(sum(means) / 6, rel=1e-5)
    assert set(logs) == {"mpp", "loss"} and not logs["mpp"].requires_grad
    loss.backward()
    assert model.answer.grad is not None
    asked = (model.answer.grad != 0).any(1)
    assert torch.equal(asked, hidden.points)


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    batch = some_batch(6, frames=2)
    spec, masking = replace(SPEC, dt=0.1), Masking(divergence=0.3, block=4)
    model = randomise(tiny_model(spec=spec, history=2, patch=4)).double()
    objective = masked_physics(masking, spec, NORMALIZER, SCALES)
    batch = batch.map(lambda t: t.double() if t.is_floating_point() else t)
    whole, logs = objective(model, batch)
    parts = [slice(0, 1), slice(1, 5), slice(5, 6)]
    pieces = [(p.stop - p.start, *objective(model, _part(batch, p))) for p in parts]
    total = sum(n * loss.item() for n, loss, _ in pieces) / 6
    assert total == pytest.approx(whole.item())
    for name in ("mpp", "mpp_divergence"):
        total = sum(n * float(log[name]) for n, _, log in pieces) / 6
        assert total == pytest.approx(float(logs[name]))


def _part(batch: Batch, which: slice) -> Batch:
    return batch.map(lambda tensor: tensor[which])


def test_the_divergence_of_a_known_flow_is_added_in_units_of_the_cell() -> None:
    batch = make_batch(torch.zeros(2, 2, 16, 24))
    x, y = SPEC.grid.coordinates()
    # u = 3 x, v = y in physical units: the divergence is 4.
    answer = NORMALIZER.apply(torch.stack((3 * x, y)))[None].expand(2, -1, -1, -1)
    masking = Masking(divergence=0.1)
    loss, logs = masked_physics(masking, SPEC, NORMALIZER, SCALES)(Answer(answer), batch)
    unit = SPEC.grid.cell_length / SCALES.reference_velocity
    assert float(logs["mpp_divergence"]) == pytest.approx((4 * unit) ** 2, rel=1e-4)
    assert loss.item() == pytest.approx(float(logs["mpp"]) + 0.1 * float(logs["mpp_divergence"]))


def test_a_divergence_without_a_velocity_is_refused() -> None:
    spec = FieldSpec(channels=("T",), family="heat", grid=SPEC.grid)
    scales = LossScales.from_training(spec, Normalizer.identity(1))
    with pytest.raises(ValueError, match="divergence of the reconstruction needs a velocity"):
        masked_physics(Masking(divergence=0.1), spec, Normalizer.identity(1), scales)


def test_a_model_learns_to_fill_in_what_is_hidden() -> None:
    """A field that one number decides: a wave of random phase. Filling in the mean gives 1."""
    generator = torch.Generator().manual_seed(0)
    phase = 6.28 * torch.rand(64, 1, 1, generator=generator)
    wave = torch.cos(torch.arange(24.0) * 0.4 + phase).expand(64, 16, 24)
    batch = make_batch(2**0.5 * torch.stack((wave, wave.flip(-1)), dim=1))
    torch.manual_seed(0)
    model = tiny_model(spec=SPEC, depth=1)
    objective = masked_physics(Masking(kinds=("blocks",), block=4), SPEC, NORMALIZER, SCALES)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(60):
        loss, _ = objective(model, batch.reseeded(0, epoch))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert objective(model, batch.reseeded(1, 0))[0].item() < 0.25
