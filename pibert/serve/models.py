"""Served models: predictor and calibration, how they are loaded, the memory of a request."""

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pibert.fields import Grid, Parameter
from pibert.inference import CalibratedPredictor, Ensemble, Prediction, Predictor, load
from pibert.inference.calibrated import load_members
from pibert.inference.calibration_file import SHEET, read_calibration, read_sheet
from pibert.inference.model_file import find_model
from pibert.inference.stream import PredictionStream
from pibert.notes import Note
from pibert.serve.answers import Answer
from pibert.serve.limits import MB, Limits
from pibert.serve.schemas import PredictRequest

SAMPLE = "sample.h5"
"""Recordings in the folder of a model, which the server offers."""
MOST_AHEAD, AHEAD = 4, 8 * MB
"""Unread blocks, and bytes of them, after which a job pauses; one block is always allowed."""
_MAPS = ("bias", "bias_map", "attention", "attention_map", "parameter_attention", "gate_map")


@dataclass(frozen=True, eq=False)
class Served:
    """A model with its name."""

    name: str
    predictor: Predictor
    path: Path
    """Its folder, or a weights file."""
    calibrated: CalibratedPredictor | None = None

    @property
    def folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    def computing(self, with_intervals: bool) -> Predictor:
        """The predictor of a request; intervals may be those of an ensemble."""
        calibrated = self.calibrated if with_intervals else None
        return self.predictor if calibrated is None else calibrated.predictor

    def facts(self) -> dict[str, Any]:
        """What every answer states about the model."""
        spec = self.predictor.spec
        return {
            "model": self.name,
            "channels": list(spec.channels),
            "units": list(spec.units),
            "dt": spec.dt,
        }

    def stream(self, request: PredictRequest) -> tuple[PredictionStream, list[Note]]:
        """The rollout that a request asks for, and the notes on it."""
        if request.consistency:
            self.predictor.require_head("consistency")
        steps = request.steps or self.predictor.horizon
        given = self.predictor.prepare(
            request.fields, request.parameters, request.mask, grid=request.grid
        )
        if request.level is None:
            return self.predictor.stream(given, steps), list(given.notes)
        if self.calibrated is None:
            raise ValueError(
                f"level: model {self.name!r} has no calibration; leave level out, or make one "
                "with pibert calibrate"
            )
        stream = self.calibrated.stream(given, steps, level=request.level, beyond="nan")
        leads, model_grid = self.calibrated.calibration.leads, self.predictor.spec.grid
        notes = list(given.notes)
        if steps > leads:
            text = f"prediction intervals for the first {leads} of {steps} frames, as calibrated"
            notes.append(Note("calibrated-leads", text))
        if not _same_cells(given.regridding.caller, model_grid):
            rows, columns = model_grid.shape
            text = (
                "prediction intervals and out-of-distribution warning were calibrated on the "
                f"model's grid ({rows} x {columns} points, cells of {model_grid.dx:.4g} x "
                f"{model_grid.dy:.4g}): coverage on another grid is unknown"
            )
            notes.append(Note("calibrated-grid", text))
        return stream, notes

    def explain(self, request: PredictRequest) -> tuple[Answer, tuple[Note, ...]]:
        """What the model attended to, and the notes on it."""
        found = self.predictor.explain(
            request.fields, request.parameters, request.mask, grid=request.grid
        )
        arrays = {"prediction": found.prediction}
        for group in ("input_residuals", "prediction_residuals"):
            arrays |= {f"{group}.{term}": value for term, value in getattr(found, group).items()}
        arrays |= {name: getattr(found, name) for name in (*_MAPS, "consistency")}
        facts = {} if found.gate is None else {"gate": found.gate}
        whole = {name: np.asarray(v) for name, v in arrays.items() if v is not None}
        return Answer(whole, facts), found.notes

    def describe(self) -> dict[str, Any]:
        """Its entry in the list of models."""
        predictor, spec, card = self.predictor, self.predictor.spec, self.predictor.card
        grid, normalizer = spec.grid, predictor.normalizer
        calibration = None
        if self.calibrated is not None:
            found = self.calibrated.calibration
            calibration = {
                "leads": found.leads,
                "highest_level": found.highest_level,
                "assumption": found.assumption(),
            }
        return {
            "name": self.name,
            "kind": card["model"]["name"],
            "channels": list(spec.channels),
            "units": list(spec.units),
            "dt": spec.dt,
            "family": spec.family,
            "history": predictor.history,
            "horizon": predictor.horizon,
            "grid": {
                "shape": list(grid.shape),
                "dx": grid.dx,
                "dy": grid.dy,
                "x0": grid.origin[0],
                "y0": grid.origin[1],
                "sides": [str(side) for side in grid.sides],
                "body": None if grid.body is None else grid.body.int().tolist(),
            },
            "normalizer": {"mean": list(normalizer.mean), "std": list(normalizer.std)},
            "parameters": [_describe(parameter) for parameter in spec.parameters],
            "trained": card["trained"],
            "weights": {key: card["weights"][key] for key in ("sha256", "parameters")},
            "metrics": card.get("metrics", {}),
            "calibration": calibration,
        }


class Cost(NamedTuple):
    """Bytes of one job."""

    start: int
    """While its fields are checked, resampled and standardised."""
    blocks: int
    """After that, while its blocks are computed, encoded, read and sent."""
    ahead: int
    """Number of blocks that may be unread."""


def cost_of(request: PredictRequest, predictor: Predictor) -> Cost:
    """An upper bound of the memory that a request takes, known before any of it is taken.

    The factors are multiples of array sizes, measured in ``tests/serve/test_worker.py``.
    """
    fields, history, horizon = request.fields.nbytes, predictor.history, predictor.horizon
    shape, members = predictor.spec.grid.shape, len(predictor.models)
    frame = 4 * request.samples * len(predictor.spec.channels) * math.prod(shape)
    window = members * (history + horizon) * frame  # each member rolls out by itself
    # Resampling to the model's grid and back: eight matrices along each axis, in double precision.
    weights = 64 * sum(n * m for n, m in zip(request.fields.shape[-2:], shape, strict=False))
    block, kept = fields * horizon // history, 4 * window + weights
    if request.level is not None:  # intervals: three arrays of frames
        block, kept = 3 * block, kept + 3 * fields
    if request.route == "explain":  # maps of the input and of the prediction
        kept += 12 * (fields + block)
    ahead = min(MOST_AHEAD, max(1, AHEAD // max(1, block)))
    # Resampling around points that are not known takes more.
    has_gaps = request.mask is not None or predictor.spec.grid.body is not None
    start = (20 if has_gaps else 8) * fields + 4 * window + 2 * weights
    return Cost(start, (ahead + (16 if has_gaps else 7)) * block + kept, ahead)


def answer_of(prediction: Prediction, is_first: bool) -> Answer:
    """A block of a rollout; the first one has the out-of-distribution warning."""
    arrays, facts = {"prediction": prediction.fields}, {}
    if prediction.known is not None:
        shape = prediction.fields.shape
        arrays["known"] = np.asarray(prediction.known).reshape(*shape[:-3], *shape[-2:])
    if prediction.intervals is not None:
        arrays |= {"low": prediction.intervals.low, "high": prediction.intervals.high}
    if is_first and prediction.ood is not None:
        ood = prediction.ood
        arrays["ood.p"] = np.asarray(ood.p)
        arrays["ood.flagged"] = np.asarray(ood.flagged, bool)
        arrays["ood.limited"] = np.asarray(ood.limited, bool)
        facts = {"level": prediction.intervals.level, "ood.reasons": list(ood.reasons)}
        facts["ood.lowest_p"] = ood.lowest_p
        if prediction.consistency is not None:
            arrays["consistency"] = np.asarray(prediction.consistency)
    return Answer(arrays, facts)


def _same_cells(grid: Grid, other: Grid) -> bool:
    pairs = ((grid.dx, other.dx), (grid.dy, other.dy))
    is_close = all(math.isclose(a, b, rel_tol=1e-3) for a, b in pairs)
    return grid.shape == other.shape and is_close


def _describe(parameter: Parameter) -> dict[str, Any]:
    ends = [parameter.lowest, parameter.highest]
    if None in ends:
        ends = parameter.restore(torch.tensor([-2.0, 2.0], dtype=torch.float64)).tolist()
    return {
        "name": parameter.name,
        "scaling": parameter.scaling,
        "mean": parameter.mean,
        "std": parameter.std,
        "range": ends,
    }


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
        name = free_name(path.stem if path.is_file() else path.name, models)
        predictor = load(path, device, chunk=max(limits.batch, limits.samples))
        predictor.require_head("forward")
        models[name] = Served(name, predictor, path)
    for folder in calibrations:
        matches = [name for name, model in models.items() if _match(model, folder)]
        if not matches:
            raise _other_weights(folder, models.values())
        for name in matches:
            if models[name].calibrated is not None:
                raise ValueError(
                    f"--calibration: expected one of model {name}, found two; the second is "
                    f"{folder}: leave one out"
                )
            models[name] = replace(models[name], calibrated=_match(models[name], folder))
    for name, model in models.items():
        if model.calibrated is None and (model.folder / SHEET).is_file():
            models[name] = replace(model, calibrated=_match(model, model.folder))
            # A weights file among others may lie beside the calibration of another one.
            if models[name].calibrated is None and model.path.is_dir():
                raise _other_weights(model.folder, [model])
    return models


def free_name(base: str, taken: Container[str]) -> str:
    """A name that is not taken: ``base``, ``base-2`` ..."""
    names = (base if number == 1 else f"{base}-{number}" for number in count(1))
    return next(name for name in names if name not in taken)


def _other_weights(folder: Path, models: Iterable[Served]) -> ValueError:
    known = ", ".join(f"{model.name} {model.predictor.weights_sha256[:12]}" for model in models)
    found = str(read_sheet(folder).get("weights_sha256"))[:12]
    return ValueError(
        f"{folder / SHEET}: expected the calibration of a model that is served ({known}), found "
        f"that of weights {found}; calibrate this model (pibert calibrate), or leave it out"
    )


def _match(model: Served, folder: Path) -> CalibratedPredictor | None:
    """The model with the calibration in a folder; None if it is that of other weights."""
    weights = str(read_sheet(folder).get("weights_sha256"))
    predictor, others = model.predictor, load_members(model.predictor, folder)
    try:
        predictor = Ensemble([predictor, *others]) if others else predictor
    except ValueError:  # no ensemble with this model
        return None
    if predictor.weights_sha256 != weights:
        return None
    return CalibratedPredictor(predictor, read_calibration(folder, weights))
