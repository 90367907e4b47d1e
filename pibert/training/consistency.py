"""Equation consistency prediction: tell windows that obey their equation from such that do not.

Every valid window of a batch meets one negative made from it. With the logits l of a valid and l'
of an invalid window, a sample's loss is the binary cross-entropy of both,

    (softplus(-l) + softplus(l')) / 2,

log 2 for a model that knows nothing.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pibert.fields import Batch
from pibert.pretraining.negatives import Negatives
from pibert.training.objectives import Objective, in_turns


def equation_consistency(negatives: Negatives) -> Objective:
    """The objective; its log has the loss as ``ecp``, and ``ecp_accuracy`` at logit zero.

    The model is called once, through ``consistency``, with valid and invalid windows together.
    """

    def objective(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        judge: Any = model
        x, parameters = negatives.draw(batch, model)
        logits = judge.consistency(
            torch.cat((batch.x, x)),
            torch.cat((batch.parameters, parameters)),
            torch.cat((batch.mask, batch.mask)),
        ).float()
        valid, invalid = logits.chunk(2)
        loss = (F.softplus(-valid) + F.softplus(invalid)).mean() / 2
        with torch.no_grad():
            accuracy = ((valid > 0).float() + (invalid <= 0).float()).mean() / 2
        return loss, {"ecp": loss.detach(), "ecp_accuracy": accuracy, "loss": loss.detach()}

    return in_turns(objective, negatives.period)
