"""A trained model on disk: ``model.safetensors`` and ``model.json`` in one folder, no pickle.

The JSON is the card; the same text lies in the header of the weights. Both files are written under
other names and renamed when they are whole, the weights first. A stop between the two renames
leaves new weights beside an old card: so a card counts only if it has the fingerprint of the
weights, as the one in the header has. ``docs/model-file.md`` specifies the format.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from pibert import __version__
from pibert.config import parse
from pibert.fields import FieldSpec, Normalizer
from pibert.models import MODELS, PRESETS
from pibert.predictor.card import (
    CARD,
    FORMAT,
    HEADER_KEY,
    WEIGHTS,
    Card,
    as_text,
    check_channels,
    choose_card,
    make_card,
)
from pibert.predictor.fitting import build_for, few
from pibert.predictor.shipped import choose_device, find_model
from pibert.tensorfiles import read_safetensors


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    """What a model file holds."""

    model: nn.Module
    """In evaluation mode."""
    normalizer: Normalizer
    card: Card


def save_model(
    folder: Path | str,
    model: nn.Module,
    normalizer: Normalizer,
    *,
    trained: Mapping[str, bool],
    provenance: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model whole or not at all; one that is there already is replaced.

    Args:
        folder: Made if it is not there.
        model: One of ``MODELS``, not wrapped or compiled, with finite float32 weights.
        normalizer: Of the channels of ``model.spec``.
        trained: Which of ``HEADS`` were trained; one that is left out was not.
        provenance: Plain JSON: experiment, identity of the data, versions, commit, seed.
        metrics: Plain JSON: how good it is, on what.

    Returns:
        The folder.
    """
    # Where files cannot be locked models can still be loaded.
    from pibert.data.partial import remove_leftovers

    folder = Path(folder)
    tensors = {n: t.detach().cpu().contiguous() for n, t in model.state_dict().items()}
    _check_weights(tensors)
    card = make_card(model, normalizer, trained, provenance or {}, metrics or {}, tensors)
    text = as_text(card)
    folder.mkdir(parents=True, exist_ok=True)
    # A clone of each: tensors that share memory would be refused.
    data = save({name: t.clone() for name, t in tensors.items()}, {HEADER_KEY: text})
    for name, content in ((WEIGHTS, data), (CARD, text.encode())):
        remove_leftovers(folder / name)
        _replace(folder / name, content)
    return folder


def read_model(name_or_path: Path | str, device: torch.device | str = "cpu") -> SavedModel:
    """The model of a folder, of a weights file alone, or a shipped one by its name.

    The random numbers of the process stay as they are.
    """
    device = choose_device(device)
    weights, beside = _locate(find_model(name_or_path))
    tensors, header = _read_weights(weights)
    card = choose_card(weights, tensors, header, beside)
    try:
        name = card["model"]["name"]
        if name not in MODELS:
            raise ValueError(_unknown_model(name, card))
        spec, scaling = FieldSpec.from_dict(card["spec"]), card["normalizer"]
        normalizer = Normalizer(tuple(scaling["mean"]), tuple(scaling["std"]))
        check_channels(normalizer, spec)
        kind = type(next(iter(PRESETS[name].values())))
        config = parse(kind, card["model"]["config"], "model.config")
        model = build_for(MODELS[name], config, spec, tensors)
        _check_weights(tensors)
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise ValueError(
            f"{weights}: expected a complete {FORMAT} card, found one that lacks or garbles "
            f"{error}; save the model again"
        ) from error
    except ValueError as error:
        raise ValueError(f"{weights}: {error}") from error
    model.load_state_dict(tensors)
    return SavedModel(model=model.to(device).eval(), normalizer=normalizer, card=card)


def _unknown_model(name: str, card: Card) -> str:
    """Why the model of a card cannot be built, and what to do."""
    by = ""
    with suppress(LookupError, TypeError):
        written = card["provenance"]["versions"]["pibert"]
        by = f" It was saved by pibert {written}, this is {__version__}."
    return (
        f"the model {name!r} is not known here; known: {', '.join(MODELS)}. If it is a model of "
        "your own, import the module that adds it to pibert.models.MODELS before you load it (on "
        "the command line, run that module in place of pibert). A model of a newer pibert needs "
        f"that version.{by}"
    )


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole, or say that it was not."""
    from pibert.data.partial import replace_file

    try:
        replace_file(path, content)
    except OSError as error:
        kept = "; the file before it is kept" if path.exists() else ""
        raise OSError(error.errno, f"not written ({error.strerror}){kept}", str(path)) from error


def _locate(path: Path) -> tuple[Path, Path | None]:
    """The weights, and the card beside them: a weights file that is named itself needs none."""
    if path.is_file():
        if path.suffix != ".safetensors":
            raise ValueError(
                f"{path}: expected a folder with {WEIGHTS} or a .safetensors file, found another "
                "file; give the folder that it lies in"
            )
        return path, None
    weights = path / WEIGHTS
    if not weights.is_file():
        raise FileNotFoundError(
            f"{path}: expected {WEIGHTS} in this folder, found none; a run writes it after its "
            "first validation"
        )
    return weights, path / CARD


def _read_weights(path: Path) -> tuple[dict[str, Tensor], str | None]:
    """All tensors, and the card's text in the header."""
    try:
        tensors, metadata = read_safetensors(path)
    except ValueError as error:
        raise ValueError(
            f"{path}: expected a whole safetensors file, {error}; it is cut short or of another "
            "kind: copy or save it again"
        ) from error
    return tensors, metadata.get(HEADER_KEY)


def _check_weights(tensors: Mapping[str, Tensor]) -> None:
    """Single precision, as models are built, and finite."""
    floating = {name: t for name, t in tensors.items() if t.is_floating_point()}
    wide = [f"{name} {t.dtype}" for name, t in floating.items() if t.dtype != torch.float32]
    if wide:
        raise ValueError(f"expected weights in float32, found {few(wide)}; call model.float()")
    bad = [name for name, t in floating.items() if not bool(t.isfinite().all())]
    if bad:
        raise ValueError(
            f"expected finite weights, found NaN or infinity in {few(bad)}; the training "
            "diverged: take an earlier model"
        )
