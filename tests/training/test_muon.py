"""Muon: steps against a singular value decomposition, and what counts as a matrix."""

import pytest
import torch
from torch import Tensor, nn

from pibert.models.fourier import FourierBranch, as_real
from pibert.training.muon import Muon, matrices_of, orthogonalised
from tests.helpers import assert_close


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


def test_a_kernel_moves_as_the_matrix_of_its_outputs() -> None:
    kernel = nn.Parameter(torch.randn(12, 5, 3, 3))
    kernel.grad = torch.randn(12, 5, 3, 3)
    step = first_step(kernel, spectral=False).flatten(1) / (0.2 * 45**0.5)
    overlap = (step * polar(kernel.grad.flatten(1))).sum() / 12
    assert 0.75 < overlap < 1.1
    assert 0.1 < first_step(kernel, spectral=False).square().mean().sqrt() < 0.25


def test_every_mode_of_a_fourier_layer_moves_as_a_complex_matrix() -> None:
    weight = nn.Parameter(torch.randn(3, 2, 6, 8, 2))
    weight.grad = (
        torch.randn(3, 2, 6, 8, 2) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None, None, None]
    )
    step = torch.view_as_complex(first_step(weight, spectral=True).contiguous()) / (0.2 * 4.0)
    expected = polar(torch.view_as_complex(weight.grad.contiguous()))
    overlap = (step * expected.conj()).sum((-2, -1)).real / 6
    assert overlap.min() > 0.7 and overlap.max() < 1.2  # whatever the size of the gradient


def test_real_matrices_of_modes_multiply_as_complex_ones() -> None:
    a, b = torch.randn(2, 4, 5, 2), torch.randn(2, 5, 3, 2)
    product = torch.view_as_complex(a) @ torch.view_as_complex(b)
    assert_close(as_real(a) @ as_real(b), as_real(torch.view_as_real(product)))


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
            "depthwise": nn.Conv2d(16, 16, 3, groups=16),
            "frozen": nn.Linear(16, 16),
            "table": nn.Embedding(16, 16),
            "fourier": FourierBranch(6, 8, 2, (8, 8)),
        }
    )
    model["frozen"].requires_grad_(False)
    names = {id(p): name for name, p in model.named_parameters()}
    plain, spectral = ([names[id(p)] for p in part] for part in matrices_of(model))
    assert plain == ["wide.weight", "kernel.weight", "depthwise.weight"]
    assert spectral == ["fourier.positive", "fourier.negative"]


def test_a_weight_without_a_gradient_stays() -> None:
    weight = nn.Parameter(torch.randn(10, 10))
    before = weight.detach().clone()
    Muon([weight], lr=0.1, weight_decay=0.5).step()
    assert torch.equal(weight, before)
