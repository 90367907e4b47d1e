"""``pibert predict`` and ``pibert rollout``: predictions from a recording, written to files."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from pibert.cli.options import (
    Device,
    Json,
    Source,
    SourceOptions,
    complete_model,
    option,
    with_options,
)
from pibert.cli.terminal import (
    NotePrinter,
    complain,
    leads_shown,
    say,
    show_json,
    show_table,
    showing_progress,
)
from pibert.data.writers import OF_PREDICTIONS, PICTURES, list_formats, name_formats
from pibert.notes import Note, Notes, collecting

if TYPE_CHECKING:
    from torch import Tensor

    from pibert.data.readers.recordings import Recordings
    from pibert.data.writers.frames import Block
    from pibert.evaluation.forecast_scores import ForecastScores
    from pibert.fields import Trajectory

STEPS = 200
_INTERVALS = "Prediction intervals"
_OUTPUT = "Output"


@dataclass(kw_only=True)
class ForecastOptions:
    """Options that ``predict`` and ``rollout`` share."""

    model: Annotated[
        str,
        option(
            "Use this model: a run folder, a .safetensors file, or the name of a shipped model.",
            autocompletion=complete_model,
        ),
    ]
    out: Annotated[
        list[Path],
        option(
            f"Write this file; repeatable. {list_formats(predictions=True)}.",
            panel=_OUTPUT,
        ),
    ]
    trajectory: Annotated[
        str | None, option("Use this trajectory. Default: the first.", metavar="NAME|NUMBER")
    ] = None
    start: Annotated[
        int | None,
        option(
            "Start from this frame, the newest that the model sees, counted from 0, or from the "
            "end if negative. Default: the first with enough frames before it.",
            metavar="FRAME",
        ),
    ] = None
    stride: Annotated[int, option("Use every Nth frame.", min=1)] = 1
    device: Device = "auto"
    level: Annotated[
        float | None,
        option(
            "Add prediction intervals that contain the true value with this probability, such as "
            "0.9. Needs a calibration: pibert calibrate.",
            metavar="PROBABILITY",
            panel=_INTERVALS,
        ),
    ] = None
    calibration: Annotated[
        Path | None,
        option(
            "Read the calibration from this folder. Default: the model's.",
            metavar="FOLDER",
            panel=_INTERVALS,
        ),
    ] = None
    false_alarms: Annotated[
        float | None,
        option(
            "Accept that this share of normal inputs is flagged as out of distribution. Default: "
            "0.05.",
            metavar="RATE",
            panel=_INTERVALS,
        ),
    ] = None
    format_: Annotated[
        str | None,
        option(
            "Set the format. Default: from the file name.",
            "--format",
            metavar=name_formats(predictions=True),
            panel=_OUTPUT,
        ),
    ] = None
    overwrite: Annotated[bool, option("Replace existing files.", "--overwrite", panel=_OUTPUT)] = (
        False
    )
    vorticity: Annotated[
        bool,
        option("Add the vorticity to files for other programs.", "--vorticity", panel=_OUTPUT),
    ] = False


@with_options
def predict(
    path: Source, how: ForecastOptions, source: SourceOptions, as_json: Json = False
) -> None:
    """Predict the next frame from every frame of a recording.

    Every prediction starts from recorded frames, so errors do not accumulate. NMSE and the skill
    against persistence are printed where the recording has the frame.

    Example: pibert predict wake.h5 --model runs/demo --out next.h5 --out next.png

    Example: pibert predict wake.h5 --model runs/wake --level 0.9 --out next.nc

    Example: pibert predict 'run/B*.txt' --model runs/demo --dt 0.01 --parameter Re=100 --out a.nc
    """
    run = _Run(path, source, how, as_json)
    first, _ = run.recording.check_start(how.start)
    ends = {n: stop for n, stop in run.recording.newest_frames().items() if n >= first}
    run.prepare(
        {"mode": "predict", "start": first},
        len(ends),
        counted="frame",
        times=[run.recording.time_after(frame, 1, stop) for frame, stop in ends.items()],
    )
    run.write(run.forecaster.next_frames(first), "frames")
    run.show_notes()
    if as_json:
        facts = {"frames": len(ends), "scores": run.scores.overall()}
        return show_json(run.summary() | facts)
    if count := len(run.scores.numbers):
        say(run.console, f"{count} of {len(ends)} predicted frames are in the recording")
        _show_overall(run.console, run.scores)
        run.show_coverage()
    say(run.console, f"Wrote {len(ends)} frames to {', '.join(run.written)}.")


@with_options
def rollout(
    path: Source,
    how: ForecastOptions,
    source: SourceOptions,
    steps: Annotated[
        int | None,
        option(
            f"Predict this many frames. Default: {STEPS}; with --level, the calibrated lead times.",
            min=1,
        ),
    ] = None,
    extend_intervals: Annotated[
        bool,
        option(
            "Use the intervals of the last calibrated lead time for later steps, although they "
            "are too narrow there.",
            "--extend-intervals",
            panel=_INTERVALS,
        ),
    ] = False,
    show: Annotated[
        str | None,
        option(
            "Show these steps in a .png, .pdf or .svg. Default: evenly spread.",
            metavar="STEP,...",
            panel=_OUTPUT,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Roll a model out autoregressively from a frame of a recording.

    NMSE and the skill against persistence are printed by lead time, as far as the recording goes.
    If a rollout diverges, the frames before that are written and the exit code is 1.

    Example: pibert rollout wake.h5 --model runs/demo --steps 200 --out wake.pvd --out wake.gif

    Example: pibert rollout wake.h5 --model runs/wake --steps 8 --level 0.9 --out wake.nc

    Example: pibert rollout wake.h5 --model runs/demo --start -1 --parameter Re=3900 --out next.h5
    """
    run = _Run(path, source, how, as_json)
    steps = run.check_leads(steps, extend_intervals)
    newest, stop = run.recording.check_start(how.start)
    run.prepare(
        {"mode": "rollout", "start": newest, "steps": steps},
        steps,
        shown=None if show is None else _parse_steps(show, steps),
        counted="step",
        dt=run.recording.time_step,
    )
    done, diverged = run.write(run.forecaster.rollout(newest, stop, steps), "steps")
    run.show_notes()
    if as_json:
        runs_away = any(note.code == "divergence" for note in run.notes)
        facts = {
            "frames": done,
            "diverged": bool(diverged) or runs_away,
            "scores": run.scores.by_number(),
        }
        show_json(run.summary() | facts)
    else:
        if count := len(run.scores.numbers):
            if not run.recording.keeps_time_step:
                say(run.console, f"{count} of {done} predicted frames are at recorded times")
            _show_by_lead(run.console, run.scores, run.about.time_unit)
            run.show_coverage()
            run.show_state()
        say(run.console, f"Wrote {done} frames to {', '.join(run.written)}.")
    if diverged:
        complain(f"error: stopped after {done} of {steps} steps: {diverged}")
        raise typer.Exit(1)


def _parse_steps(text: str, most: int) -> list[int]:
    numbers = [number.strip() for number in text.split(",")]
    if not all(number.isdecimal() and 1 <= int(number) <= most for number in numbers):
        raise ValueError(f"--show takes steps from 1 to {most}, such as 1,10,50, found {text!r}")
    return [int(number) for number in numbers]


class _Run:
    """The common work of both commands: load, open, write, report."""

    def __init__(
        self, path: Path, source: SourceOptions, how: ForecastOptions, as_json: bool
    ) -> None:
        from pibert.evaluation.forecast_scores import ForecastScores
        from pibert.inference.forecast import Forecaster, written_spec
        from pibert.inference.recording import fit_recording

        self.how, self.path = how, path
        self.console, self.notes = Console(stderr=as_json), NotePrinter()
        self._suffixes = _check_outputs(path, how.out, how.format_)
        self._load()
        with collecting(self.notes):
            # Parameters replace those of the file, instead of being compared with them.
            self._recordings = source.open(path, parameters={})
            for text in self._recordings.notes:
                self.notes.add(Note("reader", text, subject=text))
            self.recording = fit_recording(
                choose_trajectory(self._recordings, how.trajectory, self.notes),
                self.predictor.spec,
                self.predictor.history,
                parameters=source.hints.parameters,
                stride=how.stride,
                notes=self.notes,
            )
        self.forecaster = Forecaster(
            self.recording, self.predictor, self._calibrated, how.level, how.false_alarms
        )
        written = written_spec(self.recording)
        fields = len(written.channels)
        self.scores = ForecastScores(written, self.predictor.normalizer.first(fields))
        self._blocks: list[dict[str, Any]] = []

    def _load(self) -> None:
        """Load the model, with its calibration if intervals are wanted."""
        from pibert.inference import load, load_calibrated

        how, self._calibrated = self.how, None
        if how.level is None:
            given = {"--calibration": how.calibration, "--false-alarms": how.false_alarms}
            for name, value in given.items():
                if value is not None:
                    raise ValueError(f"{name} goes with --level, such as --level 0.9")
            self.predictor = load(how.model, how.device)
            return
        self._calibrated = load_calibrated(how.model, how.device, calibration=how.calibration)
        self.predictor = self._calibrated.predictor
        # Before any work, refuse what the calibration cannot give.
        self._calibrated.calibration.quantiles(how.level)
        self._calibrated.calibration.detector.check_rate(how.false_alarms)

    def check_leads(self, steps: int | None, extend: bool) -> int:
        """Return the number of steps; all must have intervals unless they are extended."""
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

    def prepare(
        self,
        facts: dict[str, Any],
        expected: int,
        *,
        shown: list[int] | None = None,
        **description: Any,
    ) -> None:
        """Make the writers, after a check that all outputs can be written."""
        from pibert.report.forecast import make_writer

        model = Path(self.how.model)
        self.about = self.forecaster.describe(
            source={"file": self._recordings.path.name, "kind": self._recordings.kind},
            model=model.resolve().name if model.exists() else self.how.model,
            facts=facts,
            vorticity_unit=self._vorticity_unit() if self.how.vorticity else None,
            **description,
        )
        self._expected = expected
        self._writers = [
            make_writer(path, suffix, self.about, self.how.overwrite, expected, shown)
            for path, suffix in self._suffixes.items()
        ]
        for writer in self._writers:
            writer.check()
        if shown is not None and not set(PICTURES) & set(self._suffixes.values()):
            raise ValueError(f"--show goes with an --out that ends in {', '.join(PICTURES)}")
        targets = [target.absolute() for writer in self._writers for target in writer.targets]
        if twice := [target.name for target in targets if targets.count(target) > 1]:
            raise ValueError(f"two outputs would both write {twice[0]}; choose other names")

    def _vorticity_unit(self) -> str:
        from pibert.evaluation.measure import gradient_unit, require_velocity, velocity_unit
        from pibert.inference.forecast import written_spec

        spec = written_spec(self.recording)
        require_velocity(spec, "the vorticity")
        return gradient_unit(velocity_unit(spec), self.recording.trajectory.length_unit)

    def write(self, blocks: "Iterator[tuple[Block, Tensor]]", what: str) -> tuple[int, str | None]:
        """Write and score all blocks; the number of frames, and why a rollout stopped early."""
        done, text = 0, f"{{task.completed}}/{{task.total}} {what}"
        with contextlib.ExitStack() as stack:
            for writer in self._writers:
                stack.enter_context(writer)
            update = stack.enter_context(showing_progress(self.console, self._expected, text))
            try:
                for block, last in blocks:
                    for writer in self._writers:
                        writer.append(block)
                    self.scores.add(block, last)
                    self._blocks.append({"time": block.time, **block.series})
                    done += len(block.time)
                    update(done)
            except FloatingPointError as error:
                if what == "frames":
                    raise
                if not done:
                    complain(f"error: {error}; nothing was written")
                    raise typer.Exit(1) from None
                return done, str(error)
        return done, None

    @property
    def written(self) -> list[str]:
        return [str(target) for writer in self._writers for target in writer.targets]

    def show_notes(self) -> None:
        """Report out-of-distribution input, low coverage, and why nothing was scored."""
        from pibert.inference.conformal import is_short

        level = self.how.level or 0.0
        if (note := self.forecaster.ood.note()) is not None:
            self.notes.add(note)
        if not self.scores.numbers:
            self.notes.add(self.recording.why_no_truth())
        elif shares := self.scores.overall().get("coverage"):
            name, share = min(shares.items(), key=lambda pair: pair[1])
            if is_short(share, level):
                text = f"intervals of level {level:g} contain only {share:.3f} of the true "
                text += f"{name}: this flow is unlike those used for calibration"
                self.notes.add(Note("low-coverage", text, "do not rely on them here"))

    def show_coverage(self) -> None:
        if shares := self.scores.overall().get("coverage"):
            parts = ", ".join(f"{share:.3f} of the true {name}" for name, share in shares.items())
            say(self.console, f"Intervals of level {self.how.level:g} contain {parts}.")

    def state(self) -> dict[str, dict[str, float]]:
        """Error and coverage of the state of moving bodies, where the true one is known."""
        from pibert.evaluation.structure import state_scores

        return state_scores(self._blocks, self.recording.spec.state)

    def show_state(self) -> None:
        for name, found in self.state().items():
            share = found.get("coverage")
            text = f"{name}: error {found['error']:.3g} of the true standard deviation"
            if share is not None:
                text += f"; its intervals contain {share:.3f} of the true values"
            say(self.console, text[0].upper() + text[1:] + ".")

    def summary(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            **self.about.local["prediction"],
            "source": str(self.path),
            "trajectory": self.about.name,
            "scored": len(self.scores.numbers),
            "written": self.written,
            **({"state": state} if (state := self.state()) else {}),
            "notes": [note.to_dict() for note in self.notes],
        }
        if self._calibrated is not None:
            facts["intervals"] = {**facts["intervals"], "ood": self.forecaster.ood.to_dict()}
        return facts


def _check_outputs(source: Path, out: list[Path], format_: str | None) -> dict[Path, str]:
    """Return the format of every output, as a suffix."""
    from pibert.data.convert import refuse_overwriting

    known = OF_PREDICTIONS
    if format_ is not None and len(out) > 1:
        raise ValueError("--format goes with one --out; with several, the names set the formats")
    suffixes: dict[Path, str] = {}
    for path in out:
        named = path.suffix.lower()
        suffix = named if format_ is None else f".{format_.lower().lstrip('.')}"
        if suffix not in known:
            raise ValueError(
                f"{path}: expected a name that ends in {', '.join(known)}, or --format, found "
                f"{suffix or path.name!r}"
            )
        if named in known and named != suffix:
            raise ValueError(
                f"{path}: its name promises {path.suffix} but --format is {format_}; choose one"
            )
        if path.absolute() in {other.absolute() for other in suffixes}:
            raise ValueError(f"{path} is named twice after --out; name every file once")
        refuse_overwriting(source, path)
        suffixes[path] = suffix
    return suffixes


def choose_trajectory(recordings: "Recordings", wanted: str | None, notes: Notes) -> "Trajectory":
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
    values = scores.overall()
    rows = [
        (component, f"{values['nmse'][component]:.3g}", f"{values['skill'][component]:.3f}")
        for component in scores.components
    ]
    show_table(console, ("component", "NMSE", "skill against persistence"), rows)
    _show_unseen(console, scores)


def _show_by_lead(console: Console, scores: "ForecastScores", time_unit: str | None) -> None:
    values = scores.by_number()
    unit = "" if time_unit is None else f" [{time_unit}]"
    wanted = leads_shown(scores.numbers[-1])
    # Two tables: one would not fit a terminal.
    for metric, title in (("nmse", "NMSE"), ("skill", "skill against persistence")):
        columns = ("step", f"t{unit}", *scores.components)
        rows = [
            (str(n), f"{time:.4g}", *(f"{value:.3g}" for value in values[n][metric].values()))
            for n, time in zip(scores.numbers, scores.times, strict=True)
            if n in wanted
        ]
        show_table(console, columns, rows, title=title, title_justify="left")
    _show_unseen(console, scores)


def _show_unseen(console: Console, scores: "ForecastScores") -> None:
    if scores.unseen:
        say(
            console,
            f"Not scored: {scores.unseen:,} measured points that are missing in the input or lie "
            "in a predicted body; pibert evaluate scores those of the next frame too.",
        )
