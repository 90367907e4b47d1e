"""Two real processes train as one does; devices that are not there are refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pibert.data.dataset import BatchOrder
from pibert.training.engine import Hardware, launch
from tests.helpers import refused
from tests.training.setups import make_model, run_worker, timeless


def curves(folder: Path) -> torch.Tensor:
    """Losses and their parts: (epoch, part), training before validation."""
    lines = [line for line in timeless(folder) if line["kind"] == "epoch"]
    return torch.tensor(
        [[line[p][k] for p in ("train", "valid") for k in ("loss", "absolute")] for line in lines],
        dtype=torch.float64,
    )


@pytest.mark.parametrize(
    "setting",
    [
        # 13 samples: the last batch has one, so a process has none.
        {"batch_size": 4, "micro_batch": 1},
        # Shares of 2 and 3, the larger in two pieces; a last batch of 3.
        {"batch_size": 5, "micro_batch": 2, "ema": 0.9, "clip": 0.05},
    ],
    ids=str,
)
def test_two_processes_give_the_loss_curve_of_one(tmp_path: Path, setting: dict[str, Any]) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert run_worker(one, **setting) == [0]
    assert run_worker(two, processes=2, **setting) == [0, 0]
    found, wanted = curves(two), curves(one)
    assert wanted.shape == (3, 4)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)
    assert wanted[-1, 0] < 0.6 * wanted[0, 0]  # something was learned
    for name in ("last", "best"):
        a, b = load_file(one / f"{name}.safetensors"), load_file(two / f"{name}.safetensors")
        # A softmax does not feel the bias of the keys: its gradient is rounding, which Adam scales
        # up to a step of full length.
        weights = [key for key in a if not key.endswith("qkv.bias")]
        for key in weights:
            torch.testing.assert_close(b[key], a[key], rtol=1e-3, atol=1e-5, msg=key)
    # A head that the objective does not use stays as it was, in both.
    start = make_model().state_dict()
    assert torch.equal(a["mpp_head.weight"], start["mpp_head.weight"])
    assert torch.equal(b["mpp_head.weight"], start["mpp_head.weight"])


def test_a_run_may_resume_with_another_number_of_processes(tmp_path: Path) -> None:
    one, changed = tmp_path / "one", tmp_path / "changed"
    assert run_worker(one) == [0]
    # Six pieces in two steps, of which each process has three; the epoch's sums are carried over.
    codes = run_worker(changed, processes=2, die_at=4, micro_batch=1, checkpoint_minutes=0.0)
    assert 0 not in codes
    assert run_worker(changed) == [0]
    torch.testing.assert_close(curves(changed), curves(one), rtol=1e-5, atol=0)


def test_both_processes_stop_at_a_value_that_is_not_finite_in_one(tmp_path: Path) -> None:
    # The first epoch's batches of 13 samples by 4: find the process that meets sample 3.
    orders = [BatchOrder(13, 4, seed=5, rank=rank, world_size=2, micro_batch=2) for rank in (0, 1)]
    blamed = next(rank for rank, order in enumerate(orders) if any(3 in piece for piece in order))
    assert run_worker(tmp_path, processes=2, spoil=3, checkpoint_minutes=0.0) == [3, 3]
    first, second = ((tmp_path / f"error-{rank}.txt").read_text() for rank in (0, 1))
    name = "nonfinite.safetensors" if blamed == 0 else "nonfinite-1.safetensors"
    assert first == second and "trajectories flow-0" in first and name in first
    assert [path.name for path in tmp_path.glob("nonfinite*")] == [name]
    assert 3 in torch.cat(
        [v for k, v in load_file(tmp_path / name).items() if k.endswith("/sample")]
    )


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [[], ["-m", "torch.distributed.run", "--nproc-per-node=2"]])
def test_fabric_and_torchrun_start_the_processes(tmp_path: Path, launcher: list[str]) -> None:
    alone = [sys.executable, "-m", "tests.training.setups"]
    program = [sys.executable, *launcher, "-m", "tests.training.setups"] if launcher else alone
    options = "{}" if launcher else '{"hardware": {"devices": 2}}'
    one, two = tmp_path / "one", tmp_path / "two"
    assert run_worker(one) == [0]
    two.mkdir()
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [*program, str(two), options],
        cwd=root,
        check=True,
        timeout=120,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert "GLOBAL_RANK" not in done.stdout and "distributed_backend" not in done.stdout
    torch.testing.assert_close(curves(two), curves(one), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("hardware", "gpus", "named"),
    [
        (Hardware(accelerator="cuda", devices=4), 0, ("accelerator=cuda", "accelerator=cpu")),
        (Hardware(accelerator="cuda", devices=4), 2, ("devices=4", "hardware.devices=2")),
        (Hardware(accelerator="auto", devices=3), 1, ("devices=3", "hardware.devices=1")),
    ],
    ids=str,
)
def test_missing_devices_are_refused(
    monkeypatch: pytest.MonkeyPatch, hardware: Hardware, gpus: int, named: tuple[str, ...]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with refused(*named):
        launch(hardware)


def test_without_lightning_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.fabric", "lightning_fabric"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'pibert-cfd\[train\]'"):
        launch(Hardware(accelerator="cpu"))
