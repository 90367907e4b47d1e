"""Mean advection against patterns that a uniform flow carries along, and by hand."""

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from pibert.fields import Boundary, FieldSpec, Grid, Normalizer, Sides
from pibert.models.references.mean_advection import MeanAdvection, MeanAdvectionConfig
from tests.models.recordings import batches_of

NY, NX, DX, DY, DT = 20, 36, 0.25, 0.4, 0.1
PERIODIC = FieldSpec(grid=Grid.periodic((NY, NX), DX, DY), dt=DT)
NORMALIZER = Normalizer((3.0, -1.0), (2.0, 0.5))


def translating(flow: tuple[float, float], count: int, waves: tuple[int, int] = (2, 1)) -> Tensor:
    """A mean flow and a wave that runs with it, (t, 2, y, x); its time mean is the mean flow.

    The recording lasts a whole number of periods of the wave.
    """
    grid = PERIODIC.grid
    x, y = grid.coordinates(torch.float64)
    kx = 2 * math.pi * waves[0] / (NX * grid.dx)
    ky = 2 * math.pi * waves[1] / (NY * grid.dy)
    t = torch.arange(count, dtype=torch.float64)[:, None, None] * DT
    phase = kx * (x - flow[0] * t) + ky * (y - flow[1] * t)
    return torch.stack((flow[0] + 0.3 * phase.cos(), flow[1] + 0.2 * (phase + 1).sin()), dim=1)


def periods(flow: tuple[float, float], waves: tuple[int, int]) -> int:
    """Frames of one period of the wave, which must be a whole number."""
    turns = DT * (flow[0] * waves[0] / (NX * DX) + flow[1] * waves[1] / (NY * DY))
    count = abs(1 / turns)
    assert abs(count - round(count)) < 1e-9
    return round(count)


def fit(states: Tensor, spec: FieldSpec = PERIODIC, **options: object) -> MeanAdvection:
    model = MeanAdvection(MeanAdvectionConfig(**options), spec).double()  # type: ignore[arg-type]
    model.fit(batches_of(states, spec, NORMALIZER), NORMALIZER)
    return model


def error(interpolation: Literal["linear", "cubic"], flow: tuple[float, float]) -> float:
    waves = (2, 1)
    count = periods(flow, waves)
    # One frame more, as the first is never a target.
    states = translating(flow, count + 1, waves)
    model = fit(states, interpolation=interpolation)
    z = NORMALIZER.apply(states)
    return float((model(z[:-1]) - z[1:]).abs().max())


# Of each flow: the wave of (2, 1) turns once in a whole number of frames.
@pytest.mark.parametrize("flow", [(4.5, 0.0), (-2.25, 0.0), (0.0, 1.6), (2.25, -2.0)])
def test_a_pattern_that_runs_with_the_flow_is_predicted_to_the_order_of_the_interpolation(
    flow: tuple[float, float],
) -> None:
    # Polynomials leave (kh)^p: with kh = 0.35 and 0.31, amplitudes in standardised units up to 0.4.
    assert error("cubic", flow) < 3e-3
    assert error("linear", flow) < 2e-2
    assert error("cubic", flow) < 0.3 * error("linear", flow) + 1e-9


def test_a_shift_by_whole_cells_is_exact() -> None:
    flow = (2 * DX / DT, -DY / DT)
    waves = (2, 2)
    states = translating(flow, periods(flow, waves) + 1, waves)
    z = NORMALIZER.apply(states)
    for interpolation in ("linear", "cubic"):
        model = fit(states, interpolation=interpolation)
        assert torch.allclose(model(z[:1]), z[:1].roll((-1, 2), (2, 3)), atol=1e-9)


def test_several_frames_ahead_go_on_step_by_step() -> None:
    flow = (2 * DX / DT, -DY / DT)
    states = translating(flow, periods(flow, (2, 2)) + 1, (2, 2))
    model = MeanAdvection(MeanAdvectionConfig(history=2, horizon=3), PERIODIC).double()
    model.fit(batches_of(states, PERIODIC, NORMALIZER, history=2, horizon=3), NORMALIZER)
    z = NORMALIZER.apply(states)
    # The targets do not fill whole periods here: the mean is a little off, and so is the shift.
    expected = torch.cat([z[:1].roll((-s, 2 * s), (2, 3)) for s in (1, 2, 3)], dim=1)
    model.mean.copy_(NORMALIZER.apply(torch.tensor(flow)[:, None, None].expand(2, NY, NX)))
    x, y = torch.arange(NX), torch.arange(NY)
    model.departure.copy_(torch.stack((x.expand(NY, NX) - 2, y[:, None].expand(NY, NX) + 1)))
    assert torch.allclose(model(torch.cat((0 * z[:1], z[:1]), dim=1)), expected, atol=1e-9)


def still(flow: tuple[float, float], spec: FieldSpec) -> MeanAdvection:
    """Fitted on frames of one uniform flow."""
    states = torch.tensor(flow, dtype=torch.float64)[:, None, None].expand(2, *spec.grid.shape)
    return fit(states.expand(4, -1, -1, -1).contiguous(), spec)


def test_a_spot_moves_along_x_by_u_dt_over_dx_and_along_y_by_v_dt_over_dy() -> None:
    spec = FieldSpec(grid=Grid((12, 20), dx=0.5, dy=0.2), dt=0.1)
    model = still((15.0, 4.0), spec)  # three columns right, two rows up
    z = model.mean[None].clone()
    z[0, 0, 4, 6] += 1.0
    expected = model.mean[None].clone()
    expected[0, 0, 6, 9] += 1.0
    assert torch.allclose(model(z), expected, atol=1e-9)


def test_open_sides_do_not_wrap_and_hold_what_lies_on_them() -> None:
    spec = FieldSpec(grid=Grid((8, 10), dx=0.5, dy=0.2), dt=0.1)
    model = still((10.0, 0.0), spec)  # two columns right
    z = model.mean[None].clone()
    z[0, 1, 3, 9] += 1.0  # leaves the domain
    assert torch.allclose(model(z), model.mean[None], atol=1e-9)
    z = model.mean[None].clone()
    z[0, 1, :, 0] += 1.0
    found = model(z) - model.mean
    expected = torch.zeros_like(found)
    expected[0, 1, :, :3] = 1.0
    assert torch.allclose(found, expected, atol=1e-9)


def test_one_periodic_axis_wraps_alone() -> None:
    sides = Sides(bottom=Boundary.PERIODIC, top=Boundary.PERIODIC)
    spec = FieldSpec(grid=Grid((8, 10), 0.5, 0.2, sides), dt=0.1)
    model = still((5.0, -4.0), spec)  # one column right, two rows down
    z = model.mean[None].clone()
    z[0, 0, 1, 9] += 1.0
    z[0, 1, 1, 4] += 1.0
    expected = model.mean[None].clone()
    expected[0, 1, 7, 5] += 1.0
    assert torch.allclose(model(z), expected, atol=1e-9)


@pytest.mark.parametrize(("interpolation", "degree"), [("linear", 1), ("cubic", 3)])
def test_polynomials_are_interpolated_exactly_up_to_open_sides(
    interpolation: str, degree: int
) -> None:
    spec = FieldSpec(grid=Grid((9, 11)), dt=1.0)
    model = MeanAdvection(MeanAdvectionConfig(interpolation=interpolation), spec).double()  # type: ignore[arg-type]
    model.load_state_dict(model.state_dict() | {"fitted": torch.tensor(True)})
    generator = torch.Generator().manual_seed(0)
    places = torch.rand(2, 9, 11, generator=generator, dtype=torch.float64)
    model.departure.copy_(places * torch.tensor((10.0, 8.0))[:, None, None])

    def field(x: Tensor, y: Tensor) -> Tensor:
        x, y = x / 10, y / 8
        return (1 + x - y) ** degree + x**degree * y**degree

    x, y = spec.grid.coordinates(torch.float64)
    z = field(x, y).expand(1, 2, 9, 11).contiguous()
    assert torch.allclose(model(z)[0, 0], field(*model.departure), atol=1e-12)


def test_points_never_known_stand_still_and_unknown_ones_do_not_fluctuate() -> None:
    spec = FieldSpec(grid=Grid((8, 10), dx=0.5, dy=0.2), dt=0.1)
    states = torch.tensor((10.0, 2.0), dtype=torch.float64)[:, None, None].repeat(4, 1, 8, 10)
    valid = torch.ones(8, 10, dtype=torch.bool)
    valid[3:5, 4:6] = False
    model = MeanAdvection(MeanAdvectionConfig(), spec).double()
    model.fit(batches_of(states, spec, NORMALIZER, valid=valid), NORMALIZER)
    x, y = torch.arange(10.0), torch.arange(8.0)
    shift = torch.where(valid, 1.0, 0.0)
    assert torch.allclose(model.departure[0], (x - 2 * shift).double())
    assert torch.allclose(model.departure[1], (y[:, None] - shift).double())
    found = model(torch.randn(1, 2, 8, 10, dtype=torch.float64), mask=torch.zeros(8, 10))
    assert torch.equal(found, model.mean[None])


def test_flows_without_velocity_or_time_step_and_odd_choices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"velocity channels u and v .* found channels \['T'\]"):
        MeanAdvection(MeanAdvectionConfig(), FieldSpec(channels=("T",), dt=0.1))
    with pytest.raises(ValueError, match="time step dt between frames, found None"):
        MeanAdvection(MeanAdvectionConfig(), replace(PERIODIC, dt=None))


def test_an_unknown_interpolation_is_refused_with_the_choices(no_shape_checks: None) -> None:
    with pytest.raises(ValueError, match="'nearest'; choose from: linear, cubic"):
        MeanAdvectionConfig(interpolation="nearest")  # type: ignore[arg-type]
