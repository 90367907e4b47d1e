"""Lemma "nonexpansive hybrid for fixed gates", and the gate's gradients in the appendix.

Right for a scalar gate: a convex combination of 1-Lipschitz maps is 1-Lipschitz. (The branches
here are affine, so it is their linear part that counts; biases drop out of differences.)

Wrong for a gate field, which the lemma includes: its proof takes a pointwise factor out of a norm.
The best constant is sqrt(2): sum_p |a f + (1-a) w|^2 <= sum_p max(|f|^2, |w|^2) <= 2 |x|^2, and a
gate of zeros and ones that picks at each point the branch with more energy attains it.

Wrong too: "isometry if both branches are". For |Fx| = |Tx| = |x|,

    |a Fx + (1-a) Tx|^2 = |x|^2 - a (1-a) |Fx - Tx|^2,

so the mixture is an isometry only where both branches agree (or the gate is 0 or 1), band-limited
input and an identity wavelet branch notwithstanding.
"""

import pytest
import torch
from torch import Tensor

from pibert.models.encoder import Gate, HybridEncoder
from pibert.models.fourier import FourierBranch
from pibert.models.wavelet import Wavelet, WaveletBranch
from tests.paper.helpers import linear_part, noise, randomise, relative_error, train_a_little

WIDTH = 9


def make_encoder(
    shape: tuple[int, int],
    *,
    gate: Gate = "scalar",
    kind: Wavelet = "fixed",
    unitary: bool = True,
    seed: int = 0,
) -> HybridEncoder:
    """Two channels, random weights, biases and gate."""
    encoder = HybridEncoder(
        FourierBranch(2, WIDTH, 2, shape, unitary=unitary),
        WaveletBranch(2, WIDTH, kind=kind, unitary=unitary),
        gate=gate,
        in_channels=2,
    ).double()
    randomise(encoder, seed)
    return encoder


def branches(encoder: HybridEncoder, x: Tensor) -> tuple[Tensor, Tensor]:
    """Both branches without their biases."""
    assert encoder.fourier is not None and encoder.wavelet is not None
    with torch.no_grad():
        return encoder.fourier(x), encoder.wavelet(x) - encoder.wavelet(torch.zeros_like(x))


def smooth_field(shape: tuple[int, int], seed: int = 0) -> Tensor:
    """A random field of the mean and the modes k_y, k_x in {0, 1}, which two modes keep."""
    ny, nx = shape
    spectrum = torch.fft.rfft2(noise(1, 2, ny, nx, seed=seed))
    kept = torch.zeros(ny, nx // 2 + 1, dtype=torch.float64)
    kept[[0, 1, -1], :2] = 1.0
    return torch.fft.irfft2(spectrum * kept, s=shape)


# A scalar gate


@pytest.mark.parametrize("shape", [(6, 4), (5, 7)])
@pytest.mark.parametrize("kind", ["fixed", "trained"])
def test_the_linear_part_of_the_unitary_encoder_has_norm_at_most_one(
    kind: Wavelet, shape: tuple[int, int]
) -> None:
    encoder = make_encoder(shape, kind=kind)
    train_a_little(encoder, noise(1, 2, *shape))
    largest = torch.linalg.matrix_norm(linear_part(encoder, (2, *shape)), 2)
    assert largest <= 1 + 1e-10
    assert largest > 0.3


def test_plain_weights_do_stretch() -> None:
    encoder = make_encoder((6, 4), unitary=False)
    assert torch.linalg.matrix_norm(linear_part(encoder, (2, 6, 4)), 2) > 1.5


def test_biases_shift_the_output_but_not_its_differences() -> None:
    encoder = make_encoder((6, 5))
    x, y = noise(8, 2, 6, 5), noise(8, 2, 6, 5, seed=1)
    with torch.no_grad():
        ratio = (encoder(x) - encoder(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)
        rest = encoder(torch.zeros(1, 2, 6, 5).double())
    assert ratio.max() <= 1
    assert rest.abs().max() > 0.1


# A gate field


def test_a_gate_field_stretches_by_the_square_root_of_two() -> None:
    """F = identity, T = swap of two points; at each point the gate picks the one that holds x."""
    fourier, wavelet = torch.eye(2).double(), torch.tensor([[0.0, 1.0], [1.0, 0.0]]).double()
    gate = torch.tensor([1.0, 0.0]).double()
    mixed = gate[:, None] * fourier + (1 - gate)[:, None] * wavelet
    x = torch.tensor([1.0, 0.0]).double()
    assert abs((mixed @ x).norm() / x.norm() - 2**0.5) < 1e-15
    assert abs(torch.linalg.matrix_norm(mixed, 2) - 2**0.5) < 1e-15


def test_no_gate_field_stretches_by_more() -> None:
    for seed in range(50):
        size = 2 + seed % 5
        fourier, wavelet = torch.linalg.qr(noise(2, size, size, seed=seed))[0]
        for gate in (torch.sigmoid(3 * noise(size, seed=seed)), (noise(size, seed=seed) > 0) * 1.0):
            mixed = gate[:, None] * fourier + (1 - gate)[:, None] * wavelet
            assert torch.linalg.matrix_norm(mixed, 2) <= 2**0.5 + 1e-12


def test_the_branches_of_the_encoder_break_the_lemma_under_a_gate_field() -> None:
    shape = (6, 5)
    encoder = make_encoder(shape)
    x = smooth_field(shape)
    fourier, wavelet = branches(encoder, x)
    gate = (fourier.square().sum(1) > wavelet.square().sum(1)).double()[:, None]
    stretched = (gate * fourier + (1 - gate) * wavelet).norm() / x.norm()
    assert 1.05 < stretched <= 2**0.5
    scalar = 0.37
    assert (scalar * fourier + (1 - scalar) * wavelet).norm() <= x.norm()


# The clause on isometries


def test_two_isometries_mix_to_an_isometry_only_where_they_agree() -> None:
    shape = (6, 5)
    encoder = make_encoder(shape)
    for seed in range(5):
        x = smooth_field(shape, seed)
        fourier, wavelet = branches(encoder, x)
        energy = x.square().sum()
        for branch in (fourier, wavelet):  # both are isometries on such fields
            assert abs(branch.square().sum() - energy) < 1e-10 * energy
        alpha = encoder.gate(x).detach()
        offset = encoder(torch.zeros_like(x)).detach()
        mixed = (encoder(x).detach() - offset).square().sum()
        lost = alpha * (1 - alpha) * (fourier - wavelet).square().sum()
        assert abs(mixed - (energy - lost)) < 1e-10 * energy
        assert mixed < 0.9 * energy


def test_the_clause_fails_even_for_an_identity_wavelet_branch() -> None:
    """The case of the lemma: band-limited input, T = identity. F must be the identity too."""
    shape, alpha = (6, 5), 0.4
    x = smooth_field(shape)
    fourier = FourierBranch(2, 2, 2, shape, unitary=True).double()
    randomise(fourier)
    with torch.no_grad():
        assert abs(fourier(x).norm() / x.norm() - 1) < 1e-10
        assert (alpha * fourier(x) + (1 - alpha) * x).norm() < 0.95 * x.norm()
        for weight in fourier.parameters():
            weight.zero_()
            weight[..., 0].copy_(torch.eye(2))
        assert abs((alpha * fourier(x) + (1 - alpha) * x).norm() / x.norm() - 1) < 1e-10


# The gradients of the appendix


def test_scalar_gate_gradients_are_those_of_the_appendix() -> None:
    shape = (6, 5)
    encoder = make_encoder(shape)
    assert encoder.fourier is not None and encoder.wavelet is not None
    assert encoder.gate_logits is not None
    x, g = noise(2, 2, *shape), noise(2, WIDTH, *shape, seed=1)
    fourier, wavelet = encoder.fourier(x).detach(), encoder.wavelet(x).detach()
    (encoder(x) * g).sum().backward()
    alpha = encoder.gate(x).detach()
    expected = alpha * (1 - alpha) * (g * (fourier - wavelet)).sum()
    assert encoder.gate_logits.grad is not None
    assert relative_error(encoder.gate_logits.grad, torch.stack((expected, -expected))) < 1e-12


def test_the_gate_weights_the_gradients_of_the_branches() -> None:
    """The wavelet branch's bias is added to its branch, so its gradient sums (1 - alpha) dL/dE."""
    shape = (6, 5)
    encoder = make_encoder(shape)
    assert encoder.wavelet is not None and encoder.wavelet.mix.bias is not None
    assert encoder.fourier is not None
    x, g = noise(2, 2, *shape), noise(2, WIDTH, *shape, seed=1)
    (encoder(x) * g).sum().backward()
    alpha = encoder.gate(x).detach()
    assert encoder.wavelet.mix.bias.grad is not None
    assert relative_error(encoder.wavelet.mix.bias.grad, (1 - alpha) * g.sum((0, 2, 3))) < 1e-12
    through_mix = encoder.fourier.positive.grad
    alone = torch.autograd.grad((encoder.fourier(x) * g).sum(), encoder.fourier.positive)[0]
    assert through_mix is not None
    assert relative_error(through_mix, alpha * alone) < 1e-10


def test_a_gate_field_has_the_same_gradient_point_by_point() -> None:
    """There the inner product runs over the channels of one point, not over the whole field."""
    shape = (6, 5)
    encoder = make_encoder(shape, gate="spatial")
    assert encoder.fourier is not None and encoder.wavelet is not None
    assert encoder.gate_network is not None
    x, g = noise(2, 2, *shape), noise(2, WIDTH, *shape, seed=1)
    fourier, wavelet = encoder.fourier(x).detach(), encoder.wavelet(x).detach()
    alpha = encoder.gate(x).detach()
    assert alpha.std() > 0.01
    (encoder(x) * g).sum().backward()
    per_point = alpha * (1 - alpha) * (g * (fourier - wavelet)).sum(1, keepdim=True)
    expected = torch.stack((per_point.sum(), -per_point.sum()))
    grad = encoder.gate_network[-1].bias.grad  # the last bias is added to the logits everywhere
    assert isinstance(grad, Tensor)
    assert relative_error(grad, expected) < 1e-10
