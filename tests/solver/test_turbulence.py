"""Turbulence: what its first state, its force and its presets are like."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pibert.fields import Trajectory
from pibert.physics.derivatives import divergence
from pibert.solver import spectral
from pibert.solver.turbulence import PRESETS, Turbulence

SMALL = Turbulence(
    samples=2, shape=(24, 40), size=(3.0, 4.5), frames=4, interval=0.25, viscosity=(0.01, 0.02)
)


def test_the_first_state_has_unit_speed_and_its_peak_where_it_should() -> None:
    start = SMALL.draw(0).start
    assert float(start.square().sum(0).mean()) == pytest.approx(1)
    modes = spectral.modes_of(SMALL.grid)
    found, k = torch.fft.rfft2(start).abs().square().sum(0), modes.squared.sqrt()
    peak = 2 * math.pi * 4 / 4.5
    # Energy per wave is k^3 exp(-2 (k / peak)^2), largest at sqrt(3) / 2 of the peak.
    assert float(k.flatten()[found.argmax()]) == pytest.approx(peak * math.sqrt(3) / 2, rel=0.1)


def test_frames_are_free_of_divergence_to_single_precision() -> None:
    (trajectory,) = SMALL.simulate([0])
    assert isinstance(trajectory, Trajectory) and isinstance(trajectory.states, Tensor)
    u, v = trajectory.states.double().unbind(1)
    assert divergence(u, v, SMALL.grid, "spectral").abs().max() < 2e-5
    energy = trajectory.states.square().sum(1).mean((-2, -1))
    assert (energy.diff() < 0).all()


def test_steps_between_frames_are_fine_enough() -> None:
    fields = SMALL.draw(0).start[None]
    viscosity = {"viscosity": torch.tensor([0.01], dtype=torch.float64)}
    found = SMALL.advance(fields, viscosity)
    short = replace(SMALL, interval=SMALL.interval / 8)
    for _ in range(8):
        fields = short.advance(fields, viscosity)
    torch.testing.assert_close(found, fields, atol=1e-4, rtol=0)


def test_the_force_drives_a_shear_flow_to_its_balance() -> None:
    """Viscous enough, the flow becomes the force over nu k^2 + mu, along x and varying in y."""
    driven = replace(
        SMALL, force=0.3, waves=1, drag=1.0, warm_up=30, viscosity=(0.5, 0.5), frames=2
    )
    assert driven.family is None and SMALL.family == "incompressible"
    (trajectory,) = driven.simulate([0])
    assert isinstance(trajectory, Trajectory) and isinstance(trajectory.states, Tensor)
    u, v = trajectory.states[-1].double()
    _, y = driven.grid.coordinates(torch.float64)
    k = 2 * math.pi / 3.0
    expected = 0.3 / (0.5 * k**2 + 1.0) * torch.sin(k * y)
    torch.testing.assert_close(u, expected, atol=1e-4, rtol=0)
    assert v.abs().max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_presets_resolve_their_least_viscous_flow(name: str) -> None:
    """Of the enstrophy little is left in the last waves that are kept."""
    preset = PRESETS[name]
    assert isinstance(preset, Turbulence)
    low = replace(preset, samples=1, viscosity=(preset.viscosity[0],) * 2)
    (trajectory,) = low.simulate([0])
    assert isinstance(trajectory, Trajectory) and isinstance(trajectory.states, Tensor)
    modes = spectral.modes_of(low.grid)
    enstrophy = spectral.vorticity_of(trajectory.states.double(), modes).abs().square()
    highest = modes.squared.sqrt() > 0.85 * modes.kx[modes.keep.any(0)].max()
    assert ((enstrophy * highest).sum((-2, -1)) < 0.01 * enstrophy.sum((-2, -1))).all()
