"""What holds for every case on a periodic box, and what they share."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.fields import Grid, Trajectory
from pibert.physics import find_family, masked_residuals
from pibert.solver.burgers import Burgers
from pibert.solver.euler import CompressibleEuler
from pibert.solver.linear import Heat, Wave
from pibert.solver.periodic import PeriodicRecipe, Sample
from pibert.solver.reaction_diffusion import FisherKPP, GrayScott
from pibert.solver.recipes import Diverged
from pibert.solver.turbulence import Turbulence
from tests.helpers import refused
from tests.physics.helpers import measured_order

BOX: dict[str, Any] = {"samples": 5, "seed": 7, "shape": (20, 36), "frames": 3}
RECIPES: dict[str, PeriodicRecipe] = {
    "turbulence": Turbulence(**BOX, interval=0.3, size=(5.0, 7.0), viscosity=(5e-3, 5e-2)),
    "driven": Turbulence(
        **BOX, interval=0.3, size=(5.0, 7.0), viscosity=(5e-3, 5e-2), force=1.0, drag=0.2, warm_up=2
    ),
    "heat": Heat(**BOX, interval=0.02, size=(1.0, 1.5), diffusivity=(1e-3, 1e-2)),
    "wave": Wave(**BOX, interval=0.1, size=(1.0, 1.5), speed=(0.5, 2.0)),
    "gray-scott": GrayScott(
        **BOX,
        interval=10.0,
        size=(0.5, 0.8),
        diffusivity_a=(2e-5, 4e-5),
        feed=(0.03, 0.04),
        kill=(0.058, 0.062),
    ),
    "fisher-kpp": FisherKPP(
        **BOX, interval=0.2, size=(0.5, 0.8), diffusivity=(2e-4, 1e-3), growth=(1.0, 4.0)
    ),
    "euler": CompressibleEuler(**BOX, interval=0.05, size=(1.0, 1.5)),
    "burgers": Burgers(**BOX, interval=0.01, size=(1.0, 1.5), viscosity=(2e-2, 4e-2)),
}
every_case = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())


def completed(recipe: PeriodicRecipe, indices: list[int]) -> list[Trajectory]:
    trajectories = recipe.simulate(indices)
    assert all(isinstance(t, Trajectory) for t in trajectories), trajectories
    return [t for t in trajectories if isinstance(t, Trajectory)]


def states_of(trajectory: Trajectory) -> Tensor:
    assert isinstance(trajectory.states, Tensor)
    return trajectory.states


@every_case
def test_a_sample_is_bit_identical_in_any_batch(recipe: PeriodicRecipe) -> None:
    together = completed(recipe, [0, 1, 2, 3, 4])
    pair = completed(recipe, [3, 1])
    assert [t.name for t in pair] == [together[3].name, together[1].name]
    for index, other in ((3, pair[0]), (1, pair[1]), (4, completed(recipe, [4])[0])):
        assert torch.equal(states_of(together[index]), states_of(other))
        assert together[index].parameters == other.parameters
    assert not torch.equal(states_of(together[0]), states_of(together[3]))


@every_case
def test_a_trajectory_carries_its_metadata(recipe: PeriodicRecipe) -> None:
    progress: list[float] = []
    (trajectory,) = recipe.simulate([2], progress=progress.append)
    assert isinstance(trajectory, Trajectory)
    assert trajectory.name == f"{recipe.case}-0002"
    assert states_of(trajectory).dtype == torch.float32
    assert trajectory.time.tolist() == pytest.approx([0, recipe.interval, 2 * recipe.interval])
    spec = trajectory.spec
    assert spec.dt == recipe.interval and spec.units == ("1",) * len(spec.channels)
    assert spec.grid.periodic_x and spec.grid.periodic_y and spec.grid.shape == (20, 36)
    assert spec.grid.dy * 20 == pytest.approx(recipe.size[0])
    assert spec.grid.dx * 36 == pytest.approx(recipe.size[1])
    assert set(trajectory.parameters) == set(spec.parameter_names)
    assert trajectory.source["kind"] == "simulated"
    assert trajectory.local["seed"] == 7 and trajectory.local["sample"] == 2
    assert progress == sorted(progress) and progress[-1] == 1.0


SMOOTH: dict[str, tuple[dict[str, Any], float]] = {
    "turbulence": ({"eddies": 2.0, "interval": 0.01}, 1.8),
    "heat": ({"scale": (0.15, 0.15), "interval": 0.02}, 1.8),
    "wave": ({"width": (0.15, 0.15), "interval": 0.01}, 1.8),
    "gray-scott": ({"width": (0.1, 0.1), "interval": 1.0}, 1.8),
    "fisher-kpp": ({"width": (0.1, 0.1), "interval": 0.02}, 1.8),
    # The limiter makes small steps at crests, which derivatives magnify.
    "euler": ({"starts": ("smooth",), "interval": 0.005}, 1.0),
    "burgers": ({"scale": (0.15, 0.15), "interval": 0.004}, 1.8),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_frames_obey_their_family_as_spacing_and_interval_shrink(name: str) -> None:
    """One trajectory, seen at every point and frame and at every second and fourth."""
    changes, order = SMOOTH[name]
    recipe = replace(RECIPES[name], shape=(96, 128), frames=9, **changes)
    (trajectory,) = completed(recipe, [0])
    family = find_family(str(recipe.family))
    values: dict[str, Any] = {n: trajectory.parameters[n] for n in family.coefficients}
    left: list[dict[str, float]] = []
    for stride in (4, 2, 1):
        frames = states_of(trajectory).double()[[4 - stride, 4 + stride], :, ::stride, ::stride]
        spacing = stride * recipe.grid.dx, stride * recipe.grid.dy
        grid = Grid.periodic((96 // stride, 128 // stride), *spacing)
        fields = {name: frames[:, i] for i, name in enumerate(recipe.channels)}
        residuals, _ = masked_residuals(
            family, fields, grid, dt=2 * stride * recipe.interval, **values
        )
        left.append({term: float(r.abs().mean()) for term, r in residuals.items()})
    for term in family.terms:
        assert measured_order([sizes[term] for sizes in left]) > order, term


def test_a_diverged_sample_does_not_affect_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = RECIPES["gray-scott"]
    (calm,) = completed(recipe, [0])
    draw = recipe.draw

    def poisoned(_: PeriodicRecipe, index: int) -> Sample:
        sample = draw(index)
        return replace(sample, start=1e3 * sample.start) if index == 1 else sample

    monkeypatch.setattr(GrayScott, "draw", poisoned)
    first, second = recipe.simulate([0, 1])
    assert isinstance(first, Trajectory) and isinstance(second, Diverged)
    assert torch.equal(states_of(first), states_of(calm))
    assert second.name == "reaction-diffusion-0001"
    assert "frame 1 of 3" in second.reason and "feed" in second.reason


def test_warm_up_lets_time_pass_before_the_first_frame() -> None:
    recipe = replace(RECIPES["heat"], frames=5)
    (whole,) = completed(recipe, [0])
    (late,) = completed(replace(recipe, warm_up=3, frames=2), [0])
    assert torch.equal(states_of(whole)[3:], states_of(late))
    assert late.time.tolist() == [0, recipe.interval]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("samples", 0),
        ("shape", (7, 20)),
        ("interval", 0.0),
        ("diffusivity", (0.1, 0.01)),
    ],
)
def test_a_setting_outside_its_limits_is_refused(name: str, value: Any) -> None:
    with refused(name, "expected", "found"):
        replace(RECIPES["heat"], **{name: value})
