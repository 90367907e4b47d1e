"""One or several processes: launch, communication, and the sum of their gradients.

Lightning Fabric starts or finds the processes (its own launcher, torchrun, SLURM), chooses devices
and makes the process group. The model is not wrapped: when all pieces of a batch are done, each
process copies its gradients into one buffer, with its share of the loss, and one call sums them.
Every piece counts by its samples, so any objective works (several calls of the model, unused
heads), and a process may have more pieces than another, or none.

Values of the host (a request to stop or to save, which parameters have a gradient) go through a
gloo group of their own, so no device has to wait.
"""

import importlib
import logging
import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pibert.training.settings import Hardware

_PACKAGES = ("lightning.fabric", "lightning_fabric", "lightning.pytorch", "pytorch_lightning")
"""Names of Lightning's packages, which share the logger of the last one imported."""


def launch(hardware: Hardware) -> Any:
    """A launched Fabric: from here on, every process of the hardware runs the program.

    Raises:
        ValueError: The machine has no such devices, or not so many.
    """
    lightning = _find_fabric()
    # Its notes on hardware and back-ends are not needed: config.json has them.
    for package in _PACKAGES:
        for module in ("rank_zero", "distributed"):
            logging.getLogger(f"{package}.utilities.{module}").setLevel(logging.WARNING)
    outside = _counted_outside(lightning)
    devices, nodes = outside or (hardware.devices, hardware.nodes)
    _check_devices(hardware.accelerator, devices, started_outside=outside is not None)
    fabric = lightning.Fabric(
        accelerator=hardware.accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if devices * nodes > 1 else "auto",
    )
    fabric.launch()
    return fabric


def _check_devices(accelerator: str, wanted: int, *, started_outside: bool) -> None:
    """Refuse devices that the machine does not have, in terms of the configuration."""
    has_mps = torch.backends.mps.is_available()
    there = {"cpu": wanted, "cuda": torch.cuda.device_count(), "mps": int(has_mps)}
    if accelerator == "auto":  # as Fabric chooses
        accelerator = "mps" if has_mps else "cuda" if there["cuda"] else "cpu"
    count = there[accelerator]
    if count == 0:
        raise ValueError(
            f"hardware.accelerator={accelerator} was asked for, but torch {torch.__version__} "
            "finds no such device here; set hardware.accelerator=cpu"
        )
    if wanted > count:
        asked, less = f"hardware.devices={wanted} was asked for", f"set hardware.devices={count}"
        if started_outside:
            asked, less = f"{wanted} processes were started on a node", f"start {count} on each"
        raise ValueError(
            f"{asked}, but torch finds {count} of kind {accelerator} here; {less}, or set "
            "hardware.accelerator=cpu"
        )


def _find_fabric() -> ModuleType:
    """Fabric comes with the package lightning, and by itself or with pytorch-lightning."""
    for name in ("lightning.fabric", "lightning_fabric"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ImportError(
        "training needs Lightning, which is not installed: pip install 'pibert-cfd[train]'"
    )


def _counted_outside(lightning: ModuleType) -> tuple[int, int] | None:
    """Processes per node and nodes, if torchrun or srun has started the processes."""
    known = lightning.plugins.environments
    if known.TorchElasticEnvironment.detect():
        world = int(os.environ["WORLD_SIZE"])
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        return local, world // local
    if known.SLURMEnvironment.detect():
        nodes = int(os.environ.get("SLURM_NNODES", 1))
        return max(1, int(os.environ.get("SLURM_NTASKS", 1)) // nodes), nodes
    return None


class Processes:
    """The processes of a run; with a single one, all methods return their input."""

    def __init__(self, fabric: Any) -> None:
        self.rank: int = fabric.global_rank
        self.count: int = fabric.world_size
        self.device: torch.device = fabric.device
        self._hosts: Any = None
        self._buffer: Tensor | None = None
        if self.count > 1 and dist.get_backend() != "gloo":
            self._hosts = dist.new_group(backend="gloo")

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def agree(self, requests: Sequence[bool]) -> list[bool]:
        """Which requests any process has."""
        if self.count == 1:
            return list(requests)
        votes = torch.tensor(requests, dtype=torch.uint8)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self._hosts)
        return [bool(vote) for vote in votes.tolist()]

    def gather(self, value: Any) -> list[Any]:
        """The plain values of all processes, in their order."""
        if self.count == 1:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value, group=self._hosts)
        return found

    def share_weights(self, model: nn.Module) -> None:
        """All processes take the weights and buffers of the first."""
        if self.count > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, src=0)

    def sum_gradients(
        self, parameters: Sequence[nn.Parameter], has_gradient: Sequence[bool], loss: Tensor
    ) -> Tensor:
        """Sum gradients and loss over the processes, in place; returns the loss of the batch.

        Args:
            parameters: Same in all processes.
            has_gradient: Of each parameter: whether any process has a gradient of it. The others
                keep none, so the optimiser passes over them as it does in a single process.
            loss: This process's share.
        """
        if self.count == 1:
            return loss
        chosen = [p for p, has in zip(parameters, has_gradient, strict=True) if has]
        for p in chosen:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        pieces = [_as_real(p.grad) for p in chosen if p.grad is not None]
        length = sum(piece.numel() for piece in pieces) + 1
        if self._buffer is None or len(self._buffer) < length:
            self._buffer = torch.empty(length, device=self.device)
        flat = self._buffer[:length]
        sizes = [piece.numel() for piece in pieces]
        views = [v.view(p.shape) for v, p in zip(flat[:-1].split(sizes), pieces, strict=True)]
        torch._foreach_copy_([*views, flat[-1]], [*pieces, loss])
        dist.all_reduce(flat, op=dist.ReduceOp.SUM)
        torch._foreach_copy_(pieces, views)
        return flat[-1].clone()


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
