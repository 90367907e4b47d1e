"""Time saved by folding the affine ends: the plain and the folded form of one model, side by side.

Same weights, same function; batch 128 in bfloat16 autocast on a GPU, batch 8 in float32 on the CPU.
On a GPU the compiled forms replay CUDA graphs, so that the figures are the kernels' and not the
launches'.

    python benchmarks/folding.py [--preset large]
"""

import argparse
import contextlib
from collections.abc import Callable

import torch
from timing import median_ms
from torch import Tensor, nn

from pibert.models import PRESETS, build_model


def measure(model: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, float]:
    half = x.is_cuda

    def precision() -> contextlib.AbstractContextManager[object]:
        return torch.autocast("cuda", torch.bfloat16) if half else contextlib.nullcontext()

    def forward() -> None:
        with torch.no_grad(), precision():
            call(x)

    def forward_backward() -> None:
        model.zero_grad(set_to_none=True)
        with precision():
            loss = call(x).square().mean()
        loss.backward()

    rounds = 50 if half else 20
    model.eval()
    times = {"forward": median_ms(forward, rounds)}
    model.train()
    return times | {"forward + backward": median_ms(forward_backward, rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--preset", choices=list(PRESETS["pibert"]), default="base")
    preset = parser.parse_args().preset
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    on_gpu = torch.cuda.is_available()
    device, batch = ("cuda", 128) if on_gpu else ("cpu", 8)
    name = torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads"
    print(f"{preset}, batch {batch}, {name}, torch {torch.__version__}")
    x = torch.randn(batch, 2, 64, 64, device=device)
    results: dict[tuple[str, str], dict[str, float]] = {}
    for form in ("plain", "folded"):
        model = build_model("pibert", preset=preset).to(device)
        model.folds = form == "folded"
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
        mode = "reduce-overhead" if on_gpu else "default"
        compiled = torch.compile(model, fullgraph=True, mode=mode)
        for run, call in (("eager", model), ("compiled", compiled)):
            results[run, form] = measure(model, call, x)
    for run in ("eager", "compiled"):
        for task, plain in results[run, "plain"].items():
            folded = results[run, "folded"][task]
            print(
                f"{run:9s} {task:20s} plain {plain:8.3f} ms  folded {folded:8.3f} ms  "
                f"folded / plain {folded / plain:.2f}  ({folded / batch:.4f} ms a sample)"
            )


if __name__ == "__main__":
    main()
