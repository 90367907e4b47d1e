"""A trained model on disk: ``model.safetensors`` and ``model.json`` in one folder, no pickle.

The JSON is the card; the header of the weights holds a copy. Both files are written under other
names and renamed when complete, the weights first. An interruption may leave new weights beside an
old card, so a card counts only if it has the fingerprint of the weights. ``docs/model-file.md``
specifies the format. A shipped model is a folder ``pibert/weights/NAME``.

A damaged card may ask for a model of any size. So the model is first built on PyTorch's meta
device, where tensors take no memory, and given up as soon as it has more values than the file.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from pibert import __version__
from pibert.config import as_plain, parse
from pibert.fields import FieldSpec, Normalizer
from pibert.inference.model_card import (
    CARD,
    FORMAT,
    HEADER_KEY,
    WEIGHTS,
    Card,
    as_text,
    check_channels,
    choose_card,
    make_card,
    stated_in,
)
from pibert.models import MODELS, PRESETS
from pibert.models.compatibility import current_options, current_weights
from pibert.tensorfiles import read_safetensors

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
        normalizer = Normalizer(tuple(scaling["mean"]), tuple(scaling["std"]))
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
    written = stated_in(card, "provenance", "versions").get("pibert")
    by = f" It was saved by pibert {written}, this is {__version__}." if written else ""
    return (
        f"the model {name!r} is not known here; known: {', '.join(MODELS)}. Import the module that "
        "adds it to pibert.models.MODELS before you load it (on the command line, run that module "
        f"in place of pibert), or update pibert.{by}"
    )


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
    """The path of a model: an existing path, or the shipped model of that name."""
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
        f"{path}: expected a run folder, a model folder, a .safetensors file or the name of a "
        f"shipped model, found nothing; check the path ({remedy})"
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
        with torch.device("meta"), _no_larger_than(tensors):
            skeleton = kind(config, spec)
    except (NotImplementedError, RuntimeError):
        skeleton = None  # a model of the user that computes while it is built
    if skeleton is not None:
        _check_fit(tensors, skeleton.state_dict())
    with torch.random.fork_rng(devices=[]), _no_larger_than(tensors):
        model = kind(config, spec)
    _check_fit(tensors, model.state_dict())
    return model


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
            "; weights and card are not of one model, or this pibert builds it otherwise"
        )


def _few(names: list[str], most: int = 3) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more
