"""Bodies on springs move by Newton's law under the predicted force."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from pibert.fields import FieldSpec, Grid, MovingBody, Normalizer, Parameter, Spring
from pibert.models import build_model
from pibert.models.bodies import BodyDistance
from pibert.models.motion import EquationOfMotion, advance
from tests.helpers import TINY_OPTIONS, refused, tiny_model

STATE = ("displacement", "velocity", "lift")
REFERENCES = ("persistence", "training-mean", "linear-extrapolation", "mean-advection", "dmd")
TRAINED = [name for name in TINY_OPTIONS if name not in (*REFERENCES, "neuraloperator")]
NORMALIZER = Normalizer((1.0, 0.05, -0.02, 0.1), (0.5, 0.3, 0.4, 0.8))


def sprung(*, unit: float = 1.0, **changes: object) -> FieldSpec:
    """A body of mass ratio 2 to 8 on springs of U* 4 to 8; a field, and its state."""
    parameters = (
        Parameter(name="Re", scaling="log", mean=2.0, std=0.2),
        Parameter(name="mass_ratio", mean=5.0, std=2.0),
        Parameter(name="reduced_velocity", mean=6.0, std=1.5),
    )
    body = MovingBody(radius=0.5 * unit, unit=unit, spring=Spring(damping_ratio=0.05))
    known: dict[str, object] = {
        "channels": ("u", *STATE),
        "state": STATE,
        "grid": Grid((16, 24), dx=0.25 * unit, dy=0.25 * unit, origin=(-2.0 * unit, -2.0 * unit)),
        "parameters": parameters,
        "dt": 0.7,
        "reference_velocity": 1.0,
        "reference_length": unit,
        "bodies": (body,),
    }
    return FieldSpec(**(known | changes))  # type: ignore[arg-type]


def frames_of(state: Tensor, spec: FieldSpec) -> Tensor:
    """Standardised frames (b, c, y, x) with this physical state (b, 3)."""
    fields = torch.ones(len(state), 1, *spec.grid.shape, dtype=state.dtype)
    uniform = state[..., None, None].expand(-1, -1, *spec.grid.shape)
    return NORMALIZER.apply(torch.cat((fields, uniform), 1))


@pytest.mark.parametrize("damping", [0.0, 0.05, 0.7])
@pytest.mark.parametrize("interval", [0.1, 0.7, 3.0])
def test_the_step_solves_the_equation_of_motion(damping: float, interval: float) -> None:
    mass, omega, start = 1.6, 1.3, (0.3, -0.4)
    course = (0.5, -0.8, 0.3, -0.6)

    def rate(t: float, state: np.ndarray) -> list[float]:
        s = t / interval
        force = (1 - s) * course[0] + s * course[1]
        force += 4 * s * (1 - s) * (course[2] + (1 - 2 * s) * course[3])
        push = force / (2 * mass)
        return [state[1], push - 2 * damping * omega * state[1] - omega**2 * state[0]]

    wanted = solve_ivp(rate, (0, interval), start, rtol=1e-11, atol=1e-13).y[:, -1]
    one = torch.ones(1, dtype=torch.float64)
    y, v = advance(
        start[0] * one,
        start[1] * one,
        (course[0] * one, course[1] * one, course[2] * one, course[3] * one),
        mass * one,
        omega * one,
        damping,
        interval * one,
    )
    assert (float(y), float(v)) == pytest.approx(wanted.tolist(), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", ["pibert-mr", "pibert", "unet"])
def test_an_untrained_model_moves_bodies_under_a_constant_force(name: str) -> None:
    """Each sample on its own spring; the other channels persist."""
    spec = sprung(grid=Grid((32, 32), dx=0.25, dy=0.25))
    model = build_model(name, spec=spec).eval()
    state = torch.tensor([[0.2, 0.1, 0.5], [-0.3, 0.0, -0.2]])
    x = frames_of(state, spec)
    model.calibrate(x, NORMALIZER)
    numbers = {"mass_ratio": torch.tensor([2.0, 8.0]), "reduced_velocity": torch.tensor([4.0, 7.5])}
    parameters = spec.encode_parameters({"Re": 100.0, **numbers})
    with torch.no_grad():
        y = NORMALIZER.invert(model(x, parameters=parameters))
    torch.testing.assert_close(y[:, [0, 3]], NORMALIZER.invert(x)[:, [0, 3]], atol=1e-5, rtol=1e-5)
    force, zero = state[:, 2], torch.zeros(2)
    mass, omega = 0.25 * math.pi * numbers["mass_ratio"], 2 * math.pi / numbers["reduced_velocity"]
    course = (force, force, zero, zero)
    wanted = advance(state[:, 0], state[:, 1], course, mass, omega, 0.05, torch.full((2,), 0.7))
    torch.testing.assert_close(y[:, 1:3, 5, 7], torch.stack(wanted, 1), atol=1e-5, rtol=1e-4)


def test_frames_in_si_units_move_alike() -> None:
    """U follows from the Reynolds number; D is 0.02 m."""
    viscosity, reynolds = 1e-6, 150.0
    speed = reynolds * viscosity / 0.02
    plain = sprung()
    metres = sprung(unit=0.02, dt=0.7 * 0.02 / speed, reference_velocity=None, viscosity=viscosity)
    state = torch.tensor([[0.2, 0.1, 0.5]], dtype=torch.float64)
    last, ahead = frames_of(state, plain), frames_of(state + 0.3, plain)[:, None]
    encoded = plain.encode_parameters({"Re": reynolds, "mass_ratio": 3.0, "reduced_velocity": 5.0})
    found = []
    for spec in (plain, metres):
        motion = EquationOfMotion(spec)
        motion.set_normalizer(NORMALIZER)
        found.append(motion(ahead, last, encoded.double()))
    assert not torch.equal(found[0][:, :, 1:3], ahead[:, :, 1:3])
    torch.testing.assert_close(found[0], found[1], atol=1e-9, rtol=1e-6)


def test_two_frames_at_once_are_two_steps() -> None:
    spec = sprung()
    motion = EquationOfMotion(spec)
    motion.set_normalizer(NORMALIZER)
    last = frames_of(torch.tensor([[0.2, 0.1, 0.5]], dtype=torch.float64), spec)
    # No bends: displacement and velocity of the predictions are those of the last frame.
    ahead = last[:, None].repeat(1, 2, 1, 1, 1)
    ahead[:, 0, 3], ahead[:, 1, 3] = 0.4, -0.9
    encoded = spec.encode_parameters({"Re": 90.0, "mass_ratio": 3.0, "reduced_velocity": 5.0})
    both = motion(ahead, last, encoded.double())
    first = motion(ahead[:, :1], last, encoded.double())
    second = first[:, 0].clone()
    second[:, 3] = -0.9
    unbent = first[:, 0].clone()[:, None]
    unbent[:, :, 3] = -0.9
    again = motion(unbent, first[:, 0], encoded.double())
    torch.testing.assert_close(both[:, 0], first[:, 0])
    torch.testing.assert_close(both[:, 1], again[:, 0])


def test_a_bend_of_the_force_moves_the_body() -> None:
    """The gradients reach what the model predicts, and a heavier body moves less."""
    spec = sprung()
    motion = EquationOfMotion(spec)
    last = torch.zeros(2, 4, *spec.grid.shape)
    ahead = torch.zeros(2, 1, 4, *spec.grid.shape)
    ahead[:, :, 1:3] = 1.0
    ahead.requires_grad_()
    heavy = torch.tensor([2.0, 8.0])
    encoded = spec.encode_parameters({"Re": 90.0, "mass_ratio": heavy, "reduced_velocity": 5.0})
    moved = motion(ahead, last, encoded)[:, 0, 1, 0, 0]
    assert float((moved[0] / moved[1]).detach()) == pytest.approx(4.0, rel=1e-3)
    moved.sum().backward()
    assert ahead.grad is not None and bool((ahead.grad[:, 0, 1:, 0, 0] != 0).all())


def test_the_misfit_tells_wrong_forces() -> None:
    """A body under a recorded force that is linear in time, and the same force in other units."""
    spec = sprung(dt=0.2)
    motion = EquationOfMotion(spec)
    motion.set_normalizer(NORMALIZER)
    rng = torch.Generator().manual_seed(0)
    before = 0.3 * torch.randn(50, 3, generator=rng, dtype=torch.float64)
    force = before[:, 2] + 0.1 * torch.randn(50, generator=rng, dtype=torch.float64)
    encoded = spec.encode_parameters(
        {"Re": 90.0, "mass_ratio": 2.0 + torch.arange(50.0) / 10, "reduced_velocity": 5.0}
    ).double()
    mass = 0.25 * math.pi * (2.0 + torch.arange(50.0, dtype=torch.float64) / 10)
    same = torch.ones_like(mass)
    course = (before[:, 2], force, 0 * same, 0 * same)
    omega = 2 * math.pi / 5 * same
    moved = advance(before[:, 0], before[:, 1], course, mass, omega, 0.05, 0.2 * same)
    after = torch.stack((*moved, force), 1)
    assert motion.misfit(frames_of(before, spec), frames_of(after, spec), encoded) < 1e-5
    newtons = torch.tensor([1.0, 1.0, 100.0], dtype=torch.float64)
    wrong, then = (frames_of(newtons * state, spec) for state in (before, after))
    assert motion.misfit(wrong, then, encoded) > 0.5


def test_what_the_law_needs_is_named() -> None:
    spec = sprung()
    with refused("mass_ratio", "spring"):
        EquationOfMotion(sprung(parameters=spec.parameters[:1]))
    with refused("dt"):
        EquationOfMotion(sprung(dt=None))
    with refused("viscosity"):
        EquationOfMotion(sprung(reference_velocity=None))
    model = build_model("unet", spec=spec).eval()
    x = torch.zeros(1, 4, *spec.grid.shape)
    with refused("mass_ratio", "--parameter"):
        model(x)
    with refused("reduced_velocity"):
        model(x, parameters=spec.encode_parameters({"Re": 100.0, "mass_ratio": 2.0}))
    with refused("diameters", "1.0", "0.7"):
        MovingBody(radius=0.5, unit=0.7, spring=Spring())
    with refused("damping ratio", "1.5"):
        Spring(damping_ratio=1.5)


@pytest.mark.parametrize("name", TRAINED)
def test_every_model_runs_with_a_body_on_a_spring(name: str) -> None:
    grid = Grid((16, 16), dx=0.25, dy=0.25, origin=(-2.0, -2.0))
    channels = ("u", "v", *STATE)
    spec = sprung(channels=channels, grid=grid, family="incompressible")
    model = tiny_model(name, spec).eval()
    x = torch.randn(2, model.config.history * 5, 16, 16, generator=torch.Generator().manual_seed(0))
    x[:, -3:] = x[:, -3:, :1, :1]
    given = spec.encode_parameters({"Re": 90.0, "mass_ratio": 2.0, "reduced_velocity": 5.0})
    mask = ~spec.bodies[0].inside(grid, torch.tensor([0.1, -0.2]))
    with torch.no_grad():
        y = model(x, parameters=given.expand(2, -1), mask=mask)
    assert y.shape == (2, 5, 16, 16) and bool(y.isfinite().all())
    torch.testing.assert_close(y[:, 2:], y[:, 2:, :1, :1].expand_as(y[:, 2:]))


def test_distances_resolve_the_surface_between_points() -> None:
    """In diameters and in pairs of cells, of a standardised displacement."""
    grid = Grid((16, 24), dx=0.25, dy=0.25, origin=(-2.0, -2.0))
    spec = sprung(grid=grid)
    distance = BodyDistance(spec)
    distance.set_normalizer(NORMALIZER)
    frame = frames_of(torch.tensor([[0.3, 0.0, 0.0], [-0.17, 0.0, 0.0]]), spec)
    found = distance(frame)
    column, row = 8, 15  # x = 0, y = 1.75
    for sample, y in enumerate((0.3, -0.17)):
        above = 1.75 - y - 0.5
        assert float(found[sample, 0, row, column]) == pytest.approx(min(above, 1.0), abs=1e-5)
        assert float(found[sample, 1, row, column]) == 1.0
        edge = 0.75 - y - 0.5  # the row at 0.75
        assert float(found[sample, 1, 11, column]) == pytest.approx(min(edge / 0.5, 1), abs=1e-5)
        inside = spec.bodies[0].inside(grid, torch.tensor(y))
        assert torch.equal(found[sample, 0] < 0, inside)


def test_without_the_force_the_motion_is_learned() -> None:
    spec = sprung(channels=("u", "displacement"), state=("displacement",))
    assert build_model("unet", spec=spec).motion is None
