"""The adapter for the package neuralop, with a stand-in and with the real package."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pibert import FieldSpec
from pibert.models.baselines.neuraloperator import PRESETS, NeuralOperator, NeuralOperatorConfig
from tests.helpers import randomise, refused


class Projection(nn.Module):
    """Two pointwise layers, on flattened points as in the package."""

    def __init__(self, width: int, out_channels: int) -> None:
        super().__init__()
        self.fcs = nn.ModuleList([nn.Conv1d(width, width, 1), nn.Conv1d(width, out_channels, 1)])

    def forward(self, x: Tensor) -> Tensor:
        flat = self.fcs[1](torch.tanh(self.fcs[0](x.flatten(2))))
        return flat.view(*flat.shape[:2], *x.shape[-2:])


class StandIn(nn.Module):
    """A spectral model with the peculiarities of the package.

    Complex weights, build options in its state, a transform without half precision.
    """

    def __init__(self, in_channels: int, out_channels: int, hidden_channels: int, n_modes: Any):
        super().__init__()
        self.built_with = (in_channels, out_channels, hidden_channels, n_modes)
        self.lifting = nn.Conv2d(in_channels, hidden_channels, 1)
        self.mixing = nn.Parameter(
            torch.randn(hidden_channels, hidden_channels, dtype=torch.cfloat)
        )
        self.projection = Projection(hidden_channels, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lifting(x)
        low = torch.fft.rfft2(x)[..., :1, :2]
        low = torch.einsum("kc,bcyx->bkyx", self.mixing, low)
        return self.projection(torch.tanh(x) + torch.fft.irfft2(low, s=x.shape[-2:]))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        state["_metadata"] = {"n_modes": self.built_with[-1]}
        return state


class Headless(nn.Module):
    """A model without a projection."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.only = nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.only(x)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    package, models = ModuleType("neuralop"), ModuleType("neuralop.models")
    models.FNO, models.Headless = StandIn, Headless  # type: ignore[attr-defined]
    models.get_model = lambda config: None  # type: ignore[attr-defined]
    package.models = models  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "neuralop", package)
    monkeypatch.setitem(sys.modules, "neuralop.models", models)


def make(spec: FieldSpec, **options: Any) -> NeuralOperator:
    small = {"options": {"n_modes": [4, 4], "hidden_channels": 6}}
    return NeuralOperator(NeuralOperatorConfig(**(small | options)), spec)


def test_the_output_of_the_model_is_added_to_the_last_frame(stand_in: None) -> None:
    x = torch.randn(2, 4, 9, 14)
    for residual in (True, False):
        model = make(FieldSpec(), history=2, residual=residual)
        randomise(model)
        expected = model.operator(x)
        assert torch.equal(model(x), expected + x[:, 2:] if residual else expected)


def test_a_model_without_projection_does_not_start_as_persistence(stand_in: None) -> None:
    model = make(FieldSpec(), name="Headless", options={})
    x = torch.randn(2, 2, 9, 14)
    assert torch.equal(model(x), model.operator(x) + x) and not torch.equal(model(x), x)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("neuralop", "neuralop.models"):
        monkeypatch.setitem(sys.modules, name, None)
    with refused("pibert-cfd[bench]", error=ImportError):
        make(FieldSpec())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"name": "FNOO"}, ("'FNOO'", "FNO, Headless")),
        ({"options": {"n_mods": [4, 4]}}, ("n_mods", "neuralop.models.FNO")),
        ({"options": {"in_channels": 2}}, ("in_channels", "data")),
    ],
)
@pytest.mark.usefixtures("stand_in")
def test_wrong_options_are_named(options: dict[str, Any], named: tuple[object, ...]) -> None:
    with refused(*named):
        make(FieldSpec(), **options)


COUNTS = {"base": 1_509_662, "tfno": 1_552_392, "uno": 1_614_422}


@pytest.mark.parametrize("preset", PRESETS)
def test_the_presets_run_with_the_real_package(preset: str) -> None:
    pytest.importorskip("neuralop", exc_type=ImportError)
    model = NeuralOperator(PRESETS[preset], FieldSpec())
    reals = [p.numel() * (2 if p.is_complex() else 1) for p in model.parameters()]
    assert sum(reals) == COUNTS[preset]
    x = torch.randn(1, 2, 33, 42)
    assert torch.equal(model(x), x)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    y = model(x)
    y.square().mean().backward()
    assert y.shape == x.shape and not torch.equal(y, x)
    for name, weight in model.named_parameters():
        assert weight.grad is not None and torch.isfinite(weight.grad).all(), name
    assert all(isinstance(value, Tensor) for value in model.state_dict().values())
