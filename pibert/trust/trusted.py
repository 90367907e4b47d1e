"""Predictions with error bars, and alarms for inputs unlike the training data.

Fields, parameters, masks and grids are those of ``Predictor``, and answers are of the kind that was
given. Bars are NaN where nothing was known of a point: there is nothing to calibrate there. For
fields on another grid than the model's the half-widths of the bars are resampled like the
prediction; coverage was measured on the model's grid.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pibert.fields import Grid
from pibert.predictor import Predictor
from pibert.predictor import load as load_predictor
from pibert.predictor.divergence import Leash
from pibert.predictor.given import Given, without_doubts
from pibert.predictor.shipped import find_model
from pibert.trust.alarm import Alarm
from pibert.trust.artefact import read_calibration, read_sheet
from pibert.trust.calibration import Calibration, judges_consistency, look_at
from pibert.trust.ensemble import Ensemble, identity, rolled
from pibert.trust.forecasts import Windows, frames_of
from pibert.trust.oddity import watched_spec

Beyond = Literal["refuse", "last"]
_OF_WINDOWS = ("p", "raised", "limited", "unknown")


@dataclass(frozen=True, eq=False)
class Bars:
    """Predicted frames (batch, time, channel, y, x), or as the fields were given, with bars."""

    prediction: Any
    low: Any
    high: Any
    level: float
    """Chance that the truth at a point lies between low and high; what it rests on is said by
    ``Calibration.assumption``."""
    alarm: Alarm
    """Of the windows that were given: bars mean nothing where it is raised."""
    consistency: Any
    """Probability that each given window obeys its equations; None without a head for it."""


def load(
    model: Path | str,
    device: torch.device | str = "cpu",
    *,
    calibration: Path | str | None = None,
) -> "Trusted":
    """A calibrated model, or ensemble.

    Args:
        model: A run or model folder, a .safetensors file, or the name of a shipped model.
        device: Where to compute.
        calibration: Folder of the calibration; that of the model if not given.
    """
    first = find_model(model)
    beside = first if first.is_dir() else first.parent
    folder = beside if calibration is None else Path(calibration)
    members = [first, *(folder / member for member in read_sheet(folder).get("members", []))]
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
        self._spec = watched_spec(predictor, calibration.watch.names)

    def __repr__(self) -> str:
        own = self.calibration
        highest = math.floor(1000 * own.highest_level) / 1000  # rounded down: it is accepted
        bars = f"bars up to level {highest:g} for {own.leads} steps"
        return f"Trusted({self.predictor!r}, {bars} from {own.count} {own.units})"

    def step(
        self,
        fields: Any,
        parameters: Any = None,
        mask: Any = None,
        *,
        level: float = 0.9,
        false_alarms: float | None = None,
        grid: Grid | None = None,
    ) -> Bars:
        """The next ``horizon`` frames with bars; arguments as for ``rollout``."""
        steps = self.predictor.horizon
        return self.rollout(
            fields, steps, parameters, mask, level=level, false_alarms=false_alarms, grid=grid
        )

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
        grid: Grid | None = None,
    ) -> Bars:
        """The next ``steps`` frames with bars, each lead time with its own.

        Args:
            fields: The last ``history`` frames.
            steps: Frames to predict.
            parameters: By name.
            mask: True where the fields are known.
            level: Chance that a bar should hold the truth.
            false_alarms: Accepted share of alarms among sound windows; 0.05 if not given. A
                calibration that is too small for that raises none, with a warning.
            beyond: Lead times that were not calibrated are refused, or get the bars of the last
                one that was, which are too narrow as errors grow.
            grid: Of the fields where it is not the model's.
        """
        given, windows, quantiles = self._start(
            fields, steps, parameters, mask, level, beyond, grid
        )
        alarm, consistency = self._judged(given, windows, false_alarms)
        parts = list(self._frames(given, windows, steps, quantiles))
        prediction, half = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
        return _bars(given, prediction, half, 0, level, alarm, consistency)

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
        grid: Grid | None = None,
    ) -> Iterator[Bars]:
        """A rollout block by block; arguments as for ``rollout``, checked at once."""
        given, windows, quantiles = self._start(
            fields, steps, parameters, mask, level, beyond, grid
        )
        alarm, consistency = self._judged(given, windows, false_alarms)
        blocks = self._frames(given, windows, steps, quantiles)
        return (
            _bars(given, *block, self.predictor.horizon * place, level, alarm, consistency)
            for place, block in enumerate(blocks)
        )

    def judge(
        self,
        fields: Any,
        parameters: Any = None,
        mask: Any = None,
        *,
        false_alarms: float | None = None,
        grid: Grid | None = None,
    ) -> Alarm:
        """Whether windows are unlike those of the training, without a prediction."""
        given, windows = self._take(fields, parameters, mask, grid)
        return self._judged(given, windows, false_alarms)[0]

    def _start(
        self,
        fields: Any,
        steps: int | None,
        parameters: Any,
        mask: Any,
        level: float,
        beyond: Beyond,
        grid: Grid | None,
    ) -> tuple[Given, Windows, Tensor]:
        leads = self.calibration.leads
        if beyond == "refuse" and (steps is None or steps > leads):
            asked = "any number of" if steps is None else str(steps)
            raise ValueError(
                f"expected at most {leads} steps, the lead times that were calibrated, found "
                f"{asked} steps; calibrate more (--leads), or take the last bars for all later "
                "frames: beyond='last'"
            )
        quantiles = self.calibration.quantiles(level)
        return *self._take(fields, parameters, mask, grid), quantiles

    def _frames(
        self, given: Given, windows: Windows, steps: int | None, quantiles: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Predictions and half-widths on the caller's grid, block by block."""
        spec, difficulty, seen = self._spec, self.calibration.difficulty, windows.seen
        regridding = given.regridding
        known = regridding.map_to_caller(torch.zeros(seen.shape), seen).isfinite()
        blocks = rolled(self.predictor, windows.fields, steps, windows.parameters, windows.known)
        parts = frames_of(blocks, windows.fields[:, -1], seen, windows.encoded)
        # Not the leash of the predictor, whose doubts about the input were told before.
        leash, done = Leash(self._standardised(windows.fields, seen)), 0
        while True:
            with without_doubts():
                part = next(parts, None)
            if part is None:
                return
            leash.look(self._standardised(part.prediction, seen))
            count = part.prediction.shape[1]
            places = torch.arange(done, done + count).clamp(max=len(quantiles) - 1)
            scales = difficulty.scales(part, spec, done)
            half = quantiles[places].to(scales)[..., None, None] * scales
            prediction = regridding.to_caller(part.prediction, seen)
            half = regridding.to_caller(half, seen, bounded=True)
            yield prediction, torch.where(known[:, None, None], half, torch.nan)
            done += count

    def _standardised(self, fields: Tensor, seen: Tensor) -> Tensor:
        """With zero where nothing is known."""
        z = self.predictor.normalizer.apply(fields)
        return torch.where(seen[:, None, None], z, 0.0)

    def _judged(
        self, given: Given, windows: Windows, false_alarms: float | None
    ) -> tuple[Alarm, Any]:
        with without_doubts():
            scores = look_at(self.predictor, windows, self.calibration.typical, self._spec)
        unknown = windows.unknown(self.predictor.spec.grid)
        found = self.calibration.watch.judge(scores, false_alarms, unknown)
        told = {name: _map(given, getattr(found, name)) for name in _OF_WINDOWS}
        consistency = None
        if judges_consistency(self.predictor):
            consistency = _map(given, torch.sigmoid(-scores[:, -1]))
        return replace(found, **told), consistency

    def _take(
        self, fields: Any, parameters: Any, mask: Any, grid: Grid | None
    ) -> tuple[Given, Windows]:
        """What was given, and the same on the model's grid and on the CPU."""
        predictor, spec = self.predictor, self.predictor.spec
        given = Given(
            fields,
            mask,
            parameters,
            grid=grid,
            spec=spec,
            normalizer=predictor.normalizer,
            history=predictor.history,
            device=torch.device("cpu"),
            chunk=1,
        )
        caller = given.fields.cpu(), (given.known & ~given.body).cpu()
        values, known = given.regridding.to_model(*caller)
        if spec.grid.body is not None:
            known = known & ~spec.grid.body
        b = len(values)
        empty = ~known.all(1).flatten(1).any(1)
        if bool(empty.any()):
            raise ValueError(
                f"expected known points in every window, found none in {int(empty.sum())} of {b}"
            )
        stated = {
            name: torch.as_tensor(value, dtype=torch.float32).cpu().reshape(-1).expand(b)
            for name, value in (parameters or {}).items()
        }
        return given, Windows(
            fields=values,
            known=known,
            parameters=stated,
            encoded=given.parameters.cpu(),
            truth=values[:, :0],
        )


def _bars(
    given: Given,
    prediction: Tensor,
    half: Tensor,
    start: int,
    level: float,
    alarm: Alarm,
    consistency: Any,
) -> Bars:
    prediction, half = prediction.to(given.fields), half.to(given.fields)
    return Bars(
        prediction=given.kind.frames(prediction, start),
        low=given.kind.frames(prediction - half, start),
        high=given.kind.frames(prediction + half, start),
        level=level,
        alarm=alarm,
        consistency=consistency,
    )


def _map(given: Given, values: Tensor) -> Any:
    """Numbers of every window as the caller's kind of array."""
    return given.kind.map(values.to(given.fields.device), ())
