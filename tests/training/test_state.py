"""The state file: whole or not there, no pickle, clear words where it does not fit."""

import errno
import json
import os
import random
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from pibert.training import state as state_module
from pibert.training.state import (
    FILE,
    PREVIOUS,
    Progress,
    State,
    generator_states,
    load_state,
    save_state,
    set_generator_states,
)

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
        generators=generator_states(torch.device("cpu")),
    )


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    saved = some_state()
    save_state(tmp_path, saved)
    found = load_state(tmp_path, identity="abc", seed=7)
    assert found is not None and found.progress == PROGRESS
    for part in ("model", "mean", "optimizer", "generators"):
        wanted, read = getattr(saved, part), getattr(found, part)
        assert wanted.keys() == read.keys()
        for name in wanted:
            assert torch.equal(wanted[name], read[name]), name


def test_a_folder_without_a_state_has_none(tmp_path: Path) -> None:
    assert load_state(tmp_path / "none", identity="", seed=0) is None


@pytest.mark.parametrize(("identity", "seed", "named"), [("xyz", 7, "'abc'"), ("abc", 8, "seed 7")])
def test_the_state_of_another_run_is_refused(
    tmp_path: Path, identity: str, seed: int, named: str
) -> None:
    save_state(tmp_path, some_state())
    with pytest.raises(ValueError, match=f"another configuration.*{named}.*another folder"):
        load_state(tmp_path, identity=identity, seed=seed)


@pytest.mark.parametrize("length", [0, 5, 60, 400, -1])
def test_a_damaged_state_is_named(tmp_path: Path, length: int) -> None:
    save_state(tmp_path, some_state())
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"state.safetensors is damaged.*remove .* to start anew"):
        load_state(tmp_path, identity="abc", seed=7)


@pytest.mark.parametrize("part", ["model/a.weight", "optimizer/a.weight/step", "rng/torch"])
def test_one_flipped_bit_in_a_tensor_is_found(tmp_path: Path, part: str) -> None:
    save_state(tmp_path, some_state())
    path = tmp_path / FILE
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    begin, _ = json.loads(data[8 : 8 + size])[part]["data_offsets"]
    data[8 + size + begin] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"damaged.*checksum.*remove .*model.safetensors: copy"):
        load_state(tmp_path, identity="abc", seed=7)


def test_a_changed_digit_in_the_progress_is_found(tmp_path: Path) -> None:
    save_state(tmp_path, some_state())
    path = tmp_path / FILE
    data = path.read_bytes()
    assert data.count(b'total\\": 41') == 1
    path.write_bytes(data.replace(b'total\\": 41', b'total\\": 42'))
    with pytest.raises(ValueError, match="damaged.*checksum"):
        load_state(tmp_path, identity="abc", seed=7)


def test_values_of_any_kind_have_a_checksum(tmp_path: Path) -> None:
    kinds = (torch.float64, torch.bfloat16, torch.complex64, torch.bool, torch.int64)
    tensors = {
        f"{kind}-{shape}": torch.ones(shape, dtype=kind)
        for kind in kinds
        for shape in [(), (0,), (3,)]
    }
    state_module.write_tensors(tmp_path / FILE, tensors, {"a": 1})
    header, found = state_module.read_tensors(tmp_path / FILE)
    assert header == {"a": 1} and found.keys() == tensors.keys()


def test_a_state_without_a_checksum_is_still_read(tmp_path: Path) -> None:
    save_state(tmp_path, some_state())
    with safe_open(tmp_path / FILE, framework="pt") as file:
        header = {"header": file.metadata()["header"]}
    save_file(load_file(tmp_path / FILE), tmp_path / FILE, metadata=header)
    found = load_state(tmp_path, identity="abc", seed=7)
    assert found is not None and found.progress == PROGRESS


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_state(tmp_path, some_state())
    monkeypatch.setattr(state_module, "VERSION", 2)
    with pytest.raises(
        ValueError, match=r"version 1; this program reads pibert-state of version 2"
    ):
        load_state(tmp_path, identity="abc", seed=7)


def test_where_the_file_cannot_grow_the_last_state_stays(tmp_path: Path) -> None:
    save_state(tmp_path, some_state(value=1.0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError) as raised:
            save_state(tmp_path, some_state(size=20_000, value=2.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.errno == errno.EFBIG
    assert os.listdir(tmp_path) == [FILE]
    found = load_state(tmp_path, identity="abc", seed=7)
    assert found is not None and found.model["a.weight"][0, 0] == 1.0


def damage(path: Path, kind: str) -> None:
    data = bytearray(path.read_bytes())
    if kind == "cut":
        data = data[: len(data) // 2]
    elif kind == "bit":
        data[-1] ^= 1
    elif kind == "empty":
        data = bytearray()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind != "missing":
        path.write_bytes(data)


@pytest.mark.parametrize("kind", ["cut", "bit", "empty", "pipe", "missing"])
def test_the_state_before_a_damaged_one_is_taken_and_that_is_said(
    tmp_path: Path, kind: str
) -> None:
    save_state(tmp_path, some_state(value=1.0))
    save_state(tmp_path, some_state(value=2.0))
    damage(tmp_path / FILE, kind)
    said: list[str] = []
    found = load_state(tmp_path, identity="abc", seed=7, say=said.append)
    assert found is not None and found.model["a.weight"][0, 0] == 1.0
    assert found.path == tmp_path / PREVIOUS
    (text,) = said
    assert str(tmp_path / FILE) in text and f"going on from {tmp_path / PREVIOUS}" in text
    assert "step 41" in text


@pytest.mark.parametrize(
    ("header", "garbled"),
    [
        ({}, "progress"),
        ({"progress": 3}, ""),
        ({"progress": {"epoch": "many"}}, "epoch: 'many'"),
        ({"progress": {"logs": None}}, "logs: None"),
    ],
)
def test_a_state_without_its_progress_is_damaged(
    tmp_path: Path, header: dict[str, object], garbled: str
) -> None:
    known = {"format": "pibert-state", "version": 1, "identity": "abc", "seed": 7}
    state_module.write_tensors(tmp_path / FILE, {"model/a": torch.ones(2)}, known | header)
    with pytest.raises(ValueError, match=f"is damaged.*{garbled}"):
        load_state(tmp_path, identity="abc", seed=7)


def test_leftovers_of_a_dead_writer_are_cleared_away(tmp_path: Path) -> None:
    save_state(tmp_path, some_state())
    left = tmp_path / f".{FILE}.999999999-0badcafe.partial"
    left.write_bytes(b"half")
    load_state(tmp_path, identity="abc", seed=7)
    assert os.listdir(tmp_path) == [FILE]


def test_generators_go_on_where_they_were(tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [random.random(), random.gauss(), np.random.normal(), torch.rand(()).item()]

    before = generator_states(torch.device("cpu"))
    draw()  # leaves the normal generators of python and numpy with one in store
    states = generator_states(torch.device("cpu"))
    wanted = draw()
    assert draw() != wanted
    set_generator_states(states, torch.device("cpu"))
    assert draw() == wanted
    set_generator_states(before, torch.device("cpu"))
