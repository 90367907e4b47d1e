"""A demonstration, from simulation to picture: learn how wakes move, and step wakes never seen.

The wakes are those of ``pibert generate cylinder --preset demo``, each with its own Reynolds
number. They are parted wake by wake: the model learns from some how one frame of velocity becomes
the next, and is judged on others, whose Reynolds numbers it has not met, against persistence
(nothing moves), which is what the untrained model predicts. The validation wakes are neither
trained on nor judged by: the settings below were chosen on them.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pibert.data.dataset import BatchOrder, Samples, Window, common_spec
from pibert.data.format import Reader
from pibert.data.generate import OnProgress, generate, recipe_hash
from pibert.data.normalize import fit_normalizer, fit_parameters
from pibert.data.resample import represent
from pibert.data.resident import ResidentLoader
from pibert.data.splits import Segment, Shares, Split, split_trajectories
from pibert.fields import Batch, FieldSpec, Normalizer, Trajectory
from pibert.models import build_model
from pibert.models.pibert import PIBERT
from pibert.report.figures import compare_fields, picture_path
from pibert.solver.presets import find_preset
from pibert.solver.recipes import Recipe
from pibert.training.losses import PAPER_WEIGHTS, LossScales, total_loss

CHANNELS = ("u", "v")
SHARES = Shares(train=2 / 3, valid=1 / 6)
WIDTH = 64
"""Half that of the base model: in a time this short the smaller one learns more."""
BATCH = 4
LEARNING_RATE = 2e-3
_SEED = 0

OnStep = Callable[[int, float], None]
"""Called after every training step with its number, from 1, and the loss."""


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the model learned: rms errors on the test wakes, over known points, in their units."""

    model: tuple[float, ...]
    """After 1, 2, ... frames."""
    persistence: tuple[float, ...]
    reynolds: tuple[float, ...]
    """Of the test wakes."""
    picture: Path

    @property
    def ratios(self) -> tuple[float, ...]:
        """Model error over persistence error; 1 for a model that has learned nothing."""
        return tuple(m / p for m, p in zip(self.model, self.persistence, strict=True))


@dataclass(frozen=True)
class WakeSet:
    """Velocities of all wakes, which of them train and test, and statistics of those that train."""

    trajectories: tuple[Trajectory, ...]
    split: Split
    normalizer: Normalizer
    spec: FieldSpec

    def samples(self, part: tuple[Segment, ...], horizon: int) -> Samples:
        return Samples(
            self.trajectories,
            part,
            window=Window(horizon=horizon),
            normalizer=self.normalizer,
            spec=self.spec,
        )


def run_demo(
    picture: Path,
    *,
    recipe: Recipe | None = None,
    steps: int = 400,
    ahead: int = 4,
    on_wakes: OnProgress | None = None,
    on_step: OnStep | None = None,
) -> DemoResult:
    """Simulate wakes, train on most of them, step the others and draw one of these.

    Args:
        picture: Where the picture goes. The wakes go beside it, to a file named by the hash of
            their recipe; if it is there already, they are not simulated again.
        recipe: What to simulate; the ``demo`` preset of the cylinder if not given.
        steps: Training steps; 0 leaves the model untrained.
        ahead: Frames that test wakes are stepped.
        on_wakes: Told of the progress of the simulation.
        on_step: Told of the progress of the training.
    """
    if steps < 0 or ahead < 1:
        raise ValueError(
            f"expected steps of at least 0 and ahead of at least 1, found {steps} and {ahead}"
        )
    picture = picture_path(picture)  # a bad one is told before the simulation, not after
    recipe = recipe or find_preset("cylinder")
    path = picture.with_name(f"wakes-{recipe_hash(recipe)}.h5")
    generate(recipe, path, on_progress=on_wakes)
    if on_wakes is not None:
        on_wakes(float(recipe.samples))
    wakes = read_wakes(path)
    test = wakes.samples(wakes.split.test, ahead)  # fails, if it does, before the training
    model = build_model("pibert", spec=wakes.spec, width=WIDTH)
    train(model, wakes, steps, on_step)
    return judge(model, wakes, test, picture)


def read_wakes(path: Path) -> WakeSet:
    """The velocities in a file, in memory, parted by trajectory."""
    with Reader(path) as reader:
        trajectories = tuple(represent(wake, channels=CHANNELS).load() for wake in reader)
    split = split_trajectories(range(len(trajectories)), SHARES, seed=_SEED)
    parameters = fit_parameters(trajectories, split.train)
    return WakeSet(
        trajectories,
        split,
        fit_normalizer(trajectories, split.train),
        replace(common_spec(trajectories), parameters=parameters),
    )


def train(model: PIBERT, wakes: WakeSet, steps: int, on_step: OnStep | None) -> None:
    """Learn every next frame with the paper's loss; the learning rate rises, then falls."""
    samples = wakes.samples(wakes.split.train, 1)
    loader = ResidentLoader(samples, BatchOrder(len(samples), BATCH, seed=_SEED))
    scales = LossScales.from_training(wakes.spec, wakes.normalizer)
    some = samples.batch(range(0, len(samples), 8))
    model.calibrate(some.x, wakes.normalizer, some.parameters, some.mask)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=max(steps, 1), pct_start=0.15
    )
    model.train()
    for step, batch in enumerate(itertools.islice(_epochs(loader), steps), start=1):
        prediction = model(batch.x, batch.parameters, batch.mask)
        loss, _ = total_loss(
            prediction,
            batch.y[:, 0],
            weights=PAPER_WEIGHTS["base"],
            scales=scales,
            known=batch.target_mask[:, 0],
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if on_step is not None:
            on_step(step, loss.item())
    model.eval()


def _epochs(loader: ResidentLoader) -> Iterator[Batch]:
    for epoch in itertools.count():
        loader.order.go_to(epoch)
        yield from loader


def judge(model: nn.Module, wakes: WakeSet, test: Samples, picture: Path) -> DemoResult:
    """Step test wakes from every frame on; draw the first, stepped from the middle of its time."""
    ahead, physical = test.window.horizon, wakes.normalizer.invert
    batch = test.batch(range(len(test)))
    start, truth = physical(batch.x)[:, None], physical(batch.y)
    predicted = physical(roll_out(model, batch, ahead))
    tested = [wakes.trajectories[segment.trajectory] for segment in wakes.split.test]
    reynolds = tuple(wake.parameters["Re"] for wake in tested)
    shown = (tested[0].num_frames - ahead) // 2
    compare_fields(
        picture,
        truth[shown, -1],
        predicted[shown, -1],
        wakes.spec,
        title=f"A wake not trained on, Re {reynolds[0]:.0f}, {ahead} frames ahead",
        known=batch.target_mask[shown, -1],
    )
    return DemoResult(
        model=_errors(predicted, truth, batch.target_mask),
        persistence=_errors(start.expand_as(truth), truth, batch.target_mask),
        reynolds=reynolds,
        picture=picture,
    )


@torch.no_grad()
def roll_out(model: nn.Module, batch: Batch, ahead: int) -> Float[Tensor, "b s c y x"]:
    """Frame after frame, standardised, each made from the one before."""
    frames = [batch.x]
    for _ in range(ahead):
        frames.append(model(frames[-1], batch.parameters, batch.mask))
    return torch.stack(frames[1:], dim=1)


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
