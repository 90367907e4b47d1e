"""A run that is killed and started again ends as if nothing had happened, to the bit."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from pibert.training.state import read_tensors, write_tensors
from tests.training.setups import run_worker, timeless

KILLED = -signal.SIGKILL

# Dropout, accumulation, a mean of the weights, uneven last batches; monitors a value that never
# improves after the first epoch, so that patience ends the run in the third.
HARD: dict[str, Any] = {
    "dropout": 0.2,
    "ema": 0.9,
    "epochs": 5,
    "patience": 2,
    "monitor": "noise",
    "checkpoint_minutes": 0.0,
}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "whole"
    assert run_worker(folder, **HARD) == [0]
    return folder


def header_of(folder: Path) -> dict[str, Any]:
    with safe_open(folder / "state.safetensors", framework="pt") as file:
        header: dict[str, Any] = json.loads(file.metadata()["header"])
    header["progress"].pop("seconds")
    return header


def assert_same_run(found: Path, wanted: Path) -> None:
    for name in ("last", "best", "state"):
        a = load_file(found / f"{name}.safetensors")
        b = load_file(wanted / f"{name}.safetensors")
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a), name
    assert timeless(found) == timeless(wanted)
    assert header_of(found) == header_of(wanted)


@pytest.mark.parametrize(
    "death",
    [
        # Of 4 steps and 7 pieces in an epoch: in the second piece of a step, and in the last one.
        {"die_at": 10},
        {"die_at": 14},
        # Of 5 saves in an epoch. The log and the best weights are newer than the state then.
        {"die_in_save": (5, "renaming")},
        {"die_in_save": (7, "writing")},
        # The state is that of the start of the epoch.
        {"die_at": 19, "checkpoint_minutes": 1e9},
        # There is no state yet.
        {"die_at": 3, "checkpoint_minutes": 1e9},
        {"die_in_save": (1, "writing")},
    ],
    ids=str,
)
def test_a_killed_run_resumes_to_identical_weights(
    tmp_path: Path, uninterrupted: Path, death: dict[str, Any]
) -> None:
    folder = tmp_path / "run"
    assert run_worker(folder, **(HARD | death)) == [KILLED]
    assert run_worker(folder, **HARD) == [0]
    assert_same_run(folder, uninterrupted)
    assert not list(folder.glob(".*.partial"))


@pytest.mark.parametrize("kind", ["cut", "bit"])
def test_a_run_with_a_damaged_last_state_resumes_to_identical_weights(
    tmp_path: Path, uninterrupted: Path, kind: str
) -> None:
    """And the damaged state does not become the previous one: a second damage is survived too."""
    folder = tmp_path / "run"
    for _ in range(2):
        assert run_worker(folder, **HARD, die_at=7) == [KILLED]
        path = folder / "state.safetensors"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data[: len(data) // 2] if kind == "cut" else data)
    assert run_worker(folder, **HARD) == [0]
    assert_same_run(folder, uninterrupted)


def test_a_state_of_an_earlier_version_resumes_to_identical_weights(
    tmp_path: Path, uninterrupted: Path
) -> None:
    assert run_worker(tmp_path, **HARD, die_at=7) == [KILLED]
    header, tensors = read_tensors(tmp_path / "state.safetensors")
    old = {name.replace("/encoder.wavelet.", "/encoder.frame."): t for name, t in tensors.items()}
    old |= {"rng/torch": torch.get_rng_state()}
    assert {name.partition("/")[0] for name in old if name not in tensors} == {
        "model",
        "mean",
        "optimizer",
        "rng",
    }
    write_tensors(tmp_path / "state.safetensors", old, header)
    assert run_worker(tmp_path, **HARD) == [0]
    assert_same_run(tmp_path, uninterrupted)


def test_two_killed_processes_resume_to_identical_weights(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run_worker(whole, processes=2, **HARD) == [0, 0]
    # Who is not killed first may find the other gone before it comes to its own end.
    assert 0 not in run_worker(killed, processes=2, **HARD, die_at=5)
    assert header_of(killed)["progress"]["epoch"] < header_of(whole)["progress"]["epoch"]
    assert run_worker(killed, processes=2, **HARD) == [0, 0]
    assert_same_run(killed, whole)
