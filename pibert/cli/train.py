"""``pibert train``, ``pretrain`` and ``resume``: from an experiment to a run folder."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pibert.cli.config import Settings, read_experiment
from pibert.cli.terminal import say
from pibert.cli.training_progress import TrainingProgress, is_first_process

if TYPE_CHECKING:
    from pibert.experiments import Finished

Config = Annotated[
    Path,
    typer.Option(help="The experiment: a TOML file, or a run to repeat.", show_default=False),
]
Flows = Annotated[
    Path | None,
    typer.Argument(
        metavar="FLOWS",
        help="A recording to learn from: a file or folder that pibert inspect reads.",
        show_default=False,
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        help="The run folder. If it holds this run already, continue it.",
        show_default=False,
    ),
]


def train(
    out: Out,
    flows: Flows = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="An experiment instead of FLOWS: a TOML file, or a run to repeat.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Train a model on a recording, or as a configuration says.

    FLOWS alone trains multiresolution PIBERT with settings that fit the amount of data; a
    configuration decides everything itself. After a stop the same command continues the run.

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
            say(Console(stderr=True), f"Note: {note}", "yellow")
    else:
        experiment = read_experiment(config, settings or [])
    _carry_out(out, lambda progress: run(experiment, out, stage="train", reporter=progress))


def pretrain(config: Config, out: Out, settings: Settings = None) -> None:
    """Pretrain a model on flows alone: masked physics and equation consistency.

    Example: pibert pretrain --config configs/demo.toml --out runs/pretrained

    Train it further with: pibert train ... --set pretraining=none --set start=runs/pretrained
    """
    from pibert.experiments import run

    experiment = read_experiment(config, settings or [])
    _carry_out(out, lambda progress: run(experiment, out, stage="pretrain", reporter=progress))


def resume(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)
    ],
) -> None:
    """Go on with a run that was stopped, from its last saved step.

    Example: pibert resume runs/demo
    """
    from pibert.experiments import resume as go_on

    _carry_out(folder, lambda progress: go_on(folder, reporter=progress))


def _carry_out(folder: Path, work: Callable[[TrainingProgress], "Finished"]) -> None:
    try:
        with TrainingProgress() as progress:
            finished = work(progress)
    except KeyboardInterrupt as stop:
        if str(stop) or not (folder / "config.json").exists():
            raise
        command = f"pibert resume {shlex.quote(str(folder))}"
        raise KeyboardInterrupt(f"interrupted; go on with: {command}") from None
    if is_first_process():
        _summarise(finished)


def _summarise(finished: "Finished") -> None:
    """What came of it, where it is, and what can be done with it."""
    from pibert.predictor import load

    console, folder = Console(), finished.folder
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in finished.metrics.items())
    if not finished.fitted.epochs:
        say(console, "Fitted in closed form: there are no epochs and no learning curves.")
    elif finished.validated:
        say(console, f"Best epoch {finished.best_epoch}: {numbers}")
    else:
        say(
            console,
            f"Last epoch {finished.best_epoch}, in training (no validation part): {numbers}",
        )
    _show_skill(console, finished.metrics)
    trained = load(folder).card["trained"]  # and see that the model can be read
    curves = folder / "curves.png"
    drawn = f"  Curves: {curves}" if curves.exists() else ""
    say(console, f"Model: {folder / 'model.safetensors'}{drawn}")
    name = shlex.quote(str(folder))
    if trained["forward"]:
        say(console, f"See how good it is: pibert evaluate {name} --rollout 20")
        say(console, f"Step flows with it: pibert predict FILE --model {name} --out next.png")
        say(console, f"In Python: pibert.load({str(folder)!r})")
    else:
        say(
            console,
            "Train it further: pibert train --config FILE --out RUN --set pretraining=none --set "
            f"start={name}",
        )
    if trained["reconstruct"]:
        say(console, f"Fill gaps in a measurement: pibert fill FILE --model {name} --out OUT")


def _show_skill(console: Console, metrics: Mapping[str, float]) -> None:
    """How much better than persistence the kept weights are on the validation part."""
    skill = metrics.get("skill")
    if skill is None:
        return
    errors = f"1 - {metrics['reconstruction']:.4g} / {metrics['persistence']:.4g}"
    say(console, f"Skill against persistence on the validation part: {skill:.3g} ({errors})")
    if skill <= 0:
        say(
            console,
            "The model is no better than persistence, which predicts no change: train longer, "
            "raise training.learning_rate, or take frames further apart (data.stride).",
            "yellow",
        )
