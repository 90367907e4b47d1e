"""``pibert predict`` and ``pibert rollout``: predictions from a recording, written to files."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from pibert.cli import options, outputs
from pibert.cli.completion import complete_model
from pibert.cli.terminal import NotePrinter, complain, leads_shown, progress_bar, say, show_json

if TYPE_CHECKING:
    from torch import Tensor

    from pibert.data.readers.recordings import Recordings
    from pibert.data.writers import Block
    from pibert.evaluation.forecast_scores import ForecastScores
    from pibert.fields import Trajectory
    from pibert.inference import CalibratedPredictor

STEPS = 200
_PANEL = "Prediction intervals"
Model = Annotated[
    str,
    typer.Option(
        help="Use this model: a run folder, a .safetensors file, or the name of a shipped model.",
        autocompletion=complete_model,
        show_default=False,
    ),
]
TrajectoryName = Annotated[
    str | None,
    typer.Option(help="Use this trajectory. Default: the first.", metavar="NAME|NUMBER"),
]
Start = Annotated[
    int | None,
    typer.Option(
        help="Start from this frame, the newest that the model sees, counted from 0, or from the "
        "end if negative. Default: the first with enough frames before it.",
        metavar="FRAME",
    ),
]
Stride = Annotated[int, typer.Option(min=1, help="Use every Nth frame.")]
Level = Annotated[
    float | None,
    typer.Option(
        help="Add prediction intervals that contain the true value with this probability, such as "
        "0.9. Needs a calibration: pibert calibrate.",
        metavar="PROBABILITY",
        rich_help_panel=_PANEL,
    ),
]
CalibrationFolder = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        help="Read the calibration from this folder. Default: the model's.",
        metavar="FOLDER",
        rich_help_panel=_PANEL,
    ),
]
FalseAlarms = Annotated[
    float | None,
    typer.Option(
        help="Accept that this share of normal inputs is flagged as out of distribution. Default: "
        "0.05.",
        metavar="RATE",
        rich_help_panel=_PANEL,
    ),
]


@options.with_source
def predict(
    path: options.Source,
    model: Model,
    out: outputs.Out,
    trajectory: TrajectoryName = None,
    start: Start = None,
    stride: Stride = 1,
    device: options.Device = "auto",
    level: Level = None,
    calibration: CalibrationFolder = None,
    false_alarms: FalseAlarms = None,
    format_: outputs.Format = None,
    overwrite: outputs.Overwrite = False,
    vorticity: outputs.Vorticity = False,
    as_json: options.Json = False,
    *,
    source: options.SourceOptions,
) -> None:
    """Predict the next frame from every frame of a recording that has its history before it.

    Every prediction starts from recorded frames, so errors do not accumulate. NMSE and the skill
    against persistence are printed where the recording has the frame.

    Example: pibert predict wake.h5 --model runs/demo --out next.h5 --out next.png

    Example: pibert predict wake.h5 --model runs/wake --level 0.9 --out next.nc

    Example: pibert predict 'run/B*.txt' --model runs/demo --dt 0.01 --parameter Re=100 --out a.nc
    """
    named = outputs.check_outputs(path, out, format_)
    run = _Run(model, device, level, calibration, false_alarms, as_json)
    run.open(source, trajectory, stride)
    first, stop = run.recording.check_start(start)
    ends = {n: stop for n, stop in run.recording.newest_frames().items() if n >= first}
    times = [run.recording.time_after(frame, 1, stop) for frame, stop in ends.items()]
    run.prepare(
        named,
        {"mode": "predict", "start": first},
        vorticity,
        overwrite,
        counted="frame",
        times=times,
        expected=len(ends),
    )
    run.write(run.forecaster.next_frames(first), len(ends), "frames")
    run.show_notes(first, stop)
    scores = run.scores
    if as_json:
        return show_json(run.summary(path) | {"frames": len(ends), "scores": scores.overall()})
    if scores.numbers:
        found = f"{len(scores.numbers)} of {len(ends)} predicted frames are in the recording"
        say(run.console, found)
        _show_overall(run.console, scores)
        _show_coverage(run.console, scores, level)
    say(run.console, f"Wrote {len(ends)} frames to {', '.join(run.written)}.")


@options.with_source
def rollout(
    path: options.Source,
    model: Model,
    out: outputs.Out,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Predict this many frames. Default: {STEPS}; with --level, the calibrated lead "
            "times.",
        ),
    ] = None,
    trajectory: TrajectoryName = None,
    start: Start = None,
    stride: Stride = 1,
    device: options.Device = "auto",
    level: Level = None,
    calibration: CalibrationFolder = None,
    false_alarms: FalseAlarms = None,
    extend_intervals: Annotated[
        bool,
        typer.Option(
            "--extend-intervals",
            help="Use the intervals of the last calibrated lead time for later steps, although "
            "they are too narrow there.",
            rich_help_panel=_PANEL,
        ),
    ] = False,
    format_: outputs.Format = None,
    show: Annotated[
        str | None,
        typer.Option(
            help="Show these steps in a .png. Default: evenly spread.",
            metavar="STEP,...",
            rich_help_panel=outputs.PANEL,
        ),
    ] = None,
    overwrite: outputs.Overwrite = False,
    vorticity: outputs.Vorticity = False,
    as_json: options.Json = False,
    *,
    source: options.SourceOptions,
) -> None:
    """Roll a model out autoregressively from a frame of a recording.

    NMSE and the skill against persistence are printed by lead time, as far as the recording goes.
    If a rollout diverges, the frames before that are written and the exit code is 1.

    Example: pibert rollout wake.h5 --model runs/demo --steps 200 --out wake.pvd --out wake.gif

    Example: pibert rollout wake.h5 --model runs/wake --steps 8 --level 0.9 --out wake.nc

    Example: pibert rollout wake.h5 --model runs/demo --start -1 --parameter Re=3900 --out next.h5
    """
    named = outputs.check_outputs(path, out, format_)
    run = _Run(model, device, level, calibration, false_alarms, as_json)
    steps = run.check_leads(steps, extend_intervals)
    shown = None if show is None else _steps(show, steps)
    run.open(source, trajectory, stride)
    newest, stop = run.recording.check_start(start)
    run.prepare(
        named,
        {"mode": "rollout", "start": newest, "steps": steps},
        vorticity,
        overwrite,
        counted="step",
        dt=run.recording.time_step,
        expected=steps,
        shown=shown,
    )
    done, diverged = run.write(run.forecaster.rollout(newest, stop, steps), steps, "steps")
    run.show_notes(newest, stop)
    scores = run.scores
    if as_json:
        facts = {"frames": done, "diverged": diverged is not None, "scores": scores.by_number()}
        show_json(run.summary(path) | facts)
    else:
        if scores.numbers:
            if not run.recording.keeps_time_step:
                found = f"{len(scores.numbers)} of {done} predicted frames"
                say(run.console, f"{found} are at recorded times")
            _show_by_lead(run.console, scores, run.about.time_unit)
            _show_coverage(run.console, scores, level)
        say(run.console, f"Wrote {done} frames to {', '.join(run.written)}.")
    if diverged is not None:
        complain(f"error: stopped after {done} of {steps} steps: {diverged}")
        raise typer.Exit(1)


def _steps(text: str, most: int) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= most for part in parts):
        raise ValueError(f"--show takes steps from 1 to {most}, such as 1,10,50, found {text!r}")
    return [int(part) for part in parts]


class _Run:
    """What both commands do: load a model, open a recording, write blocks, print notes."""

    def __init__(
        self,
        model: str,
        device: str,
        level: float | None,
        calibration: Path | None,
        false_alarms: float | None,
        as_json: bool,
    ) -> None:
        from pibert.inference import load, load_calibrated

        self.console, self.notes = Console(stderr=as_json), NotePrinter()
        self._model, self._level, self._false_alarms = model, level, false_alarms
        self._calibrated: CalibratedPredictor | None = None
        if level is None:
            for option, value in (("calibration", calibration), ("false-alarms", false_alarms)):
                if value is not None:
                    raise ValueError(f"--{option} goes with --level, such as --level 0.9")
            self.predictor = load(model, device)
            return
        if not 0 < level < 1:
            raise ValueError(
                f"--level takes a number between 0 and 1, such as 0.9, found {level:g}"
            )
        self._calibrated = load_calibrated(model, device, calibration=calibration)
        self.predictor = self._calibrated.predictor
        # Before any work: what the calibration cannot give.
        self._calibrated.calibration.quantiles(level)
        self._calibrated.calibration.detector.check_rate(false_alarms)

    def check_leads(self, steps: int | None, extend: bool) -> int:
        """The number of steps, of which all must have intervals unless they are extended."""
        from pibert.notes import Note

        if self._calibrated is None:
            if extend:
                raise ValueError("--extend-intervals goes with --level, such as --level 0.9")
            return steps or STEPS
        leads = self._calibrated.calibration.leads
        steps = steps or (STEPS if extend else leads)
        if steps > leads and not extend:
            raise ValueError(
                f"--steps: expected at most {leads} with intervals, the calibrated lead times, "
                f"found {steps}; take fewer, calibrate more (pibert calibrate --leads {steps}), or "
                "give later steps the last intervals, which are too narrow as errors grow: "
                "--extend-intervals"
            )
        if steps > leads:
            text = f"steps beyond {leads} have the intervals of step {leads}, which are too narrow"
            self.notes.add(Note("extended-intervals", text))
        return steps

    def open(self, source: options.SourceOptions, trajectory: str | None, stride: int) -> None:
        """Open the recording in the channels and units of the model."""
        from dataclasses import replace

        from pibert.evaluation.forecast_scores import ForecastScores
        from pibert.inference.forecast import Forecaster, written_spec
        from pibert.inference.recording import fit_recording
        from pibert.notes import Note, collecting

        # They replace those of the file, instead of being compared with them.
        given = source.hints.parameters
        source.hints = replace(source.hints, parameters={})
        with collecting(self.notes):
            self._recordings = source.open()
            for text in self._recordings.notes:
                self.notes.add(Note("reader", text, subject=text))
            self.recording = fit_recording(
                _choose(self._recordings, trajectory, self.notes),
                self.predictor.spec,
                self.predictor.history,
                parameters=given,
                stride=stride,
                notes=self.notes,
            )
        self.forecaster = Forecaster(
            self.recording, self.predictor, self._calibrated, self._level, self._false_alarms
        )
        self.scores = ForecastScores(written_spec(self.recording), self.predictor.normalizer)

    def prepare(
        self,
        named: dict[Path, str],
        facts: dict[str, Any],
        vorticity: bool,
        overwrite: bool,
        *,
        expected: int,
        shown: list[int] | None = None,
        **how: Any,
    ) -> None:
        """Check that all outputs can be written."""
        path = Path(self._model)
        self.about = self.forecaster.describe(
            source={"file": self._recordings.path.name, "kind": self._recordings.kind},
            model=path.resolve().name if path.exists() else self._model,
            facts=facts,
            vorticity_unit=outputs.vorticity_unit(self.recording) if vorticity else None,
            **how,
        )
        self._writers = outputs.make_writers(
            named, self.about, overwrite=overwrite, expected=expected, shown=shown
        )

    def write(
        self, blocks: "Iterator[tuple[Block, Tensor]]", total: int, what: str
    ) -> tuple[int, str | None]:
        """Write and score all blocks; the number of frames, and why a rollout stopped early."""
        columns = (TextColumn(f"{{task.completed}}/{{task.total}} {what}"), BarColumn())
        done = 0
        with contextlib.ExitStack() as stack:
            for writer in self._writers:
                stack.enter_context(writer)
            progress = progress_bar(self.console, *columns, TimeRemainingColumn())
            stack.enter_context(progress)
            task = progress.add_task(what, total=total)
            try:
                for block, last in blocks:
                    for writer in self._writers:
                        writer.append(block)
                    self.scores.add(block, last)
                    done += len(block.time)
                    progress.update(task, completed=done)
            except FloatingPointError as error:
                if what == "frames":
                    raise
                if not done:
                    progress.stop()
                    complain(f"error: {error}; nothing was written")
                    raise typer.Exit(1) from None
                return done, str(error)
        return done, None

    @property
    def written(self) -> list[str]:
        return [str(target) for writer in self._writers for target in writer.targets]

    def show_notes(self, newest: int, stop: int) -> None:
        """The out-of-distribution warning, intervals that fail, and why nothing was scored."""
        from pibert.inference.conformal import is_short
        from pibert.notes import Note

        if (note := self.forecaster.ood.note()) is not None:
            self.notes.add(note)
        if not self.scores.numbers:
            self.notes.add(self.recording.why_no_truth(newest, stop))
        elif shares := self.scores.overall().get("coverage"):
            name, share = min(shares.items(), key=lambda pair: pair[1])
            if is_short(share, self._level or 0.0):
                text = f"intervals of level {self._level:g} contain only {share:.3f} of the true "
                text += f"{name}: this flow is not like those that calibrated"
                self.notes.add(Note("low-coverage", text, "do not rely on them here"))

    def summary(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {
            **self.about.local["prediction"],
            "source": str(path),
            "trajectory": self.about.name,
            "scored": len(self.scores.numbers),
            "written": self.written,
            "notes": [note.to_dict() for note in self.notes],
        }
        if self._calibrated is not None:
            found["intervals"] = {**found["intervals"], "ood": self.forecaster.ood.to_dict()}
        return found


def _choose(recordings: "Recordings", wanted: str | None, notes: NotePrinter) -> "Trajectory":
    from pibert.notes import Note

    names = recordings.names
    if wanted is None:
        if len(names) > 1:
            text = f"the first of {len(names)} trajectories, {names[0]!r}"
            notes.add(Note("first-trajectory", text, "choose another: --trajectory", "info"))
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


def _show_overall(console: Console, scores: "ForecastScores") -> None:
    found = scores.overall()
    table = Table("component", "NMSE", "skill against persistence")
    for component in scores.components:
        error, skill = found["nmse"][component], found["skill"][component]
        table.add_row(component, f"{error:.3g}", f"{skill:.3f}")
    console.print(table)
    _show_unseen(console, scores)


def _show_unseen(console: Console, scores: "ForecastScores") -> None:
    if scores.unseen:
        say(
            console,
            f"Not scored: {scores.unseen:,} measured points that are missing in the input; pibert "
            "evaluate scores those of the next frame too.",
        )


def _show_coverage(console: Console, scores: "ForecastScores", level: float | None) -> None:
    if shares := scores.overall().get("coverage"):
        found = ", ".join(f"{share:.3f} of the true {name}" for name, share in shares.items())
        say(console, f"Intervals of level {level:g} contain {found}.")


def _show_by_lead(console: Console, scores: "ForecastScores", time_unit: str | None) -> None:
    found = scores.by_number()
    unit = "" if time_unit is None else f" [{time_unit}]"
    wanted = leads_shown(scores.numbers[-1])
    # Two tables: one would not fit a terminal.
    for metric, title in (("nmse", "NMSE"), ("skill", "skill against persistence")):
        table = Table("step", f"t{unit}", *scores.components, title=title, title_justify="left")
        for number, time in zip(scores.numbers, scores.times, strict=True):
            if number in wanted:
                values = found[number][metric].values()
                table.add_row(str(number), f"{time:.4g}", *(f"{value:.3g}" for value in values))
        console.print(table)
    _show_unseen(console, scores)
