import math
from dataclasses import replace
from operator import itemgetter

import torch
import torch.nn.functional as F

from pibert.fields import Batch
from pibert.training.consistency import equation_consistency
from tests.pretraining.windows import street_set


def rows(batch: Batch, chosen: slice) -> Batch:
    return batch.map(itemgetter(chosen))


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


def test_gradients_of_parts_weighted_by_their_samples_are_those_of_the_whole() -> None:
    data = street_set(1)
    model = data.model(dropout=0.0).train()
    batch, objective = data.samples.batch(range(0, 36, 3)), equation_consistency(data.negatives())
    objective(model, batch)[0].backward()
    whole = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    for start, stop in ((0, 8), (8, 12)):
        # Which kind of negative a sample meets goes by its place in the epoch.
        piece = replace(rows(batch, slice(start, stop)), place=start)
        (objective(model, piece)[0] * len(piece) / 12).backward()
    parts = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(whole) == len(parts) > 10
    scale = max(float(g.abs().max()) for g in whole)
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * scale)


def test_a_model_learns_to_tell_noise_from_flow() -> None:
    data = street_set(1)
    torch.manual_seed(0)
    model = data.model(drawn=False, dropout=0.0, attention_bias=1.0).train()
    objective = equation_consistency(data.negatives(kinds=("noise",), amplitude=(0.3, 0.3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for step in range(30):
        batch = data.samples.batch(range(step % 4, len(data.samples), 5)).reseeded(0, step)
        loss, _ = objective(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-5:]) / 5 < 0.5 * math.log(2)
