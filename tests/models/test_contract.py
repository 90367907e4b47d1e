"""What every model in the table must do."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pibert.models import MODELS
from tests.helpers import randomise, tiny_model

NAMES = list(MODELS)


@pytest.mark.parametrize("name", NAMES)
def test_output_has_the_shape_of_the_next_frame(name: str) -> None:
    x = torch.randn(3, 2, 16, 16)
    assert randomise(tiny_model(name))(x).shape == x.shape


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_in_use_gets_a_finite_gradient_that_is_not_zero(name: str) -> None:
    model = randomise(tiny_model(name))
    model(torch.randn(3, 2, 16, 16), torch.randn(3, 1)).square().mean().backward()
    used = {n: p.grad for n, p in model.named_parameters() if "_head" not in n}
    for key, gradient in used.items():
        assert gradient is not None, key
        assert torch.isfinite(gradient).all() and gradient.abs().sum() > 0, key


@pytest.mark.parametrize("name", NAMES)
def test_samples_do_not_leak_into_each_other(name: str) -> None:
    model = randomise(tiny_model(name)).eval()
    x, parameters = torch.randn(4, 2, 16, 16), torch.randn(4, 1)
    alone = torch.cat([model(x[i : i + 1], parameters[i : i + 1]) for i in range(4)])
    assert torch.allclose(model(x, parameters), alone, atol=2e-6)
    x.requires_grad_()
    model(x, parameters)[1].sum().backward()
    assert x.grad is not None
    assert not x.grad[[0, 2, 3]].any() and x.grad[1].any()


@pytest.mark.parametrize("name", NAMES)
def test_saving_and_loading_gives_the_identical_function(name: str, tmp_path: Path) -> None:
    model = randomise(tiny_model(name)).eval()
    x = torch.randn(2, 2, 16, 16)
    model.calibrate(x)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other = tiny_model(name).eval()
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(model(x), other(x))


@pytest.mark.parametrize("name", NAMES)
def test_the_model_overfits_one_tiny_batch(name: str, no_shape_checks: None) -> None:
    torch.manual_seed(0)
    model = tiny_model(name)
    x, y = torch.randn(2, 2, 16, 16), torch.randn(2, 2, 16, 16)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        optimiser.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimiser.step()
    assert loss < 0.05 * (x - y).square().mean()


@pytest.mark.parametrize("name", NAMES)
def test_the_model_runs_in_half_precision_autocast(name: str) -> None:
    model = randomise(tiny_model(name)).eval()
    x = torch.randn(2, 2, 16, 16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        half = model(x)
    with torch.no_grad():
        full = model(x)
    assert (half - full).norm() < 2e-2 * full.norm()
