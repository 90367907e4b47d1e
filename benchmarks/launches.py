"""Operations per part of a training step: what a GPU launches one after the other.

At batch 128 and 64 x 64 points most kernels take a few microseconds, so that their number, not
their size, decides how long a step takes. Counted are the operations that PyTorch dispatches, views
and empty tensors left out; some of them (padding, sorting, transforms) launch more than one kernel.

    python benchmarks/launches.py
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pibert import sample_rng
from pibert.fields import Batch, FieldSpec, Grid, Normalizer, Parameter
from pibert.models import build_model
from pibert.models.attention import PhysicsBias
from pibert.models.reconstruction import fill_smoothly
from pibert.pretraining.corruption import corrupt
from pibert.pretraining.masks import Masking, choose
from pibert.pretraining.negatives import Negatives, NegativesConfig
from pibert.training.losses import LossScales, total_loss
from pibert.training.objectives import equation_consistency, masked_physics, supervised, weighted

SIZE, BATCH = 64, 12
NO_KERNEL = ("_unsafe_view", "scalar_tensor")
"""A view, and a number that travels with its kernel."""


class Launches(TorchDispatchMode):
    """Counts the operations that run while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        returned = func._schema.returns
        view = returned and all(r.alias_info and not r.alias_info.is_write for r in returned)
        name = func.overloadpacket.__name__
        self.count += not (view or name in NO_KERNEL or "empty" in name)
        return func(*args, **kwargs or {})


def count(call: Callable[[], object]) -> int:
    call()  # what is made once is not counted
    with Launches() as launches:
        call()
    return launches.count


def backward(call: Callable[[], Tensor]) -> Callable[[], None]:
    return lambda: call().backward()


def wakes() -> tuple[FieldSpec, Normalizer, Batch]:
    """Random fields behind a body in an open window, with a Reynolds number."""
    grid = Grid((SIZE, SIZE), dx=0.1, dy=0.1)
    x, y = grid.coordinates()
    grid = replace(grid, body=(x - 1.5) ** 2 + (y - 3.2) ** 2 < 0.25)
    spec = FieldSpec(
        grid=grid,
        dt=0.5,
        family="incompressible",
        parameters=(Parameter(name="Re", scaling="log", mean=2.0, std=0.2),),
        reference_velocity=1.0,
        reference_length=1.0,
    )
    generator = torch.Generator().manual_seed(0)
    known = (~grid.body_on("cpu")).expand(BATCH, SIZE, SIZE)
    fields = torch.randn(2, BATCH, 2, SIZE, SIZE, generator=generator) * known[:, None]
    batch = Batch(
        x=fields[0],
        y=fields[1][:, None],
        parameters=torch.zeros(BATCH, 16),
        mask=known,
        target_mask=known[:, None],
        sample=torch.arange(BATCH),
        seeds=torch.arange(BATCH),
    )
    return spec, Normalizer((0.8, 0.0), (0.35, 0.3)), batch


def parts() -> dict[str, Callable[[], object]]:
    """Return the counts by name."""
    torch.manual_seed(0)
    spec, normalizer, batch = wakes()
    model = build_model("pibert", preset="base", spec=spec)
    model.calibrate(batch.x, normalizer, batch.parameters, batch.mask)
    bias = PhysicsBias(spec, 8)
    scales, masking = LossScales.from_training(spec, normalizer), Masking()
    table = torch.randn(50, 16) * torch.eye(16)[0]
    negatives = Negatives(NegativesConfig(), spec, normalizer, 1, table)
    hidden = choose(batch, masking, spec, normalizer)
    seen = corrupt(batch, hidden, masking, spec, normalizer)
    prediction = torch.randn_like(batch.y).requires_grad_()
    masked = masked_physics(masking, spec, normalizer, scales)
    consistency = equation_consistency(negatives)
    pretraining = weighted({"mpp": (1.0, masked), "ecp": (0.1, consistency)})

    def loss() -> Tensor:
        return total_loss(prediction, batch.y, scales=scales, known=batch.target_mask)[0]

    return {
        "sample_rng.uniform": lambda: sample_rng.uniform(batch.seeds, "anything", 8),
        "physics bias": lambda: bias(batch.x, batch.parameters, batch.mask),
        "model, forward": lambda: model(batch.x, batch.parameters, batch.mask),
        "total loss": loss,
        "total loss, forward + backward": backward(loss),
        "masks.choose": lambda: choose(batch, masking, spec, normalizer),
        "corrupt": lambda: corrupt(batch, hidden, masking, spec, normalizer),
        "fill_smoothly": lambda: fill_smoothly(seen.x, seen.mask),
        "negatives": lambda: negatives.draw(batch, model),
        "supervised, forward + backward": backward(lambda: supervised(scales)(model, batch)[0]),
        "masked, forward + backward": backward(lambda: masked(model, batch)[0]),
        "consistency, forward + backward": backward(lambda: consistency(model, batch)[0]),
        "pretraining, forward + backward": backward(lambda: pretraining(model, batch)[0]),
    }


def main() -> None:
    for name, call in parts().items():
        print(f"{name:32s} {count(call):6d}")


if __name__ == "__main__":
    main()
