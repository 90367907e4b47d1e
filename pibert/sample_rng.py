"""Counter-based random numbers of training samples: hashes of seed, purpose and index.

Everything random about a sample (masks, noise, reflections ...) comes from here. A number depends
on the sample's seed and its purpose alone, so it does not depend on batch, process or device, and a
resumed run needs no generator state.

The hash is the finaliser of splitmix64 (Steele, Lea, Flood, 2014) on a counter, in the wrapping
arithmetic of int64.
"""

import hashlib
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

Seeds = Int[Tensor, " b"]

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = 24  # exact in float32
_WITHOUT_DOUBLE = ("mps",)


def sample_seeds(seed: int, epoch: int, samples: Seeds) -> Seeds:
    """Return the seeds of samples, by their index, in an epoch of a run."""
    base = _hash_text(f"{seed} {epoch}")
    return _mix(samples.to(torch.int64) * _signed(_GOLDEN) + base)


def uniform(seeds: Seeds, purpose: str, *shape: int) -> Float[Tensor, " b *shape"]:
    """Return uniform numbers, 0 <= number < 1."""
    return _integers(seeds, purpose, shape).to(torch.float32) * 2.0**-_BITS


def normal(seeds: Seeds, purpose: str, *shape: int) -> Float[Tensor, " b *shape"]:
    """Return normal numbers with mean 0 and variance 1."""
    numbers = _integers(seeds, purpose, shape)
    if seeds.device.type in _WITHOUT_DOUBLE:
        # In single precision the ends of the range would round to infinity.
        numbers = numbers.cpu()
    middle = (numbers.to(torch.float64) + 0.5) * 2.0 ** (1 - _BITS) - 1
    return (math.sqrt(2.0) * torch.erfinv(middle)).to(torch.float32).to(seeds.device)


def integer(seeds: Seeds, purpose: str, high: int) -> Seeds:
    """Return one integer per sample, 0 <= number < high."""
    if high < 1:
        raise ValueError(f"expected at least one choice, found {high}")
    return (_integers(seeds, purpose, ()) * high) >> _BITS


def _integers(seeds: Tensor, purpose: str, shape: tuple[int, ...]) -> Tensor:
    """Integers below 2^24, (b, *shape)."""
    base = _mix(seeds.to(torch.int64) + _hash_text(purpose))
    counter = torch.arange(1, 1 + math.prod(shape), device=seeds.device)
    # The last step of the hash leaves the highest 31 bits unchanged, and only 24 are used.
    mixed = _mix_most(torch.add(base[:, None], counter, alpha=_signed(_GOLDEN)))
    return _shifted(mixed, 64 - _BITS).view(len(seeds), *shape)


def _mix(z: Tensor) -> Tensor:
    z = _mix_most(z)
    return z ^ _shifted(z, 31)


def _mix_most(z: Tensor) -> Tensor:
    """All but the last step of the hash."""
    z = (z ^ _shifted(z, 30)) * _signed(_FIRST)
    return (z ^ _shifted(z, 27)) * _signed(_SECOND)


def _shifted(z: Tensor, by: int) -> Tensor:
    """Logical right shift; that of int64 would repeat the sign."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _hash_text(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
