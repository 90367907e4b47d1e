"""``pibert predict``: the next frame from every frame of a recording."""

import contextlib
import math
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from pibert.cli import bars, options, outputs
from pibert.cli.flow_input import (
    Device,
    Model,
    Remarks,
    Start,
    Stride,
    TrajectoryName,
    open_flow,
)
from pibert.cli.pace import Pace
from pibert.cli.prediction_scores import Scoring, show_coverage, show_overall
from pibert.cli.terminal import progress_bar, say, show_json

if TYPE_CHECKING:
    from torch import Tensor

    from pibert.cli.flow_input import Flow
    from pibert.data.writers import Block
    from pibert.trust import Trusted


@options.with_source
def predict(
    path: options.Source,
    model: Model,
    out: outputs.Out,
    trajectory: TrajectoryName = None,
    start: Start = None,
    stride: Stride = 1,
    device: Device = "auto",
    level: bars.Level = None,
    calibration: bars.Calibrated = None,
    false_alarms: bars.FalseAlarms = None,
    format_: outputs.Format = None,
    overwrite: outputs.Overwrite = False,
    vorticity: outputs.Vorticity = False,
    as_json: options.Json = False,
    *,
    source: options.SourceOptions,
) -> None:
    """Predict the next frame from every frame of a recording that has its history before it.

    Every prediction starts from recorded frames, so errors do not build up. Where the recording has
    the frame, NMSE and the skill against persistence are printed.

    Example: pibert predict wake.h5 --model runs/demo --out next.h5 --out next.png

    Example: pibert predict wake.h5 --model runs/wake --level 0.9 --out next.nc

    Example: pibert predict 'run/B*.txt' --model runs/demo --dt 0.01 --parameter Re=100 --out a.nc
    """
    named = outputs.check_outputs(path, out, format_)
    console = Console(stderr=as_json)
    predictor, trusted = bars.load_model(model, device, level, calibration, false_alarms)
    flow = open_flow(source, predictor, trajectory=trajectory, stride=stride, remark=Remarks())
    (first, stop), pace = flow.check_start(start), Pace(flow)
    ends = {frame: stop for frame, stop in flow.newest_frames() if frame >= first}
    about = outputs.describe(
        flow,
        model=outputs.model_name(model),
        facts={"mode": "predict", "start": first},
        counted="frame",
        wants_vorticity=vorticity,
        times=[pace.time_after(frame, 1, stop) for frame, stop in ends.items()],
        trusted=trusted,
        level=level,
    )
    writers = outputs.make_writers(named, about, overwrite=overwrite, expected=len(ends))
    scoring, alarms = Scoring(about.spec, predictor.normalizer), bars.Alarms()
    step = _Step(flow, pace, trusted, level, false_alarms, alarms)
    columns = (TextColumn("{task.completed}/{task.total} frames"), BarColumn())
    with contextlib.ExitStack() as stack:
        for writer in writers:
            stack.enter_context(writer)
        progress = stack.enter_context(progress_bar(console, *columns, TimeRemainingColumn()))
        task = progress.add_task("predicting", total=len(ends))
        for frames in flow.batches(list(ends)):
            block, last = step(frames, ends[frames[0]])
            for writer in writers:
                writer.append(block)
            scoring.add(block, last)
            progress.advance(task, len(frames))
    alarms.tell()
    written = [str(target) for writer in writers for target in writer.targets]
    if not scoring.numbers:
        say(console, f"note: {pace.why_no_truth(first, stop)}")
    if as_json:
        summary: dict[str, Any] = {
            **about.local["prediction"],
            "source": str(path),
            "trajectory": about.name,
            "frames": len(ends),
            "scored": len(scoring.numbers),
            "scores": scoring.overall(),
            "written": written,
        }
        if trusted is not None:
            summary["bars"] = {**summary["bars"], "alarm": alarms.to_dict()}
        show_json(summary)
        return
    if scoring.numbers:
        say(console, f"{len(scoring.numbers)} of {len(ends)} predicted frames are in the recording")
        show_overall(console, scoring)
        show_coverage(console, scoring, level)
    say(console, f"Wrote {len(ends)} frames to {', '.join(written)}.")


class _Step:
    """The frames after some consecutive ones of a stretch, and those that the model saw last."""

    def __init__(
        self,
        flow: "Flow",
        pace: Pace,
        trusted: "Trusted | None",
        level: float | None,
        false_alarms: float | None,
        alarms: bars.Alarms,
    ) -> None:
        self._flow, self._pace = flow, pace
        self._trusted, self._level, self._alarms = trusted, level, alarms
        self._false_alarms = false_alarms

    def __call__(self, frames: list[int], stop: int) -> "tuple[Block, Tensor]":
        import torch

        from pibert.data.writers import Block

        flow, pace = self._flow, self._pace
        fields, known = flow.windows(frames)
        with flow.noting_warnings():
            answer, ends = self._answer(frames, fields, known)
        times = [pace.time_after(frame, 1, stop) for frame in frames]
        block = Block(
            fields=answer,
            time=torch.tensor(times, dtype=torch.float64),
            number=torch.tensor(frames) + 1,
            known=known,
            truth=pace.truth_after([(frame, 1) for frame in frames], stop),
            **ends,
        )
        return block, fields[:, -1]

    def _answer(
        self, frames: list[int], fields: "Tensor", known: "Tensor"
    ) -> "tuple[Tensor, dict[str, Tensor]]":
        """The next frame of every window, and the ends of its bars if they are wanted."""
        flow, grid = self._flow, self._flow.grid
        if self._trusted is None or self._level is None:
            answer = flow.predictor.step(fields, flow.parameters, mask=known, grid=grid)
            return answer[:, 0], {}
        # Of a window without a known point there is nothing to judge either.
        sound = known.flatten(1).any(1)
        answer, low, high = fields.new_full((3, *fields[:, -1].shape), math.nan)
        if bool(sound.any()):
            given: Any = (fields[sound], 1, flow.parameters, known[sound])
            found = self._trusted.rollout(
                *given, level=self._level, false_alarms=self._false_alarms, grid=grid
            )
            self._alarms.add([frames[row] for row in sound.nonzero().flatten().tolist()], found)
            answer[sound], low[sound], high[sound] = (
                own[:, 0] for own in (found.prediction, found.low, found.high)
            )
        return answer, {"low": low, "high": high}
