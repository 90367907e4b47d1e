"""Predictions from a recording, block by block, for ``pibert predict`` and ``rollout``."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pibert.data.format.reading import keeps_step
from pibert.data.generate import IDENTITY
from pibert.data.provenance import counts_frames, predicted_source
from pibert.data.writers.frames import Block, Description
from pibert.fields import FieldSpec, Normalizer, read_mask
from pibert.inference.calibrated import CalibratedPredictor
from pibert.inference.predictor import Predictor
from pibert.inference.recording import FittedRecording
from pibert.inference.stream import Prediction
from pibert.notes import Note
from pibert.rollout import MovingBodies


@dataclass(eq=False)
class OODSummary:
    """The out-of-distribution warning of every window that a prediction starts from."""

    windows: list[dict[str, Any]] = field(default_factory=list)
    rate: float = 0.0
    lowest_p: float = 0.0
    most_unknown: float = 0.0

    def add(self, newest: Sequence[int], prediction: Prediction) -> None:
        """Add the result of windows, named by their newest frames."""
        ood = prediction.ood
        self.rate, self.lowest_p, self.most_unknown = ood.rate, ood.lowest_p, ood.most_unknown
        for row, frame in enumerate(newest):
            window = {"frame": frame, "p": ood.p[row].item(), "flagged": ood.flagged[row].item()}
            window["reason"] = ood.reasons[row]
            window |= {name: getattr(ood, name)[row].item() for name in ("limited", "unknown")}
            self.windows.append(window)

    @property
    def can_flag(self) -> bool:
        return self.lowest_p <= self.rate

    @property
    def num_flagged(self) -> int:
        return sum(window["flagged"] for window in self.windows)

    def to_dict(self) -> dict[str, Any]:
        return {
            "flagged": self.num_flagged,
            "rate": self.rate,
            "least_p": self.lowest_p,
            "can_be_flagged": self.can_flag,
            "windows": self.windows,
        }

    def note(self) -> Note | None:
        """All windows in one note; None without any."""
        if not self.windows:
            return None
        total, worst = len(self.windows), min(self.windows, key=lambda window: window["p"])
        found = f"p = {worst['p']:.3g} from frame {worst['frame']}, most unusual: {worst['reason']}"
        if limited := sum(window["limited"] for window in self.windows):
            found += f"; {limited} of {total} inputs have more unknown points than the calibration"
            found += f" data ({self.most_unknown:.2%}), so that only some scores count"
        at = f"p <= {self.rate:g}"
        if self.num_flagged:
            text = f"out of distribution: {self.num_flagged} of {total} inputs are unlike the "
            text += f"training data ({found}; flagged at {at}): prediction intervals do not hold"
            return Note("ood", text)
        if self.can_flag:
            text = f"in distribution: {found} (flagged at {at})"
            return Note("in-distribution", text, severity="info")
        text = f"not tested for out-of-distribution input: {found}, but the calibration gives no p "
        text += f"below {self.lowest_p:.3g}, and inputs are flagged at {at}"
        return Note("ood-untested", text, "accept a higher rate: --false-alarms")


class Forecaster:
    """Predicts from a recording; intervals with a calibrated predictor and a level.

    Args:
        recording: In the model's units.
        predictor: A ``Predictor`` or an ``Ensemble``.
        calibrated: The same with its calibration.
        level: Of the intervals.
        false_alarms: As for ``CalibratedPredictor.rollout``.
    """

    def __init__(
        self,
        recording: FittedRecording,
        predictor: Predictor,
        calibrated: CalibratedPredictor | None = None,
        level: float | None = None,
        false_alarms: float | None = None,
    ) -> None:
        self.recording, self.predictor, self.ood = recording, predictor, OODSummary()
        self._calibrated = calibrated
        self._options: dict[str, Any] = {"level": level, "false_alarms": false_alarms}
        spec = recording.spec
        self._fields = len(spec.of_fields.channels)
        self._moving = MovingBodies(spec, Normalizer.identity(len(spec.channels)))

    def next_frames(self, start: int) -> Iterator[tuple[Block, Tensor]]:
        """The frame after every frame from ``start`` on, and the prediction of persistence."""
        recording = self.recording
        ends = {n: stop for n, stop in recording.newest_frames().items() if n >= start}
        for frames in recording.batches(ends):
            stop = ends[frames[0]]
            fields, known = recording.windows(frames)
            prediction, intervals, moved = self._step(frames, fields, known)
            times = [recording.time_after(frame, 1, stop) for frame in frames]
            block = self._block(
                prediction,
                intervals,
                moved,
                frames,
                known=known,
                time=torch.tensor(times, dtype=torch.float64),
                number=torch.tensor(frames) + 1,
                truth=recording.truth_after([(frame, 1) for frame in frames], stop),
            )
            yield block, fields[:, -1, : self._fields]

    def _block(
        self,
        frames: Tensor,
        intervals: Mapping[str, Tensor],
        moved: Tensor | None,
        newest: Sequence[int],
        *,
        known: Tensor,
        truth: Tensor,
        **facts: Tensor,
    ) -> Block:
        """A block of predicted frames (t, c, y, x), the state of the structure apart.

        ``moved`` are the known points after bodies have moved; ``newest`` are the frames that the
        predictions start from, one for each or one for all.
        """
        count, body = self._fields, None
        series = {}
        stated = {"": frames, "_true": truth}
        stated |= {f"_{end}": values for end, values in intervals.items()}
        for index, name in enumerate(self.recording.spec.state, count):
            for ending, values in stated.items():
                series[name + ending] = values[:, index].flatten(1).nanmean(1)
        if moved is not None:
            body = self._moving.inside(frames) | self._resting(newest)
            known = moved & ~body
        return Block(
            fields=frames[:, :count],
            known=known,
            truth=truth[:, :count],
            body=body,
            series=series,
            **{end: values[:, :count] for end, values in intervals.items()},
            **facts,
        )

    def _resting(self, newest: Sequence[int]) -> Tensor:
        """Bodies of some frames that do not move, (t, y, x)."""
        trajectory = self.recording.trajectory
        if trajectory.body is None:
            return torch.zeros(1, *trajectory.spec.grid.shape, dtype=torch.bool)
        first = newest[0]
        masks = read_mask(trajectory.body, slice(first, newest[-1] + 1)).cpu()
        fields = trajectory.read(slice(first, newest[-1] + 1)).cpu()
        return (masks & ~self._moving.inside(fields))[[frame - first for frame in newest]]

    def _step(
        self, frames: list[int], fields: Tensor, known: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
        """The next frames, ends of their intervals, and the known points if bodies move."""
        if self._calibrated is None:
            (found,) = self._predictions(fields, known, 1)
            return found.fields[:, 0], {}, None if found.known is None else found.known[:, 0]
        # Windows without a known point cannot be tested.
        usable = known.flatten(1).any(1)
        prediction, low, high = fields.new_full((3, *fields[:, -1].shape), math.nan)
        moved = torch.zeros_like(known) if self.recording.spec.moving else None
        if bool(usable.any()):
            (found,) = self._predictions(fields[usable], known[usable], 1)
            self.ood.add([frames[row] for row in usable.nonzero().flatten().tolist()], found)
            prediction[usable] = found.fields[:, 0]
            low[usable], high[usable] = found.intervals.low[:, 0], found.intervals.high[:, 0]
            if moved is not None and found.known is not None:
                moved[usable] = found.known[:, 0]
        return prediction, {"low": low, "high": high}, moved

    def rollout(self, newest: int, stop: int, steps: int) -> Iterator[tuple[Block, Tensor]]:
        """The ``steps`` frames after frame ``newest``, and the prediction of persistence."""
        recording = self.recording
        fields, known = recording.windows([newest])
        if not bool(known.any()):
            raise ValueError(
                f"trajectory {recording.trajectory.name!r}: no point is known in all of the "
                f"{recording.history} frames up to frame {newest}; start from another (--start)"
            )
        done = 0
        for found in self._predictions(fields, known, steps):
            frames, intervals = found.fields[0], {}
            if found.intervals is not None:
                intervals = {"low": found.intervals.low[0], "high": found.intervals.high[0]}
                if not done:
                    self.ood.add([newest], found)
            numbers = range(done + 1, done + len(frames) + 1)
            times = [recording.time_after(newest, number, stop) for number in numbers]
            block = self._block(
                frames,
                intervals,
                None if found.known is None else found.known[0],
                [newest],
                known=known.expand(len(frames), -1, -1),
                time=torch.tensor(times, dtype=torch.float64),
                number=torch.tensor(numbers),
                truth=recording.truth_after([(newest, number) for number in numbers], stop),
            )
            last = fields[0, -1:].expand_as(frames)
            yield block, last[:, : self._fields]
            done += len(frames)

    def _predictions(self, fields: Tensor, known: Tensor, steps: int) -> Iterator[Prediction]:
        recording = self.recording
        given = self.predictor.prepare(fields, recording.parameters, known, grid=recording.grid)
        if self._calibrated is None:
            stream = self.predictor.stream(given, steps)
        else:
            stream = self._calibrated.stream(given, steps, beyond="last", **self._options)
        for found in self.predictor.predictions(stream):
            self.recording.notes.extend(found.notes)
            yield found

    def describe(
        self,
        *,
        source: Mapping[str, Any],
        model: str,
        facts: Mapping[str, Any],
        counted: str,
        vorticity_unit: str | None = None,
        times: Sequence[float] = (),
        dt: float | None = None,
    ) -> Description:
        """The metadata that files of the prediction state.

        Args:
            source: File and reader of the recording.
            model: Its name.
            facts: How the prediction was made.
            counted: What the numbers of frames count.
            vorticity_unit: If files for other programs get the vorticity.
            times: Of the frames, where not all are dt apart.
            dt: Time between them; None: that of the recording.
        """
        recording, calibrated = self.recording, self._calibrated
        trajectory, level = recording.trajectory, self._options["level"]
        dt = dt or recording.dt
        is_even = len(times) < 2 or keeps_step(np.asarray(times), dt)
        weights = self.predictor.card.get("weights", {}).get("sha256")
        intervals: dict[str, Any] = {}
        if calibrated is not None:
            found = calibrated.calibration
            weights = found.weights_sha256  # of an ensemble, that of all members
            stated = {"level": level, "leads": found.leads, "rests_on": found.assumption()}
            intervals = {"intervals": stated}
        prediction = {
            "model": model,
            "weights_sha256": weights,
            "parameters": dict(recording.parameters),
            **facts,
            **intervals,
        }
        kept = {key: value for key, value in trajectory.local.items() if key not in IDENTITY}
        return Description(
            name=trajectory.name,
            spec=replace(
                written_spec(recording),
                dt=dt if is_even and not counts_frames(trajectory) else None,
            ),
            parameters=recording.parameters,
            source=predicted_source(trajectory.source, model, weights, level),
            local={**source, **kept, "prediction": prediction},
            length_unit=trajectory.length_unit,
            time_unit=trajectory.time_unit,
            vorticity_unit=vorticity_unit,
            counted=counted,
            interval_level=level,
            body_moves=bool(recording.spec.moving),
            state=recording.spec.state,
        )


def written_spec(recording: FittedRecording) -> FieldSpec:
    """The fields of a prediction: the recording's, completed by the model's units and body."""
    stated, spec = recording.trajectory.spec, recording.spec
    grid = stated.grid
    if grid.body is None and spec.grid.body is not None and spec.grid.shape == grid.shape:
        grid = replace(grid, body=spec.grid.body)
    units = tuple(b if a == "1" else a for a, b in zip(stated.units, spec.units, strict=True))
    return replace(stated, grid=grid, parameters=spec.parameters, units=units).of_fields
