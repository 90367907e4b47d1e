"""What any model of the next frame must do, as checks on a function that builds a small one."""

from collections.abc import Callable
from typing import Any

import torch

from pibert import FieldSpec, Grid, Parameter
from pibert.models import count_parameters
from pibert.models.stepper import Stepper
from tests.helpers import randomise

Make = Callable[..., Stepper]
"""Builds a small model from a spec and options of its config."""


def spec_of(shape: tuple[int, int] = (13, 22), **changes: Any) -> FieldSpec:
    """Three channels on an odd, non-square grid of non-square cells."""
    options: dict[str, Any] = {
        "channels": ("u", "v", "p"),
        "grid": Grid(shape, dx=0.3, dy=0.2),
        "parameters": (Parameter(name="a"), Parameter(name="b")),
    }
    return FieldSpec(**(options | changes))


def drawn(make: Make, spec: FieldSpec, **options: Any) -> Stepper:
    """A model in float64 with random weights."""
    return randomise(make(spec, **options).double()).eval()


def check_persistence_at_the_start(make: Make) -> None:
    model = make(spec_of(), history=3, horizon=2)
    x = torch.randn(2, 9, 13, 22)
    assert torch.equal(model(x, torch.randn(2, 2)), x[:, -3:].repeat(1, 2, 1, 1))
    plain = make(spec_of(), residual=False)
    assert not torch.allclose(plain(x[:, :3]), x[:, :3], atol=1e-3)


def check_shapes_and_precision(make: Make) -> None:
    model = drawn(make, spec_of(), history=2, horizon=2)
    for shape in ((13, 22), (16, 8), (7, 33)):
        y = model(torch.randn(2, 6, *shape, dtype=torch.float64))
        assert y.shape == (2, 6, *shape) and y.dtype == torch.float64
        assert torch.isfinite(y).all()
    assert model(torch.randn(0, 6, 16, 16, dtype=torch.float64)).shape == (0, 6, 16, 16)


def check_a_far_pixel_matters(make: Make) -> None:
    model = drawn(make, spec_of((24, 40)))
    x = torch.randn(1, 3, 24, 40, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x)[0, 0, 0, 0], x)
    assert gradient[0, 2, -3:, -3:].abs().min() > 0
    assert gradient[0, 0, 12, 20].abs() > 0


def check_samples_keep_to_themselves(make: Make) -> None:
    model = drawn(make, spec_of(), parameters=True)
    x, parameters = torch.randn(5, 3, 13, 22).double(), torch.randn(5, 2).double()
    order = torch.tensor([3, 0, 4, 1, 2])
    y = model(x, parameters)
    assert torch.allclose(model(x[order], parameters[order]), y[order], atol=1e-10)
    assert torch.allclose(model(x[2:3], parameters[2:3]), y[2:3], atol=1e-10)


def check_gradients(make: Make) -> None:
    """Autograd against a central difference, along a random direction of inputs and weights."""
    model = drawn(make, spec_of((9, 14)), parameters=True)
    x, known = torch.randn(2, 3, 9, 14).double().requires_grad_(), torch.randn(2, 2).double()
    target = torch.randn(2, 3, 9, 14).double()

    def loss() -> torch.Tensor:
        return (model(x, known) - target).square().mean()

    leaves = [x, *model.parameters()]
    gradients = torch.autograd.grad(loss(), leaves)
    for name, gradient in zip(["x", *dict(model.named_parameters())], gradients, strict=True):
        assert torch.isfinite(gradient).all() and gradient.abs().sum() > 0, name
    ways = [torch.randn_like(leaf) for leaf in leaves]
    expected = sum((g.conj() * w).real.sum() for g, w in zip(gradients, ways, strict=True))
    step, values = 1e-7, []
    with torch.no_grad():
        for move in (step, -2 * step):
            for leaf, way in zip(leaves, ways, strict=True):
                leaf += move * way
            values.append(loss())
    assert torch.isclose((values[0] - values[1]) / (2 * step), torch.as_tensor(expected), rtol=1e-4)


def check_parameters_enter_if_wished(make: Make) -> None:
    x, known = torch.randn(2, 3, 13, 22).double(), torch.randn(2, 2).double()
    deaf, listening = drawn(make, spec_of()), drawn(make, spec_of(), parameters=True)
    assert torch.equal(deaf(x, known), deaf(x))
    assert not torch.allclose(listening(x, known), listening(x), atol=1e-6)
    assert torch.equal(listening(x), listening(x, torch.zeros(2, 16).double()))
    unknown = torch.tensor([[torch.nan, 1.0], [torch.nan, 2.0]]).double()
    assert torch.equal(listening(x, unknown), listening(x, unknown.nan_to_num(0.0)))


def check_half_precision(make: Make) -> None:
    model = randomise(make(spec_of())).eval()
    x = torch.randn(2, 3, 13, 22)
    with torch.no_grad():
        full = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            half = model(x)
    assert (half - full).norm() < 2e-2 * full.norm()


def check_every_parameter_of_the_spec_enters(make: Make, added: int) -> None:
    """Each on its own, with so many more weights for the two of them."""
    spec = spec_of((12, 20), channels=("u", "v"))
    x, known = torch.randn(2, 2, 12, 20).double(), torch.randn(2, 2).double()
    deaf, model = drawn(make, spec), drawn(make, spec, parameters=True)
    assert torch.equal(deaf(x, known), deaf(x, -known))
    assert count_parameters(model) == count_parameters(deaf) + added
    for column in (0, 1):
        other = known.clone()
        other[:, column] += 1
        assert not torch.allclose(model(x, known), model(x, other))
    unknown = torch.full_like(known, torch.nan)
    assert torch.equal(model(x, unknown), model(x, torch.zeros_like(known)))


def check_other_channels_train_in_every_part(make: Make, channels: int) -> None:
    """Of two frames that give three; the spec's one parameter enters."""
    names = ("p", "u", "v")[:channels]
    spec = spec_of((12, 20), channels=names, parameters=(Parameter(name="Re"),))
    model = drawn(make, spec, history=2, horizon=3, parameters=True)
    y = model(torch.randn(2, 2 * channels, 12, 20).double(), torch.randn(2, 1).double())
    assert y.shape == (2, 3 * channels, 12, 20)
    y.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


CHECKS = {
    "an untrained model is persistence": check_persistence_at_the_start,
    "frames fold into channels on any grid in float64": check_shapes_and_precision,
    "the far end of the field is seen": check_a_far_pixel_matters,
    "samples keep to themselves": check_samples_keep_to_themselves,
    "gradients are right": check_gradients,
    "parameters enter if wished": check_parameters_enter_if_wished,
    "autocast changes little": check_half_precision,
}
