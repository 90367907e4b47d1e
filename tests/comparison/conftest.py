"""A comparison that was carried out once for all tests."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pibert.comparison.jobs import carry_out
from pibert.comparison.plan import Comparison, Job
from pibert.comparison.results import gather
from pibert.experiments.flows import Flows, prepare
from tests.comparison.setups import MemoryWatcher, comparison_of, quickly, write_waves


@dataclass(frozen=True)
class Carried:
    """A plan, its folder, and what came of it."""

    comparison: Comparison
    out: Path
    flows: Flows
    watcher: MemoryWatcher
    failed: dict[Job, str]
    results: dict[str, Any]


@pytest.fixture(scope="session")
def carried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carried]:
    folder = tmp_path_factory.mktemp("comparison")
    comparison = comparison_of(write_waves(folder / "waves.h5"))
    watcher, out = MemoryWatcher(), folder / "out"
    with pytest.MonkeyPatch.context() as patch:
        quickly(patch)
        failed = carry_out(comparison, out, watcher)
    results = gather(comparison, out, failed)
    yield Carried(comparison, out, prepare(comparison.data["waves"]), watcher, failed, results)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quickly(monkeypatch)
