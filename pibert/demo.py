"""A demonstration: learn how analytic vortex streets move, and step streets never seen.

The streets are those of ``pibert.physics.exact.vortex_street``, in a square view of 64 x 64 points:
each has its own vortex spacing and circulation, and so its own speed of drift. The model sees one
frame and learns the next. It is judged on streets drawn from the same ranges but not trained on,
against persistence (nothing moves), which is what the untrained model predicts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid, Normalizer, Parameter
from pibert.models import build_model
from pibert.physics.exact import vortex_street
from pibert.report.figures import compare_fields, picture_path
from pibert.training.losses import PAPER_WEIGHTS, LossScales, total_loss

TRAINING_STREETS, TEST_STREETS = 64, 8
BATCH = 4
LEARNING_RATE = 1e-3
SPACING, CIRCULATION = (2.0, 3.2), (0.8, 2.4)
"""Ranges that streets are drawn from; lengths and speeds are relative to a stream of speed 1."""
_SEED = 0

OnStep = Callable[[int, float], None]
"""Called after every training step with its number, from 1, and the loss."""


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the model learned: rms errors on the held-out streets, in units of the stream."""

    model: tuple[float, ...]
    """After 1, 2, ... frames."""
    persistence: tuple[float, ...]
    picture: Path

    @property
    def ratios(self) -> tuple[float, ...]:
        """Model error over persistence error; 1 for a model that has learned nothing."""
        return tuple(m / p for m, p in zip(self.model, self.persistence, strict=True))


@dataclass(frozen=True)
class Streets:
    """Frames of several streets and the parameters of each."""

    frames: Float[Tensor, "b t 2 y x"]
    parameters: Float[Tensor, "b 16"]


def street_spec() -> FieldSpec:
    def uniform(name: str, low: float, high: float) -> Parameter:
        return Parameter(name=name, mean=(low + high) / 2, std=(high - low) / 12**0.5)

    return FieldSpec(
        parameters=(uniform("spacing", *SPACING), uniform("circulation", *CIRCULATION)),
        dt=0.15,
        grid=Grid((64, 64), dx=1 / 16, dy=1 / 16, origin=(0.0, -2.0)),
        reference_velocity=1.0,
    )


def draw_streets(count: int, frames: int, spec: FieldSpec, generator: torch.Generator) -> Streets:
    """Streets with random spacing, circulation and phase."""
    assert spec.dt is not None
    spacing, circulation = (
        low + (high - low) * torch.rand(count, generator=generator)
        for low, high in (SPACING, CIRCULATION)
    )
    starts = 10 * torch.rand(count, generator=generator)
    fields = [
        torch.stack(
            vortex_street(
                spec.grid,
                start + spec.dt * torch.arange(frames),
                spacing=float(a),
                circulation=float(gamma),
                dtype=torch.float32,
            ),
            dim=1,
        )
        for a, gamma, start in zip(spacing, circulation, starts, strict=True)
    ]
    parameters = spec.encode_parameters({"spacing": spacing, "circulation": circulation})
    return Streets(torch.stack(fields), parameters)


def run_demo(
    picture: Path, *, steps: int = 150, ahead: int = 4, on_step: OnStep | None = None
) -> DemoResult:
    """Train the base model, step held-out streets and draw one of them.

    Args:
        picture: Where the picture goes.
        steps: Training steps; 0 leaves the model untrained.
        ahead: Frames that held-out streets are stepped.
        on_step: Told of the progress.
    """
    if steps < 0 or ahead < 1:
        raise ValueError(
            f"expected steps of at least 0 and ahead of at least 1, found {steps} and {ahead}"
        )
    picture = picture_path(picture)  # a bad one is told before the training, not after
    spec = street_spec()
    generator = torch.Generator().manual_seed(_SEED)
    training = draw_streets(TRAINING_STREETS, 5, spec, generator)
    test = draw_streets(TEST_STREETS, ahead + 1, spec, generator)
    flat = training.frames.transpose(0, 2).flatten(1)
    normalizer = Normalizer(tuple(flat.mean(1).tolist()), tuple(flat.std(1).tolist()))

    model = build_model("pibert", preset="base", spec=spec)
    first = normalizer.apply(training.frames[:, 0])
    model.calibrate(first, normalizer, training.parameters)
    train(model, training, LossScales.from_training(spec, normalizer), steps, generator, on_step)

    predicted = torch.stack(list(roll_out(model, test, normalizer, ahead)), dim=1)
    truth, start = test.frames[:, 1:], test.frames[:, :1]
    compare_fields(
        picture,
        truth[0, -1],
        predicted[0, -1],
        spec,
        title=f"A vortex street not trained on, {ahead} frames ahead ({steps} training steps)",
    )
    return DemoResult(
        model=_errors(predicted, truth),
        persistence=_errors(start.expand_as(truth), truth),
        picture=picture,
    )


def train(
    model: nn.Module,
    streets: Streets,
    scales: LossScales,
    steps: int,
    generator: torch.Generator,
    on_step: OnStep | None,
) -> None:
    """Learn every next frame with the paper's loss; the learning rate rises, then falls."""
    z = scales.normalizer.apply(streets.frames)
    count, frames = z.shape[:2]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=max(steps, 1), pct_start=0.15
    )
    model.train()
    for step in range(1, steps + 1):
        street = torch.randint(count, (BATCH,), generator=generator)
        frame = torch.randint(frames - 1, (BATCH,), generator=generator)
        prediction = model(z[street, frame], streets.parameters[street])
        loss, _ = total_loss(
            prediction, z[street, frame + 1], weights=PAPER_WEIGHTS["base"], scales=scales
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if on_step is not None:
            on_step(step, loss.item())
    model.eval()


@torch.no_grad()
def roll_out(
    model: nn.Module, streets: Streets, normalizer: Normalizer, ahead: int
) -> Iterator[Float[Tensor, "b 2 y x"]]:
    """Frame after frame in physical units, each made from the one before."""
    state = normalizer.apply(streets.frames[:, 0])
    for _ in range(ahead):
        state = model(state, streets.parameters)
        yield normalizer.invert(state)


def _errors(predicted: Tensor, truth: Tensor) -> tuple[float, ...]:
    return tuple((predicted - truth).square().mean((0, 2, 3, 4)).sqrt().tolist())
