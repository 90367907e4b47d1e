"""Recipes of lattice Boltzmann flows: what their trajectories say about themselves."""

from typing import Any

import pytest
import torch

from pibert.data.dataset import common_spec
from pibert.data.format import check, write
from pibert.fields import Trajectory
from pibert.solver.enclosed import Dams, LidDrivenCavities, Tubes
from pibert.solver.lattice_recipe import Scales
from pibert.solver.recipes import Recipe
from pibert.solver.wakes import CylinderWakes, TandemWakes
from tests.helpers import refused

WAKE: dict[str, Any] = {
    "samples": 3,
    "group": 3,
    "frames": 3,
    "warm_up": 1.0,
    "domain": (12.0, 8.0),
    "upstream": 4.0,
    "view": (12, 20),
    "body": (5.5, 6.5, 5.0),
}
SMALL: list[Recipe] = [
    CylinderWakes(**WAKE),
    TandemWakes(**(WAKE | {"upstream": 6.0, "body": (5.5, 12.5, 5.0)})),
    LidDrivenCavities(samples=3, frames=3, points=12),
    Tubes(samples=3, frames=3, points=10, length=2.0),
    Dams(samples=3, frames=3, points=4, length=6.0, cells_per_point=1),
]


def simulate(recipe: Recipe) -> list[Trajectory]:
    outcomes = recipe.simulate(range(recipe.samples))
    assert all(isinstance(outcome, Trajectory) for outcome in outcomes)
    return outcomes  # type: ignore[return-value]


@pytest.mark.parametrize("recipe", SMALL, ids=lambda recipe: recipe.case)
def test_trajectories_can_be_written_and_share_a_spec(recipe: Recipe, tmp_path: Any) -> None:
    flows = simulate(recipe)
    assert [flow.name for flow in flows] == [f"{recipe.case}-{i:04d}" for i in range(3)]
    write(tmp_path / "flows.h5", flows)
    check(tmp_path / "flows.h5")
    spec = common_spec(flows)
    assert spec.channels == ("u", "v", "p") and spec.family == "incompressible"
    assert spec.reference_velocity == spec.reference_length == 1.0
    for flow in flows:
        assert flow.source["kind"] == "simulated"
        assert flow.local["seed"] == 0
        assert flow.num_frames == 3
    numbers = [flow.parameters["Re"] for flow in flows]
    assert numbers == sorted(numbers)


def test_si_units_scale_every_field_of_a_trajectory() -> None:
    """Water twice as thick, a body of 3 cm: by hand for every part of a trajectory."""
    settings = WAKE | {"samples": 2, "group": 2}
    plain = simulate(CylinderWakes(**settings))[1]
    scaled = simulate(CylinderWakes(**settings, scales=Scales(diameter=0.03, viscosity=2e-6)))[1]
    speed = plain.parameters["Re"] * 2e-6 / 0.03
    u, v, p = plain.read().unbind(1)
    torch.testing.assert_close(
        scaled.read(), torch.stack((u * speed, v * speed, p * speed**2), 1), rtol=1e-5, atol=1e-12
    )
    assert plain.spec.viscosity is None and scaled.spec.viscosity == 2e-6
    assert plain.spec.reference_length == plain.spec.reference_velocity == 1.0
    assert scaled.spec.reference_length == 0.03 and scaled.spec.reference_velocity is None
    assert scaled.spec.grid.origin == pytest.approx([0.03 * c for c in plain.spec.grid.origin])
    torch.testing.assert_close(scaled.time, plain.time * 0.03 / speed)
    torch.testing.assert_close(scaled.series["drag"], plain.series["drag"])


def test_a_view_outside_the_domain_is_refused() -> None:
    recipe = CylinderWakes(**(WAKE | {"view": (64, 20), "body": (31.5, 6.5, 5.0)}))
    with refused("domain"):
        recipe.simulate([0])
    odd = CylinderWakes(
        **(WAKE | {"view": (12, 24), "body": (5.5, 11.0, 13.0), "cells_per_point": 3})
    )
    case = odd.make_case([0], {"Re": [100.0]}, "cpu")
    assert case.grid.shape == (12, 24)


def test_the_moving_body_follows_its_displacement() -> None:
    wide = {"upstream": 6.0, "view": (12, 30), "body": (5.5, 20.5, 5.0)}
    recipe = TandemWakes(
        **(WAKE | wide | {"frames": 6, "warm_up": 4.0}),
        mass_ratios=(1.2,),
        reynolds=(100.0,),
        gap=3.2,
    )
    flow = simulate(recipe)[0]
    assert isinstance(flow.body, torch.Tensor) and flow.body.ndim == 3
    assert flow.spec.grid.body is None
    x, y = flow.spec.grid.coordinates(torch.float64)
    for frame in range(flow.num_frames):
        shift = flow.series["displacement"][frame].double()
        second = torch.hypot(x, y - shift) < 0.5
        first = torch.hypot(x + 3.2, y) < 0.5
        assert first.any() and second.any()
        assert torch.equal(flow.body[frame], first | second)
    assert flow.series["displacement"].abs().max() > 1e-3
    assert flow.local["chosen_here"] == ["gap", "damping_ratio", "reduced_velocity"]
    assert set(flow.parameters) == {"Re", "mass_ratio", "reduced_velocity"}
