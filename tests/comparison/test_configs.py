"""The plans that come as files: they load, are fair, and run on files of the same layout."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pibert.comparison import carry_out, gather, load_comparison
from pibert.comparison.plan import Comparison
from pibert.comparison.presets import find_comparison
from pibert.data.sources.recordings import Hints
from pibert.experiments.flows import prepare
from pibert.fields import FieldSpec, Grid, Parameter
from pibert.models import MODELS, build_model, count_parameters
from pibert.models.references.simple import Reference
from tests.comparison.setups import Told, value_of
from tests.lookalikes import cfdbench, eagle, icp

PLANS = Path(__file__).parents[2] / "configs" / "comparisons"
STUDIES = ("cfdbench-cavity", "cfdbench-cylinder", "cfdbench-tube", "eagle", "plasma")
"""The paper's supplement."""
FILES = [PLANS / f"{study}.toml" for study in STUDIES]
HISTORY = PLANS / "jet-history.toml"
TINY = (
    "samples=72",
    "entrants.pibert.model.options.width=16",
    "entrants.pibert.model.options.heads=2",
    "entrants.pibert.model.options.depth=1",
    "entrants.pibert.model.options.modes=3",
    "entrants.unet.model.options.width=4",
    "entrants.fno2d.model.options.width=6",
    "entrants.fno2d.model.options.modes=3",
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
    failed = carry_out(plan, out, Told())
    assert not failed
    return gather(plan, out, failed)


def test_every_file_is_tested() -> None:
    assert set(PLANS.glob("*.toml")) == {*FILES, HISTORY}


def test_the_study_of_histories_differs_from_the_jet_in_nothing_else() -> None:
    plan, jet = load_comparison(HISTORY), find_comparison("jet")
    for entrant in plan.entrants.values():
        assert set(entrant.model.options) <= {"history", "coordinates"} and not entrant.pretraining
    assert {e.history for e in plan.entrants.values()} == {1, 2, 4}
    assert (plan.data, plan.training, plan.rollout, plan.hardware) == (
        jet.data,
        jet.training,
        jet.rollout,
        jet.hardware,
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_study_says_what_it_is_where_its_data_are_and_how_it_is_run(file: Path) -> None:
    head = file.read_text().partition("\n\n")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    for wanted in ("What to know", "# Data: ", f"--config configs/comparisons/{file.name}"):
        assert wanted in head


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_study_has_persistence_and_the_unet_and_one_skip_for_all(file: Path) -> None:
    plan = load_comparison(file)
    assert {"pibert", "unet", "persistence"} <= set(plan.entrants)
    assert plan.reference == "persistence"
    (data,) = plan.data.values()
    assert set(data.shares.positive()) == {"train", "valid", "test"}
    hints: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in data.hints.items()
    }
    Hints(**hints)
    knows = "plasma" in file.stem or "cfdbench" in file.stem
    for entrant in plan.entrants.values():
        kind = MODELS[entrant.model.name]
        if isinstance(kind, type) and issubclass(kind, Reference):
            continue
        assert "residual" not in entrant.model.options and entrant.history == 1
        # PIBERT always takes the parameters that there are.
        told = entrant.model.name == "pibert" or entrant.model.options.get("parameters", False)
        assert told == (knows or entrant.model.name == "pibert")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_models_of_a_study_are_small_and_can_be_built(file: Path) -> None:
    spec = FieldSpec(
        family="incompressible",
        grid=Grid((64, 64), dx=0.3, dy=0.2),
        parameters=(Parameter(name="viscosity"),),
        dt=0.1,
    )
    for key, entrant in load_comparison(file).entrants.items():
        chosen = entrant.model
        model = build_model(chosen.name, preset=chosen.preset, spec=spec, **chosen.options)
        assert count_parameters(model) < 1_000_000, key


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


def test_cases_of_other_size_are_refused_by_name(tmp_path: Path) -> None:
    for number in range(8):
        case = cfdbench.CASES["tube"] | {"height": 0.1 * (1 + number)}
        cfdbench.write_case(tmp_path / "tube" / "geo" / f"case{number:04d}", case, 4)
    plan = tiny("cfdbench-tube", tmp_path / "tube" / "geo")
    with pytest.raises(ValueError, match=r"grid.dy of trajectories 'tube_geo_case0000' and"):
        prepare(plan.data["tube"])


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
    assert {row["model"] for row in ranking} == set(plan.entrants)
    assert all(math.isfinite(row["nmse"]) for row in ranking)
    found = {"space": "physical", "metric": "nmse"}
    for component in ("u", "v"):
        line, still = (
            value_of(results["records"], component=component, model=model, **found)["value"]
            for model in ("linear-extrapolation", "persistence")
        )
        assert line < 1e-10 < 1e-4 < still


def test_eagle_scenes_need_one_box(tmp_path: Path) -> None:
    for number in range(8):
        mesh = eagle.make_mesh(frames=4, columns=5, rows=4, seed=number)
        mesh["pointcloud"] = mesh["pointcloud"] * (1 + (number == 5))
        eagle.write_simulation(tmp_path / "Spl" / str(number) / "1", mesh)
    plan = tiny("eagle", tmp_path / "Spl", "data.eagle.split=trajectory")
    with pytest.raises(ValueError, match="grid.dx of trajectories 'Spl_0_1' and 'Spl_5_1' differ"):
        prepare(plan.data["eagle"])


@pytest.mark.usefixtures("quick")
def test_plasma_runs_go_from_scattered_nodes_to_a_ranking(tmp_path: Path) -> None:
    for number in range(8):
        icp.write_run(tmp_path / "runs" / f"run{number}.h5", frames=8, seed=number)
    plan = tiny("plasma", tmp_path / "runs", "data.plasma.hints.shape=[8, 12]")
    results = carried(plan, tmp_path / "out")
    facts = results["data"]["plasma"]
    assert {row["model"] for row in facts["ranking"]} == set(plan.entrants)
    assert all(math.isfinite(row["nmse"]) for row in facts["ranking"])
    components = {record["component"] for record in results["records"]}
    assert {"ne", "Te", "V", "T", "n_Ar", "n_F", "n_O2p"} <= components
    assert not {"vorticity", "divergence"} & {record["metric"] for record in results["records"]}


def test_plasma_images_have_no_next_frame(tmp_path: Path) -> None:
    """The published data: a comparison must say that there is nothing to forecast."""
    icp.write_pairs(tmp_path / "pairs", per_setpoint=1, setpoints=8)
    plan = tiny("plasma", tmp_path / "pairs", "data.plasma.hints={}")
    plan = replace(plan, entrants={"persistence": plan.entrants["persistence"]})
    with pytest.raises(ValueError, match="test part of 'plasma' is too short.*no window of 2"):
        carry_out(plan, tmp_path / "out", Told())
