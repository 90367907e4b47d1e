"""The fixed and the vibrating cylinder by both solvers: forces, frequency, amplitude."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.format import Reader, write
from pibert.evaluation.vibration import vibration
from pibert.evaluation.wake_oscillator import (
    Mounting,
    Response,
    WakeOscillator,
    fit_wake_oscillator,
)
from studies.openfoam import lattice
from studies.openfoam.case import Cylinder, Series, Spring, read_series, run
from studies.openfoam.frames import read_frames

WAKE = Cylinder(reynolds=100.0, warm_up=70.0, frames=250, interval=0.4)
WAKE_WARM_UP = 60.0
"""Of our solver, which starts with a vortex behind the body."""
REYNOLDS, MASS = 150.0, 2.0
"""Of the vibrating cylinder; m / (rho D^2), no damping: the case of docs/solver.md."""
REDUCED = (3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
VIBRATION_WARM_UP, VIBRATION_SPAN = 45.0, 55.0
"""Of our solver, in D/U."""
FINE, FINE_CELLS, FINE_WARM_UP, FINE_SPAN = 5.0, 24, 35.0, 30.0
"""A run of our solver at one reduced velocity with more cells across the body."""
INTERVAL = 0.25
"""Between the values of stored series, in D/U."""
SETTLING, SETTLED = 600, 1200
"""Times, in D/U, between which the response of the wake oscillator is measured."""


def vibrating(reduced_velocity: float) -> Cylinder:
    """The run of OpenFOAM at a reduced velocity."""
    return Cylinder(
        reynolds=REYNOLDS,
        spring=Spring(mass=MASS, reduced_velocity=reduced_velocity),
        step=0.025,
        warm_up=45.0,
        frames=121,
        interval=INTERVAL,
        refinement=0.8,
        initial_v=0.2,
    )


def wake_files(work: Path) -> dict[str, Path]:
    """Return the frames of the Re 100 wake by solver; simulate what is missing."""
    files = {"lattice": work / "lattice-wake.h5", "openfoam": work / "openfoam-wake.h5"}
    if not files["openfoam"].exists():
        write(files["openfoam"], [read_frames(_run(WAKE, work / "wake"), WAKE)])
    if not files["lattice"].exists():
        write(
            files["lattice"],
            [
                lattice.simulate_wake(
                    WAKE.reynolds,
                    warm_up=WAKE_WARM_UP,
                    frames=WAKE.frames,
                    interval=WAKE.interval,
                )
            ],
        )
    return files


def measure_wake(work: Path) -> dict[str, Any]:
    """Return drag, largest lift and Strouhal number at Re 100 of both solvers, with series."""
    rows = {}
    for solver, file in wake_files(work).items():
        series = Reader(file)[0].series
        drag, lift = (series[name].double().numpy() for name in ("drag", "lift"))
        time = WAKE.interval * np.arange(len(lift))
        rows[solver] = {
            "drag": float(drag.mean()),
            "lift": vibration(lift, time).amplitude,
            "strouhal": vibration(lift, time).frequency,
            "series": _stored(time, drag=drag, lift=lift),
        }
    rows["openfoam"] |= cost(work / "wake")
    return {"reynolds": WAKE.reynolds, **rows}


def measure_vibration(work: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Return amplitude, frequency and drag over reduced velocity, and the wake oscillator's."""
    ours = _lattice_vibrations(work / "lattice-vibration.npz", REDUCED)
    (fine,) = _lattice_vibrations(work / "lattice-vibration-24.npz", (FINE,))
    mounts = [Mounting(mass=MASS, reduced_velocity=u) for u in REDUCED]
    oscillator = fit_wake_oscillator(list(map(_response, ours, mounts)))
    rows = []
    for mine, mounting in zip(ours, mounts, strict=True):
        u = mounting.reduced_velocity
        flow = vibrating(u)
        case = _run(flow, work / f"vibration-{u:g}")
        theirs = read_series(case).at(np.arange(flow.warm_up, flow.end, INTERVAL))
        rows.append(
            {
                "reduced_velocity": u,
                "openfoam": _describe(theirs) | cost(case),
                "lattice": _describe(mine),
                "wake_oscillator": _settle(oscillator, mounting),
            }
        )
        say(f"U* = {u:g}: done")
    return {
        "reynolds": REYNOLDS,
        "mass": MASS,
        "damping_ratio": 0.0,
        "rows": rows,
        "fine": {"reduced_velocity": FINE, "cells": FINE_CELLS, **_describe(fine)},
        "wake_oscillator": vars(oscillator),
    }


def _response(series: Series, mounting: Mounting) -> Response:
    assert series.displacement is not None and series.velocity is not None
    return Response(
        mounting=mounting,
        interval=INTERVAL,
        displacement=series.displacement,
        velocity=series.velocity,
        lift=series.lift,
    )


def _lattice_vibrations(file: Path, reduced: tuple[float, ...]) -> list[Series]:
    """Return the vibrations by our solver at ``INTERVAL``; simulate them if there is no file."""
    if not file.exists():
        is_fine = reduced == (FINE,)
        found = lattice.simulate_vibration(
            REYNOLDS,
            MASS,
            reduced,
            warm_up=FINE_WARM_UP if is_fine else VIBRATION_WARM_UP,
            span=FINE_SPAN if is_fine else VIBRATION_SPAN,
            cells=FINE_CELLS if is_fine else lattice.VIBRATION_CELLS,
        )
        np.savez(file, allow_pickle=False, **found)
    with np.load(file, allow_pickle=False) as archive:
        stored = dict(archive)
    flows = [
        Series(**{name: v if name == "time" else v[k] for name, v in stored.items()})
        for k in range(len(reduced))
    ]
    return [flow.at(np.arange(flow.time[0], flow.time[-1], INTERVAL)) for flow in flows]


def _describe(series: Series) -> dict[str, Any]:
    """Return the measures of a series at ``INTERVAL``, and the series itself."""
    assert series.displacement is not None
    found = vibration(series.displacement, series.time)
    return {
        "amplitude": found.amplitude,
        "frequency": found.frequency,
        "drag": float(series.drag.mean()),
        "lift": float(np.sqrt(2) * series.lift.std()),
        "series": _stored(
            series.time, displacement=series.displacement, drag=series.drag, lift=series.lift
        ),
    }


def _settle(model: WakeOscillator, mounting: Mounting) -> dict[str, Any]:
    """Return the response of the wake oscillator from a small disturbance."""
    first, last = (round(time / INTERVAL) for time in (SETTLING, SETTLED))
    y = model.simulate(mounting, last, INTERVAL, (0.0, 0.0, 0.1, 0.0))[0, first:]
    found = vibration(y, INTERVAL * np.arange(len(y)))
    return {"amplitude": found.amplitude, "frequency": found.frequency}


def _stored(time: np.ndarray, **series: np.ndarray) -> dict[str, Any]:
    step = float(time[1] - time[0])
    return {"interval": round(step, 6)} | {
        name: [round(float(x), 5) for x in values] for name, values in series.items()
    }


def _run(flow: Cylinder, case: Path) -> Path:
    """Run a case unless its folder is there."""
    if not case.exists():
        case.parent.mkdir(parents=True, exist_ok=True)
        run(flow, case)
    return case


def cost(case: Path) -> dict[str, Any]:
    """Return the cells of a case and the seconds of CPU time that it took."""
    cells = re.search(r"nCells:\s*(\d+)", (case / "log.blockMesh").read_text())
    seconds = re.findall(r"ExecutionTime = (\S+) s", (case / "log.pimpleFoam").read_text())
    assert cells and seconds
    return {"cells": int(cells[1]), "cpu_seconds": float(seconds[-1])}
