"""The card of a model: metadata as plain JSON.

It states the model and its config, the fields, their standardisation, the trained heads, metrics,
provenance, and the fingerprint of the weights: weights and card of two saves are never combined.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from pibert.config import as_plain, first_difference
from pibert.fields import FieldSpec, Normalizer
from pibert.models import MODELS, count_parameters
from pibert.textfiles import parse_json, read_text

FORMAT, VERSION = "pibert-model", 1
WEIGHTS, CARD = "model.safetensors", "model.json"
HEADER_KEY = "pibert"
"""Key of the card's text in the header of the weights."""
HEADS = ("forward", "reconstruct", "consistency")
"""Stepping, filling gaps, scoring consistency."""
_FIXED = ("format", "version", "model", "spec", "normalizer", "units", "trained", "weights")
"""Entries that the weights depend on: an edit there is refused."""
_TABLES = ("model", "spec", "normalizer", "units", "trained", "weights", "metrics", "provenance")
"""Entries that are tables."""

Card = dict[str, Any]


def make_card(
    model: nn.Module,
    normalizer: Normalizer,
    trained: Mapping[str, bool],
    provenance: Mapping[str, Any],
    metrics: Mapping[str, Any],
    weights: Mapping[str, Tensor],
) -> Card:
    """The card of a model whose state is ``weights``."""
    names = [name for name, kind in MODELS.items() if type(model) is kind]
    if not names:
        raise ValueError(
            f"expected a model of one of the kinds {', '.join(MODELS)}, found "
            f"{type(model).__name__}; give the module itself, not a wrapped or compiled one"
        )
    spec = cast(FieldSpec, model.spec)
    check_channels(normalizer, spec)
    if unknown := sorted(set(trained) - set(HEADS)):
        raise ValueError(f"trained: expected names among {list(HEADS)}, found {unknown}")
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": {"name": names[0], "config": as_plain(model.config)},
        "spec": spec.to_dict(),
        "normalizer": {"mean": list(normalizer.mean), "std": list(normalizer.std)},
        "units": dict(zip(spec.channels, spec.units, strict=True)),
        "trained": {head: bool(trained.get(head, False)) for head in HEADS},
        "provenance": dict(provenance),
        "metrics": dict(metrics),
        "weights": {
            "file": WEIGHTS,
            "parameters": count_parameters(model),
            "sha256": fingerprint(weights),
        },
    }


def in_a_line(card: Card, spec: FieldSpec, kind: str) -> str:
    """A model in one line; ``kind`` where the card does not name it."""
    stated, grid = card.get("weights", {}).get("sha256"), spec.grid
    units = zip(spec.channels, spec.units, strict=True)
    return ", ".join(
        (
            card.get("model", {}).get("name", kind) + (f" {stated[:12]}" if stated else ""),
            "channels " + " ".join(n if unit == "1" else f"{n} [{unit}]" for n, unit in units),
            f"{grid.shape[0]} x {grid.shape[1]} points (rows x columns)",
            f"dx {grid.dx:.4g}, dy {grid.dy:.4g}",
            "dt unknown" if spec.dt is None else f"dt {spec.dt:.4g}",
        )
    )


def stated_in(card: Card, *path: str) -> dict[str, Any]:
    """A table inside a card; empty if there is none."""
    table: Any = card
    for key in path:
        table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, dict) else {}


def as_text(card: Card) -> str:
    """The JSON of a card."""
    try:
        return json.dumps(card, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"expected provenance and metrics as plain JSON with finite numbers, found: {error}; "
            "leave out what is unknown"
        ) from None


def choose_card(
    weights: Path, tensors: Mapping[str, Tensor], header: str | None, beside: Path | None
) -> Card:
    """The card beside the weights if it has their fingerprint, else the one in their header."""
    cards = {}
    if header is not None:
        cards["header"] = _parse_card(header, f"header of {weights}")
    if beside is not None and beside.is_file():
        cards["file"] = _parse_card(read_text(beside, errors="replace"), str(beside))
    if not cards:
        raise ValueError(
            f"{weights}: expected a pibert model, found weights without a card (no key "
            f"{HEADER_KEY!r} in the header, no {CARD} beside them); save it with "
            "pibert.inference.save_model"
        )
    found = fingerprint(tensors)
    stated = {place: stated_in(card, "weights").get("sha256") for place, card in cards.items()}
    fitting = {place: card for place, card in cards.items() if stated[place] == found}
    if not fitting:
        expected = " and ".join(str(sha256)[:12] for sha256 in stated.values())
        raise ValueError(
            f"{weights}: expected weights with fingerprint {expected}, found {found[:12]}; the "
            "file is damaged or was changed: copy or save it again"
        )
    if len(fitting) == 2:
        _check_unedited(fitting["file"], fitting["header"], weights)
    return fitting.get("file") or fitting["header"]


def _parse_card(text: str, place: str) -> Card:
    try:
        card = parse_json(text)
    except ValueError as error:
        raise ValueError(
            f"{place}: expected JSON, found {error}; correct it, or remove {CARD}: the weights "
            "carry a copy"
        ) from None
    if not isinstance(card, dict) or card.get("format") != FORMAT:
        found = card.get("format") if isinstance(card, dict) else type(card).__name__
        raise ValueError(f"{place}: expected format {FORMAT!r}, found {found!r}; not a model")
    version = card.get("version")
    if type(version) is not int or not 1 <= version <= VERSION:
        raise ValueError(
            f"{place}: expected version 1 to {VERSION}, found {version!r}; update pibert to read it"
        )
    for name in _TABLES:
        if not isinstance(card.get(name, {}), dict):
            raise ValueError(
                f"{place}: expected a table {name}, found {str(card[name])[:40]!r}; save the model "
                "again"
            )
    return card


def _check_unedited(card: Card, header: Card, weights: Path) -> None:
    for name in _FIXED:
        if card.get(name) != header.get(name):
            key, found, expected = first_difference(card.get(name), header.get(name), name)
            raise ValueError(
                f"{weights.with_name(CARD)}: expected {key} = {expected!r} as the weights were "
                f"trained, found {found!r}; undo the edit, or remove {CARD}: the weights carry a "
                "copy"
            )


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over name, type, shape and bytes of every tensor, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_channels(normalizer: Normalizer, spec: FieldSpec) -> None:
    if len(normalizer.mean) != len(spec.channels):
        raise ValueError(
            f"expected a normalizer of {len(spec.channels)} channels {list(spec.channels)}, found "
            f"{len(normalizer.mean)}"
        )


_PURPOSES = {
    "forward": ("step", "fine-tune it: pibert train"),
    "reconstruct": ("fill gaps", "train it with masked physics prediction: pibert pretrain"),
    "consistency": (
        "score consistency",
        "train it with equation consistency prediction: pibert pretrain",
    ),
}
"""What each head is for, and how to train it."""


def has_head(model: nn.Module, card: Card, head: str) -> bool:
    """Whether a model has a trained head; without a card all heads count as trained."""
    trained = card.get("trained", dict.fromkeys(HEADS, True))
    return callable(getattr(model, head, None)) and bool(trained.get(head, False))


def require_head(model: nn.Module, card: Card, head: str) -> None:
    """Raise unless the model has this head and it was trained."""
    purpose, remedy = _PURPOSES[head]
    if not callable(getattr(model, head, None)):
        raise ValueError(
            f"expected a model that can {purpose}, found {type(model).__name__}, which has no "
            f"{head} head; take another model, such as pibert"
        )
    if not has_head(model, card, head):
        able = [name for name in HEADS if has_head(model, card, name)]
        raise ValueError(
            f"expected a model trained to {purpose}, found one whose trained heads are {able}; "
            f"{remedy}"
        )
