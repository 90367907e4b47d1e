"""A demonstration, from simulation to picture: learn how wakes move, and step wakes never seen.

The experiment is that of ``configs/demo.toml``: wakes of ``pibert generate cylinder``, each with
its own Reynolds number, parted wake by wake. A small model is pretrained on some, learns
from them how one frame of velocity becomes the next, and is judged on others, whose Reynolds
numbers it has not met, against persistence (nothing moves), which is what the untrained model
predicts. The validation wakes choose the best epoch, and the settings were chosen on them.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert import config
from pibert.data.dataset import Window
from pibert.data.splits import Shares
from pibert.experiments.experiment import DataConfig, Experiment, ModelConfig, Pretraining
from pibert.experiments.flows import Flows, prepare
from pibert.experiments.run import run
from pibert.predictor import Predictor, load
from pibert.report.figures import compare_fields, picture_path
from pibert.training.engine import FitConfig, Reporter, Silent

EXPERIMENT = Experiment(
    data=DataConfig(case="cylinder", channels=("u", "v"), shares=Shares(train=0.67, valid=0.17)),
    # Half the width of the base model: in a time this short the smaller one learns more.
    model=ModelConfig(preset="base", options={"width": 64, "dropout": 0.0}),
    pretraining=Pretraining(
        epochs=1,
        batch_size=8,
        micro_batch=None,
        learning_rate=1e-3,
        min_learning_rate=1e-6,
        warmup_epochs=0.2,
        patience=None,
    ),
    training=FitConfig(
        epochs=4,
        batch_size=4,
        micro_batch=None,
        learning_rate=2e-3,
        min_learning_rate=1e-6,
        warmup_epochs=0.5,
        patience=None,
        monitor="reconstruction",
    ),
)


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the model learned: rms errors on the test wakes, over known points, in their units."""

    model: tuple[float, ...]
    """After 1, 2, ... frames."""
    persistence: tuple[float, ...]
    reynolds: tuple[float, ...]
    """Of the test wakes."""
    picture: Path
    run: Path
    """The run folder of the training."""

    @property
    def ratios(self) -> tuple[float, ...]:
        """Model error over persistence error; 1 for a model that has learned nothing."""
        return tuple(m / p for m, p in zip(self.model, self.persistence, strict=True))


def run_demo(
    picture: Path,
    *,
    experiment: Experiment = EXPERIMENT,
    ahead: int = 4,
    reporter: Reporter | None = None,
) -> DemoResult:
    """Simulate wakes, train on most of them, step the others and draw one of these.

    Args:
        picture: Where the picture goes. The run goes beside it, to a folder named by the
            experiment; if it is complete there already, it is not trained again.
        experiment: What to simulate and train.
        ahead: Frames that test wakes are stepped.
        reporter: Told of the progress.
    """
    if ahead < 1:
        raise ValueError(f"expected ahead of at least 1, found {ahead}")
    picture = picture_path(picture)  # a bad one is told before the simulation, not after
    reporter = reporter or Silent()
    flows = prepare(experiment.data, on_progress=reporter.simulated)
    flows.samples("test", Window(horizon=ahead))  # fails, if it does, before the training
    folder = picture.with_name(f"{picture.stem}-run-{config.identity(experiment)[:8]}")
    run(experiment, folder, reporter=reporter, flows=flows)
    return judge(load(folder), flows, picture, ahead, folder)


def judge(
    predictor: Predictor, flows: Flows, picture: Path, ahead: int, folder: Path
) -> DemoResult:
    """Step test wakes from every frame on; draw the first, stepped from the middle of its time."""
    samples = flows.samples("test", Window(horizon=ahead))
    batch = samples.batch(range(len(samples)))
    start, truth = (flows.normalizer.invert(f) for f in (batch.x[:, None], batch.y))
    tested = [flows.trajectories[segment.trajectory] for segment in flows.split.test]
    of_sample = [flows.trajectories[samples.locate(i)[0]] for i in range(len(samples))]
    values = torch.tensor([wake.parameters["Re"] for wake in of_sample])
    predicted = predictor.rollout(start, ahead, {"Re": values}, batch.mask)
    reynolds = tuple(wake.parameters["Re"] for wake in tested)
    shown = (tested[0].num_frames - ahead) // 2
    compare_fields(
        picture,
        truth[shown, -1],
        predicted[shown, -1],
        flows.spec,
        title=f"A wake not trained on, Re {reynolds[0]:.0f}, {ahead} frames ahead",
        known=batch.target_mask[shown, -1],
    )
    return DemoResult(
        model=_errors(predicted, truth, batch.target_mask),
        persistence=_errors(start.expand_as(truth), truth, batch.target_mask),
        reynolds=reynolds,
        picture=picture,
        run=folder,
    )


def _errors(
    predicted: Float[Tensor, "b s c y x"],
    truth: Float[Tensor, "b s c y x"],
    known: Bool[Tensor, "b s y x"],
) -> tuple[float, ...]:
    """Root mean square over known points and channels, for every number of frames ahead."""
    counted = known[:, :, None].expand_as(truth)
    squares = torch.where(counted, predicted - truth, 0.0).square()
    over = (0, 2, 3, 4)
    return tuple((squares.sum(over) / counted.sum(over)).sqrt().tolist())
