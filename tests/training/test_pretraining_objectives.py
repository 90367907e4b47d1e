"""Masked physics prediction and equation consistency: losses by hand, pieces, learning."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pibert.fields import Batch, Normalizer
from pibert.pretraining.corruption import corrupt
from pibert.pretraining.masks import Masking, choose
from pibert.training.losses import LossScales
from pibert.training.objectives import equation_consistency, masked_physics
from tests.helpers import randomise, tiny_model, tiny_spec
from tests.pretraining.batches import make_batch
from tests.pretraining.windows import street_set
from tests.training.setups import assert_pieces_add_up

SPEC = tiny_spec((16, 24))
NORMALIZER = Normalizer((0.5, 0.0), (2.0, 0.7))
SCALES = LossScales.from_training(SPEC, NORMALIZER)


class Answer(nn.Module):
    """A model that returns a fixed answer, and keeps its input."""

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


def test_pieces_of_a_masked_batch_add_up_to_the_whole() -> None:
    spec, masking = replace(SPEC, dt=0.1), Masking(divergence=0.3, block=4)
    model = randomise(tiny_model(spec=spec, history=2, patch=4)).double()
    batch = some_batch(6, frames=2).map(lambda t: t.double() if t.is_floating_point() else t)
    objective = masked_physics(masking, spec, NORMALIZER, SCALES)
    logs = assert_pieces_add_up(objective, model, batch, (1, 5))
    assert set(logs) == {"mpp", "mpp_divergence", "loss"}


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


def test_the_loss_is_the_cross_entropy_of_both_labels() -> None:
    data = street_set(1)
    model = data.model().eval()
    batch, negatives = data.samples.batch(range(0, 40, 5)), data.negatives()
    loss, logs = equation_consistency(negatives)(model, batch)
    x, parameters = negatives.draw(batch, model)
    with torch.no_grad():
        valid = model.consistency(batch.x, batch.parameters, batch.mask)
        invalid = model.consistency(x, parameters, batch.mask)
    logits, labels = torch.cat((valid, invalid)), torch.arange(16) < 8
    expected = F.binary_cross_entropy_with_logits(logits, labels.float())
    torch.testing.assert_close(loss.detach(), expected)
    torch.testing.assert_close(logs["ecp"], expected)
    accuracy = ((logits > 0) == labels).float().mean()
    torch.testing.assert_close(logs["ecp_accuracy"], accuracy)
    assert not any(entry.requires_grad for entry in logs.values())


def test_pieces_of_a_batch_with_negatives_add_up_to_the_whole() -> None:
    # The kind of negative of a sample depends on its place in the epoch.
    data = street_set(1)
    model = data.model(dropout=0.0).train()
    batch = data.samples.batch(range(0, 36, 3))
    assert_pieces_add_up(equation_consistency(data.negatives()), model, batch, (8,))
