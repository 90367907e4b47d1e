"""Compare our flow solver and our model with OpenFOAM, and write docs/openfoam.md.

python -m studies.openfoam                      # about an hour on two cores
python -m studies.openfoam --only wake transfer # some parts; the page keeps the others as they were

Parts: wake (fixed cylinder, Re 100), vibration (cylinder on a spring, Re 150), transfer (train on
one solver, evaluate on the other). With --run, which names a run of flow and structure on single
cylinders, also response: its test flows by OpenFOAM, two minutes each, and the run's rollouts from
them. Finished simulations in --work are reused. OpenFOAM must be installed (Debian: apt-get install
openfoam); without it nothing is measured.
"""

import argparse
import json
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from pibert.experiments.run_folder import commit
from studies.openfoam import case, compare, page, response, transfer

PARTS = ("wake", "vibration", "transfer")
RESPONSE = "response"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the page")
    parser.add_argument("--work", type=Path, default=Path("outputs/openfoam"), help="simulations")
    parser.add_argument("--only", nargs="*", choices=(*PARTS, RESPONSE), help="some parts")
    parser.add_argument("--run", type=Path, help="run folder of a coupled model, for response")
    parser.add_argument(
        "--flows", type=int, nargs="*", default=[], help="numbers of test flows, for response"
    )
    options = parser.parse_args()
    parts = options.only or [*PARTS, *([RESPONSE] if options.run else [])]
    if RESPONSE in parts and not options.run:
        parser.error("response needs the run folder of a coupled model: --run FOLDER")
    if not case.is_installed():
        print(f"skipped: OpenFOAM (blockMesh, pimpleFoam) is not on the path; {case.INSTALL}")
        return
    options.work.mkdir(parents=True, exist_ok=True)
    store = options.out / "solver" / "openfoam.json"
    store.parent.mkdir(parents=True, exist_ok=True)
    done = json.loads(store.read_text()) if store.exists() else {}
    measure: dict[str, Callable[[], Any]] = {
        "wake": lambda: compare.measure_wake(options.work),
        "vibration": lambda: compare.measure_vibration(options.work, print),
        "transfer": lambda: {
            "rows": transfer.measure(compare.wake_files(options.work), options.work / "runs")
        },
        RESPONSE: lambda: response.measure(options.run, options.work, print, numbers=options.flows),
    }
    for part in parts:
        done[part] = measure[part]() | {"measured": _circumstances(part, options.flows)}
        store.write_text(json.dumps(done) + "\n")
        page.write(done, options.out)
        print(f"{part}: done", flush=True)


def _circumstances(part: str, flows: Sequence[int]) -> dict[str, Any]:
    chosen = f" --flows {' '.join(map(str, flows))}" if flows else ""
    return {
        "command": f"python -m studies.openfoam --only {part}"
        + (f" --run RUN{chosen}" if part == RESPONSE else ""),
        "commit": commit(),
        "hardware": f"{_processor()}, {os.cpu_count()} cores",
        "openfoam": case.VERSION,
        "torch": torch.__version__,
    }


def _processor() -> str:
    """The model of the processor, as Linux names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


if __name__ == "__main__":
    main()
