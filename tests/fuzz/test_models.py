"""Damaged and hostile files of models and runs end in a clear error, never in a traceback."""

import random
import warnings
from typing import Any

import pytest

from tests.fuzz.models import CHANGES, Good, fault

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
