"""PITT: size, persistence, what the text does, what it must not do, any grid."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.fields import FieldSpec, Grid, Parameter
from pibert.models import count_parameters
from pibert.models.baselines.equation_text import PAD
from pibert.models.baselines.pitt import PITT, PRESETS, PITTConfig, PITTConstant, Update
from tests.helpers import assert_close, randomise, tiny_spec

SHAPE = (20, 26)
SMALL: dict[str, Any] = {
    "width": 16,
    "patch": 4,
    "slot_width": 24,
    "base_modes": 3,
    "base_depth": 2,
}


def make(cls: type[PITT] = PITT, spec: FieldSpec | None = None, **options: Any) -> Any:
    """A small model on non-square cells and grid, with weights none of which is zero."""
    model: Any = cls(PITTConfig(**(SMALL | options)), spec or tiny_spec(SHAPE))
    return randomise(model).eval()


def reynolds(model: PITT, *values: float) -> Tensor:
    return model.spec.encode_parameters({"Re": torch.tensor(values)})


def fields(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_base_preset_is_within_a_hundredth_of_a_percent_of_the_published_count() -> None:
    model = PITT(PRESETS["base"], FieldSpec(family="incompressible"))
    assert count_parameters(model.base) == 111_602
    assert count_parameters(model) == 216_914
    assert abs(216_914 / 216_898 - 1) < 1e-4


@pytest.mark.parametrize("options", [{}, {"history": 3, "horizon": 2}, {"parameters": True}])
def test_an_untrained_model_is_persistence_exactly(options: dict[str, Any]) -> None:
    model = PITT(PITTConfig(**(SMALL | options)), tiny_spec(SHAPE))
    x = fields(2, model.in_channels, *SHAPE)
    last = x[:, -2:].repeat(1, options.get("horizon", 1), 1, 1)
    assert torch.equal(model(x, torch.zeros(2, 1)), last)


def test_without_the_skip_an_untrained_correction_leaves_the_base_operator() -> None:
    model = PITT(PITTConfig(**SMALL, residual=False), tiny_spec(SHAPE))
    x = fields(2, 2, *SHAPE)
    assert torch.equal(model(x), model.base_only(x)) and not torch.equal(model(x), x)


def test_the_increment_is_the_same_with_and_without_the_skip() -> None:
    """What the corrector sees is the base operator's answer less the last frame, either way."""
    seen: list[Tensor] = []
    for residual in (True, False):
        model = make(residual=residual)
        model.corrector.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        x = fields(2, 2, *SHAPE)
        model(x)
        expected = model.base_only(x) - x
        assert_close(seen[-1], expected)


def test_a_digit_of_the_reynolds_number_changes_the_output() -> None:
    model, x = make(), fields(2, 2, *SHAPE)
    a, b, c = (model(x, reynolds(model, re, re)) for re in (2000.0, 2100.0, 2000.04))
    assert (a - b).norm() > 1e-4 * a.norm()
    assert torch.equal(a, c)  # the same four digits
    assert torch.equal(model.base_only(x, reynolds(model, 1.0, 2.0)), model.base_only(x))


def test_an_unknown_parameter_is_another_text_than_the_mean() -> None:
    model, x = make(), fields(2, 2, *SHAPE)
    unknown = model(x, torch.full((2, 16), math.nan))
    assert torch.equal(unknown, model(x)) and torch.isfinite(unknown).all()
    assert not torch.allclose(unknown, model(x, torch.zeros(2, 16)))
    assert not torch.allclose(unknown, model(x, torch.zeros(2, 1)))


def test_what_a_padding_holds_does_not_change_the_output() -> None:
    model, x = make(), fields(3, 2, *SHAPE)
    parameters = reynolds(model, 100.0, 2e4, 77.0)
    parameters[1] = math.nan  # paddings in the middle of the text
    before = model(x, parameters)
    assert (model.tokens(parameters) == PAD).any(1).all()
    with torch.no_grad():
        model.corrector.embedding.weight[PAD] = 50.0
    assert torch.equal(model(x, parameters), before)
    with torch.no_grad():
        model.corrector.embedding.weight[PAD + 1] += 1.0
    changed = (model(x, parameters) - before).flatten(1).norm(dim=1)
    assert changed[1] > 1e-4 and not changed[[0, 2]].any()  # the word "unknown"


def test_without_updates_the_base_operator_is_all_there_is() -> None:
    model, x = make(updates=0), fields(2, 2, *SHAPE)
    parameters = reynolds(model, 50.0, 1000.0)
    assert torch.equal(model(x, parameters), model.base_only(x, parameters))
    assert count_parameters(model) == count_parameters(model.base)
    corrected = make()
    assert not torch.allclose(corrected(x, parameters), corrected.base_only(x, parameters))


def test_the_control_has_the_same_weights_and_hears_nothing_of_the_sample() -> None:
    model, control = make(), make(PITTConstant)
    control.load_state_dict(model.state_dict())
    x, parameters = fields(2, 2, *SHAPE), reynolds(model, 60.0, 9000.0)
    assert torch.equal(control(x, parameters), control(x, parameters.flip(0)))
    assert torch.equal(control(x, parameters), control(x))
    mean = torch.zeros(2, 1)
    assert torch.equal(control(x, parameters), model(x, mean))
    assert not torch.allclose(model(x, parameters), model(x, parameters.flip(0)))


def test_the_control_still_lets_the_base_operator_see_parameters_where_asked() -> None:
    control = make(PITTConstant, parameters=True)
    x = fields(1, 2, *SHAPE)
    assert not torch.allclose(control(x, torch.zeros(1, 1)), control(x, torch.ones(1, 1)))


def test_an_update_is_the_linear_attention_of_its_equation() -> None:
    """Against loops over words and heads, in float64."""
    update: Any = randomise(Update(6, 2, 5, 7).double())
    q, k, slots = fields(3, 2, 5, 6).double()
    time, words = (
        fields(2, 1, 6, seed=1).double(),
        torch.tensor([[True] * 5, [True] * 3 + [False] * 2]),
    )
    found = update(q, k, slots, time, words)
    queries, keys = update.query(q), update.norm_key(update.key(k))
    values = update.norm_value(update.value(slots))
    for b in range(2):
        n = int(words[b].sum())
        mixed = torch.zeros(5, 6, dtype=torch.float64)
        for head in (slice(0, 3), slice(3, 6)):
            share = sum(torch.outer(keys[b, j, head], values[b, j, head]) for j in range(n)) / n
            for i in range(n):
                mixed[i, head] = queries[b, i, head] @ share
        stacked = torch.cat((update.out(mixed), time[b]))
        expected = update.mix(stacked.T).T
        torch.testing.assert_close(found[b], expected)


def test_later_updates_see_a_later_time() -> None:
    model, times = make(updates=2, horizon=3), []
    model.corrector.time.register_forward_pre_hook(lambda _, inputs: times.append(inputs[0].item()))
    model(fields(1, 2, *SHAPE))
    assert times == [1.5, 3.0]


def test_far_pixels_reach_each_other_through_the_correction() -> None:
    model = make(base_modes=1).double()
    with torch.no_grad():
        for layer in model.base.spectral:
            layer.weight.zero_()  # a base operator of single points
    x = fields(1, 2, *SHAPE).double().requires_grad_()
    model(x)[0, 0, 1, 1].backward()
    assert x.grad is not None and x.grad[0, :, -2, -2].abs().min() > 0


@pytest.mark.parametrize("shape", [(64, 64), (20, 26), (7, 33), (5, 3)])
def test_any_grid_works_and_other_resolutions_than_the_specs_too(shape: tuple[int, int]) -> None:
    for spec in (tiny_spec(shape), tiny_spec(SHAPE)):
        y = make(spec=spec)(fields(2, 2, *shape))
        assert y.shape == (2, 2, *shape) and torch.isfinite(y).all()


@pytest.mark.parametrize("family", ["heat", "wave", "gray-scott", "euler", None])
def test_other_families_have_their_text(family: str | None) -> None:
    channels = {"euler": ("rho", "u", "v", "p"), "gray-scott": ("a", "b")}.get(family or "", ("u",))
    spec = FieldSpec(channels=channels, family=family, grid=Grid(SHAPE, dx=0.3, dy=0.2), dt=0.1)
    names = {"heat": "diffusivity", "wave": "speed", "gray-scott": "feed", "euler": "gamma"}
    spec = replace(spec, parameters=(Parameter(name=names.get(family or "", "size")),))
    model = make(spec=spec)
    x = fields(1, len(channels), *SHAPE)
    a, b = (model(x, torch.full((1, 1), value)) for value in (0.31, 0.32))
    assert a.shape == x.shape and not torch.allclose(a, b, rtol=0, atol=1e-7)


def test_samples_do_not_leak_into_each_other_and_every_weight_learns() -> None:
    model = make(heads=2)
    x, parameters = fields(3, 2, *SHAPE), reynolds(model, 100.0, 2e3, 7.0)
    parameters[2] = math.nan
    whole = model(x, parameters)
    alone = torch.cat([model(x[i : i + 1], parameters[i : i + 1]) for i in range(3)])
    assert_close(whole, alone)
    whole.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_double_weights_autocast_and_one_graph(no_shape_checks: None) -> None:
    model, x = make(), fields(2, 2, *SHAPE)
    parameters = reynolds(model, 100.0, 2e3)
    with torch.no_grad():
        expected = model(x, parameters)
        with torch.autocast("cpu", torch.bfloat16):
            half = model(x, parameters)
        assert (half - expected).norm() < 3e-2 * expected.norm()
        program = torch.export.export(model, (x, parameters))
        assert_close(program.module()(x, parameters), expected)
        double = model.double()(x.double(), parameters.double())
        assert_close(double.float(), expected, rtol=1e-4)


def test_wrong_choices_are_named() -> None:
    with pytest.raises(ValueError, match="updates must be 0 or more, found -1"):
        PITTConfig(updates=-1)
    with pytest.raises(ValueError, match="multiple of heads, found 48 and 5"):
        PITTConfig(heads=5)
    with pytest.raises(ValueError, match="base_depth must be at least 1, found 0"):
        PITTConfig(base_depth=0)
    with pytest.raises(ValueError, match="21 words, found 8; take more tokens"):
        PITT(PITTConfig(tokens=8), FieldSpec(family="incompressible"))
