"""Flow matching: a model learns the velocity of a flow from noise to the frames to predict.

    L = mean over known points and channels of (v - v*)^2 + align mean over tokens of |a - b|^2

with v = ``model.velocity`` at z_s = (1 - s) z + s eps, and v* = eps - z of the clean state z of the
target (``models/baselines/fourierflow.py``). Flow time s, in (0, 1], and noise eps follow from the
seed of the sample. If s is below the floor of the velocity, both velocities are divided by the
floor instead, so the loss there is the error of z over the floor. Points without a known target
have z = 0 and do not count.

a and b are the features of the model, through its head, and those of the frozen auto-encoder of the
known target, both of length 1; tokens without a known point do not count. With several target
frames, the mean is also over the frames. The model is trained on its own horizon and not rolled
out.

In evaluation (``model.eval()``) the log also has ``reconstruction``, the squared error of a
prediction. It averages fewer ensemble members in fewer steps than a call of the model, so its error
is a little larger.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pibert import sample_rng
from pibert.fields import Batch
from pibert.models.baselines.fourierflow import FLOOR, FourierFlow
from pibert.training.losses import persistence, reconstruction
from pibert.training.objectives import Objective

MEMBERS = 2
"""Ensemble members of a prediction in evaluation."""
SAMPLER_STEPS = 5
"""Euler steps of each member."""


def flow_matching(align: float) -> Objective:
    """The objective; logs ``flow``, ``alignment`` and, in evaluation, ``reconstruction``.

    ``align`` is the weight of the alignment; 0 leaves it out.
    """

    def objective(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        flow, horizon = _checked(model, batch)
        target, known = batch.y[:, :horizon], batch.target_mask[:, :horizon]
        loss, features = _velocity_loss(flow, batch, target, known)
        logs = {"flow": loss.detach()}
        if align:
            distance = _alignment(flow, features, target, known)
            loss = loss + align * distance
            logs["alignment"] = distance.detach()
        if not flow.training:
            members = flow.samples(
                batch.x, batch.parameters, batch.mask, draws=MEMBERS, steps=SAMPLER_STEPS
            )
            prediction = members.mean(1).unflatten(1, (horizon, -1))
            logs["reconstruction"] = reconstruction(prediction, target, known).detach()
            logs["persistence"] = persistence(batch.x, target, known).detach()
        return loss, logs | {"loss": loss.detach()}

    return objective


def _checked(model: nn.Module, batch: Batch) -> tuple[FourierFlow, int]:
    """The model, and the number of frames that it predicts."""
    if not isinstance(model, FourierFlow):
        raise ValueError(
            f"expected a FourierFlow, found {type(model).__name__}; train it with the supervised "
            "objective"
        )
    horizon: int = model.config.horizon
    if batch.y.shape[1] < horizon:
        raise ValueError(
            f"expected {horizon} target frames, found {batch.y.shape[1]}; give the window that "
            "horizon"
        )
    return model, horizon


def _velocity_loss(
    model: FourierFlow, batch: Batch, target: Tensor, known: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean squared error of the velocity at known points, and the features to align."""
    frames = (1, target.shape[1:3])
    x = model.prepared(batch.x, batch.parameters, batch.mask)
    clean = model.to_clean(target.flatten(1, 2), x)
    clean = torch.where(known[:, :, None], clean.unflatten(*frames), 0.0).flatten(1, 2)
    noise = sample_rng.normal(batch.seeds, "flow noise", *clean.shape[1:]).to(clean.dtype)
    s = 1 - sample_rng.uniform(batch.seeds, "flow time").to(clean.dtype)
    time = s[:, None, None, None]
    noisy = (1 - time) * clean + time * noise
    parameters = model.parameter_vector(x, batch.parameters)
    velocity, features = model.velocity(noisy, s, x, parameters)
    wanted = (noisy - clean) / time.clamp(min=FLOOR)
    return reconstruction(velocity.unflatten(*frames), wanted.unflatten(*frames), known), features


def _alignment(model: FourierFlow, features: Tensor, target: Tensor, known: Tensor) -> Tensor:
    """Mean squared distance of features of length 1 from those of the target."""
    if model.alignment_head is None or model.autoencoder is None:
        raise ValueError(
            "expected a model with an auto-encoder to align with, found one with align = 0"
        )
    with torch.no_grad():
        aims, visible = model.autoencoder.features(target.flatten(0, 1), known.flatten(0, 1))
        aims = F.normalize(aims, dim=-1).unflatten(0, target.shape[:2])
        counted = visible.unflatten(0, target.shape[:2])
    aligned = F.normalize(model.alignment_head(features).to(aims.dtype), dim=-1)
    distances = (aligned[:, None] - aims).square().sum(-1)
    return (torch.where(counted, distances, 0.0).sum(-1) / counted.sum(-1).clamp(min=1)).mean()
