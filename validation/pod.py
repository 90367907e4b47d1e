"""The wake at Re 100 in a narrow domain, against a spectral-element simulation given as modes."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pibert.fields import Grid
from pibert.solver import run
from pibert.solver.wakes import cylinder
from validation.checks import Check, Part, amplitude, frequency, new_figure, save

PROBES = ((2.0, 0.0), (6.0, 1.0))
"""x and y in D from the centre."""


def measure(folder: Path, device: str, quick: bool, file: Path) -> Part:
    data = np.load(file, allow_pickle=False)
    theirs = _probe_modes(data)
    their_dt = float(data["t"][1] - data["t"][0])
    cells = 16.0 if quick else 32.0
    case = cylinder(
        [100.0],
        cells=cells,
        domain=(24.0, 10.0),
        upstream=5.0,
        sides="slip",
        sponge=4.0,
        view=(1.0, 7.0, -2.0, 2.0),
        speed=0.04,
        perturbation=0.5,
        device=device,
    )
    interval = 0.1
    frames = 300 if quick else 600
    solution = run(case, frames, interval / case.dt, warm_up=case.steps(100.0), compiled=True)
    ours = {p: _probe(solution.fields[0], case.grid, p) for p in PROBES}
    ours_st = frequency(ours[PROBES[0]][1], interval)
    theirs_st = frequency(theirs[PROBES[0]][1], their_dt)
    checks = [Check("fundamental frequency, ours over reference", ours_st / theirs_st, 0.97, 1.03)]
    figure = new_figure(9.0, 4.2)
    axes = figure.subplots(2, 1, sharex=True)
    for axis, probe in zip(axes, PROBES, strict=True):
        for name, place, harmonic in (("v", 1, 1), ("u", 0, 2), ("v", 1, 3)):
            a = amplitude(ours[probe][place], interval, harmonic * ours_st)
            b = amplitude(theirs[probe][place], their_dt, harmonic * theirs_st)
            what = f"({probe[0]:g}, {probe[1]:g}) D, harmonic {harmonic} of {name}: "
            what += f"{a:.3f} against {b:.3f} U, difference"
            checks.append(Check(what, abs(a - b), 0.0, 0.02))
        for trace, dt, style in (
            (theirs[probe][1], their_dt, "k"),
            (ours[probe][1], interval, "r--"),
        ):
            axis.plot(torch.arange(200) * dt, _from_a_rise(trace, 200), style, lw=1)
        axis.set(ylabel=f"v at {probe}, U")
    axes[-1].set(xlabel="U t / D from a rise of v")
    save(figure, folder / "pod.png")
    return Part(
        "Wake at Re 100 in a narrow domain",
        "The reference is a Nek5000 simulation in the domain [-5, 15] x [-5, 5] D with slip sides, "
        "given as ten POD modes (pysindy example data). Ours has the same width, inflow and sides, "
        f"D = {cells:g} cells, U = 0.04, and a domain 4 D longer to hold a sponge before the "
        "outflow. The narrow domain raises the shedding frequency: the reference has "
        f"{theirs_st:.4f}, ours {ours_st:.4f}. We chose the tolerance of the amplitudes, 2 % of U. "
        "Relative to themselves, the weak harmonics differ by more than 2 %.",
        tuple(checks),
        (("pod.png", "v at two probes; black: reference, red: ours"),),
    )


def _probe_modes(data: Any) -> dict[tuple[float, float], Tensor]:
    x, y, coef, modes = data["x"], data["y"], data["coef"][-800:], data["modes"]
    found = {}
    for px, py in PROBES:
        i, j = np.searchsorted(x, px) - 1, np.searchsorted(y, py) - 1
        a, b = (px - x[i]) / (x[i + 1] - x[i]), (py - y[j]) / (y[j + 1] - y[j])
        at = (1 - b) * ((1 - a) * modes[:, :, j, i] + a * modes[:, :, j, i + 1]) + b * (
            (1 - a) * modes[:, :, j + 1, i] + a * modes[:, :, j + 1, i + 1]
        )  # (rank, 2)
        found[px, py] = torch.from_numpy((coef @ at).T.astype(np.float64))
    return found


def _probe(fields: Tensor, grid: Grid, place: tuple[float, float]) -> Tensor:
    column = (place[0] - grid.origin[0]) / grid.dx
    row = (place[1] - grid.origin[1]) / grid.dy
    i, j = int(column), int(row)
    a, b = column - i, row - j
    lower = (1 - a) * fields[:, :2, j, i] + a * fields[:, :2, j, i + 1]
    upper = (1 - a) * fields[:, :2, j + 1, i] + a * fields[:, :2, j + 1, i + 1]
    return ((1 - b) * lower + b * upper).T.double()


def _from_a_rise(signal: Tensor, count: int) -> Tensor:
    """Some values from an upward crossing of zero on, near the end."""
    late = signal[-2 * count :]
    return late[int(((late[:-1] <= 0) & (late[1:] > 0)).nonzero()[0, 0]) :][:count]
