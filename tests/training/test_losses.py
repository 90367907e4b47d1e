"""The paper's losses: values by hand and by brute force, units, masks, gradients."""

import math

import pytest
import torch
from torch import Tensor

from pibert.config import fingerprint, identity
from pibert.fields import Boundary, FieldSpec, Grid, Normalizer, Sides
from pibert.training import losses
from pibert.training.losses import LossScales, LossWeights
from tests.helpers import refused
from tests.training.setups import draw

ALL = LossWeights(reg=0.5, div=2.0, lap=3.0, bnd=0.7)


def plain_scales(grid: Grid) -> LossScales:
    """Standardised data of mean 0 and std 1: physical and standardised fields are the same."""
    return LossScales(
        spec=FieldSpec(family="incompressible", grid=grid),
        normalizer=Normalizer.identity(2),
        reference_velocity=1.0,
    )


def uneven_scales(grid: Grid, velocity: float = 1.0) -> LossScales:
    normalizer = Normalizer((0.3 * velocity, -0.1 * velocity), (0.5 * velocity, 2.0 * velocity))
    return LossScales.from_training(FieldSpec(family="incompressible", grid=grid), normalizer)


def polynomial_state(grid: Grid, scales: LossScales) -> Tensor:
    """A standardised state whose physical velocity is u = 3 x^2 + y, v = 2 y^2 - x y."""
    x, y = grid.coordinates(torch.float64)
    return scales.normalizer.apply(torch.stack((3 * x**2 + y, 2 * y**2 - x * y)))[None]


# Values


def test_derivative_terms_by_hand_on_unequal_spacing_and_a_non_square_grid() -> None:
    # Second-order stencils are exact for quadratics, at the sides too. By hand:
    # u_x + v_y = 6x + 4y - x = 5x + 4y, lap u = 6, lap v = 4; unit length h = sqrt(0.5 * 0.08).
    grid = Grid((5, 9), dx=0.5, dy=0.08, origin=(-1.0, 2.0))
    scales = uneven_scales(grid)
    state = polynomial_state(grid, scales)
    h, velocity = 0.2, math.sqrt((0.5**2 + 2.0**2) / 2)
    x, y = grid.coordinates(torch.float64)
    expected = ((5 * x + 4 * y) * h / velocity).square().mean()
    torch.testing.assert_close(losses.divergence(state, scales), expected)
    expected_lap = torch.tensor((6**2 + 4**2) * (h**2 / velocity) ** 2, dtype=torch.float64)
    torch.testing.assert_close(losses.laplacian(state, scales), expected_lap)


@pytest.mark.parametrize("body", [False, True], ids=["no body", "body"])
def test_the_choice_of_units_changes_no_term(body: bool) -> None:
    solid = torch.zeros(7, 10, dtype=torch.bool)
    solid[3, 4:6] = True
    z, target = draw(2, 2, 7, 10), draw(2, 2, 7, 10, seed=1)

    def logs(velocity: float, length: float) -> dict[str, Tensor]:
        grid = Grid((7, 10), 0.3 * length, 0.2 * length, body=solid if body else None)
        scales = uneven_scales(grid, velocity)
        return losses.total_loss(z, target, weights=ALL, scales=scales)[1]

    si, mm = logs(1.0, 1.0), logs(1000.0, 0.001)
    assert set(si) == {"loss", "reconstruction", "divergence", "laplacian", "boundary"}
    for name in si:
        torch.testing.assert_close(mm[name], si[name], msg=name)


# Boundary


def test_the_default_boundary_is_the_border_and_the_rim_of_the_body() -> None:
    body = torch.zeros(6, 7, dtype=torch.bool)
    body[2:4, 3] = True
    picture = """
        #######
        #..#..#
        #.#.#.#
        #.#.#.#
        #..#..#
        #######
    """.split()
    expected = torch.tensor([[point == "#" for point in row] for row in picture])
    assert torch.equal(losses.boundary_mask(Grid((6, 7), body=body)), expected)


def test_periodic_sides_have_no_border_and_the_rim_of_a_body_wraps() -> None:
    sides = Sides(Boundary.PERIODIC, Boundary.PERIODIC, Boundary.WALL, Boundary.WALL)
    body = torch.zeros(5, 4, dtype=torch.bool)
    body[2, 0] = True
    mask = losses.boundary_mask(Grid((5, 4), sides=sides, body=body))
    assert mask.int().tolist() == [
        [1, 1, 1, 1],
        [1, 0, 0, 0],
        [0, 1, 0, 1],
        [1, 0, 0, 0],
        [1, 1, 1, 1],
    ]
    assert not losses.boundary_mask(Grid.periodic((5, 4))).any()


# Unknown points


def test_unknown_points_count_in_no_term_whatever_they_hold() -> None:
    grid = Grid((7, 9), dx=0.5, dy=0.2)
    scales = uneven_scales(grid)
    z, target = draw(2, 2, 7, 9), draw(2, 2, 7, 9, seed=1)
    known = torch.ones(2, 7, 9, dtype=torch.bool)
    known[0, 3, 4] = False
    known[1, 0, 0] = False
    one, _ = losses.total_loss(z, target, weights=ALL, scales=scales, known=known)
    target = torch.where(known[:, None], target, math.nan)
    z = torch.where(known[:, None], z, 1e6).requires_grad_()
    other, logs = losses.total_loss(z, target, weights=ALL, scales=scales, known=known)
    torch.testing.assert_close(other, one)
    assert all(value.isfinite() for value in logs.values())
    (gradient,) = torch.autograd.grad(other, z)
    assert gradient.isfinite().all()
    assert (gradient.masked_select(~known[:, None]) == 0).all()
    assert (gradient.masked_select(known[:, None]) != 0).all()


def test_masked_terms_by_brute_force() -> None:
    z, target = draw(2, 2, 6, 8), draw(2, 2, 6, 8, seed=1)
    known = draw(2, 6, 8, seed=2) > -1.2
    grid = Grid.periodic((6, 8), dx=2.0, dy=0.5)
    scales = plain_scales(grid)
    east, west, north, south = (
        (lambda f, s=s, axis=axis: f.roll(s, axis)) for axis in (-1, -2) for s in (-1, 1)
    )
    inner = known & east(known) & west(known) & north(known) & south(known)
    assert 0 < inner.sum() < known.sum() < known.numel()
    u, v = z.unbind(1)
    divergence = (east(u) - west(u)) / 4.0 + (north(v) - south(v)) / 1.0
    second = (east(z) + west(z) - 2 * z) / 4.0 + (north(z) + south(z) - 2 * z) / 0.25
    expected = [
        [
            float((z - target)[b, :, known[b]].square().mean()),
            float(divergence[b, inner[b]].square().mean()),
            float(second[b, :, inner[b]].square().sum(0).mean()),
        ]
        for b in range(2)
    ]
    found = (
        losses.reconstruction(z, target, known),
        losses.divergence(z, scales, known),
        losses.laplacian(z, scales, known),
    )
    assert len({int(n) for n in known.sum((1, 2))}) == 2
    for value, first, second_sample in zip(found, *expected, strict=True):
        assert math.isclose(value.item(), (first + second_sample) / 2, rel_tol=1e-12)


def test_a_mean_over_nothing_is_zero_and_has_a_zero_gradient() -> None:
    z = draw(1, 2, 6, 6).requires_grad_()
    nothing = torch.zeros(6, 6, dtype=torch.bool)
    scales = uneven_scales(Grid((6, 6)))
    loss, _ = losses.total_loss(z, z.detach() + 1, weights=ALL, scales=scales, known=nothing)
    assert loss.item() == 0.0
    assert (torch.autograd.grad(loss, z)[0] == 0).all()


# The sum


def test_the_total_is_the_weighted_sum_and_the_logs_are_detached() -> None:
    scales = uneven_scales(Grid((6, 8), 0.5, 0.2))
    z, target = draw(2, 2, 6, 8).requires_grad_(), draw(2, 2, 6, 8, seed=1)
    loss, logs = losses.total_loss(z, target, weights=ALL, scales=scales)
    by_hand = (
        losses.reconstruction(z, target)
        + 0.5 * (2.0 * losses.divergence(z, scales) + 3.0 * losses.laplacian(z, scales))
        + 0.7 * (z - target).square().mean(1)[:, losses.boundary_mask(scales.spec.grid)].mean()
    )
    torch.testing.assert_close(loss, by_hand)
    assert logs["loss"] == loss
    assert losses.laplacian(z.bfloat16(), scales).dtype == torch.float32
    assert not any(value.requires_grad for value in logs.values())
    assert torch.autograd.gradcheck(
        lambda x: losses.total_loss(x, target, weights=ALL, scales=scales)[0], z
    )


@pytest.mark.parametrize(
    ("channels", "family", "weight", "named"),
    [
        (("h",), None, "div", "velocity"),
        (("u", "v"), "wave", "div", "velocity"),
        (("u", "v"), "reaction-diffusion", "lap", "'u' and 'v'"),
        (("rho", "u", "v", "p"), "euler", "div", "'euler'"),
    ],
)
def test_physics_terms_that_a_family_does_not_have_are_refused(
    channels: tuple[str, ...], family: str | None, weight: str, named: str
) -> None:
    spec = FieldSpec(channels=channels, grid=Grid((6, 8)), family=family)
    count = len(channels)
    scales = LossScales.from_training(spec, Normalizer((0.0,) * count, (3.0,) * count))
    z, target = draw(2, count, 6, 8), draw(2, count, 6, 8, seed=1)
    possible = {"laplacian"} if family == "euler" else set()
    weights = LossWeights(reg=1.0, lap=float("laplacian" in possible), bnd=1.0)
    _, logs = losses.total_loss(z, target, weights=weights, scales=scales)
    assert set(logs) == {"loss", "reconstruction", "boundary"} | possible
    with refused(named):
        losses.total_loss(z, target, weights=LossWeights(reg=1.0, **{weight: 1.0}), scales=scales)


def test_a_weight_of_a_later_version_keeps_the_hash_of_earlier_runs() -> None:
    earlier = {"reg": 0.0, "div": 0.1, "lap": 0.0, "bnd": 0.0}
    assert identity(LossWeights(div=0.1)) == fingerprint(earlier)
    assert identity(LossWeights(div=0.1, state=2.0)) != fingerprint(earlier)
