"""The first steps with an installed package: run it with the Python of a fresh environment.

python .ci/first_steps.py       # needs pibert-cfd[train]
"""

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path


def run(*words: str) -> None:
    print("$ pibert", *words, flush=True)
    done = subprocess.run([sys.executable, "-m", "pibert", *words], stdout=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"pibert {words[0]} ended with {done.returncode}")


def main() -> None:
    os.chdir(tempfile.mkdtemp())  # not the checkout: the installed package is tried
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry).name != ".ci"]
    import numpy as np

    import pibert

    print(f"Python {platform.python_version()}, pibert {pibert.__version__} in {pibert.__file__}")
    run("--help")
    sample = str(Path(pibert.__file__).parent / "weights" / "cylinder-mr" / "sample.h5")
    run("rollout", sample, "--model", "cylinder-mr", "--steps", "5", "--out", "wake.gif")
    run(
        "rollout",
        sample,
        "--model",
        "cylinder-mr",
        "--steps",
        "3",
        "--level",
        "0.9",
        "--out",
        "i.h5",
    )

    time, (y, x) = np.arange(40)[:, None, None], np.mgrid[:16, :24]
    fields = np.stack([np.sin(0.3 * x - 0.2 * time), np.cos(0.3 * y - 0.2 * time)], 1)
    flow = pibert.flow(fields, dx=0.01, dy=0.01, dt=0.1)
    model = pibert.fit(flow, preset="small", epochs=2, device="cpu", quiet=True)
    print("skill:", model.evaluate()["skill"]["all"])
    model.rollout(flow, 5).plot("rollout.png")
    for name in ("wake.gif", "i.h5", "rollout.png"):
        if not Path(name).stat().st_size:
            sys.exit(f"{name} is empty")
    print("first steps: done")


if __name__ == "__main__":
    main()
