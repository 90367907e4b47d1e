"""FourierFlow's backbone: branches and gate, ways of the condition, factors of the flow time."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from pibert.models.baselines.dual_branch import Cond, DualBranch, DualBranchConfig, waves
from tests.helpers import randomise, tiny_spec

SHAPE = (12, 20)
SIZES: dict[str, Any] = {"width": 16, "heads": 2, "depth": 3, "mixers": 2, "blocks": 2}
S, PARAMETERS = torch.tensor([0.5, 0.8]), torch.zeros(2, 16)


def make(cond: Cond = "crossattn", *, keeps_state: bool = False, **changes: Any) -> DualBranch:
    config = DualBranchConfig(**SIZES, **changes)
    channels = (2 * config.horizon, 2 * config.history, 2 * config.horizon)
    return DualBranch(config, tiny_spec(SHAPE), channels, cond, keeps_state=keeps_state)


def random(*args: Any, **changes: Any) -> DualBranch:
    return cast(DualBranch, randomise(cast(Any, make(*args, **changes))))


def fields(seed: int = 0) -> Tensor:
    return torch.randn(2, 2, *SHAPE, generator=torch.Generator().manual_seed(seed))


def branch_alone(model: DualBranch, bias: float) -> None:
    """Set the gate to one of its ends."""
    torch.nn.init.zeros_(model.gate.weight)
    torch.nn.init.constant_(model.gate.bias, bias)


@pytest.mark.parametrize(
    ("bias", "silent", "heard"), [(90.0, "mixing", "salient"), (-90.0, "salient", "mixing")]
)
def test_a_gate_at_its_ends_isolates_the_branches(bias: float, silent: str, heard: str) -> None:
    model = random()
    branch_alone(model, bias)

    def answer() -> Tensor:
        found: Tensor = model(fields(), S, fields(1), PARAMETERS)[0]
        return found

    before = answer()
    with torch.no_grad():
        for parameter in getattr(model, silent).parameters():
            parameter.mul_(1.5)
    assert torch.equal(answer(), before)
    with torch.no_grad():
        for parameter in getattr(model, heard).parameters():
            parameter.mul_(1.5)
    assert not torch.allclose(answer(), before, atol=1e-2)


def test_the_gate_weighs_patch_values_of_both_branches_for_all_frames_together() -> None:
    model = random(horizon=2)
    salient, mixed = torch.randn(1, 15, 16), torch.randn(1, 15, 16)
    ours, theirs = (model.head(tokens).view(1, 15, 2, 32) for tokens in (salient, mixed))
    a, b = model.gate.weight[0, :2], model.gate.weight[0, 2:]
    logit = (a[:, None] * theirs + b[:, None] * ours).sum(2) + model.gate.bias
    share = logit.sigmoid()[:, :, None]
    expected = (share * ours + (1 - share) * theirs).view(1, 15, 64)
    assert torch.allclose(model._fused(salient, mixed), expected, atol=1e-5)


def test_as_queries_alone_the_condition_acts_through_attention_weights_alone() -> None:
    for cond, depends in (("crossattn", False), ("crossattn+add", True)):
        model = random(cond)
        for parameter in model.cross.query.parameters():
            torch.nn.init.zeros_(parameter)  # every query gets the plain mean of the values
        first, second = (model(fields(), S, fields(seed), PARAMETERS)[0] for seed in (1, 2))
        assert torch.allclose(first, second, atol=1e-5) is not depends


def test_state_and_condition_share_an_embedding_where_they_have_as_many_channels() -> None:
    assert make().embed_condition is None
    assert make(history=2, horizon=2).embed_condition is None
    assert make(history=3).embed_condition is not None


@pytest.mark.parametrize("detached", [False, True])
def test_the_mixing_branch_passes_gradients_on_unless_detached(detached: bool) -> None:
    model = random(detached_mixing=detached)
    branch_alone(model, -90.0)  # mixing
    model(fields(), S, fields(1), PARAMETERS)[0].square().mean().backward()
    gradient = model.embed.weight.grad
    assert gradient is not None and bool(gradient.any()) is not detached


@pytest.mark.parametrize("bias", [90.0, -90.0])
def test_both_branches_know_the_flow_time(bias: float) -> None:
    model = random()
    branch_alone(model, bias)
    first, second = (model(fields(), s, fields(1), PARAMETERS)[0] for s in (S, S + 0.1))
    assert not torch.allclose(first, second, atol=1e-3)


def test_the_state_that_is_kept_is_the_best_estimate_of_a_unit_normal() -> None:
    """E[z | z_s] = (1 - s) z_s / ((1 - s)^2 + s^2); without a number g, nothing is kept."""
    model = make(keeps_state=True)
    assert model.kept is not None
    assert not model(fields(), S, fields(1), PARAMETERS)[0].any()
    torch.nn.init.ones_(model.kept.bias)
    found = model(fields(), S, fields(1), PARAMETERS)[0]
    slope = torch.tensor([0.5 / 0.5, 0.2 / 0.68])[:, None, None, None]
    assert torch.allclose(found, slope * fields(), atol=1e-6)


def test_what_the_branches_say_counts_by_the_spread_that_is_left() -> None:
    """Its std where z_s is known, s / sqrt((1 - s)^2 + s^2), for a unit normal z."""
    plain, noisy = random(), random(keeps_state=True)
    assert noisy.kept is not None
    noisy.load_state_dict(plain.state_dict(), strict=False)
    for parameter in noisy.kept.parameters():
        torch.nn.init.zeros_(parameter)
    bare, weighted = (model(fields(), S, fields(1), PARAMETERS)[0] for model in (plain, noisy))
    left = torch.tensor([0.5 / 0.5**0.5, 0.8 / 0.68**0.5])[:, None, None, None]
    assert torch.allclose(weighted, left * bare, atol=1e-5)


def test_features_are_taken_after_the_block_that_is_asked_for() -> None:
    model = random()
    taken: list[Tensor] = []
    for block in model.salient:
        block.register_forward_hook(lambda module, inputs, output: taken.append(output))
    for asked, place in ((1, 0), (2, 1), (None, 2)):
        taken.clear()
        assert torch.equal(model(fields(), S, fields(1), PARAMETERS, asked)[1], taken[place])


def test_waves_tell_flow_times_apart_and_have_any_width() -> None:
    s = torch.linspace(0, 1, 100, dtype=torch.float64)
    numbers = waves(s, 17)
    assert numbers.shape == (100, 17) and not numbers[:, -1].any()
    assert torch.pdist(numbers).min() > 1e-2
