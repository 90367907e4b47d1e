"""The break-even benchmark: what it counts as a frame, reads from cards, and computes."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pibert.inference.model_file import find_model, shipped_models
from pibert.solver import stepping
from pibert.solver.linear import Heat
from pibert.solver.presets import find_preset

FILE = Path(__file__).parents[1] / "benchmarks" / "break_even.py"


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("break_even", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now

    def after(self, work: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def slow(*args: Any) -> Any:
            self.now += seconds
            return work(*args)

        return slow


def test_frames_of_a_lattice_flow_are_counted(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame of the demo is 50 steps: at a second per step, 25 s for each of two flows."""
    clock = Clock()
    monkeypatch.setattr(stepping, "make_step", lambda *_, **__: clock.after(lambda f: f, 1.0))
    recipe = benchmark.change(find_preset("cylinder"), {"domain": [12.0, 6.0], "upstream": 4.0})
    tasks = {"surrogate": clock.after(lambda: 4, 10.0)}
    found = benchmark.take_turns(recipe, 2, 1, tasks, 3, "cpu", clock.read)
    assert found["solver"] == pytest.approx([25.0] * 3)
    assert found["surrogate"] == pytest.approx([2.5] * 3)
    strided = benchmark.take_turns(recipe, 2, 2, tasks, 2, "cpu", clock.read)
    assert strided["solver"] == pytest.approx([50.0] * 2)  # a frame of the model is two


def test_frames_of_a_periodic_flow_are_counted(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(Heat, "advance", clock.after(lambda _self, fields, _: fields, 1.0))
    changes = {"samples": 4, "shape": [8, 12], "frames": 9}
    recipe = benchmark.change(find_preset("heat"), changes)
    found = benchmark.take_turns(recipe, 4, 1, {"surrogate": lambda: 1}, 5, "cpu", clock.read)
    assert found["solver"] == pytest.approx([0.25] * 5)
    assert benchmark.frames_of_data(recipe) == 4 * 9


def test_training_times_of_shipped_models_are_those_of_their_cards(benchmark: Any) -> None:
    for name in shipped_models():
        found = benchmark.recorded_training(find_model(name))
        assert f"{found.seconds:g} s on {found.hardware}" in " ".join(
            (find_model(name) / "README.md").read_text().split()
        )
        assert "H200" in found.hardware
    assert benchmark.recorded_training(FILE.parent) is None


def test_break_even_by_hand(benchmark: Any) -> None:
    # 100 s of training, 1 s saved for each frame.
    assert benchmark.break_even(100.0, 1.25, 0.25) == pytest.approx(100.0)
    assert benchmark.break_even(100.0, 1.0, 1.0) is None
    rows = benchmark.summarise({"solver": [2.0, 4.0, 6.0], "model": [1.0, 1.0, 2.0]})
    assert rows["model"]["times_faster"] == 3.0 and rows["solver"]["ms"] == 4000.0
    assert rows["model"]["ms"] == 1000.0
