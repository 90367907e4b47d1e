"""Site updates per second of the flow solver, against a plain eager D2Q9 in the same process.

The plain one is what one writes first: roll every population, stack, one relaxation time (BGK),
periodic. The solver runs with its boundaries: a periodic box, and a cylinder in a stream with
inflow, outflow, slip sides and the force on the body. Forms take turns; the ratio of the medians is
what to look at.

    python benchmarks/lattice.py [--batch 4 --rows 256 --columns 512]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from pibert.solver.boundaries import Box, Links, make_links
from pibert.solver.lattice import (
    VELOCITIES,
    WEIGHTS,
    Fluid,
    Step,
    equilibrium,
    make_step,
    pad,
)
from pibert.solver.wakes import cylinder

Advance = Callable[[], None]


def plain(f: Tensor, omega: Tensor) -> Tensor:
    """Roll and stack."""
    f = torch.stack([f[:, i].roll((cy, cx), (1, 2)) for i, (cx, cy) in enumerate(VELOCITIES)], 1)
    c = torch.tensor(VELOCITIES, dtype=f.dtype, device=f.device)
    w = torch.tensor(WEIGHTS, dtype=f.dtype, device=f.device)[:, None, None]
    rho = f.sum(1)
    u = torch.einsum("biyx,id->bdyx", f, c) / rho[:, None]
    along = torch.einsum("bdyx,id->biyx", u, c)
    square = (u * u).sum(1, keepdim=True)
    target = w * rho[:, None] * (1 + 3 * along + 4.5 * along**2 - 1.5 * square)
    return f - omega * (f - target)


class Plain:
    """The plain solver and its state."""

    def __init__(self, start: Tensor, viscosity: Tensor) -> None:
        weights = torch.tensor(WEIGHTS, dtype=start.dtype, device=start.device)
        self.f = start + weights[:, None, None]
        self.omega = (1 / (3 * viscosity + 0.5))[:, None]

    def __call__(self) -> None:
        self.f = plain(self.f, self.omega)


class Ours:
    """The project's step with its links."""

    def __init__(self, start: Tensor, step: Step, links: Links) -> None:
        self.f, self.step, self.links = pad(start), step, links
        links.fill(self.f, self.f)

    def __call__(self) -> None:
        before, self.f = self.f, self.step(self.f)
        self.links.fill(self.f, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--columns", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = (options.rows, options.columns)
    sites = options.batch * options.rows * options.columns

    generator = torch.Generator().manual_seed(0)
    u, v = 0.02 * torch.randn(2, options.batch, *shape, generator=generator)
    start = equilibrium(torch.zeros_like(u), u, v).to(device)
    viscosity = torch.linspace(0.02, 0.1, options.batch, device=device)[:, None, None]
    fluid = Fluid(viscosity=viscosity)
    box = make_links(shape, Box.periodic(), None, torch.float32, device)
    cells = options.rows / 16
    wake = cylinder(
        [100.0] * options.batch,
        cells=cells,
        domain=(options.columns / cells, 16.0),
        scheme="regularised",
        smagorinsky=0.1,
        device=device,
    )
    forms: dict[str, Advance] = {
        "plain, eager": Plain(start, viscosity),
        "trt, periodic, eager": Ours(start, make_step(fluid), box),
        "trt, periodic, compiled": Ours(start, make_step(fluid, compiled=True), box),
        "regularised + Smagorinsky, cylinder, compiled": Ours(
            wake.start, make_step(wake.fluid, compiled=True), wake.links
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in forms}
    for advance in forms.values():
        for _ in range(3):
            advance()
    per_round = 20 if device == "cuda" else 2
    for _ in range(options.rounds):
        for name, advance in forms.items():
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(per_round):
                advance()
            if device == "cuda":
                torch.cuda.synchronize()
            times[name].append((time.perf_counter() - begin) / per_round)
    medians = {name: statistics.median(values) for name, values in times.items()}
    reference = medians["plain, eager"]
    print(f"{options.batch} x {shape[0]} x {shape[1]}, float32, {device}")
    for name, median in medians.items():
        best = sites / min(times[name]) / 1e6
        print(
            f"{name:46s} median {sites / median / 1e6:8.1f} M sites/s, best {best:8.1f}, "
            f"{reference / median:5.1f} x plain"
        )


if __name__ == "__main__":
    main()
