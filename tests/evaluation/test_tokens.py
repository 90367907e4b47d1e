"""Token diagnostics: against loops, transforms of the branch itself, and the model's own output."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pibert.comparison.plan import Job
from pibert.comparison.rows import _insights
from pibert.data.dataset import Samples, Window
from pibert.data.splits import Segment
from pibert.evaluation.alignment import alignment
from pibert.evaluation.insight import (
    fourier_weight_rms,
    insight,
    token_diagnostics,
    token_errors,
)
from pibert.evaluation.scores import Scores
from pibert.fields import Normalizer
from pibert.inference import Predictor
from pibert.models.fourier import FourierBranch
from tests.comparison.setups import wave
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


def test_attention_maps_are_rows_and_column_means_of_the_weights() -> None:
    model = make_model().train()
    x, parameters, mask = make_input()
    found = token_diagnostics(model, x, parameters, mask)
    inputs: list[Any] = []
    model.eval().blocks[1].register_forward_pre_hook(lambda _, seen: inputs.append(seen))
    model.encode(x, parameters, mask)
    block = model.blocks[1]
    weights = block.attention.weights(block.norm_attention(inputs[0][0]), inputs[0][1]).mean(1)
    assert found["attention"].shape == found["received"].shape == (3, 2, 4, 6)
    query = found["query"][:, 0] * 6 + found["query"][:, 1]
    rows = weights[torch.arange(3), query]
    assert torch.allclose(found["attention"][:, 1].flatten(1), rows[:, :24])
    assert torch.allclose(found["received"][:, 1].flatten(1), weights.mean(1)[:, :24])
    assert torch.allclose(found["parameter_attention"][:, 1], rows[:, 24])
    for name in ("attention", "received"):
        total = found[name].sum((-2, -1)) + found[f"parameter_{name}"]
        assert torch.allclose(total, torch.ones_like(total))


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


@pytest.mark.parametrize(
    ("modes", "shape"), [(3, (13, 9)), (4, (12, 10)), (5, (10, 8)), (4, (8, 4)), (6, (13, 6))]
)
def test_the_weight_map_is_the_response_to_single_waves(modes: int, shape: tuple[int, int]) -> None:
    """A wave at k comes out with the amplitude of W(k): measured with the branch itself."""
    ny, nx = shape
    branch = FourierBranch(2, 3, modes, shape).double()
    rms, ky, kx = fourier_weight_rms(branch, shape)
    assert rms.shape == (len(ky), len(kx))
    points = torch.zeros(2, 2, ny, nx, dtype=torch.float64)
    points[0, 0, 0, 0] = points[1, 1, 0, 0] = 1.0  # all waves at once, channel by channel
    with torch.no_grad():
        measured = torch.fft.fft2(branch(points)).abs().square().mean((0, 1)).sqrt()
    stated = torch.zeros_like(measured)
    stated[(ky % ny).long()[:, None], (kx % nx).long()] = rms.nan_to_num().double()
    assert torch.allclose(measured, stated, atol=1e-12)
    assert (measured > 1e-12).sum() == (~rms.isnan()).sum()


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
    assert token_diagnostics(make_model(branches="wavelet"), x)["gate"].tolist() == [0, 1]
    assert "fourier_rms" not in token_diagnostics(make_model(branches="wavelet"), x)
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


# Diagnostics beside the scores


NORMALIZER = Normalizer((1.0, 0.0), (0.6, 0.2))


def seen(name: str, count: int = 4, frames: int = 8, **options: Any) -> Any:
    """Card, arrays, the model and the samples that are its own."""
    trajectories = [wave(number, frames) for number in range(count)]
    model = randomise(tiny_model(name, trajectories[0].spec, **options)).eval()
    predictor = Predictor(model, NORMALIZER)
    samples = Samples(trajectories, window=Window(history=2), normalizer=NORMALIZER)
    later = [Segment(number, 1, None) for number in range(count)]
    own = Samples(trajectories, later, window=Window(history=1), normalizer=NORMALIZER)
    return *insight(predictor, samples, own, 0), model, own


def test_point_embeddings_are_scored_on_tokens_beside_untrained_ones() -> None:
    card, arrays, model, own = seen("pibert-mr")
    facts = card["embedding"]
    assert facts["width"] == model.config.width
    assert (facts["patch"], facts["samples"]) == (4, 4 * 6)
    assert facts["layer"] == model.embedded
    names = ["alignment", "alignment_untrained", "alignment_input", "alignment_input_mean"]
    assert [name for name in arrays if name.startswith("alignment")] == names
    expected = list(alignment(model, own, patch=4).values())
    assert arrays["alignment"].tolist() == pytest.approx(expected)
    assert not torch.allclose(arrays["alignment"], arrays["alignment_untrained"])
    records = list(
        _insights(Job(data="waves", candidate="pibert-mr", seed=0), Scores(card, arrays))
    )
    by_name = {(r["metric"], r["component"]): r["value"] for r in records}
    assert by_name["alignment_r2", "scale 4"] == pytest.approx(expected[2])
    assert len(by_name) == 16


def test_other_models_have_no_embedding_and_a_short_test_split_is_noted() -> None:
    card, arrays, *_ = seen("fno2d")
    assert not card and not arrays
    card, arrays, *_ = seen("pibert-mr", count=1, frames=3)
    assert "both sides of a gap" in card["embedding"]["missing"]
    assert not any(name.startswith("alignment") for name in arrays)
