"""What a model costs, of models whose size and arithmetic are counted by hand."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pibert.evaluation.cost import measure_cost
from pibert.models import build_model
from tests.helpers import tiny_spec

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


def test_time_is_that_of_a_sample_after_warming_up() -> None:
    model = Mixes(SamplerConfig(), pause=0.02)
    cost = measure_cost(model, SPEC, "cpu", (1, 4), seconds=0.05)
    single, several = cost.batches
    assert (single.batch, several.batch) == (1, 4)
    assert (single.ms_per_sample, several.ms_per_sample) == pytest.approx((20, 5))
    assert single.peak_bytes is None, "a CPU keeps no count"
    assert model.sizes.count(4) >= 8, "three calls to warm up and five that are timed"


@pytest.mark.gpu
def test_the_memory_of_a_device_is_that_of_the_call() -> None:
    class Wide(Same):
        def forward(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
            return x + x.new_zeros(len(x), 1 << 20).sum(1)[:, None, None, None]

    cost = measure_cost(Wide(), SPEC, "cuda", (1, 8), seconds=0.1)
    single, several = (part.peak_bytes for part in cost.batches)
    assert single is not None and several is not None
    assert 0.9 * 7 * 4 * (1 << 20) < several - single < 1.3 * 7 * 4 * (1 << 20)


@pytest.mark.parametrize(
    ("preset", "rivals"),
    [
        ("flops-1.8g", [("pibert-mr", "base")]),
        ("flops-4.3g", [("pibert-mr", "large"), ("mwt", "base")]),
        ("flops-4.3g-5m", [("pibert-mr", "large"), ("mwt", "base")]),
    ],
)
def test_the_matched_unets_have_the_flops_of_their_rivals(
    preset: str, rivals: list[tuple[str, str]]
) -> None:
    def flops(name: str, chosen: str) -> int:
        model = build_model(name, preset=chosen)
        return measure_cost(model, model.spec, "cpu", (), seconds=0.0).flops

    for rival in rivals:
        assert flops("unet", preset) == pytest.approx(flops(*rival), rel=0.03)
