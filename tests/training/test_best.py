"""When the best weights are gone: they are written again, or the run says that they cannot be."""

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training.setups import (
    QUICK,
    at_call,
    learn_by_hand,
    train,
)


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
