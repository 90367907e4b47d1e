"""Schedule and running mean by hand; moments go back to the parameters they belong to."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from pibert.training.optimizers import (
    RunningMean,
    build_optimizers,
    learning_rate,
    moments,
    set_moments,
    set_rate,
)
from tests.training.setups import make_model

ADAM: dict[str, Any] = {"rate": 1e-2, "weight_decay": 0.1, "betas": (0.9, 0.99)}


def test_the_learning_rate_warms_up_and_falls_as_a_cosine() -> None:
    rates = [learning_rate(step, total=11, warmup=4, peak=0.8, minimum=0.2) for step in range(11)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4] == pytest.approx(0.8)
    assert rates[6] == pytest.approx(0.5 + 0.3 * math.cos(math.pi / 3))
    assert rates[7] == pytest.approx(0.5)
    assert rates[10] == 0.2


@pytest.mark.parametrize(("total", "warmup"), [(1, 0), (1, 1), (3, 3), (2, 5)])
def test_a_schedule_may_be_as_short_as_its_warm_up(total: int, warmup: int) -> None:
    rates = [learning_rate(s, total=total, warmup=warmup, peak=1.0) for s in range(total)]
    assert all(0 < rate <= 1 for rate in rates)


def test_the_running_mean_is_the_recursion_worked_out_by_hand() -> None:
    model = nn.Linear(1, 1, bias=False)
    values = [1.0, 3.0, -2.0, 5.0]
    nn.init.constant_(model.weight, values[0])
    mean = RunningMean(model, 0.15)
    expected = values[0]
    for step, value in enumerate(values[1:], 1):
        nn.init.constant_(model.weight, value)
        mean.update(step)
        decay = (0.1, 0.15, 0.15)[step - 1]  # 1/10, then 2/11 and 3/12 are above the decay
        expected = decay * expected + (1 - decay) * value
    assert mean.named()["weight"].item() == pytest.approx(expected)
    with mean.applied():
        assert model.weight.item() == pytest.approx(expected)
    assert model.weight.item() == 5.0


def test_matrices_decay_and_vectors_do_not() -> None:
    model = make_model()
    (optimizer,) = build_optimizers(model, "adamw", **ADAM)
    decays = {
        id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
    }
    for name, parameter in model.named_parameters():
        assert decays.pop(id(parameter)) == (0.1 if parameter.ndim > 1 else 0.0), name
    assert not decays


def test_muon_takes_matrices_kernels_and_modes_and_adamw_the_rest() -> None:
    model = make_model()
    adam, muon = build_optimizers(model, "muon", **ADAM)
    names = {id(p): name for name, p in model.named_parameters()}
    taken = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    rest = {names[id(p)] for group in adam.param_groups for p in group["params"]}
    assert taken | rest == set(names.values()) and not taken & rest
    assert {"blocks.0.mlp.0.weight", "patch_embedding.weight", "projection.weight"} <= taken
    assert {"positions", "norm.weight", "read_out.weight", "read_out.bias"} <= rest


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_moments_are_restored_by_name_and_the_next_step_is_the_same(name: Any) -> None:
    def stepped(model: nn.Module, optimizers: list[Any], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for key, p in model.named_parameters():
            if not key.startswith("mpp_head"):
                p.grad = torch.randn(p.shape, generator=generator)
        set_rate(optimizers, 1e-3)
        for optimizer in optimizers:
            optimizer.step()

    model = make_model()
    optimizers = build_optimizers(model, name, **ADAM)
    stepped(model, optimizers, 1)
    stored = {key: value.clone() for key, value in moments(optimizers, model).items()}
    assert not any(key.startswith("mpp_head") for key in stored)

    other = make_model()
    other.load_state_dict(model.state_dict())
    others = build_optimizers(other, name, **ADAM)
    set_moments(others, other, dict(reversed(stored.items())))
    stepped(model, optimizers, 2)
    stepped(other, others, 2)
    for key, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[key], value), key


def test_moments_of_an_unknown_parameter_are_refused() -> None:
    model = make_model()
    optimizers = build_optimizers(model, "adamw", **ADAM)
    with pytest.raises(ValueError, match="'nowhere.weight', which this model has not"):
        set_moments(optimizers, model, {"nowhere.weight/exp_avg": torch.zeros(1)})
