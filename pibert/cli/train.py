"""``pibert train``, ``pretrain`` and ``resume``: from an experiment to a run folder."""

import math
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from pibert.cli.config import Settings, read_experiment
from pibert.cli.options import option
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
_config = option("Read the experiment from a TOML file, or repeat that of a run folder.")
Out = Annotated[
    Path, option("Write the run to this folder; if it holds this run already, resume it.")
]


def train(
    out: Out,
    flows: Annotated[
        Path | None,
        typer.Argument(
            metavar="FLOWS",
            help="Train on these flows: a file, folder or quoted pattern that pibert inspect "
            "reads.",
        ),
    ] = None,
    config: Annotated[Path | None, _config] = None,
    no_rollout_training: Annotated[
        bool,
        option(
            "Train on single frames alone, without the last stage on rollouts; as --set "
            "rollout_training=none.",
            "--no-rollout-training",
        ),
    ] = False,
    settings: Settings = None,
) -> None:
    """Train a model on a recording, or from a configuration file.

    With FLOWS, it trains multiresolution PIBERT with settings that suit the amount of data: first
    on single frames, then on rollouts. With --config, the file states all settings. Rerun the same
    command to resume an interrupted run.

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
    settings = [*(settings or []), *["rollout_training=none"] * no_rollout_training]
    if flows is not None:
        experiment, notes = recipe_for(flows, settings)
        for note in notes:
            show_note(note)
    else:
        experiment = read_experiment(config, settings)
    _carry_out(out, lambda progress: run(experiment, out, stage="train", reporter=progress))


def pretrain(config: Annotated[Path, _config], out: Out, settings: Settings = None) -> None:
    """Pretrain a model: masked physics, equation consistency.

    Example: pibert pretrain --config configs/demo.toml --out runs/pretrained

    Then train it: pibert train ... --set pretraining=none --set start=runs/pretrained
    """
    from pibert.experiments import run

    experiment = read_experiment(config, settings or [])
    _carry_out(out, lambda progress: run(experiment, out, stage="pretrain", reporter=progress))


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Resume this run folder.")],
) -> None:
    """Resume an interrupted run from its last saved step.

    Example: pibert resume runs/demo
    """
    from pibert.experiments import resume as resume_run

    _carry_out(folder, lambda progress: resume_run(folder, reporter=progress))


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
    """Print metrics, files and next commands of a finished run."""
    from pibert.inference import load
    from pibert.inference.calibration import CalibrationSettings

    console, folder = Console(), finished.folder
    best, epochs, numbers = finished.best_epoch, finished.fitted.epochs, _numbers(finished.metrics)
    if not epochs:
        say(console, "Fitted in closed form: there are no epochs and no learning curves.")
    elif finished.fitted.start_metrics:
        _summarise_rollouts(console, finished)
    elif finished.validated:
        say(console, f"Best epoch {best} of {epochs}: {numbers}")
    else:
        say(console, f"Last epoch {best}, without validation: {numbers}")
    for note in _notes_on(finished):
        show_note(note)
    trained = load(folder).card["trained"]  # also checks that the model can be read
    curves = folder / "curves.png"
    drawn = f"  Curves: {curves}" if curves.exists() else ""
    say(console, f"Model: {folder / 'model.safetensors'}{drawn}")
    name = shlex.quote(str(folder))
    steps = min(ROLLOUT, finished.longest_rollout)
    commands = {}
    if trained["forward"]:
        if steps:
            rollout = f" --rollout {steps}" if steps > 1 else ""
            commands["Score it on test data"] = f"pibert evaluate {name}{rollout}"
        commands["Predict"] = f"pibert predict FILE --model {name} --out next.png"
        if steps:
            leads = f" --leads {steps}" if steps < CalibrationSettings.leads else ""
            commands["Add prediction intervals"] = f"pibert calibrate {name}{leads}"
        commands["Export"] = f"pibert export {name} --to onnx --out {name}.onnx"
        commands["In Python"] = f"pibert.load({str(folder)!r})"
    else:
        start = f"--set pretraining=none --set start={name}"
        commands["Train it further"] = f"pibert train --config {name} {start} --out RUN"
    if trained["reconstruct"]:
        commands["Fill gaps in a measurement"] = f"pibert fill FILE --model {name} --out OUT"
    for purpose, command in commands.items():
        say(console, f"{purpose}: {command}")


def _summarise_rollouts(console: Console, finished: "Finished") -> None:
    """Print what the stage on rollouts gained in rollouts and cost in the next frame."""
    fitted, single = finished.fitted, finished.folder / "training"
    before, after, best = fitted.start_metrics, fitted.metrics, fitted.best_epoch

    def change(name: str) -> str:
        return f"{before[name]:.4g} -> {after[name]:.4g}"

    if not best:
        show_note(
            f"no epoch of training on rollouts lowers the error of validation rollouts, "
            f"{before['reconstruction']:.4g}: the model is that of training on single frames"
        )
        return
    paid = after["first_step"] / before["first_step"] if before["first_step"] else math.nan
    say(
        console,
        f"Best epoch {best} of {fitted.epochs} by the error of validation rollouts: "
        f"{change('reconstruction')} (persistence {after['persistence']:.4g}). Next frame: "
        f"{change('first_step')} ({paid:.2f} times)",
    )
    say(console, f"The model before this stage, trained on single frames: {single}")


def _numbers(metrics: Mapping[str, float]) -> str:
    """Return the metrics of a run as text, each number once."""
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
    elif finished.fitted.start_metrics:
        return  # the stage on rollouts follows a whole training
    elif finished.validated and 0 < best <= epochs / 2 and epochs - best >= _LATE:
        yield Note(
            "overfitting",
            f"the validation error is lowest in epoch {best} of {epochs}, whose weights are kept, "
            "and rises afterwards: the model overfits",
            f"add flows, or train for fewer epochs: --set training.epochs={best}",
        )


class _Rate(ProgressColumn):
    """Samples per second of the last epoch; in the first one, steps per second."""

    def render(self, task: Task) -> Text:
        if task.fields["rate"]:
            return Text(f"{task.fields['rate']:,.0f} samples/s")
        return Text(f"{task.speed:.2g} per s" if task.speed else "")


class TrainingProgress:
    """Shows a progress bar in a terminal; elsewhere, prints a line now and then.

    Only the first process of a run prints.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(quiet=not is_first_process())
        self._shows = self._console.is_terminal and not self._console.quiet
        self._bar = progress_bar(
            self._console,
            TextColumn("{task.description} {task.completed:.0f}/{task.fields[of]}"),
            BarColumn(),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
        )
        self._bar.disable = not self._shows
        self._task: TaskID | None = None
        self._simulates = False
        self._total, self._due = 0, math.inf

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def simulated(self, done: int | float, total: int | None = None) -> None:
        """Report how many of the flows to learn from are simulated."""
        if not self._simulates:
            self._simulates = True
            if not self._shows:
                self._print("simulating flows (kept in the cache)")
            self._start_task("simulating flow", total, 0)
        self._update(completed=done)

    def start(self, total_steps: int, done: int) -> None:
        """Report that training begins or resumes."""
        self._simulates, self._total = False, total_steps
        self._start_task("step", total_steps, done)
        self._due = time.monotonic() + _EVERY

    def step(self, done: int, loss: float) -> None:
        if self._is_due():
            self._print(f"step {done} of {self._total}  loss {loss:.3e}")
        self._update(completed=done, loss=f"loss {loss:.3e}")

    def epoch(self, record: Mapping[str, Any]) -> None:
        if rate := record.get("samples_per_second"):
            self._update(rate=rate)
        ends = record["epoch"] == 1 or record.get("step") == self._total
        if self._shows or ends or self._is_due():
            self._print(_describe_epoch(record))

    def describe(self, lines: Iterable[str]) -> None:
        """Print model, flows and schedule, before training."""
        for line in lines:
            self._print(line)

    def say(self, text: str) -> None:
        self._print(f"Note: {text}", "yellow")

    def _is_due(self) -> bool:
        return not self._shows and time.monotonic() >= self._due

    def _print(self, text: str, style: str | None = None) -> None:
        say(self._console, text, style)
        self._console.file.flush()
        self._due = time.monotonic() + _EVERY

    def _start_task(self, what: str, total: int | None, done: int) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        of = "?" if total is None else str(total)
        self._task = self._bar.add_task(
            what, total=total, completed=done, of=of, rate=None, loss=""
        )

    def _update(self, **changes: Any) -> None:
        if self._task is not None:
            self._bar.update(self._task, **changes)


def _describe_epoch(record: Mapping[str, Any]) -> str:
    """Return a line with the losses, the time, and whether this is the best epoch so far."""
    words = [f"epoch {record['epoch']:>4}"]
    for split in ("train", "valid"):
        loss = (record.get(split) or {}).get("loss")
        if loss is not None:
            words.append(f"{split} {loss:.4e}")
    if record.get("seconds") is not None:
        words.append(f"{record['seconds']:.1f} s")
    if record.get("samples_per_second"):
        words.append(f"{record['samples_per_second']:,.0f} samples/s")
    return "  ".join(words + ["best so far"] * bool(record.get("best")))
