"""The lid-driven cavity on its centre lines."""

from pathlib import Path

import torch
from torch import Tensor

from pibert.solver import run
from pibert.solver.enclosed import cavity
from validation import references as known
from validation.checks import Check, Part, interpolate, new_figure, save


def measure(folder: Path, device: str, quick: bool) -> Part:
    cells = 64 if quick else 192
    numbers = [100.0, 1000.0]
    case = cavity(numbers, cells=cells, device=device)
    solution = run(case, 2, case.steps(25.0 if quick else 80.0), compiled=True)
    fields = solution.fields[:, -1].double()
    half = cells // 2
    u = fields[:, 0, :, half - 1 : half + 1].mean(-1)  # on the vertical centre line
    v = fields[:, 1, half - 1 : half + 1].mean(-2)
    place = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    place = torch.cat((torch.zeros(1).double(), place, torch.ones(1).double()))

    def with_walls(line: Tensor, lid: float) -> Tensor:
        ends = torch.tensor([0.0, lid], dtype=torch.float64)
        return torch.cat((ends[:1], line, ends[1:]))

    checks = []
    figure = new_figure(9.0, 4.0)
    axes = figure.subplots(1, 2)
    for i, number in enumerate((100, 1000)):
        lines = with_walls(u[i], 1.0), with_walls(v[i], 0.0)
        axes[0].plot(lines[0], place, label=f"Re {number}")
        axes[1].plot(place, lines[1], label=f"Re {number}")
        axes[0].plot(known.GHIA_U[number], known.GHIA_Y, "k.")
        axes[1].plot(known.GHIA_X, known.GHIA_V[number], "k.")
        tables = {"Ghia": (known.GHIA_Y, known.GHIA_U[number], known.GHIA_X, known.GHIA_V[number])}
        if number == 1000:
            tables["Botella and Peyret"] = (
                known.BOTELLA_Y,
                known.BOTELLA_U,
                known.BOTELLA_X,
                known.BOTELLA_V,
            )
            axes[0].plot(known.BOTELLA_U, known.BOTELLA_Y, "r+")
            axes[1].plot(known.BOTELLA_X, known.BOTELLA_V, "r+")
        for author, (ys, us, xs, vs) in tables.items():
            for name, at, values, line in (("u", ys, us, lines[0]), ("v", xs, vs, lines[1])):
                error = interpolate(at, place, line) - torch.tensor(values, dtype=torch.float64)
                what = f"Re {number}, {name}, largest difference from {author}"
                checks.append(Check(what, float(error.abs().max()), 0.0, 0.02))
    axes[0].set(xlabel="u on the vertical centre line", ylabel="y")
    axes[1].set(xlabel="x", ylabel="v on the horizontal centre line")
    axes[0].legend()
    save(figure, folder / "cavity.png")
    return Part(
        "Lid-driven cavity",
        f"{cells} x {cells} cells, lid speed 0.1 cells per step, started from rest and run to "
        f"{solution.time[0, -1]:g} L/U. Differences are relative to the lid speed.",
        tuple(checks),
        (("cavity.png", "Centre lines; dots: Ghia et al. (1982), crosses: Botella and Peyret"),),
    )
