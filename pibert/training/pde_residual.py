"""The objective of the amortised PINN: the supervised loss and a PDE residual of the prediction.

    L = L_sup + weight (mean of c^2 [+ mean of r^2])

    continuity  c = D_x u + D_y v                        of every predicted frame
    transport   r = w_t + u w_x + v w_y - nu lap w       between two frames, w = D_x v - D_y u

Derivatives are total: they include the slopes of the input field. Continuity takes them from the
model (``PINN.total_derivatives``), which propagates the slopes of its input through the network by
the chain rule: beyond the stencils on the input there is no discretisation error. Transport needs
third derivatives, from stencils on the predicted field (``physics.families``); it does not involve
the pressure, which is not predicted, and uses the midpoint rule in time.

Transport is off by default. Between frames of measured wakes the flow travels one to six cells: the
error of w_t is as large as the term itself, and even the exact flow has a large residual. Planar
measurements of a three-dimensional flow are not free of divergence either. So the weight is small,
and the log has the residual of the data beside that of the model (``continuity_of_data``): a
smaller one is not better physics.

Both are dimensionless (``training.losses``): velocities in units of U, lengths in h, times in
h / U. Means leave out unknown points, the body, and derivatives that touch them. With weight 0 the
model is a pointwise MLP, not a PINN.
"""

from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pibert.fields import Batch, known_coefficients
from pibert.models.baselines.pinn import FieldDerivatives
from pibert.physics import masked_residuals
from pibert.physics.families import Incompressible
from pibert.training.losses import LossScales, LossWeights, divergence, mean_over_points
from pibert.training.objectives import ONE_STEP, Objective, RolloutConfig, supervised

Frames = Float[Tensor, "b s c y x"]
Known = Bool[Tensor, "b s y x"]
Scalar = Float[Tensor, ""]


def pde_residual(
    scales: LossScales,
    weights: LossWeights,
    rollout: RolloutConfig = ONE_STEP,
    *,
    weight: float,
    transport: bool = False,
    steps: int | None = None,
) -> Objective:
    """The objective; logs the terms of the supervised loss and those of the residual.

    The residual is that of one call of the model on the unchanged input, without noise.

    Args:
        scales: Scales of the channels.
        weights: Weights of the supervised loss.
        rollout: How the model is called for the supervised loss.
        weight: Weight of the residual. With 0 it is neither computed nor logged.
        transport: Include the transport of vorticity in the residual.
        steps: See ``objectives.supervised``.
    """
    if weight:
        scales.refuse_divergence("the PDE residual")
    if weight and transport and scales.spec.dt is None:
        raise ValueError(
            "expected a time between frames for the transport of vorticity, found dt=None"
        )
    learn = supervised(scales, weights, rollout, steps=steps)
    if not weight:
        return learn
    channels = len(scales.spec.channels)

    def objective(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        loss, logs = learn(model, batch)
        if not hasattr(model, "total_derivatives"):
            raise ValueError(
                "expected a model with total derivatives of its field, as PINN has, found "
                f"{type(model).__name__}; train it by the supervised objective, whose divergence "
                "term is the continuity residual on the grid"
            )
        slopes = cast(Any, model).total_derivatives(batch.x, batch.parameters, batch.mask)
        frames = slopes.field.unflatten(1, (-1, channels))
        known = batch.target_mask[:, : frames.shape[1]]
        terms = {"continuity": continuity(slopes, scales, known & batch.mask[:, None])}
        if transport:
            terms["transport"] = vorticity_transport(frames, batch, scales)
        for name, term in terms.items():
            loss = loss + weight * term
            logs[name] = term.detach()
        with torch.no_grad():
            truth = batch.y[:, : frames.shape[1]]
            logs["continuity_of_data"] = divergence(truth, scales, known)
        return loss, logs | {"loss": loss.detach()}

    return objective


def continuity(slopes: FieldDerivatives, scales: LossScales, known: Known) -> Scalar:
    """Mean squared divergence by the derivatives of the model, in units of U / h."""
    spec = scales.spec
    assert spec.velocity is not None
    unit = spec.grid.cell_length / scales.reference_velocity
    u_x, v_y = (
        derivative.unflatten(1, (-1, len(spec.channels)))[:, :, i]
        * (unit * scales.normalizer.std[i])
        for derivative, i in zip((slopes.along_x, slopes.along_y), spec.velocity, strict=True)
    )
    counted = scales.fluid(known & slopes.defined[:, None], u_x.device)
    assert counted is not None
    return _mean_square(u_x + v_y, counted)


def vorticity_transport(frames: Frames, batch: Batch, scales: LossScales) -> Scalar:
    """Mean squared residual of vorticity transport between frames, in units of (U / h)^2.

    ``frames`` are predicted and standardised; the last input frame of the batch precedes them.
    """
    spec, h, speed = scales.spec, scales.spec.grid.cell_length, scales.reference_velocity
    count, steps = len(spec.channels), frames.shape[1]
    last = batch.x[:, -count:].unsqueeze(1)
    u, v = scales.velocity(torch.cat((last, frames.to(last.dtype)), dim=1))
    known = torch.cat((batch.mask[:, None], batch.target_mask[:, :steps]), dim=1)
    family = Incompressible()
    coefficients = {
        name: (value[:, None].expand(-1, steps) if isinstance(value, Tensor) else value)
        / (speed * h)
        for name, value in known_coefficients(family, spec, batch.parameters).items()
    }
    assert spec.dt is not None
    residuals, defined = masked_residuals(
        family,
        {"u": _pairs(u), "v": _pairs(v)},
        scales.unit_grid,
        _pairs(known),
        dt=spec.dt * speed / h,
        **coefficients,
    )
    return _mean_square(residuals["vorticity"].squeeze(-3), defined["vorticity"])


def _pairs(frames: Tensor) -> Tensor:
    """(b, s + 1, y, x) to (b, s, 2, y, x): every frame with the one before it."""
    return torch.stack((frames[:, :-1], frames[:, 1:]), dim=2)


def _mean_square(values: Tensor, counted: Tensor) -> Tensor:
    return mean_over_points(torch.where(counted, values, 0.0).square(), counted)
