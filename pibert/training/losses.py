"""The paper's losses: reconstruction, two physics regularisers and a boundary term.

    total = recon + reg (div L_div + lap L_lap) + bnd L_bnd

- recon: mean over samples, channels and points of the squared error of standardised fields.
- L_div: mean over samples and points of (u_x + v_y)^2 of the prediction.
- L_lap: mean over samples and points of (lap u)^2 + (lap v)^2 of the prediction.
- L_bnd: like recon, over the points of a boundary mask M alone. It is a mean over samples,
  channels and M; the published figures divide a sum over samples and channels by |M|, which
  grows with the batch.

Units. The published weights belong to standardised fields on a grid of unit spacing; derivatives
in physical units would change their meaning by orders of magnitude. So predictions are brought
back to physical units, divided by one reference velocity U for both components, and
differentiated in units of h = sqrt(dx dy) with the ratio dx/dy kept. The terms are then free of
units, a solenoidal flow has no divergence although u and v are standardised differently, and for
equal stds and dx = dy the two regularisers are the paper's. (Its recon and L_bnd add the channels
where ours average them; the published values are averages.)

Every mean leaves out the points that ``known`` marks as unknown; derivatives whose stencil touches
such a point are left out too. Points inside the grid's body count as unknown. A mean over no
points is zero.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.physics import derivatives

State = Float[Tensor, "*batch c y x"]
Known = Bool[Tensor, "*#batch y x"]
"""True where the target is known."""
Scalar = Float[Tensor, ""]


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Weights of the terms beside the reconstruction."""

    reg: float = 0.0
    """Common factor of the two regularisers."""
    div: float = 0.0
    lap: float = 0.0
    bnd: float = 0.0

    def __post_init__(self) -> None:
        for name in ("reg", "div", "lap", "bnd"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"loss weight {name} must be zero or positive, found {value}")


PAPER_WEIGHTS = {
    "base": LossWeights(reg=5e-5, div=1.0, lap=0.12, bnd=2e-3),
    # Not in the paper: recovered from the published training log of the fluid-structure case,
    # which determines only bnd and the products reg * div and reg * lap.
    "large": LossWeights(reg=2e-5, div=0.8, lap=0.1, bnd=1e-3),
}
"""The published weights by preset."""


@dataclass(frozen=True, kw_only=True)
class LossScales:
    """What turns a standardised prediction into a velocity free of units."""

    spec: FieldSpec
    normalizer: Normalizer
    reference_velocity: float

    def __post_init__(self) -> None:
        if len(self.normalizer.mean) != len(self.spec.channels):
            raise ValueError(
                f"expected a mean and a std for each of {self.spec.channels}, "
                f"found {len(self.normalizer.mean)}"
            )
        if not (math.isfinite(self.reference_velocity) and self.reference_velocity > 0):
            raise ValueError(
                f"reference velocity must be positive and finite, found {self.reference_velocity}"
            )

    @classmethod
    def from_training(cls, spec: FieldSpec, normalizer: Normalizer) -> Self:
        """Scales of a training set: U is the rms of u and v about their training means.

        Without velocity channels U is 1 and not used.
        """
        stds = [normalizer.std[i] for i, c in enumerate(spec.channels) if c in ("u", "v")]
        velocity = math.sqrt(sum(s * s for s in stds) / len(stds)) if stds else 1.0
        return cls(spec=spec, normalizer=normalizer, reference_velocity=velocity)

    @property
    def has_velocity(self) -> bool:
        return {"u", "v"} <= set(self.spec.channels)

    @property
    def unit_grid(self) -> Grid:
        """The grid measured in units of its cell length."""
        grid = self.spec.grid
        return replace(grid, dx=grid.dx / grid.cell_length, dy=grid.dy / grid.cell_length)

    def velocity(self, state: State) -> tuple[Tensor, Tensor]:
        """(u, v) of a standardised state in units of the reference velocity."""
        if not self.has_velocity:
            raise ValueError(
                f"divergence and laplacian need channels 'u' and 'v', found {self.spec.channels}; "
                f"set their weights to zero"
            )
        if state.dtype in (torch.float16, torch.bfloat16):
            state = state.float()  # differences of neighbours need the digits
        physical = self.normalizer.invert(state) / self.reference_velocity
        u, v = (physical.select(-3, self.spec.channels.index(name)) for name in ("u", "v"))
        return u, v


def reconstruction(prediction: State, target: State, known: Known | None = None) -> Scalar:
    """Mean squared error of standardised fields."""
    error = prediction - target
    if known is None:
        return error.square().mean()
    counted = known.unsqueeze(-3).expand_as(error)
    # Chosen before it is squared: what an unknown target holds, NaN included, enters no gradient.
    return _mean(torch.where(counted, error, 0.0).square(), counted)


def divergence(prediction: State, scales: LossScales, known: Known | None = None) -> Scalar:
    """Mean squared divergence of the predicted velocity."""
    u, v = scales.velocity(prediction)
    grid = scales.unit_grid
    known = _fluid(known, grid.body, prediction)
    return _mean_square(lambda u, v: derivatives.divergence(u, v, grid), u, v, known=known)


def laplacian(prediction: State, scales: LossScales, known: Known | None = None) -> Scalar:
    """Mean over points of the squared Laplacians of u and v, added."""
    u, v = scales.velocity(prediction)
    grid = scales.unit_grid
    known = _fluid(known, grid.body, prediction)
    of_u, of_v = (
        _mean_square(lambda f: derivatives.laplacian(f, grid), f, known=known) for f in (u, v)
    )
    return of_u + of_v


def boundary(
    prediction: State, target: State, mask: Bool[Tensor, "y x"], known: Known | None = None
) -> Scalar:
    """Mean squared error of standardised fields over the points of ``mask``."""
    return reconstruction(prediction, target, mask if known is None else mask & known)


def boundary_mask(
    grid: Grid, shape: tuple[int, int] | None = None, device: torch.device | None = None
) -> Bool[Tensor, "y x"]:
    """The default M: a border of one point, and the fluid points that share an edge with a body.

    Periodic sides have no border.

    Args:
        grid: Gives the sides and the body.
        shape: Rows and columns; the grid's own if not given.
        device: Where the mask is made.
    """
    mask = torch.zeros(shape or grid.shape, dtype=torch.bool, device=device)
    if not grid.periodic_x:
        mask[:, 0] = mask[:, -1] = True
    if not grid.periodic_y:
        mask[0] = mask[-1] = True
    if grid.body is None:
        return mask
    body = _body_like(grid.body, mask)
    for dim, periodic in ((0, grid.periodic_y), (1, grid.periodic_x)):
        for shift in (1, -1):
            neighbour = body.roll(shift, dim)
            if not periodic:
                neighbour.select(dim, 0 if shift == 1 else -1).fill_(False)
            mask |= neighbour
    return mask & ~body


def total_loss(
    prediction: State,
    target: State,
    *,
    scales: LossScales,
    weights: LossWeights = PAPER_WEIGHTS["base"],
    known: Known | None = None,
    mask: Bool[Tensor, "y x"] | None = None,
) -> tuple[Scalar, dict[str, Scalar]]:
    """The weighted sum, and every term without its weight, detached, for the log.

    Args:
        prediction: Standardised.
        target: Standardised.
        scales: The training set's.
        weights: Those of ``PAPER_WEIGHTS`` for the preset, or others.
        known: True where the target is known.
        mask: The boundary points M; those of ``boundary_mask`` if not given.
    """
    grid = scales.spec.grid
    if mask is None:
        mask = boundary_mask(grid, _shape(prediction), prediction.device)
    known = _fluid(known, grid.body, prediction)
    loss = reconstruction(prediction, target, known)
    logs = {"reconstruction": loss.detach()}
    terms = {
        "divergence": (weights.reg * weights.div, lambda: divergence(prediction, scales, known)),
        "laplacian": (weights.reg * weights.lap, lambda: laplacian(prediction, scales, known)),
        "boundary": (weights.bnd, lambda: boundary(prediction, target, mask, known)),
    }
    for name, (weight, term) in terms.items():
        if weight:
            value = term()
            loss = loss + weight * value
        elif name == "boundary" or scales.has_velocity:
            with torch.no_grad():
                value = term()
        else:
            value = torch.zeros_like(loss)
        logs[name] = value.detach()
    return loss, logs | {"loss": loss.detach()}


def _mean_square(operator: Callable[..., Tensor], *fields: Tensor, known: Tensor | None) -> Tensor:
    if known is None:
        return operator(*fields).square().mean()
    value, defined = derivatives.where_defined(operator, *fields, known=known)
    # A central difference skips its own point, which may still be unknown.
    counted = defined & known
    return _mean(torch.where(counted, value, 0.0).square(), counted)


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """Mean over the counted values; the others are zero."""
    return values.sum() / counted.sum().clamp(min=1)


def _fluid(known: Tensor | None, body: Tensor | None, state: Tensor) -> Tensor | None:
    """Points that are known and outside the body; None stands for all."""
    if body is None:
        return known
    fluid = ~_body_like(body, state)
    return fluid if known is None else known & fluid


def _body_like(body: Tensor, state: Tensor) -> Tensor:
    if body.shape != state.shape[-2:]:
        raise ValueError(
            f"the body mask has shape {tuple(body.shape)}, but the field {_shape(state)}"
        )
    return body.to(state.device)


def _shape(state: Tensor) -> tuple[int, int]:
    return state.shape[-2], state.shape[-1]
