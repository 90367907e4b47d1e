"""Overhead of the training loop over a bare step written by hand.

Both take the same batches of 128 pairs of 64 x 64 fields from memory, the same objective (the
paper's supervised loss), gradient clipping and the same optimiser. The bare step does nothing else:
no log, no check, no state. It runs before and after the loop; the ratio is of medians over epochs.
On a GPU both are measured launched anew in every step, and recorded (``training/cuda_graph.py``).

    python benchmarks/training.py [--preset large] [--objective pretraining] [--steps 100]
"""

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from pibert.data.dataset import BatchOrder, Samples, Window
from pibert.data.resident import ResidentLoader
from pibert.fields import FieldSpec, Grid, Normalizer, Parameter, Trajectory
from pibert.models import build_model
from pibert.pretraining.masks import Masking
from pibert.pretraining.negatives import Negatives, NegativesConfig
from pibert.training.cuda_graph import GraphRunner, autocast
from pibert.training.engine import FitConfig, Hardware, fit
from pibert.training.losses import LossScales
from pibert.training.objectives import (
    Objective,
    equation_consistency,
    masked_physics,
    supervised,
    weighted,
)

BATCH = 128
ROUNDS = 5


def make_samples(steps: int) -> Samples:
    """Random fields: how long a step takes does not depend on what they show."""
    spec = FieldSpec(
        grid=Grid((64, 64), dx=0.05, dy=0.05),
        parameters=(Parameter(name="Re", scaling="log", mean=3.5, std=0.3),),
        dt=0.1,
        family="incompressible",
        reference_velocity=1.0,
        reference_length=1.0,
    )
    frames = BATCH * steps // 16 + 1
    generator = torch.Generator().manual_seed(0)
    trajectories = [
        Trajectory(
            name=f"noise-{index}",
            states=torch.randn(frames, 2, 64, 64, generator=generator),
            time=0.1 * torch.arange(frames, dtype=torch.float64),
            spec=spec,
            parameters={"Re": 2000.0 + 500.0 * index},
        )
        for index in range(16)
    ]
    return Samples(trajectories, window=Window(), normalizer=Normalizer.identity(2))


def make_objective(name: str, samples: Samples) -> Objective:
    spec, normalizer = samples.spec, samples.normalizer
    scales = LossScales.from_training(spec, normalizer)
    if name == "supervised":
        return supervised(scales)
    negatives = Negatives(NegativesConfig(), spec, normalizer, 1, samples.parameters)
    masked = masked_physics(Masking(), spec, normalizer, scales)
    return weighted({"mpp": (1.0, masked), "ecp": (0.1, equation_consistency(negatives))})


def bare(
    model: nn.Module, objective: Objective, loader: ResidentLoader, precision: str, recorded: bool
) -> Callable[[], float]:
    """An epoch of bare steps; gives seconds per step."""
    device = loader.device
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=on_gpu)
    runner = GraphRunner(
        model,
        lambda: autocast(device, precision),
        lambda part: contextlib.nullcontext(),
        enabled=recorded,
        say=print,
    )

    def epoch() -> float:
        model.train()
        _wait(device)
        start = time.perf_counter()
        count = 0
        for batch in loader:
            runner.train(objective, batch, 1.0)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=not runner.keeps_gradients)
            count += 1
        _wait(device)
        return (time.perf_counter() - start) / count

    return epoch


def looped(
    model: nn.Module, objective: Objective, samples: Samples, precision: str, recorded: bool
) -> list[float]:
    """Seconds per step of epochs of the training loop, but for the first two."""
    plan = FitConfig(
        epochs=ROUNDS + 2, batch_size=BATCH, micro_batch=None, learning_rate=1e-5, patience=None
    )
    where = Hardware(precision="bf16" if precision == "bf16" else "float32", cuda_graphs=recorded)
    with tempfile.TemporaryDirectory() as folder:
        fit(
            model,
            lambda epoch: objective,
            samples,
            None,
            plan,
            folder=Path(folder),
            seed=0,
            hardware=where,
        )
        lines = (Path(folder) / "log.jsonl").read_text().splitlines()
    epochs = [line for line in map(json.loads, lines) if line["kind"] == "epoch"]
    return [BATCH / line["samples_per_second"] for line in epochs[2:]]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--preset", default="base")
    parser.add_argument("--objective", default="supervised", choices=("supervised", "pretraining"))
    parser.add_argument("--steps", type=int, default=100, help="per epoch")
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device, precision = torch.device("cuda" if on_gpu else "cpu"), "bf16" if on_gpu else "float32"
    samples = make_samples(options.steps)
    objective = make_objective(options.objective, samples)
    loader = ResidentLoader(samples, BatchOrder(len(samples), BATCH, seed=0), device)
    print(f"{options.preset}, {options.objective}, batch {BATCH}, {precision}, {device}")
    for recorded in (False, True) if on_gpu else (False,):
        torch.manual_seed(0)
        model = build_model("pibert", preset=options.preset, spec=samples.spec).to(device)
        epoch = bare(model, objective, loader, precision, recorded)
        epoch(), epoch()
        before = [epoch() for _ in range(ROUNDS)]
        loop = looped(model, objective, samples, precision, recorded)
        alone = statistics.median([*before, *(epoch() for _ in range(ROUNDS))])
        mine = statistics.median(loop)
        how = "recorded" if recorded else "launched"
        print(
            f"{how}: bare {1e3 * alone:.2f} ms, loop {1e3 * mine:.2f} ms a step, "
            f"loop / bare {mine / alone:.3f}"
        )


if __name__ == "__main__":
    main()
