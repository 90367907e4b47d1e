"""The classic PINN: one network of time and place for one flow, fitted to it and to its equation.

    (t, x, y) -> tanh layers -> (psi, p),   u = psi_y,  v = -psi_x

    loss = mean |(u, v) - data|^2 / U^2 + mean of r^2

    r = velocity_t + (u d_x + v d_y) velocity + grad p - nu lap velocity, in units of U^2 / L

The flow is free of divergence whatever the weights are. Derivatives are those of the network by its
coordinates, by automatic differentiation: they are total here, as nothing else goes in. Inputs are
scaled to [-1, 1]; U is the rms of the data and L half the root of the area. The pressure is known
up to a function of time, and is divided by the density.

This is no operator that steps a field: it takes an optimisation for every flow, and says nothing of
another one. It stands beside the models, under its own name. The layout, eight layers of 20, is
that of Raissi, Perdikaris, Karniadakis, J. Comput. Phys. 378 (2019) 686, for the cylinder wake; the
viscosity is given here, not found. As there, Adam comes first and L-BFGS after it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pibert.models.baselines.pinn import TanhNetwork

Coordinates = tuple[Float[Tensor, "y x"], Float[Tensor, "y x"]]
Points = Float[Tensor, "n 3"]
"""(t, x, y) of points."""

_WORST = 1e-12
"""Smallest extent and speed to divide by: a flow at rest, or one column, has none."""


class Samples(NamedTuple):
    """What a fit learns from: where, and the velocity there."""

    points: Points
    velocity: Float[Tensor, "n 2"]


class CoordinatePINN(nn.Module):
    """Stream function and pressure of one flow.

    Args:
        times: Of the frames; they give the range of the time.
        coordinates: x and y of the grid, as ``Grid.coordinates`` gives them.
        speed: U, the size of the velocity.
        viscosity: Kinematic.
        width: Of the hidden layers.
        depth: Their number.
        generator: Draws the weights.
    """

    middle: Tensor
    reach: Tensor

    def __init__(
        self,
        times: Float[Tensor, " t"],
        coordinates: Coordinates,
        speed: float,
        viscosity: float,
        *,
        width: int = 20,
        depth: int = 8,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not (math.isfinite(viscosity) and viscosity >= 0):
            raise ValueError(f"viscosity must be zero or positive, found {viscosity}")
        self.coordinates, self.speed, self.viscosity = coordinates, max(speed, _WORST), viscosity
        ranges = [(values.min(), values.max()) for values in (times, *coordinates)]
        low, high = (
            torch.stack(list(ends)).to(torch.float64) for ends in zip(*ranges, strict=True)
        )
        self.register_buffer("middle", (low + high) / 2)
        self.register_buffer("reach", ((high - low) / 2).clamp(min=_WORST))
        self.length = math.sqrt(float(self.reach[1] * self.reach[2]))
        self.network = TanhNetwork((3, *[width] * depth, 2), generator)

    def forward(self, points: Points) -> Float[Tensor, "n 2"]:
        """(psi, p) at points."""
        weight = next(self.network.parameters())
        psi, pressure = self.network(((points - self.middle) / self.reach).to(weight.dtype)).T
        return torch.stack((psi * (self.speed * self.length), pressure * self.speed**2), dim=1)

    def velocity(self, points: Points) -> Float[Tensor, "n 2"]:
        """(u, v) at points."""
        points = points.detach().requires_grad_()
        with torch.enable_grad():
            _, psi_x, psi_y = _slope(self(points)[:, 0], points)
        return torch.stack((psi_y, -psi_x), dim=1)

    def residual(self, points: Points) -> Float[Tensor, "n 2"]:
        """Of the two momentum equations, in units of U^2 / L."""
        points = points.detach().requires_grad_()
        with torch.enable_grad():
            psi, pressure = self(points).unbind(1)
            _, psi_x, psi_y = _slope(psi, points)
            psi_xt, psi_xx, psi_xy = _slope(psi_x, points)
            psi_yt, psi_yx, psi_yy = _slope(psi_y, points)
            # The Laplacians of u and v are slopes of that of psi: one pass of third order.
            _, lap_x, lap_y = _slope(psi_xx + psi_yy, points)
            _, p_x, p_y = _slope(pressure, points)
        u, v, nu = psi_y, -psi_x, self.viscosity
        along_x = psi_yt + u * psi_yx + v * psi_yy + p_x - nu * lap_y
        along_y = -psi_xt - u * psi_xx - v * psi_xy + p_y + nu * lap_x
        return torch.stack((along_x, along_y), dim=1) * (self.length / self.speed**2)

    def velocity_at(self, time: int | float) -> Float[Tensor, "2 y x"]:
        """The velocity on the grid at a time, in the range of the frames or beyond."""
        x, y = (values.to(self.middle.device) for values in self.coordinates)
        points = torch.stack((torch.full_like(x, time), x, y), dim=-1).flatten(0, 1)
        return self.velocity(points).detach().T.unflatten(1, tuple(x.shape))


def fit_trajectory(
    times: Float[Tensor, " t"],
    coordinates: Coordinates,
    velocity: Float[Tensor, "t 2 y x"],
    known: Bool[Tensor, "t y x"] | None,
    viscosity: float,
    *,
    seed: int,
    steps: int = 10_000,
    refinements: int = 500,
    points: int = 2_000,
    width: int = 20,
    depth: int = 8,
    learning_rate: float = 1e-3,
    on_progress: Callable[[int, float], None] | None = None,
) -> CoordinatePINN:
    """Fit the network of one flow to frames of it.

    Args:
        times: Of the frames, in any order and at any distance.
        coordinates: x and y of the grid, as ``Grid.coordinates`` gives them.
        velocity: (u, v), in units that go with the coordinates and times.
        known: True where the velocity is known and the equation holds; None: everywhere.
        viscosity: Kinematic, in the same units.
        seed: Of the weights and of the points that are drawn.
        steps: Of Adam, each on points drawn anew.
        refinements: Iterations of L-BFGS, on points drawn once.
        points: Drawn from the data, and as many for the residual at any time between the frames.
        width: Of the hidden layers.
        depth: Their number.
        learning_rate: Of Adam.
        on_progress: Called with the number of steps done and the loss, now and then.
    """
    samples = _samples(times, coordinates, velocity, known)
    speed = float(samples.velocity.square().mean().sqrt())
    generator = torch.Generator().manual_seed(seed)
    model = CoordinatePINN(
        times, coordinates, speed, viscosity, width=width, depth=depth, generator=generator
    ).to(velocity.device)

    def tell(done: int, loss: Tensor) -> None:
        if on_progress is not None and (done % 100 == 0 or done == steps + refinements):
            on_progress(done, float(loss))

    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for step in range(1, steps + 1):
        loss = _loss(model, *_drawn(samples, points, generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tell(step, loss.detach())
    if refinements:
        refined = _refine(model, _drawn(samples, 4 * points, generator), refinements)
        tell(steps + refinements, refined)
    return model


def _refine(model: CoordinatePINN, chosen: tuple[Samples, Points], iterations: int) -> Tensor:
    """L-BFGS on fixed points; gives the loss it ends with."""
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=iterations, history_size=50, line_search_fn="strong_wolfe"
    )

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        loss = _loss(model, *chosen)
        loss.backward()
        return loss

    optimizer.step(evaluate)
    return evaluate().detach()


def _loss(model: CoordinatePINN, samples: Samples, collocation: Tensor) -> Tensor:
    error = (model.velocity(samples.points) - samples.velocity) / model.speed
    return error.square().sum(1).mean() + model.residual(collocation).square().sum(1).mean()


def _samples(
    times: Tensor, coordinates: Coordinates, velocity: Tensor, known: Tensor | None
) -> Samples:
    """All known points of all frames."""
    shape = (len(times), 2, *coordinates[0].shape)
    if tuple(velocity.shape) != shape:
        raise ValueError(
            f"expected a velocity of shape (t, 2, y, x) = {shape}, found {tuple(velocity.shape)}"
        )
    device = velocity.device
    frame = (shape[0], *shape[2:])
    x, y = (values.to(device).expand(frame) for values in coordinates)
    t = times.to(device)[:, None, None].expand(frame)
    here = torch.ones(frame, dtype=torch.bool, device=device) if known is None else known
    if not bool(here.any()):
        raise ValueError("expected points where the velocity is known, found none")
    points = torch.stack([values[here].to(torch.float64) for values in (t, x, y)], dim=1)
    found = velocity.movedim(1, -1)[here]
    if not bool(found.isfinite().all()):
        raise ValueError("expected finite velocities at known points; mark others as unknown")
    return Samples(points, found)


def _drawn(samples: Samples, count: int, generator: torch.Generator) -> tuple[Samples, Points]:
    """Some of the data, and points of the residual: places of the data, at any time."""
    total = len(samples.points)
    picks = torch.randint(total, (2, min(count, total)), generator=generator)
    share = torch.rand(picks.shape[1], generator=generator, dtype=torch.float64)
    picks, share = picks.to(samples.points.device), share.to(samples.points.device)
    times = samples.points[:, 0]
    first, last = times.min(), times.max()
    collocation = samples.points[picks[1]].clone()
    collocation[:, 0] = first + share * (last - first)
    return Samples(samples.points[picks[0]], samples.velocity[picks[0]]), collocation


def _slope(values: Float[Tensor, " n"], points: Points) -> tuple[Tensor, ...]:
    """Derivatives by t, x and y of values at points, each of which depends on its own point."""
    (slope,) = torch.autograd.grad(values.sum(), points, create_graph=True)
    return slope.unbind(1)
