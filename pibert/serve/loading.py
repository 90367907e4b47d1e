"""Loads the models to serve with their calibrations."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pibert.inference import CalibratedPredictor, Ensemble, Predictor
from pibert.inference import load as load_predictor
from pibert.inference.calibration_file import SHEET, read_calibration, read_sheet
from pibert.inference.ensemble import identity
from pibert.inference.model_card import require_head
from pibert.inference.model_file import find_model
from pibert.serve.limits import Limits
from pibert.serve.models import Served


def load_served(
    names: Sequence[str], device: str, limits: Limits, calibrations: Sequence[Path] = ()
) -> dict[str, Served]:
    """Models by name: that of their folder, or of the weights file.

    Args:
        names: Paths, or names of shipped models.
        device: Where to compute.
        limits: Of a request.
        calibrations: Folders of calibrations, each of one of the models, which it tells by its
            weights. A model that has none here takes the one in its own folder.
    """
    found: dict[str, Served] = {}
    beside: dict[str, Path] = {}
    for name_or_path in names:
        path = find_model(name_or_path).resolve()
        base = name = path.stem if path.is_file() else path.name
        count = 1
        while name in found:
            count += 1
            name = f"{base}-{count}"
        predictor = load_predictor(path, device, chunk=max(limits.batch, limits.samples))
        require_head(predictor.model, predictor.card, "forward")
        found[name] = Served(name, predictor, path if path.is_dir() else None)
        beside[name] = path if path.is_dir() else path.parent
    return _add_calibrations(found, beside, device, calibrations)


def _add_calibrations(
    models: Mapping[str, Served], beside: Mapping[str, Path], device: str, folders: Sequence[Path]
) -> dict[str, Served]:
    """The models with their calibrations: one that is named counts before that beside the model."""
    found: dict[str, CalibratedPredictor] = {}
    for folder in folders:
        matches = _matching(models, device, folder)
        if not matches:
            known = ", ".join(f"{name} {_short(own)}" for name, own in models.items())
            raise ValueError(
                f"{folder / SHEET}: expected the calibration of a model that is served ({known}), "
                f"found that of weights {_stated(folder)[:12]}; serve that model, or leave it out"
            )
        if twice := sorted(set(matches) & set(found)):
            raise ValueError(
                f"--calibration: expected one of model {twice[0]}, found two; the second is "
                f"{folder}: leave one out"
            )
        found |= matches
    for name, own in models.items():
        folder = beside[name]
        if name not in found and (folder / SHEET).is_file():
            predictor = _joined(own.predictor, _members(folder, device))
            if own.folder is None and identity(predictor) != _stated(folder):
                continue  # a weights file among others, and the calibration is that of another
            found[name] = CalibratedPredictor(
                predictor, read_calibration(folder, identity(predictor))
            )
    return {name: replace(own, trusted=found.get(name)) for name, own in models.items()}


def _matching(
    models: Mapping[str, Served], device: str, folder: Path
) -> dict[str, CalibratedPredictor]:
    """The models whose weights a calibration names, with it."""
    weights, members = _stated(folder), _members(folder, device)
    found = {}
    for name, own in models.items():
        try:
            predictor = _joined(own.predictor, members)
        except ValueError:  # no ensemble with this model
            continue
        if identity(predictor) == weights:
            found[name] = CalibratedPredictor(predictor, read_calibration(folder, weights))
    return found


def _stated(folder: Path) -> str:
    return str(read_sheet(folder).get("weights_sha256"))


def _members(folder: Path, device: str) -> list[Predictor]:
    """The other members of an ensemble, if it is one that was calibrated."""
    return [load_predictor(folder / own, device) for own in read_sheet(folder).get("members", [])]


def _joined(predictor: Predictor, members: Sequence[Predictor]) -> Predictor | Ensemble:
    return Ensemble([predictor, *members]) if members else predictor


def _short(served: Served) -> str:
    return identity(served.predictor)[:12]
