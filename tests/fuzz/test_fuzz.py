"""Damaged files of every kind: no traceback, hang, crash, access to other files, or 2 GB of memory.

Other damage comes with another ``--seed``. To repeat a failing case:
``python -m tests.fuzz.worker FOLDER SEED CASE CASE+1 here`` (or ``isolated``).
"""

import os
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.models import CHANGES, Good, fault

ROOT = Path(__file__).parents[2]
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("how", "start", "count"),
    [
        ("here", 0, 1_000),
        ("isolated", 0, 10),
        *(pytest.param("here", start, 25_000, marks=slow) for start in (100_000, 125_000)),
        *(pytest.param("isolated", start, 2_500, marks=slow) for start in (100_000, 102_500)),
    ],
)
def test_damaged_files_are_refused_with_a_message(
    how: str, start: int, count: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    seed = int(request.config.getoption("seed"))
    assert find_failures(tmp_path / "fuzz", seed, start, start + count, how) == []


def find_failures(folder: Path, seed: int, start: int, stop: int, how: str) -> list[str]:
    """Run cases of ``worker`` in a process and return what failed, with cases that crash it."""
    folder.mkdir(parents=True)
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
    return crashes + (folder / "failures").read_text().split("\0")[:-1]


# Files of models and runs


kinds = pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Good:
    return Good(tmp_path_factory.mktemp("good"))


@kinds
@pytest.mark.parametrize("cases", [60, pytest.param(3000, marks=pytest.mark.slow)])
def test_a_changed_file_is_read_or_refused(change: Any, cases: int, good: Good) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in range(cases):
            error = fault(change, random.Random(f"{change.__name__} {case}"), good)
            assert error is None, f"case {case}: {error!r}"
