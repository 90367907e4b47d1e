"""Damaged and hostile files of models and runs end in a clear error, never in a traceback."""

import random
import warnings

import pytest

from tests.fuzz.models import CHANGES, Good, fault


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Good:
    return Good(tmp_path_factory.mktemp("good"))


def run(kind: str, good: Good, cases: int, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in range(cases):
            error = fault(CHANGES[kind], random.Random(f"{kind} {seed} {case}"), good)
            assert error is None, f"case {case} of seed {seed}: {error!r}"


@pytest.mark.parametrize("kind", CHANGES)
def test_a_changed_file_is_read_or_refused(kind: str, good: Good) -> None:
    run(kind, good, cases=60, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHANGES)
def test_thousands_of_changed_files_are_read_or_refused(kind: str, good: Good) -> None:
    run(kind, good, cases=3000, seed=1)
