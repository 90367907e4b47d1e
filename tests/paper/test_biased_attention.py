"""Lemmas "ratio monotonicity" and "rowwise control", "translation equivariance", "continuum limit".

- Ratio: right.
- Rowwise control, |a(lambda) - a(0)|_1 <= lambda/2 max|R|: right for R >= 0, where the constant is
  sharp, though not by the printed proof. That takes max_j 2 s_j (1 - s_j) for the norm of the
  softmax Jacobian from l_inf to l_1, which is its norm from l_1 to l_1. The one needed is
  max_S 4 s_S (1 - s_S) over sets of keys, up to 1, and for signed R the constant is indeed 1.
  What holds for every R is lambda/2 (max R - min R), since a shift of the whole row changes
  nothing; the exact maximum is 2 tanh(lambda (max R - min R) / 4).
- Equivariance: right for the attention by itself. Tokens with learned positions are not
  equivariant, and the residual r_j moves with the tokens only where the flow is periodic.
- Continuum: right for the weights w_h, which sum to one. The printed Riemann sum
  sum_j w_h v_j h^d counts the cell twice, since h^d is already in the normalisation, and goes to
  zero. The logits are <q, k> / sqrt(d). A token that is no grid point, such as the parameter token,
  is one among N and loses its weight in the limit.

Also here: the fused form of the key-wise bias computes the direct softmax.
"""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pibert.models.attention import Attention, key_biased_attention
from tests.paper.helpers import noise, randomise, relative_error


def direct_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Logits, bias and softmax written out; bias broadcastable to (b, h, n, n)."""
    logits = q @ k.mT / math.sqrt(q.shape[-1]) + bias
    weights = logits.exp() / logits.exp().sum(-1, keepdim=True)
    return weights @ v


def weights_of(q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    """Attention weights as the fused function applies them: it reads out the identity."""
    n, width = q.shape[-2:]
    columns = []
    for start in range(0, n, width):
        v = torch.eye(n, dtype=q.dtype)[:, start : start + width]
        v = torch.nn.functional.pad(v, (0, width - v.shape[1]))
        columns.append(key_biased_attention(q, k, v.expand(*q.shape[:2], n, width), bias))
    return torch.cat(columns, dim=-1)[..., :n]


# Lemma "softmax ratio monotonicity"


def test_the_ratio_of_two_weights_falls_with_the_bias_as_the_lemma_says() -> None:
    q, k = noise(2, 1, 6, 4), noise(2, 1, 6, 4, seed=1)
    r = noise(2, 6, seed=2).abs()
    logits = q @ k.mT / 2
    ratios = []
    for strength in (0.0, 0.12, 0.5, 2.0):
        weights = weights_of(q, k, -strength * r)
        found = weights[..., 1] / weights[..., 4]
        gap = (
            logits[..., 1] - logits[..., 4] - strength * (r[:, None, 1, None] - r[:, None, 4, None])
        )
        assert relative_error(found, gap.exp().squeeze(1)[:, None]) < 1e-10
        ratios.append(found)
    falls = (r[:, 1] > r[:, 4])[:, None, None]
    for before, after in itertools.pairwise(ratios):
        assert ((after < before) == falls).all()


# Lemma "rowwise Lipschitz control"


def change(logits: Tensor, r: Tensor, strength: float) -> Tensor:
    return ((logits - strength * r).softmax(-1) - logits.softmax(-1)).abs().sum(-1)


def extremal_row(r: Tensor, strength: float) -> Tensor:
    """Logits of two keys that pass through equal weights half-way to the biased ones."""
    return strength * r / 2


@pytest.mark.parametrize("n", [2, 3, 10, 200])
@pytest.mark.parametrize("strength", [0.01, 0.12, 1.0, 20.0])
def test_nonnegative_residuals_move_a_row_by_at_most_half_their_maximum(
    n: int, strength: float
) -> None:
    logits = 3 * noise(2000, n) * noise(2000, 1, seed=1).abs()
    r = noise(2000, n, seed=2).abs() * (noise(2000, n, seed=3) > 0)
    bound = strength / 2 * r.amax(-1)
    moved = change(logits, r, strength)
    assert (moved <= bound + 1e-12).all()
    exact = 2 * torch.tanh(strength * (r.amax(-1) - r.amin(-1)) / 4)
    assert (moved <= exact + 1e-12).all()


def test_half_is_the_best_constant_for_nonnegative_residuals() -> None:
    r = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for strength in (0.01, 0.12, 3.0):
        moved = change(extremal_row(r, strength), r, strength)
        assert abs(moved - 2 * math.tanh(strength / 4)) < 1e-12
    assert change(extremal_row(r, 0.01), r, 0.01) > 0.49999 * 0.01


def test_signed_residuals_need_twice_the_constant() -> None:
    r, strength = torch.tensor([-1.0, 1.0], dtype=torch.float64), 0.12
    moved = change(extremal_row(r, strength), r, strength)
    assert moved > 0.99 * strength  # the lemma claims 0.5 strength
    logits, signed = 3 * noise(2000, 6), noise(2000, 6, seed=1)
    moved = change(logits, signed, strength)
    assert (moved > strength / 2 * signed.abs().amax(-1)).any()
    assert (moved <= strength * signed.abs().amax(-1)).all()
    assert (moved <= strength / 2 * (signed.amax(-1) - signed.amin(-1))).all()


@pytest.mark.parametrize("n", [2, 4, 7])
def test_the_norm_of_the_softmax_jacobian_is_not_the_one_of_the_proof(n: int) -> None:
    s = noise(n).softmax(-1)
    jacobian = s.diag() - s[:, None] * s
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=n)), dtype=torch.float64)
    from_inf_to_1 = (signs @ jacobian).abs().sum(-1).max()  # a convex maximum sits at a corner
    shares = (signs > 0).double() @ s
    assert abs(from_inf_to_1 - (4 * shares * (1 - shares)).max()) < 1e-12
    printed = (2 * s * (1 - s)).max()
    assert from_inf_to_1 > 1.5 * printed
    assert abs(jacobian.abs().sum(0).max() - printed) < 1e-12  # the norm from l_1 to l_1


def test_half_is_not_a_bound_of_the_norm_in_the_proof() -> None:
    s = torch.tensor([0.5, 0.5], dtype=torch.float64)
    jacobian = s.diag() - s[:, None] * s
    assert (jacobian @ torch.tensor([1.0, -1.0], dtype=torch.float64)).abs().sum() == 1.0


# A shift by query, and the symmetries


def make_attention(width: int = 8, heads: int = 2, seed: int = 0) -> Attention:
    attention = Attention(width, heads).double()
    randomise(attention, seed, std=0.7)
    return attention


def test_a_shift_by_query_changes_nothing() -> None:
    attention, x = make_attention(), noise(2, 6, 8, seed=1)
    shift = noise(2, 1, 6, 1, seed=2).expand(2, 1, 6, 6)
    assert relative_error(attention(x, shift), attention(x)) < 1e-12
    assert relative_error(attention(x, shift.mT), attention(x)) > 0.05


class RelativeBias(nn.Module):
    """R_ij = rho(r(i) - r(j)) >= 0 on a periodic lattice of tokens, as the paper writes it."""

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__()
        self.shape, self.table = shape, nn.Parameter(torch.zeros(shape))

    def forward(self) -> Tensor:
        ny, nx = self.shape
        rows, columns = torch.arange(ny), torch.arange(nx)
        dy, dx = (rows[:, None] - rows) % ny, (columns[:, None] - columns) % nx
        offsets = dy[:, None, :, None] * nx + dx[None, :, None, :]  # (ny, nx, ny, nx)
        return F.softplus(self.table).flatten()[offsets.reshape(ny * nx, ny * nx)]


def test_a_bias_of_relative_position_makes_attention_translation_equivariant() -> None:
    ny, nx = 3, 4
    attention, relative = make_attention(), RelativeBias((ny, nx)).double()
    randomise(relative, seed=1, std=2.0)
    bias = -0.5 * relative()[None, None].detach()
    x = noise(2, ny * nx, 8, seed=2)

    def translate(tokens: Tensor) -> Tensor:
        return tokens.view(2, ny, nx, 8).roll((1, 3), (1, 2)).reshape(2, ny * nx, 8)

    out = attention(x, bias)
    assert relative_error(attention(translate(x), bias), translate(out)) < 1e-12
    assert relative_error(attention(x), out) > 0.05  # the bias does something
    fixed = noise(1, 1, ny * nx, ny * nx, seed=3)  # a bias of absolute position
    assert relative_error(attention(translate(x), fixed), translate(attention(x, fixed))) > 0.05


def test_a_key_wise_residual_travels_with_its_tokens() -> None:
    attention, x = make_attention(), noise(2, 7, 8, seed=1)
    r = noise(2, 7, seed=2).abs()
    order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
    out = attention(x, -r)
    assert relative_error(attention(x[:, order], -r[:, order]), out[:, order]) < 1e-12
    assert relative_error(attention(x[:, order], -r), out[:, order]) > 0.05


# The continuum limit


def query(x: Tensor) -> Tensor:
    return torch.stack((torch.sin(2 * x), x.cos(), 1 + x), dim=-1)


def key(y: Tensor) -> Tensor:
    return torch.stack((y.cos(), torch.sin(3 * y), y**2), dim=-1)


def residual(y: Tensor) -> Tensor:
    return 1 + torch.sin(4 * y)


def value(y: Tensor) -> Tensor:
    return torch.stack((y.exp(), torch.cos(5 * y), y), dim=-1)


def midpoints(n: int) -> Tensor:
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n


def attend(n: int, strength: float = 0.7) -> Tensor:
    """Biased attention of n cells on [0, 1] to themselves, (n, 3)."""
    y = midpoints(n)
    q, k, v = (f(y)[None, None] for f in (query, key, value))
    return key_biased_attention(q, k, v, -strength * residual(y)[None])[0, 0]


def integral(x: Tensor, strength: float = 0.7) -> Tensor:
    """The limit operator by Gauss quadrature, exact to round-off for these functions."""
    nodes, widths = legendre(40)
    kernel = torch.exp(query(x) @ key(nodes).mT / math.sqrt(3) - strength * residual(nodes))
    return (kernel * widths) @ value(nodes) / (kernel @ widths)[:, None]


def legendre(n: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on [0, 1], from the Jacobi matrix."""
    k = torch.arange(1, n, dtype=torch.float64)
    off = k / (4 * k**2 - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(off.diag(1) + off.diag(-1))
    return (nodes + 1) / 2, vectors[0] ** 2


def test_attention_on_finer_grids_converges_to_the_integral_operator() -> None:
    errors = []
    for n in (16, 32, 64, 128):
        errors.append((attend(n) - integral(midpoints(n))).abs().max().item())
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert errors[0] < 0.05
    assert min(orders) > 1.9  # the midpoint rule
    without_bias = (attend(128) - integral(midpoints(128), strength=0.0)).abs().max()
    assert without_bias > 0.05  # the limit knows the residual


def test_on_the_torus_smooth_fields_converge_faster_than_any_power() -> None:
    """Two dimensions, periodic, a pairwise r(x, y): the setting of the theorem."""

    def error(n: int, reference: int = 32) -> float:
        def lattice(m: int) -> tuple[Tensor, Tensor]:
            points = 2 * torch.pi * torch.arange(m, dtype=torch.float64) / m
            rows, columns = torch.meshgrid(points, points, indexing="ij")
            return rows.flatten(), columns.flatten()

        def features(a: Tensor, b: Tensor) -> Tensor:
            return torch.stack((a.cos(), b.sin(), (a + b).cos(), (a - b).sin()), dim=-1)

        def apply(m: int) -> Tensor:
            (xa, xb), (ya, yb) = lattice(n), lattice(m)
            r = 1 - torch.cos(xa[:, None] - ya) * torch.cos(xb[:, None] - yb)
            out = torch.nn.functional.scaled_dot_product_attention(
                features(xa, xb)[None, None],
                features(yb, ya)[None, None],
                features(ya, 2 * yb)[None, None],
                attn_mask=-0.7 * r,
            )
            return out[0, 0]

        return (apply(n) - apply(reference)).abs().max().item()

    errors = [error(n) for n in (4, 8, 16)]
    assert errors[0] > 1e-3
    assert errors[1] < errors[0] / 50
    assert errors[2] < 1e-9


def test_the_weights_sum_to_one_so_the_papers_cell_factor_takes_everything_away() -> None:
    for n in (16, 64):
        y = midpoints(n)
        weights = weights_of(query(y)[None, None], key(y)[None, None], -residual(y)[None])
        assert (weights.sum(-1) - 1).abs().max() < 1e-12
    limit = integral(midpoints(16)).abs().max()
    sizes = [(attend(n) / n).abs().max() for n in (16, 32, 64)]  # sum_j w_h v_j h
    for coarse, fine in itertools.pairwise(sizes):
        assert abs(fine / coarse - 0.5) < 0.05
    assert sizes[-1] < 0.05 * limit


def test_a_token_beside_the_grid_loses_its_weight_in_the_limit() -> None:
    shares = []
    for n in (64, 128, 256):
        y = midpoints(n)
        q, k = query(y), torch.cat((key(y), torch.ones(1, 3, dtype=torch.float64)))
        q = torch.cat((q, q[:1]))
        bias = torch.cat((-residual(y), torch.zeros(1, dtype=torch.float64)))
        shares.append(weights_of(q[None, None], k[None, None], bias[None])[..., -1].max())
    for coarse, fine in itertools.pairwise(shares):
        assert abs(fine / coarse - 0.5) < 0.05


# The fused form


@pytest.mark.parametrize("trained_bias", [False, True], ids=["mask", "feature"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)]
)
@pytest.mark.parametrize("n", [1, 5, 33])
def test_the_fused_form_is_the_direct_softmax_with_all_gradients(
    n: int, dtype: torch.dtype, tolerance: float, trained_bias: bool
) -> None:
    shape = (2, 3, n, 8)
    inputs = [noise(*shape, seed=seed, dtype=dtype) for seed in range(3)]
    bias = -noise(2, n, seed=3).abs().to(torch.float32 if dtype == torch.bfloat16 else dtype)
    upstream = noise(*shape, seed=4, dtype=dtype)

    def run(function: Callable[..., Tensor], wide: bool) -> list[Tensor]:
        """Output and gradients; the direct form in float64 on the same rounded numbers."""
        leaves = [(t.double() if wide else t.clone()).requires_grad_() for t in inputs]
        r = (bias.double() if wide else bias.clone()).requires_grad_(trained_bias)
        leaves.append(r)
        out = function(*leaves)
        (out * upstream.to(out.dtype)).sum().backward()
        return [out.detach().double(), *(t.grad.double() for t in leaves if t.grad is not None)]

    fused = run(key_biased_attention, wide=False)
    direct = run(lambda q, k, v, b: direct_attention(q, k, v, b[:, None, None, :]), wide=True)
    assert len(fused) == len(direct) == (5 if trained_bias else 4)
    for found, expected in zip(fused, direct, strict=True):
        # With one key the weights are constant: gradients are zero up to round-off of the inputs.
        size = max(expected.abs().max().item(), 1.0)
        assert (found - expected).abs().max().item() < tolerance * size
