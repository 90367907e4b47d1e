"""One or several processes: launch, communication, and the sum of their gradients.

Lightning Fabric starts or finds the processes (by itself, torchrun or SLURM), chooses devices
and makes the process group. The model is not wrapped: when all pieces of a batch are done, each
process copies its gradients into one buffer, with its share of the loss, and one call sums them.
Pieces are weighted by their samples, so any objective works (several calls of the model, unused
heads), and processes may have different numbers of pieces, or none.

Values of the host (a request to stop or to save, which parameters have a gradient) use a separate
gloo group, so no device has to wait.
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
    """Return a launched Fabric: from here on, every process of the hardware runs the program.

    Raises:
        ValueError: The machine lacks the devices.
    """
    lightning = find_fabric()
    # config.json records hardware and back-ends; Lightning need not report them.
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
    counts = {"cpu": wanted, "cuda": torch.cuda.device_count(), "mps": int(has_mps)}
    if accelerator == "auto":  # as Fabric chooses
        accelerator = "mps" if has_mps else "cuda" if counts["cuda"] else "cpu"
    count = counts[accelerator]
    if wanted <= count:
        return
    found, remedy = f"hardware.devices={wanted}", f"set hardware.devices={count}, or "
    if started_outside:
        found, remedy = f"{wanted} processes on a node", f"start {count} on each, or "
    raise ValueError(
        f"found {found} with hardware.accelerator={accelerator}, but torch {torch.__version__} "
        f"has {count} such devices; {remedy if count else ''}set hardware.accelerator=cpu"
    )


def find_fabric() -> ModuleType:
    """Find Fabric in the package lightning, or in lightning_fabric."""
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
        """Return for each request whether any process has it."""
        if self.count == 1:
            return list(requests)
        votes = torch.tensor(requests, dtype=torch.uint8)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self._hosts)
        return votes.bool().tolist()

    def gather(self, value: Any) -> list[Any]:
        """The plain values of all processes, in their order."""
        values: list[Any] = [value] * self.count
        if self.count > 1:
            dist.all_gather_object(values, value, group=self._hosts)
        return values

    def share_weights(self, model: nn.Module) -> None:
        """Give all processes the weights and buffers of the first."""
        if self.count > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, src=0)

    def sum_gradients(
        self, parameters: Sequence[nn.Parameter], has_gradient: Sequence[bool], loss: Tensor
    ) -> Tensor:
        """Sum gradients and loss over the processes, in place; returns the loss of the batch.

        Args:
            parameters: The same in all processes.
            has_gradient: For each parameter, whether any process has a gradient. The others keep
                none, so the optimiser skips them as it does in a single process.
            loss: The share of this process.
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
