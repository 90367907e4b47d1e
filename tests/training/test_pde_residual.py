"""The objective of the amortised PINN: exact flows, units, unknown points, parts of a batch."""

import math
from dataclasses import replace
from operator import itemgetter
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.fields import Batch, FieldSpec, Grid, Normalizer
from pibert.models.baselines.pinn import PINN, PINNConfig
from pibert.physics.exact import taylor_green
from pibert.training import losses
from pibert.training.losses import LossScales, LossWeights
from pibert.training.objectives import RolloutConfig, supervised
from pibert.training.pde_residual import continuity, pde_residual, vorticity_transport
from tests.helpers import randomise, tiny_model, tiny_spec

WEIGHTS = LossWeights(reg=0.5, div=0.1, bnd=0.2)
SHAPE = (9, 13)
NORMALIZER = Normalizer((0.3, -0.1), (0.5, 2.0))


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def scales_of(spec: FieldSpec | None = None, normalizer: Normalizer = NORMALIZER) -> LossScales:
    return LossScales.from_training(spec or tiny_spec(SHAPE), normalizer)


def make_model(scales: LossScales, drawn: bool = True, **options: Any) -> Any:
    model: Any = PINN(PINNConfig(**({"width": 10, "depth": 2} | options)), scales.spec)
    return (randomise(model) if drawn else model).double()


def make_batch(x: Tensor, y: Tensor, unknown: float = 0.0) -> Batch:
    """Frames x (b, hc, y, x) and y (b, s, c, y, x), with a share of unknown points."""
    size, shape = len(x), x.shape[-2:]
    mask = draw(size, *shape, seed=1).abs() >= unknown
    target_mask = draw(*y.shape[:2], *shape, seed=2).abs() >= unknown
    return Batch(
        x=torch.where(mask[:, None], x, 0.0),
        y=torch.where(target_mask[:, :, None], y, 0.0),
        parameters=torch.zeros(size, 16, dtype=torch.float64),
        mask=mask,
        target_mask=target_mask,
        sample=torch.arange(size),
        seeds=7 + torch.arange(size),
    )


def random_batch(size: int = 4, unknown: float = 0.1) -> Batch:
    return make_batch(draw(size, 2, *SHAPE), draw(size, 1, 2, *SHAPE, seed=5), unknown)


def test_the_loss_is_the_supervised_one_plus_the_weighted_residual() -> None:
    scales, batch = scales_of(), random_batch()
    model = make_model(scales)
    plain, _ = supervised(scales, WEIGHTS)(model, batch)
    loss, logs = pde_residual(scales, WEIGHTS, weight=0.3)(model, batch)
    torch.testing.assert_close(loss, plain + 0.3 * logs["continuity"])
    torch.testing.assert_close(logs["loss"], loss.detach())
    assert {"reconstruction", "divergence", "boundary", "continuity_of_data"} <= set(logs)
    truth = losses.divergence(batch.y, scales, batch.target_mask)
    torch.testing.assert_close(logs["continuity_of_data"], truth)
    assert not any(entry.requires_grad for entry in logs.values())


def test_continuity_by_hand_in_units_of_the_reference_velocity_and_the_cell() -> None:
    """Stencils are exact for u = 3 x^2 + y and v = 2 y^2 - x y, where u_x + v_y = 5 x + 4 y."""
    grid = Grid(SHAPE, dx=0.5, dy=0.08, origin=(-1.0, 2.0))
    scales = scales_of(FieldSpec(family="incompressible", grid=grid))
    x, y = grid.coordinates(torch.float64)
    state = NORMALIZER.apply(torch.stack((3 * x**2 + y, 2 * y**2 - x * y)))[None]
    model = make_model(scales, drawn=False)  # persistence
    batch = make_batch(state, state[:, None])
    _, logs = pde_residual(scales, WEIGHTS, weight=1.0)(model, batch)
    velocity = math.sqrt((0.5**2 + 2.0**2) / 2)
    expected = ((5 * x + 4 * y) * 0.2 / velocity).square().mean()
    torch.testing.assert_close(logs["continuity"], expected)


def test_persistence_has_the_divergence_of_the_last_frame_at_the_points_that_are_known() -> None:
    body = torch.zeros(SHAPE, dtype=torch.bool)
    body[3:5, 6:8] = True
    scales = scales_of(tiny_spec(SHAPE, grid=Grid(SHAPE, dx=0.3, dy=0.2, body=body)))
    batch = random_batch()
    batch = replace(batch, mask=batch.mask & ~body, target_mask=batch.mask[:, None])
    batch = replace(batch, x=torch.where(batch.mask[:, None], batch.x, 0.0))
    model = make_model(scales, drawn=False)
    _, logs = pde_residual(scales, WEIGHTS, weight=1.0)(model, batch)
    expected = losses.divergence(batch.x, scales, batch.mask)
    torch.testing.assert_close(logs["continuity"], expected)


def test_a_network_adds_what_it_does_to_the_field() -> None:
    """Stencils on the predicted field agree with the chain rule to their second order."""
    errors = []
    for n in (16, 32):
        grid = Grid.periodic((n, 2 * n), dx=1 / n, dy=1.5 / n)
        scales = scales_of(FieldSpec(family="incompressible", grid=grid))
        model = make_model(scales)
        with torch.no_grad():
            model.network[0].weight[:, 2:] = 0.0  # periodic, as the coordinates are not
        u, v, _ = taylor_green(grid, 0.0, 0.0)
        x = torch.stack((u, v))[None]
        found = continuity(model.total_derivatives(x), scales, torch.ones(1, 1, n, 2 * n).bool())
        on_grid = losses.divergence(model(x), scales)
        errors.append(float((found / on_grid - 1).abs().detach()))
    assert errors[1] < 0.3 * errors[0] < 0.05


def test_taylor_green_has_no_residual() -> None:
    # As many points per wave along both axes: the discrete divergence vanishes as the exact one.
    grid = Grid.periodic((16, 32), dx=0.3, dy=0.2)
    spec = tiny_spec(grid=grid)
    scales = scales_of(spec)
    u, v, _ = taylor_green(grid, torch.tensor([0.0, 0.1]), 0.05, modes=(2, 1))
    frames = NORMALIZER.apply(torch.stack((u, v), dim=1))
    batch = make_batch(frames[:1], frames[None, 1:])
    model = make_model(scales, drawn=False)
    _, logs = pde_residual(scales, WEIGHTS, weight=1.0)(model, batch)
    assert logs["continuity"] < 1e-24 and logs["continuity_of_data"] < 1e-24


def transport_of(n: int, viscosity: float, unit: float = 1.0, still: bool = False) -> float:
    """Of exact vortices in a stream; lengths and velocities may be in other units."""
    grid = Grid.periodic((n, 2 * n), dx=unit / n, dy=1.5 * unit / n)
    dt = 0.4 / n
    velocity = taylor_green(
        grid,
        torch.tensor([0.0, dt]),
        0.05 * unit**2,
        amplitude=unit,
        stream=(0.7 * unit, 0.2 * unit),
    )[:2]
    normalizer = Normalizer((0.3 * unit, 0.1 * unit), (0.5 * unit, 2.0 * unit))
    frames = normalizer.apply(torch.stack(velocity, dim=1))
    spec = FieldSpec(family="incompressible", grid=grid, dt=dt, viscosity=viscosity * unit**2)
    batch = make_batch(frames[:1], frames[None, 1:])
    answer = frames[None, :1] if still else frames[None, 1:]
    return float(vorticity_transport(answer, batch, scales_of(spec, normalizer)))


def test_transport_vanishes_on_an_exact_flow_and_not_on_a_still_or_a_more_viscous_one() -> None:
    # In units of the cell the residual of a smooth flow falls as h^2 by itself, and by the order of
    # the stencils h^2 beyond that: its square by 2^-8.
    fine, coarse = transport_of(32, 0.05), transport_of(16, 0.05)
    assert fine < 1.5 * 2**-8 * coarse
    assert transport_of(32, 0.05, still=True) > 100 * fine
    assert transport_of(32, 0.2) > 100 * fine


def test_a_change_of_units_changes_no_term() -> None:
    assert math.isclose(transport_of(16, 0.05), transport_of(16, 0.05, unit=1000.0), rel_tol=1e-6)


def test_transport_takes_the_viscosity_of_each_sample_and_pairs_of_frames() -> None:
    grid = Grid.periodic((16, 32), dx=1 / 16, dy=1.5 / 16)
    spec = tiny_spec(grid=grid, dt=0.02)
    scales = scales_of(spec)
    times = 0.02 * torch.arange(3)
    flows = [taylor_green(grid, times, nu)[:2] for nu in (0.05, 0.01)]
    frames = torch.stack([NORMALIZER.apply(torch.stack(flow, dim=1)) for flow in flows])
    batch = make_batch(frames[:, 0], frames[:, 1:])
    right = spec.encode_parameters({"Re": torch.tensor([20.0, 100.0])}).double()
    found, wrong = (
        vorticity_transport(frames[:, 1:], replace(batch, parameters=p), scales)
        for p in (right, right.flip(0))
    )
    assert found < 0.02 * wrong
    first = vorticity_transport(frames[:, 1:2], replace(batch, parameters=right), scales)
    last = make_batch(frames[:, 1], frames[:, 2:])
    second = vorticity_transport(frames[:, 2:], replace(last, parameters=right), scales)
    torch.testing.assert_close(found, (first + second) / 2)


def test_transport_is_off_unless_asked_for() -> None:
    scales, batch = scales_of(), random_batch()
    model = make_model(scales)
    loss, logs = pde_residual(scales, WEIGHTS, weight=0.3)(model, batch)
    more, both = pde_residual(scales, WEIGHTS, weight=0.3, transport=True)(model, batch)
    assert "transport" not in logs
    torch.testing.assert_close(more, loss + 0.3 * both["transport"])


def test_with_weight_zero_a_pointwise_mlp_is_trained_as_any_model() -> None:
    scales, batch = scales_of(), random_batch()
    model = make_model(scales)
    loss, logs = pde_residual(scales, WEIGHTS, weight=0.0)(model, batch)
    plain, expected = supervised(scales, WEIGHTS)(model, batch)
    assert torch.equal(loss, plain) and set(logs) == set(expected)


def test_a_rollout_is_that_of_the_supervised_loss() -> None:
    scales = scales_of()
    model, rollout = make_model(scales).train(), RolloutConfig(steps=2, noise=0.1)
    batch = make_batch(draw(3, 2, *SHAPE), draw(3, 2, 2, *SHAPE, seed=5))
    loss, logs = pde_residual(scales, WEIGHTS, rollout, weight=0.3)(model, batch)
    plain, _ = supervised(scales, WEIGHTS, rollout)(model, batch)
    torch.testing.assert_close(loss, plain + 0.3 * logs["continuity"])


@pytest.mark.parametrize("transport", [False, True])
def test_gradients_of_parts_weighted_by_their_samples_are_those_of_the_whole(
    transport: bool,
) -> None:
    scales, batch = scales_of(), random_batch(unknown=0.05)
    model = make_model(scales)
    objective = pde_residual(scales, WEIGHTS, weight=0.7, transport=transport)
    objective(model, batch)[0].backward()
    whole = [p.grad.clone() for p in model.parameters()]
    assert all(g.abs().sum() > 0 and g.isfinite().all() for g in whole)
    model.zero_grad()
    for part in (slice(0, 1), slice(1, 4)):
        piece = batch.map(itemgetter(part))
        (objective(model, piece)[0] * len(piece) / 4).backward()
    for a, b in zip(whole, [p.grad for p in model.parameters()], strict=True):
        torch.testing.assert_close(a, b)


def test_the_residual_drives_the_divergence_down() -> None:
    scales = scales_of()
    batch = random_batch(unknown=0.0)
    ends = []
    for weight in (0.0, 30.0):
        torch.manual_seed(0)
        model = make_model(scales, drawn=False)
        objective = pde_residual(scales, LossWeights(), weight=weight)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(40):
            optimizer.zero_grad()
            objective(model, batch)[0].backward()
            optimizer.step()
        ends.append(float(losses.divergence(model(batch.x), scales).detach()))
    assert ends[1] < 0.5 * ends[0]


def test_what_cannot_have_a_residual_is_named() -> None:
    scales, batch = scales_of(), random_batch()
    with pytest.raises(ValueError, match="weight of the PDE residual.*found -1"):
        pde_residual(scales, WEIGHTS, weight=-1.0)
    heat = LossScales.from_training(
        FieldSpec(channels=("u",), family="heat"), Normalizer.identity(1)
    )
    with pytest.raises(ValueError, match=r"found channels \['u'\] of family 'heat'"):
        pde_residual(heat, LossWeights(), weight=1.0)
    timeless = scales_of(tiny_spec(SHAPE, dt=None))
    with pytest.raises(ValueError, match="time between frames.*found dt=None"):
        pde_residual(timeless, WEIGHTS, weight=1.0, transport=True)
    other = tiny_model(spec=tiny_spec(SHAPE)).double()
    with pytest.raises(ValueError, match="total derivatives.*found PIBERT"):
        pde_residual(scales, WEIGHTS, weight=1.0)(other, batch)
