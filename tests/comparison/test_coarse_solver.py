"""The solver on a coarser grid as a reference of free runs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pibert.comparison import jobs
from pibert.comparison.coarse_solver import VorticitySolver, finest_within, seconds_per_step
from pibert.data.resample import interpolated
from pibert.experiments.flows import CACHE
from pibert.fields import Grid, Normalizer, Trajectory
from pibert.physics.spectral import on_grid
from pibert.solver.vorticity import Kolmogorov
from pibert.solver.wakes import CylinderWakes, TandemWakes
from tests.command import run
from tests.comparison.setups import quickly
from tests.helpers import assert_close

PLAN = """
samples = 40
[data.wakes]
case = "cylinder"
channels = ["u", "v"]
shares = {train = 0.5, valid = 0.25}
[data.wakes.recipe]
samples = 4
frames = 41
warm_up = 1.0
domain = [8.0, 6.0]
upstream = 3.0
view = [14, 24]
body = [6.5, 7.0, 6.0]
[data.wakes.test]
recipe = {seed = 5, samples = 2}
[candidates]
fno2d = {model = {name = "fno2d", options = {width = 8, modes = 3, depth = 1}}}
persistence = {model = {name = "persistence"}}
[training]
batch_size = 32
[rollout]
steps = 0
[hardware]
accelerator = "cpu"
"""


SHORT = """
samples = 20
[data.box]
case = "kolmogorov"
split = "stated"
[data.box.recipe]
samples = 4
train = 2
valid = 1
shape = [32, 32]
frames = 8
train_frames = 8
viscosity = 0.02
warm_up = 2
[candidates]
fno2d = {model = {name = "fno2d", options = {width = 8, modes = 3, depth = 1, horizon = 2}}}
persistence = {model = {name = "persistence"}}
[training]
batch_size = 8
[rollout]
steps = 4
starts = 2
[hardware]
accelerator = "cpu"
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coarse")
    (folder / "plan.toml").write_text(PLAN)
    with pytest.MonkeyPatch.context() as patch:
        quickly(patch)
        patch.setenv(CACHE, str(folder / "cache"))
        assert compare(folder / "plan.toml", folder / "out").count("coarse-solver") >= 2
    return folder / "out"


def compare(plan: Path, out: Path) -> str:
    result = run("compare", "--config", str(plan), "--out", str(out))
    assert result.exit_code == 0, result.output
    return str(result.output)


def records(out: Path) -> dict[str, dict[str, Any]]:
    rows = json.loads((out / "results.json").read_text())["records"]
    return {r["metric"]: r for r in rows if r["model"] == "coarse-solver"}


def test_results_have_its_statistics_grid_and_time(out: Path) -> None:
    facts = json.loads((out / "results.json").read_text())["data"]["wakes"]["coarse_solver"]
    assert facts["resolution"] == "5 cells in D" and facts["solver_of_data"] == "6 cells in D"
    assert facts["surrogate"] == "fno2d" and facts["ms_per_frame"] > 0
    found = records(out)
    # The same flow a little coarser: better than a flow at rest, not perfect.
    assert 0 < found["free_run_mean_error"]["value"] < 0.1
    assert found["free_run_diverged"]["value"] == 0
    assert found["free_run_survival"]["value"] == 40
    assert {row["against_best"] for row in found.values()} == {None}


def test_flows_too_short_for_free_runs_have_its_errors_by_lead_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly(monkeypatch)
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    (tmp_path / "plan.toml").write_text(SHORT)
    assert "coarse-solver" in compare(tmp_path / "plan.toml", tmp_path / "out")
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    found = records(tmp_path / "out")
    assert "free_run_survival" not in found and found["rollout_survival"]["value"] == 4
    assert 0 < found["rollout_rel_l2"]["value"] < 0.5
    # The surrogate predicts two frames in a call.
    (cost,) = (own["cost"] for own in results["runs"] if own["model"] == "fno2d")
    fastest = min(own["ms_per_sample"] for own in cost["batches"])
    facts = results["data"]["box"]["coarse_solver"]
    assert facts["surrogate_ms_per_frame"] == pytest.approx(fastest / 2)


def test_rerunning_simulates_nothing_again(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = records(out)

    def fail(*_: Any) -> None:
        raise AssertionError("scored again")

    monkeypatch.setattr(jobs, "score_coarse_solver", fail)
    monkeypatch.setenv(CACHE, str(out.parent / "cache"))
    compare(out.parent / "plan.toml", out)
    assert records(out) == before


def test_a_failure_leaves_the_comparison_whole(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no memory for so fine a grid")

    monkeypatch.setattr(jobs, "read_coarse_solver", lambda *_: None)
    monkeypatch.setattr(jobs, "score_coarse_solver", fail)
    monkeypatch.setenv(CACHE, str(out.parent / "cache"))
    assert "no memory" in compare(out.parent / "plan.toml", out)


def test_the_grid_is_the_finest_within_the_time() -> None:
    times = {5: 1.0, 6: 2.0, 7: 4.0, 8: 8.0}
    for limit, found in {0.1: (5, 1.0), 2.5: (6, 2.0), 9.0: (8, 8.0)}.items():
        assert finest_within(tuple(times), limit, times.__getitem__) == found


@pytest.mark.parametrize("kind", [CylinderWakes, TandemWakes])
def test_coarser_wakes_show_the_view_of_the_fine_ones(kind: Any) -> None:
    shared: dict[str, Any] = {"samples": 3, "frames": 2, "warm_up": 0.5, "cells_per_point": 2}
    recipe = kind(**shared, view=(16, 28), body=(7.0, 13.5, 6.0), domain=(16.0, 9.0), upstream=7.0)
    coarse = recipe.coarser()
    assert [own.body[2] for own in coarse] == [5, 6, 7, 8, 10]
    (fine,), (found,) = recipe.simulate([1]), coarse[1].simulate([1])
    assert isinstance(fine, Trajectory) and isinstance(found, Trajectory)
    assert found.parameters == fine.parameters
    assert found.time.tolist() == pytest.approx(fine.time.tolist())
    for axis, step in ((0, "dx"), (1, "dy")):
        ends = []
        for grid in (found.spec.grid, fine.spec.grid):
            first, count = grid.origin[axis], grid.shape[1 - axis]
            ends.append((first, first + (count - 1) * getattr(grid, step)))
        (low, high), (inner_low, inner_high) = ends
        assert low < inner_low and inner_high < high
    u = interpolated(found.read()[:, 0], found.spec.grid, fine.spec.grid)
    away = fine.known().all(0)
    difference = (u - fine.read()[:, 0])[:, away]
    assert float(difference.square().mean().sqrt()) < 0.1


def test_cubic_interpolation_is_exact_for_quadratic_fields() -> None:
    def field(grid: Grid) -> torch.Tensor:
        x, y = grid.coordinates(torch.float64)
        return 1 + 2 * x - y + 0.5 * x * y + x**2 - 3 * y**2

    coarse = Grid((9, 14), dx=0.5, dy=0.4, origin=(-1.0, -1.2))
    fine = Grid((7, 20), dx=0.21, dy=0.3, origin=(-0.4, -0.7))
    assert_close(interpolated(field(coarse), coarse, fine), field(fine))


def test_waves_keep_their_values_on_another_grid() -> None:
    def field(rows: int, columns: int) -> torch.Tensor:
        grid = Grid.periodic((rows, columns), dx=2.0 / columns, dy=3.0 / rows)
        x, y = grid.coordinates(torch.float64)
        return 2 + torch.cos(2 * torch.pi * (3 * x / 2 - 2 * y / 3)) + torch.sin(torch.pi * x)

    for shape in ((10, 18), (16, 24), (12, 30)):
        assert_close(on_grid(field(12, 18), shape), field(*shape))


def test_vorticity_continues_from_the_frames_of_a_rollout() -> None:
    recipe = Kolmogorov(
        samples=3, train=1, valid=1, shape=(48, 48), frames=6, interval=0.1, viscosity=0.02,
        warm_up=20,
    )  # fmt: skip
    assert [own.shape[0] for own in recipe.coarser()] == [24, 32, 40]
    (truth,) = recipe.simulate([2])
    assert isinstance(truth, Trajectory)
    frames = truth.read()
    errors = []
    for coarse in (recipe.coarser()[0], recipe.coarser()[2], recipe):
        solver = VorticitySolver(
            recipe=coarse, stride=2, device="cpu", spec=truth.spec,
            normalizer=Normalizer.identity(1),
        )  # fmt: skip
        blocks = list(solver.iterate(frames[None, :1], 2))
        predicted = torch.cat(blocks, 1)[0]
        errors.append(float((predicted - frames[[2, 4]]).norm() / frames[[2, 4]].norm()))
    assert errors[0] > errors[1] > errors[2] and errors[1] < 0.05 and errors[2] < 1e-5
    assert seconds_per_step(solver, frames[None, :1]) > 0
