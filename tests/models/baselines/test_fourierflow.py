"""FourierFlow: size, sampler, branches and gate, draws, what is frozen; and its regressor."""

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from pibert import FieldSpec
from pibert.models import count_parameters
from pibert.models.baselines.dual_branch import DualBranchConfig
from pibert.models.baselines.fourierflow import (
    DET_PRESETS,
    PRESETS,
    FourierFlow,
    FourierFlowConfig,
    FourierFlowDet,
    draw,
)
from tests.helpers import assert_close, randomise, tiny_spec

SHAPE = (12, 20)
SIZES: dict[str, Any] = {
    "width": 16,
    "heads": 2,
    "depth": 3,
    "mixers": 2,
    "blocks": 2,
}
SMALL = FourierFlowConfig(
    **SIZES, align_at=2, sampler_steps=3, draws=3, encoder_depth=1, decoder_depth=1
)


def make(spec: FieldSpec | None = None, **changes: Any) -> FourierFlow:
    return FourierFlow(replace(SMALL, **changes), spec or tiny_spec(SHAPE))


def random(spec: FieldSpec | None = None, **changes: Any) -> FourierFlow:
    return cast(FourierFlow, randomise(cast(Any, make(spec, **changes))).eval())


def random_det(**changes: Any) -> FourierFlowDet:
    model = FourierFlowDet(DualBranchConfig(**SIZES, **changes), tiny_spec(SHAPE))
    return cast(FourierFlowDet, randomise(cast(Any, model)).eval())


def fields(b: int = 2, channels: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(b, channels, *SHAPE, generator=torch.Generator().manual_seed(seed))


def test_the_base_preset_is_within_half_a_percent_of_the_published_size() -> None:
    model = FourierFlow(PRESETS["base"], FieldSpec())
    assert count_parameters(model) == 2_770_309
    assert abs(count_parameters(model) / 2_777_282 - 1) < 0.005
    # The frozen auto-encoder is not counted; its size belongs in a table of costs.
    model.prepare_for("pretrain")
    assert count_parameters(model) == 1_266_208
    with_reynolds = FourierFlow(replace(PRESETS["base"], parameters=True), tiny_spec((64, 64)))
    assert count_parameters(with_reynolds) == 2_770_309 + 256


def test_the_regressor_lacks_the_alignment_and_the_ways_of_the_condition_and_the_state() -> None:
    model = FourierFlowDet(DET_PRESETS["base"], FieldSpec())
    assert count_parameters(model) == 2_770_309 - 3 * 16_512 - 4_224 - 258


@pytest.mark.parametrize("frames", [(1, 1), (3, 2), (1, 2)])
@pytest.mark.parametrize("kind", ["flow", "regressor"])
def test_an_untrained_model_is_persistence_exactly(kind: str, frames: tuple[int, int]) -> None:
    sizes: dict[str, Any] = {"history": frames[0], "horizon": frames[1]}
    model: Any = make(**sizes)
    if kind == "regressor":
        model = FourierFlowDet(DualBranchConfig(**SIZES, **sizes), tiny_spec(SHAPE))
    x = fields(2, 2 * frames[0])
    expected = x[:, -2:].repeat(1, frames[1], 1, 1)
    assert torch.equal(model(x), expected)
    if kind == "flow":
        model.set_increment_scale(torch.tensor([0.1, 0.3]))
        assert torch.equal(model(x), expected)
        assert torch.equal(model.samples(x, draws=2)[:, 1], expected)


def test_without_the_skip_the_untrained_answer_is_the_mean_frame() -> None:
    assert not make(residual=False)(fields()).any()
    assert not FourierFlowDet(DualBranchConfig(**SIZES, residual=False), tiny_spec(SHAPE))(
        fields()
    ).any()


def gaussian_velocity(state: Tensor, s: Tensor, mean: float, std: float) -> Tensor:
    """E[eps - z | z_s] where z is normal: a straight regression of eps - z on z_s."""
    t = s[:, None, None, None]
    slope = (t - (1 - t) * std**2) / (t**2 + (1 - t) ** 2 * std**2)
    return slope * (state - (1 - t) * mean) - mean


def test_the_sampler_recovers_mean_and_variance_of_a_normal_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(500, 1, 8, 10, dtype=torch.float64, generator=generator)
    noise = (noise - noise.mean()) / noise.std()
    errors = {}
    for steps in (50, 100, 400):
        drawn = draw(
            lambda z, s: z - s[:, None, None, None] * gaussian_velocity(z, s, 1.7, 0.4),
            noise,
            steps,
        )
        assert drawn.mean().item() == pytest.approx(1.7, abs=1e-6)
        errors[steps] = abs(drawn.std().item() - 0.4)
    assert errors[400] < 4e-3
    assert errors[50] / errors[100] == pytest.approx(2, rel=0.1)  # Euler is of first order


def test_a_draw_is_euler_on_the_velocity() -> None:
    model = random().double()
    x, parameters = fields().double(), torch.zeros(2, 16, dtype=torch.float64)
    noise = fields(seed=1).double()
    drawn = draw(lambda z, s: model.estimate(z, s, x, parameters)[0], noise, 4)
    state = noise
    for s in (1.0, 0.75, 0.5, 0.25):
        state = state - 0.25 * model.velocity(state, state.new_full((2,), s), x, parameters)[0]
    assert torch.allclose(drawn, state, atol=1e-10)


@pytest.mark.parametrize("kind", ["flow", "regressor"])
def test_the_samples_of_a_batch_may_be_permuted_and_parted(kind: str) -> None:
    model: Any = random(parameters=True) if kind == "flow" else random_det(parameters=True)
    x, parameters = fields(4), torch.randn(4, 1)
    whole, order = model(x, parameters), [2, 0, 3, 1]
    assert_close(model(x[order], parameters[order]), whole[order])
    assert_close(model(x[1:2], parameters[1:2]), whole[1:2])
    assert not torch.allclose(whole, model(x, parameters.flip(0)), atol=1e-3)


def test_a_call_is_the_mean_of_draws_that_depend_on_nothing_but_the_input() -> None:
    model = random()
    torch.manual_seed(1)
    first = model.samples(fields(), draws=3)
    torch.manual_seed(2)
    assert torch.equal(model.samples(fields(), draws=3), first)
    assert_close(first.mean(1), model(fields()))
    assert_close(model.samples(fields(), draws=5)[:, :3], first)
    assert first.std(1).mean() > 1e-2
    assert first.shape == (2, 3, 2, *SHAPE)


def test_the_change_is_proportional_to_the_scale_of_increments() -> None:
    model, x = random().double(), fields().double()
    once = model(x) - x
    model.set_increment_scale(torch.tensor([0.5, 4.0]))
    scale = torch.tensor([0.5, 4.0])[:, None, None]
    assert torch.allclose(model(x) - x, once * scale, atol=1e-10)
    target = fields(seed=3).double()
    assert torch.allclose(model.to_clean(target, x) * scale + x, target)
    assert model.state_dict()["increment_scale"].tolist() == [0.5, 4.0]


@pytest.mark.parametrize("scale", [[1.0], [1.0, 0.0], [1.0, float("nan")]])
def test_scales_that_make_no_sense_are_refused(scale: list[float]) -> None:
    with pytest.raises(ValueError, match="scales, found"):
        make().set_increment_scale(torch.tensor(scale))


def test_the_inside_of_a_body_is_left_alone() -> None:
    body = torch.zeros(SHAPE, dtype=torch.bool)
    body[4:7, 5:9] = True
    spec = tiny_spec(SHAPE)
    model = random(replace(spec, grid=replace(spec.grid, body=body)))
    change = model(fields()) - fields()
    assert not change[..., body].any() and change[..., ~body].all()
    assert "body" not in model.state_dict()
    assert model(torch.randn(1, 2, 8, 8)).shape == (1, 2, 8, 8)


@pytest.mark.parametrize("kind", ["flow", "regressor"])
def test_the_output_depends_on_a_far_pixel(kind: str) -> None:
    model: Any = random() if kind == "flow" else random_det()
    x = fields(1).requires_grad_()
    model(x)[0, 0, 0, 0].backward()
    assert x.grad is not None and x.grad[0, :, -1, -1].all()


def test_parameters_enter_when_asked_for() -> None:
    for enters in (False, True):
        model = random(parameters=enters)
        first, second = (model(fields(), torch.full((2, 1), value)) for value in (0.0, 1.0))
        assert torch.equal(first, second) is not enters


@pytest.mark.parametrize("shape", [(9, 7), (16, 32), (12, 22), (3, 5)])
@pytest.mark.parametrize("kind", ["flow", "regressor"])
def test_other_grids_work(kind: str, shape: tuple[int, int]) -> None:
    model: Any = random() if kind == "flow" else random_det()
    out = model(torch.randn(2, 2, *shape))
    assert out.shape == (2, 2, *shape) and out.isfinite().all()


def test_pretraining_is_of_the_auto_encoder_alone_and_training_of_the_rest() -> None:
    model = make()

    def trained() -> set[bool]:
        named = model.named_parameters()
        return {name.startswith("autoencoder.") for name, p in named if p.requires_grad}

    assert trained() == {False}
    model.prepare_for("pretrain")
    assert trained() == {True}
    model.prepare_for("train")
    assert trained() == {False}
    with pytest.raises(ValueError, match="set align above 0"):
        make(align=0.0).prepare_for("pretrain")


def test_reconstruction_is_the_auto_encoders_frame_by_frame() -> None:
    model = random(history=2)
    x, mask = fields(2, 4), torch.rand(2, *SHAPE) > 0.3
    found = model.reconstruct(x, None, mask)
    assert model.autoencoder is not None
    for frame in (slice(0, 2), slice(2, 4)):
        expected = model.autoencoder(x[:, frame], mask)
        assert_close(found[:, frame], expected)
    hidden = torch.where(mask[:, None], x, 7.0)
    assert torch.equal(model.reconstruct(hidden, None, mask), found)


def test_autocast_stays_close() -> None:
    for model in (random(), random_det()):
        with torch.no_grad():
            full = model(fields())
            with torch.autocast("cpu", torch.bfloat16):
                half = model(fields())
        assert (half - full).norm() < 2e-2 * full.norm() and half.dtype == torch.float32


def test_nothing_branches_on_values(no_shape_checks: None) -> None:
    """What traces as one graph waits for no value and can be recorded."""
    model = random()
    traced: Any = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        assert_close(traced(fields()), model(fields()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cond": "add"}, "crossattn\\+add"),
        ({"freq_weight": "power"}, "magnitude, wavenumber"),
        ({"align_at": 4}, "from 1 to depth = 3"),
        ({"align": -1.0}, "align weight"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"blocks": 3}, "multiple of blocks = 3"),
    ],
)
def test_wrong_options_are_refused(
    options: dict[str, Any], message: str, no_shape_checks: None
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **options)
