"""``pibert train``, ``pretrain`` and ``resume``: from an experiment to a run folder."""

import math
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from pibert.cli.config import Settings, read_experiment
from pibert.cli.terminal import is_first_process, progress_bar, say, show_note
from pibert.notes import Note

if TYPE_CHECKING:
    from pibert.experiments import Finished

ROLLOUT = 20
"""Frames of the rollouts that are suggested after training, if the test split is long enough."""
_EVERY = 30.0
"""Seconds between two lines of progress outside a terminal."""
_LATE = 5
"""Epochs after the best one from which on a model may overfit."""
Config = Annotated[
    Path,
    typer.Option(
        help="Read the experiment from a TOML file, or repeat that of a run folder.",
        show_default=False,
    ),
]
Flows = Annotated[
    Path | None,
    typer.Argument(
        metavar="FLOWS",
        help="Train on these flows: a file, folder or quoted pattern that pibert inspect reads.",
        show_default=False,
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        help="Write the run to this folder; if it holds this run already, resume it.",
        show_default=False,
    ),
]


def train(
    out: Out,
    flows: Flows = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Read the experiment from a TOML file, or repeat that of a run folder.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Train a model on a recording, or from a configuration file.

    With FLOWS, it trains multiresolution PIBERT with settings that suit the amount of data. With
    --config, the file states all settings. Rerun the same command to resume an interrupted run.

    Example: pibert train wake.h5 --out runs/wake --set training.epochs=20

    Example: pibert train --config configs/demo.toml --out runs/demo
    """
    from pibert.experiments import run
    from pibert.experiments.recipe import recipe_for

    if (flows is None) == (config is None):
        raise ValueError(
            "expected a recording to learn from or --config, found "
            f"{'neither' if flows is None else 'both'}; to replace the data of a configuration: "
            "pibert train --config FILE --set data.path=FLOWS --set data.case=none --out RUN"
        )
    if flows is not None:
        experiment, notes = recipe_for(flows, settings or [])
        for note in notes:
            show_note(Note("recipe", note, subject=note))
    else:
        experiment = read_experiment(config, settings or [])
    _carry_out(out, lambda progress: run(experiment, out, stage="train", reporter=progress))


def pretrain(config: Config, out: Out, settings: Settings = None) -> None:
    """Pretrain a model with masked physics prediction and equation consistency.

    Example: pibert pretrain --config configs/demo.toml --out runs/pretrained

    Then train it: pibert train ... --set pretraining=none --set start=runs/pretrained
    """
    from pibert.experiments import run

    experiment = read_experiment(config, settings or [])
    _carry_out(out, lambda progress: run(experiment, out, stage="pretrain", reporter=progress))


def resume(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="Resume this run folder.", show_default=False)
    ],
) -> None:
    """Resume an interrupted run from its last saved step.

    Example: pibert resume runs/demo
    """
    from pibert.experiments import resume as go_on

    _carry_out(folder, lambda progress: go_on(folder, reporter=progress))


def _carry_out(folder: Path, work: "Callable[[TrainingProgress], Finished]") -> None:
    try:
        with TrainingProgress() as progress:
            finished = work(progress)
    except KeyboardInterrupt as stop:
        if str(stop) or not (folder / "config.json").exists():
            raise
        command = f"pibert resume {shlex.quote(str(folder))}"
        raise KeyboardInterrupt(f"interrupted; resume with: {command}") from None
    if is_first_process():
        _summarise(finished)


def _summarise(finished: "Finished") -> None:
    """Metrics, files and next commands of a finished run."""
    from pibert.inference import load
    from pibert.inference.calibration import CalibrationSettings

    console, folder = Console(), finished.folder
    best, epochs, numbers = finished.best_epoch, finished.fitted.epochs, _numbers(finished.metrics)
    if not epochs:
        say(console, "Fitted in closed form: there are no epochs and no learning curves.")
    elif finished.validated:
        say(console, f"Best epoch {best} of {epochs}: {numbers}")
    else:
        say(console, f"Last epoch {best}, without validation: {numbers}")
    for note in _notes_on(finished):
        show_note(note)
    trained = load(folder).card["trained"]  # and see that the model can be read
    curves = folder / "curves.png"
    drawn = f"  Curves: {curves}" if curves.exists() else ""
    say(console, f"Model: {folder / 'model.safetensors'}{drawn}")
    name = shlex.quote(str(folder))
    steps = min(ROLLOUT, finished.longest_rollout)
    if trained["forward"]:
        if finished.longest_rollout:
            rollout = f" --rollout {steps}" if steps > 1 else ""
            say(console, f"Score it on test data: pibert evaluate {name}{rollout}")
        say(console, f"Predict: pibert predict FILE --model {name} --out next.png")
        if finished.longest_rollout:
            leads = f" --leads {steps}" if steps < CalibrationSettings.leads else ""
            say(console, f"Add prediction intervals: pibert calibrate {name}{leads}")
        say(console, f"Export: pibert export {name} --to onnx --out {name}.onnx")
        say(console, f"In Python: pibert.load({str(folder)!r})")
    else:
        say(
            console,
            f"Train it further: pibert train --config {name} --set pretraining=none --set "
            f"start={name} --out RUN",
        )
    if trained["reconstruct"]:
        say(console, f"Fill gaps in a measurement: pibert fill FILE --model {name} --out OUT")


def _numbers(metrics: Mapping[str, float]) -> str:
    """The metrics of a run, each number once."""
    if "skill" in metrics:
        return (
            f"validation error {metrics['reconstruction']:.4g}, persistence "
            f"{metrics['persistence']:.4g}, skill {metrics['skill']:.3g}"
        )
    loss = metrics.get("loss")
    kept = {name: value for name, value in metrics.items() if name == "loss" or value != loss}
    return ", ".join(f"{name} {value:.4g}" for name, value in kept.items())


def _notes_on(finished: "Finished") -> Iterator[Note]:
    """Notes on a model that learned little, and on one that overfits."""
    best, epochs = finished.best_epoch, finished.fitted.epochs
    if finished.metrics.get("skill", 1.0) <= 0:
        yield Note(
            "no-skill",
            "the model is no better than persistence, which predicts no change",
            "train longer, raise training.learning_rate, or take frames further apart "
            "(data.stride)",
        )
    elif finished.validated and 0 < best <= epochs / 2 and epochs - best >= _LATE:
        yield Note(
            "overfitting",
            f"the validation error is lowest in epoch {best} of {epochs}, whose weights are kept, "
            "and rises afterwards: the model overfits",
            f"add flows, or train for fewer epochs: --set training.epochs={best}",
        )


class _Rate(ProgressColumn):
    """Samples per second as the last epoch had them; before that, steps per second."""

    def render(self, task: Task) -> Text:
        if task.fields["rate"]:
            return Text(f"{task.fields['rate']:,.0f} samples/s")
        return Text(f"{task.speed:.2g} per s" if task.speed else "")


class TrainingProgress:
    """Shows the progress of training in a terminal, and now and then a line elsewhere.

    Only the first process of a run prints.
    """

    def __init__(self, console: Console | None = None, *, speaks: bool | None = None) -> None:
        self._speaks = is_first_process() if speaks is None else speaks
        self._console = console or Console(quiet=not self._speaks)
        self._shows = self._speaks and self._console.is_terminal
        self._bar = progress_bar(
            self._console,
            TextColumn("{task.description} {task.completed:.0f}/{task.fields[of]}"),
            BarColumn(),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
        )
        self._bar.disable = not self._shows
        self._steps: TaskID | None = None
        self._simulation: TaskID | None = None
        self._total, self._due = 0, math.inf

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def simulated(self, done: int | float, total: int | None = None) -> None:
        """So many of the flows to learn from are simulated."""
        if self._simulation is None:
            if self._speaks and not self._shows:
                self._print("simulating flows (kept in the cache)")
            self._simulation = self._add("simulating flow", total, 0)
        self._bar.update(self._simulation, completed=done)

    def start(self, total_steps: int, done: int) -> None:
        """Training begins, or goes on after some steps."""
        for task in (self._simulation, self._steps):  # pretraining gives way to training
            if task is not None:
                self._bar.remove_task(task)
        self._simulation = None
        self._steps, self._total = self._add("step", total_steps, done), total_steps
        self._due = time.monotonic() + _EVERY

    def step(self, done: int, loss: float) -> None:
        if self._is_due():
            self._print(f"step {done} of {self._total}  loss {loss:.3e}")
        if self._steps is not None:
            self._bar.update(self._steps, completed=done, loss=f"loss {loss:.3e}")

    def epoch(self, record: Mapping[str, Any]) -> None:
        rate = record.get("samples_per_second")
        if self._steps is not None and rate:
            self._bar.update(self._steps, rate=rate)
        ends = record["epoch"] == 1 or record.get("step") == self._total
        if self._shows or self._is_due() or (self._speaks and ends):
            self._print(describe_epoch(record))

    def describe(self, lines: Iterable[str]) -> None:
        """Model, flows and schedule, before training."""
        for line in lines if self._speaks else ():
            self._print(line)

    def say(self, text: str) -> None:
        if self._speaks:
            self._print(f"Note: {text}", "yellow")

    def _is_due(self) -> bool:
        """Whether a log should get a line: there has been none for a while."""
        return self._speaks and not self._shows and time.monotonic() >= self._due

    def _print(self, text: str, style: str | None = None) -> None:
        say(self._console, text, style)
        self._console.file.flush()
        self._due = time.monotonic() + _EVERY

    def _add(self, what: str, total: int | None, done: int) -> TaskID:
        of = "?" if total is None else str(total)
        return self._bar.add_task(what, total=total, completed=done, of=of, rate=None, loss="")


def describe_epoch(record: Mapping[str, Any]) -> str:
    """One line: the losses, the time, and whether this is the best so far."""
    parts = [f"epoch {record['epoch']:>4}"]
    for part in ("train", "valid"):
        loss = (record.get(part) or {}).get("loss")
        if loss is not None:
            parts.append(f"{part} {loss:.4e}")
    if record.get("seconds") is not None:
        parts.append(f"{record['seconds']:.1f} s")
    if record.get("samples_per_second"):
        parts.append(f"{record['samples_per_second']:,.0f} samples/s")
    return "  ".join(parts) + ("  best so far" if record.get("best") else "")
