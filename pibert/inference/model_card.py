"""The card of a model: all that is needed to predict, as plain JSON.

It states the model and its config, the fields, their standardisation, the trained heads, metrics
and provenance, and the fingerprint of the weights: weights and card of two different saves are
never combined.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
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
"""Where the header of the weights holds the text of the card."""
HEADS = ("forward", "reconstruct", "consistency")
"""What a model may have been trained for: stepping, filling gaps, scoring consistency."""
_FIXED = ("format", "version", "model", "spec", "normalizer", "units", "trained", "weights")
"""Parts that the weights depend on: an edit there is refused."""

_TABLES = ("model", "spec", "normalizer", "units", "trained", "weights", "metrics", "provenance")
"""Parts that are tables."""

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
    """A table inside a card; empty where there is none."""
    part: Any = card
    for key in path:
        part = part.get(key) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else {}


def as_text(card: Card) -> str:
    """The JSON of a card; what is no plain JSON is refused by name."""
    for part in ("provenance", "metrics"):
        try:
            json.dumps(card[part], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"expected {part} as plain JSON with finite numbers, found: {error}; leave out "
                "what is not known"
            ) from None
    return json.dumps(card, indent=2, allow_nan=False) + "\n"


def choose_card(
    weights: Path, tensors: Mapping[str, Tensor], header: str | None, beside: Path | None
) -> Card:
    """The card beside the weights where it is theirs, else the one in their header."""
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
    fitting = {place: card for place, card in cards.items() if _stated(card) == found}
    if not fitting:
        stated = " and ".join(str(_stated(card))[:12] for card in cards.values())
        raise ValueError(
            f"{weights}: expected weights with fingerprint {stated}, found {found[:12]}; the file "
            "is damaged or was changed: copy or save it again"
        )
    if len(fitting) == 2:
        _check_unedited(fitting["file"], fitting["header"], weights)
    return fitting.get("file") or fitting["header"]


def _parse_card(text: str, place: str) -> Card:
    try:
        card = parse_json(text)
    except ValueError as error:
        raise ValueError(
            f"{place}: expected JSON, found {error}; mend it, or remove {CARD}: the weights carry "
            "a copy"
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
    if large := next((n for n in _whole_numbers(card) if abs(n) >= 1 << 63), None):
        raise ValueError(
            f"{place}: expected numbers of at most 64 bits, found {str(large)[:20]} ...; the card "
            "is damaged: save the model again"
        )
    return card


def _whole_numbers(plain: Any) -> Iterator[int]:
    if isinstance(plain, dict | list):
        for entry in plain.values() if isinstance(plain, dict) else plain:
            yield from _whole_numbers(entry)
    elif isinstance(plain, int):
        yield plain


def _stated(card: Card) -> Any:
    weights = card.get("weights")
    return weights.get("sha256") if isinstance(weights, dict) else None


def _check_unedited(card: Card, header: Card, weights: Path) -> None:
    for part in _FIXED:
        if card.get(part) != header.get(part):
            place, mine, theirs = first_difference(card.get(part), header.get(part), part)
            raise ValueError(
                f"{weights.with_name(CARD)}: expected {place} = {theirs!r} as the weights were "
                f"trained, found {mine!r}; undo the edit, or remove {CARD}: the weights carry a "
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
