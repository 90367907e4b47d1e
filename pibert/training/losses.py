"""The paper's losses: reconstruction, two physics regularisers and a boundary term.

    total = recon + reg (div L_div + lap L_lap) + bnd L_bnd

- recon: mean over channels and points of the squared error of standardised fields. A structural
  state adds the mean over its own channels, times its weight: a few numbers would be lost among the
  fields.
- L_div: mean over points of (u_x + v_y)^2 of the prediction, if the flow's family has zero
  divergence (``Family.is_solenoidal``).
- L_lap: mean over points of (lap u)^2 + (lap v)^2 of the prediction.
- L_bnd: like recon, over the points of a boundary mask M alone. The published figures divide a sum
  over samples and channels by |M|, which grows with the batch.

Each is the mean over samples (and frames) of a mean over that sample's points. A sample has the
same weight however many of its points are known, so a batch may be divided: the losses of the
pieces, weighted by their number of samples, add up to the loss of the whole, and so do gradients.

Units. The published weights belong to standardised fields on a grid of unit spacing. So predictions
are converted to physical units, divided by one reference velocity U for both components, and
differentiated in units of h = sqrt(dx dy) with the ratio dx/dy kept. The terms are then
dimensionless, a solenoidal flow has no divergence although u and v are standardised differently,
and for equal stds and dx = dy the two regularisers are the paper's. (Its recon and L_bnd add the
channels where ours average them; the published values are averages.)

A mean over points leaves out unknown points, points inside the grid's body, and derivatives whose
stencil touches such a point. A sample without any point left adds zero, and still counts as a
sample.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.config import ADDED, NonNegative, check
from pibert.fields import FieldSpec, Grid, Normalizer, is_solenoidal
from pibert.physics import derivatives

State = Float[Tensor, "*batch c y x"]
Known = Bool[Tensor, "*#batch y x"]
"""True where the target is known."""
Scalar = Float[Tensor, ""]


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """Weights of the terms beside the reconstruction."""

    reg: NonNegative = 0.0
    """Common factor of the two regularisers."""
    div: NonNegative = 0.0
    lap: NonNegative = 0.0
    bnd: NonNegative = 0.0
    state: NonNegative = field(default=1.0, metadata=ADDED)
    """Of the error of the structural state, beside that of the fields."""

    def __post_init__(self) -> None:
        check(self)


PAPER_WEIGHTS = {
    "base": LossWeights(reg=5e-5, div=1.0, lap=0.12, bnd=2e-3),
    # Not in the paper: recovered from the published training log of the fluid-structure case,
    # which determines only bnd and the products reg * div and reg * lap.
    "large": LossWeights(reg=2e-5, div=0.8, lap=0.1, bnd=1e-3),
}
"""The published weights by preset."""


@dataclass(frozen=True, kw_only=True)
class LossScales:
    """Converts a standardised prediction to a dimensionless velocity."""

    spec: FieldSpec
    normalizer: Normalizer
    reference_velocity: float
    state_weight: float = 1.0
    """``LossWeights.state``."""
    _masks: dict[torch.device, tuple[Tensor, Tensor | None]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Results of ``masks`` by device, computed once."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.reference_velocity) and self.reference_velocity > 0):
            raise ValueError(
                f"reference velocity must be positive and finite, found {self.reference_velocity}"
            )

    @classmethod
    def from_training(
        cls, spec: FieldSpec, normalizer: Normalizer, state_weight: float = 1.0
    ) -> Self:
        """Scales of a training set: U is the rms of u and v about their training means.

        Without velocity channels U is 1 and not used.
        """
        stds = [normalizer.std[i] for i in spec.velocity or ()]
        velocity = math.sqrt(sum(s * s for s in stds) / len(stds)) if stds else 1.0
        return cls(
            spec=spec,
            normalizer=normalizer,
            reference_velocity=velocity,
            state_weight=state_weight,
        )

    @property
    def is_solenoidal(self) -> bool | None:
        """Whether the velocity has no divergence; None if no family is stated."""
        return is_solenoidal(self.spec)

    def refuse_divergence(self, what: str) -> None:
        """Refuse a penalty of the divergence if the family has no such constraint."""
        if self.is_solenoidal is False:
            raise ValueError(
                f"{what} needs a velocity whose divergence is zero, found channels "
                f"{list(self.spec.channels)} of family {self.spec.family!r}; set its weight to 0"
            )

    @property
    def unit_grid(self) -> Grid:
        """The grid measured in units of its cell length."""
        grid = self.spec.grid
        return replace(grid, dx=grid.dx / grid.cell_length, dy=grid.dy / grid.cell_length)

    def velocity(self, state: State) -> tuple[Tensor, Tensor]:
        """(u, v) of a standardised state in units of the reference velocity."""
        if self.spec.velocity is None:
            raise ValueError(
                "divergence and laplacian need a velocity, channels 'u' and 'v' of a flow, found "
                f"{self.spec.channels} of family {self.spec.family}; set their weights to zero"
            )
        if state.dtype in (torch.float16, torch.bfloat16):
            state = state.float()  # differences of neighbours need the digits
        # ``Normalizer.invert`` and the division by U in one, with numbers in place of tensors,
        # which would be copied to the device in every step.
        mean, std, unit = self.normalizer.mean, self.normalizer.std, self.reference_velocity
        u, v = (state.select(-3, i) * (std[i] / unit) + mean[i] / unit for i in self.spec.velocity)
        return u, v

    def masks(self, device: torch.device) -> tuple[Bool[Tensor, "y x"], Bool[Tensor, "y x"] | None]:
        """Boundary points, and points outside the body (None: all)."""
        if device not in self._masks:
            body = self.spec.grid.body
            # Computed in validation under inference mode, they must also serve training.
            with torch.inference_mode(False):
                fluid = None if body is None else ~body.to(device)
                self._masks[device] = boundary_mask(self.spec.grid).to(device), fluid
        return self._masks[device]

    def fluid(self, known: Tensor | None, device: torch.device) -> Tensor | None:
        """Points that are known and outside the body; None stands for all."""
        fluid = self.masks(device)[1]
        if fluid is None or known is None:
            return known if fluid is None else fluid
        return known & fluid


def reconstruction(
    prediction: State,
    target: State,
    known: Known | None = None,
    scales: LossScales | None = None,
) -> Scalar:
    """Mean squared error of standardised fields; with ``scales`` the state has its own weight."""
    return mean_over_points(_squared_error(prediction, target, known, scales), known)


def frame_errors(
    prediction: Float[Tensor, "b s c y x"],
    target: Float[Tensor, "b s c y x"],
    known: Bool[Tensor, "b s y x"],
    scales: LossScales,
) -> Float[Tensor, "b s"]:
    """The reconstruction error of every frame; points inside the body do not count."""
    known = cast(Tensor, scales.fluid(known, target.device))
    points = known.sum((-2, -1)).clamp(min=1)
    return _squared_error(prediction, target, known, scales).sum((-2, -1)) / points


def persistence(
    x: Float[Tensor, "b hc y x"],
    target: Float[Tensor, "b s c y x"],
    known: Known | None = None,
    scales: LossScales | None = None,
) -> Scalar:
    """The reconstruction error of the newest input frame as the prediction of every target frame.

    The newest frame comes last in ``x``. With ``scales``, points inside the body do not count.
    """
    newest = x[:, None, -target.shape[2] :].expand_as(target)
    known = known if scales is None else scales.fluid(known, target.device)
    return reconstruction(newest, target, known, scales)


def divergence(prediction: State, scales: LossScales, known: Known | None = None) -> Scalar:
    """Mean squared divergence of the predicted velocity, only for incompressible flow."""
    scales.refuse_divergence("the divergence loss")
    u, v = scales.velocity(prediction)
    grid = scales.unit_grid
    known = scales.fluid(known, prediction.device)
    return _mean_square(lambda u, v: derivatives.divergence(u, v, grid), u, v, known=known)


def laplacian(prediction: State, scales: LossScales, known: Known | None = None) -> Scalar:
    """Mean over points of the squared Laplacians of u and v, added."""
    grid = scales.unit_grid
    both = torch.stack(scales.velocity(prediction))
    known = scales.fluid(known, prediction.device)
    # The mean counts each component as a state.
    return 2 * _mean_square(lambda f: derivatives.laplacian(f, grid), both, known=known)


def boundary_mask(grid: Grid) -> Bool[Tensor, "y x"]:
    """M: a border of one point, and the fluid points that share an edge with a body.

    Periodic sides have no border.
    """
    mask = torch.zeros(grid.shape, dtype=torch.bool)
    if not grid.periodic_x:
        mask[:, 0] = mask[:, -1] = True
    if not grid.periodic_y:
        mask[0] = mask[-1] = True
    if grid.body is None:
        return mask
    body = grid.body.cpu()
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
) -> tuple[Scalar, dict[str, Scalar]]:
    """The weighted sum of standardised fields, and its terms without weights, detached.

    A term of weight zero is neither computed nor logged. ``known`` is True where the target is
    known.
    """
    known = scales.fluid(known, prediction.device)
    squares = _squared_error(prediction, target, known, scales)
    loss = mean_over_points(squares, known)
    logs = {"reconstruction": loss.detach()}
    if count := len(scales.spec.state):
        state = _squared_error(prediction[..., -count:, :, :], target[..., -count:, :, :], known)
        logs["state"] = mean_over_points(state, known).detach()

    def boundary() -> Tensor:
        points = scales.masks(prediction.device)[0]
        counted = points if known is None else points & known
        return mean_over_points(torch.where(points, squares, 0.0), counted)

    terms = {
        "divergence": (weights.reg * weights.div, lambda: divergence(prediction, scales, known)),
        "laplacian": (weights.reg * weights.lap, lambda: laplacian(prediction, scales, known)),
        "boundary": (weights.bnd, boundary),
    }
    for name, (weight, term) in terms.items():
        if weight:
            value = term()
            loss = loss + weight * value
            logs[name] = value.detach()
    return loss, logs | {"loss": loss.detach()}


def mean_over_points(values: Tensor, counted: Tensor | None) -> Scalar:
    """Mean over states of the mean over each one's counted points; the other values are zero."""
    if counted is None:
        return values.mean()
    points = counted.sum((-2, -1)).clamp(min=1)
    return (values.sum((-2, -1)) / points).mean()


def _squared_error(
    prediction: Tensor, target: Tensor, known: Tensor | None, scales: LossScales | None = None
) -> Tensor:
    """Mean over the channels at every point, zero where the target is unknown.

    With ``scales``, of the fields, plus that of the state times its weight.
    """
    error = prediction - target
    if known is not None:
        # Selected before squaring, so that an unknown target, even NaN, enters no gradient.
        error = torch.where(known.unsqueeze(-3), error, 0.0)
    squares = error.square()
    if scales is None or not scales.spec.state:
        return squares.mean(-3)
    fields, state = squares.split(
        (len(scales.spec.channels) - len(scales.spec.state), len(scales.spec.state)), dim=-3
    )
    return fields.mean(-3) + scales.state_weight * state.mean(-3)


def _mean_square(operator: Callable[..., Tensor], *fields: Tensor, known: Tensor | None) -> Tensor:
    """Mean square of the value of a linear operator."""
    if known is None:
        return operator(*fields).square().mean()
    value, defined = derivatives.evaluate_known(operator, *fields, known=known, linear=True)
    # A central difference skips its own point, which may still be unknown.
    counted = defined & known
    return mean_over_points(torch.where(counted, value, 0.0).square(), counted)
