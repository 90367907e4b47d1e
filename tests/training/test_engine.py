"""The loop: what it computes, what it tells, when it ends, and what it leaves alone."""

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from pibert.data.dataset import BatchOrder
from pibert.fields import Batch
from pibert.training import guards, processes
from pibert.training.engine import Hardware
from pibert.training.objectives import Objective
from pibert.training.optimizers import learning_rate
from pibert.training.state import load_state
from tests.training.setups import (
    Listener,
    assert_equal_weights,
    at_call,
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
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        again, _ = train(tmp_path / "read", hardware=read)
        assert set(multiprocessing.active_children()) <= before
    finally:
        gc.enable()
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
        assert record["train"]["loss"] == pytest.approx(mean, rel=1e-5)
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
    assert loss.item() == pytest.approx(fitted.metrics["loss"], rel=1e-5)


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
    model, again = train(tmp_path, objectives=at_call(1, refuse), reporter=listener)
    assert again.resumed_from == again.steps == fitted.steps == 12
    assert again.metrics == fitted.metrics
    assert listener.started == (12, 12) and not listener.steps
    assert_equal_weights(first, model)


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
