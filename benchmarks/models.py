"""Time and memory of the models on growing grids, side by side: one forward, one training step.

On a GPU in bfloat16, each step captured in a CUDA graph, so that the figures show the kernels and
not their launches; on the CPU in float32. A forward pass casts its weights to bfloat16 once, before
the capture. The models take turns in one process. Per point means per grid point and sample.

    python benchmarks/models.py [--models pibert-mr,fno2d,unet,mwt] [--sizes 64,256,512,1024]
    python benchmarks/models.py --compile              # each model through torch.compile
"""

import argparse
import contextlib
from collections.abc import Callable

import torch
from timing import median_ms
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid, Parameter
from pibert.models import build_model, compile_model, count_parameters

POINTS = 64 * 64 * 128
"""Points of a batch: 128 fields of 64 x 64, and as many as hold as many points on larger grids."""


def make(name: str, size: int, device: str) -> nn.Module:
    """A model of its first preset, or of the one named after a colon; weights drawn anew."""
    name, _, preset = name.partition(":")
    spec = FieldSpec(
        grid=Grid((size, size), dx=1 / size, dy=1 / size),
        parameters=(Parameter(name="Re", scaling="log", mean=3.5, std=0.3),),
        family="incompressible",
    )
    model: nn.Module = build_model(name, preset=preset or None, spec=spec).to(device)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def half_precision(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Autocast to bfloat16 on a GPU."""
    return torch.autocast("cuda", torch.bfloat16) if x.is_cuda else contextlib.nullcontext()


def steps_of(
    model: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor
) -> dict[str, Callable[[], None]]:
    """One forward, to run under autocast, and one forward and backward; ``call`` runs the model."""

    def forward() -> None:
        with torch.no_grad():
            call(x)

    def train() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        with half_precision(x):
            loss = call(x).float().square().mean()
        loss.backward()

    return {"forward": forward, "forward + backward": train}


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The step captured in a CUDA graph; on the CPU the step itself."""
    if not torch.cuda.is_available():
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def measure(
    name: str, size: int, batch: int, rounds: int, compiled: bool
) -> dict[str, tuple[float, float]]:
    """Milliseconds and peak bytes of each task."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, found = make(name, size, device), {}
    x = torch.randn(batch, 2, size, size, device=device)
    call = compile_model(model) if compiled else model
    for task, step in steps_of(model, call, x).items():
        model.train(task != "forward")
        memory = 0.0
        if device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        # Autocast keeps cast weights until its context ends: outside the graph for a forward pass.
        with half_precision(x) if task == "forward" else contextlib.nullcontext():
            replay = captured(step)
        if device == "cuda":
            memory = float(torch.cuda.max_memory_allocated())
        found[task] = (median_ms(replay, rounds), memory)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default="pibert-mr,pibert,fno2d,unet,mwt")
    parser.add_argument("--sizes", default="64,256,512,1024")
    parser.add_argument("--points", type=int, default=POINTS, help="points of a batch")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="run each model compiled")
    given = parser.parse_args()
    names = given.models.split(",")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{where}, torch {torch.__version__}{', compiled' if given.compile else ''}")
    for name in names:
        print(f"{name}: {count_parameters(make(name, 64, 'cpu')):,} parameters")
    cases = [
        (64, 1),
        *((int(n), max(1, given.points // int(n) ** 2)) for n in given.sizes.split(",")),
    ]
    for size, batch in cases:
        for name in names:
            try:
                found = measure(name, size, batch, given.rounds, given.compile)
            except (torch.OutOfMemoryError, ValueError) as error:
                print(f"{size:5d}^2 x {batch:3d}  {name:16s} {str(error).splitlines()[0][:90]}")
                continue
            for task, (ms, memory) in found.items():
                points = batch * size**2
                print(
                    f"{size:5d}^2 x {batch:3d}  {name:16s} {task:20s} {ms / batch:9.4f} ms/sample "
                    f"{1e6 * ms / points:8.2f} ns/point {memory / points:8.0f} B/point",
                    flush=True,
                )


if __name__ == "__main__":
    main()
