"""The loop: what it computes, when it ends, what it leaves alone, and what stops it."""

import gc
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from pibert.data.dataset import BatchOrder
from pibert.fields import Batch
from pibert.training import checkpoints, guards
from pibert.training.engine import Hardware
from pibert.training.optimizers import learning_rate
from pibert.training.state import load_state
from tests.helpers import refused
from tests.training.setups import (
    Listener,
    assert_equal_weights,
    at_call,
    interrupt,
    make_model,
    objective,
    refuse,
    samples,
    timeless,
    train,
)

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


def test_samples_read_by_workers_give_the_same_weights(tmp_path: Path) -> None:
    held, _ = train(tmp_path / "held")
    read = Hardware(accelerator="cpu", resident=False, workers=1)
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        again, _ = train(tmp_path / "read", hardware=read)
        assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()
    assert_equal_weights(held, again)
    assert timeless(tmp_path / "held") == timeless(tmp_path / "read")


def test_validation_is_in_evaluation_mode_with_the_same_random_numbers(tmp_path: Path) -> None:
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


def test_with_a_running_mean_it_is_what_is_validated_and_kept(tmp_path: Path) -> None:
    model, fitted = train(tmp_path, ema=0.9, epochs=1)
    stored = load_state(tmp_path, identity="same", seed=5)
    assert stored is not None
    best = load_file(tmp_path / "best.safetensors")
    for name, value in stored.mean.items():
        assert torch.equal(best[name], value), name
    assert not torch.equal(best["positions"], model.state_dict()["positions"])
    evaluated = make_model().eval()
    evaluated.load_state_dict(best)
    batch = samples(6, seed=70).batch(range(5)).reseeded(5, 0)
    with torch.no_grad():
        loss, _ = objective(evaluated, batch)
    assert loss.item() == pytest.approx(fitted.metrics["loss"], rel=1e-5)


def test_bf16_trains_float32_weights(tmp_path: Path) -> None:
    listener = Listener()
    hardware = Hardware(accelerator="cpu", precision="bf16", profile=True)
    model, _ = train(tmp_path / "half", hardware=hardware, reporter=listener)
    exact = Listener()
    train(tmp_path / "full", reporter=exact)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    half, full = (who.records[-1]["train"]["loss"] for who in (listener, exact))
    assert half != full and half == pytest.approx(full, rel=0.05)
    shares = listener.records[1]["timing"]
    assert sum(shares.values()) == pytest.approx(1.0) and shares["backward"] > 0


# When it ends


def test_patience_ends_a_run_that_does_not_improve(tmp_path: Path) -> None:
    # The noise of the validation samples is the same every time.
    _, fitted = train(tmp_path, epochs=9, patience=2, monitor="noise")
    assert (fitted.epochs, fitted.best_epoch, fitted.stopped_early) == (3, 1, True)
    assert [line["best"] for line in timeless(tmp_path)[1:]] == [True, False, False]


def test_without_validation_every_epoch_is_kept(tmp_path: Path) -> None:
    model, fitted = train(tmp_path, valid=False, patience=1)
    assert (fitted.epochs, fitted.best_epoch, fitted.stopped_early) == (3, 3, False)
    best = load_file(tmp_path / "best.safetensors")
    assert all(torch.equal(best[name], value) for name, value in model.state_dict().items())
    assert fitted.metrics.keys() == {"loss", "absolute", "noise"}


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first, fitted = train(tmp_path)
    listener = Listener()
    model, again = train(tmp_path, objectives=at_call(1, refuse), reporter=listener)
    assert again.resumed_from == again.steps == fitted.steps == 12
    assert again.metrics == fitted.metrics
    assert listener.started == (12, 12) and not listener.steps
    assert_equal_weights(first, model)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_step(tmp_path: Path, number: signal.Signals) -> None:
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


# What it leaves alone


def test_the_random_generators_of_the_caller_are_left_alone(tmp_path: Path) -> None:
    model = make_model(dropout=0.3)
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    train(tmp_path, model=model, epochs=1)
    assert torch.equal(torch.rand(3), wanted)


def test_a_model_is_compiled_only_in_training(
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


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_run_on_a_gpu_resumes(tmp_path: Path, cuda_graphs: bool, precision: Any) -> None:
    hardware = Hardware(
        accelerator="cuda", precision=precision, cuda_graphs=cuda_graphs, profile=True
    )
    plan: dict[str, Any] = {"dropout": 0.2, "ema": 0.9, "hardware": hardware, "epochs": 4}
    listener = Listener()
    whole, _ = train(tmp_path / "whole", **plan, reporter=listener)
    assert not listener.lines
    with pytest.raises(KeyboardInterrupt):
        # A graph replays kernels, not Python: only the first two pieces of a kind call it.
        train(tmp_path / "run", **plan, objectives=at_call(2, interrupt))
    model, fitted = train(tmp_path / "run", **plan)
    assert fitted.resumed_from == 1
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-3, atol=1e-4, msg=name)
    shares = listener.records[-1]["timing"]
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.05)


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    train(tmp_path, epochs=1, identity="this")
    log = (tmp_path / "log.jsonl").read_text()
    with refused("'this'", "'that'"):
        train(tmp_path, epochs=1, identity="that")
    assert (tmp_path / "log.jsonl").read_text() == log


def test_the_state_of_another_model_is_refused(tmp_path: Path) -> None:
    train(tmp_path, epochs=1)
    with refused("model"):
        train(tmp_path, epochs=1, model=nn.Linear(2, 2))


@pytest.mark.parametrize("checkpoint_minutes", [0.0, 1e9])
def test_a_loss_of_nan_stops_with_its_batch(tmp_path: Path, checkpoint_minutes: float) -> None:
    spoil = at_call(10, lambda loss: loss * float("nan"))
    named = ("nan", "epoch 2, step 2", "flow-", "nonfinite.safetensors", "learning rate")
    with refused(*named, error=FloatingPointError):
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

    with refused("norm nan", "epoch 1, step 2", "no state", error=FloatingPointError):
        train(tmp_path, objectives=at_call(3, root), clip=clip)


def test_out_of_memory_names_the_settings_to_lower(tmp_path: Path) -> None:
    def run_out(loss: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with refused("micro_batch, now 2", "bf16", "2.00 GiB", error=MemoryError):
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
    monkeypatch.setattr(checkpoints, "RETRY_SECONDS", 0.0)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("epoch", [1, 3])
def test_a_run_waits_for_room_and_loses_nothing(
    tmp_path: Path, limited: Callable[[int | None], None], epoch: int
) -> None:
    listener = Rescuer(limited, epoch, ROOM_FOR_WEIGHTS)
    model, fitted = train(tmp_path / "full", reporter=listener, checkpoint_minutes=0.0)
    trouble, end = listener.lines
    assert "could not write the state" in trouble and "File too large; training waits" in trouble
    assert "is written; training continues" in end and "Errno" not in trouble
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
    monkeypatch.setattr(checkpoints, "LONGEST_SECONDS", 0.5)
    listener = Listener(lambda epoch: limited(ROOM_FOR_WEIGHTS if epoch >= 2 else None))
    with refused("state.safetensors", "minutes", "again", error=OSError):
        train(tmp_path, reporter=listener, checkpoint_minutes=checkpoint_minutes)
    assert all("training waits until it can" in text for text in listener.lines)
    limited(None)
    stored = load_state(tmp_path, identity="same", seed=5)
    assert stored is not None and stored.progress.total == (8 if checkpoint_minutes == 0 else 4)
    _, fitted = train(tmp_path)  # goes on
    assert fitted.resumed_from == stored.progress.total and fitted.steps == 12


def test_an_unknown_monitor_is_found_before_training(tmp_path: Path) -> None:
    with refused("'accuracy'", "loss, absolute, noise"):
        train(tmp_path, epochs=1, monitor="accuracy", objectives=at_call(1, refuse))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ema", [None, 0.9])
@pytest.mark.parametrize("valid", [True, False])
def test_lost_best_weights_are_written_again(
    tmp_path: Path, ema: float | None, valid: bool
) -> None:
    saved: list[tuple[dict[str, Tensor], Mapping[str, Any]]] = []

    def save_best(model: nn.Module, metrics: Mapping[str, Any]) -> None:
        assert not model.training
        saved.append(({k: v.clone() for k, v in model.state_dict().items()}, dict(metrics)))

    plan: dict[str, Any] = {"save_best": save_best, "ema": ema, "valid": valid}
    _, fitted = train(tmp_path, **plan)
    assert fitted.best_epoch == fitted.epochs == len(saved) == 3
    train(tmp_path, **plan, best_exists=lambda: True)
    assert len(saved) == 3
    train(tmp_path, **plan, best_exists=lambda: False)
    (wanted, metrics), (found, again) = saved[2:]
    assert metrics == again == fitted.metrics
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@pytest.mark.parametrize("call", [10, None])
def test_lost_best_weights_of_an_earlier_epoch_are_reported_missing(
    tmp_path: Path, call: int | None
) -> None:
    """The state is in the middle of the epoch after the best one, or some epochs after it."""
    plan: dict[str, Any] = {"monitor": "noise"}
    if call is None:
        train(tmp_path, **plan)
    else:
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, **plan, objectives=at_call(call, interrupt))
    log = (tmp_path / "log.jsonl").read_text()
    with refused("epoch 1", "missing", "another folder"):
        train(tmp_path, **plan, best_exists=lambda: False)
    assert (tmp_path / "log.jsonl").read_text() == log
    _, fitted = train(tmp_path, **plan, best_exists=lambda: True)
    assert (fitted.epochs, fitted.best_epoch) == (3, 1)
