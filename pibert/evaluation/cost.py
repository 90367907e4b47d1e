"""The cost of a model: size, time, memory, arithmetic.

Time is the median over synchronised calls in evaluation mode without gradients, after warm-up, on
standardised fields that are on the device already, divided by the batch size. Sampling models make
all their steps in one call.

Peak memory is that of the weights and of what a call adds at most on a CUDA device, without the
input and other data of the process. On a CPU it is not measured.

FLOPs are those of matrix products, convolutions and attention in one call on one sample, a product
and a sum counting two, as ``torch.utils.flop_counter`` counts them. Fourier transforms, gathers and
elementwise operations are not counted: for spectral models it is a lower bound. Complex operations
count as real ones.
"""

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pibert.fields import PARAMETER_WIDTH, FieldSpec
from pibert.pretraining.adversarial import evaluation_mode

WARM_UP = 3
"""Calls before any is timed."""
LEAST_REPEATS = 5
"""Calls that are timed, however long they take ..."""
MOST_REPEATS = 100
"""... and however short."""


@dataclass(frozen=True, kw_only=True)
class BatchCost:
    """The cost of a call on a batch."""

    batch: int
    ms_per_sample: float | None
    """Median; None where the memory does not suffice."""
    peak_bytes: int | None
    """None on a CPU, and where the memory does not suffice."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a model; plain numbers, so that ``dataclasses.asdict`` is JSON."""

    parameters: int
    """Real numbers in the weights; a complex one is two. Buffers do not count."""
    trainable: int
    """Those of them that are learned."""
    checkpoint_bytes: int
    """Of all weights and buffers that are saved, as a safetensors file."""
    flops: int
    """Of one sample; see the module for what is left out."""
    sampler_steps: int | None
    """Calls of the network for one prediction; None where the model does not sample."""
    draws: int | None
    """Predictions that are averaged; None where the model does not sample."""
    batches: tuple[BatchCost, ...]
    device: str
    """Its name."""
    grid: tuple[int, int]
    """Rows and columns of the fields."""


def measure_cost(
    model: nn.Module,
    spec: FieldSpec,
    device: torch.device | str,
    batches: Sequence[int] = (1, 128),
    *,
    seconds: float = 2.0,
) -> Cost:
    """Measure a model; it is moved to the device and stays in its mode.

    Args:
        model: Takes (fields, parameters, mask) as ``Stepper`` does.
        spec: Of the fields: gives their channels and grid.
        device: Where to measure.
        batches: Sizes to measure.
        seconds: Time to spend on each size.
    """
    device = torch.device(device)
    model = model.to(device)
    config: Any = getattr(model, "config", None)
    with evaluation_mode(model), torch.no_grad():
        costs = tuple(_batch_cost(model, spec, device, size, seconds) for size in batches)
        flops = _count_flops(model, spec, device)
    return Cost(
        parameters=count_parameters(model),
        trainable=count_parameters(model, trainable=True),
        checkpoint_bytes=_saved_bytes(model),
        flops=flops,
        sampler_steps=getattr(config, "sampler_steps", None),
        draws=getattr(config, "draws", None),
        batches=costs,
        device=device_name(device),
        grid=spec.grid.shape,
    )


def count_parameters(model: nn.Module, *, trainable: bool = False) -> int:
    """Real numbers in the weights, or in those that are learned."""
    return sum(
        weight.numel() * (2 if weight.is_complex() else 1)
        for weight in model.parameters()
        if weight.requires_grad or not trainable
    )


def device_name(device: torch.device) -> str:
    """The name of the hardware."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    threads = torch.get_num_threads()
    count = "1 thread" if threads == 1 else f"{threads} threads"
    return f"{platform.processor() or platform.machine()}, {count}"


def _saved_bytes(model: nn.Module) -> int:
    # A clone of each: tensors that share memory would be refused, and not all versions know complex
    # numbers.
    state = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    real = {name: torch.view_as_real(t) if t.is_complex() else t for name, t in state.items()}
    plain = {name: t.clone(memory_format=torch.contiguous_format) for name, t in real.items()}
    return len(save(plain))


def _input(
    model: nn.Module, spec: FieldSpec, device: torch.device, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Fields, parameters and mask of a batch."""
    config: Any = getattr(model, "config", None)
    plain = getattr(config, "history", 1) * len(spec.channels)
    channels = getattr(model, "in_channels", plain)
    dtype = next((weight.dtype for weight in model.parameters()), torch.float32)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, channels, *spec.grid.shape, generator=generator)
    known = torch.ones(size, *spec.grid.shape, dtype=torch.bool)
    if spec.grid.body is not None:
        known &= ~spec.grid.body
    x = x.to(device, torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32)
    return x, x.new_zeros(size, PARAMETER_WIDTH), known.to(device)


def _batch_cost(
    model: nn.Module, spec: FieldSpec, device: torch.device, size: int, seconds: float
) -> BatchCost:
    peak = None
    try:
        batch = _input(model, spec, device, size)
        milliseconds = _timed(lambda: model(*batch), device, seconds)
        if device.type == "cuda":
            weights = sum(w.numel() * w.element_size() for w in model.state_dict().values())
            torch.cuda.reset_peak_memory_stats(device)
            held = torch.cuda.memory_allocated(device)
            model(*batch)
            torch.cuda.synchronize(device)
            peak = torch.cuda.max_memory_allocated(device) - held + weights
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return BatchCost(batch=size, ms_per_sample=None, peak_bytes=None)
    return BatchCost(batch=size, ms_per_sample=milliseconds / size, peak_bytes=peak)


def _timed(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """The median time of a call in milliseconds."""
    for _ in range(WARM_UP):
        call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < LEAST_REPEATS or (len(times) < MOST_REPEATS and time.perf_counter() < end):
        wait(device)
        start = time.perf_counter()
        call()
        wait(device)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def wait(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _count_flops(model: nn.Module, spec: FieldSpec, device: torch.device) -> int:
    # The counter follows gradients from module to module, and trips over a module that hands out a
    # weight as it is.
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in learned:
        weight.requires_grad_(False)
    try:
        # Attention as plain products: fused kernels differ between devices, some are not counted.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(*_input(model, spec, device, 1))
    finally:
        for weight in learned:
            weight.requires_grad_(True)
    return int(counter.get_total_flops())
