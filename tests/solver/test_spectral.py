"""Spectral tools, the stepping of vorticity and turbulence, on boxes that are not square."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pibert.fields import Grid, Trajectory
from pibert.physics import spectral
from pibert.physics.derivatives import divergence, gradient, vorticity
from pibert.solver.turbulence import PRESETS, Turbulence
from tests.physics import exact
from tests.physics.helpers import measured_order, noise

GRID = Grid.periodic((24, 40), dx=0.11, dy=0.23)
NU = torch.tensor([0.03], dtype=torch.float64)


def peaked(k: Tensor) -> Tensor:
    return k**4 * torch.exp(-2 * (k / 4.0) ** 2)


def eddies(grid: Grid = GRID, seed: int = 0) -> Tensor:
    return spectral.random_velocity(grid, torch.Generator().manual_seed(seed), peaked)


def energy(velocity: Tensor) -> Tensor:
    return velocity.square().sum(-3).mean((-2, -1)) / 2


def enstrophy(spectrum: Tensor, modes: spectral.Modes) -> Tensor:
    return modes.field(spectrum).square().mean((-2, -1)) / 2


@pytest.mark.parametrize("shape", [(24, 40), (25, 39)])
def test_velocity_and_vorticity_are_each_other_s_inverse(shape: tuple[int, int]) -> None:
    grid = Grid.periodic(shape, dx=0.11, dy=0.23)
    modes = spectral.modes_of(grid)
    velocity = eddies(grid)
    spectrum = spectral.vorticity_of(velocity, modes)
    torch.testing.assert_close(spectral.velocity_of(spectrum, modes), velocity)
    u, v = velocity
    torch.testing.assert_close(modes.field(spectrum), vorticity(u, v, grid, "spectral"))
    assert divergence(u, v, grid, "spectral").abs().max() < 1e-12
    assert velocity.mean((-2, -1)).abs().max() < 1e-14


def test_random_velocity_meets_its_spectrum_wave_by_wave() -> None:
    velocity = eddies()
    assert float(energy(velocity)) == pytest.approx(0.5)
    modes = spectral.modes_of(GRID)
    k = modes.squared.sqrt()
    found = torch.fft.rfft2(velocity).abs().square().sum(0)
    inside = modes.keep & (k > 0)
    share = found[inside] / (peaked(k) / k)[inside]
    torch.testing.assert_close(share, share[:1].expand_as(share), rtol=1e-5, atol=0)
    assert found[~modes.keep].max() < 1e-20 * found.max()
    # Over a ring of the wave plane this is the spectrum that was asked for: it peaks at k = 4.
    rings = [float(found[(k > r - 0.5) & (k < r + 0.5)].sum()) for r in range(1, 8)]
    assert max(range(1, 8), key=lambda r: rings[r - 1]) == 4


def test_transport_is_the_advection_of_vorticity() -> None:
    modes = spectral.modes_of(GRID)
    velocity = eddies()
    spectrum = spectral.vorticity_of(velocity, modes)
    w_x, w_y = gradient(modes.field(spectrum), GRID, "spectral")
    carried = torch.fft.rfft2(-(velocity[0] * w_x + velocity[1] * w_y)) * modes.keep
    torch.testing.assert_close(spectral.transport(spectrum, modes), carried)


def test_products_are_free_of_aliases() -> None:
    """On a grid twice as fine no product aliases: the kept waves must get the same rates."""
    fine = Grid.periodic((48, 80), dx=0.055, dy=0.115)
    coarse_modes, fine_modes = spectral.modes_of(GRID), spectral.modes_of(fine)
    white = torch.fft.rfft2(noise(24, 40)) * coarse_modes.keep
    white[0, 0] = 0
    padded = torch.zeros(48, 41, dtype=white.dtype)
    padded[:12, :21], padded[-12:, :21] = white[:12], white[-12:]
    rate = spectral.transport(white, coarse_modes)
    fine_rate = spectral.transport(4 * padded, fine_modes) / 4
    same = torch.cat((fine_rate[:12, :21], fine_rate[-12:, :21])) * coarse_modes.keep
    torch.testing.assert_close(rate, same)
    assert rate.abs().max() > 1


def test_taylor_green_decays_exactly_whatever_the_step() -> None:
    modes = spectral.modes_of(GRID)
    times = torch.tensor([0.0, 1.7], dtype=torch.float64)
    u, v, _ = exact.taylor_green(GRID, times, 0.03, modes=(2, 1))
    velocity = torch.stack((u, v), 1)
    start = spectral.vorticity_of(velocity[:1], modes)
    for steps in (1, 5):
        later = spectral.advance_vorticity(start, modes, 1.7, steps, viscosity=NU)
        found = spectral.velocity_of(later, modes)[0]
        torch.testing.assert_close(found, velocity[1], atol=1e-12, rtol=0)


def test_decaying_flow_loses_energy_to_viscosity_alone() -> None:
    """dE/dt = -2 nu Z, with the enstrophy Z integrated over time by Simpson's rule."""
    modes = spectral.modes_of(GRID)
    states = [spectral.vorticity_of(eddies()[None], modes)]
    for _ in range(8):
        states.append(spectral.advance_vorticity(states[-1], modes, 0.02, 8, viscosity=NU))
    energies = [float(energy(spectral.velocity_of(s, modes))) for s in states]
    z = [float(enstrophy(s, modes)) for s in states]
    simpson = 0.02 / 3 * (z[0] + 4 * sum(z[1:8:2]) + 2 * sum(z[2:8:2]) + z[8])
    assert energies[0] - energies[8] > 0.05 * energies[0]
    assert energies[8] - energies[0] == pytest.approx(-2 * 0.03 * simpson, rel=1e-5)


def test_without_viscosity_energy_and_enstrophy_are_kept_to_order_four() -> None:
    modes = spectral.modes_of(GRID)
    start = spectral.vorticity_of(eddies()[None], modes)
    drifts: list[tuple[float, float]] = []
    for steps in (16, 32, 64):
        end = spectral.advance_vorticity(start, modes, 1.0, steps, viscosity=torch.zeros_like(NU))
        change = energy(spectral.velocity_of(end, modes)) / energy(eddies()) - 1
        drifts.append((float(change), float(enstrophy(end, modes) / enstrophy(start, modes) - 1)))
    assert (end - start).abs().max() > 0.1 * start.abs().max()
    for errors in zip(*drifts, strict=True):
        assert measured_order([abs(e) for e in errors]) > 3.7
        assert abs(errors[-1]) < 1e-5


def test_time_stepping_is_of_order_four_with_viscosity_drag_and_force() -> None:
    modes = spectral.modes_of(GRID)
    start = spectral.vorticity_of(eddies()[None], modes)
    force = 3 * spectral.vorticity_of(eddies(seed=5), modes)

    def end(steps: int) -> Tensor:
        return spectral.advance_vorticity(
            start, modes, 1.0, steps, viscosity=NU, drag=0.5, force=force
        )

    reference = end(128)
    errors = [float((end(n) - reference).abs().max()) for n in (8, 16, 32)]
    assert measured_order(errors) > 3.7


def test_steps_follow_the_fastest_crossing_of_each_sample() -> None:
    velocity = torch.zeros(4, 2, 24, 40, dtype=torch.float64)
    velocity[0, 0, 3, 5] = -1.1  # crosses 10 cells of 0.11 in a unit of time
    velocity[1, 1, 3, 5] = 2.3 * 5  # 50 cells of 0.23
    velocity[2, 0, 0, 0] = math.nan
    velocity[3, 0, 0, 0] = 1e9
    assert spectral.steps_needed(velocity, GRID, 1.0) == [24, 128, 0, 0]
    assert spectral.steps_needed(velocity[:1], GRID, 0.03) == [1]
    # A force may add 0.11 and 0.11: 11 cells along x and 0.48 along y.
    assert spectral.steps_needed(velocity[:1], GRID, 1.0, gain=0.11) == [24]
    assert spectral.steps_needed(velocity[:1], GRID, 1.0, gain=0.22) == [32]


SMALL = Turbulence(
    samples=2, shape=(24, 40), size=(3.0, 4.5), frames=4, interval=0.25, viscosity=(0.01, 0.02)
)


def test_frames_are_free_of_divergence_to_single_precision() -> None:
    (trajectory,) = SMALL.simulate([0])
    assert isinstance(trajectory, Trajectory) and isinstance(trajectory.states, Tensor)
    u, v = trajectory.states.double().unbind(1)
    assert divergence(u, v, SMALL.grid, "spectral").abs().max() < 2e-5
    energy = trajectory.states.square().sum(1).mean((-2, -1))
    assert (energy.diff() < 0).all()


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
