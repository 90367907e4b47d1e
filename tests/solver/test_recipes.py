"""Recipes of lattice Boltzmann flows: what their trajectories say about themselves."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from pibert.data.dataset import common_spec
from pibert.data.format import check, write
from pibert.fields import Trajectory
from pibert.physics import find_family, masked_residuals
from pibert.solver.enclosed import Dams, LidDrivenCavities, Tubes
from pibert.solver.immersed import ImmersedCylinder
from pibert.solver.presets import PRESETS, find_preset
from pibert.solver.recipes import Recipe, generator_of
from pibert.solver.sampling import Scales
from pibert.solver.wakes import CylinderWakes, TandemWakes

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


def test_the_divergence_of_a_wake_is_small() -> None:
    recipe = CylinderWakes(**(WAKE | {"view": (36, 60), "body": (17.5, 18.5, 15.0)}))
    wake = simulate(recipe)[1]
    u, v, _ = wake.read().unbind(1)
    residuals, defined = masked_residuals(
        find_family("incompressible"), {"u": u[:, None], "v": v[:, None]}, wake.spec.grid
    )
    (divergence,) = residuals["divergence"].unbind(1)
    gradient = torch.stack(torch.gradient(u, dim=(1, 2))) / wake.spec.grid.dx
    inside = defined["divergence"]
    assert divergence[inside].square().mean().sqrt() < 0.1 * gradient.square().mean().sqrt()


def test_parameters_cover_their_range_one_sample_in_each_part_of_it() -> None:
    recipe = CylinderWakes(samples=50)
    from pibert.solver.sampling import spread

    numbers = [spread(recipe, i, "reynolds", (60.0, 200.0)) for i in range(50)]
    for i, number in enumerate(numbers):
        assert 60 + 2.8 * i <= number <= 60 + 2.8 * (i + 1)
    other = [spread(replace(recipe, seed=1), i, "reynolds", (60.0, 200.0)) for i in range(50)]
    assert numbers != other


def test_random_numbers_of_a_sample_depend_on_seed_number_and_purpose() -> None:
    draws = {
        torch.rand((), generator=generator_of(seed, index, purpose)).item()
        for seed in (0, 1)
        for index in (0, 1)
        for purpose in ("a", "b")
    }
    assert len(draws) == 8
    again = torch.rand((), generator=generator_of(0, 1, "a")).item()
    assert again in draws


def test_a_camera_of_fixed_rate_sees_faster_streams_move_further() -> None:
    """In SI units all samples share the time between frames; the viscosity is that of water."""
    recipe = CylinderWakes(
        **WAKE,
        reynolds=(100.0, 300.0),
        interval=2e-3,
        interval_grows=True,
        scales=Scales(diameter=0.03, viscosity=1e-6),
    )
    flows = simulate(recipe)
    dt = 2e-3 * 0.03**2 / 1e-6
    for flow in flows:
        assert flow.spec.dt == pytest.approx(dt)
        torch.testing.assert_close(flow.time, torch.arange(3, dtype=torch.float64) * dt)
        speed = flow.parameters["Re"] * 1e-6 / 0.03
        assert 0.5 * speed < flow.read()[:, 0].abs().max() < 3 * speed
        assert flow.spec.grid.dx == pytest.approx(0.03 / 5)
        assert (flow.length_unit, flow.time_unit) == ("m", "s")
    spec = common_spec(flows)
    assert spec.dt == pytest.approx(dt) and spec.viscosity == 1e-6
    assert spec.units == ("m/s", "m/s", "m^2/s^2")


def test_si_units_are_the_flow_s_own_times_its_scales() -> None:
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


def test_first_flows_differ_from_sample_to_sample() -> None:
    swirls = [CylinderWakes()._swirl(i) for i in range(20)]
    assert len(set(swirls)) == 20
    assert min(swirls) < 0 < max(swirls)


def test_tandem_samples_take_streams_and_masses_in_turn() -> None:
    recipe = TandemWakes(reynolds=(100.0, 200.0), mass_ratios=(2.0, 8.0), reduced_velocity=6.0)
    drawn = [recipe.draw(i) for i in range(5)]
    assert [d["Re"] for d in drawn] == [100, 100, 200, 200, 100]
    assert [d["mass_ratio"] for d in drawn] == [2, 8, 2, 8, 2]
    assert [d["reduced_velocity"] for d in drawn] == [4, 4, 8, 8, 4]  # 6 at Re 150
    case = recipe.make_case([0], {key: [value] for key, value in drawn[0].items()}, "cpu")
    assert case.mover is not None
    mover = case.mover(False)
    assert isinstance(mover, ImmersedCylinder)
    mass, _, stiffness = mover._mounting
    assert mass.item() == pytest.approx(2.0 * math.pi / 4 * 8**2)
    omega = 2 * math.pi * recipe.speed / (8 * 4.0)
    assert stiffness.item() == pytest.approx(mass.item() * omega**2)


def test_a_view_outside_the_domain_is_refused() -> None:
    recipe = CylinderWakes(**(WAKE | {"view": (64, 20), "body": (31.5, 6.5, 5.0)}))
    with pytest.raises(ValueError, match="does not lie in the domain"):
        recipe.simulate([0])
    odd = CylinderWakes(
        **(WAKE | {"view": (12, 24), "body": (5.5, 11.0, 13.0), "cells_per_point": 3})
    )
    case = odd.make_case([0], {"Re": [100.0]}, "cpu")
    assert case.grid.shape == (12, 24)


def test_the_presets_have_the_published_geometry_and_pace() -> None:
    wakes = find_preset("cylinder", "realpdebench-like")
    assert isinstance(wakes, CylinderWakes)
    assert (wakes.samples, wakes.frames, wakes.view) == (92, 200, (64, 128))
    assert wakes.body == (32.0, 32.0, 18.0)
    assert wakes.reynolds == (1800.0, 12000.0)
    # U dt / D = 5.6e-5 Re: 50 ms for 30 mm in water.
    assert wakes.interval * 0.03**2 / 1e-6 == pytest.approx(0.05, rel=0.01)
    tandem = find_preset("tandem", "fsi-like")
    assert isinstance(tandem, TandemWakes)
    assert (tandem.samples, tandem.view, tandem.body[2]) == (51, (128, 128), 24.0)
    assert tandem.interval * 0.03**2 / 1e-6 == pytest.approx(0.002, rel=0.02)
    assert tandem.burst == (2, 10)
    demo = PRESETS["cylinder"]["demo"]
    assert isinstance(demo, CylinderWakes)
    assert (demo.samples, demo.view) == (12, (32, 64))


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


def test_pairs_of_frames_are_apart_by_a_gap() -> None:
    recipe = TandemWakes(
        **(WAKE | {"upstream": 6.0, "body": (5.5, 12.5, 5.0), "frames": 4}),
        interval=0.1,
        burst=(2, 10),
    )
    flow = simulate(recipe)[0]
    torch.testing.assert_close(flow.time, torch.tensor([0.0, 0.1, 1.0, 1.1], dtype=torch.float64))
    assert flow.spec.dt == pytest.approx(0.1)


@pytest.mark.parametrize("bounds", [(0.0, 10.0), (20.0, 10.0)])
def test_wrong_ranges_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="reynolds must be two positive numbers"):
        CylinderWakes(reynolds=bounds)
