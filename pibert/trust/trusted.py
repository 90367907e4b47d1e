"""Predictions with error bars, and alarms for inputs unlike the training data.

Fields, parameters and masks are those of ``Predictor``, on the model's grid: NumPy arrays or
tensors ``(batch, history, channel, y, x)`` in physical units. Bars are NaN where nothing was known
of a point: there is nothing to calibrate there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pibert.predictor import Predictor
from pibert.predictor import load as load_predictor
from pibert.trust.alarm import Alarm
from pibert.trust.artefact import read_calibration, read_sheet
from pibert.trust.calibration import Calibration, judges_consistency, look_at
from pibert.trust.ensemble import Ensemble, identity, rolled
from pibert.trust.forecasts import Windows, frames_of

Beyond = Literal["refuse", "last"]


@dataclass(frozen=True, eq=False)
class Bars:
    """Predicted frames (batch, time, channel, y, x) with their bars."""

    prediction: Any
    low: Any
    high: Any
    level: float
    """Chance that the truth at a point lies between low and high, at least."""
    alarm: Alarm
    """Of the windows that were given: bars mean nothing where it is raised."""
    consistency: Any
    """Probability that each given window obeys its equations; None without a head for it."""


def load(folder: Path | str, device: torch.device | str = "cpu") -> "Trusted":
    """A calibrated model, or ensemble, from the folder of a run."""
    folder, sheet = Path(folder), read_sheet(folder)
    members = [folder, *(folder / member for member in sheet.get("members", []))]
    models = [load_predictor(member, device) for member in members]
    predictor: Predictor | Ensemble = models[0] if len(models) == 1 else Ensemble(models)
    return Trusted(predictor, read_calibration(folder, identity(predictor)))


class Trusted:
    """A predictor with its calibration.

    Args:
        predictor: A ``Predictor`` or an ``Ensemble``.
        calibration: Of its weights.
    """

    def __init__(self, predictor: Any, calibration: Calibration) -> None:
        if identity(predictor) != calibration.weights_sha256:
            raise ValueError(
                f"expected the calibration of weights {identity(predictor)[:12]}, found that of "
                f"{calibration.weights_sha256[:12]}; calibrate this model"
            )
        self.predictor, self.calibration = predictor, calibration

    def step(
        self,
        fields: Any,
        parameters: Any = None,
        mask: Any = None,
        *,
        level: float = 0.9,
        false_alarms: float | None = None,
    ) -> Bars:
        """The next ``horizon`` frames with bars.

        Args:
            fields: The last ``history`` frames.
            parameters: By name, as for ``Predictor.step``.
            mask: True where the fields are known.
            level: Chance that a bar should hold the truth.
            false_alarms: Accepted share of alarms among sound windows; 0.05, or the least that the
                calibration can tell, if not given.
        """
        steps = self.predictor.horizon
        blocks = self.iterate(
            fields, steps, parameters, mask, level=level, false_alarms=false_alarms
        )
        return next(blocks)

    def rollout(
        self,
        fields: Any,
        steps: int,
        parameters: Any = None,
        mask: Any = None,
        *,
        level: float = 0.9,
        false_alarms: float | None = None,
        beyond: Beyond = "refuse",
    ) -> Bars:
        """The next ``steps`` frames with bars, each lead time with its own.

        Args:
            fields: The last ``history`` frames.
            steps: Frames to predict.
            parameters: By name.
            mask: True where the fields are known.
            level: Chance that a bar should hold the truth.
            false_alarms: Accepted share of alarms among sound windows; 0.05, or the least that the
                calibration can tell, if not given.
            beyond: Lead times that were not calibrated are refused, or get the bars of the last
                one that was, which are too narrow as errors grow.
        """
        blocks = list(
            self.iterate(
                fields,
                steps,
                parameters,
                mask,
                level=level,
                false_alarms=false_alarms,
                beyond=beyond,
            )
        )
        return replace(
            blocks[0],
            prediction=_joined([block.prediction for block in blocks]),
            low=_joined([block.low for block in blocks]),
            high=_joined([block.high for block in blocks]),
        )

    def iterate(
        self,
        fields: Any,
        steps: int | None = None,
        parameters: Any = None,
        mask: Any = None,
        *,
        level: float = 0.9,
        false_alarms: float | None = None,
        beyond: Beyond = "refuse",
    ) -> Iterator[Bars]:
        """A rollout block by block; arguments as for ``rollout``, checked at once."""
        leads = self.calibration.leads
        if beyond == "refuse" and (steps is None or steps > leads):
            asked = "any number of" if steps is None else str(steps)
            raise ValueError(
                f"expected at most {leads} steps, the lead times that were calibrated, found "
                f"{asked} steps; calibrate more (--leads), or take the last bars for all later "
                "frames: beyond='last'"
            )
        quantiles = self.calibration.quantiles(level)
        given = self._take(fields, parameters, mask)
        alarm, consistency = self._judged(given, false_alarms, fields)
        return self._bars(given, steps, quantiles, fields, level, alarm, consistency)

    def judge(
        self,
        fields: Any,
        parameters: Any = None,
        mask: Any = None,
        *,
        false_alarms: float | None = None,
    ) -> Alarm:
        """Whether windows are unlike those of the training, without a prediction."""
        return self._judged(self._take(fields, parameters, mask), false_alarms, fields)[0]

    def _bars(
        self,
        given: Windows,
        steps: int | None,
        quantiles: Tensor,
        fields: Any,
        level: float,
        alarm: Alarm,
        consistency: Any,
    ) -> Iterator[Bars]:
        spec, difficulty = self.predictor.spec, self.calibration.difficulty
        blocks = rolled(self.predictor, given.fields, steps, given.parameters, given.known)
        parts = frames_of(blocks, given.fields[:, -1], given.seen, given.encoded)
        done = 0
        for part in parts:
            count = part.prediction.shape[1]
            places = torch.arange(done, done + count).clamp(max=len(quantiles) - 1)
            scales = difficulty.scales(part, spec, done)
            half = quantiles[places].to(scales)[..., None, None] * scales
            half = torch.where(given.seen[:, None, None], half, torch.nan)
            low, high = part.prediction - half, part.prediction + half
            yield Bars(
                prediction=_as_given(part.prediction, fields),
                low=_as_given(low, fields),
                high=_as_given(high, fields),
                level=level,
                alarm=alarm,
                consistency=consistency,
            )
            done += count

    def _judged(self, given: Windows, false_alarms: float | None, fields: Any) -> tuple[Alarm, Any]:
        scores = look_at(self.predictor, given, self.calibration.typical)
        found = self.calibration.watch.judge(scores, false_alarms)
        alarm = replace(found, p=_as_given(found.p, fields), raised=_as_given(found.raised, fields))
        consistency = None
        if judges_consistency(self.predictor):
            consistency = _as_given(torch.sigmoid(-scores[:, -1]), fields)
        return alarm, consistency

    def _take(self, fields: Any, parameters: Any, mask: Any) -> Windows:
        """What was given, as tensors on the CPU; the predictor checks values once more."""
        spec = self.predictor.spec
        values = _as_tensor(fields)
        expected = (self.predictor.history, len(spec.channels), *spec.grid.shape)
        if tuple(values.shape[1:]) != expected or not len(values):
            raise ValueError(
                f"expected fields (batch, {', '.join(map(str, expected))}) with channels "
                f"{list(spec.channels)} on the model's grid, found {tuple(values.shape)}"
            )
        b, h = values.shape[:2]
        known = torch.ones(b, h, *spec.grid.shape, dtype=torch.bool)
        if mask is not None:
            stated = torch.as_tensor(mask).cpu().to(torch.bool)
            known &= stated[:, None] if stated.ndim == 3 else stated
        if spec.grid.body is not None:
            known &= ~spec.grid.body
        empty = ~known.all(1).flatten(1).any(1)
        if bool(empty.any()):
            raise ValueError(
                f"expected known points in every window, found none in {int(empty.sum())} of {b}"
            )
        if not bool((values.isfinite() | ~known[:, :, None]).all()):
            raise ValueError(
                "expected finite values where the fields are known, found others; pass a mask that "
                "is False at missing points"
            )
        stated_values = {
            name: torch.as_tensor(value, dtype=torch.float32).reshape(-1).expand(b)
            for name, value in (parameters or {}).items()
        }
        encoded = spec.encode_parameters(stated_values).expand(b, -1)
        return Windows(
            fields=values,
            known=known,
            parameters=stated_values,
            encoded=encoded,
            truth=values[:, :0],
        )


def _as_tensor(fields: Any) -> Tensor:
    if isinstance(fields, np.ndarray):
        # A copy in the machine's byte order: files give arrays that are read-only or swapped.
        fields = torch.from_numpy(np.array(fields, fields.dtype.newbyteorder("="), order="C"))
    if not isinstance(fields, Tensor) or not fields.is_floating_point():
        raise ValueError(
            "expected fields as a NumPy array or a tensor of float32 or float64, found "
            f"{getattr(fields, 'dtype', type(fields).__name__)}"
        )
    return fields.detach().cpu()


def _as_given(value: Tensor, fields: Any) -> Any:
    """A tensor, or an array where arrays were given."""
    return value if isinstance(fields, Tensor) else value.numpy()


def _joined(blocks: list[Any]) -> Any:
    if isinstance(blocks[0], Tensor):
        return torch.cat(blocks, dim=1)
    return np.concatenate(blocks, axis=1)
