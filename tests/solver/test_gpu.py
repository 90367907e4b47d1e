"""The lattice Boltzmann solver on a GPU: as on the CPU, and the same bits every time."""

from typing import Any

import pytest
import torch

from pibert.fields import Trajectory
from pibert.solver.enclosed import Dams, LidDrivenCavities
from pibert.solver.lattice_recipe import LatticeRecipe
from pibert.solver.wakes import CylinderWakes, TandemWakes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

WAKE: dict[str, Any] = {
    "samples": 3,
    "frames": 4,
    "warm_up": 1.0,
    "domain": (14.0, 8.0),
    "upstream": 6.0,
    "view": (20, 40),
    "body": (9.5, 20.5, 8.0),
}


@pytest.mark.parametrize(
    "recipe",
    [
        CylinderWakes(**WAKE),
        TandemWakes(**WAKE),
        LidDrivenCavities(samples=3, frames=4, points=16),
        Dams(samples=3, frames=4, points=4, length=6.0),
    ],
    ids=lambda recipe: recipe.case,
)
def test_a_recipe_gives_the_same_flow_on_a_gpu(recipe: LatticeRecipe) -> None:
    here, there, again = (recipe.simulate([0, 2], device=d) for d in ("cpu", "cuda", "cuda"))
    for a, b, c in zip(here, there, again, strict=True):
        assert isinstance(a, Trajectory) and isinstance(b, Trajectory) and isinstance(c, Trajectory)
        torch.testing.assert_close(b.read(), a.read(), rtol=0, atol=1e-3)
        assert torch.equal(b.read(), c.read())
