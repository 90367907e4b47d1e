"""A model that is served: its predictor, its error bars if it has a calibration, what it is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pibert.fields import Parameter
from pibert.predictor import read_model
from pibert.predictor.given import Given
from pibert.predictor.heads import need
from pibert.predictor.shipped import find_model
from pibert.serve.answers import Answer
from pibert.serve.asked import Asked
from pibert.serve.joint import JointPredictor
from pibert.serve.limits import Limits

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

    def facts(self, remarks: Sequence[str]) -> dict[str, Any]:
        """What every answer says of the model."""
        spec = self.predictor.spec
        return {
            "model": self.name,
            "channels": list(spec.channels),
            "units": list(spec.units),
            "dt": spec.dt,
            "remarks": list(remarks),
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

    def bars(self, asked: Asked, given: Given, steps: int) -> Iterator[Answer]:
        """Blocks of a rollout with error bars."""
        blocks = self.trusted.iterate(
            given.fields,
            steps,
            asked.parameters,
            given.known,
            level=asked.level,
            grid=given.regridding.caller,
        )

        def answers() -> Iterator[Answer]:
            for place, block in enumerate(blocks):
                arrays = {
                    name: given.kind.frames(getattr(block, name), 0)
                    for name in ("prediction", "low", "high")
                }
                facts: dict[str, Any] = {}
                if place == 0:
                    alarm = block.alarm
                    arrays["alarm.p"] = given.kind.map(alarm.p, ())
                    arrays["alarm.raised"] = given.kind.map(alarm.raised.to(torch.uint8), ())
                    arrays["alarm.limited"] = given.kind.map(alarm.limited.to(torch.uint8), ())
                    facts = {"level": asked.level, "alarm.parts": list(alarm.parts)}
                    facts["alarm.lowest"] = alarm.lowest
                    if block.consistency is not None:
                        arrays["consistency"] = given.kind.map(block.consistency, ())
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


def _describe(parameter: Parameter) -> dict[str, Any]:
    ends = torch.tensor([-2.0, 2.0], dtype=torch.float64)
    return {
        "name": parameter.name,
        "scaling": parameter.scaling,
        "mean": parameter.mean,
        "std": parameter.std,
        "range": parameter.restore(ends).tolist(),
    }


def load_served(names: Sequence[str], device: str, limits: Limits) -> dict[str, Served]:
    """Models by name: that of their folder, or of the weights file."""
    found: dict[str, Served] = {}
    for name_or_path in names:
        path = find_model(name_or_path).resolve()
        base = name = path.stem if path.is_file() else path.name
        count = 1
        while name in found:
            count += 1
            name = f"{base}-{count}"
        saved = read_model(path, device)
        predictor = JointPredictor(
            saved.model,
            saved.normalizer,
            card=saved.card,
            chunk=max(limits.batch, limits.samples),
        )
        need(predictor.model, predictor.card, "forward")
        folder = path if path.is_dir() else None
        found[name] = Served(name, predictor, folder, _load_trusted(predictor, folder, device))
    return found


def _load_trusted(predictor: JointPredictor, folder: Path | None, device: str) -> Any:
    from pibert.trust import Trusted, load
    from pibert.trust.artefact import SHEET, read_calibration, read_sheet
    from pibert.trust.ensemble import identity

    if folder is None or not (folder / SHEET).is_file():
        return None
    if read_sheet(folder).get("members"):
        return load(folder, device)
    return Trusted(predictor, read_calibration(folder, identity(predictor)))
