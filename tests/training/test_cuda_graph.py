"""Recorded pieces: on a GPU they give what launched ones give; elsewhere nothing is recorded."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from pibert.data.dataset import Samples, Window
from pibert.fields import Batch, Normalizer
from pibert.pretraining.masks import Masking
from pibert.pretraining.negatives import Negatives, NegativesConfig
from pibert.training.cuda_graph import GraphRunner
from pibert.training.losses import LossScales
from pibert.training.objectives import (
    Objective,
    equation_consistency,
    masked_physics,
    supervised,
    weighted,
)
from tests.data.helpers import make_trajectory, random_states
from tests.helpers import randomise, tiny_model


def make_samples() -> Samples:
    states = [random_states(30, 2, 16, 16, seed=seed) for seed in range(3)]
    flows = [make_trajectory(f"t{i}", states=s, re=1000.0 * (i + 1)) for i, s in enumerate(states)]
    return Samples(flows, window=Window(), normalizer=Normalizer.identity(2))


def all_three(samples: Samples) -> Objective:
    spec, normalizer = samples.spec, samples.normalizer
    scales = LossScales.from_training(spec, normalizer)
    negatives = Negatives(NegativesConfig(), spec, normalizer, 1, samples.parameters)
    return weighted(
        {
            "supervised": (1.0, supervised(scales)),
            "mpp": (1.0, masked_physics(Masking(block=4), spec, normalizer, scales)),
            "ecp": (0.1, equation_consistency(negatives)),
        }
    )


def make_runner(model: torch.nn.Module, enabled: bool, said: list[str]) -> GraphRunner:
    return GraphRunner(
        model, nullcontext, lambda part: nullcontext(), enabled=enabled, say=said.append
    )


def pieces_of(samples: Samples, device: str) -> list[Batch]:
    """Pieces of two sizes at places that differ modulo the number of negatives."""
    starts = [(0, 6), (6, 12), (12, 16), (16, 22), (22, 28), (28, 32), (32, 38), (38, 44)]
    return [
        replace(samples.batch(range(a, b)).to(device).reseeded(5, 1), position=a)
        for a, b in [*starts, *starts]
    ]


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_without_a_gpu_a_piece_is_run_as_it_is():
    samples = make_samples()
    model, other = (randomise(tiny_model(spec=samples.spec)) for _ in range(2))
    objective, batch = all_three(samples), samples.batch(range(6))
    loss, logs = make_runner(model, False, []).train(objective, batch, 0.25)
    expected, _ = objective(other, batch)
    (0.25 * expected).backward()
    assert torch.equal(loss, expected.detach())
    assert set(logs) >= {"loss", "supervised", "mpp", "ecp"}
    for name, gradient in gradients(other).items():
        assert torch.equal(gradients(model)[name], gradient), name


@pytest.mark.gpu
def test_captured_pieces_give_the_losses_and_gradients_of_launched_ones():
    samples = make_samples()
    said: list[str] = []
    objective = all_three(samples)
    models = [randomise(tiny_model(spec=samples.spec)).cuda().train() for _ in range(2)]
    runners = [
        make_runner(model, on, said) for model, on in zip(models, (True, False), strict=True)
    ]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    for number, batch in enumerate(pieces_of(samples, "cuda")):
        losses = [runner.train(objective, batch, 0.5)[0].item() for runner in runners]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4), number
        mine, theirs = map(gradients, models)
        assert mine.keys() == theirs.keys()
        for name, gradient in theirs.items():
            torch.testing.assert_close(mine[name], gradient, rtol=2e-3, atol=1e-5, msg=name)
        if number % 2:
            for optimizer, runner in zip(optimizers, runners, strict=True):
                optimizer.step()
                optimizer.zero_grad(set_to_none=not runner.keeps_gradients)
    assert runners[0].keeps_gradients and not said
    for model in models:
        model.eval()
    for batch in pieces_of(samples, "cuda"):
        found = [runner.evaluate(objective, batch)[0].item() for runner in runners]
        assert found[0] == pytest.approx(found[1], rel=1e-3)


@pytest.mark.gpu
def test_work_that_waits_for_the_device_is_reported_and_runs_without_graphs():
    samples = make_samples()
    said: list[str] = []
    model = randomise(tiny_model(spec=samples.spec)).cuda().train()
    scales = LossScales.from_training(samples.spec, samples.normalizer)
    inner = supervised(scales)

    def waits(model: torch.nn.Module, batch: Batch):
        loss, logs = inner(model, batch)
        return loss * (1.0 if loss.item() > 0 else 0.0), logs

    runner, batch = make_runner(model, True, said), samples.batch(range(6)).to("cuda")
    losses = [runner.train(waits, batch, 1.0)[0].item() for _ in range(4)]
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-5)
    assert len(said) == 1 and "cannot be captured" in said[0]
