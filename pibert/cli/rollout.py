"""``pibert rollout``: a model goes on alone from a frame of a recording."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from pibert.cli import options, outputs
from pibert.cli.flow_input import (
    Device,
    Model,
    Remarks,
    Start,
    Stride,
    TrajectoryName,
    open_flow,
)
from pibert.cli.prediction_scores import Scoring, show_by_lead
from pibert.cli.terminal import complain, progress_bar, say, show_json

if TYPE_CHECKING:
    from torch import Tensor

    from pibert.cli.flow_input import Flow
    from pibert.data.writers import Block


@options.with_source
def rollout(
    path: options.Source,
    model: Model,
    out: outputs.Out,
    steps: Annotated[int, typer.Option(min=1, help="How many frames to predict.")] = 200,
    trajectory: TrajectoryName = None,
    start: Start = None,
    stride: Stride = 1,
    device: Device = "auto",
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

    Example: pibert rollout wake.h5 --model runs/demo --start -1 --parameter Re=3900 --out next.h5
    """
    from pibert.predictor import load

    named = outputs.check_outputs(path, out, format_)
    shown = None if show is None else _steps(show, steps)
    console = Console(stderr=as_json)
    predictor = load(model, device)
    flow = open_flow(
        source, predictor, trajectory=trajectory, stride=stride, remark=Remarks(console)
    )
    newest, stop = flow.check_start(start)
    about = outputs.describe(
        flow,
        model=outputs.model_name(model),
        facts={"mode": "rollout", "start": newest, "steps": steps},
        counted="step",
        wants_vorticity=vorticity,
    )
    writers = outputs.make_writers(named, about, overwrite=overwrite, expected=steps, shown=shown)
    scoring = Scoring(about.spec, predictor.normalizer)
    columns = (TextColumn("{task.completed}/{task.total} steps"), BarColumn())
    done, diverged = 0, None
    with contextlib.ExitStack() as stack:
        for writer in writers:
            stack.enter_context(writer)
        progress = stack.enter_context(progress_bar(console, *columns, TimeRemainingColumn()))
        task = progress.add_task("stepping", total=steps)
        try:
            for block, last in _blocks(flow, newest, stop, steps):
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
    written = [str(target) for writer in writers for target in writer.targets]
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
        show_json(summary)
    else:
        if scoring.numbers:
            show_by_lead(console, scoring, about.time_unit)
        else:
            say(console, "note: the recording ends at the start: nothing to compare with")
        say(console, f"Wrote {done} frames to {', '.join(written)}.")
    if diverged is not None:
        complain(f"error: stopped after {done} of {steps} steps: {diverged}")
        raise typer.Exit(1)


def _steps(text: str, most: int) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= most for part in parts):
        raise ValueError(f"--show takes steps from 1 to {most}, such as 1,10,50, found {text!r}")
    return [int(part) for part in parts]


def _blocks(flow: "Flow", newest: int, stop: int, steps: int) -> "Iterator[tuple[Block, Tensor]]":
    """Predicted frames as they come, and what persistence predicts."""
    import torch

    from pibert.data.writers import Block

    fields, known = flow.windows([newest])
    grid, begin = flow.trajectory.spec.grid, float(flow.trajectory.time[newest])
    with flow.noting_warnings():
        answers = flow.predictor.iterate(fields, steps, flow.parameters, mask=known, grid=grid)
    done = 0
    for answer in answers:
        frames = answer[0]
        number = torch.arange(done + 1, done + len(frames) + 1)
        truth = torch.full_like(frames, torch.nan)
        first = newest + 1 + done
        if first < stop:
            there = flow.truth(slice(first, min(first + len(frames), stop)))
            truth[: len(there)] = there
        block = Block(
            fields=frames,
            time=begin + flow.dt * number.double(),
            number=number,
            known=known.expand(len(frames), -1, -1),
            truth=truth,
        )
        yield block, fields[0, -1:].expand_as(frames)
        done += len(frames)
