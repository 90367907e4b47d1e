"""Loads the models to serve with their calibrations."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pibert.inference import CalibratedPredictor, load
from pibert.inference.calibrated import load_members
from pibert.inference.calibration_file import SHEET, read_calibration, read_sheet
from pibert.inference.ensemble import Ensemble
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
        calibrations: Folders of calibrations, matched to the models by the weights they state. A
            model without one here takes the one in its own folder.
    """
    models: dict[str, Served] = {}
    for name_or_path in names:
        path = find_model(name_or_path).resolve()
        base = name = path.stem if path.is_file() else path.name
        count = 1
        while name in models:
            count += 1
            name = f"{base}-{count}"
        predictor = load(path, device, chunk=max(limits.batch, limits.samples))
        predictor.require_head("forward")
        models[name] = Served(name, predictor, path)
    calibrated: dict[str, CalibratedPredictor] = {}
    for folder in calibrations:
        matches = {
            name: found for name, model in models.items() if (found := _match(model, folder))
        }
        if not matches:
            known = (
                f"{name} {model.predictor.weights_sha256[:12]}" for name, model in models.items()
            )
            raise ValueError(
                f"{folder / SHEET}: expected the calibration of a model that is served "
                f"({', '.join(known)}), found that of weights {_stated(folder)[:12]}; serve that "
                "model, or leave it out"
            )
        if twice := sorted(set(matches) & set(calibrated)):
            raise ValueError(
                f"--calibration: expected one of model {twice[0]}, found two; the second is "
                f"{folder}: leave one out"
            )
        calibrated |= matches
    for name, model in models.items():
        if name not in calibrated and (model.folder / SHEET).is_file():
            found = _match(model, model.folder)
            # A weights file among others may lie beside the calibration of another one.
            if found is None and model.path.is_dir():
                weights, stated = model.predictor.weights_sha256, _stated(model.folder)
                raise ValueError(
                    f"{model.folder / SHEET}: expected the calibration of weights {weights[:12]}, "
                    f"found that of {stated[:12]}; calibrate this model again: pibert calibrate"
                )
            if found is not None:
                calibrated[name] = found
    return {name: replace(model, calibrated=calibrated.get(name)) for name, model in models.items()}


def _stated(folder: Path) -> str:
    return str(read_sheet(folder).get("weights_sha256"))


def _match(model: Served, folder: Path) -> CalibratedPredictor | None:
    """The model with the calibration in a folder; None if it is that of other weights."""
    weights = _stated(folder)
    predictor, others = model.predictor, load_members(model.predictor, folder)
    try:
        predictor = Ensemble([predictor, *others]) if others else predictor
    except ValueError:  # no ensemble with this model
        return None
    if predictor.weights_sha256 != weights:
        return None
    return CalibratedPredictor(predictor, read_calibration(folder, weights))
