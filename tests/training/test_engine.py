"""The loop: what it computes, what it tells, and how it ends when something is wrong."""

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from pibert.data.dataset import BatchOrder
from pibert.fields import Batch
from pibert.training import guards, processes
from pibert.training.engine import FitConfig, Fitted, Hardware, fit, launch
from pibert.training.objectives import Objective
from pibert.training.optimizers import learning_rate
from pibert.training.state import load_state
from tests.training.setups import CPU, QUICK, make_model, objective, samples, timeless, train


class Listener:
    """Remembers what it was told."""

    def __init__(self, on_epoch: Callable[[int], None] = lambda epoch: None) -> None:
        self.on_epoch = on_epoch
        self.started: tuple[int, int] | None = None
        self.steps: list[tuple[int, float]] = []
        self.records: list[Mapping[str, Any]] = []
        self.said: list[str] = []

    def start(self, total_steps: int, done: int) -> None:
        self.started = (total_steps, done)

    def step(self, done: int, loss: float) -> None:
        self.steps.append((done, loss))

    def epoch(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)
        self.on_epoch(record["epoch"])

    def say(self, text: str) -> None:
        self.said.append(text)

    def simulated(self, samples: int | float) -> None: ...


def at_call(number: int, act: Callable[[Tensor], Tensor]) -> Callable[[int], Objective]:
    """Objectives whose n-th loss in training is changed."""
    calls = 0

    def changed(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        nonlocal calls
        loss, logs = objective(model, batch)
        calls += model.training
        return (act(loss) if model.training and calls == number else loss), logs

    return lambda epoch: changed


def assert_equal_weights(a: nn.Module, b: nn.Module) -> None:
    for name, value in a.state_dict().items():
        assert torch.equal(value, b.state_dict()[name]), name


# What it computes


def test_the_loop_is_the_plain_loop_written_out_by_hand(tmp_path: Path) -> None:
    """One process, no micro-batches, no decay of vectors; everything else by plain torch."""
    data = samples(8, 7)
    model = make_model()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": 2e-5},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99))
    order = BatchOrder(len(data), 4, seed=5)
    mean = {name: value.clone() for name, value in model.state_dict().items()}
    step = 0
    for epoch in range(3):
        order.go_to(epoch)
        for indices in order:
            loss, _ = objective(model, data.batch(indices).reseeded(5, epoch))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, total=12, warmup=2, peak=3e-3, minimum=1e-7)
            optimizer.step()
            step += 1
            decay = min(0.9, step / (step + 9))
            for name, value in model.state_dict().items():
                mean[name].lerp_(value, 1 - decay)
    trained, fitted = train(tmp_path, micro_batch=None, ema=0.9)
    assert fitted.steps == step == 12
    stored = load_state(tmp_path, identity="same", seed=5)
    assert stored is not None
    for name, value in stored.mean.items():
        torch.testing.assert_close(value, mean[name], rtol=1e-5, atol=1e-6, msg=name)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(
            trained.state_dict()[name], value, rtol=1e-6, atol=1e-7, msg=name
        )


def test_accumulated_pieces_equal_one_big_batch(tmp_path: Path) -> None:
    whole, parted = Listener(), Listener()
    train(tmp_path / "whole", micro_batch=None, reporter=whole)
    train(tmp_path / "parted", micro_batch=2, reporter=parted)
    assert [loss for _, loss in parted.steps] == pytest.approx(
        [loss for _, loss in whole.steps], rel=1e-5
    )
    for a, b in zip(whole.records, parted.records, strict=True):
        assert b["train"] == pytest.approx(a["train"], rel=1e-5, abs=1e-8)
        assert b["valid"] == pytest.approx(a["valid"], rel=1e-5, abs=1e-8)


def test_samples_read_by_workers_give_the_same_weights(tmp_path: Path) -> None:
    held, _ = train(tmp_path / "held")
    read = Hardware(accelerator="cpu", resident=False, workers=1)
    again, _ = train(tmp_path / "read", hardware=read)
    assert_equal_weights(held, again)
    assert timeless(tmp_path / "held") == timeless(tmp_path / "read")


def test_the_log_is_the_mean_over_the_samples_of_the_epoch(tmp_path: Path) -> None:
    listener = Listener()
    train(tmp_path, reporter=listener)
    losses = [loss for _, loss in listener.steps]
    sizes = [4, 4, 4, 1]
    for epoch, record in enumerate(listener.records):
        own = losses[4 * epoch : 4 * epoch + 4]
        mean = sum(n * loss for n, loss in zip(sizes, own, strict=True)) / 13
        assert record["train"]["loss"] == pytest.approx(mean, rel=1e-6)
    assert [done for done, _ in listener.steps] == list(range(1, 13))
    assert listener.started == (12, 0)
    assert [line for line in timeless(tmp_path) if line["kind"] == "epoch"] == [
        {k: v for k, v in record.items() if "second" not in k} for record in listener.records
    ]


def test_validation_is_in_evaluation_mode_with_the_same_chances_every_time(tmp_path: Path) -> None:
    seen: list[tuple[bool, bool, list[int]]] = []

    def spy(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        if not model.training:
            seen.append((torch.is_grad_enabled(), model.training, batch.seeds.tolist()))
        return objective(model, batch)

    _, fitted = train(tmp_path, objectives=lambda epoch: spy, dropout=0.3)
    pieces = 3  # five samples by two
    assert len(seen) == 3 * pieces
    assert seen[:pieces] == seen[pieces : 2 * pieces] == seen[2 * pieces :]
    assert not any(with_gradients for with_gradients, _, _ in seen)
    assert fitted.metrics["loss"] > 0


def test_every_epoch_has_its_objective_and_the_last_one_judges(tmp_path: Path) -> None:
    seen: list[tuple[int, bool]] = []

    def objectives(epoch: int) -> Objective:
        def spy(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
            seen.append((epoch, model.training))
            return objective(model, batch)

        return spy

    train(tmp_path, objectives=objectives)
    assert {epoch for epoch, training in seen if training} == {0, 1, 2}
    assert {epoch for epoch, training in seen if not training} == {2}


def test_with_a_running_mean_it_is_what_is_validated_and_kept(tmp_path: Path) -> None:
    model, fitted = train(tmp_path, ema=0.9, epochs=1)
    stored = load_state(tmp_path, identity="same", seed=5)
    assert stored is not None
    best = load_file(tmp_path / "best.safetensors")
    for name, value in stored.mean.items():
        assert torch.equal(best[name], value), name
    assert not torch.equal(best["positions"], model.state_dict()["positions"])
    judged = make_model().eval()
    judged.load_state_dict(best)
    batch = samples(6, seed=70).batch(range(5)).reseeded(5, 0)
    with torch.no_grad():
        loss, _ = objective(judged, batch)
    assert loss.item() == pytest.approx(fitted.metrics["loss"], rel=1e-6)


def test_bf16_trains_float32_weights(tmp_path: Path) -> None:
    listener = Listener()
    hardware = Hardware(accelerator="cpu", precision="bf16")
    model, _ = train(tmp_path / "half", hardware=hardware, reporter=listener)
    exact = Listener()
    train(tmp_path / "full", reporter=exact)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    half, full = (who.records[-1]["train"]["loss"] for who in (listener, exact))
    assert half != full and half == pytest.approx(full, rel=0.05)


# When it ends


def test_patience_ends_a_run_that_does_not_improve(tmp_path: Path) -> None:
    # The noise of the validation samples is the same every time.
    _, fitted = train(tmp_path, epochs=9, patience=2, monitor="noise")
    assert (fitted.epochs, fitted.best_epoch, fitted.stopped_early) == (3, 1, True)
    assert [line["best"] for line in timeless(tmp_path)[1:]] == [True, False, False]


def test_patience_counts_only_epochs_that_were_validated(tmp_path: Path) -> None:
    _, fitted = train(tmp_path, epochs=9, patience=3, validate_every=2, monitor="noise")
    assert (fitted.epochs, fitted.best_epoch) == (6, 2)
    validated = [line["epoch"] for line in timeless(tmp_path)[1:] if line["valid"]]
    assert validated == [2, 4, 6]


def test_without_validation_every_epoch_is_kept(tmp_path: Path) -> None:
    model, fitted = train(tmp_path, valid=False, patience=1)
    assert (fitted.epochs, fitted.best_epoch, fitted.stopped_early) == (3, 3, False)
    best = load_file(tmp_path / "best.safetensors")
    assert all(torch.equal(best[name], value) for name, value in model.state_dict().items())
    assert fitted.metrics.keys() == {"loss", "absolute", "noise"}


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first, fitted = train(tmp_path)
    listener = Listener()
    model, again = train(tmp_path, objectives=at_call(1, _fail), reporter=listener)
    assert again.resumed_from == again.steps == fitted.steps == 12
    assert again.metrics == fitted.metrics
    assert listener.started == (12, 12) and not listener.steps
    assert_equal_weights(first, model)


def _fail(loss: Tensor) -> Tensor:
    raise AssertionError("there is nothing to train")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_step_with_the_state_saved(
    tmp_path: Path, number: signal.Signals
) -> None:
    def ask(loss: Tensor) -> Tensor:
        os.kill(os.getpid(), number)
        return loss

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt, match=r"step 6 .epoch 2, step 2 of 4.*same command"):
        train(tmp_path / "run", dropout=0.2, objectives=at_call(10, ask))
    assert signal.getsignal(number) is before
    stored = load_state(tmp_path / "run", identity="same", seed=5)
    assert stored is not None and (stored.progress.epoch, stored.progress.step) == (1, 2)
    model, fitted = train(tmp_path / "run", dropout=0.2)
    assert fitted.resumed_from == 6
    whole, _ = train(tmp_path / "whole", dropout=0.2)
    assert_equal_weights(model, whole)
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


def test_chances_that_come_from_the_generators_of_the_process_go_on_too(tmp_path: Path) -> None:
    def chancy(ask_at: int | None) -> Callable[[int], Objective]:
        calls = 0

        def draw(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
            nonlocal calls
            loss, logs = objective(model, batch)
            calls += 1
            if calls == ask_at:
                os.kill(os.getpid(), signal.SIGINT)
            # Not from Python's own generator: the checks of types in these tests draw from it.
            return loss, logs | {"chance": torch.tensor(np.random.random())}

        return lambda epoch: draw

    before = np.random.get_state()
    try:
        np.random.seed(1)
        train(tmp_path / "whole", objectives=chancy(None))
        np.random.seed(1)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "run", objectives=chancy(5))
        np.random.seed(2)
        train(tmp_path / "run", objectives=chancy(None))
    finally:
        np.random.set_state(before)
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


def test_the_time_of_an_epoch_has_that_before_the_interruption(tmp_path: Path) -> None:
    def wait_and_ask(loss: Tensor) -> Tensor:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)
        return loss

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, objectives=at_call(5, wait_and_ask))
    listener = Listener()
    train(tmp_path, reporter=listener)
    assert listener.records[0]["seconds"] > 0.5


# When something is wrong


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


def learn_by_hand(
    folder: Path,
    save_best: Callable[[nn.Module, Mapping[str, Any]], None],
    *,
    config: FitConfig = QUICK,
    valid: bool = True,
    **options: Any,
) -> Fitted:
    return fit(
        make_model(),
        lambda epoch: objective,
        samples(8, 7),
        samples(6, seed=70) if valid else None,
        config,
        folder=folder,
        seed=5,
        hardware=CPU,
        save_best=save_best,
        **options,
    )


def test_an_unknown_monitor_is_found_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'accuracy' is not among.*loss, absolute, noise"):
        train(tmp_path, epochs=1, monitor="accuracy", objectives=at_call(1, _fail))
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


# When the best weights are gone


@pytest.mark.parametrize("ema", [None, 0.9])
@pytest.mark.parametrize("valid", [True, False])
def test_best_weights_that_are_gone_are_written_again_from_the_state(
    tmp_path: Path, ema: float | None, valid: bool
) -> None:
    saved: list[tuple[dict[str, Tensor], Mapping[str, Any]]] = []

    def save_best(model: nn.Module, metrics: Mapping[str, Any]) -> None:
        assert not model.training
        saved.append(({k: v.clone() for k, v in model.state_dict().items()}, dict(metrics)))

    config = replace(QUICK, ema=ema)
    fitted = learn_by_hand(tmp_path, save_best, config=config, valid=valid)
    assert fitted.best_epoch == fitted.epochs == len(saved) == 3
    learn_by_hand(tmp_path, save_best, config=config, valid=valid, best_is_there=lambda: True)
    assert len(saved) == 3
    learn_by_hand(tmp_path, save_best, config=config, valid=valid, best_is_there=lambda: False)
    (wanted, metrics), (found, again) = saved[2:]
    assert metrics == again == fitted.metrics
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@pytest.mark.parametrize("call", [10, None])
def test_best_weights_that_the_state_does_not_have_cannot_be_replaced(
    tmp_path: Path, call: int | None
) -> None:
    """The state is in the middle of the epoch after the best one, or some epochs after it."""

    def ask(loss: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        return loss

    plan: dict[str, Any] = {"monitor": "noise"}
    if call is None:
        train(tmp_path, **plan)
    else:
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, **plan, objectives=at_call(call, ask))
    log = (tmp_path / "log.jsonl").read_text()
    with pytest.raises(ValueError, match="of epoch 1, is gone.*anew in another folder"):
        train(tmp_path, **plan, best_is_there=lambda: False)
    assert (tmp_path / "log.jsonl").read_text() == log
    _, fitted = train(tmp_path, **plan, best_is_there=lambda: True)
    assert (fitted.epochs, fitted.best_epoch) == (3, 1)


def test_without_validation_the_next_epoch_replaces_weights_that_are_gone(tmp_path: Path) -> None:
    def ask(loss: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        return loss

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, valid=False, objectives=at_call(10, ask))
    (tmp_path / "best.safetensors").unlink()
    _, fitted = train(tmp_path, valid=False, best_is_there=lambda: False)
    assert fitted.best_epoch == 3 and (tmp_path / "best.safetensors").exists()


def test_a_run_without_best_weights_yet_misses_none(tmp_path: Path) -> None:
    def ask(loss: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        return loss

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, objectives=at_call(3, ask))
    _, fitted = train(tmp_path, best_is_there=lambda: False)
    assert fitted.resumed_from == 2 and fitted.epochs == 3


def test_best_weights_that_cannot_be_written_again_stop_the_run(tmp_path: Path) -> None:
    def refuse(model: nn.Module, metrics: Mapping[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    learn_by_hand(tmp_path, lambda model, metrics: None)
    with pytest.raises(OSError, match="is gone and could not be written again: No space left"):
        learn_by_hand(tmp_path, refuse, best_is_there=lambda: False)


# Devices


@pytest.mark.parametrize(
    ("hardware", "gpus", "expected"),
    [
        (Hardware(accelerator="cuda"), 0, "accelerator=cuda.*no such device.*accelerator=cpu"),
        (Hardware(accelerator="cuda", devices=4), 0, "accelerator=cuda.*no such device"),
        (Hardware(accelerator="mps"), 0, "accelerator=mps.*no such device.*accelerator=cpu"),
        (
            Hardware(accelerator="cuda", devices=4),
            2,
            "devices=4 .*finds 2 .*set hardware.devices=2",
        ),
        (
            Hardware(accelerator="auto", devices=3),
            1,
            "devices=3 .*finds 1 .*set hardware.devices=1",
        ),
    ],
    ids=str,
)
def test_devices_that_are_not_there_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, hardware: Hardware, gpus: int, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=expected) as raised:
        launch(hardware)
    assert "\n" not in str(raised.value)


def test_more_processes_than_devices_from_outside_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for name, value in (
        ("WORLD_SIZE", "4"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("TORCHELASTIC_RUN_ID", "1"),
    ):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="4 processes were started on a node.*start 2 on each"):
        launch(Hardware(accelerator="cuda"))


def test_what_is_there_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for accelerator, wanted, gpus in (("cuda", 2, 2), ("cpu", 5, 0), ("cpu", 3, 1), ("auto", 4, 0)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        processes._check_devices(accelerator, wanted, started_outside=False)


def test_without_lightning_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.fabric", "lightning_fabric"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'pibert-cfd\[train\]'"):
        launch(Hardware(accelerator="cpu"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs"),
        ({"micro_batch": 0}, "micro_batch"),
        ({"ema": 1.0}, "ema"),
        ({"min_learning_rate": 1.0}, "min_learning_rate <= learning_rate"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"clip": 0.0}, "clip"),
        ({"checkpoint_minutes": -1.0}, "checkpoint_minutes"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FitConfig(**change)


# What it leaves alone


def test_the_random_generators_of_the_caller_are_left_alone(tmp_path: Path) -> None:
    model = make_model(dropout=0.3)
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    train(tmp_path, model=model, epochs=1)
    assert torch.equal(torch.rand(3), wanted)


def test_a_model_is_compiled_only_while_it_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            used.append(function.__name__)
            return function(*arguments)

        return called

    monkeypatch.setattr(guards, "compile_if_possible", mark)
    hardware = Hardware(accelerator="cpu", compile=True)
    model, _ = train(tmp_path / "compiled", hardware=hardware)
    plain, _ = train(tmp_path / "plain")
    assert set(used) == {"forward"}
    assert not {"forward", "reconstruct", "consistency"} & set(model.__dict__)
    assert_equal_weights(model, plain)


def test_the_time_of_an_epoch_is_shared_out_when_asked_for(tmp_path: Path) -> None:
    listener = Listener()
    train(tmp_path, hardware=Hardware(accelerator="cpu", profile=True), reporter=listener)
    shares = listener.records[1]["timing"]
    parts = ("data", "forward", "backward", "optimizer", "validation", "checkpoint", "other")
    assert set(shares) == set(parts)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["forward"] > 0 and shares["backward"] > 0


def test_processes_started_by_torchrun_or_srun_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lightning = processes._find_fabric()
    for name, value in (("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    assert processes._counted_outside(lightning) is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert processes._counted_outside(lightning) == (4, 2)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    for name, value in (("NTASKS", "6"), ("NNODES", "3"), ("JOB_NAME", "train"), ("PROCID", "0")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert processes._counted_outside(lightning) == (2, 3)


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_run_on_a_gpu_goes_on_to_the_end_of_one_that_was_not_interrupted(
    tmp_path: Path, record: bool, precision: Any
) -> None:
    def ask(loss: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        return loss

    hardware = Hardware(accelerator="cuda", precision=precision, record=record, profile=True)
    plan: dict[str, Any] = {"dropout": 0.2, "ema": 0.9, "hardware": hardware, "epochs": 4}
    listener = Listener()
    whole, _ = train(tmp_path / "whole", **plan, reporter=listener)
    assert not listener.said
    with pytest.raises(KeyboardInterrupt):
        # A recording replays kernels, not Python: only the first two pieces of a kind call it.
        train(tmp_path / "run", **plan, objectives=at_call(2, ask))
    model, fitted = train(tmp_path / "run", **plan)
    assert fitted.resumed_from == 1
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-3, atol=1e-4, msg=name)
    shares = listener.records[-1]["timing"]
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.gpu
def test_a_gpu_stops_at_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    spoil = at_call(10, lambda loss: loss * float("nan"))
    with pytest.raises(FloatingPointError, match="loss of nan in epoch 2, step 2 .step 6 of"):
        # A recording would replay kernels without asking the objective again.
        train(tmp_path, objectives=spoil, hardware=Hardware(accelerator="cuda", record=False))
    stored = load_state(tmp_path, identity="same", seed=5)
    assert stored is not None and stored.progress.total == 4
