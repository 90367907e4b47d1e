"""The state file: whole or not there, no pickle, clear words where it does not fit."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pibert.training import state as state_module
from pibert.training.state import (
    FILE,
    PREVIOUS,
    Progress,
    State,
    load_state,
    save_state,
)
from tests.helpers import refused

PROGRESS = Progress(
    epoch=3,
    step=2,
    total=41,
    best_epoch=2,
    best_value=0.1 + 0.2,
    best_metrics={"loss": 1e-300, "other": float("inf")},
    seconds=1.5,
    logs=[[[["loss", "x"], 7, [0.1, 1 / 3]]]],
)


def some_state(size: int = 6, value: float = 1.0) -> State:
    shared = torch.full((size, 4), value)
    return State(
        identity="abc",
        seed=7,
        progress=PROGRESS,
        # Views of one tensor, one of them not contiguous: a tied weight and a transposed one.
        model={"a.weight": shared, "tied/weight": shared, "b": shared.mT},
        mean={"a.weight": shared + 1},
        optimizer={"a.weight/step": torch.tensor(3.0), "a.weight/exp_avg": shared * 0.5},
    )


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = some_state()
    save_state(tmp_path, saved)
    found = load_state(tmp_path, identity="abc", seed=7)
    assert found is not None and found.progress == PROGRESS
    for part in ("model", "mean", "optimizer"):
        wanted, read = getattr(saved, part), getattr(found, part)
        assert wanted.keys() == read.keys()
        for name in wanted:
            assert torch.equal(wanted[name], read[name]), name


def flip_a_bit(data: bytes, name: str) -> bytes:
    """In a tensor of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    begin, _ = json.loads(data[8 : 8 + size])[name]["data_offsets"]
    place = 8 + size + begin
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "nothing is left": lambda data: b"",
    "cut in the header": lambda data: data[:60],
    "the last byte is missing": lambda data: data[:-1],
    "a bit of a weight": lambda data: flip_a_bit(data, "model/a.weight"),
    "a bit of the optimizer": lambda data: flip_a_bit(data, "optimizer/a.weight/step"),
    "a digit of the progress": lambda data: data.replace(b'total\\": 41', b'total\\": 42'),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_state_is_found(tmp_path: Path, kind: str) -> None:
    save_state(tmp_path, some_state())
    path = tmp_path / FILE
    data = path.read_bytes()
    path.write_bytes(DAMAGES[kind](data))
    assert path.read_bytes() != data
    with refused(FILE, "damaged", "remove"):
        load_state(tmp_path, identity="abc", seed=7)


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_state(tmp_path, some_state())
    monkeypatch.setattr(state_module, "VERSION", 2)
    with refused("version 1", "version 2"):
        load_state(tmp_path, identity="abc", seed=7)


@pytest.mark.parametrize("kind", ["a bit of a weight", "nothing is left", "a pipe", "missing"])
def test_the_state_before_a_damaged_one_is_taken(tmp_path: Path, kind: str) -> None:
    save_state(tmp_path, some_state(value=1.0))
    save_state(tmp_path, some_state(value=2.0))
    path = tmp_path / FILE
    data = path.read_bytes()
    path.unlink()
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind in DAMAGES:
        path.write_bytes(DAMAGES[kind](data))
    said: list[str] = []
    found = load_state(tmp_path, identity="abc", seed=7, say=said.append)
    assert found is not None and found.model["a.weight"][0, 0] == 1.0
    assert found.path == tmp_path / PREVIOUS
    (text,) = said
    assert str(tmp_path / FILE) in text and f"from {tmp_path / PREVIOUS}" in text
    assert "step 41" in text


def test_leftovers_of_a_dead_writer_are_cleared_away(tmp_path: Path) -> None:
    save_state(tmp_path, some_state())
    left = tmp_path / f".{FILE}.999999999-0badcafe.partial"
    left.write_bytes(b"half")
    load_state(tmp_path, identity="abc", seed=7)
    assert os.listdir(tmp_path) == [FILE]
