"""Runs the cases of ``worker`` in processes that may crash, and gathers what went wrong.

python -m tests.fuzz.supervise FOLDER SEED START STOP here|apart
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def find_failures(folder: Path, seed: int, start: int, stop: int, how: str) -> list[str]:
    """What went wrong in some cases; a case that ends the process is one of them.

    Those of ``here`` read in the process of the cases, those of ``apart`` as the package does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    crashes: list[str] = []
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("PIBERT_READ_IN_PROCESS", None)
    while start < stop:
        command = [sys.executable, "-m", "tests.fuzz.worker", folder, seed, start, stop, how]
        done = subprocess.run(
            list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True
        )
        if not done.returncode:
            break
        case = folder / "case"
        assert case.exists(), done.stderr
        crashes.append(
            f"case {case.read_text()} of seed {seed} ended the process with {done.returncode}:\n"
            + done.stderr[-3000:]
        )
        start = int(case.read_text()) + 1
    noted = (folder / "failures").read_text().split("\0")[:-1]
    return crashes + noted


if __name__ == "__main__":
    _, place, number, first, last, way = sys.argv
    found = find_failures(Path(place), int(number), int(first), int(last), way)
    print(*found, f"{len(found)} failures", sep="\n\n")
