"""Solver output in CFDBench's layout is read back unchanged."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pibert.data.format import Reader
from pibert.data.readers import identify
from pibert.data.readers.cfdbench import PROBLEMS, open_recordings
from pibert.data.resample import represent
from pibert.experiments.flows import CACHE
from pibert.fields import Trajectory
from studies import cfdbench
from studies.cfdbench import FLOWS, Problem, make, recipe_of

SMALL: dict[Problem, dict[str, object]] = {
    "cavity": {"points": 16},
    "tube": {"points": 12, "length": 3.0},
    "cylinder": {
        "view": [24, 40],
        "body": [11.5, 9.5, 6.0],
        "domain": [10.0, 5.0],
        "upstream": 2.5,
        "warm_up": 2.0,
    },
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make the flows small and return their cache."""
    flows = {name: replace(FLOWS[name], recipe=changes) for name, changes in SMALL.items()}
    monkeypatch.setattr(cfdbench, "FLOWS", flows)
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def simulated(cache: Path, problem: str) -> list[Trajectory]:
    """The simulated flows, in units of D and U."""
    (path,) = cache.glob(f"{problem}-*.h5")
    with Reader(path) as reader:
        return [trajectory.load() for trajectory in reader]


@pytest.mark.parametrize("problem", FLOWS)
def test_the_reader_finds_the_fields_and_parameters_of_the_solver(
    problem: Problem, small: Path, tmp_path: Path
) -> None:
    root, flow = tmp_path / "data", FLOWS[problem]
    written = make(root, problem, cases=2, frames=3)
    assert written == tuple(root / problem / "prop" / f"case{n:04d}" for n in range(2))
    assert identify(root) == "cfdbench"
    for made, found in zip(simulated(small, problem), open_recordings(root), strict=True):
        view = represent(made, channels=("u", "v"), size=(64, 64))
        both = view.known().all(0) & found.known().all(0)
        assert both.float().mean() > 0.9
        assert torch.allclose(found.read()[:, :, both], flow.speed * view.read()[:, :, both])
        assert found.parameters["velocity"] == flow.speed
        assert found.parameters["density"] == flow.density
        viscosity = flow.speed * flow.length / made.parameters["Re"]
        assert found.parameters["viscosity"] == pytest.approx(viscosity)
        assert found.local["derived"]["Re"] == pytest.approx(made.parameters["Re"])
        (ny, nx), grid = made.spec.grid.shape, made.spec.grid
        assert found.parameters["width"] == pytest.approx(flow.length * nx * grid.dx)
        assert found.parameters["height"] == pytest.approx(flow.length * ny * grid.dy)
        assert torch.allclose(found.time.diff(), made.time.diff() * flow.length / flow.speed)


@pytest.mark.parametrize("problem", FLOWS)
def test_the_time_step_is_that_of_the_publishers_loaders(problem: Problem) -> None:
    recipe, flow = recipe_of(problem), FLOWS[problem]
    interval = vars(recipe)["interval"] * flow.length / flow.speed
    assert interval == pytest.approx(PROBLEMS[problem].dt, rel=1e-9)
