"""Damaged files of every kind: no traceback, hang, crash, look at other files, or 2 GB of memory.

Other damage comes with another ``--seed``. A failing case is repeated with
``python -m tests.fuzz.supervise FOLDER SEED CASE CASE+1 here``.
"""

from pathlib import Path

import pytest

from tests.fuzz.supervise import find_failures

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("how", "start", "count"),
    [
        ("here", 0, 1_000),
        ("apart", 0, 10),
        *(pytest.param("here", 100_000 + part * 25_000, 25_000, marks=slow) for part in (0, 1)),
        *(pytest.param("apart", 100_000 + part * 2_500, 2_500, marks=slow) for part in (0, 1)),
    ],
)
def test_damaged_files_are_refused_with_a_message(
    how: str, start: int, count: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    seed = int(request.config.getoption("seed"))
    assert find_failures(tmp_path / "fuzz", seed, start, start + count, how) == []
