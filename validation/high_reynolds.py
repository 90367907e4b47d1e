"""The presets at the Reynolds numbers of RealPDEBench: resolution, frequency, and their limits."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from pibert.fields import Trajectory
from pibert.physics import derivatives
from pibert.solver.presets import find_preset
from pibert.solver.wakes import CylinderWakes, TandemWakes
from validation.checks import Part, new_figure, peak_frequency, save


def measure(folder: Path, device: str, quick: bool) -> Part:
    preset = find_preset("cylinder", "realpdebench-like")
    assert isinstance(preset, CylinderWakes)
    few = replace(preset, samples=4, group=4, warm_up=10.0 if quick else 60.0)
    if quick:
        few = replace(few, frames=20, samples=2, group=2)
    # One interval for all, so that every record is long enough for a frequency.
    few = replace(few, interval=0.5, interval_grows=False)
    rows: list[tuple[float, ...]] = []
    shown: list[Tensor] = []
    for cells in (1, 2) if quick else (1, 2, 3):
        recipe = replace(few, cells_per_point=cells)
        for outcome in recipe.simulate(range(recipe.samples), device=device):
            if not isinstance(outcome, Trajectory):
                raise FloatingPointError(f"{outcome.name}: {outcome.reason}")
            rows.append(_row(outcome, recipe))
            if cells == preset.cells_per_point:
                shown.append(_vorticity(outcome))
    table = (
        "| D in cells | Re | mean C_D | rms C_L | St | eddy / molecular viscosity | effective Re "
    )
    table += "|\n"
    table += "| --- " * 7 + "|\n"
    for row in rows:
        table += "| " + " | ".join(f"{value:.4g}" for value in row) + " |\n"
    used = [r for r in rows if r[0] == preset.cells_per_point * preset.body[2]]
    figure = new_figure(9.0, 1.2 + 1.6 * len(shown) / 2)
    axes = figure.subplots((len(shown) + 1) // 2, 2, squeeze=False)
    for axis, field, row in zip(axes.flat, shown, used, strict=False):
        axis.imshow(field, origin="lower", cmap="RdBu_r", vmin=-8, vmax=8)
        axis.set(title=f"Re {row[1]:.0f}", xticks=[], yticks=[])
    save(figure, folder / "high_reynolds.png")
    return Part(
        "High Reynolds numbers: the preset `realpdebench-like`",
        f"Regularised collision with a Smagorinsky term (C = {preset.smagorinsky:g}), D = "
        f"{preset.cells_per_point * preset.body[2]:g} cells in the preset, domain "
        f"{preset.domain[0]:g} x {preset.domain[1]:g} D (blockage {100 / preset.domain[1]:.1f} %). "
        "Experiments find St near 0.2 over the whole range. At the preset's resolution the solver "
        f"gives {min(r[4] for r in used):.2f} to {max(r[4] for r in used):.2f}, which is too high; "
        "the table shows how St changes with the grid. The eddy viscosity is averaged over the "
        "view and computed from strain rates at the resolution of the frames, so it is a lower "
        "bound. It gives the effective Reynolds number.",
        (),
        (("high_reynolds.png", "Vorticity (D/U) of the preset's wakes"),),
        table + "\nThese values are not converged: drag, lift and frequency still change with the "
        "grid.\n\n**What a two-dimensional model cannot represent.** Above Re 190 the real wake is "
        "three-dimensional, and at these Reynolds numbers it is turbulent: streamwise vortices "
        "drain the rollers, and vortices stretch. A two-dimensional flow has neither mechanism. "
        "Its rollers stay coherent, lift fluctuations and mean drag are too large (experiments: "
        "C_D about 1 to 1.2, rms C_L a few tenths or less), energy moves to large scales, and base "
        "pressure is too low. Boundary layers at Re 12000 are thinner than one or two cells and "
        "separate where the grid dictates. Use these data as flows with the benchmark's geometry, "
        "time scales and frequency range, not as a substitute for its measurements.",
    )


def _row(wake: Trajectory, recipe: CylinderWakes) -> tuple[float, ...]:
    reynolds = wake.parameters["Re"]
    drag, lift = wake.series["drag"].double(), wake.series["lift"].double()
    strouhal = peak_frequency(lift, recipe.interval, low=0.05)
    cells = recipe.cells_per_point * recipe.body[2]
    u, v = _dimensionless(wake)[-50:].unbind(1)
    grid = wake.spec.grid
    u_x, u_y = derivatives.gradient(u, grid, 2)
    v_x, v_y = derivatives.gradient(v, grid, 2)
    length = recipe.scales.diameter or 1.0
    strain = length * (2 * u_x**2 + 2 * v_y**2 + (u_y + v_x) ** 2).sqrt()  # in U/D
    assert grid.body is not None
    eddy = (recipe.smagorinsky / cells) ** 2 * float(strain[:, ~grid.body].mean()) * reynolds
    return (
        cells,
        reynolds,
        float(drag.mean()),
        float(lift.std()),
        strouhal,
        eddy,
        reynolds / (1 + eddy),
    )


def _vorticity(wake: Trajectory) -> Tensor:
    u, v = _dimensionless(wake)[-1]
    grid = wake.spec.grid
    length = wake.spec.reference_length or 1.0
    field = length * (derivatives.gradient(v, grid, 2)[0] - derivatives.gradient(u, grid, 2)[1])
    assert grid.body is not None
    return torch.where(grid.body, torch.nan, field)


def _dimensionless(wake: Trajectory) -> Tensor:
    """U and v in units of the stream."""
    assert wake.spec.viscosity is not None and wake.spec.reference_length is not None
    speed = wake.parameters["Re"] * wake.spec.viscosity / wake.spec.reference_length
    return wake.read()[:, :2] / speed


def measure_tandem(folder: Path, device: str, quick: bool) -> Part:
    preset = find_preset("tandem", "fsi-like")
    assert isinstance(preset, TandemWakes)
    low, high = min(preset.reynolds), max(preset.reynolds)
    span = 10.0 if quick else 50.0
    few = replace(
        preset,
        # The ends of the range, so that its middle and with it the spring stay as they are.
        reynolds=(low, high),
        mass_ratios=preset.mass_ratios[:1],
        samples=2,
        group=2,
        view=(64, 64),
        body=(32.0, 33.0, 12.0),
        frames=round(span / 0.25),
        interval=0.25,
        interval_grows=False,
        burst=(1, 1),
        warm_up=0.6 * span,
    )
    preset_cells = preset.cells_per_point * preset.body[2]
    table = (
        "| D in cells | Re | reduced velocity | mean C_D | rms C_L | f D / U of the lift | largest "
    )
    table += "displacement, D |\n" + "| --- " * 7 + "|\n"
    found = (1,) if quick else ((1, 2, 4) if device != "cpu" else (1, 2))
    for cells in found:
        recipe = replace(few, cells_per_point=cells)
        for outcome in recipe.simulate(range(2), device=device):
            if not isinstance(outcome, Trajectory):
                raise FloatingPointError(f"{outcome.name}: {outcome.reason}")
            drag, lift = outcome.series["drag"].double(), outcome.series["lift"].double()
            row = (
                cells * few.body[2],
                outcome.parameters["Re"],
                outcome.parameters["reduced_velocity"],
                float(drag.mean()),
                float(lift.std()),
                peak_frequency(lift, recipe.interval, low=0.05),
                float(outcome.series["displacement"].abs().max()),
            )
            table += "| " + " | ".join(f"{value:.3g}" for value in row) + " |\n"
    return Part(
        "High Reynolds numbers: the preset `fsi-like`",
        "The downstream cylinder of the preset at the ends of its Reynolds number range: mass "
        f"ratio {preset.mass_ratios[0]:g}, gap {preset.gap:g} D, same domain and scheme, averages "
        f"over {span:g} D/U after {0.6 * span:g} D/U. That is short for so heavy a body, whose "
        f"vibration may still grow. The preset itself has {preset_cells:g} cells across the body. "
        "The limits of two-dimensional models stated above apply here too.",
        (),
        (),
        table,
    )
