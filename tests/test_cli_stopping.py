"""Ctrl-C and SIGTERM at any moment: one line, exit code 130 or 143, and no traceback.

In the training loop they are tested with the engine, and on a server with the server.
"""

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pibert import stopping
from pibert.cli import app
from pibert.comparison import pool
from pibert.data.partial import interrupts_held
from pibert.training.engine import Run
from tests.command import run, well
from tests.helpers import PATIENCE, wait_until

ROOT = Path(__file__).parents[1]
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
PLAN = """
[data]
case = "heat"
recipe = { samples = 4, group = 1, frames = 6, shape = [12, 16] }
shares = { train = 0.5, valid = 0.25 }
[model]
name = "unet"
options = { width = 4, stages = 2, blocks = 1 }
[training]
epochs = 1
batch_size = 4
"""


def sending(number: int) -> Callable[..., Any]:
    """A function that sends a signal to its own process in place of its work."""

    def send(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), number)
        raise AssertionError("the signal was lost")

    return send


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """Tests that run in the background ignore interrupts, and would hand that on."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIBERT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return path


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("pibert.data.generate", "_simulate_group"),  # while flows are simulated
        ("pibert.experiments.run", "assemble"),  # while the model is built
        ("pibert.experiments.run", "draw_curves"),  # after the training
    ],
)
def test_a_training_stops_outside_of_its_loop(
    plan: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    function: str,
    number: signal.Signals,
) -> None:
    before = [signal.getsignal(own) for own in CODES]
    monkeypatch.setattr(importlib.import_module(module), function, sending(number))
    result = run("train", "--config", plan, "--out", tmp_path / "run")
    assert result.exit_code == CODES[number], result.output
    assert "Traceback" not in result.output and "error" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith("interrupted")
    assert [signal.getsignal(own) for own in CODES] == before


@pytest.mark.parametrize("number", CODES)
def test_a_training_stops_in_its_loop_with_the_state_saved(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    accumulate = Run._accumulate

    def ask(self: Any, *rest: Any) -> Any:
        os.kill(os.getpid(), number)
        return accumulate(self, *rest)

    monkeypatch.setattr(Run, "_accumulate", ask)
    result = run("train", "--config", plan, "--out", tmp_path / "run")
    assert result.exit_code == CODES[number], result.output
    assert result.stderr.splitlines()[-1].startswith("stopped after step 1")
    assert (tmp_path / "run" / "state.safetensors").exists()


@pytest.mark.parametrize("number", CODES)
def test_an_evaluation_stops(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    out = tmp_path / "run"
    well("train", "--config", plan, "--out", out)
    monkeypatch.setattr("pibert.experiments.evaluation.score_frames", sending(number))
    result = run("evaluate", out)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (CODES[number], "interrupted")
    assert not (out / "evaluation" / "scores.json").exists()


def test_an_interrupt_that_c_code_would_forget_is_sent_again() -> None:
    class Careless:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(1000):
                pass

    with pytest.raises(KeyboardInterrupt), stopping.signals_raise():
        Careless()
        wait_until(lambda: False)
    assert stopping.exit_code() == 143


def test_sigterm_waits_for_hdf5() -> None:
    with pytest.raises(KeyboardInterrupt), stopping.signals_raise(), interrupts_held():
        os.kill(os.getpid(), signal.SIGTERM)
        reached = True
    assert reached and stopping.exit_code() == 143


def test_a_generation_in_a_process_of_its_own_ends_with_143(tmp_path: Path) -> None:
    out = tmp_path / "heat.h5"
    words = ["generate", "heat", "--out", str(out), "--samples", "400"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pibert", *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: process.poll() is not None or any(tmp_path.glob("*.parts/group-*.json")))
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert "Traceback" not in stderr and "interrupted: " in stderr and "rerun the command" in stderr
    assert not out.exists()


@pytest.mark.parametrize("number", CODES)
def test_sigterm_is_passed_on_to_the_runs_of_a_comparison(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Ctrl-C reaches them by itself, and twice would stop them without saving."""
    stopped: list[str] = []

    class Child:
        def terminate(self) -> None:
            stopped.append("child")

    class Pool:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def submit(self, *_: Any) -> None:
            os.kill(os.getpid(), number)

        def shutdown(self, **_: Any) -> None: ...

    monkeypatch.setattr(pool.multiprocessing, "active_children", lambda: [Child()])
    monkeypatch.setattr(pool.concurrent.futures, "ProcessPoolExecutor", Pool)
    with pytest.raises(KeyboardInterrupt), stopping.signals_raise():
        pool.work_on(
            [1], max, workers=1, device="cpu", done=lambda *_: None, failed=lambda *_: None
        )
    assert stopped == (["child"] if number == signal.SIGTERM else [])


@pytest.mark.parametrize("number", CODES)
def test_a_signal_before_the_command_begins_ends_with_its_code(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr("pibert.cli._Commands.make_context", sending(number))
    with pytest.raises(SystemExit) as end:
        app(["info"], prog_name="pibert")
    assert end.value.code == CODES[number]
