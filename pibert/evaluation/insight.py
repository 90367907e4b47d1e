"""Diagnostics of an evaluated model: its tokens, its embeddings, its ensemble.

Embeddings of all models are evaluated on one lattice of tokens, that of PIBERT's default, beside
three untrained ones: those of the same model with fresh weights, and the velocity itself, as all
values of a token's patch and as their mean.
"""

import math
from typing import Any

import torch
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.evaluation.alignment import Embedding, alignment, raw_input
from pibert.evaluation.ensembles import FRAMES, MEMBERS, Sampler, score_ensemble
from pibert.evaluation.measure import Entry
from pibert.evaluation.scoring import seen_by, vars_of
from pibert.evaluation.tokens import token_diagnostics
from pibert.inference import Predictor
from pibert.inference.explanation import TokenModel
from pibert.models.layers import lattice_shape
from pibert.models.pibert import PIBERTConfig
from pibert.models.stepper import Stepper

PATCH = PIBERTConfig().patch
"""Points along the side of a token that embeddings are compared at."""
MOST = 512
"""Samples whose embeddings are fitted, evenly spread over the test split."""
Insight = tuple[dict[str, Any], dict[str, Tensor]]
"""Facts for the scores, and arrays."""


def insight(predictor: Predictor, samples: Samples, windows: Samples, row: int) -> Insight:
    """Diagnostics of a model beside its scores.

    Args:
        predictor: With the model.
        samples: The test windows that all models are evaluated on.
        windows: The same frames with the history that the model was trained with.
        row: The sample whose tokens are kept.
    """
    card: dict[str, Any] = {}
    arrays: dict[str, Tensor] = {}
    model = predictor.model
    if isinstance(model, Sampler):
        card["draws"] = _draws(predictor, samples)
    if predictor.spec.velocity is None or not isinstance(model, Stepper) or not model.embedded:
        return card, arrays
    seen = seen_by(predictor, samples, [row])
    if isinstance(model, TokenModel):
        tokens = token_diagnostics(model, seen.x, seen.parameters, seen.mask)
        arrays |= {f"tokens/{name}": value for name, value in tokens.items()}
    with torch.no_grad():
        embedded = model.embed(seen.x, seen.parameters, seen.mask)
    assert embedded is not None
    patch = _patch((seen.x.shape[-2], seen.x.shape[-1]), tuple(embedded.shape[-2:]))
    facts = {
        "layer": model.embedded,
        "width": embedded.shape[1],
        "patch": patch,
        "samples": min(MOST, len(windows)),
    }
    try:
        curves = _alignments(predictor, model, windows, patch)
    except ValueError as error:  # such as a test split that is too short to be divided
        card["embedding"] = facts | {"entries": [], "values": [], "missing": str(error)}
        return card, arrays
    arrays |= {
        name: torch.tensor(list(by_scale.values()), dtype=torch.float64)
        for name, by_scale in curves.items()
    }
    entries = [
        Entry(metric=f"{name}_r2", component=f"scale {scale}", better="none")
        for name, by_scale in curves.items()
        for scale in by_scale
    ]
    values = [_plain(value) for by_scale in curves.values() for value in by_scale.values()]
    card["embedding"] = facts | {"entries": [vars_of(e) for e in entries], "values": values}
    return card, arrays


def _draws(predictor: Predictor, samples: Samples) -> dict[str, Any]:
    entries, values = score_ensemble(predictor, samples)
    return {
        "frames": min(FRAMES, len(samples)),
        "draws": MEMBERS,
        "entries": [vars_of(entry) for entry in entries],
        "values": [_plain(value) for value in values],
    }


def _alignments(
    predictor: Predictor, model: Stepper, samples: Samples, patch: int
) -> dict[str, dict[int, float]]:
    """R^2 by scale, of the model and of the untrained embeddings."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fresh = type(model)(model.config, model.spec).to(predictor.device)
    kinds: dict[str, Stepper | Embedding] = {
        "alignment": model,
        "alignment_untrained": fresh,
        "alignment_input": raw_input(predictor.spec, patch),
        "alignment_input_mean": raw_input(predictor.spec),
    }
    return {
        name: alignment(kind, samples, patch=patch, most=MOST, device=predictor.device)
        for name, kind in kinds.items()
    }


def _patch(shape: tuple[int, int], lattice: tuple[int, ...]) -> int:
    """The common patch if the model's lattice has it or divides it, else the lattice's own."""
    divisors = [size for size in range(1, PATCH + 1) if PATCH % size == 0]
    if any(lattice_shape(shape, size) == lattice for size in divisors):
        return PATCH
    return max(-(-points // tokens) for points, tokens in zip(shape, lattice, strict=True))


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
