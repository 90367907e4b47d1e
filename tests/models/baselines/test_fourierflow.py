"""FourierFlow: its branches and gate, the masked auto-encoder, sampling, and frozen modules."""

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from pibert import FieldSpec
from pibert.models.baselines.dual_branch import (
    DifferentialAttention,
    DualBranch,
    DualBranchConfig,
    FourierMixing,
)
from pibert.models.baselines.fourierflow import (
    FourierFlow,
    FourierFlowConfig,
    MaskedAutoencoder,
    follow_flow,
)
from pibert.models.layers import from_patches, to_patches
from tests.helpers import assert_close, randomise, refused, tiny_spec

SHAPE = (12, 20)
SIZES: dict[str, Any] = {"width": 16, "heads": 2, "depth": 3, "mixers": 2, "blocks": 2}
S, PARAMETERS = torch.tensor([0.5, 0.8]), torch.zeros(2, 16)


def make_branches(*, generative: bool = False, **changes: Any) -> DualBranch:
    config = DualBranchConfig(**SIZES, **changes)
    channels = (2 * config.horizon, 2 * config.history, 2 * config.horizon)
    return DualBranch(config, tiny_spec(SHAPE), channels, generative=generative)


def random_branches(**changes: Any) -> DualBranch:
    return cast(DualBranch, randomise(cast(Any, make_branches(**changes))))


def fields(b: int = 2, channels: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(b, channels, *SHAPE, generator=torch.Generator().manual_seed(seed))


def test_the_gate_weighs_patch_values_of_both_branches_for_all_frames_together() -> None:
    model = random_branches(horizon=2)
    salient, mixed = torch.randn(1, 15, 16), torch.randn(1, 15, 16)
    ours, theirs = (model.head(tokens).view(1, 15, 2, 32) for tokens in (salient, mixed))
    a, b = model.gate.weight[0, :2], model.gate.weight[0, 2:]
    logit = (a[:, None] * theirs + b[:, None] * ours).sum(2) + model.gate.bias
    share = logit.sigmoid()[:, :, None]
    expected = (share * ours + (1 - share) * theirs).view(1, 15, 64)
    assert torch.allclose(model._fused(salient, mixed), expected, atol=1e-5)


def test_the_state_that_is_kept_is_the_best_estimate_of_a_unit_normal() -> None:
    """E[z | z_s] = (1 - s) z_s / ((1 - s)^2 + s^2); without a number g, nothing is kept."""
    model = make_branches(generative=True)
    assert model.kept is not None
    assert not model(fields(), S, fields(seed=1), PARAMETERS)[0].any()
    torch.nn.init.ones_(model.kept.bias)
    found = model(fields(), S, fields(seed=1), PARAMETERS)[0]
    slope = torch.tensor([0.5 / 0.5, 0.2 / 0.68])[:, None, None, None]
    assert torch.allclose(found, slope * fields(), atol=1e-6)


def test_the_output_of_the_branches_is_weighted_by_the_remaining_spread() -> None:
    """The std of z given z_s, s / sqrt((1 - s)^2 + s^2), for a unit normal z."""
    plain, noisy = random_branches(), random_branches(generative=True)
    assert noisy.kept is not None and noisy.added is not None
    noisy.load_state_dict(plain.state_dict(), strict=False)
    for parameter in (*noisy.kept.parameters(), *noisy.added.parameters()):
        torch.nn.init.zeros_(parameter)
    bare, weighted = (model(fields(), S, fields(seed=1), PARAMETERS)[0] for model in (plain, noisy))
    left = torch.tensor([0.5 / 0.5**0.5, 0.8 / 0.68**0.5])[:, None, None, None]
    assert torch.allclose(weighted, left * bare, atol=1e-5)


LATTICE = (3, 5)


def test_attention_is_the_difference_of_two_maps_head_by_head() -> None:
    torch.manual_seed(0)
    layer = DifferentialAttention(8, 2).double()
    with torch.no_grad():
        layer.subtracted.copy_(torch.tensor([0.3, 0.9], dtype=torch.float64))
    x = torch.randn(2, 15, 8, dtype=torch.float64)
    q1, q2, k1, k2, v = layer.project(x).chunk(5, dim=-1)
    neighbours = torch.zeros(15, 15, dtype=torch.float64)
    for i in range(15):
        for j in range(15):
            near = abs(i // 5 - j // 5) <= 1 and abs(i % 5 - j % 5) <= 1
            neighbours[i, j] = float(near)
    neighbours /= neighbours.sum(1, keepdim=True)
    k2 = k2 - neighbours @ k2
    heads = []
    for head, share in ((slice(0, 4), 0.3), (slice(4, 8), 0.9)):
        first = (q1[..., head] @ k1[..., head].mT / 2).softmax(-1)
        second = (q2[..., head] @ k2[..., head].mT / 2).softmax(-1)
        mixed = (first - share * second) @ v[..., head]
        heads.append(mixed / (mixed.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    expected = layer.out(torch.cat(heads, -1))
    assert torch.allclose(layer(x, LATTICE), expected, atol=1e-10)


@pytest.mark.parametrize("shape", [(3, 5), (4, 6), (1, 7), (8, 2)])
def test_mixing_is_two_weighted_maps_of_the_waves(shape: tuple[int, int]) -> None:
    layer: Any = randomise(cast(Any, FourierMixing(4, 2).double()))
    x = torch.randn(2, shape[0] * shape[1], 4, dtype=torch.float64)
    spectrum = torch.fft.rfft2(x.unflatten(1, shape), dim=(1, 2), norm="ortho")
    magnitude, waves = spectrum.abs(), spectrum
    for number, linear in enumerate(layer.maps):
        matrix = torch.block_diag(*torch.view_as_complex(linear.weight.detach()))
        bias = torch.view_as_complex(linear.bias.detach()).flatten()
        waves = waves @ matrix * (1 + layer.gain[number] * magnitude) + bias
        pairs = torch.view_as_real(waves)
        pairs = torch.nn.functional.softshrink(pairs, 0.01) if number else pairs.relu()
        waves = torch.view_as_complex(pairs)
    expected = torch.fft.irfft2(waves, s=shape, dim=(1, 2), norm="ortho").flatten(1, 2)
    assert torch.allclose(layer.mix(x, shape), expected, atol=1e-10)


def make_autoencoder(channels: int = 2, **changes: int) -> MaskedAutoencoder:
    sizes = {"patch": 4, "width": 16, "heads": 2, "encoder_depth": 2, "decoder_depth": 1} | changes
    return MaskedAutoencoder(channels, SHAPE, **sizes)


def random_autoencoder() -> MaskedAutoencoder:
    return cast(MaskedAutoencoder, randomise(cast(Any, make_autoencoder())))


def some_masks(b: int = 3) -> Tensor:
    """Patches hidden as a whole, about half of them."""
    coarse = torch.rand(b, 3, 5, generator=torch.Generator().manual_seed(2)) > 0.5
    return coarse.repeat_interleave(4, 1).repeat_interleave(4, 2)


def test_features_equal_those_without_the_hidden_patches() -> None:
    model = random_autoencoder().double()
    frames, known = torch.randn(3, 2, *SHAPE, dtype=torch.float64), some_masks()
    features, visible = model.features(frames, known)
    assert torch.equal(visible, known[:, ::4, ::4].flatten(1))
    for i in range(3):
        whole = torch.cat((frames[i : i + 1], torch.ones(1, 1, *SHAPE, dtype=torch.float64)), 1)
        tokens = model.embed(to_patches(whole, 4)) + model.positions((3, 5))
        tokens = tokens[:, visible[i]]
        for block in model.encoder:
            tokens = block(tokens)
        assert torch.allclose(features[i, visible[i]], model.norm(tokens)[0], atol=1e-10)


def test_values_at_hidden_points_do_not_matter() -> None:
    model = random_autoencoder()
    frames, known = torch.randn(3, 2, *SHAPE), some_masks()
    known[:, 0, 0] = ~known[:, 0, 0]  # patches may be visible in part
    other = torch.where(known[:, None], frames, float("nan"))
    assert torch.equal(model(frames, known), model(other, known))


def test_an_unknown_frame_gives_finite_values_and_gradients() -> None:
    model = random_autoencoder()
    found = model(torch.randn(2, 2, *SHAPE), torch.zeros(2, *SHAPE, dtype=torch.bool))
    assert found.isfinite().all()
    assert_close(found[0], found[1])
    found.square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


SMALL = FourierFlowConfig(
    **SIZES, align_at=2, sampler_steps=3, draws=3, encoder_depth=1, decoder_depth=1
)


def make(spec: FieldSpec | None = None, **changes: Any) -> FourierFlow:
    return FourierFlow(replace(SMALL, **changes), spec or tiny_spec(SHAPE))


def random(spec: FieldSpec | None = None, **changes: Any) -> FourierFlow:
    return cast(FourierFlow, randomise(cast(Any, make(spec, **changes))).eval())


def test_a_sample_is_euler_on_the_velocity() -> None:
    model = random().double()
    x, parameters = fields().double(), torch.zeros(2, 16, dtype=torch.float64)
    noise = fields(seed=1).double()
    sampled = follow_flow(lambda z, s: model.estimate(z, s, x, parameters)[0], noise, 4)
    state = noise
    for s in (1.0, 0.75, 0.5, 0.25):
        state = state - 0.25 * model.velocity(state, state.new_full((2,), s), x, parameters)[0]
    assert torch.allclose(sampled, state, atol=1e-10)


def test_a_call_is_the_mean_of_samples_that_depend_on_the_input_alone() -> None:
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


def test_pretraining_trains_the_auto_encoder_and_training_all_else() -> None:
    model = make()

    def trained() -> set[bool]:
        named = model.named_parameters()
        return {name.startswith("autoencoder.") for name, p in named if p.requires_grad}

    assert trained() == {False}
    model.prepare_for("pretrain")
    assert trained() == {True}
    model.prepare_for("train")
    assert trained() == {False}
    with refused("align"):
        make(align=0.0).prepare_for("pretrain")


def test_the_auto_encoder_reconstructs_frame_by_frame() -> None:
    model = random(history=2)
    x, mask = fields(2, 4), torch.rand(2, *SHAPE) > 0.3
    found = model.reconstruct(x, None, mask)
    assert model.autoencoder is not None
    for frame in (slice(0, 2), slice(2, 4)):
        expected = model.autoencoder(x[:, frame], mask)
        assert_close(found[:, frame], expected)
    hidden = torch.where(mask[:, None], x, 7.0)
    assert torch.equal(model.reconstruct(hidden, None, mask), found)


def test_the_inside_of_a_body_does_not_change() -> None:
    body = torch.zeros(SHAPE, dtype=torch.bool)
    body[4:7, 5:9] = True
    spec = tiny_spec(SHAPE)
    model = random(replace(spec, grid=replace(spec.grid, body=body)))
    change = model(fields()) - fields()
    assert not change[..., body].any() and change[..., ~body].all()
    assert "body" not in model.state_dict()
    assert model(torch.randn(1, 2, 8, 8)).shape == (1, 2, 8, 8)


def test_gradients_of_uniform_tokens_are_finite() -> None:
    layer = FourierMixing(4, 2)
    torch.nn.init.ones_(layer.gain)
    x = torch.zeros(1, 12, 4, requires_grad=True)
    layer.mix(x, (3, 4)).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_patches_run_row_by_row_and_invert() -> None:
    x = torch.arange(2 * 3 * 5.0).view(1, 2, 3, 5)
    patches = to_patches(x, 2)
    assert patches.shape == (1, 6, 8)
    # The third of the first row is cut from columns 4 and 4 again, of both channels.
    assert patches[0, 2].tolist() == [4, 4, 9, 9, 19, 19, 24, 24]
    assert torch.equal(from_patches(patches, 2, (3, 5)), x)
