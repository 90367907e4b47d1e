"""Free runs with random errors, of a flow and a predictor that are known in closed form."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pibert.data.dataset import Samples, Window
from pibert.fields import FieldSpec, Grid, Normalizer, Trajectory
from studies.stochastic_rollouts import (
    Recorded,
    Stochastic,
    one_step_errors,
    score,
    spread,
    stretches,
)

SPEC = FieldSpec(grid=Grid((12, 20), dx=0.3, dy=0.2), dt=0.5)
NORMALIZER = Normalizer((0.0, 0.0), (1.0, 1.0))
KEPT, FORCED, MEAN = 0.9, 0.5, 2.0


class BestGuess:
    """The conditional mean of ``red_noise``, the best prediction by squared error."""

    spec, normalizer, history = SPEC, NORMALIZER, 1

    def iterate(
        self, fields: Any, steps: int | None = None, parameters: Any = None, mask: Any = None
    ) -> Iterator[Any]:
        assert steps is not None
        for _ in range(steps):
            fields = MEAN + KEPT * (fields - MEAN)
            yield fields


def red_noise(frames: int, seed: int) -> Trajectory:
    """x(n+1) - 2 = 0.9 (x(n) - 2) + noise of deviation 0.5, from frames of the same variance."""
    generator = torch.Generator().manual_seed(seed)
    forcing = FORCED * torch.randn(frames, 2, *SPEC.grid.shape, generator=generator)
    states = [forcing[0] / (1 - KEPT**2) ** 0.5]
    for force in forcing[1:]:
        states.append(KEPT * states[-1] + force)
    time = torch.arange(frames).double() * 0.5
    return Trajectory(name=f"noise {seed}", states=MEAN + torch.stack(states), time=time, spec=SPEC)


def samples_of(trajectory: Trajectory) -> Samples:
    return Samples([trajectory], window=Window(history=1), normalizer=NORMALIZER)


@pytest.fixture(scope="module")
def training() -> Samples:
    return samples_of(red_noise(301, 0))


@pytest.fixture(scope="module")
def test() -> Samples:
    return samples_of(red_noise(201, 1))


def test_errors_of_training_frames_keep_the_energy_that_the_best_guess_loses(
    training: Samples, test: Samples
) -> None:
    errors = one_step_errors(BestGuess(), training)
    assert errors.shape == (300, 2, 12, 20)
    assert float(errors.std()) == pytest.approx(FORCED, rel=0.02)
    plain = score(BestGuess(), test, 200, 1)
    noisy = score(Stochastic(BestGuess(), errors), test, 200, 1)
    truth = score(BestGuess(), test, 200, 1, terms="sampling")
    assert (plain["energy_ratio"] or 0) < 0.1 and (plain["stress_error"] or 0) > 0.9
    assert noisy["energy_ratio"] == pytest.approx(1, abs=0.1)
    assert (noisy["stress_error"] or 1) < 2 * (truth["stress_error"] or 0)
    assert noisy["memory_ratio"] == pytest.approx(1, abs=0.3)


def test_members_differ_by_their_seed_alone(training: Samples, test: Samples) -> None:
    errors = one_step_errors(BestGuess(), training)
    first, again, other = (
        score(Stochastic(BestGuess(), errors, seed), test, 40, 1) for seed in (0, 0, 1)
    )
    assert first == again and first != other
    mean, low, high = spread([first, other])["energy_ratio"]
    assert low < mean < high


def test_a_stretch_in_place_of_a_prediction_is_compared_as_it_is(test: Samples) -> None:
    found = list(stretches(test, 60))
    assert len(found) == 3
    truth = test.trajectories[0].read(slice(1, 61))
    torch.testing.assert_close(found[0], truth)
    exact = score(Recorded(found[0], SPEC, NORMALIZER), test, 60, 1)
    assert exact["stress_error"] == exact["mean_error"] == 0 and exact["energy_ratio"] == 1
    other = score(Recorded(found[1], SPEC, NORMALIZER), test, 60, 1)
    assert (other["stress_error"] or 0) > 0.05
