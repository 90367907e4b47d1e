"""Run the validation and write docs/solver.md with its pictures.

python -m validation                    # minutes on a GPU, hours on a CPU
python -m validation --quick            # coarse, minutes on a CPU: does it run?
python -m validation --only cavity pod  # some parts; the page keeps the others as they were
"""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pibert import __version__
from validation import cavity, cylinder, exact, high_reynolds, pod, vibration
from validation.checks import Check, Part

PARTS = {
    "exact": exact.measure,
    "cavity": cavity.measure,
    "cylinder": cylinder.measure,
    "impulsive": cylinder.measure_impulsive,
    "vibration": vibration.measure,
    "tandem": vibration.measure_tandem,
    "high-reynolds": high_reynolds.measure,
    "high-reynolds-tandem": high_reynolds.measure_tandem,
}

HEAD = """# Solver validation

This page compares the flow solver with exact solutions and published results. "Expected" is the
published range or a stated tolerance; "in range" tells whether the result lies in it. No
parameter is fitted to these references. To regenerate the page and its figures, run
`make validation` (`python -m validation`): minutes on a GPU, hours on a CPU. `--quick` runs coarse
grids, `--only cavity` one section.

**Method.** Flows with walls and bodies use the lattice Boltzmann method on D2Q9. Collisions have
two relaxation times, or are recursive regularised with an optional Smagorinsky term where the grid
is too coarse for the Reynolds number. Fixed bodies have curved walls by linear interpolated
bounce-back, and forces come from momentum exchange. A moving body is an immersed boundary, solved
together with its spring. Inflows prescribe the velocity. Outflows are convective, behind a viscous
sponge layer that damps vortices. The far-field sides of a wake are treated in the same way.

**Domains.** The view of a wake is a small part of the simulated domain. Each check below states its
domain. The presets trade domain width for speed: `realpdebench-like` uses 26 x 16 D (blockage 6 %),
`fsi-like` 30 x 16 D, and the cylinder's `demo` 22 x 14 D (7 %). Blockage raises drag and shedding
frequency above the unbounded values. `demo` has 10 cells across the body, where drag has not
converged (the resolution table below starts at 12). A tube or dam is shown whole except for the
sponge layer before its outflow.

**Not on this page.** Turbulence and Burgers are pseudo-spectral. Heat and wave are exact in Fourier
space. Reaction-diffusion integrates diffusion exactly and is fourth-order in time. The Euler
equations use MUSCL-HLLC. `tests/solver/` checks their orders of accuracy, conservation and exact
solutions in
every test run. Timings are in [benchmarks](../benchmarks/README.md).

"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="coarse grids and short runs")
    parser.add_argument("--only", nargs="*", choices=[*PARTS, "pod"], help="some parts")
    parser.add_argument(
        "--modes",
        type=Path,
        default=Path("data/cylinder_re100_pod.npz"),
        help="an .npz of modes (r, c, y, x), coef (t, r), x, y, t: pysindy's narrow wake",
    )
    options = parser.parse_args()
    if options.quick and options.out == Path("docs"):
        parser.error("--quick is not for the page in docs/; give another folder with --out")
    folder = options.out / "solver"
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / "results.json"
    done = json.loads(store.read_text()) if store.exists() else {}
    for name in options.only or [*PARTS, "pod"]:
        start = time.perf_counter()
        if name != "pod":
            part = PARTS[name](folder, options.device, options.quick)
        elif options.modes.exists():
            part = pod.measure(folder, options.device, options.quick, options.modes)
        else:
            print(f"pod: left out, there is no {options.modes}")
            continue
        took = time.perf_counter() - start
        done[name] = asdict(part) | {"seconds": round(took), "device": _device(options.device)}
        print(f"{name}: {took:.0f} s", flush=True)
        for check in part.checks:
            print(
                f"  {'ok ' if check.passed else 'NO '} {check.what}: {check.found:.4g}", flush=True
            )
        store.write_text(json.dumps(done, indent=1) + "\n")
        (options.out / "solver.md").write_text(_page(done))


def _page(done: dict[str, Any]) -> str:
    text = HEAD
    for name in [*PARTS, "pod"]:
        if name in done:
            entry = dict(done[name])
            took, device = entry.pop("seconds"), entry.pop("device")
            entry["checks"] = tuple(Check(**check) for check in entry["checks"])
            entry["pictures"] = tuple(tuple(picture) for picture in entry["pictures"])
            text += Part(**entry).markdown() + f"\n{took} s on {device}.\n\n"
    return text.rstrip() + "\n"


def _device(device: str) -> str:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"
    return f"{name}, PIBERT {__version__}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
