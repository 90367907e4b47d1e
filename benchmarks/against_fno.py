"""PIBERT ``base`` and ``pibert-mr`` ``small`` against neuraloperator's FNO on the CPU.

All take (8, 2, 64, 64) to the same shape; FNO has 16 x 16 modes, 32 hidden channels, 4 layers.
Every form of every model (eager, compiled) takes turns in one process, so that whatever else the
machine does hits all of them; each model counts in its faster form. Weights are randomised: at
initialisation the last layers of PIBERT are zero.

    make bench
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from neuralop.models import FNO
from torch import Tensor, nn

from pibert.models import build_model, compile_model, count_parameters

Step = Callable[[], None]


def forward(model: Callable[[Tensor], Tensor], x: Tensor) -> Step:
    def step() -> None:
        with torch.no_grad():
            model(x)

    return step


def forward_backward(model: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> Step:
    def step() -> None:
        module.zero_grad()
        model(x).square().mean().backward()

    return step


def time_in_turns(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    for step in steps.values():
        for _ in range(3):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    x = torch.randn(8, 2, 64, 64)
    fno = FNO(n_modes=(16, 16), in_channels=2, out_channels=2, hidden_channels=32, n_layers=4)
    own: dict[str, nn.Module] = {
        "PIBERT": build_model("pibert", preset="base"),
        "PIBERT-MR small": build_model("pibert-mr", preset="small"),
    }
    with torch.no_grad():
        for parameter in (p for model in own.values() for p in model.parameters()):
            parameter.add_(0.02 * torch.randn_like(parameter))
    models: dict[str, nn.Module] = {"FNO": fno, **own}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {rounds} rounds")
    sizes = (f"{name} {count_parameters(model):,}" for name, model in models.items())
    print(f"parameters: {', '.join(sizes)}")
    compiled = {name: compile_model(model) for name, model in own.items()}
    compiled["FNO"] = torch.compile(fno)
    for task in ("forward", "forward + backward"):
        steps: dict[str, Step] = {}
        for name, model in models.items():
            model.train(task != "forward")
            for form, call in ((name, model), (f"{name} compiled", compiled[name])):
                steps[form] = (
                    forward(call, x) if task == "forward" else forward_backward(call, model, x)
                )
        times = time_in_turns(steps, rounds)
        for form, values in times.items():
            best, median = min(values), statistics.median(values)
            print(f"{task:20s} {form:24s} best {best:7.1f} ms  median {median:7.1f} ms")
        for measure in (min, statistics.median):
            fastest = {
                name: min(measure(times[name]), measure(times[f"{name} compiled"]))
                for name in models
            }
            for name in own:
                ratio = fastest[name] / fastest["FNO"]
                print(f"{task:20s} {name} / FNO by {measure.__name__}: {ratio:.2f}")


if __name__ == "__main__":
    main()
