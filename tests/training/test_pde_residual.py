"""The objective of the amortised PINN: exact flows, units, unknown points, parts of a batch."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.fields import Batch, FieldSpec, Grid, Normalizer
from pibert.models.baselines.pinn import PINN, PINNConfig
from pibert.training import losses
from pibert.training.losses import LossScales, LossWeights
from pibert.training.objectives import supervised
from pibert.training.pde_residual import pde_residual, vorticity_transport
from tests.helpers import randomise, tiny_spec
from tests.training.setups import assert_pieces_add_up, batch_of, draw
from validation.solutions import taylor_green

WEIGHTS = LossWeights(reg=0.5, div=0.1, bnd=0.2)
SHAPE = (9, 13)
NORMALIZER = Normalizer((0.3, -0.1), (0.5, 2.0))


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
    return batch_of(x, y, mask, target_mask)


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


@pytest.mark.parametrize("transport", [False, True])
def test_pieces_of_a_batch_add_up_to_the_whole(transport: bool) -> None:
    scales = scales_of()
    objective = pde_residual(scales, WEIGHTS, weight=0.7, transport=transport)
    assert_pieces_add_up(objective, make_model(scales), random_batch(unknown=0.05), (1,))
