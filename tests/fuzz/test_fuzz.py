"""Damaged files of every kind: no traceback, hang, crash, look at other files, or 2 GB of memory.

Other damage comes with another ``--seed``. A failing case is repeated with
``python -m tests.fuzz.supervise FOLDER SEED CASE CASE+1 here``.
"""

from pathlib import Path

import pytest

from tests.fuzz.supervise import find_failures

FEW = 2_000
MANY = 25_000


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("seed"))


def test_damaged_files_are_refused_in_words(seed: int, tmp_path: Path) -> None:
    assert find_failures(tmp_path / "fuzz", seed, 0, FEW, "here") == []


def test_damaged_files_are_refused_in_words_by_a_child(seed: int, tmp_path: Path) -> None:
    assert find_failures(tmp_path / "fuzz", seed, 0, 10, "apart") == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("how", ["here", "apart"])
def test_many_damaged_files_are_refused_in_words(
    how: str, part: int, seed: int, tmp_path: Path
) -> None:
    count = MANY if how == "here" else 2_500
    start = 100_000 + part * count
    assert find_failures(tmp_path / "fuzz", seed, start, start + count, how) == []
