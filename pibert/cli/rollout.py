"""``pibert rollout``: a model goes on alone from a frame of a recording."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
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
from pibert.cli.prediction_scores import Scoring, show_by_lead, show_coverage
from pibert.cli.terminal import complain, progress_bar, say, show_json

if TYPE_CHECKING:
    from torch import Tensor

    from pibert.cli.flow_input import Flow
    from pibert.data.writers import Block
    from pibert.trust import Bars, Trusted


STEPS = 200


@options.with_source
def rollout(
    path: options.Source,
    model: Model,
    out: outputs.Out,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"How many frames to predict; {STEPS} if not given, with --level as many as have "
            "bars.",
        ),
    ] = None,
    trajectory: TrajectoryName = None,
    start: Start = None,
    stride: Stride = 1,
    device: Device = "auto",
    level: bars.Level = None,
    calibration: bars.Calibrated = None,
    false_alarms: bars.FalseAlarms = None,
    extend_bars: bars.ExtendBars = False,
    format_: outputs.Format = None,
    show: Annotated[
        str | None,
        typer.Option(
            help="Steps that a .png shows; spread over all if not given.",
            metavar="STEP,...",
            rich_help_panel="Output",
        ),
    ] = None,
    overwrite: outputs.Overwrite = False,
    vorticity: outputs.Vorticity = False,
    as_json: options.Json = False,
    *,
    source: options.SourceOptions,
) -> None:
    """Let a model go on alone from a frame of a recording, each frame from those before it.

    As far as the recording goes, NMSE and the skill against persistence are printed by lead time. A
    rollout that diverges keeps what came before and ends with exit code 1.

    Example: pibert rollout wake.h5 --model runs/demo --steps 200 --out wake.pvd --out wake.gif

    Example: pibert rollout wake.h5 --model runs/wake --steps 8 --level 0.9 --out wake.nc

    Example: pibert rollout wake.h5 --model runs/demo --start -1 --parameter Re=3900 --out next.h5
    """
    named = outputs.check_outputs(path, out, format_)
    console = Console(stderr=as_json)
    predictor, trusted = bars.load_model(model, device, level, calibration, false_alarms)
    if steps is None:
        steps = STEPS if trusted is None or extend_bars else trusted.calibration.leads
    shown = None if show is None else _steps(show, steps)
    narrow = bars.check_leads(trusted, steps, extend_bars)
    flow = open_flow(source, predictor, trajectory=trajectory, stride=stride, remark=Remarks())
    if narrow is not None:
        flow.remark(narrow)
    (newest, stop), pace = flow.check_start(start), Pace(flow)
    about = outputs.describe(
        flow,
        model=outputs.model_name(model),
        facts={"mode": "rollout", "start": newest, "steps": steps},
        counted="step",
        wants_vorticity=vorticity,
        dt=pace.step,
        trusted=trusted,
        level=level,
    )
    writers = outputs.make_writers(named, about, overwrite=overwrite, expected=steps, shown=shown)
    scoring, alarms = Scoring(about.spec, predictor.normalizer), bars.Alarms()
    asked: dict[str, Any] = {"level": level, "false_alarms": false_alarms}
    columns = (TextColumn("{task.completed}/{task.total} steps"), BarColumn())
    done, diverged = 0, None
    with contextlib.ExitStack() as stack:
        for writer in writers:
            stack.enter_context(writer)
        progress = stack.enter_context(progress_bar(console, *columns, TimeRemainingColumn()))
        task = progress.add_task("stepping", total=steps)
        try:
            answers = _answers(flow, newest, steps, trusted, asked, alarms)
            for block, last in _blocks(flow, pace, newest, stop, answers):
                for writer in writers:
                    writer.append(block)
                scoring.add(block, last)
                done += len(block.time)
                progress.update(task, completed=done)
        except FloatingPointError as error:
            diverged = str(error)
            if not done:
                progress.stop()
                complain(f"error: {diverged}; nothing was written")
                raise typer.Exit(1) from None
    alarms.tell()
    written = [str(target) for writer in writers for target in writer.targets]
    if not scoring.numbers:
        say(console, f"note: {pace.why_no_truth(newest, stop)}")
    if as_json:
        summary: dict[str, Any] = {
            **about.local["prediction"],
            "source": str(path),
            "trajectory": about.name,
            "frames": done,
            "diverged": diverged is not None,
            "scored": len(scoring.numbers),
            "scores": scoring.by_number(),
            "written": written,
        }
        if trusted is not None:
            summary["bars"] = {**summary["bars"], "alarm": alarms.to_dict()}
        show_json(summary)
    else:
        if scoring.numbers:
            if not pace.fits:
                found = f"{len(scoring.numbers)} of {done} predicted frames"
                say(console, f"{found} are at times that were recorded")
            show_by_lead(console, scoring, about.time_unit)
            show_coverage(console, scoring, level)
        say(console, f"Wrote {done} frames to {', '.join(written)}.")
    if diverged is not None:
        complain(f"error: stopped after {done} of {steps} steps: {diverged}")
        raise typer.Exit(1)


def _steps(text: str, most: int) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= most for part in parts):
        raise ValueError(f"--show takes steps from 1 to {most}, such as 1,10,50, found {text!r}")
    return [int(part) for part in parts]


def _answers(
    flow: "Flow",
    newest: int,
    steps: int,
    trusted: "Trusted | None",
    asked: Mapping[str, Any],
    alarms: bars.Alarms,
) -> "Iterator[tuple[Tensor, dict[str, Tensor]]]":
    """Predicted frames block by block, and the ends of their bars if they are wanted."""
    fields, known = flow.windows([newest])
    if not bool(known.any()):
        raise ValueError(
            f"trajectory {flow.trajectory.name!r}: no point is known in all of the "
            f"{flow.predictor.history} frames up to frame {newest}; start from another (--start)"
        )
    given: Any = (fields, steps, flow.parameters, known)
    grid = flow.grid
    blocks: Iterator[tuple[Tensor, dict[str, Tensor]]]
    with flow.noting_warnings():
        if trusted is None:
            blocks = ((found[0], {}) for found in flow.predictor.iterate(*given, grid=grid))
        else:
            barred = trusted.iterate(*given, **asked, beyond="last", grid=grid)
            blocks = _barred(barred, newest, alarms)
    while True:
        with flow.noting_warnings():
            block = next(blocks, None)
        if block is None:
            return
        yield block


def _barred(
    answers: "Iterator[Bars]", newest: int, alarms: bars.Alarms
) -> "Iterator[tuple[Tensor, dict[str, Tensor]]]":
    for count, found in enumerate(answers):
        if not count:
            alarms.add([newest], found)
        yield found.prediction[0], {"low": found.low[0], "high": found.high[0]}


def _blocks(
    flow: "Flow",
    pace: Pace,
    newest: int,
    stop: int,
    answers: "Iterator[tuple[Tensor, dict[str, Tensor]]]",
) -> "Iterator[tuple[Block, Tensor]]":
    """What is written as it comes, and what persistence predicts."""
    import torch

    from pibert.data.writers import Block

    fields, known = flow.windows([newest])
    done = 0
    for frames, ends in answers:
        steps = range(done + 1, done + len(frames) + 1)
        times = [pace.time_after(newest, step, stop) for step in steps]
        block = Block(
            fields=frames,
            time=torch.tensor(times, dtype=torch.float64),
            number=torch.tensor(steps),
            known=known.expand(len(frames), -1, -1),
            truth=pace.truth_after([(newest, step) for step in steps], stop),
            **ends,
        )
        yield block, fields[0, -1:].expand_as(frames)
        done += len(frames)
