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
from pibert.inference.calibration import Calibration, has_consistency, score_windows
from pibert.inference.calibration_file import read_calibration, read_sheet
from pibert.inference.ensemble import Ensemble, Windows, frames_of, identity, rolled
from pibert.inference.model_file import find_model
from pibert.inference.model_input import ModelInput
from pibert.inference.ood import OODResult, scored_spec
from pibert.inference.predictor import (
    DivergenceMonitor,
    Prediction,
    PredictionIntervals,
    Predictor,
)
from pibert.inference.predictor import load as load_predictor
from pibert.notes import Note

Beyond = Literal["refuse", "last"]
_PER_WINDOW = ("p", "flagged", "limited", "unknown")


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
    first = find_model(model)
    beside = first if first.is_dir() else first.parent
    folder = beside if calibration is None else Path(calibration)
    members = [first, *(folder / member for member in read_sheet(folder).get("members", []))]
    models = [load_predictor(member, device) for member in members]
    predictor: Predictor | Ensemble = models[0] if len(models) == 1 else Ensemble(models)
    return CalibratedPredictor(predictor, read_calibration(folder, identity(predictor)))


class CalibratedPredictor:
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
        self._spec = scored_spec(predictor, calibration.detector.names)

    def __repr__(self) -> str:
        own = self.calibration
        highest = math.floor(1000 * own.highest_level) / 1000  # rounded down: it is accepted
        intervals = f"intervals up to level {highest:g} for {own.leads} steps"
        return f"CalibratedPredictor({self.predictor!r}, {intervals} from {own.count} {own.units})"

    def step(
        self,
        fields: Any,
        parameters: Any = None,
        mask: Any = None,
        *,
        level: float = 0.9,
        false_alarms: float | None = None,
        grid: Grid | None = None,
    ) -> Prediction:
        """The next ``horizon`` frames with intervals; arguments as for ``rollout``."""
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
    ) -> Prediction:
        """The next ``steps`` frames with intervals, each lead time with its own.

        Args:
            fields: The last ``history`` frames.
            steps: Frames to predict.
            parameters: By name.
            mask: True where the fields are known.
            level: Probability that an interval should contain the true value.
            false_alarms: Accepted share of normal windows that are flagged as out of distribution;
                None: 0.05. A calibration that is too small for that flags none, with a note.
            beyond: ``refuse`` lead times that were not calibrated, or give them the intervals of
                the ``last`` one that was, which are too narrow because errors grow.
            grid: Of the fields where it is not the model's.
        """
        run = _Run(self, fields, steps, parameters, mask, level, false_alarms, beyond, grid)
        frames, half, notes = zip(*run.frames(), strict=True)
        found = [*run.notes, *(note for part in notes for note in part)]
        return run.prediction(torch.cat(frames, dim=1), torch.cat(half, dim=1), 0, found)

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
    ) -> Iterator[Prediction]:
        """A rollout block by block; arguments as for ``rollout``, checked at once.

        The first block carries the notes on the input.
        """
        run = _Run(self, fields, steps, parameters, mask, level, false_alarms, beyond, grid)

        def blocks() -> Iterator[Prediction]:
            first = run.notes
            for place, (frames, half, notes) in enumerate(run.frames()):
                start = self.predictor.horizon * place
                yield run.prediction(frames, half, start, [*first, *notes])
                first = []

        return blocks()

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
        run = _Run(self, fields, 1, parameters, mask, None, false_alarms, "refuse", grid)
        return replace(run.ood, notes=tuple(run.notes))


class _Run:
    """One call of a calibrated predictor."""

    def __init__(
        self,
        owner: CalibratedPredictor,
        fields: Any,
        steps: int | None,
        parameters: Any,
        mask: Any,
        level: float | None,
        false_alarms: float | None,
        beyond: Beyond,
        grid: Grid | None,
    ) -> None:
        self.predictor, self.calibration = owner.predictor, owner.calibration
        self._spec, self.steps, self.level = owner._spec, steps, level
        leads = self.calibration.leads
        if beyond == "refuse" and (steps is None or steps > leads):
            found = "any number of" if steps is None else str(steps)
            raise ValueError(
                f"expected at most {leads} steps, the calibrated lead times, found {found} steps; "
                "calibrate more (--leads), or use the last intervals for all later frames: "
                "beyond='last'"
            )
        self._quantiles = None if level is None else self.calibration.quantiles(level)
        self.input, self._windows = self._take(fields, parameters, mask, grid)
        self.notes: list[Note] = list(self.input.notes)
        self.ood, self.consistency = self._detect(false_alarms)

    def prediction(self, frames: Tensor, half: Tensor, start: int, notes: list[Note]) -> Prediction:
        assert self.level is not None
        given, kind = self.input.fields, self.input.kind
        frames, half = frames.to(given), half.to(given)
        return Prediction(
            fields=kind.frames(frames, start),
            intervals=PredictionIntervals(
                low=kind.frames(frames - half, start),
                high=kind.frames(frames + half, start),
                level=self.level,
            ),
            ood=self.ood,
            consistency=self.consistency,
            notes=tuple(notes),
        )

    def frames(self) -> Iterator[tuple[Tensor, Tensor, tuple[Note, ...]]]:
        """Predictions, half-widths on the caller's grid and notes, block by block."""
        windows, difficulty = self._windows, self.calibration.difficulty
        seen, regridding, quantiles = windows.seen, self.input.regridding, self._quantiles
        assert quantiles is not None
        known = regridding.map_to_caller(torch.zeros(seen.shape), seen).isfinite()
        blocks = rolled(
            self.predictor, windows.fields, self.steps, windows.parameters, windows.known
        )
        monitor, done = DivergenceMonitor(self._standardised(windows.fields)), 0
        for part in frames_of(blocks, windows.fields[:, -1], seen, windows.encoded):
            notes = monitor.check(self._standardised(part.prediction))
            count = part.prediction.shape[1]
            places = torch.arange(done, done + count).clamp(max=len(quantiles) - 1)
            scales = difficulty.scales(part, self._spec, done)
            half = quantiles[places].to(scales)[..., None, None] * scales
            half = regridding.to_caller(half, seen, bounded=True)
            frames = regridding.to_caller(part.prediction, seen)
            yield frames, torch.where(known[:, None, None], half, torch.nan), notes
            done += count

    def _standardised(self, fields: Tensor) -> Tensor:
        """With zero where nothing is known."""
        z = self.predictor.normalizer.apply(fields)
        return torch.where(self._windows.seen[:, None, None], z, 0.0)

    def _detect(self, false_alarms: float | None) -> tuple[OODResult, Any]:
        detector, windows = self.calibration.detector, self._windows
        scores = score_windows(self.predictor, windows, self.calibration.statistics, self._spec)
        unknown = windows.unknown(self.predictor.spec.grid)
        found = detector.detect(scores, false_alarms, unknown)
        if false_alarms is None and (note := detector.note()) is not None:
            self.notes.append(note)
        consistency = None
        if has_consistency(self.predictor):
            consistency = self._per_window(torch.sigmoid(-scores[:, -1]))
        own = {name: self._per_window(getattr(found, name)) for name in _PER_WINDOW}
        return replace(found, **own), consistency

    def _per_window(self, values: Tensor) -> Any:
        """Values of every window as the caller's kind of array."""
        return self.input.kind.map(values.to(self.input.fields.device), ())

    def _take(
        self, fields: Any, parameters: Any, mask: Any, grid: Grid | None
    ) -> tuple[ModelInput, Windows]:
        """The input, and the same on the model's grid and on the CPU."""
        predictor, spec = self.predictor, self.predictor.spec
        given = ModelInput(
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
