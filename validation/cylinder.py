"""The circular cylinder: forces, frequency, bubble; their convergence; the impulsive start."""

from pathlib import Path

import torch
from torch import Tensor

from pibert.solver import run
from pibert.solver.wakes import cylinder
from validation import references as known
from validation.checks import Check, Part, frequency, interpolate, new_figure, save, widened

NUMBERS = [40.0, 100.0, 200.0]


def measure(folder: Path, device: str, quick: bool) -> Part:
    resolutions = (10.0,) if quick else (12.0, 16.0, 24.0, 32.0)
    domain, upstream = ((30.0, 30.0), 10.0) if quick else ((60.0, 40.0), 20.0)
    rows = []
    for cells in resolutions:
        case = cylinder(
            NUMBERS,
            cells=cells,
            domain=domain,
            upstream=upstream,
            view=(-1.0, 5.0, -0.5, 0.5),
            speed=0.05,
            perturbation=[0.0, 0.5, 0.5],
            device=device,
        )
        solution = run(case, 2, case.steps(60.0), warm_up=case.steps(100.0), compiled=True)
        force = solution.force.double()
        drag = force[..., 0].mean(1)
        strouhal = [frequency(force[i, :, 1], case.dt) for i in (1, 2)]
        lift = force[:, :, 1].abs().amax(1)
        bubble = _bubble(solution.fields[0, -1, 0], case.grid.origin[0], case.grid.dx)
        rows.append((cells, *drag.tolist(), *strouhal, bubble, lift[1].item()))
    table = "| D in cells | C_D Re 40 | C_D Re 100 | C_D Re 200 | St Re 100 | St Re 200 | "
    table += "recirculation length Re 40 | largest C_L Re 100 |\n" + "| --- " * 8 + "|\n"
    for cells, *values in rows:
        table += f"| {cells:g} | " + " | ".join(f"{value:.4f}" for value in values) + " |\n"
    _, d40, d100, d200, st100, st200, bubble, _ = rows[-1]
    found = {
        "C_D, Re 40": (d40, known.DRAG[40]),
        "C_D, Re 100": (d100, known.DRAG[100]),
        "C_D, Re 200": (d200, known.DRAG[200]),
        "St, Re 100": (st100, known.STROUHAL[100]),
        "St, Re 200": (st200, known.STROUHAL[200]),
        "recirculation length, Re 40, D": (bubble, known.BUBBLE),
    }
    figure = new_figure(9.0, 3.4)
    axes = figure.subplots(1, 2)
    last = round(30 / case.dt)
    time = torch.arange(last) * case.dt
    for i, number in enumerate(NUMBERS):
        axes[0].plot(time, force[i, -last:, 0], label=f"Re {number:g}")
        axes[1].plot(time, force[i, -last:, 1])
    axes[0].set(xlabel="U t / D", ylabel="C_D")
    axes[1].set(xlabel="U t / D", ylabel="C_L")
    axes[0].legend()
    save(figure, folder / "cylinder.png")
    return Part(
        "Cylinder",
        f"Domain {domain[0]:g} D long and {domain[1]:g} D wide (blockage "
        f"{100 / domain[1]:.1f} %), {upstream:g} D upstream of the body, far-field sides, U = 0.05 "
        "cells per step, two relaxation times, averages over 60 D/U after 100 D/U. Expected: "
        "published ranges widened by 2 %.",
        tuple(Check(what, value, *widened(bounds)) for what, (value, bounds) in found.items()),
        (("cylinder.png", "Drag and lift at the finest resolution"),),
        "Grid convergence; the checks use the last row. Convergence is not monotonic, because the "
        "values depend on how the lattice cuts the circle.\n\n" + table,
    )


def _bubble(u: Tensor, origin: float, dx: float) -> float:
    """From the rear point to where the flow on the axis turns downstream again, in D."""
    rows = u.shape[0]
    line = 0.5 * (u[(rows - 1) // 2] + u[rows // 2]).double()
    x = origin + dx * torch.arange(len(line), dtype=torch.float64)
    behind = x > 0.6
    line, x = line[behind], x[behind]
    turn = int(((line[:-1] < 0) & (line[1:] >= 0)).nonzero()[0, 0])
    share = line[turn] / (line[turn] - line[turn + 1])
    return float(x[turn] + share * dx) - 0.5


def measure_impulsive(folder: Path, device: str, quick: bool) -> Part:
    cells, domain = (48.0, (10.0, 10.0)) if quick else (144.0, (44.0, 44.0))
    case = cylinder(
        [550.0],
        cells=cells,
        domain=domain,
        upstream=domain[0] / 2,
        view=(-1.0, 2.0, -1.0, 1.0),
        speed=0.06,
        device=device,
    )
    solution = run(case, 2, case.steps(3.5), compiled=True)
    drag = solution.force[0, :, 0].double()
    time = 2 * case.dt * (torch.arange(len(drag)) + 1)  # in radii
    published = [(t, c) for t, c in known.IMPULSIVE_RE_550 if 0.5 <= t <= 6.9]
    ours = interpolate([t for t, _ in published], time, drag)
    errors = ours / torch.tensor([c for _, c in published], dtype=torch.float64) - 1
    figure = new_figure(6.0, 3.6)
    axes = figure.subplots()
    axes.plot(time, drag, label="solver")
    axes.plot(*zip(*known.IMPULSIVE_RE_550, strict=True), "k.", label="Koumoutsakos and Leonard")
    axes.set(xlabel="U t / R", ylabel="C_D", xlim=(0, 7), ylim=(0, 2))
    axes.legend()
    save(figure, folder / "impulsive.png")
    return Part(
        "Impulsive start, Re 550",
        f"D = {cells:g} cells, domain {domain[0]:g} x {domain[1]:g} D, U = 0.06 cells per step. "
        "Time is in R/U. The initial condition is potential flow around the body, which a domain "
        "of this size disturbs little. In a smaller domain the mismatch at the sides sends sound "
        "waves to the body, and the force shows them.",
        (
            Check(
                "largest relative difference in drag for U t / R >= 0.5",
                float(errors.abs().max()),
                0.0,
                0.05,
            ),
        ),
        (("impulsive.png", "Drag after an impulsive start"),),
    )
