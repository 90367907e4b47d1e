"""The scores of one model: a pair of files in its run folder.

``scores.safetensors`` holds terms of measures, errors of single frames, and of the predictions only
what pictures need; ``scores.json`` says what they are: data, model, entries of each measure, cost,
circumstances. Numbers and intervals are made from them (``pibert.comparison``) without a model.

    terms/<space>/<measure>   (rows, k) of frames or sequences; space: physical or standardised
    rows/trajectory, rows/frame          of every frame: where it is from
    sequences/trajectory                 of every row of a measure of sequences
    errors/prediction, errors/last       relative error of every frame: the model's, persistence's
    picks/rows, picks/<what>             frames to look at: truth, prediction, last, known
    strip/rows, strip/<what>             frames one after the other: truth, prediction, known
    probes/<what>, rollout/<what>, tokens/<what>                         where there are any
    alignment, alignment_<control>       R^2 by scale of embeddings and of what was never trained
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from pibert.data.partial import replace_file
from pibert.tensorfiles import read_safetensors
from pibert.textfiles import read_json

FORMAT = 3
NAME = "scores"


@dataclass(frozen=True, eq=False)
class Scores:
    """Tensors by name, and a card that says what they are."""

    card: dict[str, Any]
    arrays: Mapping[str, Tensor] = field(default_factory=dict)

    def group(self, prefix: str) -> dict[str, Tensor]:
        """The arrays below a name, such as ``picks``."""
        start = f"{prefix}/"
        return {k.removeprefix(start): v for k, v in self.arrays.items() if k.startswith(start)}


def save_scores(folder: Path, scores: Scores) -> None:
    """Write both files; the card last, so that where it is, the rest is too."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in scores.arrays.items()}
    replace_file(folder / f"{NAME}.safetensors", save(tensors))
    save_card(folder, scores.card)


def save_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write the card alone."""
    text = json.dumps({**card, "format": FORMAT}, indent=1) + "\n"
    replace_file(folder / f"{NAME}.json", text.encode())


def read_card(folder: Path) -> dict[str, Any]:
    """What a model was scored on."""
    path = folder / f"{NAME}.json"
    try:
        card = read_json(path)
        if not isinstance(card, dict) or card.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}, found {dict(card).get('format')}")
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path}: not the scores of a model ({error}); remove it and evaluate again"
        ) from None
    return card


def read_scores(folder: Path) -> Scores:
    """What ``save_scores`` wrote."""
    path = folder / f"{NAME}.safetensors"
    card = read_card(folder)
    try:
        arrays, _ = read_safetensors(path)
    except ValueError as error:
        raise ValueError(f"{path}: damaged ({error}); remove it and evaluate again") from None
    for name, value in arrays.items():
        if name.startswith("terms/") and value.dtype != torch.float64:
            raise ValueError(f"{path}: expected terms in float64, found {name} in {value.dtype}")
    return Scores(card, arrays)


def as_number(value: Any) -> float | None:
    """A number for JSON; None where it is not finite."""
    number = float(value)
    return number if math.isfinite(number) else None
