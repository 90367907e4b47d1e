"""``pibert train``, ``pretrain`` and ``resume``: from an experiment to a run folder."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pibert.cli.config import Settings, read_experiment
from pibert.cli.options import SourceOptions, option, with_options
from pibert.cli.terminal import is_first_process, say, show_note
from pibert.progress import TrainingProgress

if TYPE_CHECKING:
    from pibert.experiments import Finished

ROLLOUT = 20
"""Frames of the rollouts that are suggested after training, if the test split is long enough."""
_config = option("Read the experiment from a TOML file, or repeat that of a run folder.")
Out = Annotated[
    Path, option("Write the run to this folder; if it holds this run already, resume it.")
]


@with_options
def train(
    out: Out,
    source: SourceOptions,
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
            "Train only on single frames, without the last stage on rollouts; as --set "
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

    Example: pibert train run.npz --unit m/s --length-unit mm --dt 0.002 --out runs/jet

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
        experiment, notes = recipe_for(flows, settings, stated=source.as_settings())
        for note in notes:
            show_note(note)
    else:
        source.refuse_without_data("FLOWS")
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
    from pibert.experiments.summary import headline, notes_on
    from pibert.inference import load
    from pibert.inference.calibration import CalibrationSettings

    console, folder = Console(), finished.folder
    say(console, headline(finished))
    for note in notes_on(finished):
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
