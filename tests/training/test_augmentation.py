"""Augmentation: equivariance of the physics, exact solutions, unknown points, what is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pibert.fields import Batch, Boundary, FieldSpec, Grid, Normalizer, Sides
from pibert.physics import derivatives, find_family
from pibert.training.augmentation import Augmentation, allowed, augmented, augmenter
from tests.helpers import refused
from tests.physics import exact
from tests.training.setups import batch_of, draw

WALLS = Sides(Boundary.PERIODIC, Boundary.PERIODIC, Boundary.WALL, Boundary.WALL)
CHANNEL = Sides(Boundary.INFLOW, Boundary.OUTFLOW, Boundary.WALL, Boundary.WALL)
BOX = Grid.periodic((6, 9), dx=0.5, dy=0.2)
SQUARE = Grid.periodic((8, 8), dx=0.25, dy=0.25)
CHANNELS = ("p", "v", "u", "omega")
NORMALIZER = Normalizer((5.0, -0.4, 0.7, 0.3), (2.0, 0.3, 1.5, 4.0))
EACH = [("reflect_x", BOX), ("reflect_y", BOX), ("rotate", SQUARE)]


def make_batch(physical: Tensor, normalizer: Normalizer, known: Tensor | None = None) -> Batch:
    """Two frames in and the rest to predict, of physical fields (b, t, c, y, x)."""
    b, t, _, ny, nx = physical.shape
    known = torch.ones(b, t, ny, nx, dtype=torch.bool) if known is None else known
    z = torch.where(known[:, :, None], normalizer.apply(physical), 0.0)
    mask = known[:, :2].all(1)
    return batch_of(z[:, :2].flatten(1, 2), z[:, 2:], mask, known[:, 2:])


def physical(batch: Batch, normalizer: Normalizer) -> Tensor:
    x = batch.x.unflatten(1, (2, -1))
    return normalizer.invert(torch.cat((x, batch.y), 1))


def only(name: str, value: Any = True) -> Augmentation:
    return Augmentation(**{name: value})


def setting(name: str, grid: Grid) -> tuple[FieldSpec, Callable[[Batch], Batch]]:
    spec = FieldSpec(family="incompressible", channels=CHANNELS, grid=grid)
    return spec, augmenter(only(name), spec, NORMALIZER)


def reversed_points(name: str, field: Tensor) -> tuple[Tensor, ...]:
    """What may become of a scalar field; the first stands for a sample that was not drawn."""
    if name == "rotate":
        turns = [field]
        for _ in range(3):  # the value at (row, column) goes to (column, n - 1 - row)
            turns.append(turns[-1].flip(-2).mT)
        return tuple(turns)
    return field, field.flip(-1 if name == "reflect_x" else -2)


# Equivariance


@pytest.mark.parametrize(("name", "grid"), EACH)
def test_divergence_and_vorticity_move_with_the_points(name: str, grid: Grid) -> None:
    fields = draw(40, 3, 4, *grid.shape)
    _, change = setting(name, grid)
    after = physical(change(make_batch(fields, NORMALIZER)), NORMALIZER)
    sign = 1 if name == "rotate" else -1
    for operator, factor in ((derivatives.divergence, 1), (derivatives.vorticity, sign)):
        before = operator(fields[:, :, 2], fields[:, :, 1], grid)
        choices = reversed_points(name, before)
        found = operator(after[:, :, 2], after[:, :, 1], grid)
        counts = [0] * len(choices)
        for sample in range(40):
            fits = [
                torch.allclose(found[sample], (factor if k else 1) * choice[sample])
                for k, choice in enumerate(choices)
            ]
            assert fits.count(True) == 1
            counts[fits.index(True)] += 1
        # Each choice is drawn for its share of the samples.
        assert min(counts) > 40 / len(choices) / 2


@pytest.mark.parametrize(("name", "grid"), EACH)
def test_scalars_keep_their_value_and_vorticity_its_sense(name: str, grid: Grid) -> None:
    fields = draw(12, 3, 4, *grid.shape)
    fields[:, :, 3] = derivatives.vorticity(fields[:, :, 2], fields[:, :, 1], grid)
    _, change = setting(name, grid)
    after = physical(change(make_batch(fields, NORMALIZER)), NORMALIZER)
    assert not torch.allclose(after, fields)
    expected = derivatives.vorticity(after[:, :, 2], after[:, :, 1], grid)
    torch.testing.assert_close(after[:, :, 3], expected)
    choices = reversed_points(name, fields[:, :, 0])
    for sample in range(12):
        assert any(torch.allclose(after[sample, :, 0], choice[sample]) for choice in choices)


@pytest.mark.parametrize("name", ["reflect_x", "reflect_y", "rotate"])
def test_an_exact_solution_stays_one(name: str) -> None:
    grid = Grid.periodic((48, 48), dx=1 / 48, dy=1 / 48)
    times = torch.tensor([0.0, 0.01, 0.02], dtype=torch.float64)
    u, v, p = exact.taylor_green(grid, times, 0.05, modes=(1, 2), stream=(0.4, 0.2))
    fields = torch.stack((u, v, p), 1)[None].repeat(12, 1, 1, 1, 1)
    normalizer = Normalizer((0.4, 0.2, -0.1), (0.5, 0.9, 0.3))
    spec = FieldSpec(channels=("u", "v", "p"), grid=grid, family="incompressible-momentum")
    batch = make_batch(fields, normalizer)
    after = physical(augmenter(only(name), spec, normalizer)(batch), normalizer)
    assert not torch.allclose(after, fields)
    family = find_family("incompressible-momentum")

    def residual(states: Tensor) -> dict[str, Tensor]:
        named = {channel: states[:, -2:, i] for i, channel in enumerate(spec.channels)}
        found = family.residuals(named, grid, dt=0.01, order=4, viscosity=0.05)
        return {term: value.square().mean((1, 2, 3)).sqrt() for term, value in found.items()}

    for term, size in residual(fields).items():
        torch.testing.assert_close(residual(after)[term], size, rtol=1e-6, atol=1e-9)
    # Points moved without turning the arrows would be no solution.
    assert residual(fields.flip(-1))["momentum"].min() > 10 * residual(after)["momentum"].max()


# Unknown points, windows, draws


@pytest.mark.parametrize(("name", "grid"), EACH)
def test_unknown_points_stay_zero_and_move_along(name: str, grid: Grid) -> None:
    known = draw(16, 4, *grid.shape, seed=1) > -0.5
    batch = make_batch(draw(16, 4, 4, *grid.shape), NORMALIZER, known)
    after = setting(name, grid)[1](replace(batch, filled=~batch.mask))
    assert after.filled is not None and torch.equal(after.filled, ~after.mask)
    assert (after.x.masked_select(~after.mask[:, None]) == 0).all()
    assert (after.y.masked_select(~after.target_mask[:, :, None]) == 0).all()
    assert (after.x.masked_select(after.mask[:, None]) != 0).all()
    assert torch.equal(after.target_mask.sum((2, 3)), batch.target_mask.sum((2, 3)))
    assert not torch.equal(after.mask, batch.mask)


def test_the_augmentation_of_a_sample_does_not_depend_on_its_batch() -> None:
    batch = make_batch(draw(16, 3, 4, 8, 8), NORMALIZER)
    spec = FieldSpec(family="incompressible", channels=CHANNELS, grid=SQUARE)
    change = augmenter(Augmentation(reflect_x=True, rotate=True), spec, NORMALIZER)
    part = batch.map(lambda tensor: tensor[5:7])
    assert torch.equal(change(part).x, change(batch).x[5:7])
    other = change(batch.reseeded(0, 1))
    assert not torch.equal(other.x, change(batch.reseeded(0, 2)).x)


def test_an_objective_is_augmented_in_training_alone() -> None:
    spec, change = setting("reflect_y", BOX)
    batch = make_batch(draw(8, 3, 4, *BOX.shape), NORMALIZER)

    def first(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return batch.x.square().sum() + batch.x[:, :, 0].sum(), {}

    objective = augmented(first, only("reflect_y"), spec, NORMALIZER)
    model = nn.Identity()
    assert objective(model, batch)[0] == first(model, change(batch))[0]
    assert objective(model, batch)[0] != first(model, batch)[0]
    assert objective(model.eval(), batch)[0] == first(model, batch)[0]
    nothing = augmented(first, Augmentation(), spec, NORMALIZER)
    assert nothing(model.train(), batch)[0] == first(model, batch)[0]


# What is allowed


def body(*points: tuple[int, int], shape: tuple[int, int] = (6, 9)) -> Tensor:
    mask = torch.zeros(shape, dtype=torch.bool)
    for row, column in points:
        mask[row, column] = True
    return mask


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        (BOX, ("reflect_x", "reflect_y")),
        (SQUARE, ("reflect_x", "reflect_y", "rotate")),
        (Grid((8, 8), 0.25, 0.2, SQUARE.sides), ("reflect_x", "reflect_y")),
        (Grid((6, 9), sides=WALLS), ("reflect_x", "reflect_y")),
        (Grid((6, 9), sides=CHANNEL), ("reflect_y",)),
        (Grid((6, 9), sides=CHANNEL, body=body((2, 3), (3, 3))), ("reflect_y",)),
        (Grid((6, 9), sides=CHANNEL, body=body((2, 3))), ()),
        (Grid((6, 9), sides=WALLS, body=body((2, 4))), ("reflect_x",)),
        (Grid((6, 9)), ()),
        (Grid((6, 9), sides=Sides(*[Boundary.WALL] * 4)), ()),
    ],
)
def test_symmetries_of_a_configuration(grid: Grid, expected: tuple[str, ...]) -> None:
    spec = FieldSpec(family="incompressible", grid=grid)
    assert allowed(spec) == expected
    auto = Augmentation(reflect_x="auto", reflect_y="auto", rotate="auto")
    assert auto.chosen(spec) == expected
    # A force that no family has may single out a direction.
    assert allowed(replace(spec, family=None)) == ()


def flow(grid: Grid, **changes: Any) -> FieldSpec:
    return FieldSpec(family="incompressible", grid=grid, **changes)


@pytest.mark.parametrize(
    ("name", "spec", "reason"),
    [
        ("reflect_x", flow(Grid((6, 9), sides=CHANNEL)), "inflow and outflow"),
        ("reflect_y", flow(Grid((6, 9), sides=CHANNEL, body=body((2, 3)))), "body"),
        ("rotate", flow(Grid((8, 8), sides=WALLS)), "periodic"),
        ("rotate", flow(BOX), "6 x 9"),
        ("reflect_x", flow(BOX, channels=("p", "u")), "both components"),
    ],
)
def test_a_symmetry_that_the_grid_rules_out_is_refused(
    name: str, spec: FieldSpec, reason: str
) -> None:
    with refused(f"augmentation {name}", reason):
        only(name).chosen(spec)
    assert only(name, "auto").chosen(spec) == ()


def test_true_includes_symmetries_that_the_grid_leaves_open() -> None:
    for spec in (
        FieldSpec(family="incompressible", grid=Grid((6, 9))),
        FieldSpec(grid=BOX, family=None),
        FieldSpec(family="incompressible", grid=Grid((6, 9), sides=Sides(*[Boundary.WALL] * 4))),
    ):
        assert only("reflect_y").chosen(spec) == ("reflect_y",)
