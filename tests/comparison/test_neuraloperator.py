"""Models of the package neuraloperator in a comparison, with and without the package."""

from dataclasses import replace
from pathlib import Path

import pytest

from pibert.comparison.jobs import carry_out
from pibert.comparison.plan import Candidate, Comparison
from pibert.comparison.results import gather
from pibert.experiments.experiment import ModelConfig
from pibert.models.baselines.neuraloperator import PRESETS
from tests.comparison.setups import candidate, comparison_of, quickly, write_waves


def plan_of(tmp_path: Path) -> Comparison:
    """FNO, TFNO and UNO with all inputs, beside persistence."""
    options = {"parameters": True, "mask": True}
    models = {
        f"neuralop-{preset}": Candidate(
            model=ModelConfig(name="neuraloperator", preset=preset, options=options)
        )
        for preset in PRESETS
    }
    data = write_waves(tmp_path / "waves.h5", 8, frames=6)
    plan = comparison_of(data, candidates=models | {"persistence": candidate("persistence")})
    return replace(plan, seeds=(0,), samples=30)


def test_fno_tfno_and_uno_are_trained_and_ranked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("neuralop", exc_type=ImportError)
    quickly(monkeypatch)
    plan = plan_of(tmp_path)
    failed = carry_out(plan, tmp_path / "out")
    assert not failed
    results = gather(plan, tmp_path / "out", failed)
    names = {row["model"] for row in results["data"]["waves"]["ranking"]}
    assert names == {"persistence", *(f"neuralop-{preset}" for preset in PRESETS)}
