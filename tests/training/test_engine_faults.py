"""When something is wrong: the run stops or goes on as it should, and says so in one line."""

import os
import resource
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from pibert.fields import Batch
from pibert.training.state import load_state
from tests.training.setups import (
    Listener,
    assert_equal_weights,
    at_call,
    learn_by_hand,
    objective,
    refuse,
    samples,
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


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    train(tmp_path, epochs=1)
    path = tmp_path / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is damaged"):
        train(tmp_path, epochs=1)


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


def test_a_full_disk_is_survived(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(epoch: int) -> None:
        # Room for the log and the best weights, not for the state.
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000 if epoch == 2 else soft, hard))

    listener = Listener(fill)
    try:
        model, fitted = train(tmp_path / "full", reporter=listener, checkpoint_minutes=0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    # After epoch 2 and in every step of epoch 3; the end of epoch 3 has room again.
    assert len(listener.said) == 5
    assert all("could not save the state" in text and "goes on" in text for text in listener.said)
    assert all("the last one is still there" in text for text in listener.said)
    assert fitted.state_saved
    assert not list((tmp_path / "full").glob(".*.partial"))
    assert fitted.steps == 12
    whole, _ = train(tmp_path / "whole")
    assert_equal_weights(model, whole)


def test_where_no_state_was_ever_saved_nobody_says_there_is_one(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    listener = Listener()
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        _, fitted = train(tmp_path, epochs=1, reporter=listener)
        _, again = train(tmp_path, epochs=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (text,) = listener.said
    assert "could not save" in text and "there is none from before" in text
    assert "still there" not in text and "Errno" not in text
    assert not fitted.state_saved
    assert again.resumed_from is None and again.steps == 4  # it trains again, as it says
    _, whole = train(tmp_path, epochs=1)
    assert whole.state_saved and train(tmp_path, epochs=1)[1].state_saved


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


def test_best_weights_that_could_not_be_written_are_not_called_best(tmp_path: Path) -> None:
    calls = 0

    def save_best(model: nn.Module, metrics: Mapping[str, Any]) -> None:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise OSError(28, "No space left on device")

    listener = Listener()
    learn_by_hand(tmp_path, save_best, reporter=listener)
    assert [record["best_epoch"] for record in listener.records] == [0, 0, 3]
    assert (
        listener.said
        == [
            "could not write the best weights: No space left on device; training goes on, "
            "there are none yet"
        ]
        * 2
    )


def test_the_best_weights_before_those_that_could_not_be_written_still_count(
    tmp_path: Path,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(epoch: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10 if epoch == 1 else soft, hard))

    def save_best(model: nn.Module, metrics: Mapping[str, Any]) -> None:
        (tmp_path / "best").write_bytes(b"more than ten bytes")

    listener = Listener(fill)
    try:
        learn_by_hand(tmp_path, save_best, reporter=listener)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [record["best_epoch"] for record in listener.records] == [1, 1, 3]
    assert (
        "best weights: File too large; training goes on, those of epoch 1 still count"
        in " ".join(listener.said)
    )
    assert "Errno" not in " ".join(listener.said)


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
