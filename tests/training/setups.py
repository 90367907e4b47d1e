"""A small learning problem that the tests of the engine share, and processes that work on it.

As a script (``python -m tests.training.setups FOLDER JSON``) it trains too; the JSON says what
differs from the defaults.
"""

import json
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pibert import sample_rng
from pibert.data.dataset import Samples, Window
from pibert.fields import Batch, Normalizer, Trajectory
from pibert.training.engine import FitConfig, Fitted, Hardware, Reporter, fit
from pibert.training.objectives import Objective
from tests.helpers import PATIENCE, randomise, tiny_model, tiny_spec

SHAPE = (8, 12)
# Without the physics bias, which the engine does not feel and which takes most of the time.
SMALL: dict[str, Any] = {
    "width": 8,
    "heads": 2,
    "depth": 1,
    "modes": 2,
    "refine_width": 4,
    "attention_bias": 0.0,
}
CPU = Hardware(accelerator="cpu")
QUICK = FitConfig(
    epochs=3,
    batch_size=4,
    micro_batch=2,
    optimizer="adamw",
    learning_rate=3e-3,
    min_learning_rate=1e-7,
    warmup_epochs=0.5,
    weight_decay=2e-5,
    checkpoint_minutes=1e9,
)


class Listener(Reporter):
    """Remembers what was reported."""

    def __init__(self, on_epoch: Callable[[int], None] = lambda epoch: None) -> None:
        self.on_epoch = on_epoch
        self.started: tuple[int, int] | None = None
        self.steps: list[tuple[int, float]] = []
        self.records: list[Mapping[str, Any]] = []
        self.lines: list[str] = []

    def start(self, total_steps: int, done: int) -> None:
        self.started = (total_steps, done)

    def step(self, done: int, loss: float) -> None:
        self.steps.append((done, loss))

    def epoch(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)
        self.on_epoch(record["epoch"])

    def say(self, text: str) -> None:
        self.lines.append(text)


def samples(*frames: int, seed: int = 0) -> Samples:
    """One trajectory per number of frames, each with one sample less than frames."""
    trajectories = []
    for index, count in enumerate(frames):
        generator = torch.Generator().manual_seed(seed + index)
        states = torch.randn(count, 2, *SHAPE, generator=generator)
        trajectories.append(
            Trajectory(
                name=f"flow-{index}",
                states=states.cumsum(0) * 0.3,
                time=0.1 * torch.arange(count),
                spec=tiny_spec(SHAPE),
                parameters={"Re": 100.0 * (1 + index)},
            )
        )
    return Samples(trajectories, window=Window(), normalizer=Normalizer.identity(2))


def make_model(dropout: float = 0.0) -> nn.Module:
    return randomise(tiny_model(spec=tiny_spec(SHAPE), dropout=dropout, **SMALL))


def objective(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Squared error of a noisy input, with the noise of each sample from its seed."""
    noise = 0.1 * sample_rng.normal(batch.seeds, "noise", *batch.x.shape[1:]).to(batch.x)
    error = model(batch.x + noise, batch.parameters, batch.mask) - batch.y[:, 0]
    loss = error.square().mean()
    return loss, {"absolute": error.detach().abs().mean(), "noise": noise.mean()}


def train(
    folder: Path,
    *,
    dropout: float = 0.0,
    frames: tuple[int, ...] = (8, 7),
    valid: bool = True,
    objectives: Callable[[int], Objective] = lambda epoch: objective,
    model: nn.Module | None = None,
    hardware: Hardware = CPU,
    seed: int = 5,
    reporter: Any = None,
    identity: str = "same",
    best_exists: Callable[[], bool] | None = None,
    save_best: Callable[[nn.Module, Mapping[str, Any]], None] | None = None,
    **changes: Any,
) -> tuple[nn.Module, Fitted]:
    """Train the small model in a folder; its best weights go to ``best.safetensors``."""
    model = make_model(dropout) if model is None else model

    def save_file_of(best: nn.Module, metrics: Mapping[str, Any]) -> None:
        save_file(best.state_dict(), folder / "best.safetensors")

    fitted = fit(
        model,
        objectives,
        samples(*frames),
        samples(6, seed=70) if valid else None,
        replace(QUICK, **changes),
        folder=folder,
        seed=seed,
        hardware=hardware,
        identity=identity,
        save_best=save_best or save_file_of,
        best_exists=best_exists,
        reporter=reporter,
    )
    return model, fitted


def timeless(folder: Path) -> list[dict[str, Any]]:
    """The lines of a log without times."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    times = ("seconds", "samples_per_second")
    return [{k: v for k, v in line.items() if k not in times} for line in lines]


def dying(step: int) -> Callable[[int], Objective]:
    """Objectives of a process that kills itself in the middle of its n-th call in training."""
    calls = 0

    def die(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        nonlocal calls
        calls += model.training
        if model.training and calls == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return objective(model, batch)

    return lambda epoch: die


def spoiling(sample: int) -> Callable[[int], Objective]:
    """Objectives that give NaN in training for any piece with a certain sample."""

    def spoil(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        loss, logs = objective(model, batch)
        is_bad = model.training and sample in batch.sample.tolist()
        return (loss * float("nan") if is_bad else loss), logs

    return lambda epoch: spoil


def die_in_save(number: int, moment: str) -> None:
    """Let the process kill itself in its n-th save: half written, or before the rename."""
    saves = 0
    flush, rename = os.fsync, os.replace

    def counted(path: Any) -> bool:
        nonlocal saves
        saves += "state.safetensors" in str(path)
        return saves == number

    def half(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if moment == "writing" and counted(path):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        flush(descriptor)

    def late(source: Any, target: Any) -> None:
        if moment == "renaming" and counted(target):
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)

    setattr(os, "fsync", half)  # noqa: B010
    setattr(os, "replace", late)  # noqa: B010


def work(folder: Path, options: dict[str, Any], environment: dict[str, str]) -> None:
    """Train in this process; it may have to die at a certain call, or in a certain save."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    options = dict(options)
    if "die_at" in options:
        options["objectives"] = dying(options.pop("die_at"))
    if "spoil" in options:
        options["objectives"] = spoiling(options.pop("spoil"))
    if "die_in_save" in options:
        die_in_save(*options.pop("die_in_save"))
    if "best_exists" in options:
        answer = options.pop("best_exists")
        options["best_exists"] = lambda: answer
    options["hardware"] = Hardware(**({"accelerator": "cpu"} | options.pop("hardware", {})))
    options["frames"] = tuple(options.get("frames", (8, 7)))
    rank = environment.get("RANK", "0")
    try:
        model, _ = train(folder, **options)
    except (FloatingPointError, ValueError) as error:
        (folder / f"error-{rank}.txt").write_text(str(error))
        raise SystemExit(3) from None
    if rank == "0":
        save_file(model.state_dict(), folder / "last.safetensors")


# Forked from a process that has imported all this once: imports take longer than the training.
_WORKERS = multiprocessing.get_context("forkserver")
_WORKERS.set_forkserver_preload(
    ["tests.training.setups", "lightning.fabric", "torch.utils.tensorboard"]
)


def run_worker(folder: Path, processes: int = 1, **options: Any) -> list[int | None]:
    """Train in one or several processes of their own, as torchrun would; gives their exit codes."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {
        "TORCHELASTIC_RUN_ID": "test",
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    workers = []
    for rank in range(processes):
        place = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {}
        workers.append(_WORKERS.Process(target=work, args=(folder, options, place)))
        workers[-1].start()
    for worker in workers:
        worker.join(PATIENCE)
        if worker.is_alive():
            worker.kill()
            worker.join()
    return [worker.exitcode for worker in workers]


def at_call(number: int, act: Callable[[Tensor], Tensor]) -> Callable[[int], Objective]:
    """Objectives whose n-th loss in training is changed."""
    calls = 0

    def changed(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        nonlocal calls
        loss, logs = objective(model, batch)
        calls += model.training
        return (act(loss) if model.training and calls == number else loss), logs

    return lambda epoch: changed


def interrupt(loss: Tensor) -> Tensor:
    """Ask the run to stop, as Ctrl-C does."""
    os.kill(os.getpid(), signal.SIGINT)
    return loss


def refuse(loss: Tensor) -> Tensor:
    raise AssertionError("there is nothing to train")


def assert_equal_weights(a: nn.Module, b: nn.Module) -> None:
    for name, value in a.state_dict().items():
        assert torch.equal(value, b.state_dict()[name]), name


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def batch_of(x: Tensor, y: Tensor, mask: Tensor, target_mask: Tensor) -> Batch:
    """Inputs (b, hc, y, x) and targets (b, s, c, y, x), zero where they are unknown."""
    return Batch(
        x=torch.where(mask[:, None], x, 0.0),
        y=torch.where(target_mask[:, :, None], y, 0.0),
        parameters=torch.zeros(len(x), 16, dtype=x.dtype),
        mask=mask,
        target_mask=target_mask,
        sample=torch.arange(len(x)),
        seeds=torch.arange(len(x)),
    )


def assert_pieces_add_up(
    objective: Objective, model: nn.Module, batch: Batch, cuts: tuple[int, ...]
) -> dict[str, Tensor]:
    """Logs and gradients of pieces, weighted by their samples, are those of the batch."""

    def outcome(piece: Batch) -> tuple[dict[str, Tensor], list[Tensor]]:
        model.zero_grad(set_to_none=True)
        loss, logs = objective(model, piece)
        loss.backward()
        assert not any(entry.requires_grad for entry in logs.values())
        return logs, [p.grad for p in model.parameters() if p.grad is not None]

    pieces = [(a, b) for a, b in pairwise((0, *cuts, len(batch)))]
    found = [outcome(replace(batch.map(itemgetter(slice(*p))), position=p[0])) for p in pieces]
    shares = [(stop - start) / len(batch) for start, stop in pieces]
    logs, gradients = outcome(batch)
    for name, entry in logs.items():
        mean = sum(share * own[name] for share, (own, _) in zip(shares, found, strict=True))
        torch.testing.assert_close(torch.as_tensor(mean), entry, msg=name)
    scale = max(float(own.abs().max()) for own in gradients)
    assert scale > 0 and all(own.isfinite().all() for own in gradients)
    for place, own in enumerate(gradients):
        total = sum(share * g[place] for share, (_, g) in zip(shares, found, strict=True))
        torch.testing.assert_close(torch.as_tensor(total), own, rtol=0, atol=1e-5 * scale)
    return logs


if __name__ == "__main__":
    work(Path(sys.argv[1]), json.loads(sys.argv[2]), {"RANK": os.environ.get("LOCAL_RANK", "0")})
