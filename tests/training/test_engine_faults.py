"""When something is wrong: the run stops or goes on as it should, and says so in one line."""

import os
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from pibert.fields import Batch
from pibert.training import patience
from pibert.training.state import FILE, PREVIOUS, has_state, load_state, save_state
from tests.training.setups import (
    Listener,
    assert_equal_weights,
    at_call,
    learn_by_hand,
    objective,
    refuse,
    samples,
    timeless,
    train,
)


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    train(tmp_path, epochs=1, identity="this")
    log = (tmp_path / "log.jsonl").read_text()
    with pytest.raises(ValueError, match="another configuration .identity 'this', expected 'that'"):
        train(tmp_path, epochs=1, identity="that")
    assert (tmp_path / "log.jsonl").read_text() == log


def test_the_state_of_another_model_is_refused(tmp_path: Path) -> None:
    train(tmp_path, epochs=1)
    with pytest.raises(ValueError, match="does not fit this model"):
        train(tmp_path, epochs=1, model=nn.Linear(2, 2))


def test_two_damaged_states_are_refused(tmp_path: Path) -> None:
    train(tmp_path, epochs=2)
    for name in (FILE, PREVIOUS):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=f"{PREVIOUS} is damaged.*remove {FILE} and {PREVIOUS}"):
        train(tmp_path, epochs=2)


@pytest.mark.parametrize("checkpoint_minutes", [0.0, 1e9])
def test_a_loss_that_is_not_finite_stops_with_its_batch(
    tmp_path: Path, checkpoint_minutes: float
) -> None:
    spoil = at_call(10, lambda loss: loss * float("nan"))
    expected = (
        r"loss of nan in epoch 2, step 2 .step 6 of.*trajectories flow-.*nonfinite.safetensors, "
        r"the last saved state is good.*lower the learning rate, in another run folder"
    )
    with pytest.raises(FloatingPointError, match=expected):
        train(tmp_path, objectives=spoil, checkpoint_minutes=checkpoint_minutes)
    with safe_open(tmp_path / "nonfinite.safetensors", framework="pt") as file:
        assert '"epoch": 2, "step": 2, "total": 6' in file.metadata()["header"]
        batch = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    data = samples(8, 7)
    for piece in ("0", "1"):
        same = data.batch(batch[f"{piece}/sample"].tolist()).reseeded(5, 1)
        assert torch.equal(batch[f"{piece}/x"], same.x)
        assert torch.equal(batch[f"{piece}/seeds"], same.seeds)
    stored = load_state(tmp_path, identity="same", seed=5)
    assert stored is not None
    assert stored.progress.total == (5 if checkpoint_minutes == 0 else 4)
    assert all(value.isfinite().all() for value in stored.model.values())
    # The state is good: the run goes on from it.
    _, fitted = train(tmp_path)
    assert fitted.steps == 12


@pytest.mark.parametrize("clip", [1.0, None])
def test_a_gradient_that_is_not_finite_stops_too(tmp_path: Path, clip: float | None) -> None:
    def root(loss: Tensor) -> Tensor:
        return loss + (loss - loss.detach()).sqrt().nan_to_num(0.0)

    expected = "gradient of norm nan in epoch 1, step 2.*no state was saved yet"
    with pytest.raises(FloatingPointError, match=expected) as raised:
        train(tmp_path, objectives=at_call(3, root), clip=clip)
    assert "state is good" not in str(raised.value)


def test_out_of_memory_says_what_to_lower(tmp_path: Path) -> None:
    def run_out(loss: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with pytest.raises(MemoryError, match=r"lower micro_batch, now 2, .* to 1 .*bf16.*2.00 GiB"):
        train(tmp_path, objectives=at_call(2, run_out))


@pytest.fixture
def limited() -> Iterator[Callable[[int | None], None]]:
    """Sets how large a file may become, which is a full disk to the writer; None: as before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft if size is None else size, hard))

    yield limit
    limit(None)


class Rescuer(Listener):
    """Makes room as soon as the run says that it waits."""

    def __init__(self, limit: Callable[[int | None], None], at: int, size: int) -> None:
        super().__init__(lambda epoch: limit(size if epoch == at else None))
        self._limit = limit

    def say(self, text: str) -> None:
        super().say(text)
        self._limit(None)


ROOM_FOR_WEIGHTS = 50_000
"""For the log and the best weights of the small model, not for its state."""


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts to write follow each other at once."""
    monkeypatch.setattr(patience, "RETRY_SECONDS", 0.0)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("epoch", [1, 3])
def test_a_run_waits_for_room_and_loses_nothing(
    tmp_path: Path, limited: Callable[[int | None], None], epoch: int
) -> None:
    listener = Rescuer(limited, epoch, ROOM_FOR_WEIGHTS)
    model, fitted = train(tmp_path / "full", reporter=listener, checkpoint_minutes=0.0)
    trouble, end = listener.said
    assert "could not write the state" in trouble and "File too large; training waits" in trouble
    assert "is written; training goes on" in end and "Errno" not in trouble
    assert not list((tmp_path / "full").glob(".*.partial"))
    assert fitted.steps == 12
    whole, _ = train(tmp_path / "whole")
    assert_equal_weights(model, whole)
    assert timeless(tmp_path / "full") == timeless(tmp_path / "whole")


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("checkpoint_minutes", [0.0, 1e9])
def test_a_disk_that_stays_full_stops_the_run(
    tmp_path: Path,
    limited: Callable[[int | None], None],
    monkeypatch: pytest.MonkeyPatch,
    checkpoint_minutes: float,
) -> None:
    monkeypatch.setattr(patience, "LONGEST_SECONDS", 0.05)
    listener = Listener(lambda epoch: limited(ROOM_FOR_WEIGHTS if epoch >= 2 else None))
    expected = r"could not write the state in .*state.safetensors for .* minutes.*goes on from"
    with pytest.raises(OSError, match=expected):
        train(tmp_path, reporter=listener, checkpoint_minutes=checkpoint_minutes)
    (text,) = listener.said
    assert "training waits until it can" in text
    limited(None)
    stored = load_state(tmp_path, identity="same", seed=5)
    assert stored is not None and stored.progress.total == (8 if checkpoint_minutes == 0 else 4)
    _, fitted = train(tmp_path)  # goes on
    assert fitted.resumed_from == stored.progress.total and fitted.steps == 12


@pytest.mark.usefixtures("hasty")
def test_a_run_that_can_keep_nothing_does_not_train_to_its_end(
    tmp_path: Path, limited: Callable[[int | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "LONGEST_SECONDS", 0.0)
    calls = 0

    def save_best(model: nn.Module, metrics: Mapping[str, Any]) -> None:
        nonlocal calls
        calls += 1
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="best weights in .* for 0 minutes: No space left on device"):
        learn_by_hand(tmp_path, save_best)
    assert calls == 1 and not has_state(tmp_path)


@pytest.mark.usefixtures("hasty")
def test_best_weights_are_written_as_soon_as_there_is_room(tmp_path: Path) -> None:
    calls = 0

    def save_best(model: nn.Module, metrics: Mapping[str, Any]) -> None:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise OSError(28, "No space left on device")

    listener = Listener()
    learn_by_hand(tmp_path, save_best, reporter=listener)
    assert [record["best_epoch"] for record in listener.records] == [1, 2, 3]
    assert len(listener.said) == 2 and "No space left on device; training waits" in listener.said[0]


def test_a_signal_ends_the_wait_for_room_and_the_run_comes_to_the_same_end(tmp_path: Path) -> None:
    """The best weights cannot be written: the state that is kept is the one before their epoch."""
    told = Listener()

    def save_best(model: nn.Module, metrics: Mapping[str, Any]) -> None:
        if len(told.records) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
            raise OSError(28, "No space left on device")

    with pytest.raises(KeyboardInterrupt, match="is as it was before.*go on from there"):
        learn_by_hand(tmp_path, save_best, reporter=told)
    fitted = learn_by_hand(tmp_path, lambda model, metrics: None)
    assert fitted.resumed_from == 4 and fitted.steps == 12 and fitted.best_epoch == 3


def test_the_previous_state_gives_way_where_there_is_no_room_for_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, epochs=3)
    assert (tmp_path / PREVIOUS).exists()
    before = load_state(tmp_path, identity="same", seed=5)
    assert before is not None
    fsync = os.fsync

    def refuse_third(descriptor: int) -> None:
        if (tmp_path / PREVIOUS).exists():
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_third)
    save_state(tmp_path, before)
    assert load_state(tmp_path, identity="same", seed=5) is not None
    assert not list(tmp_path.glob(".*.partial"))


@pytest.mark.parametrize(
    ("first_save", "expected"),
    [(True, "is as it was before.*go on from there"), (False, "no state.*begins at the start")],
)
def test_a_stop_that_could_not_save_says_where_the_run_goes_on(
    tmp_path: Path, first_save: bool, expected: str
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_and_ask(loss: Tensor) -> Tensor:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        os.kill(os.getpid(), signal.SIGINT)
        return loss

    try:
        with pytest.raises(KeyboardInterrupt, match=expected):
            train(tmp_path, objectives=at_call(10 if first_save else 3, fill_and_ask))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "state.safetensors").exists() is first_save


def test_an_unknown_monitor_is_found_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'accuracy' is not among.*loss, absolute, noise"):
        train(tmp_path, epochs=1, monitor="accuracy", objectives=at_call(1, refuse))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("monitor", ["loss", "absolute"])
def test_the_look_at_the_monitor_changes_nothing(tmp_path: Path, monitor: str) -> None:
    """It is in evaluation mode, without gradients, and only at the start of a run."""
    calls: list[tuple[bool, bool]] = []

    def spy(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        calls.append((model.training, torch.is_grad_enabled()))
        return objective(model, batch)

    model, _ = train(tmp_path, monitor=monitor, epochs=1, dropout=0.3, objectives=lambda epoch: spy)
    looks = 1 if monitor == "absolute" else 0
    assert calls == [(False, False)] * looks + [(True, True)] * 7 + [(False, False)] * 3
    plain, _ = train(tmp_path / "plain", epochs=1, dropout=0.3)
    assert_equal_weights(model, plain)
    calls.clear()
    train(tmp_path, monitor=monitor, epochs=1, dropout=0.3, objectives=lambda epoch: spy)
    assert calls == []


def test_a_warm_up_longer_than_the_run_is_warned_of(tmp_path: Path) -> None:
    told, silent = Listener(), Listener()
    train(tmp_path / "long", epochs=1, warmup_epochs=1.5, reporter=told)
    (text,) = told.said
    assert "warmup_epochs = 1.5 is more than epochs = 1" in text and "never reaches" in text
    train(tmp_path / "fits", epochs=1, warmup_epochs=1.0, reporter=silent)
    assert silent.said == []
    # Not when there is nothing left to train.
    train(tmp_path / "long", epochs=1, warmup_epochs=1.5, reporter=silent)
    assert silent.said == []
