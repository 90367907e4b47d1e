"""The plans that come as files: they load, are fair, and run on files of the same layout."""

from pathlib import Path

import pytest

from pibert.comparison import load_comparison
from pibert.comparison.plan import Comparison
from pibert.experiments.flows import prepare
from tests.lookalikes import cfdbench

PLANS = Path(__file__).parents[2] / "configs" / "comparisons"
STUDIES = ("cfdbench-cavity", "cfdbench-cylinder", "cfdbench-tube", "eagle", "plasma")
"""The paper's supplement."""
FILES = [PLANS / f"{study}.toml" for study in STUDIES]
TINY = (
    "samples=72",
    "candidates.pibert.model.options.width=16",
    "candidates.pibert.model.options.heads=2",
    "candidates.pibert.model.options.depth=1",
    "candidates.pibert.model.options.modes=3",
    "candidates.unet.model.options.width=4",
    "candidates.fno2d.model.options.width=6",
    "candidates.fno2d.model.options.modes=3",
    "rollout.steps=2",
    "rollout.starts=2",
    "training.batch_size=12",
    "hardware.accelerator=cpu",
)


def tiny(study: str, path: Path, *more: str) -> Comparison:
    """A study on other data, with models and a budget that take no time."""
    (file,) = (file for file in FILES if file.stem == study)
    name = study.removeprefix("cfdbench-")
    return load_comparison(file, (*TINY, f'data.{name}.path="{path}"', *more))


@pytest.mark.parametrize("problem", ["cavity", "tube", "cylinder"])
def test_a_study_of_cfdbench_reads_its_layout(problem: str, tmp_path: Path) -> None:
    """Cases that differ by their viscosity; two test cases of ten."""
    own = cfdbench.CASES[problem]
    for number in range(10):
        folder = tmp_path / problem / "prop" / f"case{number:04d}"
        cfdbench.write_case(folder, own | {"viscosity": 0.01 * (1 + number)}, 5, seed=number)
    plan = tiny(f"cfdbench-{problem}", tmp_path / problem / "prop")
    flows = prepare(plan.data[problem])
    assert [len(p) for p in (flows.split.train, flows.split.valid, flows.split.test)] == [7, 1, 2]
    assert flows.spec.channels == ("u", "v") and flows.spec.units == ("m/s", "m/s")
    assert "viscosity" in flows.spec.parameter_names
