"""Flows with exact solutions: decaying vortices and Poiseuille flow."""

import math
from pathlib import Path

import torch

from pibert.solver import run
from validation.checks import Check, Part, new_figure, save
from validation.flows import channel, taylor_green
from validation.solutions import taylor_green as exact_vortices

SIZES = (16, 32, 64, 128)


def measure(folder: Path, device: str, quick: bool) -> Part:
    errors: dict[str, list[float]] = {"trt": [], "regularised": []}
    sizes = SIZES[:3] if quick else SIZES
    for scheme, found in errors.items():
        for size in sizes:
            # Diffusive scaling: the Mach number falls with the cell, both errors with its square.
            case = taylor_green(
                [50.0],
                shape=(size, size),
                speed=0.8 / size,
                scheme=scheme,  # type: ignore[arg-type]
                dtype=torch.float64,
                device=device,
            )
            solution = run(case, 2, case.steps(1.0), compiled=True)
            time = float(solution.time[0, -1])
            u, v, _ = exact_vortices(case.grid, time, 1 / 50)
            error = solution.fields[0, -1, :2] - torch.stack((u, v))
            found.append(float(error.square().mean().sqrt()))
    orders = {name: math.log2(e[-2] / e[-1]) for name, e in errors.items()}
    flat = channel([10.0], cells=16, dtype=torch.float64, device=device)
    flow = run(flat, 2, 12000, compiled=True).fields[0, -1, 0, :, 0]
    y = (torch.arange(16, dtype=torch.float64) + 0.5) / 16
    poiseuille = float((flow - 4 * y * (1 - y)).abs().max())

    figure = new_figure(5.0, 3.6)
    axes = figure.subplots()
    for name, found in errors.items():
        axes.loglog(sizes, found, "o-", label=f"{name}, order {orders[name]:.2f}")
    axes.loglog(sizes, [errors["trt"][0] * (sizes[0] / n) ** 2 for n in sizes], "k:", label="2")
    axes.set(xlabel="cells in the box", ylabel="rms error of the velocity, U")
    axes.legend()
    save(figure, folder / "vortices.png")
    return Part(
        "Exact solutions",
        "Taylor-Green vortices at Re 50 after one turnover time; the Mach number is refined with "
        "the cell size. Poiseuille flow between walls 16 cells apart (two relaxation times with "
        "the magic number 3/16), where half-way bounce-back is exact.",
        (
            Check("order of accuracy, two relaxation times", orders["trt"], 1.9, 2.6),
            Check("order of accuracy, regularised", orders["regularised"], 1.9, 2.6),
            Check("Poiseuille flow: largest error, U", poiseuille, 0.0, 1e-6),
        ),
        (("vortices.png", "Error of decaying vortices over resolution"),),
    )
