"""Speed of loading batches: from a file, by worker processes, and from the device itself.

Writes a file of random velocities with a body, then takes one epoch after the other from each
loader in turn; a batch counts when it is on the device. Samples are pairs of neighbouring frames.

    python benchmarks/loader.py [--device cuda]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import torch

from pibert.data.dataset import BatchOrder, Samples, Window, make_loader
from pibert.data.format import Reader, write
from pibert.data.normalize import fit_normalizer
from pibert.data.resident import ResidentLoader
from pibert.fields import Batch, FieldSpec, Grid, Trajectory


def wakes(count: int, frames: int, shape: tuple[int, int]) -> list[Trajectory]:
    body = torch.zeros(shape, dtype=torch.bool)
    body[shape[0] // 3 : shape[0] // 2, shape[1] // 6 : shape[1] // 4] = True
    spec = FieldSpec(grid=Grid(shape, body=body), dt=1.0, family="incompressible")
    generator = torch.Generator().manual_seed(0)
    return [
        Trajectory(
            name=f"wake {index}",
            states=torch.randn(frames, 2, *shape, generator=generator),
            time=torch.arange(float(frames)),
            spec=spec,
        )
        for index in range(count)
    ]


def epoch(loader: Iterable[Batch], device: torch.device) -> float:
    """Seconds until every batch of an epoch has been on the device."""
    start = time.perf_counter()
    for batch in loader:
        batch.to(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trajectories", type=int, default=8)
    parser.add_argument("--frames", type=int, default=101)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    pinned = device.type == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "wakes.h5"
        write(path, wakes(arguments.trajectories, arguments.frames, (64, 128)))
        data = list(Reader(path))
        samples = Samples(data, window=Window(), normalizer=fit_normalizer(data))
        order = BatchOrder(len(samples), arguments.batch, seed=0)
        start = time.perf_counter()
        resident = ResidentLoader(samples, order, device)
        filled = time.perf_counter() - start
        loaders: dict[str, Iterable[Batch]] = {
            "file, no worker": make_loader(samples, order, pin_memory=pinned),
            "file, 2 workers": make_loader(samples, order, num_workers=2, pin_memory=pinned),
            "on the device": resident,
        }
        print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads")
        print(f"{len(samples)} pairs of (2, 64, 128), batches of {arguments.batch}")
        print(f"{resident.nbytes / 2**20:.0f} MiB brought to the device in {filled:.2f} s")
        times: dict[str, list[float]] = {name: [] for name in loaders}
        for round_ in range(-1, arguments.rounds):
            order.go_to(round_ + 1)
            for name, loader in loaders.items():
                taken = epoch(loader, device)
                if round_ >= 0:  # the first warms up
                    times[name].append(taken)
        plain = statistics.median(times["file, no worker"])
        for name, values in times.items():
            median = statistics.median(values)
            print(
                f"{name:16s} {len(samples) / median:12,.0f} samples/s (best "
                f"{len(samples) / min(values):,.0f})  {plain / median:7.1f} x no worker"
            )


if __name__ == "__main__":
    main()
