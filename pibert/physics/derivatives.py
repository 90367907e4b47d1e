"""Derivatives of fields on a uniform grid; all other modules use these.

A field is a tensor ``(*batch, y, x)``. Its size is that of the tensor; spacing and sides come from
the ``Grid``, so one grid serves every resolution with the same spacing and sides.

Discretisation, chosen by ``order``:

- ``2`` and ``4``: central differences inside. Periodic sides wrap; every other side uses a
  one-sided stencil of the same order, so the whole field is differentiated with that order.
  Weights are derivatives of the interpolating polynomial, in rational arithmetic.
- ``"spectral"``: multiplication by (ik)^m in Fourier space, periodic directions only. Odd
  derivatives drop the Nyquist mode of an even size, whose derivative is not a real field.

Signs: row index and y grow together, column index and x too; vorticity dv/dx - du/dy is positive
counter-clockwise. Everything is batched, differentiable and free of data-dependent control flow.
"""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.physics.grid import Grid, on_device

Order = Literal[2, 4, "spectral"]
Field = Float[Tensor, "*batch y x"]

_Y, _X = -2, -1
_AXIS_NAMES = {_Y: "y", _X: "x"}


class _Stencil(NamedTuple):
    """Weights in units of the nearest neighbour's, so that this one needs no multiplication."""

    unit: float
    """Weight of the nearest neighbour, in units of step^-derivative."""
    pairs: tuple[float, ...]
    """Weights of the neighbours at +1, +2, ...; the opposite side has the parity's sign."""
    width: int
    """Points that a one-sided stencil takes."""
    ends: dict[torch.dtype, Tensor]
    """(end, point, row): weights of the points next to a side, in the order of the grid, for the
    derivative at each of as many rows as there are pairs. None of them is zero."""
    numbers: tuple[tuple[tuple[float, ...], ...], ...]
    """The same as numbers, (end, row, point)."""


def _weights(points: range, derivative: int) -> tuple[float, ...]:
    """Weights at ``points`` of the derivative at 0 of the polynomial through them."""
    weights = []
    for j in points:
        basis = [Fraction(1)]  # coefficients of the Lagrange polynomial of point j
        for k in points:
            if k != j:
                raised, same = [Fraction(0), *basis], [*basis, Fraction(0)]
                basis = [(a - k * b) / (j - k) for a, b in zip(raised, same, strict=True)]
        weights.append(float(math.factorial(derivative) * basis[derivative]))
    return tuple(weights)


def _stencil(derivative: int, order: int) -> _Stencil:
    radius = (derivative + order - 1) // 2
    width = derivative + order
    central = _weights(range(-radius, radius + 1), derivative)
    unit, *others = central[radius + 1 :]
    rows = [_weights(range(-row, width - row), derivative) for row in range(radius)]
    low = torch.tensor(rows, dtype=torch.float64).T / unit
    both = torch.stack((low, (-1) ** derivative * low.flip(0, 1)))
    ends = {dtype: both.to(dtype) for dtype in (torch.float32, torch.float64)}
    numbers = tuple(tuple(map(tuple, end)) for end in both.mT.tolist())
    return _Stencil(unit, (1.0, *(weight / unit for weight in others)), width, ends, numbers)


_STENCILS = {(m, order): _stencil(m, order) for m in (1, 2, 3) for order in (2, 4)}


def _differentiate(
    f: Tensor, dim: int, step: float, periodic: bool, derivative: int, order: Order
) -> Tensor:
    if order == "spectral":
        return _differentiate_spectrally(f, dim, step, periodic, derivative)
    if order not in (2, 4):
        raise ValueError(f"order must be 2, 4 or 'spectral', found {order!r}")
    stencil = _STENCILS[derivative, order]
    size, radius = f.shape[dim], len(stencil.pairs)
    _check_size(f, dim, 2 * radius + 1 if periodic else stencil.width)
    if periodic:
        f = torch.cat((f.narrow(dim, size - radius, radius), f, f.narrow(dim, 0, radius)), dim)
    inside = _differentiate_inside(f, dim, derivative, stencil.pairs)
    if not periodic:
        low, high = _differentiate_ends(f, dim, stencil)
        inside = torch.cat((low, inside, high), dim)
    return inside * (stencil.unit * step**-derivative)


def _differentiate_inside(f: Tensor, dim: int, derivative: int, pairs: tuple[float, ...]) -> Tensor:
    """Central differences in the stencil's unit, where the stencil fits."""
    radius = len(pairs)
    size = f.shape[dim] - 2 * radius
    # Neighbours are paired before they are weighted: a constant has exactly zero derivative.
    inside: Tensor | None = None
    for distance, weight in enumerate(pairs, start=1):
        ahead = f.narrow(dim, radius + distance, size)
        behind = f.narrow(dim, radius - distance, size)
        if derivative % 2:
            pair = ahead - behind
        else:
            pair = torch.sub(ahead + behind, f.narrow(dim, radius, size), alpha=2)
        inside = pair if inside is None else torch.add(inside, pair, alpha=weight)
    assert inside is not None
    return inside


def _differentiate_ends(f: Tensor, dim: int, stencil: _Stencil) -> tuple[Tensor, Tensor]:
    """One-sided differences in the stencil's unit, at the low and at the high end."""
    width = stencil.width
    strips = (f.narrow(dim, 0, width), f.narrow(dim, f.shape[dim] - width, width))
    if torch.compiler.is_compiling():
        # Plain numbers: a compiled graph would copy a tensor from the host at every call, which a
        # CUDA graph cannot contain.
        low, high = (_by_numbers(s, dim, w) for s, w in zip(strips, stencil.numbers, strict=True))
        return low, high
    weights = stencil.ends.get(f.dtype)
    if weights is None:
        weights = stencil.ends[torch.float32].to(f.dtype)
    weights = on_device(weights, f.device)
    # Both ends and all rows at once, and not by a matrix product, which may round.
    if dim == _X:
        points = torch.stack(strips, dim=-2)[..., None]  # (..., y, end, point, 1)
        low, high = (points * weights).sum(-2).unbind(-2)
    else:
        points = torch.stack(strips, dim=-3)[..., None, :]  # (..., end, point, 1, x)
        low, high = (points * weights[..., None]).sum(-3).unbind(-3)
    return low, high


def _by_numbers(strip: Tensor, dim: int, weights: tuple[tuple[float, ...], ...]) -> Tensor:
    """Weighted sums of the points of a strip, one row for each tuple of weights."""
    points = strip.split(1, dim)
    rows = []
    for row in weights:
        total = points[0] * row[0]
        for point, weight in zip(points[1:], row[1:], strict=True):
            total = total + point * weight
        rows.append(total)
    return torch.cat(rows, dim)


def _differentiate_spectrally(
    f: Tensor, dim: int, step: float, periodic: bool, derivative: int
) -> Tensor:
    if not periodic:
        raise ValueError(
            f"spectral derivatives need a periodic direction, but the sides in "
            f"{_AXIS_NAMES[dim]} are not periodic; use order 2 or 4"
        )
    size = f.shape[dim]
    exact = f if f.dtype in (torch.float32, torch.float64) else f.float()
    k = 2 * math.pi * torch.fft.rfftfreq(size, step, dtype=exact.dtype, device=f.device)
    if derivative % 2 == 1 and size % 2 == 0:
        k = torch.cat((k[:-1], torch.zeros_like(k[-1:])))
    factor = k**derivative * 1j**derivative
    if dim == _Y:
        factor = factor[:, None]
    spectrum = torch.fft.rfft(exact, dim=dim) * factor
    return torch.fft.irfft(spectrum, n=size, dim=dim).to(f.dtype)


def _check_size(f: Tensor, dim: int, smallest: int) -> None:
    if f.shape[dim] < smallest:
        raise ValueError(
            f"this stencil needs at least {smallest} points in {_AXIS_NAMES[dim]}, "
            f"found {f.shape[dim]}; take a finer grid"
        )


def ddx(f: Field, grid: Grid, order: Order = 2) -> Field:
    return _differentiate(f, _X, grid.dx, grid.periodic_x, 1, order)


def ddy(f: Field, grid: Grid, order: Order = 2) -> Field:
    return _differentiate(f, _Y, grid.dy, grid.periodic_y, 1, order)


def d2dx2(f: Field, grid: Grid, order: Order = 2) -> Field:
    return _differentiate(f, _X, grid.dx, grid.periodic_x, 2, order)


def d2dy2(f: Field, grid: Grid, order: Order = 2) -> Field:
    return _differentiate(f, _Y, grid.dy, grid.periodic_y, 2, order)


def d3dx3(f: Field, grid: Grid, order: Order = 2) -> Field:
    return _differentiate(f, _X, grid.dx, grid.periodic_x, 3, order)


def d3dy3(f: Field, grid: Grid, order: Order = 2) -> Field:
    return _differentiate(f, _Y, grid.dy, grid.periodic_y, 3, order)


def together(
    operator: Callable[..., Tensor], grid: Grid, order: Order, *fields: Field
) -> tuple[Field, ...]:
    """Apply one derivative to several fields of one shape at once, which takes fewer kernels."""
    return operator(torch.stack(fields), grid, order).unbind(0)


def gradient(f: Field, grid: Grid, order: Order = 2) -> tuple[Field, Field]:
    """(df/dx, df/dy)."""
    return ddx(f, grid, order), ddy(f, grid, order)


def divergence(u: Field, v: Field, grid: Grid, order: Order = 2) -> Field:
    return ddx(u, grid, order) + ddy(v, grid, order)


def vorticity(u: Field, v: Field, grid: Grid, order: Order = 2) -> Field:
    """dv/dx - du/dy."""
    return ddx(v, grid, order) - ddy(u, grid, order)


def laplacian(f: Field, grid: Grid, order: Order = 2) -> Field:
    """The compact Laplacian, from second-derivative stencils."""
    return d2dx2(f, grid, order) + d2dy2(f, grid, order)


def where_defined(
    operator: Callable[..., Any],
    *fields: Field,
    known: Bool[Tensor, "..."] | Float[Tensor, "..."],
    linear: bool = False,
) -> tuple[Any, Any]:
    """Apply an operator to fields with unknown points, and return where its result is defined.

    A result is defined where no stencil touches an unknown point. The fields are evaluated with NaN
    at the unknown points, so the operator must propagate NaN, as arithmetic does and comparisons do
    not. Values at unknown points enter neither the result nor the gradients.

    Args:
        operator: Takes the fields and returns a tensor, or a tuple or dict of tensors.
        fields: Tensors (*batch, y, x).
        known: Not zero where all fields are known; broadcastable to the fields.
        linear: The operator is linear in the fields: gradients need no second evaluation.

    Returns:
        The result with zero where it is not defined, and booleans of the same structure.
    """
    value, defined = evaluate_known(operator, *fields, known=known, linear=linear)
    return _map(lambda v, d: torch.where(d, v, 0.0), value, defined), defined


def evaluate_known(
    operator: Callable[..., Any],
    *fields: Field,
    known: Bool[Tensor, "..."] | Float[Tensor, "..."],
    linear: bool = False,
) -> tuple[Any, Any]:
    """Like ``where_defined``, with arbitrary values, NaN included, where it is not defined.

    Use ``torch.where`` on the result; its gradients then equal those of ``where_defined``.
    """
    known = known.to(torch.bool)
    twice = not linear and torch.is_grad_enabled() and any(f.requires_grad for f in fields)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not twice):
        value = operator(*(torch.where(known, f, math.nan) for f in fields))
    defined = _map(lambda v: v.detach().abs() < math.inf, value)
    # The gradient of a product contains its factors, and zero times NaN is NaN. Coefficients of the
    # operator may require a gradient too.
    if twice or (not linear and any(v.requires_grad for v in _leaves(value))):
        value = operator(*(torch.where(known, f, 0.0) for f in fields))
    return value, defined


def _leaves(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
        return
    for part in tree.values() if isinstance(tree, dict) else tree:
        yield from _leaves(part)


def _map(function: Callable[..., Tensor], *trees: Any) -> Any:
    """Apply a function to matching tensors of results that are tensors, tuples or dicts."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: _map(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        return tuple(_map(function, *parts) for parts in zip(*trees, strict=True))
    return function(*trees)
