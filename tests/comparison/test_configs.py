"""The plans that come as files: they load, are fair, and run on files of the same layout."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pibert.comparison import carry_out, gather, load_comparison
from pibert.comparison.plan import Candidate, Comparison
from pibert.data.splits import Shares
from pibert.experiments.flows import prepare
from pibert.solver.presets import find_preset
from tests.comparison.setups import MemoryWatcher, value_of
from tests.lookalikes import realpdebench

PLANS = Path(__file__).parents[2] / "configs" / "comparisons"
TINY_BUDGET = (
    "samples=60",
    "training.batch_size=16",
    "hardware.accelerator=cpu",
    "hardware.precision=float32",
    "rollout.steps=2",
    "rollout.starts=2",
)


def carried(plan: Comparison, out: Path) -> dict[str, Any]:
    failed = carry_out(plan, out, MemoryWatcher())
    assert not failed
    return gather(plan, out, failed)


SMALL: dict[str, dict[str, Any]] = {
    "pibert": {"width": 16, "heads": 2, "depth": 1, "modes": 3},
    "pibert-mr": {"width": 8, "local_width": 16, "token_width": 16, "cycles": 1},
    "unet": {"width": 4},
    "persistence": {},
}


def of_realpdebench(
    study: str, path: Path, *more: str, models: Sequence[str] = tuple(SMALL)
) -> Comparison:
    """A plan for RealPDEBench on files of its layout, with a few small models."""
    plan = load_comparison(PLANS / f"{study}.toml")
    (data,) = plan.data
    budget = ("samples=24", "training.batch_size=8", "hardware.accelerator=cpu")
    quick = ("hardware.precision=float32",)
    source = f'data.{data}.path="{path}"'
    plan = load_comparison(PLANS / f"{study}.toml", (*budget, *quick, source, *more))

    def small(name: str) -> Candidate:
        model = plan.candidates[name].model
        options = model.options | SMALL[name]
        return Candidate(model=replace(model, preset=None, options=options))

    kept = {name: small(name) for name in models if name in plan.candidates}
    return replace(plan, candidates=kept)


@pytest.fixture(scope="module")
def download(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return realpdebench.write_root(tmp_path_factory.mktemp("realpdebench"), frames=60)


@pytest.mark.usefixtures("quick")
def test_the_official_protocol_scores_20_frames_from_20(download: Path, tmp_path: Path) -> None:
    real = download / "cylinder" / "hf_dataset" / "real"
    plan = of_realpdebench("realpdebench-official", real, models=("pibert-mr", "persistence"))
    records = carried(plan, tmp_path / "out")["records"]
    index = realpdebench.make_index(realpdebench.CYLINDERS, 60)["test"]
    flows = prepare(plan.data["realpdebench"])
    by_name = {trajectory.name: trajectory for trajectory in flows.trajectories}
    errors = []
    for name, start in index:
        fields = by_name[name].read(slice(start, start + 40)).double()
        known = by_name[name].known(slice(start, start + 40))[20:, None]
        truth = torch.where(known, fields[20:], 0.0)
        still = torch.where(known, fields[19].expand_as(truth), 0.0)
        errors.append(float((still - truth).norm() / truth.norm()))
    found = {"space": "rollout", "metric": "official_rel_l2", "component": "all"}
    still = value_of(records, model="persistence", **found)["value"]
    assert still == pytest.approx(sum(errors) / len(errors), rel=1e-5)
    assert math.isfinite(value_of(records, model="pibert-mr", **found)["value"])


@pytest.mark.usefixtures("quick")
def test_the_competition_holds_out_reynolds_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "train_real"
    reynolds = (3750, 5025, 6300, 8850, 10125, 11400)
    names = [f"{re}_{angle}" for re in reynolds for angle in (0, 5)]
    realpdebench.write_competition(folder, names, frames=41)
    two = ("pibert-mr", "persistence")
    plan = of_realpdebench("realpde-competition", folder, "rollout.starts=4", models=two)
    flows = prepare(plan.data["airfoil"])
    parts = [
        {flows.trajectories[s.trajectory].parameters["Re"] for s in part}
        for part in (flows.split.train, flows.split.valid, flows.split.test)
    ]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    assert flows.spec.grid.shape == (32, 64)
    records = carried(plan, tmp_path / "out")["records"]
    found = {"space": "rollout", "metric": "competition_rel_l2", "component": "all"}
    assert 0 < value_of(records, model="persistence", **found)["value"] <= 100


QUESTIONS: dict[str, tuple[str, ...]] = {
    "attention-bias": ("inside",),
    "pretraining": ("few-higher",),
    "masking": ("wakes",),
    "families": ("incompressible", "euler", "wave", "wave-open"),
    "attention-bias-small": ("higher",),
    "pretraining-small": ("few-higher",),
    "masking-small": ("few",),
    "families-small": ("heat", "wave-open", "reaction-diffusion"),
}
"""Plans for the paper's questions, and data sets of each to run."""
MEASURED = {
    "incompressible": {"divergence_share", "momentum_drift"},
    "euler": {"mass_drift", "momentum_drift", "energy_drift", "unphysical_share"},
    "heat": {"amount_drift", "overshoot"},
    "wave": {"dispersion_error"},
    "wave-open": {"reflection"},
    "reaction-diffusion": {"negativity"},
}
"""Diagnostics that the data of the plans for PDE families allow."""


def small_question(study: str, names: Sequence[str]) -> Comparison:
    """A plan with small recipes of its own cases, small models and all their settings."""
    plan = load_comparison(PLANS / f"{study}.toml", (*TINY_BUDGET, "rollout.steps=3"))
    wakes = {"samples": 8, "group": 4, "frames": 8, "warm_up": 1.0}
    box = {"samples": 8, "frames": 8, "shape": [16, 16]}
    data = {
        name: replace(
            plan.data[name],
            preset="open" if plan.data[name].preset == "open" else "demo",
            recipe=plan.data[name].recipe | (wakes if plan.data[name].case == "cylinder" else box),
            size=(16, 16),
            split=re.sub(r":\d+$", "", plan.data[name].split),
            shares=Shares(train=0.5, valid=0.25),
            labelled=max(plan.data[name].labelled, 0.5),
        )
        for name in names
    }

    def small(name: str) -> Candidate:
        candidate = plan.candidates[name]
        options = candidate.model.options | SMALL[candidate.model.name]
        masking = replace(candidate.masking, block=4)
        model = replace(candidate.model, preset=None, options=options)
        return replace(candidate, model=model, masking=masking)

    kept = {n: small(n) for n, c in plan.candidates.items() if c.model.name in SMALL}
    return replace(plan, data=data, candidates=kept, seeds=(0,))


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("study", QUESTIONS)
def test_the_plans_of_the_papers_questions_run(
    study: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIBERT_CACHE", str(tmp_path / "cache"))
    plan = small_question(study, QUESTIONS[study])
    results = carried(plan, tmp_path / "out")
    for name in QUESTIONS[study]:
        ranking = results["data"][name]["ranking"]
        assert {row["model"] for row in ranking} == set(plan.candidates)
        assert all(math.isfinite(row["nmse"]) for row in ranking)
    assert plan.tested is None or plan.tested in plan.candidates
    if study.startswith("families"):  # conservation, positivity, dispersion ... of rollouts
        rows = [r for r in results["records"] if r["space"] == "rollout"]
        for name in plan.data:
            for model in ("pibert", "persistence"):
                own = [r for r in rows if r["data"] == name and r["model"] == model]
                found = {r["metric"] for r in own if r["value"] is not None}
                assert MEASURED[name] <= found, (name, model)


@pytest.mark.parametrize("study", ["families", "families-small"])
def test_every_family_has_its_data_set_and_bias(study: str) -> None:
    plan = load_comparison(PLANS / f"{study}.toml")
    assert set(plan.data) == set(MEASURED)
    assert plan.rollout.windows
    for name in ("pibert",) if study.endswith("small") else ("pibert", "pibert-mr"):
        on, off = (plan.candidates[key].model for key in (name, f"{name}-off"))
        assert off == replace(on, options=on.options | {"attention_bias": 0.0})
    recipes: list[Any] = [find_preset(str(d.case), d.preset) for d in plan.data.values()]
    families = {recipe.family for recipe in recipes}
    assert families == {"incompressible", "euler", "heat", "wave-first-order", "gray-scott"}
