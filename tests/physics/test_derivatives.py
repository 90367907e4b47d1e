"""Derivatives: order, exactness, masks, identities; float64, non-square grids, dx != dy."""

import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from pibert.fields import Boundary, Grid, Sides
from pibert.physics import derivatives as d
from pibert.physics.derivatives import Order, where_defined
from tests.helpers import refused
from tests.physics.helpers import measured_order, noise

WALLS = Sides(*[Boundary.WALL] * 4)
SINGLE: dict[str, Callable[..., Tensor]] = {
    name: getattr(d, name) for name in ("ddx", "ddy", "d2dx2", "d2dy2", "d3dx3", "d3dy3")
}
SingleOrder = Literal[2, 4]


def box(rows: int, columns: int, *, periodic: bool, lengths: tuple[float, float] = (2, 3)) -> Grid:
    """A grid of these lengths (x, y) whose last points lie on the sides unless it is periodic."""
    length, height = lengths
    if periodic:
        return Grid.periodic((rows, columns), length / columns, height / rows)
    return Grid((rows, columns), length / (columns - 1), height / (rows - 1), WALLS)


def wavy(grid: Grid) -> dict[str, Tensor]:
    """A field with period 2 in x and 3 in y, and its derivatives."""
    x, y = grid.coordinates(torch.float64)
    k, m = 2 * math.pi / 2, 2 * math.pi * 2 / 3
    a, b = k * x + 0.3, m * y + 0.7
    mixed = torch.sin(a) * torch.cos(b)
    return {
        "f": mixed + torch.cos(b),
        "ddx": k * torch.cos(a) * torch.cos(b),
        "ddy": -m * torch.sin(a) * torch.sin(b) - m * torch.sin(b),
        "d2dx2": -(k**2) * mixed,
        "d2dy2": -(m**2) * (mixed + torch.cos(b)),
        "d3dx3": -(k**3) * torch.cos(a) * torch.cos(b),
        "d3dy3": m**3 * (torch.sin(a) * torch.sin(b) + torch.sin(b)),
    }


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("name", SINGLE)
def test_derivatives_converge_up_to_the_sides(
    name: str, order: SingleOrder, periodic: bool
) -> None:
    errors, end_errors = [], []
    for n in (40, 80, 160):
        grid = box(n + n // 2 + 1, n + 1, periodic=periodic)
        exact = wavy(grid)
        error = (SINGLE[name](exact["f"], grid, order) - exact[name]).abs()
        errors.append(error.max().item())
        across = error if name.endswith(("x", "x2", "x3")) else error.mT
        end_errors.append(across[:, [0, 1, 2, -3, -2, -1]].max().item())
    assert order - 0.1 < measured_order(errors) < order + 0.4
    assert order - 0.1 < measured_order(end_errors) < order + 0.4


@pytest.mark.parametrize("shape", [(24, 16), (25, 17), (24, 17), (25, 16)])
@pytest.mark.parametrize("name", SINGLE)
def test_spectral_derivatives_are_exact_to_round_off(name: str, shape: tuple[int, int]) -> None:
    grid = box(*shape, periodic=True)
    exact = wavy(grid)
    found = SINGLE[name](exact["f"], grid, "spectral")
    assert (found - exact[name]).abs().max() < 1e-11 * exact[name].abs().max()


def test_spectral_first_derivative_drops_the_nyquist_mode_and_the_second_keeps_it() -> None:
    grid = Grid.periodic((5, 8), dx=0.5)
    sawtooth = torch.tensor([1.0, -1.0] * 4, dtype=torch.float64).expand(5, 8)
    assert d.ddx(sawtooth, grid, "spectral").abs().max() < 1e-12
    expected = -((math.pi / 0.5) ** 2) * sawtooth
    torch.testing.assert_close(d.d2dx2(sawtooth, grid, "spectral"), expected)


def test_spectral_derivatives_refuse_sides_that_are_not_periodic() -> None:
    mixed = Grid((8, 8), sides=Sides(*[Boundary.PERIODIC] * 2, *[Boundary.WALL] * 2))
    d.ddx(noise(8, 8), mixed, "spectral")
    with refused("periodic"):
        d.ddy(noise(8, 8), mixed, "spectral")


@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize(("name", "derivative"), [("x", 1), ("x2", 2), ("x3", 3)])
def test_polynomials_are_exact(name: str, derivative: int, order: SingleOrder) -> None:
    grid = box(9, 11, periodic=False)
    degree = order + derivative - 1
    x, y = grid.coordinates(torch.float64)
    falling = math.perm(degree, derivative)
    operator_x = SINGLE["ddx" if derivative == 1 else f"d{derivative}d{name}"]
    operator_y = SINGLE["ddy" if derivative == 1 else f"d{derivative}dy{derivative}"]
    for operator, s in ((operator_x, x), (operator_y, y)):
        found = operator(s**degree, grid, order)
        expected = falling * s ** (degree - derivative)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9 * expected.abs().max().item())


def test_velocity_gradients_have_the_documented_signs_and_scale() -> None:
    grid = Grid((6, 7), dx=0.5, dy=0.25)
    x, y = grid.coordinates(torch.float64)
    u, v = 2 * x + 3 * y, 5 * x + 7 * y
    one = torch.ones_like(u)
    torch.testing.assert_close(d.divergence(u, v, grid), 9 * one)
    torch.testing.assert_close(d.vorticity(u, v, grid), 2 * one)


@pytest.mark.parametrize("order", [2, 4, "spectral"])
def test_derivatives_pass_gradcheck(order: Order) -> None:
    grid = box(8, 7, periodic=order == "spectral")
    f = noise(2, 8, 7).requires_grad_()
    for operator in (d.ddx, d.ddy, d.d2dx2, d.d2dy2, d.d3dx3, d.d3dy3):
        assert torch.autograd.gradcheck(
            lambda f, op=operator: op(f, grid, order), f, fast_mode=True
        )


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize(
    ("name", "order", "inside", "at_walls"),
    [
        ("ddx", 2, 3, 3),
        ("d2dx2", 4, 5, 6),
        ("d3dx3", 4, 7, 7),
    ],
)
def test_a_grid_too_small_is_refused_with_the_smallest_size(
    name: str, order: SingleOrder, inside: int, at_walls: int, periodic: bool
) -> None:
    grid, smallest = (Grid.periodic((8, 8)), inside) if periodic else (Grid((8, 8)), at_walls)
    SINGLE[name](noise(8, smallest), grid, order)
    with refused(f"at least {smallest} points", f"found {smallest - 1}"):
        SINGLE[name](noise(8, smallest - 1), grid, order)


def touched_by_brute_force(operator: Callable[[Tensor], Tensor], known: Tensor) -> Tensor:
    """Outputs that depend on an unknown point, from the Jacobian of a linear operator."""
    rows, columns = known.shape
    jacobian = torch.autograd.functional.jacobian(operator, noise(rows, columns))
    return ((jacobian != 0) & ~known).flatten(2).any(-1)


@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("name", [*SINGLE, "laplacian"])
def test_stencils_at_unknown_points_are_excluded(
    name: str, order: SingleOrder, periodic: bool
) -> None:
    grid = box(13, 12, periodic=periodic)
    known = torch.ones(13, 12, dtype=torch.bool)
    known[0, 3] = known[6, 5] = known[7, 5] = known[11, 11] = False

    def operator(f: Tensor) -> Tensor:
        return getattr(d, name)(f, grid, order)

    f = noise(13, 12)
    value, defined = where_defined(operator, f, known=known)
    assert torch.equal(defined, ~touched_by_brute_force(operator, known))
    assert 0 < defined.sum() < defined.numel()
    torch.testing.assert_close(value[defined], operator(f)[defined])
    assert (value[~defined] == 0).all()


def test_unknown_values_enter_neither_result_nor_gradient() -> None:
    grid = box(10, 9, periodic=False)
    known = torch.ones(10, 9)
    known[4:6, 3] = 0
    clean = noise(2, 10, 9)
    spoilt = clean.masked_fill(known == 0, math.nan).requires_grad_()

    def operator(u: Tensor, v: Tensor) -> dict[str, Any]:
        return {"sum": d.laplacian(u, grid), "pair": (v * d.ddx(u, grid), d.ddy(v, grid))}

    values, defined = where_defined(operator, spoilt, spoilt.flip(0), known=known)
    expected = operator(clean, clean.flip(0))
    assert torch.isfinite(values["sum"]).all()
    for found, right, mask in (
        (values["sum"], expected["sum"], defined["sum"]),
        (values["pair"][0], expected["pair"][0], defined["pair"][0]),
        (values["pair"][1], expected["pair"][1], defined["pair"][1]),
    ):
        assert mask.dtype == torch.bool and mask.shape == found.shape
        torch.testing.assert_close(found[mask], right[mask])
    (values["sum"].square().sum() + values["pair"][0].sum()).backward()
    assert spoilt.grad is not None and torch.isfinite(spoilt.grad).all()
    assert (spoilt.grad.masked_select(known == 0) == 0).all() and spoilt.grad.abs().max() > 0


def test_a_spectral_derivative_is_undefined_along_lines_with_an_unknown_point() -> None:
    grid = Grid.periodic((6, 8))
    known = torch.ones(6, 8, dtype=torch.bool)
    known[2, 3] = False
    _, defined = where_defined(lambda f: d.ddx(f, grid, "spectral"), noise(6, 8), known=known)
    assert not defined[2].any() and defined.sum() == 5 * 8


def test_a_linear_operator_has_the_same_gradient_by_one_evaluation_as_by_two() -> None:
    grid = box(10, 9, periodic=False)
    known = torch.rand(2, 10, 9, generator=torch.Generator().manual_seed(0)) > 0.05
    spoilt = noise(2, 10, 9).masked_fill(~known, math.nan).requires_grad_()
    found = []
    for linear in (False, True):
        value, defined = where_defined(
            lambda f: d.laplacian(f, grid), spoilt, known=known, linear=linear
        )
        assert 0 < defined.sum() < defined.numel()
        (gradient,) = torch.autograd.grad(value.square().sum(), spoilt)
        found.append((value, defined, gradient))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert torch.isfinite(found[1][2]).all() and found[1][2].abs().max() > 0


def test_a_coefficient_that_the_operator_holds_gets_its_gradient() -> None:
    grid = box(10, 9, periodic=False)
    known = torch.ones(10, 9, dtype=torch.bool)
    known[4, 4] = False
    f, nu = noise(10, 9), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    value, defined = where_defined(lambda f: nu * d.laplacian(f, grid), f, known=known)
    value.sum().backward()
    assert nu.grad is not None
    torch.testing.assert_close(nu.grad, d.laplacian(f, grid)[defined].sum())


@pytest.mark.parametrize("order", [2, 4])
def test_a_compiled_graph_has_the_same_ends(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    grid, f = box(10, 9, periodic=False), noise(10, 9)
    expected = [operator(f, grid, order) for operator in SINGLE.values()]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for operator, own in zip(SINGLE.values(), expected, strict=True):
        torch.testing.assert_close(operator(f, grid, order), own)
