"""A model that is served: its predictor, its error bars if it has a calibration, what it is."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pibert.fields import Grid, Parameter
from pibert.predictor.heads import need
from pibert.remarks import warn
from pibert.serve.answers import Answer
from pibert.serve.asked import Asked
from pibert.serve.joint import JointPredictor

SAMPLE = "sample.h5"
"""Recordings in the folder of a model, which the server offers."""
_MAPS = ("bias", "bias_map", "attention", "attention_map", "parameter_attention", "gate_map")


@dataclass(frozen=True, eq=False)
class Served:
    """A model with its name."""

    name: str
    predictor: JointPredictor
    folder: Path | None
    """Where more about it may lie; None for a weights file that was named itself."""
    trusted: Any = None
    """Its ``pibert.trust.Trusted``, if it is calibrated."""

    def facts(self) -> dict[str, Any]:
        """What every answer says of the model."""
        spec = self.predictor.spec
        return {
            "model": self.name,
            "channels": list(spec.channels),
            "units": list(spec.units),
            "dt": spec.dt,
        }

    def check(self, asked: Asked) -> None:
        """Refuse what this model cannot do, before it is tried."""
        if asked.consistency:
            need(self.predictor.model, self.predictor.card, "consistency")
        if asked.level is not None and self.trusted is None:
            raise ValueError(
                f"level: expected a model with a calibration, found none of {self.name!r}; leave "
                "it out, or make one with pibert calibrate"
            )

    def explain(self, asked: Asked) -> Answer:
        """What the model looked at."""
        found = self.predictor.explain(asked.fields, asked.parameters, asked.mask, grid=asked.grid)
        arrays = {"prediction": found.prediction}
        for group in ("input_residuals", "prediction_residuals"):
            arrays |= {f"{group}.{term}": value for term, value in getattr(found, group).items()}
        arrays |= {name: getattr(found, name) for name in (*_MAPS, "consistency")}
        facts = {} if found.gate is None else {"gate": found.gate}
        return Answer({n: np.asarray(v) for n, v in arrays.items() if v is not None}, facts)

    def bars(self, asked: Asked, steps: int) -> Iterator[Answer]:
        """Blocks of a rollout with error bars; what was asked is checked at once.

        Bars are NaN after the last lead time that was calibrated.
        """
        leads = self.trusted.calibration.leads
        if steps > leads:
            warn(
                f"error bars for the first {leads} of {steps} frames: the calibration goes no "
                "further"
            )
        shape, own = asked.fields.shape[-2:], self.predictor.spec.grid
        if shape != own.shape or (asked.grid is not None and not _same_cells(asked.grid, own)):
            warn(
                f"error bars and alarm were calibrated on the model's grid ({own.shape[0]} x "
                f"{own.shape[1]} points, cells of {own.dx:.4g} x {own.dy:.4g}): how often the "
                "truth lies within the bars on another one is not known"
            )
        blocks = self.trusted.iterate(
            asked.fields,
            steps,
            asked.parameters,
            asked.mask,
            level=asked.level,
            beyond="last",
            grid=asked.grid,
        )

        def answers() -> Iterator[Answer]:
            for place, block in enumerate(blocks):
                arrays = {name: getattr(block, name) for name in ("prediction", "low", "high")}
                barred = max(0, leads - place * self.predictor.horizon)
                for name in ("low", "high"):
                    arrays[name][..., barred:, :, :, :] = np.nan
                facts: dict[str, Any] = {}
                if place == 0:
                    alarm = block.alarm
                    arrays["alarm.p"] = np.asarray(alarm.p)
                    arrays["alarm.raised"] = np.asarray(alarm.raised, bool)
                    arrays["alarm.limited"] = np.asarray(alarm.limited, bool)
                    facts = {"level": asked.level, "alarm.parts": list(alarm.parts)}
                    facts["alarm.lowest"] = alarm.lowest
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
