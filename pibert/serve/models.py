"""A served model: its predictor, its prediction intervals if it is calibrated, what it costs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pibert.fields import Grid, Parameter
from pibert.inference import Predictor
from pibert.inference.model_card import require_head
from pibert.notes import warn
from pibert.serve.answers import Answer
from pibert.serve.limits import MB
from pibert.serve.schemas import PredictRequest

SAMPLE = "sample.h5"
"""Recordings in the folder of a model, which the server offers."""
MOST_AHEAD, AHEAD = 4, 8 * MB
"""Blocks, and bytes of blocks, that may lie unread before a job stands back; one always may."""
_MAPS = ("bias", "bias_map", "attention", "attention_map", "parameter_attention", "gate_map")


@dataclass(frozen=True, eq=False)
class Served:
    """A model with its name."""

    name: str
    predictor: Predictor
    folder: Path | None
    """Where more about it may lie; None for a weights file that was named itself."""
    trusted: Any = None
    """Its ``pibert.inference.CalibratedPredictor``, if it is calibrated."""

    def facts(self) -> dict[str, Any]:
        """What every answer says of the model."""
        spec = self.predictor.spec
        return {
            "model": self.name,
            "channels": list(spec.channels),
            "units": list(spec.units),
            "dt": spec.dt,
        }

    def check(self, request: PredictRequest) -> None:
        """Refuse what this model cannot do, before it is tried."""
        if request.consistency:
            require_head(self.predictor.model, self.predictor.card, "consistency")
        if request.level is not None and self.trusted is None:
            raise ValueError(
                f"level: model {self.name!r} has no calibration; leave level out, or make one "
                "with pibert calibrate"
            )

    def explain(self, request: PredictRequest) -> Answer:
        """What the model looked at."""
        found = self.predictor.explain(
            request.fields, request.parameters, request.mask, grid=request.grid
        )
        for note in found.notes:
            warn(note)
        arrays = {"prediction": found.prediction}
        for group in ("input_residuals", "prediction_residuals"):
            arrays |= {f"{group}.{term}": value for term, value in getattr(found, group).items()}
        arrays |= {name: getattr(found, name) for name in (*_MAPS, "consistency")}
        facts = {} if found.gate is None else {"gate": found.gate}
        return Answer({n: np.asarray(v) for n, v in arrays.items() if v is not None}, facts)

    def bars(self, request: PredictRequest, steps: int) -> Iterator[Answer]:
        """Blocks of a rollout with prediction intervals; the request is checked at once.

        Intervals are NaN after the last lead time that was calibrated.
        """
        leads = self.trusted.calibration.leads
        if steps > leads:
            warn(f"prediction intervals for the first {leads} of {steps} frames, as calibrated")
        shape, own = request.fields.shape[-2:], self.predictor.spec.grid
        if shape != own.shape or (request.grid is not None and not _same_cells(request.grid, own)):
            warn(
                "prediction intervals and out-of-distribution warning were calibrated on the "
                f"model's grid ({own.shape[0]} x {own.shape[1]} points, cells of {own.dx:.4g} x "
                f"{own.dy:.4g}): coverage on another grid is unknown"
            )
        blocks = self.trusted.iterate(
            request.fields,
            steps,
            request.parameters,
            request.mask,
            level=request.level,
            beyond="last",
            grid=request.grid,
        )

        def answers() -> Iterator[Answer]:
            for place, block in enumerate(blocks):
                for note in block.notes:
                    warn(note)
                ends = {name: getattr(block.intervals, name) for name in ("low", "high")}
                arrays = {"prediction": block.fields, **ends}
                calibrated = max(0, leads - place * self.predictor.horizon)
                for name in ("low", "high"):
                    arrays[name][..., calibrated:, :, :, :] = np.nan
                facts: dict[str, Any] = {}
                if place == 0:
                    ood = block.ood
                    arrays["alarm.p"] = np.asarray(ood.p)
                    arrays["alarm.raised"] = np.asarray(ood.flagged, bool)
                    arrays["alarm.limited"] = np.asarray(ood.limited, bool)
                    facts = {"level": request.level, "alarm.parts": list(ood.reasons)}
                    facts["alarm.lowest"] = ood.lowest_p
                    if block.consistency is not None:
                        arrays["consistency"] = np.asarray(block.consistency)
                yield Answer(arrays, facts)

        return answers()

    def describe(self) -> dict[str, Any]:
        """Its entry in the list of models."""
        predictor, spec, card = self.predictor, self.predictor.spec, self.predictor.card
        grid, normalizer = spec.grid, predictor.normalizer
        calibration = None
        if self.trusted is not None:
            own = self.trusted.calibration
            calibration = {
                "leads": own.leads,
                "highest_level": own.highest_level,
                "assumption": own.assumption(),
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
    """After that, while its blocks are made, encoded, read and sent."""
    ahead: int
    """Number of blocks that may lie unread."""


def cost_of(request: PredictRequest, predictor: Predictor) -> Cost:
    """An upper bound of the memory that a request takes, known before any of it is taken.

    The factors are multiples of array sizes, measured in ``tests/serve/test_worker.py``.
    """
    fields, history, horizon = request.fields.nbytes, predictor.history, predictor.horizon
    shape = predictor.spec.grid.shape
    window = (
        4 * request.samples * len(predictor.spec.channels) * (history + horizon) * math.prod(shape)
    )
    # Resampling to the model's grid and back: eight matrices along each axis, in double precision.
    weights = 64 * sum(n * m for n, m in zip(request.fields.shape[-2:], shape, strict=False))
    block, kept = fields * horizon // history, 4 * window + weights
    if request.level is not None:  # intervals: three arrays of frames, and the input is kept
        block, kept = 3 * block, kept + 3 * fields
    if request.route == "explain":  # maps of the input and of the prediction
        kept += 12 * (fields + block)
    ahead = min(MOST_AHEAD, max(1, AHEAD // max(1, block)))
    # Resampling around points that are not known takes more.
    has_gaps = request.mask is not None or predictor.spec.grid.body is not None
    start = (20 if has_gaps else 8) * fields + 4 * window + 2 * weights
    return Cost(start, (ahead + (16 if has_gaps else 7)) * block + kept, ahead)


def _same_cells(one: Grid, other: Grid) -> bool:
    pairs = ((one.dx, other.dx), (one.dy, other.dy))
    return all(math.isclose(a, b, rel_tol=1e-3) for a, b in pairs)


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
