"""What every model in the table must do."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pibert.fields import Normalizer
from pibert.models import MODELS, PRESETS
from pibert.models.references.simple import Reference
from tests.helpers import TINY_OPTIONS, assert_close, randomise, tiny_model, tiny_spec
from tests.models.recordings import batches_of

SHAPE = (12, 16)
_missing = pytest.mark.skipif(
    importlib.util.find_spec("neuralop") is None, reason="neuraloperator is not installed"
)


def _is_reference(name: str) -> bool:
    kind = MODELS[name]
    return isinstance(kind, type) and issubclass(kind, Reference)


def _params(names: list[str]) -> list[Any]:
    return [pytest.param(n, marks=[_missing] if n == "neuraloperator" else []) for n in names]


ALL = _params(list(MODELS))
TRAINED = _params([name for name in MODELS if not _is_reference(name)])
# A flow answers with the mean of its draws, which no loss of the answer teaches: that it learns
# what follows, mean and spread, is tested with its own objective (tests/training).
REGRESSORS = _params([n for n in MODELS if not _is_reference(n) and n != "fourierflow"])


def make(name: str, **options: Any) -> Any:
    """A model that answers: weights drawn anew, or fitted on random frames."""
    model = tiny_model(name, tiny_spec(SHAPE), **options)
    if not _is_reference(name):
        return randomise(model).eval()
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(40, 2, *SHAPE, generator=generator)
    normalizer = Normalizer((0.2, -0.1), (1.1, 0.9))
    batches = batches_of(states, model.spec, normalizer, history=model.config.history)
    model.fit(batches, normalizer)
    return model


def fields(model: Any, b: int = 3, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(b, model.in_channels, *SHAPE, generator=generator)


def test_every_model_has_presets_and_tiny_options() -> None:
    assert list(MODELS) == list(PRESETS)
    assert set(MODELS) == set(TINY_OPTIONS)
    assert all(PRESETS.values())


@pytest.mark.parametrize("name", ALL)
def test_output_has_the_shape_of_the_next_frame(name: str) -> None:
    model = make(name)
    y = model(fields(model), torch.randn(3, 1))
    assert y.shape == (3, 2, *SHAPE) and y.isfinite().all()


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("frames", [(1, 1), (3, 2)])
def test_an_untrained_model_is_persistence_exactly(name: str, frames: tuple[int, int]) -> None:
    model = tiny_model(name, tiny_spec(SHAPE), history=frames[0], horizon=frames[1])
    assert model.config.residual
    x = fields(model)
    assert torch.equal(model(x, torch.randn(3, 1)), x[:, -2:].repeat(1, frames[1], 1, 1))


@pytest.mark.parametrize("name", TRAINED)
def test_every_parameter_in_use_gets_a_finite_gradient_that_is_not_zero(name: str) -> None:
    model = make(name).train()
    model(fields(model), torch.randn(3, 1)).square().mean().backward()
    # Heads of other tasks and what is frozen take no part in a prediction.
    used = {n: p.grad for n, p in model.named_parameters() if "_head" not in n and p.requires_grad}
    assert used
    for key, gradient in used.items():
        assert gradient is not None, key
        assert torch.isfinite(gradient).all() and gradient.abs().sum() > 0, key


@pytest.mark.parametrize("name", ALL)
def test_the_embedding_is_a_map_of_points_or_patches_that_says_which_layer_it_is(name: str) -> None:
    model = make(name)
    x, mask = fields(model), torch.ones(3, *SHAPE, dtype=torch.bool)
    mask[1, 2:9, 3:11] = False
    parameters = torch.tensor([[0.3], [-1.2], [float("nan")]])
    with torch.no_grad():
        found = model.embed(x, parameters, mask)
    without = _is_reference(name) or name in ("deeponet2d", "pinn", "neuraloperator")
    assert (found is None) == without == (model.embedded is None)
    if found is None:
        return
    assert found.shape[0] == 3 and tuple(found.shape[-2:]) in (SHAPE, (3, 4))
    assert torch.isfinite(found).all()
    with torch.no_grad():
        # A sample has its own; unknown pixels are not seen, and where a pixel changes it does.
        alone = model.embed(x[1:2], parameters[1:2], mask[1:2])
        hidden = model.embed(torch.where(mask[:, None], x, 7.0), parameters, mask)
        moved = x.clone()
        moved[:, :, 10, 14] += 1.0
        other = model.embed(moved, parameters, mask)
    assert_close(alone, found[1:2])
    assert torch.equal(hidden, found)
    size = SHAPE[0] // found.shape[-2]
    assert (other - found)[..., 10 // size, 14 // size].abs().max() > 1e-3


@pytest.mark.parametrize("name", ALL)
def test_samples_do_not_leak_into_each_other(name: str) -> None:
    model = make(name)
    x, parameters = fields(model, 4), torch.randn(4, 1)
    alone = torch.cat([model(x[i : i + 1], parameters[i : i + 1]) for i in range(4)])
    assert_close(model(x, parameters), alone)
    x.requires_grad_()
    answer = model(x, parameters)
    if name == "training-mean":  # whatever the input
        assert not answer.requires_grad
        return
    answer[1].sum().backward()
    assert x.grad is not None
    assert not x.grad[[0, 2, 3]].any() and x.grad[1].any()


@pytest.mark.parametrize("name", TRAINED)
def test_a_far_pixel_matters_to_all_but_a_pointwise_model(name: str) -> None:
    model = make(name)
    x = fields(model, 1).requires_grad_()
    model(x)[0, :, 0, 0].sum().backward()
    assert x.grad is not None and x.grad[0, :, 0, 0].all()
    assert bool(x.grad[0, :, -1, -1].all()) is (name != "pinn")
    if name == "pinn":
        assert not x.grad[0, :, 1:].any() and not x.grad[0, :, :, 1:].any()


@pytest.mark.parametrize("name", ALL)
def test_saving_and_loading_gives_the_identical_function(name: str, tmp_path: Path) -> None:
    model = make(name)
    x = fields(model, 2)
    if hasattr(model, "calibrate"):
        model.calibrate(x)
    if hasattr(model, "set_increment_scale"):
        model.set_increment_scale(torch.tensor([0.3, 0.7]))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other = tiny_model(name, tiny_spec(SHAPE)).eval()
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(model(x), other(x))


def _target(name: str, x: Tensor) -> Tensor:
    """What a model must be able to learn by heart: noise, or as much as it can represent."""
    if name == "pinn":  # a function of each point
        return torch.stack((x[:, 0] - x[:, 1] ** 2, torch.sin(2 * x[:, 0])), dim=1)
    if name == "deeponet2d":  # few smooth fields, the input's own skip taken away
        rows, columns = (torch.linspace(0, torch.pi, n) for n in x.shape[-2:])
        waves = torch.cos(rows)[:, None] * torch.cos(2 * columns)
        return x + torch.tensor([[1.0, -2.0], [2.0, 0.5]])[:, :, None, None] * waves
    return fields_like(x)


def fields_like(x: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("name", REGRESSORS)
def test_the_model_overfits_one_tiny_batch(name: str, no_shape_checks: None) -> None:
    torch.manual_seed(0)
    model = tiny_model(name, tiny_spec(SHAPE))
    x = fields(model, 2)
    y = _target(name, x)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    enough = 0.05 * (x - y).square().mean()
    for _ in range(500):  # most need less than 100
        optimiser.zero_grad()
        loss = (model(x) - y).square().mean()
        if loss < enough:
            return
        loss.backward()
        optimiser.step()
    pytest.fail(f"the loss is still {loss:.3f}, expected less than {enough:.3f}")


@pytest.mark.parametrize("name", ALL)
def test_the_model_runs_in_half_precision_autocast(name: str) -> None:
    model = make(name)
    x = fields(model, 2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        half = model(x)
    with torch.no_grad():
        full = model(x)
    assert (half - full).norm() < 2e-2 * full.norm()
