"""Masked physics prediction: a model sees a field with points hidden and is asked for them.

    L_mpp = mean over hidden points and channels of (g - x)^2 + lambda mean over points of (D g)^2

with the reconstruction g = ``model.reconstruct`` of what ``pretraining.corruption`` leaves of x, in
standardised units, and the divergence D g in the units of ``training.losses``. The first mean is
that of each sample over its own hidden points, all of them known: removed, noised or kept. The
second takes the whole reconstruction, hidden or not, as far as the field is known. Its weight is
``Masking.divergence``, zero unless asked for.
"""

from typing import Any, cast

from torch import Tensor, nn

from pibert.fields import Batch, FieldSpec, Normalizer
from pibert.pretraining.corruption import corrupt
from pibert.pretraining.masks import Masking, choose
from pibert.training.losses import LossScales, divergence, reconstruction
from pibert.training.objectives import Objective


def masked_physics(
    masking: Masking, spec: FieldSpec, normalizer: Normalizer, scales: LossScales
) -> Objective:
    """The objective of masked physics prediction; logs ``mpp`` and ``mpp_divergence``.

    Args:
        masking: What is hidden, and the weight of the divergence.
        spec: Of the input channels.
        normalizer: Of the input channels.
        scales: Of the input channels; used for the divergence alone.
    """
    if masking.divergence:
        scales.refuse_divergence("the divergence of the reconstruction")
    count = len(spec.channels)

    def objective(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = choose(batch, masking, spec, normalizer)
        seen = corrupt(batch, hidden, masking, spec, normalizer)
        found = cast(Any, model).reconstruct(seen.x, batch.parameters, seen.mask)
        loss = reconstruction(found, batch.x, seen.hidden)
        logs = {"mpp": loss.detach()}
        if masking.divergence:
            frames = found.unflatten(1, (-1, count))
            penalty = divergence(frames, scales, batch.mask[:, None])
            loss = loss + masking.divergence * penalty
            logs["mpp_divergence"] = penalty.detach()
        return loss, logs | {"loss": loss.detach()}

    return objective
