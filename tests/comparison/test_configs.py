"""The plans that come as files: they load, are fair, and run on files of the same layout."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pibert.comparison import carry_out, gather, load_comparison
from pibert.comparison.plan import Comparison
from pibert.experiments.flows import prepare
from tests.comparison.setups import MemoryWatcher, value_of
from tests.lookalikes import cfdbench, eagle

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


def carried(plan: Comparison, out: Path) -> dict[str, Any]:
    failed = carry_out(plan, out, MemoryWatcher())
    assert not failed
    return gather(plan, out, failed)


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


def wobbling_mesh(frames: int) -> dict[str, np.ndarray]:
    """Inner nodes that move between walls that do not; u and v are linear in space and time."""
    mesh, t = eagle.make_mesh(frames), np.arange(frames)[:, None]
    x, y = mesh["pointcloud"][:1, :, 0], mesh["pointcloud"][:1, :, 1]
    x = x + 0.05 * np.sin(t) * (mesh["mask"][..., 0] == 0)
    y = y + 0 * t
    return mesh | {
        "pointcloud": np.stack((x, y), -1),
        "VX": 1 + 2 * x - 3 * y + t,
        "VY": x - t,
        "PS": np.sin(x + 0.2 * t),
        "PG": x * y + np.cos(0.3 * t),
    }


@pytest.mark.usefixtures("quick")
def test_eagle_goes_from_a_moving_mesh_to_a_ranking(tmp_path: Path) -> None:
    place = tmp_path / "Spl" / "20" / "2"
    eagle.write_simulation(place, wobbling_mesh(30))
    plan = tiny("eagle", place, "data.eagle.hints.shape=[12, 16]", "data.eagle.guard=1")
    results = carried(plan, tmp_path / "out")
    ranking = results["data"]["eagle"]["ranking"]
    assert {row["model"] for row in ranking} == set(plan.candidates)
    assert all(math.isfinite(row["nmse"]) for row in ranking)
    found = {"space": "physical", "metric": "nmse"}
    for component in ("u", "v"):
        line, still = (
            value_of(results["records"], component=component, model=model, **found)["value"]
            for model in ("linear-extrapolation", "persistence")
        )
        assert line < 1e-10 < 1e-4 < still
