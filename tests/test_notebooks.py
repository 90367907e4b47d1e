"""The notebooks run from top to bottom, in a process of their own as a user's kernel is."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def executed(path: Path, folder: Path) -> str:
    """What the code cells print, one after the other."""
    cells = json.loads(path.read_text())["cells"]
    code = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_first_prediction_beats_persistence(tmp_path: Path) -> None:
    text = executed(ROOT / "notebooks/first-prediction.ipynb", tmp_path)
    assert float(re.findall(r"skill (\S+)", text)[0]) > 0.9


@pytest.mark.slow
def test_a_surrogate_of_own_arrays_beats_persistence(tmp_path: Path) -> None:
    text = executed(ROOT / "notebooks/own-arrays.ipynb", tmp_path)
    assert float(re.findall(r"persistence: (\S+)", text)[0]) > 0.5


@pytest.mark.slow
def test_intervals_contain_the_truth_and_faulty_inputs_are_flagged(tmp_path: Path) -> None:
    text = executed(ROOT / "notebooks/how-far-to-trust.ipynb", tmp_path)
    inside = [float(share) for share in re.findall(r"(\S+) inside", text)]
    assert len(inside) == 4 and min(inside) > 0.6
    flagged = [int(share) for share in re.findall(r"(\d+)% of the windows flagged", text)]
    assert flagged[0] < 50 and flagged[1] == 100
