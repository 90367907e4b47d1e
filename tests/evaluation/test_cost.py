"""What a model costs, of models whose size and arithmetic are counted by hand."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pibert.evaluation.cost import count_parameters, measure_cost
from pibert.fields import Normalizer
from pibert.predictor import save_model
from tests.helpers import tiny_model, tiny_spec

SPEC = tiny_spec((6, 10))


class Clock:
    """Shows the time that models say they take, however busy the machine is."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


clock = Clock()


@pytest.fixture(autouse=True)
def timed_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pibert.evaluation.cost.time", clock)


@dataclass(frozen=True)
class SamplerConfig:
    history: int = 2
    sampler_steps: int = 4
    draws: int = 3


class Mixes(nn.Module):
    """A layer over channels, called as often as a sampler has steps."""

    def __init__(self, config: Any, pause: float = 0.0) -> None:
        super().__init__()
        self.config, self.pause = config, pause
        self.layer = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(7))
        self.sizes: list[int] = []
        self.was_training = False

    def forward(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
        clock.sleep(self.pause)
        self.sizes.append(len(x))
        self.was_training |= self.training or torch.is_grad_enabled()
        assert parameters.shape == (len(x), 16) and mask.shape == (len(x), 6, 10)
        for _ in range(self.config.sampler_steps):
            x = self.layer(x.movedim(1, -1)).movedim(-1, 1)
        return x


class Same(nn.Module):
    """No weights."""

    def forward(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
        return x


def test_weights_and_arithmetic_are_counted_as_by_hand(tmp_path: Path) -> None:
    model = Mixes(SamplerConfig())
    cost = measure_cost(model, SPEC, "cpu", (1, 3), seconds=0.01)
    assert cost.parameters == cost.trainable == 20
    # Four steps of a 4 by 4 product at each of 60 points; a product and a sum are two.
    assert cost.flops == 4 * 2 * 16 * 60
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    assert cost.checkpoint_bytes == (tmp_path / "model.safetensors").stat().st_size
    assert (cost.sampler_steps, cost.draws, cost.grid) == (4, 3, (6, 10))


def test_a_frozen_weight_is_a_parameter_that_is_not_trained() -> None:
    model = Mixes(SamplerConfig())
    model.layer.bias.requires_grad_(False)
    assert count_parameters(model) == 20 and count_parameters(model, trainable=True) == 16


def test_a_complex_weight_is_two_numbers() -> None:
    model = Same()
    model.register_parameter("weight", nn.Parameter(torch.zeros(3, 5, dtype=torch.complex64)))
    cost = measure_cost(model, SPEC, "cpu", (1,), seconds=0.0)
    assert cost.parameters == 30 and cost.checkpoint_bytes > 30 * 4


def test_time_is_that_of_a_sample_after_warming_up() -> None:
    model = Mixes(SamplerConfig(), pause=0.02)
    cost = measure_cost(model, SPEC, "cpu", (1, 4), seconds=0.05)
    single, several = cost.batches
    assert (single.batch, several.batch) == (1, 4)
    assert (single.ms_per_sample, several.ms_per_sample) == pytest.approx((20, 5))
    assert single.peak_bytes is None, "a CPU keeps no count"
    assert model.sizes.count(4) >= 8, "three calls to warm up and five that are timed"


def test_the_median_does_not_mind_a_call_that_was_held_up() -> None:
    class Stumbles(Mixes):
        def forward(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
            if len(self.sizes) in (0, 5):
                clock.sleep(0.3)
            return super().forward(x, parameters, mask)

    cost = measure_cost(Stumbles(SamplerConfig(), pause=0.02), SPEC, "cpu", (1,), seconds=0.0)
    assert cost.batches[0].ms_per_sample == pytest.approx(20)


def test_the_model_is_measured_in_evaluation_mode_and_left_as_it_was() -> None:
    model = Mixes(SamplerConfig()).train()
    model.layer.eval()
    measure_cost(model, SPEC, "cpu", (1,), seconds=0.0)
    assert not model.was_training
    assert model.training and not model.layer.training


def test_the_same_cost_as_plain_json() -> None:
    cost = measure_cost(Mixes(SamplerConfig()), SPEC, "cpu", (1,), seconds=0.0)
    plain = json.loads(json.dumps(asdict(cost)))
    assert plain["parameters"] == 20 and plain["batches"][0]["batch"] == 1
    assert plain["device"]


def test_a_model_without_weights_costs_nothing_to_keep() -> None:
    cost = measure_cost(Same(), SPEC, "cpu", (2,), seconds=0.0)
    assert cost.parameters == 0 and cost.flops == 0
    assert cost.sampler_steps is None and cost.draws is None


def test_a_model_of_the_package_is_measured(tmp_path: Path) -> None:
    spec = tiny_spec((16, 24))
    model = tiny_model(spec=spec)
    cost = measure_cost(model, spec, "cpu", (1, 2), seconds=0.0)
    assert cost.parameters == sum(weight.numel() for weight in model.parameters())
    assert cost.flops > 0 and cost.sampler_steps is None
    folder = save_model(tmp_path, model, Normalizer.identity(2), trained={"forward": True})
    size = (folder / "model.safetensors").stat().st_size
    # A model file carries its card too.
    assert cost.checkpoint_bytes < size < cost.checkpoint_bytes + 20_000


def test_attention_and_convolutions_are_counted() -> None:
    class Attends(Same):
        def forward(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
            tokens = (
                x.flatten(2).mT[:, None].repeat(1, 3, 1, 8)
            )  # three heads of 60 tokens, 16 wide
            nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
            return nn.functional.conv2d(x, x.new_zeros(5, 2, 3, 3), padding=1)

    cost = measure_cost(Attends(), SPEC, "cpu", (1,), seconds=0.0)
    assert cost.flops == 3 * 2 * (2 * 60 * 60 * 16) + 2 * (60 * 5 * 2 * 9)


def test_wrong_batch_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, found \\(1, 0\\)"):
        measure_cost(Same(), SPEC, "cpu", (1, 0))
    with pytest.raises(ValueError, match="batch sizes"):
        measure_cost(Same(), SPEC, "cpu", ())


@pytest.mark.gpu
def test_the_memory_of_a_device_is_that_of_the_call() -> None:
    class Wide(Same):
        def forward(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
            return x + x.new_zeros(len(x), 1 << 20).sum(1)[:, None, None, None]

    cost = measure_cost(Wide(), SPEC, "cuda", (1, 8), seconds=0.1)
    single, several = (part.peak_bytes for part in cost.batches)
    assert single is not None and several is not None
    assert 0.9 * 7 * 4 * (1 << 20) < several - single < 1.3 * 7 * 4 * (1 << 20)
