"""Devices and processes: what is not there is refused before anything starts."""

import sys
from typing import Any

import pytest
import torch

from pibert.training import processes
from pibert.training.engine import FitConfig, Hardware, launch


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
