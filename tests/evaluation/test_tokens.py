"""Token diagnostics: against loops, transforms of the branch itself, and the model's own output."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pibert import Grid
from pibert.evaluation.tokens import (
    fourier_weight_rms,
    token_diagnostics,
    token_errors,
    wake_token,
)
from pibert.models.attention import Block
from pibert.models.fourier import FourierBranch
from pibert.predictor.tokens import attention_weights
from tests.helpers import randomise, tiny_model, tiny_spec

SHAPE = (14, 22)  # 4 x 6 tokens of 4 x 4 points, the last ones cut
SPEC = tiny_spec(SHAPE)


def make_input(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 2, *SHAPE, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, *SHAPE, generator=generator) > 0.1
    return x, torch.randn(3, 1, generator=generator, dtype=torch.float64), mask


def make_model(**changes: Any) -> Any:
    return randomise(tiny_model(spec=SPEC, **changes)).double()


@pytest.mark.parametrize("changes", [{}, {"attention_bias": 0.0}, {"relative_bias": True}])
def test_weights_times_values_are_what_the_block_computes(changes: dict[str, Any]) -> None:
    model = make_model(**changes).eval()
    x, parameters, mask = make_input()
    inputs: list[Any] = []
    outputs: list[Tensor] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, seen: inputs.append(seen))
        block.register_forward_hook(lambda *seen: outputs.append(seen[2]))
    model.encode(x, parameters, mask)
    for block, (tokens, bias), output in zip(model.blocks, inputs, outputs, strict=True):
        assert isinstance(block, Block)
        seen = block.norm_attention(tokens)
        weights = attention_weights(block.attention, seen, bias)
        assert torch.allclose(weights.sum(-1), torch.ones((), dtype=torch.float64))
        values = block.attention.qkv(seen)[..., 64:].unflatten(-1, (2, 16))  # q, k, v of 2 heads
        mixed = torch.einsum("bhij,bjhd->bihd", weights, values).flatten(2)
        middle = tokens + block.attention.out(mixed)
        assert torch.allclose(middle + block.mlp(block.norm_mlp(middle)), output, atol=1e-12)


def test_attention_maps_are_rows_and_column_means_of_the_weights() -> None:
    model = make_model().train()
    x, parameters, mask = make_input()
    found = token_diagnostics(model, x, parameters, mask, query=(2, 5))
    inputs: list[Any] = []
    model.eval().blocks[1].register_forward_pre_hook(lambda _, seen: inputs.append(seen))
    model.encode(x, parameters, mask)
    block = model.blocks[1]
    weights = attention_weights(
        block.attention, block.norm_attention(inputs[0][0]), inputs[0][1]
    ).mean(1)
    assert found["attention"].shape == found["received"].shape == (3, 2, 4, 6)
    assert torch.allclose(found["attention"][:, 1].flatten(1), weights[:, 2 * 6 + 5, :24])
    assert torch.allclose(found["received"][:, 1].flatten(1), weights.mean(1)[:, :24])
    assert torch.allclose(found["parameter_attention"][:, 1], weights[:, 17, 24])
    for name in ("attention", "received"):
        total = found[name].sum((-2, -1)) + found[f"parameter_{name}"]
        assert torch.allclose(total, torch.ones_like(total))
    assert found["query"].tolist() == [[2, 5]] * 3


def test_attention_shuns_a_key_with_a_large_residual() -> None:
    model = make_model(attention_bias=5.0)
    with torch.no_grad():
        for block in model.blocks:
            block.attention.qkv.weight.zero_()
    x, parameters, _ = make_input()
    found = token_diagnostics(model, x, parameters)
    weights = torch.cat(
        ((-5 * found["residual"]).flatten(1), torch.zeros(3, 1, dtype=torch.float64)), dim=1
    ).softmax(1)  # equal queries and keys: only the bias tells keys apart
    for layer in range(2):
        assert torch.allclose(found["received"][:, layer].flatten(1), weights[:, :24])


def test_the_query_is_the_token_with_the_largest_residual() -> None:
    model = make_model()
    x = torch.zeros(2, 2, *SHAPE, dtype=torch.float64)
    x[0, 0, 9, 13] = x[1, 0, 2, 18] = 3.0  # divergence at the columns next to them
    found = token_diagnostics(model, x)
    assert found["residual"].shape == (2, 4, 6)
    assert found["query"].tolist() == [[2, 3], [0, 4]]
    plain = token_diagnostics(make_model(attention_bias=0.0), x)
    assert "residual" not in plain
    assert plain["query"].tolist() == [[2, 3], [2, 3]]


def test_the_model_is_left_as_it_was() -> None:
    model = make_model(dropout=0.5).train()
    model.norm.eval()  # a part that was frozen
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [part.training for part in model.modules()]
    x, parameters, mask = make_input()
    first = token_diagnostics(model, x, parameters, mask)
    second = token_diagnostics(model, x, parameters, mask)
    assert all(torch.equal(first[name], second[name]) for name in ("attention", "received"))
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(block._forward_pre_hooks for block in model.blocks)
    assert not any(value.requires_grad for value in first.values())


@pytest.mark.parametrize(
    ("modes", "shape"), [(3, (13, 9)), (4, (12, 10)), (5, (10, 8)), (4, (8, 4)), (6, (13, 6))]
)
def test_the_weight_map_is_the_response_of_the_branch_to_single_waves(
    modes: int, shape: tuple[int, int]
) -> None:
    """A wave at k comes out with the amplitude of W(k): measured with the branch itself."""
    ny, nx = shape
    branch = FourierBranch(2, 3, modes, shape).double()
    rms, ky, kx = fourier_weight_rms(branch, shape)
    assert rms.shape == (len(ky), len(kx))
    place = {(int(a), int(b)): rms[i, j] for i, a in enumerate(ky) for j, b in enumerate(kx)}
    for a in range(-(ny // 2), (ny + 1) // 2):
        for b in range(-(nx // 2), (nx + 1) // 2):
            spectrum = torch.zeros(ny, nx, dtype=torch.complex128)
            spectrum[a % ny, b % nx] = 1.0
            wave = torch.fft.ifft2(spectrum)
            gains = []
            for channel in range(2):
                x = torch.zeros(1, 2, ny, nx, dtype=torch.complex128)
                x[0, channel] = wave
                with torch.no_grad():  # linear, so a complex wave is two real ones
                    out = torch.complex(branch(x.real), torch.zeros(()).double())
                    out = out + 1j * branch(x.imag)
                gains.append(torch.fft.fft2(out)[0, :, a % ny, b % nx].abs().square())
            measured = torch.stack(gains).mean().sqrt()
            told = place.get((a, b), torch.tensor(torch.nan))
            assert torch.allclose(measured, torch.nan_to_num(told).double(), atol=1e-12), (a, b)
            assert told.isnan() == (measured < 1e-12)


def test_the_weight_map_has_zero_in_the_middle_and_is_symmetric() -> None:
    branch = FourierBranch(2, 3, 4, (16, 20)).double()
    with torch.no_grad():
        branch.positive.zero_(), branch.negative.zero_()
        branch.positive[1, 2, :, :, 0] = 3.0
        branch.positive[1, 2, :, :, 1] = 4.0
    rms, ky, kx = fourier_weight_rms(branch, (16, 20))
    assert ky.tolist() == list(range(-4, 5)) and kx.tolist() == [-2, -1, 0, 1, 2]
    expected = torch.zeros(9, 5, dtype=torch.float64)
    expected[4 + 1, 2 + 2] = expected[4 - 1, 2 - 2] = 5.0
    assert torch.equal(torch.nan_to_num(rms), expected)
    missing = [(int(a) - 4, int(b) - 2) for a, b in rms.isnan().nonzero()]
    assert missing == [(-4, -2), (-4, -1), (-4, 0), (4, 0), (4, 1), (4, 2)]


def test_gate_and_parameter_position_are_those_of_the_model() -> None:
    x, parameters, mask = make_input()
    model = make_model()
    with torch.no_grad():
        model.encoder.gate_logits.copy_(torch.tensor([3.0, 1.0]).log())
        model.positions[-1].fill_(0.5)
    found = token_diagnostics(model, x, parameters, mask)
    assert torch.allclose(found["gate"], torch.tensor([0.75, 0.25], dtype=torch.float64))
    assert "gate_map" not in found
    assert float(found["parameter_position_norm"]) == pytest.approx((32 * 0.25) ** 0.5)
    assert found["token_shape"].tolist() == [4, 6] and int(found["patch"]) == 4
    assert token_diagnostics(make_model(branches="frame"), x)["gate"].tolist() == [0, 1]
    assert "fourier_rms" not in token_diagnostics(make_model(branches="frame"), x)
    without = token_diagnostics(make_model(parameter_token=False), x)
    assert not any(name.startswith("parameter") for name in without)


def test_a_gate_field_is_a_map_of_the_points() -> None:
    model = make_model(gate="spatial").eval()
    x, parameters, mask = make_input()
    found = token_diagnostics(model, x, parameters, mask)
    clean = torch.where(mask[:, None], x, 0.0)
    alpha = model.encoder.gate(F.pad(clean, (0, 2, 0, 2), mode="replicate"))[:, 0, :14, :22]
    assert torch.allclose(found["gate_map"], alpha)
    assert float(found["gate"][0]) == pytest.approx(alpha.mean().item())


def test_token_errors_by_hand() -> None:
    x, _, known = make_input(1)
    y = x + torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).double()
    known[1, 4:8, 8:12] = False
    poisoned = torch.where(known[:, None], y, torch.nan)
    found = token_errors(poisoned, x, known, 4)
    assert found.shape == (3, 4, 6)
    for b, j, i in [(0, 0, 0), (1, 2, 3), (2, 3, 5), (0, 3, 1)]:
        rows, columns = slice(4 * j, 4 * j + 4), slice(4 * i, 4 * i + 4)
        where = known[b, rows, columns]
        truth, error = x[b, :, rows, columns][:, where], (y - x)[b, :, rows, columns][:, where]
        assert torch.allclose(found[b, j, i], error.norm() / truth.norm())
    assert found.isnan().nonzero().tolist() == [[1, 1, 2]]
    assert torch.allclose(token_errors(y[0], x[0], known[0], 4), found[0])


def test_the_gain_is_positive_where_the_model_beats_its_rival() -> None:
    model = make_model()
    x, parameters, mask = make_input()
    truth = x + 1.0
    prediction, rival = truth + 0.2, truth + 0.1
    rival[:, :, :8] = truth[:, :, :8] + 0.5  # two rows of tokens of four
    found = token_diagnostics(
        model, x, parameters, mask, prediction=prediction, truth=truth, rival=rival
    )
    assert torch.allclose(found["error"], token_errors(prediction, truth, mask, 4))
    assert torch.equal(found["gain"] > 0, torch.arange(4)[:, None].expand(3, 4, 6) < 2)
    assert found["improved"].tolist() == [0.5] * 3
    assert "gain" not in token_diagnostics(model, x, prediction=prediction, truth=truth)


def test_the_wake_token_lies_two_diameters_behind_the_body() -> None:
    grid = Grid((24, 40), dx=0.3, dy=0.2)
    body = torch.zeros(24, 40, dtype=torch.bool)
    body[13:16, 4:9] = True  # 0.6 high, centre in row 14 and column 6: 1.2 behind is column 10
    assert wake_token(body, grid, 4) == (3, 2)
    assert wake_token(body, grid, 5) == (2, 2)
    with pytest.raises(ValueError, match="found none"):
        wake_token(torch.zeros_like(body), grid, 4)


def test_what_cannot_be_shown_is_refused() -> None:
    model = make_model()
    x, _, mask = make_input()
    with pytest.raises(ValueError, match="4 x 6 tokens"):
        token_diagnostics(model, x, query=(4, 0))
    with pytest.raises(ValueError, match="truth"):
        token_diagnostics(model, x, prediction=x)
    with pytest.raises(ValueError, match="NaN"):
        token_errors(torch.full_like(x, torch.nan), x, mask, 4)
