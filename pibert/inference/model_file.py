"""A trained model on disk: ``model.safetensors`` and ``model.json`` in one folder, no pickle.

The JSON is the card: the model and its config, the fields, their standardisation, the trained
heads, metrics, provenance and the fingerprint of the weights. The header of the weights holds a
copy. Both files are written under other names and renamed when complete, the weights first. An
interruption may leave new weights beside an old card, so a card counts only if it has the
fingerprint of the weights. ``docs/model-file.md`` specifies the format. A shipped model is a folder
``pibert/weights/NAME``.

A damaged card may ask for a model of any size. So the model is first built on PyTorch's meta
device, where tensors take no memory, and given up as soon as it has more values than the file.
"""

import difflib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from pibert import __version__
from pibert.config import as_plain, first_difference, parse
from pibert.fields import FieldSpec, Normalizer
from pibert.files import parse_json, read_safetensors, read_text
from pibert.models import MODELS, PRESETS, count_parameters
from pibert.models.compatibility import current_options, current_weights

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
FOLDER = Path(__file__).parents[1] / "weights"
MOST_VALUES = 1 << 25
"""Values in one input or output of a model: 4096 x 4096 points with two channels."""
MOST_COUNT = 1 << 16
"""The largest whole number among the options of a model."""


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
    """Write a model completely or not at all; an existing one is replaced.

    Args:
        folder: Created if it does not exist.
        model: One of ``MODELS``, not wrapped or compiled, with finite float32 weights.
        normalizer: Of the channels of ``model.spec``.
        trained: Which of ``HEADS`` were trained; others were not.
        provenance: Plain JSON: experiment, identity of the data, versions, commit, seed.
        metrics: Plain JSON: how good it is, on what.

    Returns:
        The folder.
    """
    # Imported here: models can be loaded where files cannot be locked.
    from pibert.data.partial import remove_leftovers, replace_file

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
        replace_file(folder / name, content)
    return folder


def read_model(name_or_path: Path | str, device: torch.device | str = "cpu") -> SavedModel:
    """The model of a folder, of a weights file alone, or a shipped one by its name.

    The global random state is not changed.
    """
    device = choose_device(device)
    path = find_model(name_or_path)
    weights, beside = (path, None) if path.is_file() else (path / WEIGHTS, path / CARD)
    if weights.suffix != ".safetensors" or not weights.is_file():
        raise FileNotFoundError(
            f"{path}: expected a folder with {WEIGHTS} or a .safetensors file, found neither; a "
            "run writes it after its first validation"
        )
    try:
        tensors, metadata = read_safetensors(weights)
    except ValueError as error:
        raise ValueError(
            f"{weights}: expected a whole safetensors file, {error}; it is cut short or of another "
            "kind: copy or save it again"
        ) from error
    card = choose_card(weights, tensors, metadata.get(HEADER_KEY), beside)
    try:
        name = card["model"]["name"]
        if name not in MODELS:
            raise ValueError(_unknown_model(name, card))
        spec, scaling = FieldSpec.from_dict(card["spec"]), card["normalizer"]
        normalizer = Normalizer(*(tuple(map(float, scaling[k])) for k in ("mean", "std")))
        check_channels(normalizer, spec)
        kind = type(next(iter(PRESETS[name].values())))
        config = parse(kind, current_options(name, card["model"]["config"]), "model.config")
        tensors = current_weights(name, tensors)
        model = _build_for(MODELS[name], config, spec, tensors)
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
    provenance = stated_in(card, "provenance")
    origin = provenance.get("model_from")
    remedy = (
        "install the package that adds it, or name the file that does: pibert --import FILE.py ... "
        "(in Python, import it first)"
    )
    if origin and str(origin).endswith(".py"):
        remedy = f"it is in {origin}: pibert --import {origin} ... (in Python, import that first)"
    elif origin:
        remedy = f"it is in the package {origin}: install that"
    written = stated_in(provenance, "versions").get("pibert")
    by = ""
    if written and written != __version__:
        by = f", or update: it was saved by pibert {written}, this is {__version__}"
    return f"the model {name!r} is not known here; known: {', '.join(MODELS)}; {remedy}{by}"


def _check_weights(tensors: Mapping[str, Tensor]) -> None:
    """Raise unless the weights are finite and in single precision, as models are built."""
    floating = {name: t for name, t in tensors.items() if t.is_floating_point()}
    wide = [f"{name} {t.dtype}" for name, t in floating.items() if t.dtype != torch.float32]
    if wide:
        raise ValueError(f"expected weights in float32, found {_few(wide)}; call model.float()")
    bad = [name for name, t in floating.items() if not bool(t.isfinite().all())]
    if bad:
        raise ValueError(
            f"expected finite weights, found NaN or infinity in {_few(bad)}; the training "
            "diverged: take an earlier model"
        )


def shipped_models() -> dict[str, Path]:
    """Name and folder of every model that comes with the package, sorted by name."""
    return {weights.parent.name: weights.parent for weights in sorted(FOLDER.glob(f"*/{WEIGHTS}"))}


def find_model(name_or_path: Path | str) -> Path:
    """The path of a model: an existing path, the shipped model of that name, or one of the hub."""
    if str(name_or_path).startswith("hf:/"):
        from pibert.inference.hub import fetch_model

        return fetch_model(str(name_or_path))
    path, shipped = Path(name_or_path), shipped_models()
    if path.exists():
        return path
    name = str(name_or_path)
    if name in shipped:
        return shipped[name]
    remedy = f"shipped models: {', '.join(shipped) or 'none'}"
    if close := difflib.get_close_matches(name, shipped):
        remedy = f"did you mean {' or '.join(close)}? {remedy}"
    raise FileNotFoundError(
        f"{path}: expected a run folder, a model folder, a .safetensors file, the name of a "
        f"shipped model or hf://OWNER/NAME, found nothing; check the path ({remedy})"
    )


def choose_device(device: torch.device | str) -> torch.device:
    """A device of this machine; ``auto``: CUDA, else Apple's MPS, else the CPU."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device == "auto":
        return torch.device(
            next((name for name, is_present in present.items() if is_present), "cpu")
        )
    try:
        chosen = torch.device(device)
    except RuntimeError:
        chosen = None
    if chosen is None or not present.get(chosen.type, True):
        names = ", ".join(["cpu", *(name for name in present if present[name])])
        raise ValueError(
            f"expected a device of this machine ({names}) or 'auto', found {str(device)!r}"
        )
    return chosen


def _build_for(
    kind: Callable[[Any, FieldSpec], nn.Module],
    config: Any,
    spec: FieldSpec,
    tensors: Mapping[str, Tensor],
) -> nn.Module:
    """A new model whose state has the names, shapes and types of the tensors; else ValueError."""
    _check_fields(config, spec)
    try:
        with torch.device("meta"), _Unfilled(), _no_larger_than(tensors):
            skeleton = kind(config, spec)
    except (NotImplementedError, RuntimeError):
        skeleton = None  # a model of the user that computes while it is built
    if skeleton is not None:
        _check_fit(tensors, skeleton.state_dict())
    with torch.random.fork_rng(devices=[]), _no_larger_than(tensors):
        model = kind(config, spec)
    _check_fit(tensors, model.state_dict())
    return model


class _Unfilled(TorchFunctionMode):
    """Leaves out random initial values: on the meta device, torch imports its compiler for them."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "normal_":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _check_fields(config: Any, spec: FieldSpec) -> None:
    for name, value in as_plain(config).items():
        if isinstance(value, int) and abs(value) > MOST_COUNT:
            raise ValueError(
                f"model.config.{name}: expected at most {MOST_COUNT:,}, found {str(value)[:20]}; "
                "the card is damaged"
            )
    rows, columns = spec.grid.shape
    for what in ("history", "horizon"):
        frames = getattr(config, what)
        if frames * len(spec.channels) * rows * columns > MOST_VALUES:
            raise ValueError(
                f"expected a model of fields with at most {MOST_VALUES:,} values, found {what} "
                f"{frames} of {len(spec.channels)} channels on {rows} x {columns} points; the card "
                "is damaged, or the model is too large for this program"
            )


@contextmanager
def _no_larger_than(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Raise when a model that is being built has more numbers than there are weights."""
    most = sum(tensor.numel() for tensor in tensors.values())
    total = 0

    def count(module: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal total
        total += 0 if parameter is None else parameter.numel()
        # A parameter may be shared by two layers, or replaced while they are built.
        if total > 2 * most:
            raise ValueError(
                f"expected a model of {most:,} numbers, as there are weights, found a config that "
                "asks for a larger one; weights and card are not of one model"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _check_fit(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    problems = [f"no {name}" for name in expected if name not in found]
    problems += [f"{name}, which the model has not" for name in found if name not in expected]
    for name in sorted(expected.keys() & found.keys()):
        ours, theirs = expected[name], found[name]
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            problems.append(
                f"{name} {theirs.dtype} {list(theirs.shape)} for {ours.dtype} {list(ours.shape)}"
            )
    if problems:
        raise ValueError(
            f"expected the {len(expected)} tensors that the config asks for, found {_few(problems)}"
            "; weights and card are not of one model, or this pibert builds it otherwise: "
            "train it again"
        )


def _few(names: list[str], most: int = 3) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more


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
    if any(abs(number) >= 1 << 63 for number in _whole_numbers(card)):
        raise ValueError(
            f"{place}: expected numbers of at most 64 bits, found a larger one; the card is "
            "damaged: save the model again"
        )
    return card


def _whole_numbers(plain: Any) -> Iterator[int]:
    if isinstance(plain, dict | list):
        for entry in plain.values() if isinstance(plain, dict) else plain:
            yield from _whole_numbers(entry)
    elif isinstance(plain, int):
        yield plain


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
