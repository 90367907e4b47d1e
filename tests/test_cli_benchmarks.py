"""The paper's benchmarks as a user runs them, from files of the published layouts to the report.

The plans are used as they come, with small models and budgets. Downloads are of a folder that is
laid out like the hub.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pibert.comparison import page as page_module
from pibert.data.readers.realpdebench import open_recordings
from pibert.evaluation import cost
from pibert.report.comparison.page import write_report
from tests.command import refusal, well
from tests.lookalikes import cfdbench, eagle, realpdebench

CONFIGS = Path(__file__).parents[1] / "configs"
MODELS = "pibert,unet,persistence"
QUICK = (
    "samples=160",
    "training.batch_size=8",
    "hardware.accelerator=cpu",
    "hardware.precision=float32",
    "rollout.starts=2",
)
SMALL = ("width=16", "heads=2", "depth=1", "fourier_modes=3", "patch=4", "refine_width=4")


def changes(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def small(model: str = "candidates.pibert.model") -> tuple[str, ...]:
    return tuple(f"{model}.options.{option}" for option in SMALL)


def compare(plan: str, *more: str) -> dict[str, Any]:
    """The ranking and the report of a plan, in the current folder."""
    file = CONFIGS / "comparisons" / f"{plan}.toml"
    settings = changes(*QUICK, *small(), "candidates.unet.model.options.width=4", *more)
    words = ("--models", MODELS, "--out", "out", "--report")
    result = well("compare", "--config", file, *words, *settings)
    assert "Report: out/report.html" in result.output and Path("out/report.html").is_file()
    results: dict[str, Any] = json.loads(Path("out/results.json").read_text())
    (data,) = results["data"]
    assert {row["model"] for row in results["data"][data]["ranking"]} == set(MODELS.split(","))
    return results


@pytest.fixture(scope="module", autouse=True)
def briefly() -> Iterator[None]:
    """Models are called once to measure what they cost, and reports have no figures."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WARM_UP", "LEAST_REPEATS", "MOST_REPEATS"):
            patch.setattr(cost, name, 1)
        patch.setattr(page_module, "write_report", partial(write_report, figures=()))
        yield


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RealPDEBench's files as the hub has them, of small flows."""
    return realpdebench.write_root(tmp_path_factory.mktemp("hub"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans name their data relative to the current folder."""
    monkeypatch.chdir(tmp_path)


def download(mirror: Path, scenario: str) -> None:
    words = ("--from", mirror, "--to", "data/realpdebench")
    well("download", "realpdebench", scenario, *words)


def test_look_alikes_to_try_have_the_published_grids_and_look_like_wakes(tmp_path: Path) -> None:
    root = realpdebench.write_root(tmp_path / "hub", frames=5, wakes=True)
    for scenario, shape in (("cylinder", (64, 128)), ("fsi", (128, 128))):
        flow = open_recordings(root, scenario=scenario, kind="real")[0]
        assert flow.spec.grid.shape == shape and isinstance(flow.body, torch.Tensor)
        u, v = flow.read().unbind(1)
        assert float((u[:, flow.body] == 0).float().mean()) > 0.8
        assert 0.05 < float(u.mean()) < 0.12
        moved = (v[1:] - v[:-1]).square().mean() / v.square().mean()
        assert 0 < float(moved) < 0.1  # seen frame by frame


def test_the_papers_cylinder_goes_from_a_download_to_a_report(mirror: Path) -> None:
    download(mirror, "cylinder")
    grid = ("data.cylinder.size=[16,16]", "rollout.steps=2")
    results = compare("cylinder-real", *grid)
    text = Path("out/tables.md").read_text()
    assert "0.39938" in text and "Differences in protocol" in text
    assert results["comparison"]["data"]["cylinder"]["in_memory"] is True
    evaluated = well("evaluate", "out/runs/cylinder/pibert-0", "--rollout", 2, "--json")
    assert json.loads(evaluated.stdout)["rollout"]


def test_the_papers_tandem_cylinders_go_from_a_download_to_a_report(mirror: Path) -> None:
    download(mirror, "fsi")
    results = compare("fsi-real")
    pairs = realpdebench.make_index(realpdebench.TANDEMS, 120)["test"]
    assert results["data"]["fsi"]["test_frames"] == len(pairs)
    assert results["comparison"]["data"]["fsi"]["in_memory"] is False
    text = Path("out/tables.md").read_text()
    assert "99.51" in text and f"test 2 ({len(pairs)})" in text
    # The fields on the page come from the file, every second row and column.
    assert "32 × 32" in text and "on 16 × 16" in text


@pytest.mark.parametrize(("name", "more"), [("cylinder-real", ["data.size=[16,16]"]),
                                            ("fsi-real", [])])  # fmt: skip
def test_the_papers_schedules_train_and_are_evaluated(
    name: str, more: list[str], mirror: Path
) -> None:
    download(mirror, name.partition("-")[0])
    epochs = [f"{stage}.{key}" for stage in ("pretraining", "training") for key in
              ("epochs=1", "batch_size=16", "warmup_epochs=0")]  # fmt: skip
    quick = ("hardware.accelerator=cpu", "hardware.precision=float32")
    settings = changes(*small("model"), *epochs, *quick, *more)
    well("train", "--config", CONFIGS / f"{name}.toml", "--out", "run", *settings)
    evaluated = json.loads(well("evaluate", "run", "--json").stdout)
    assert evaluated["data"]["test_frames"] > 0


@pytest.mark.parametrize(("problem", "stated"), [("cylinder", False), ("cavity", True)])
def test_cfdbench_goes_from_its_files_to_a_report(problem: str, stated: bool) -> None:
    """By random cases of one subset, or with the publishers' split of the whole problem."""
    subsets = cfdbench.SUBSETS if stated else ("prop",)
    cfdbench.write_problem(Path("data/cfdbench"), problem, subsets=subsets)
    whole = ("path=data/cfdbench/cavity", "split=stated", "options.in_points=true")
    more = [f"data.{problem}.{setting}" for setting in whole if stated]
    results = compare(f"cfdbench-{problem}", "rollout.steps=2", *more)
    assert len(results["data"][problem]["flows"]) == (3 if stated else 2)


@pytest.mark.parametrize("stated", [False, True])
def test_eagle_goes_from_its_files_to_a_report(stated: bool) -> None:
    grid = ["data.eagle.hints.shape=[12,16]", "rollout.steps=2"]
    eagle.write_root(Path("data/eagle"))
    if stated:
        grid += ["data.eagle.path=data/eagle/Spl", "data.eagle.split=stated"]
        grid += ["data.eagle.options.box=[0,5,0,3]"]  # the meshes differ
    results = compare("eagle", "data.eagle.guard=1", *grid)
    assert results["data"]["eagle"]["test_frames"] > 0


def begun(plan: str, *more: str) -> str:
    """How a plan is refused before anything is trained."""
    file = CONFIGS / "comparisons" / f"{plan}.toml"
    words = ("--models", MODELS, "--out", "out")
    error = refusal("compare", "--config", file, *words, *changes(*QUICK, *more))
    assert not list(Path().glob("out/runs/*/*/log.jsonl"))
    return error


def test_without_a_download_the_error_names_the_command() -> None:
    for plan, scenario in (("cylinder-real", "cylinder"), ("fsi-real", "fsi")):
        error = begun(plan)
        assert f"data/realpdebench/{scenario}/hf_dataset/real" in error
        assert f"pibert download realpdebench {scenario} --to data/realpdebench" in error
    error = begun("cfdbench-tube")
    assert "data/cfdbench/tube/prop" in error and "studies.cfdbench tube" in error
    assert "data/eagle/Spl/20/2" in (error := begun("eagle")) and "eagle-version1" in error


def test_a_partial_download_is_refused_with_the_command_that_resumes_it(mirror: Path) -> None:
    download(mirror, "fsi")
    real = Path("data/realpdebench/fsi/hf_dataset/real")
    shard = next(real.glob("data-00002*.arrow"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    error = begun("fsi-real")
    assert shard.name in error and "pibert download realpdebench fsi" in error
    shard.unlink()
    error = begun("fsi-real")
    assert shard.name in error and "pibert download realpdebench fsi" in error


def test_an_experiment_and_a_plan_in_each_others_place_are_refused_with_the_other_command() -> None:
    plan, experiment = CONFIGS / "comparisons" / "fsi-real.toml", CONFIGS / "fsi-real.toml"
    assert "pibert compare" in refusal("train", "--config", plan, "--out", "run")
    assert "pibert train" in refusal("compare", "--config", experiment, "--out", "out")
