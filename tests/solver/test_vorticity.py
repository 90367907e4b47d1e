"""Two published benchmarks of vorticity in a periodic box."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pibert.fields import Trajectory
from pibert.solver.vorticity import Kolmogorov, NavierStokes, VorticityRecipe
from tests.data.helpers import SHARED, needs_shared

BOX: dict[str, Any] = {"samples": 4, "seed": 7, "train": 2, "valid": 1}
KOLMOGOROV = Kolmogorov(
    **BOX, shape=(20, 36), frames=5, train_frames=3, interval=0.1, viscosity=0.01, warm_up=3
)
NAVIER_STOKES = NavierStokes(
    **BOX, shape=(16, 24), frames=4, interval=1.0, viscosity=1e-3, refinement=2
)


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float(((found - expected).square().sum() / expected.square().sum()).sqrt())


@needs_shared
def test_kolmogorov_flow_follows_the_frames_of_apebench() -> None:
    reference = np.load(SHARED / "apebench" / "phy_kolm_flow_64_reference.npz")
    frames = torch.from_numpy(-reference["data"][:, :, 0].astype(np.float64))  # stored as -w
    recipe = replace(KOLMOGOROV, shape=(64, 64))
    state, errors = frames[:, :1], {}
    for step in range(1, 11):
        state = recipe.advance(state, {})
        if step in (1, 10):
            errors[step] = relative_error(state[:, 0], frames[:, int(step == 10) + 1])
    assert errors[1] < 2e-5 and errors[10] < 1e-4  # what their time step leaves


@pytest.mark.parametrize("recipe", [KOLMOGOROV, NAVIER_STOKES], ids=["kolmogorov", "ns"])
def test_the_flow_from_rest_is_the_laminar_one(recipe: Kolmogorov | NavierStokes) -> None:
    """The force bends no streamline, so that its response is that of a linear equation."""
    grid = recipe.simulated_grid
    x, y = grid.coordinates(torch.float64)
    if isinstance(recipe, Kolmogorov):
        force, rate = 4 * torch.cos(4 * y), recipe.viscosity * 16 + recipe.drag
    else:
        phase = 2 * math.pi * (x + y)
        force = 0.1 * (torch.sin(phase) + torch.cos(phase))
        rate = recipe.viscosity * 8 * math.pi**2
    state = torch.zeros(1, 1, *grid.shape, dtype=torch.float64)
    for _ in range(3):
        state = recipe.advance(state, {})
    expected = force * (1 - math.exp(-rate * 3 * recipe.interval)) / rate
    assert relative_error(state[0, 0], expected) < 1e-6


def test_the_first_vorticity_has_the_published_variance() -> None:
    recipe = replace(NAVIER_STOKES, samples=1000, shape=(16, 24), refinement=1)
    fields = torch.stack([recipe.draw(index).start for index in range(1000)])
    wavenumbers = [
        2 * math.pi * torch.fft.fftfreq(points, 1 / points, dtype=torch.float64)
        for points in recipe.shape
    ]
    squared = wavenumbers[0][:, None] ** 2 + wavenumbers[1] ** 2
    powers = 2 * 7.0**3 * (squared + 49) ** -2.5
    expected = float(powers.sum() - powers[0, 0])
    assert float(fields.square().mean()) == pytest.approx(expected, rel=0.05)
    assert float(fields.mean((-2, -1)).abs().max()) < 1e-12


def test_smaller_time_steps_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(NAVIER_STOKES, viscosity=1e-5, frames=8, shape=(32, 32))
    (coarse,) = recipe.simulate([3])
    monkeypatch.setattr("pibert.physics.spectral.COURANT", 0.1)
    (fine,) = recipe.simulate([3])
    assert isinstance(coarse, Trajectory) and isinstance(fine, Trajectory)
    assert relative_error(coarse.read(), fine.read()) < 1e-4


@pytest.mark.parametrize("recipe", [KOLMOGOROV, NAVIER_STOKES], ids=["kolmogorov", "ns"])
def test_trajectories_state_their_split_and_have_its_length(recipe: VorticityRecipe) -> None:
    flows = [flow for flow in recipe.simulate([0, 2, 3]) if isinstance(flow, Trajectory)]
    assert [flow.local["split"] for flow in flows] == ["train", "valid", "test"]
    shorter = recipe.train_frames or recipe.frames
    lengths = [shorter, shorter, recipe.frames]
    assert [flow.num_frames for flow in flows] == [len(flow.time) for flow in flows] == lengths
    assert all(flow.spec.grid.shape == recipe.shape for flow in flows)
    (alone,) = recipe.simulate([3])
    assert isinstance(alone, Trajectory) and torch.equal(alone.read(), flows[2].read())


def test_stored_points_are_those_of_the_simulation() -> None:
    (stored,) = replace(NAVIER_STOKES, frames=2).simulate([3])
    assert isinstance(stored, Trajectory)
    start = NAVIER_STOKES.draw(3).start[:, ::2, ::2]
    assert torch.equal(stored.read(slice(0, 1))[0], start.float())
    grid, fine = stored.spec.grid, NAVIER_STOKES.simulated_grid
    assert (grid.dx, grid.dy) == pytest.approx((2 * fine.dx, 2 * fine.dy))
