"""A recording in the channels, units, grid and time step of a model.

Frames of an even recording whose time step agrees with the model's within 1 % count as one model
step apart, as with rounded times. Otherwise predicted frames advance by the model's time step, and
have a true frame only where a recorded time agrees.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pibert.data.provenance import counts_frames, counts_points, frame_step, predicted_by
from pibert.data.resample import represent
from pibert.data.splits import Segment, split_at_gaps
from pibert.data.units import assume_units, in_consistent_units, names_pixels
from pibert.fields import FieldSpec, Grid, Trajectory
from pibert.inference.model_input import unknown_parameters
from pibert.notes import Note, Notes

AddNote = Callable[[Note], object]
SAME_STEP = 0.01
"""Relative: times and time steps that differ by less of a step are equal."""


def units_of(spec: FieldSpec) -> dict[str, str]:
    """Units of the channels by name."""
    return dict(zip(spec.channels, spec.units, strict=True))


def fit_units(
    trajectory: Trajectory, models: Sequence[Mapping[str, str]], add_note: AddNote
) -> Trajectory:
    """The trajectory in metres and seconds, unless a model takes the units that it has.

    Channels without a unit are assumed to have that of the models, if these agree on one. A
    trajectory with unknown units is not changed.

    Args:
        trajectory: Any flow.
        models: Units by channel of each model that may use it.
        add_note: Takes notes on assumptions and conversions.
    """
    wanted = {tuple(each.get(name, "1") for name in trajectory.spec.channels) for each in models}
    stated = trajectory
    if len(wanted) == 1:
        assumed: list[str] = []
        stated = assume_units(trajectory, wanted.pop(), assumed.append)
        for text in assumed:
            add_note(Note("units-assumed", text))
    scaled, units = in_consistent_units(stated), units_of(stated.spec)
    is_taken = any(each.items() <= units.items() for each in models)
    # Velocities in m/s may go with coordinates in mm, which no model takes.
    if scaled is stated or (is_taken and scaled.spec.units != stated.spec.units):
        return stated
    changes = ", ".join(f"{name} {change}" for name, change in scaled.local["units"].items())
    text = f"converted to metres and seconds: {changes}"
    add_note(Note("units-converted", text, severity="info"))
    return scaled


def check_units(trajectory: Trajectory, spec: FieldSpec) -> None:
    """Raise where a channel is in another unit than the model's."""
    for name, mine, theirs in zip(spec.channels, spec.units, trajectory.spec.units, strict=True):
        if mine != theirs and "1" not in (mine, theirs):
            advice = "; give --scale and --pulse-delay" if names_pixels(theirs) else ""
            raise ValueError(
                f"trajectory {trajectory.name!r}: expected {name!r} in {mine}, as the model was "
                f"trained, found {theirs}{advice}"
            )


def fit_recording(
    trajectory: Trajectory,
    spec: FieldSpec,
    history: int,
    *,
    parameters: Mapping[str, float] | None = None,
    stride: int = 1,
    notes: Notes | None = None,
) -> "FittedRecording":
    """A recording as input of a model.

    Args:
        trajectory: With the channels of the model among its own.
        spec: Of the model.
        history: Frames that the model takes.
        parameters: Replace those of the recording.
        stride: Use every Nth frame.
        notes: Takes the notes on it.
    """
    notes = Notes() if notes is None else notes
    if (origin := predicted_by(trajectory.source)) is not None:
        notes.add(Note("predicted-input", f"these fields were {origin}: they are not ground truth"))
    missing = [name for name in spec.state if name not in trajectory.series]
    if missing and not set(missing) <= set(trajectory.spec.channels):
        found = ", ".join(trajectory.series) or "none"
        raise ValueError(
            f"trajectory {trajectory.name!r}: expected the series {', '.join(spec.state)} of the "
            f"structure, which the model reads, found {found}; add them to the recording, or take "
            "a model of the flow without the structure"
        )
    fields = spec.of_fields.channels
    if any(name not in trajectory.spec.channels for name in fields):
        raise ValueError(
            f"trajectory {trajectory.name!r}: expected the channels {list(fields)} of the "
            f"model, found {list(trajectory.spec.channels)}; name them with --channels, or take "
            "another model"
        )
    view = represent(trajectory, stride=stride, channels=spec.channels)
    fit = fit_units(view, [units_of(spec)], notes.add)
    check_units(fit, spec)
    if spec.moving:
        _check_place(fit, spec)
    names, given = spec.parameter_names, dict(parameters or {})
    if unknown := sorted(set(given) - set(names)):
        raise ValueError(
            f"--parameter: the model has no {', '.join(unknown)}; it has: "
            f"{', '.join(names) or 'none'}"
        )
    known = {name: value for name, value in fit.parameters.items() if name in names} | given
    notes.extend(unknown_parameters(spec, known, "--parameter {name}=NUMBER"))
    recording = FittedRecording(fit, spec, history, known, notes)
    notes.extend(recording.assumptions())
    return recording


def _check_place(trajectory: Trajectory, spec: FieldSpec) -> None:
    """Raise unless the recording has the grid in which the model moves its bodies."""
    mine, theirs = spec.grid, trajectory.spec.grid
    step = min(mine.dx, mine.dy)
    lengths = zip(
        (mine.dx, mine.dy, *mine.origin), (theirs.dx, theirs.dy, *theirs.origin), strict=True
    )
    if mine.shape != theirs.shape or any(abs(a - b) > SAME_STEP * step for a, b in lengths):
        raise ValueError(
            f"trajectory {trajectory.name!r}: expected the grid of the model, in which its bodies "
            f"move: {mine.shape} points, dx {mine.dx:g}, origin {mine.origin}; found "
            f"{theirs.shape}, dx {theirs.dx:g}, origin {theirs.origin}; crop or resample it"
        )


@dataclass(frozen=True, eq=False)
class FittedRecording:
    """A trajectory in the channels and units of a model, on its own grid."""

    trajectory: Trajectory
    spec: FieldSpec
    """Of the model."""
    history: int
    parameters: Mapping[str, float]
    """Parameters of the model with a known value."""
    notes: Notes = field(default_factory=Notes)

    @property
    def dt(self) -> float:
        """Time between two frames; 1 if nothing states it."""
        time, dt = self.trajectory.time, self.trajectory.spec.dt
        if dt is not None:
            return dt
        return float(time.diff().median()) if len(time) > 1 else self.spec.dt or 1.0

    @property
    def keeps_time_step(self) -> bool:
        """Whether neighbouring frames without a gap are one model step apart."""
        trajectory, model_dt = self.trajectory, self.spec.dt
        is_even = trajectory.spec.dt is not None or trajectory.num_frames == 1
        is_same = model_dt is None or math.isclose(model_dt, self.dt, rel_tol=SAME_STEP)
        return self._counts_frames or (is_even and is_same)

    @property
    def _counts_frames(self) -> bool:
        """Whether times are frame numbers, between which frames may be missing."""
        trajectory = self.trajectory
        is_even = trajectory.num_frames == 1 or frame_step(trajectory) is not None
        return is_even and counts_frames(trajectory)

    @property
    def time_step(self) -> float:
        """Time from a predicted frame to the next one of a rollout."""
        return self.dt if self.keeps_time_step else self.spec.dt or self.dt

    @property
    def is_predicted(self) -> bool:
        """Whether a model made these fields: they are not ground truth."""
        return predicted_by(self.trajectory.source) is not None

    @property
    def _counts_points(self) -> bool:
        """Whether coordinates are point numbers, because nothing states them."""
        return counts_points(self.trajectory) and (self.spec.grid.dx, self.spec.grid.dy) != (1, 1)

    @property
    def grid(self) -> Grid:
        """For the predictor; laid over the model's domain if coordinates are point numbers."""
        grid, model = self.trajectory.spec.grid, self.spec.grid
        if not self._counts_points:
            return grid
        (ny, nx), (my, mx) = grid.shape, model.shape
        return replace(grid, dx=model.dx * mx / nx, dy=model.dy * my / ny, sides=model.sides)

    def assumptions(self) -> Iterator[Note]:
        """Notes on the spacing and the time step."""
        grid, mine, theirs = self.spec.grid, self.spec.dt, self.trajectory.spec.dt
        if self._counts_points:
            yield Note(
                "spacing-assumed",
                "no spacing is stated: assuming that the points cover the model's domain, "
                f"{grid.shape[1] * grid.dx:.4g} x {grid.shape[0] * grid.dy:.4g}",
                "state it: --dx, --dy",
            )
        if mine is None or (theirs is not None and math.isclose(mine, theirs, rel_tol=SAME_STEP)):
            return
        if self._counts_frames:
            yield Note(
                "time-step-assumed",
                f"no time step is stated: assuming that frames are {mine:g} apart, the "
                "model's time step; times count frames",
                "state it: --dt",
            )
        elif theirs is not None or self.trajectory.num_frames > 1:
            spacing = "not evenly spaced" if theirs is None else f"{theirs:g} apart"
            ratio = 0.0 if theirs is None else mine / theirs
            fits = ratio > 1.5 and math.isclose(ratio, round(ratio), rel_tol=0.01)
            yield Note(
                "time-step",
                f"the frames are {spacing}, the model's time step is {mine:g}: only frames that "
                "were recorded at the times of predicted ones count as true frames",
                f"take the frames that fit: --stride {round(ratio)}" if fits else "",
            )

    def newest_frames(self) -> dict[int, int]:
        """Frames that have their history before them, and the first frame after their stretch.

        Stretches end at gaps in time; windows do not cross those.
        """
        step = frame_step(self.trajectory)
        pieces = split_at_gaps(Segment(0), self.trajectory.time, step)
        newest = {
            frame: piece.stop
            for piece in pieces
            if piece.stop is not None
            for frame in range(piece.start + self.history - 1, piece.stop)
        }
        if not newest:
            longest = max((piece.stop or 0) - piece.start for piece in pieces)
            raise ValueError(
                f"trajectory {self.trajectory.name!r}: expected at least the {self.history} "
                f"consecutive frames that the model takes, found {longest}; take a longer recording"
            )
        return newest

    def check_start(self, start: int | None) -> tuple[int, int]:
        """The newest frame that the model sees, and the end of its stretch.

        Args:
            start: A frame, from the end if negative. None: the first possible one.
        """
        possible, count = self.newest_frames(), self.trajectory.num_frames
        frame = min(possible) if start is None else start + count * (start < 0)
        if frame not in possible:
            raise ValueError(
                f"--start: expected a frame from {min(possible)} to {max(possible)} (of {count}) "
                f"with the {self.history} consecutive frames that the model takes, found {start}"
            )
        return frame, possible[frame]

    def windows(self, newest: list[int]) -> tuple[Tensor, Tensor]:
        """Fields (b, h, c, y, x), zero where unknown, and the known points, (b, y, x).

        All points of a window with an empty frame are unknown.
        """
        first = newest[0] - self.history + 1
        fields, known = self._read(slice(first, newest[-1] + 1))
        for row in (~known.flatten(1).any(1)).nonzero().flatten().tolist():
            number = str(first + row)
            text = f"frame {number} holds no finite value at a known point: nothing is predicted "
            text += "from it"
            self.notes.add(Note("empty-frame", text, subject=number))
        fields = torch.where(known[:, None], fields, 0.0)
        rows = torch.tensor(newest)[:, None] - first + torch.arange(1 - self.history, 1)
        return fields[rows], known[rows].all(1)

    def batches(self, ends: Mapping[int, int]) -> Iterator[list[int]]:
        """Runs of consecutive frames of a stretch, few enough to hold their windows in memory.

        Args:
            ends: The frames, in their order, and the first frame after the stretch of each.
        """
        _, c, ny, nx = self.trajectory.states.shape
        most = max(1, min(64, (1 << 22) // (self.history * c * ny * nx)))
        batch: list[int] = []
        for frame, stop in ends.items():
            apart = bool(batch) and (frame != batch[-1] + 1 or stop != ends[batch[-1]])
            if apart or len(batch) == most:
                yield batch
                batch = []
            batch.append(frame)
        if batch:
            yield batch

    def time_after(self, frame: int, steps: int, stop: int) -> float:
        """The time ``steps`` (1 or more) model steps after a frame whose stretch ends at ``stop``.

        Recorded times are used as far as they go: they may be rounded.
        """
        last = min(frame + steps, stop - 1) if self.keeps_time_step else frame
        return float(self.trajectory.time[last]) + self.time_step * (frame + steps - last)

    def truth_after(self, pairs: Sequence[tuple[int, int]], stop: int) -> Tensor:
        """True frames of predicted ones, (t, c, y, x), NaN where there is none.

        Args:
            pairs: Newest input frame and number of steps of each.
            stop: First frame after their stretch.
        """
        numbers = [self._recorded(frame, steps, stop) for frame, steps in pairs]
        truth = torch.full((len(numbers), *self.trajectory.states.shape[1:]), torch.nan)
        recorded = [number for number in numbers if number is not None]
        if not recorded:
            return truth
        first, last = recorded[0], recorded[-1]
        if numbers[: len(recorded)] == list(range(first, last + 1)):  # one read for all
            truth[: len(recorded)] = self.truth(slice(first, last + 1))
            return truth
        for row, number in enumerate(numbers):
            if number is not None:
                truth[row] = self.truth(slice(number, number + 1))[0]
        return truth

    def _recorded(self, frame: int, steps: int, stop: int) -> int | None:
        """The frame recorded ``steps`` model steps later; None if there is none."""
        if self.is_predicted:
            return None
        if self.keeps_time_step:
            return frame + steps if frame + steps < stop else None
        later = self.trajectory.time[frame + 1 : stop]
        if not len(later):
            return None
        off = (later - self.time_after(frame, steps, stop)).abs()
        nearest = int(off.argmin())
        # A frame recorded nearer to the predicted time would be another one.
        limit = min(SAME_STEP * self.time_step, 0.5 * float(self.trajectory.time.diff().min()))
        return frame + 1 + nearest if float(off[nearest]) <= limit else None

    def why_no_truth(self) -> Note:
        """A note where nothing that was predicted can be compared."""
        why = "the recording is itself a prediction, not ground truth"
        if not self.is_predicted:
            why = "the recording has no measured frame at the predicted times"
            if not self.keeps_time_step:
                why += f" (recorded {self.dt:g} apart, the model's time step is {self.time_step:g})"
        return Note("no-truth", f"{why}: nothing to compare with", severity="info")

    def truth(self, frames: slice) -> Tensor:
        """True frames, (t, c, y, x), NaN where they were not measured."""
        fields, known = self._read(frames)
        measured = known & self.trajectory.measured(frames).cpu()
        if not torch.equal(measured, known):
            text = "filled vectors of the recording are input of the model, but they are not scored"
            self.notes.add(Note("filled-vectors", text, severity="info"))
        return torch.where(measured[:, None], fields, math.nan)

    def _read(self, frames: slice) -> tuple[Tensor, Tensor]:
        fields = self.trajectory.read(frames).to("cpu", torch.float32)
        known = self.trajectory.known(frames).cpu()
        finite = fields.isfinite().all(1)
        if bool((known & ~finite).any()):
            text = "some values are not finite at known points; those points count as unknown"
            self.notes.add(Note("not-finite", text))
        known = known & finite
        solid = self.spec.grid.body
        if solid is not None and solid.shape == known.shape[1:]:
            known = known & ~solid
        return fields, known
