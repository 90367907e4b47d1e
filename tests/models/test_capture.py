"""The whole base model as one captured graph: compiled, exported, in ONNX."""

import functools
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pibert import build_model
from pibert.models import compile_model
from pibert.models.pibert import PIBERT
from tests.helpers import assert_close, randomise

Case = tuple[PIBERT, torch.Tensor, torch.Tensor, torch.Tensor]
"""Model, fields, parameters and the eager output."""


pytestmark = pytest.mark.usefixtures("no_shape_checks")


@pytest.fixture(scope="module")
def base_and_batch() -> Case:
    # Two of its four blocks: the others are captured in the same way, and take as long.
    model = randomise(build_model("pibert", preset="base", depth=2)).eval()
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 2, 64, 64, generator=generator)
    parameters = torch.randn(2, 16, generator=generator)
    with torch.no_grad():
        model.calibrate(x)
        return model, x, parameters, model(x, parameters)


@pytest.mark.parametrize(
    # The capture fails if there is more than one graph; code generation takes a minute.
    "backend",
    ["eager", pytest.param("inductor", marks=pytest.mark.slow)],
)
def test_base_compiles_as_one_graph(
    base_and_batch: Case, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    model, x, parameters, expected = base_and_batch
    with torch.no_grad():
        assert_close(compile_model(model)(x, parameters), expected, rtol=1e-4)


def test_a_compiled_model_copies_nothing_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its only inputs are fields, weights and buffers, and it builds no tensor from numbers.

    A CUDA graph cannot contain a copy from the host.
    """
    model = build_model("pibert-mr", preset="small").eval()
    fields = torch.randn(1, 2, 16, 16, generator=torch.Generator().manual_seed(0))
    expected = {id(t) for t in (fields, *model.parameters(), *model.buffers())}
    foreign: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        names = [n.name for n in module.graph.nodes if n.op == "placeholder"]
        foreign.extend(n for n, t in zip(names, inputs, strict=True) if id(t) not in expected)
        foreign.extend(n.name for n in module.graph.nodes if n.target is torch.tensor)
        return module.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    with torch.no_grad():
        compile_model(model)(fields)
    assert foreign == []


@pytest.mark.slow
def test_a_compiled_model_takes_other_batches_and_resolutions() -> None:
    """In a separate process, without the shape checks of the test run."""
    script = """
        import functools, torch
        from pibert import models
        # This tests the capture, not the code generated from it.
        torch.compile = functools.partial(torch.compile, backend="eager")
        torch.manual_seed(0)
        one = models.build_model("pibert", width=32, depth=1, modes=4).eval()
        other = models.build_model("pibert-mr", preset="small", cycles=1).eval()
        torch.nn.init.normal_(one.read_out.weight)
        torch.nn.init.normal_(other.head.weight)
        for model in (one, other):
            compiled = models.compile_model(model)
            with torch.no_grad():
                for shape in ((2, 2, 64, 64), (3, 2, 64, 64), (2, 2, 24, 20)):
                    x = torch.randn(shape)
                    expected = model(x)
                    assert (compiled(x) - expected).abs().max() < 1e-5 * expected.abs().max()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])


def test_without_a_compiler_the_model_runs_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CXX", "")
    model = build_model("pibert", width=32, depth=1, modes=4).eval()
    with pytest.warns(UserWarning, match=r"no C\+\+ compiler"):
        compiled = compile_model(model)
    x = torch.randn(1, 2, 64, 64)
    assert torch.equal(compiled(x), x)
