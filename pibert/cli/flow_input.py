"""The flow that a model goes on from: one trajectory of a file, as the model wants it."""

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pibert.cli.assumptions import Remark, compare_steps, in_units, is_counted
from pibert.cli.completion import complete_model
from pibert.cli.terminal import say

if TYPE_CHECKING:
    from torch import Tensor

    from pibert.cli.options import SourceOptions
    from pibert.data.sources.recordings import Recordings
    from pibert.fields import Grid, Trajectory
    from pibert.predictor import Predictor

Model = Annotated[
    str,
    typer.Option(
        help="A run folder, a .safetensors file, or the name of a shipped model.",
        autocompletion=complete_model,
        show_default=False,
    ),
]
TrajectoryName = Annotated[
    str | None,
    typer.Option(help="Which one of the file; the first if not given.", metavar="NAME|NUMBER"),
]
Start = Annotated[
    int | None,
    typer.Option(
        help="The newest frame that the model sees first, counted from 0, or from the end if "
        "negative; the first with enough frames before it if not given.",
        metavar="FRAME",
    ),
]
Stride = Annotated[int, typer.Option(min=1, help="Every how many frames one is taken.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]


class Remarks:
    """Says each remark once, on standard error."""

    def __init__(self) -> None:
        self._console, self._said = Console(stderr=True), set[str]()

    def __call__(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            say(self._console, f"note: {text}")


@contextlib.contextmanager
def noting_warnings(remark: Remark) -> Iterator[None]:
    """What is warned of an input becomes a remark; other warnings stay what they are."""
    from pibert.predictor import InputWarning

    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as found:
            caught = found
            warnings.simplefilter("always", InputWarning)
            yield
    finally:  # they may explain what went wrong
        for own in caught:
            if issubclass(own.category, InputWarning):
                remark(str(own.message))
            else:
                warnings.warn_explicit(own.message, own.category, own.filename, own.lineno)


@dataclass(frozen=True, eq=False, kw_only=True)
class Flow:
    """A trajectory in the channels and units of a model, on its own grid."""

    trajectory: "Trajectory"
    predictor: "Predictor"
    parameters: Mapping[str, float]
    """Those that the model knows and a value is known of."""
    recordings: "Recordings"
    remark: Remark

    @property
    def dt(self) -> float:
        """Time between two frames; counted where nothing states it."""
        time, spec = self.trajectory.time, self.trajectory.spec
        if spec.dt is not None:
            return spec.dt
        if len(time) > 1:
            return float(time.diff().median())
        return self.predictor.spec.dt or 1.0

    @property
    def is_predicted(self) -> bool:
        """Whether a model made these fields: they are no truth."""
        from pibert.data.provenance import predicted_by

        return predicted_by(self.trajectory.source) is not None

    @property
    def grid(self) -> "Grid":
        """For the predictor; where points were counted, laid over its domain."""
        own, model = self.trajectory.spec.grid, self.predictor.spec.grid
        if not is_counted(self.trajectory, model):
            return own
        (ny, nx), (my, mx) = own.shape, model.shape
        dx, dy = model.dx * mx / nx, model.dy * my / ny
        return replace(own, dx=dx, dy=dy, sides=model.sides)

    def newest_frames(self) -> list[tuple[int, int]]:
        """Frames that have their history before them, and the first frame after their stretch.

        Stretches end where the time has gaps; windows do not lead across those.
        """
        from pibert.data.splits import Segment, split_at_gaps

        time, history = self.trajectory.time, self.predictor.history
        pieces = split_at_gaps(Segment(0), time, self.trajectory.spec.dt)
        found = [
            (frame, piece.stop)
            for piece in pieces
            if piece.stop is not None
            for frame in range(piece.start + history - 1, piece.stop)
        ]
        if not found:
            longest = max((piece.stop or 0) - piece.start for piece in pieces)
            raise ValueError(
                f"trajectory {self.trajectory.name!r}: expected at least the {history} frames in a "
                f"row that the model takes, found {longest}; take a longer recording"
            )
        return found

    def check_start(self, start: int | None) -> tuple[int, int]:
        """The newest frame that the model sees, and the end of its stretch.

        Args:
            start: As the user says it, from the end if negative. None: the first that can be.
        """
        possible = dict(self.newest_frames())
        count = self.trajectory.num_frames
        frame = min(possible) if start is None else start + count * (start < 0)
        if frame not in possible:
            raise ValueError(
                f"--start: expected a frame from {min(possible)} to {max(possible)} (of {count}) "
                f"with the {self.predictor.history} frames in a row that the model takes, found "
                f"{start}"
            )
        return frame, possible[frame]

    def windows(self, newest: list[int]) -> "tuple[Tensor, Tensor]":
        """Fields (b, h, c, y, x), zero where not known, and what is known of them, (b, y, x).

        Of a window with a frame that holds nothing, nothing is known.
        """
        import torch

        history = self.predictor.history
        first = newest[0] - history + 1
        fields, known = self._read(slice(first, newest[-1] + 1))
        for place in range(len(fields)):
            if not bool(known[place].any()):
                self.remark(
                    f"frame {first + place} holds no finite value at a known point: nothing is "
                    "predicted from it"
                )
        fields = torch.where(known[:, None], fields, 0.0)
        rows = torch.tensor(newest)[:, None] - first + torch.arange(1 - history, 1)
        return fields[rows], known[rows].all(1)

    def truth(self, frames: slice) -> "Tensor":
        """True frames, (t, c, y, x), NaN where they were not measured."""
        import torch

        fields, known = self._read(frames)
        measured = known & self.trajectory.measured(frames).cpu()
        if not torch.equal(measured, known):
            self.remark(
                "vectors of the recording that were filled, not measured, are input of the model, "
                "but they are not scored"
            )
        return torch.where(measured[:, None], fields, math.nan)

    def _read(self, frames: slice) -> "tuple[Tensor, Tensor]":
        import torch

        fields = self.trajectory.read(frames).to("cpu", torch.float32)
        known = self.trajectory.known(frames).cpu()
        finite = fields.isfinite().all(1)
        if bool((known & ~finite).any()):
            self.remark(
                "some values are not finite at points that count as known; those points count as "
                "not known"
            )
        known = known & finite
        solid = self.predictor.spec.grid.body
        if solid is not None and solid.shape == known.shape[1:]:
            known = known & ~solid
        return fields, known

    def noting_warnings(self) -> contextlib.AbstractContextManager[None]:
        """What the predictor warns of becomes a remark."""
        return noting_warnings(self.remark)

    def batches(self, frames: list[int]) -> Iterator[list[int]]:
        """Runs of consecutive frames, few enough to hold their windows in memory."""
        _, c, ny, nx = self.trajectory.states.shape
        most = max(1, min(64, (1 << 22) // (self.predictor.history * c * ny * nx)))
        start = 0
        for place in range(1, len(frames) + 1):
            whole = place == len(frames) or frames[place] != frames[place - 1] + 1
            if whole or place - start == most:
                yield frames[start:place]
                start = place


def open_flow(
    source: "SourceOptions",
    predictor: "Predictor",
    *,
    trajectory: str | None,
    stride: int,
    remark: Remark,
) -> Flow:
    """Open what the user named, in the channels and units of a model."""
    from pibert.data.provenance import predicted_by
    from pibert.data.resample import represent

    # Of the flow, not of the file: those that a file states may be replaced.
    given = source.hints.parameters
    source.hints = replace(source.hints, parameters={})
    recordings = source.open()
    for text in recordings.remarks:
        remark(text)
    chosen = _choose(recordings, trajectory, remark)
    if (made := predicted_by(chosen.source)) is not None:
        remark(f"these fields were {made}: they are not ground truth")
    spec, where = predictor.spec, f"trajectory {chosen.name!r}"
    missing = [name for name in spec.channels if name not in chosen.spec.channels]
    if missing:
        raise ValueError(
            f"{where}: expected the channels {list(spec.channels)} of the model, found "
            f"{list(chosen.spec.channels)}; name them with --channels, or take another model"
        )
    view = represent(chosen, stride=stride, channels=spec.channels)
    fit = in_units(view, predictor, remark)
    compare_steps(fit, predictor, remark)
    return Flow(
        trajectory=fit,
        predictor=predictor,
        parameters=_parameters(fit, predictor, given, remark),
        recordings=recordings,
        remark=remark,
    )


def _choose(recordings: "Recordings", wanted: str | None, remark: Remark) -> "Trajectory":
    names = recordings.names
    if wanted is None:
        if len(names) > 1:
            remark(f"the first of {len(names)} trajectories, {names[0]!r} (--trajectory)")
        return recordings[0]
    if wanted in names:
        return recordings[wanted]
    if wanted.isdecimal() and int(wanted) < len(names):
        return recordings[int(wanted)]
    some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    raise ValueError(
        f"{recordings.path}: --trajectory takes a name or a number from 0 to {len(names) - 1}, "
        f"found {wanted!r}; there are: {some}"
    )


def _parameters(
    fit: "Trajectory", predictor: "Predictor", given: Mapping[str, float], remark: Remark
) -> dict[str, float]:
    known = predictor.spec.parameter_names
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(
            f"--parameter: the model knows no {', '.join(unknown)}; it knows: "
            f"{', '.join(known) or 'none'}"
        )
    found = {name: value for name, value in fit.parameters.items() if name in known}
    found.update(given)
    missing = [name for name in known if name not in found]
    if missing:
        remark(f"not known to the model: {', '.join(missing)} (--parameter {missing[0]}=NUMBER)")
    return found
