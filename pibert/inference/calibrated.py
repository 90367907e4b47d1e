"""Predictions with prediction intervals and the out-of-distribution warning.

Fields, parameters, masks and grids are those of ``Predictor``, and results are of the same kind.
Intervals are NaN at unknown points: there is nothing to calibrate. For fields on another grid than
the model's the half-widths are resampled like the prediction; coverage was measured on the model's
grid.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pibert.fields import Grid
from pibert.inference.calibration import Calibration
from pibert.inference.calibration_file import read_calibration, read_sheet
from pibert.inference.ensemble import Ensemble
from pibert.inference.model_file import find_model
from pibert.inference.model_input import ModelInput
from pibert.inference.ood import OODResult, scored_spec, window_scores
from pibert.inference.predictor import Predictor
from pibert.inference.predictor import load as load_predictor
from pibert.inference.stream import Block, Prediction, PredictionStream
from pibert.inference.windows import Forecast, Windows

Beyond = Literal["refuse", "last", "nan"]


def load_calibrated(
    model: Path | str,
    device: torch.device | str = "cpu",
    *,
    calibration: Path | str | None = None,
) -> "CalibratedPredictor":
    """A calibrated model, or ensemble.

    Args:
        model: A run or model folder, a .safetensors file, or the name of a shipped model.
        device: Where to compute.
        calibration: Folder of the calibration; None: that of the model.
    """
    path = find_model(model)
    folder = Path(calibration or (path if path.is_dir() else path.parent))
    predictor = with_members(load_predictor(path, device), folder)
    return CalibratedPredictor(predictor, read_calibration(folder, predictor.weights_sha256))


def with_members(predictor: Predictor, folder: Path) -> Predictor:
    """The predictor, or the ensemble with the further members that a calibration names."""
    others = load_members(predictor, folder)
    return Ensemble([predictor, *others]) if others else predictor


def load_members(predictor: Predictor, folder: Path) -> list[Predictor]:
    """The further members that a calibration names; ValueError names a damaged one."""
    paths = [folder / member for member in read_sheet(folder).get("members", [])]
    return [load_predictor(path, predictor.device) for path in paths]


class CalibratedPredictor:
    """A predictor with its calibration.

    Args:
        predictor: A ``Predictor`` or an ``Ensemble``.
        calibration: Of its weights.
    """

    def __init__(self, predictor: Predictor, calibration: Calibration) -> None:
        if predictor.weights_sha256 != calibration.weights_sha256:
            raise ValueError(
                f"expected the calibration of weights {predictor.weights_sha256[:12]}, found that "
                f"of {calibration.weights_sha256[:12]}; calibrate this model"
            )
        self.predictor, self.calibration = predictor, calibration
        self.spec = scored_spec(predictor, calibration.detector.names)

    def __repr__(self) -> str:
        found = self.calibration
        highest = math.floor(1000 * found.highest_level) / 1000  # rounded down: it is accepted
        intervals = f"intervals up to level {highest:g} for {found.leads} steps"
        origin = f"{found.count} {found.units}"
        return f"CalibratedPredictor({self.predictor!r}, {intervals} from {origin})"

    def step(
        self, fields: Any, parameters: Any = None, mask: Any = None, **options: Any
    ) -> Prediction:
        """The next ``horizon`` frames with intervals; arguments as for ``rollout``."""
        return self.rollout(fields, self.predictor.horizon, parameters, mask, **options)

    def rollout(
        self,
        fields: Any,
        steps: int,
        parameters: Any = None,
        mask: Any = None,
        *,
        grid: Grid | None = None,
        **options: Any,
    ) -> Prediction:
        """The next ``steps`` frames with intervals, each lead time with its own.

        Args:
            fields: The last ``history`` frames.
            steps: Frames to predict.
            parameters: By name.
            mask: True where the fields are known.
            grid: Of the fields if it is not the model's.
            **options: ``level``, ``false_alarms`` and ``beyond``, as for ``stream``.
        """
        given = self.predictor.prepare(fields, parameters, mask, grid=grid)
        return self.predictor.collect(self.stream(given, steps, **options))

    def iterate(
        self,
        fields: Any,
        steps: int | None = None,
        parameters: Any = None,
        mask: Any = None,
        *,
        grid: Grid | None = None,
        **options: Any,
    ) -> Iterator[Prediction]:
        """A rollout block by block; arguments as for ``rollout``, checked at once.

        The first block carries the notes on the input.
        """
        given = self.predictor.prepare(fields, parameters, mask, grid=grid)
        return self.predictor.predictions(self.stream(given, steps, **options))

    def stream(
        self,
        given: ModelInput,
        steps: int | None,
        *,
        level: float = 0.9,
        false_alarms: float | None = None,
        beyond: Beyond = "refuse",
    ) -> PredictionStream:
        """A rollout ready to begin.

        Args:
            given: From ``Predictor.prepare``; takes the notes on the warning.
            steps: Frames to predict. None: no limit.
            level: Probability that an interval contains the true value.
            false_alarms: Accepted share of normal windows that are flagged as out of distribution;
                None: 0.05. A calibration that is too small for that flags none, with a note.
            beyond: Lead times that were not calibrated: ``refuse`` them, use the intervals of the
                ``last`` calibrated one, which are too narrow because errors grow, or ``nan``.
        """
        leads = self.calibration.leads
        if beyond == "refuse" and (steps is None or steps > leads):
            found = "any number of" if steps is None else str(steps)
            raise ValueError(
                f"expected at most {leads} steps, the calibrated lead times, found {found} steps; "
                "calibrate more (--leads), or use the last intervals for all later frames: "
                "beyond='last'"
            )
        intervals = RolloutIntervals(self, given, level, false_alarms, beyond)
        return self.predictor.stream(given, steps, intervals)

    def detect_ood(
        self,
        fields: Any,
        parameters: Any = None,
        mask: Any = None,
        *,
        false_alarms: float | None = None,
        grid: Grid | None = None,
    ) -> OODResult:
        """Whether windows are unlike the training data, without a prediction."""
        given = self.predictor.prepare(fields, parameters, mask, grid=grid)
        found, _ = self.detect(given, false_alarms)
        return replace(found, notes=tuple(given.notes))

    def detect(self, given: ModelInput, false_alarms: float | None) -> tuple[OODResult, Any]:
        """The out-of-distribution warning and the consistency of every window; adds its notes."""
        windows = Windows(
            fields=given.on_model.cpu(),
            known=given.known_on_model.cpu(),
            encoded=given.parameters.cpu(),
        )
        empty = ~windows.seen.flatten(1).any(1)
        if bool(empty.any()):
            raise ValueError(
                f"expected known points in every window, found none in {int(empty.sum())} of "
                f"{len(empty)}"
            )
        consistency = None
        if self.predictor.has_head("consistency"):
            consistency = self.predictor.consistency_of(given).cpu()
        scores = window_scores(
            windows, consistency, self.spec, self.predictor.normalizer, self.calibration.statistics
        )
        detector = self.calibration.detector
        unknown = windows.unknown_share(self.predictor.spec.grid)
        found = detector.detect(scores, false_alarms, unknown)
        if false_alarms is None and (note := detector.note()) is not None:
            given.notes.append(note)

        def per_window(values: Tensor) -> Any:
            return given.kind.map(values.to(given.fields.device), ())

        arrays = {
            name: per_window(getattr(found, name))
            for name in ("p", "flagged", "limited", "unknown")
        }
        return replace(found, **arrays), None if consistency is None else given.map(consistency)


class RolloutIntervals:
    """Prediction intervals and the out-of-distribution warning of one rollout."""

    def __init__(
        self,
        owner: CalibratedPredictor,
        given: ModelInput,
        level: float,
        false_alarms: float | None,
        beyond: Beyond,
    ) -> None:
        self.level, self._input, self._spec = level, given, owner.spec
        self._quantiles = owner.calibration.quantiles(level)
        self._difficulty, self._beyond = owner.calibration.difficulty, beyond
        self.ood, self.consistency = owner.detect(given, false_alarms)
        seen = given.seen.cpu()
        self._known = given.regridding.map_to_caller(torch.zeros(seen.shape), seen).isfinite()

    def half_widths(self, block: Block, start: int) -> Tensor:
        """Of a block of which ``start`` frames came before, on the caller's grid."""
        frames, seen = block.on_model.cpu(), self._input.seen.cpu()
        known = self._known[:, None] if block.known is None else block.known.cpu()
        forecast = Forecast(
            prediction=frames,
            spread=None if block.spread is None else block.spread.cpu(),
            seen=seen,
            known=None if block.known is None else known,
        )
        leads, last = torch.arange(start, start + frames.shape[1]), len(self._quantiles) - 1
        scales = self._difficulty.scales(forecast, self._spec, start)
        half = self._quantiles[leads.clamp(max=last)].to(scales)[..., None, None] * scales
        half = self._input.regridding.to_caller(half, seen, bounded=True)
        has_interval = known[:, :, None]
        if count := len(self._spec.state):  # the state is known everywhere
            is_state = torch.arange(half.shape[2]) >= half.shape[2] - count
            has_interval = has_interval | is_state[:, None, None]
        if self._beyond == "nan":
            has_interval = has_interval & (leads <= last)[:, None, None, None]
        return torch.where(has_interval, half, torch.nan).to(block.frames)
