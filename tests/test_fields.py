"""The vocabulary checks what it is given and survives a trip through JSON."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pibert.fields import (
    PARAMETER_WIDTH,
    Boundary,
    FieldSpec,
    Grid,
    Normalizer,
    Parameter,
    Sides,
    Trajectory,
)
from tests.data.helpers import Lazy
from tests.helpers import refused


def through_json(data: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(data, allow_nan=False))


def full_spec() -> FieldSpec:
    """A spec in which nothing keeps its default."""
    body = torch.zeros(5, 7, dtype=torch.bool)
    body[2, 3:5] = True
    sides = Sides(Boundary.INFLOW, Boundary.OUTFLOW, Boundary.WALL, Boundary.SLIP)
    return FieldSpec(
        channels=("u", "v", "p"),
        units=("m/s", "m/s", "Pa"),
        parameters=(
            Parameter(
                name="reynolds", scaling="log", mean=3.0, std=0.5, lowest=100.0, highest=9000.0
            ),
            Parameter(name="angle", mean=10.0, std=5.0),
            Parameter(name="gap"),
        ),
        dt=0.0025,
        grid=Grid((5, 7), 0.1, 0.3, sides, body, (-1.0, 2.5)),
        family="incompressible",
        reference_velocity=0.2,
        reference_length=0.02,
        viscosity=1e-6,
    )


# Grid


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Grid((0, 4)), ("(y, x)", (0, 4))),
        (lambda: Grid((4, 4), dx=0.0), ("dx", 0.0)),
        (lambda: Grid((4, 4), sides=Sides(left=Boundary.PERIODIC)), ("left", "right", "periodic")),
        (lambda: Grid((4, 6), body=torch.zeros(6, 4).bool()), ((4, 6), (6, 4))),
        (lambda: Parameter(name="re", lowest=3.0, highest=2.0), ("'re'", 3.0, 2.0)),
        (
            lambda: Parameter(name="re", scaling="log").standardise(torch.tensor([5.0, -2.0])),
            ("'re'", "positive", -2),
        ),
        (lambda: FieldSpec(channels=("u", "u")), ("channel", ("u", "u"))),
        (lambda: FieldSpec(parameters=(Parameter(name="a"),) * 2), ("parameter", ("a", "a"))),
        (lambda: FieldSpec(parameters=tuple(Parameter(name=f"p{i}") for i in range(17))), (17,)),
        (lambda: full_spec().encode_parameters({"mach": 0.3}), ("['mach']", "'reynolds', 'angle'")),
        (lambda: Normalizer((0.0,), (1.0, 1.0)), ("1 and 2",)),
        (lambda: Normalizer.identity(2).invert(torch.zeros(3, 4, 4)), ("2 channels", 3)),
    ],
)
def test_invalid_values_are_refused_and_named(
    make: Callable[[], object], named: tuple[object, ...]
) -> None:
    with refused(*named):
        make()


def test_coordinates_follow_rows_for_y_and_columns_for_x() -> None:
    x, y = Grid((3, 5), dx=0.5, dy=2.0, origin=(10.0, -1.0)).coordinates(torch.float64)
    assert x.shape == y.shape == (3, 5)
    assert x.dtype == torch.float64
    assert x[1].tolist() == [10.0, 10.5, 11.0, 11.5, 12.0]
    assert y[:, 2].tolist() == [-1.0, 1.0, 3.0]
    assert (x == x[0]).all() and (y == y[:, :1]).all()


def test_periodicity_is_a_property_of_each_axis() -> None:
    box = Grid.periodic((4, 6), dx=0.1, dy=0.2)
    assert (box.periodic_x, box.periodic_y) == (True, True)
    assert (box.shape, box.dx, box.dy) == ((4, 6), 0.1, 0.2)
    channel = Grid((4, 6), sides=Sides(*[Boundary.PERIODIC] * 2, *[Boundary.WALL] * 2))
    assert (channel.periodic_x, channel.periodic_y) == (True, False)
    assert not Grid((4, 6)).periodic_x


@settings(max_examples=30, deadline=None)
@given(ny=st.integers(1, 9), nx=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_body_of_any_size_survives_json(ny: int, nx: int, seed: int) -> None:
    body = torch.rand(ny, nx, generator=torch.Generator().manual_seed(seed)) < 0.5
    back = Grid.from_dict(through_json(Grid((ny, nx), body=body).to_dict()))
    assert back.body is not None
    assert back.body.dtype == torch.bool
    assert torch.equal(back.body, body)


def test_grids_are_equal_by_value_with_their_bodies() -> None:
    body = torch.eye(4, dtype=torch.bool)
    assert Grid((4, 4), body=body) == Grid((4, 4), body=body.clone())
    assert Grid((4, 4), body=body) != Grid((4, 4), body=~body)
    assert Grid((4, 4), body=body) != Grid((4, 4))
    assert Grid((4, 4)) != Grid((4, 4), dx=2.0)
    assert Grid((4, 4)) != "grid"


# Parameter


def test_parameters_are_standardised_and_restored() -> None:
    reynolds = Parameter(name="re", scaling="log", mean=3.0, std=0.5)
    values = torch.tensor([100.0, 1000.0, 10000.0])
    scaled = reynolds.standardise(values)
    torch.testing.assert_close(scaled, torch.tensor([-2.0, 0.0, 2.0]))
    torch.testing.assert_close(reynolds.restore(scaled), values)
    angle = Parameter(name="angle", mean=10.0, std=4.0)
    scaled = angle.standardise(torch.tensor([2.0, -18.0]))
    assert scaled.tolist() == [-2.0, -7.0] and angle.restore(scaled).tolist() == [2.0, -18.0]


# FieldSpec


@pytest.mark.parametrize("spec", [FieldSpec(), full_spec()], ids=["default", "full"])
def test_a_spec_survives_json(spec: FieldSpec) -> None:
    back = FieldSpec.from_dict(through_json(spec.to_dict()))
    assert back == spec
    assert back.to_dict() == spec.to_dict()
    assert isinstance(back.channels, tuple) and isinstance(back.grid.shape, tuple)


def test_parameters_are_encoded_in_the_order_of_the_spec() -> None:
    values: dict[str, float | torch.Tensor] = {
        "gap": 4.0,
        "angle": 20.0,
        "reynolds": torch.tensor([100.0, 10000.0]),
    }
    vector = full_spec().encode_parameters(values)
    assert vector.shape == (2, PARAMETER_WIDTH)
    torch.testing.assert_close(vector[:, :3], torch.tensor([[-2.0, 2.0, 4.0], [2.0, 2.0, 4.0]]))
    assert (vector[:, 3:] == 0).all()
    absent = full_spec().encode_parameters({"angle": 10.0})[0]  # what is not given is unknown
    assert (
        absent[0].isnan()
        and absent[2].isnan()
        and not absent[[1, *range(3, PARAMETER_WIDTH)]].any()
    )


# Normalizer


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)], ids=["field", "batch", "batch and time"])
def test_normalisation_works_per_channel_and_inverts(lead: tuple[int, ...]) -> None:
    normalizer = Normalizer((1.0, -2.0), (0.5, 4.0))
    x = torch.randn(*lead, 2, 3, 5, dtype=torch.float64)
    z = normalizer.apply(x)
    assert z.dtype == torch.float64
    torch.testing.assert_close(z[..., 0, :, :], (x[..., 0, :, :] - 1.0) / 0.5)
    torch.testing.assert_close(z[..., 1, :, :], (x[..., 1, :, :] + 2.0) / 4.0)
    torch.testing.assert_close(normalizer.invert(z), x)


def test_shapes_are_checked_while_the_tests_run() -> None:
    with pytest.raises(TypeError, match="Type-check error"):
        Normalizer.identity(2).apply(torch.zeros(2, 4))


# Trajectories


def make_trajectory(**changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "name": "a",
        "states": torch.arange(4 * 2 * 3 * 5.0).reshape(4, 2, 3, 5),
        "time": torch.arange(4.0),
        "spec": FieldSpec(grid=Grid((3, 5)), parameters=(Parameter(name="Re"),)),
    }
    return Trajectory(**(fields | changes))


def test_a_trajectory_reads_the_same_from_memory_and_from_a_source() -> None:
    body = torch.rand(4, 3, 5, generator=torch.Generator().manual_seed(0)) > 0.5
    valid = body.roll(1, 2)
    memory = make_trajectory(body=body, valid=valid)
    assert isinstance(memory.states, Tensor)
    lazy = make_trajectory(states=Lazy(memory.states), body=Lazy(body), valid=Lazy(valid))
    for frames in (slice(None), slice(1, 4, 2), slice(-1, None)):
        assert torch.equal(lazy.read(frames, [1]), memory.states[frames, 1:])
        assert torch.equal(lazy.known(frames), (~body & valid)[frames])
        assert torch.equal(memory.known(frames), lazy.known(frames))
    loaded = lazy.load()
    assert isinstance(loaded.states, Tensor) and isinstance(loaded.body, Tensor)
    assert torch.equal(loaded.states, memory.states)
    assert torch.equal(loaded.known(), lazy.known())


def test_a_static_body_is_the_one_of_the_grid() -> None:
    body = torch.zeros(3, 5, dtype=torch.bool)
    body[1, 2:4] = True
    with_body = FieldSpec(grid=Grid((3, 5), body=body))
    for trajectory in (make_trajectory(body=body), make_trajectory(spec=with_body)):
        assert isinstance(trajectory.body, Tensor) and trajectory.spec.grid.body is not None
        assert torch.equal(trajectory.body, body) and torch.equal(trajectory.spec.grid.body, body)
        assert torch.equal(trajectory.known(), ~body.expand(4, 3, 5))
    with refused("body", "grid"):
        make_trajectory(spec=with_body, body=~body)
    with refused("body", "grid"):
        make_trajectory(spec=with_body, body=body.expand(4, 3, 5))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"states": Lazy(torch.zeros(4, 3, 3, 5))}, ((4, 2, 3, 5), (4, 3, 3, 5))),
        ({"time": torch.tensor([0.0, 1.0, 1.0, 2.0])}, ("time",)),
        ({"body": Lazy(torch.ones(3, 3, 5))}, ("body", (3, 5), (4, 3, 5))),
        ({"parameters": {"Ma": 0.1}}, ("Ma", "Re")),
        ({"parameters": {"Re": math.inf}}, ("Re", "inf")),
    ],
)
def test_a_wrong_trajectory_is_named(changes: dict[str, Any], named: tuple[object, ...]) -> None:
    with refused("'a'", *named):
        make_trajectory(**changes)


@pytest.mark.parametrize(
    ("channels", "family", "places"),
    [
        (("u", "v"), "incompressible", (0, 1)),
        (("p", "v", "u"), "incompressible-momentum", (2, 1)),
        (("rho", "u", "v", "p"), "euler", (1, 2)),
        (("u", "v"), None, (0, 1)),
        (("u", "v"), "gray-scott", None),
        (("u", "p"), None, None),
    ],
)
def test_the_family_names_the_velocity(channels, family, places):
    assert FieldSpec(channels=channels, family=family).velocity == places
