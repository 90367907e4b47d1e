"""Mean advection of waves in a uniform flow, of polynomials, and by hand."""

import math

import torch
from torch import Tensor

from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.models.references.mean_advection import MeanAdvection
from pibert.models.references.simple import ReferenceConfig
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


def fit(states: Tensor, spec: FieldSpec = PERIODIC) -> MeanAdvection:
    model = MeanAdvection(ReferenceConfig(), spec).double()
    model.fit(batches_of(states, spec, NORMALIZER), NORMALIZER)
    return model


def test_a_shift_by_whole_cells_is_exact() -> None:
    flow = (2 * DX / DT, -DY / DT)
    waves = (2, 2)
    states = translating(flow, periods(flow, waves) + 1, waves)
    z = NORMALIZER.apply(states)
    assert torch.allclose(fit(states)(z[:1]), z[:1].roll((-1, 2), (2, 3)), atol=1e-9)


def still(flow: tuple[float, float], spec: FieldSpec) -> MeanAdvection:
    """Fitted on frames of one uniform flow."""
    states = torch.tensor(flow, dtype=torch.float64)[:, None, None].expand(2, *spec.grid.shape)
    return fit(states.expand(4, -1, -1, -1).contiguous(), spec)


def test_open_sides_do_not_wrap() -> None:
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


def test_cubic_polynomials_are_interpolated_exactly() -> None:
    spec = FieldSpec(grid=Grid((9, 11)), dt=1.0)
    model = MeanAdvection(ReferenceConfig(), spec).double()
    model.load_state_dict(model.state_dict() | {"fitted": torch.tensor(True)})
    generator = torch.Generator().manual_seed(0)
    fractions = torch.rand(2, 9, 11, generator=generator, dtype=torch.float64)
    model.departure.copy_(fractions * torch.tensor((10.0, 8.0))[:, None, None])

    def field(x: Tensor, y: Tensor) -> Tensor:
        x, y = x / 10, y / 8
        return (1 + x - y) ** 3 + x**3 * y**3

    x, y = spec.grid.coordinates(torch.float64)
    z = field(x, y).expand(1, 2, 9, 11).contiguous()
    assert torch.allclose(model(z)[0, 0], field(*model.departure), atol=1e-12)


def test_points_that_are_never_known_have_no_velocity_and_unknown_ones_no_fluctuation() -> None:
    spec = FieldSpec(grid=Grid((8, 10), dx=0.5, dy=0.2), dt=0.1)
    states = torch.tensor((10.0, 2.0), dtype=torch.float64)[:, None, None].repeat(4, 1, 8, 10)
    valid = torch.ones(8, 10, dtype=torch.bool)
    valid[3:5, 4:6] = False
    model = MeanAdvection(ReferenceConfig(), spec).double()
    model.fit(batches_of(states, spec, NORMALIZER, valid=valid), NORMALIZER)
    x, y = torch.arange(10.0), torch.arange(8.0)
    shift = torch.where(valid, 1.0, 0.0)
    assert torch.allclose(model.departure[0], (x - 2 * shift).double())
    assert torch.allclose(model.departure[1], (y[:, None] - shift).double())
    found = model(torch.randn(1, 2, 8, 10, dtype=torch.float64), mask=torch.zeros(8, 10))
    assert torch.equal(found, model.mean[None])
