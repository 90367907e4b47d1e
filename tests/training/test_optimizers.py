"""Schedule and running mean by hand; moments go back to the parameters they belong to."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pibert.models.fourier import FourierBranch
from pibert.training.optimizers import (
    Muon,
    RunningMean,
    build_optimizers,
    learning_rate,
    matrices_of,
    moments,
    orthogonalised,
    set_moments,
    set_rate,
)
from tests.helpers import assert_close, refused
from tests.training.setups import make_model

ADAM: dict[str, Any] = {"rate": 1e-2, "weight_decay": 0.1, "betas": (0.9, 0.99)}


def test_the_learning_rate_warms_up_and_falls_as_a_cosine() -> None:
    rates = [learning_rate(step, total=11, warmup=4, peak=0.8, minimum=0.2) for step in range(11)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4] == pytest.approx(0.8)
    assert rates[6] == pytest.approx(0.5 + 0.3 * math.cos(math.pi / 3))
    assert rates[7] == pytest.approx(0.5)
    assert rates[10] == 0.2


@pytest.mark.parametrize(("total", "warmup"), [(1, 0), (1, 1), (3, 3), (2, 5)])
def test_a_schedule_may_be_as_short_as_its_warm_up(total: int, warmup: int) -> None:
    rates = [learning_rate(step, total=total, warmup=warmup, peak=1.0) for step in range(total)]
    assert all(0 < rate <= 1 for rate in rates)


def test_the_running_mean_is_the_recursion_worked_out_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False)
    values = [1.0, 3.0, -2.0, 5.0]
    nn.init.constant_(model.weight, values[0])
    mean = RunningMean(model, 0.15)
    expected = values[0]
    for step, value in enumerate(values[1:], 1):
        nn.init.constant_(model.weight, value)
        mean.update(step)
        decay = (0.1, 0.15, 0.15)[step - 1]  # 1/10, then 2/11 and 3/12 are above the decay
        expected = decay * expected + (1 - decay) * value
    assert mean.named()["weight"].item() == pytest.approx(expected)
    with mean.applied():
        assert model.weight.item() == pytest.approx(expected)
    assert model.weight.item() == 5.0


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_moments_are_restored_by_name_and_the_next_step_is_the_same(name: Any) -> None:
    def stepped(model: nn.Module, optimizers: list[Any], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for key, p in model.named_parameters():
            if not key.startswith("mpp_head"):
                p.grad = torch.randn(p.shape, generator=generator)
        set_rate(optimizers, 1e-3)
        for optimizer in optimizers:
            optimizer.step()

    model = make_model()
    optimizers = build_optimizers(model, name, **ADAM)
    stepped(model, optimizers, 1)
    stored = {key: value.clone() for key, value in moments(optimizers, model).items()}
    assert not any(key.startswith("mpp_head") for key in stored)

    other = make_model()
    other.load_state_dict(model.state_dict())
    others = build_optimizers(other, name, **ADAM)
    set_moments(others, other, dict(reversed(stored.items())))
    stepped(model, optimizers, 2)
    stepped(other, others, 2)
    for key, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[key], value), key


def test_moments_of_another_optimiser_are_refused() -> None:
    def stepped(name: Any) -> tuple[nn.Module, list[Any]]:
        model = nn.Sequential(nn.ConvTranspose2d(8, 8, 2, stride=2))
        optimizers = build_optimizers(model, name, **ADAM)
        model(torch.ones(1, 8, 2, 2)).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        return model, optimizers

    (one, adamw), (other, muon) = stepped("adamw"), stepped("muon")
    with refused("momentum_buffer of 0.weight", "exp_avg, exp_avg_sq, step", "another version"):
        set_moments(muon, other, moments(adamw, one))
    with refused("exp_avg, exp_avg_sq, step of 0.weight", "found momentum_buffer"):
        set_moments(adamw, one, moments(muon, other))


def polar(matrix: Tensor) -> Tensor:
    """U V^H of the singular value decomposition."""
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    return u @ vh


@pytest.mark.parametrize("shape", [(12, 12), (10, 30), (40, 16)])
def test_singular_values_come_close_to_one_and_directions_stay(shape: tuple[int, int]) -> None:
    matrix = torch.randn(3, *shape)
    found = orthogonalised(matrix)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6 and values.max() < 1.25
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    core = u.mT @ found @ vh.mT
    assert_close(core, torch.diag_embed(core.diagonal(dim1=-2, dim2=-1)), rtol=1e-4)


def first_step(weight: nn.Parameter, *, spectral: bool, rate: float = 0.1) -> Tensor:
    """What the first step, without decay, subtracts from a weight with a random gradient."""
    before = weight.detach().clone()
    optimizer = Muon(*(([], [weight]) if spectral else ([weight],)), lr=rate)
    optimizer.step()
    return (before - weight.detach()) / rate


def test_every_mode_of_a_fourier_layer_moves_as_a_complex_matrix() -> None:
    weight = nn.Parameter(torch.randn(3, 2, 6, 8, 2))
    weight.grad = (
        torch.randn(3, 2, 6, 8, 2) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None, None, None]
    )
    step = torch.view_as_complex(first_step(weight, spectral=True).contiguous()) / (0.2 * 4.0)
    expected = polar(torch.view_as_complex(weight.grad.contiguous()))
    overlap = (step * expected.conj()).sum((-2, -1)).real / 6
    assert overlap.min() > 0.7 and overlap.max() < 1.2  # whatever the size of the gradient


def test_a_transposed_convolution_moves_as_the_map_of_a_point_to_a_patch() -> None:
    layer = nn.ConvTranspose2d(10, 12, 2, stride=2, bias=False)
    taken, _ = matrices_of(layer)
    assert taken == [layer.weight]
    layer.weight.grad = torch.randn(10, 12, 2, 2)
    gradient, before = layer.weight.grad.clone(), layer.weight.detach().clone()
    Muon(taken, lr=0.1).step()
    with torch.no_grad():
        moved = before - layer.weight  # by definition: what each unit vector at a point becomes
        layer.weight.copy_(moved / 0.1)
        found = layer(torch.eye(10)[:, :, None, None]).flatten(1)
        layer.weight.copy_(gradient)
        expected = polar(layer(torch.eye(10)[:, :, None, None]).flatten(1))
    # The entries of the step have the size 0.2, like those of AdamW.
    assert found.square().mean().sqrt().item() == pytest.approx(0.2, rel=0.25)
    overlap = (found * expected).sum() / 10 / (0.2 * 48**0.5)
    assert 0.7 < overlap < 1.2


def test_momentum_and_decay_are_those_worked_out_by_hand() -> None:
    weight = nn.Parameter(torch.randn(10, 12))
    start, gradients = weight.detach().clone(), [torch.randn(10, 12) for _ in range(2)]
    optimizer = Muon([weight], lr=0.1, weight_decay=0.5, momentum=0.9)
    expected, buffer = start, torch.zeros(10, 12)
    for gradient in gradients:
        weight.grad = gradient
        optimizer.step()
        buffer = 0.9 * buffer + 0.1 * gradient
        step = orthogonalised(0.1 * gradient + 0.9 * buffer) * 0.2 * 12**0.5
        expected = 0.95 * expected - 0.1 * step
    assert_close(weight, expected)


def test_matrices_are_found_in_layers_and_small_or_frozen_ones_are_not() -> None:
    model = nn.ModuleDict(
        {
            "wide": nn.Linear(16, 20),
            "narrow": nn.Linear(16, 2),
            "kernel": nn.Conv2d(3, 12, 3),
            "line": nn.Conv1d(12, 16, 1),
            "doubling": nn.ConvTranspose2d(8, 2, 2, stride=2),
            "thin": nn.ConvTranspose2d(4, 32, 2, stride=2),
            "depthwise": nn.Conv2d(16, 16, 3, groups=16),
            "frozen": nn.Linear(16, 16),
            "table": nn.Embedding(16, 16),
            "fourier": FourierBranch(6, 8, 2, (8, 8)),
        }
    )
    model["frozen"].requires_grad_(False)
    names = {id(p): name for name, p in model.named_parameters()}
    plain, spectral = ([names[id(p)] for p in part] for part in matrices_of(model))
    assert plain == [
        f"{name}.weight" for name in ("wide", "kernel", "line", "doubling", "depthwise")
    ]
    assert spectral == ["fourier.positive", "fourier.negative"]
