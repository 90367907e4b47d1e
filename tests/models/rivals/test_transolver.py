"""Transolver: size, its attention against the plain sums, what slices are, linear memory."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert import FieldSpec, Grid
from pibert.models import count_parameters
from pibert.models.rivals.transolver import PRESETS, PhysicsAttention, Transolver, TransolverConfig
from tests.models.stepping import CHECKS

COUNTS = {"base": 1_552_418, "small": 296_830}
SMALL: dict[str, Any] = {"width": 16, "heads": 2, "depth": 2, "slices": 5}


def make(spec: FieldSpec, **options: Any) -> Transolver:
    return Transolver(TransolverConfig(**(SMALL | options)), spec)


@pytest.mark.parametrize("check", CHECKS)
def test_it_is_a_model_of_the_next_frame(check: str) -> None:
    torch.manual_seed(0)
    CHECKS[check](make)


def test_presets_have_the_stated_number_of_parameters() -> None:
    assert next(iter(PRESETS)) == "base"
    found = {name: count_parameters(Transolver(PRESETS[name], FieldSpec())) for name in PRESETS}
    assert found == COUNTS
    assert abs(found["base"] / 1_552_546 - 1) < 0.005


def attention(**options: Any) -> PhysicsAttention:
    torch.manual_seed(0)
    return PhysicsAttention(TransolverConfig(**(SMALL | options)), Grid((6, 9))).double()


def by_hand(layer: PhysicsAttention, tokens: Tensor) -> Tensor:
    """Physics attention of one sample, head by head and slice by slice."""
    field = tokens.permute(2, 0, 1)[None]
    features = layer.features(field)[0].flatten(1).T  # (n, d)
    assigning = layer.assigning(field)[0].flatten(1).T
    answers = []
    for head in range(layer.heads):
        own = slice(8 * head, 8 * head + 8)
        tau = layer.log_temperature[head].exp()
        weights = (layer.to_slices(assigning[:, own]) / tau).softmax(1)
        z = torch.stack(
            [(w[:, None] * features[:, own]).sum(0) / w.sum() for w in weights.T]
        )  # (m, e)
        logits = layer.to_query(z) @ layer.to_key(z).T / math.sqrt(8)
        answers.append(weights @ (logits.softmax(1) @ layer.to_value(z)))
    return layer.join(torch.cat(answers, dim=1)).view(tokens.shape)


def test_physics_attention_is_what_its_equations_say() -> None:
    layer = attention()
    with torch.no_grad():
        layer.log_temperature.copy_(torch.tensor([-0.3, 0.4])[:, None, None])
    tokens = torch.randn(2, 6, 9, 16, dtype=torch.float64)
    expected = torch.stack([by_hand(layer, sample) for sample in tokens])
    assert torch.allclose(layer(tokens), expected, atol=1e-12)


def test_every_point_belongs_to_slices_that_add_up_to_one() -> None:
    weights = attention().slice_weights(torch.randn(2, 16, 6, 9, dtype=torch.float64))
    assert weights.shape == (2, 2, 54, 5) and weights.min() > 0
    assert torch.allclose(weights.sum(-1), torch.ones(2, 2, 54, dtype=torch.float64))


def test_a_lower_temperature_makes_slices_harder() -> None:
    layer, field = attention(), torch.randn(1, 16, 6, 9, dtype=torch.float64)
    found = []
    for temperature in (2.0, 0.5, 0.01):
        with torch.no_grad():
            layer.log_temperature.fill_(math.log(temperature))
            found.append(layer.slice_weights(field).max(-1).values.mean())
    assert found[0] < found[1] < found[2] and found[2] > 0.95


def test_one_slice_gives_every_point_the_same_answer() -> None:
    answer = attention(slices=1)(torch.randn(1, 6, 9, 16, dtype=torch.float64))
    assert torch.allclose(answer, answer[:, :1, :1].expand_as(answer), atol=1e-12)


def test_memory_grows_with_the_points_not_with_their_square() -> None:
    """What a training step keeps, of a quarter of the grid and of all 64 x 64 points."""
    model = Transolver(TransolverConfig(depth=1), FieldSpec())
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    totals = []
    for n in (32, 64):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model(torch.randn(1, 2, n, n))
        totals.append(sum(kept))
    assert totals[1] < 4.05 * totals[0]
    assert max(kept) <= 8 * 4096 * 32


def test_on_a_periodic_grid_the_attention_moves_with_the_field() -> None:
    torch.manual_seed(0)
    layer = PhysicsAttention(TransolverConfig(**SMALL), Grid.periodic((6, 9))).double()
    tokens = torch.randn(1, 6, 9, 16, dtype=torch.float64)
    moved = layer(tokens.roll((2, 5), (1, 2)))
    assert torch.allclose(moved, layer(tokens).roll((2, 5), (1, 2)), atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "width must be a multiple of heads, found 128 and 3"),
        ({"slices": 0}, "slices must be at least 1, found 0"),
        ({"temperature": -1.0}, "temperature must be positive, found -1.0"),
    ],
)
def test_a_wrong_choice_says_what_was_expected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransolverConfig(**options)
