"""Rollouts, scored lead time by lead time from many starts, and by the statistics of long runs.

A start is a window of true frames; from it the model is rolled out. Its frames are compared
with the frames that followed, block by block as they are made: nothing is kept but terms
(``evaluation/leads.py``), a few dozen numbers for each start and lead time.

A rollout that diverges is recorded as such from the first frame that was not handed out, which is
the first of a block of ``horizon`` frames.

A free run begins once per test flow and goes on to its end. Pointwise errors say little there;
the statistics are compared (``evaluation/statistics.py``).
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.evaluation.leads import Climate, Horizons, LeadTimes, climate_of
from pibert.evaluation.measure import Frames
from pibert.evaluation.scoring import body_at, own_spec, sequences
from pibert.evaluation.statistics import LEAST_FRAMES, Statistics
from pibert.fields import FieldSpec, Normalizer
from pibert.notes import collecting


@runtime_checkable
class Iterates(Protocol):
    """What is scored: a ``Predictor``, or what rolls out like one."""

    @property
    def spec(self) -> FieldSpec: ...

    @property
    def normalizer(self) -> Normalizer: ...

    @property
    def history(self) -> int: ...

    def iterate(
        self, fields: Any, steps: int | None = None, parameters: Any = None, mask: Any = None
    ) -> Iterator[Any]:
        """Blocks of frames in physical units, (batch, time, channel, y, x)."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class RolloutScores:
    """Terms of all starts, and what they mean."""

    measure: LeadTimes
    terms: Float[Tensor, "start lead k"]
    horizons: Horizons
    horizon_terms: Float[Tensor, "start k2"]
    trajectories: Int[Tensor, " start"]
    """Which trajectory each start is from: what to draw anew for intervals."""
    frames: Int[Tensor, " start"]
    """The first frame of each start's window."""
    stable: Int[Tensor, " start"]
    """Frames of use; as many as there are lead times if none was bad."""
    diverged: Int[Tensor, " start"]
    """Lead time, counted from 1, from which there is nothing finite; 0: never."""

    def curves(self) -> Float[Tensor, "lead entry"]:
        """The values of ``measure.entries`` at each lead time, 1 frame and on."""
        return self.measure.values(self.terms.sum(0))

    def summary(self) -> Float[Tensor, " entry"]:
        """The values of ``horizons.entries``."""
        return self.horizons.values(self.horizon_terms.sum(0))


def spread_starts(samples: Samples, count: int) -> list[int]:
    """Numbers of samples, evenly spread over all of them; all if there are no more."""
    if count < 1:
        raise ValueError(f"expected at least 1 start, found {count}")
    count = min(count, len(samples))
    return [place * len(samples) // count for place in range(count)]


def score_rollouts(
    predictor: Iterates,
    samples: Samples,
    starts: Sequence[int],
    *,
    threshold: float = 0.5,
    batch_size: int = 16,
) -> RolloutScores:
    """Roll out from each start to the end of its window, and score every frame.

    Args:
        predictor: Of the channels of the samples.
        samples: Their window has at least the predictor's history, and as its horizon the frames to
            predict. With a longer history predictors of less begin at the same frames as others.
        starts: Numbers of samples, such as ``spread_starts`` gives.
        threshold: Of the stable horizon: the squared error, over the variance of the truth in time.
        batch_size: Starts that are rolled out together.
    """
    _check(predictor, samples, starts)
    measure = LeadTimes(spec=predictor.spec, normalizer=predictor.normalizer)
    horizons = Horizons(threshold=threshold)
    places = [samples.locate(start) for start in starts]
    climates = {
        index: climate_of(samples.trajectories[index], measure.scales)
        for index in sorted({index for index, _ in places})
    }
    rolls = _Rolls(predictor, samples, measure, climates)
    parts = [
        rolls.terms(places[first : first + batch_size])
        for first in range(0, len(places), batch_size)
    ]
    terms = torch.cat(parts)
    stable = horizons.stable_frames(measure, terms)
    gone = terms[..., 1] > 0
    own = [climates[index] for index, _ in places]
    return RolloutScores(
        measure=measure,
        terms=terms,
        horizons=horizons,
        horizon_terms=horizons.terms(measure, terms, own),
        trajectories=torch.tensor([index for index, _ in places]),
        frames=torch.tensor([frame for _, frame in places]),
        stable=stable,
        diverged=torch.where(gone.any(1), gone.int().argmax(1) + 1, 0),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class FreeRuns:
    """Statistics of free runs: a row of terms for each."""

    measure: Statistics
    terms: Float[Tensor, "run k"]
    sampling: Float[Tensor, "run k"]
    """Of the true flow against itself (``Statistics.sampling_terms``)."""
    trajectories: Int[Tensor, " run"]
    frames: Int[Tensor, " run"]
    """Length of each run."""


def score_free_runs(predictor: Iterates, samples: Samples, frames: int) -> FreeRuns:
    """Run once from the start of every stretch of the samples, and compare the statistics.

    Args:
        predictor: Of the channels of the samples.
        samples: Their window has at least the predictor's history.
        frames: Most frames of a run; it ends with its stretch.
    """
    pieces = [(samples.locate(piece[0]), min(frames, len(piece))) for piece in sequences(samples)]
    runs = [(place, count) for place, count in pieces if count >= LEAST_FRAMES]
    if not runs:
        raise ValueError(
            f"expected {LEAST_FRAMES} frames or more for statistics, found runs of "
            f"{max((count for _, count in pieces), default=0)}; use longer recordings, or ask for "
            "longer runs"
        )
    _check(predictor, samples, [0])
    measure = Statistics(spec=predictor.spec, normalizer=predictor.normalizer)
    terms, sampling = [], []
    for count, group in itertools.groupby(runs, lambda run: run[1]):
        places = [place for place, _ in group]
        history = samples.window.history
        truth, known = _read(samples, places, history, count, truth=True)
        found = _run_free(predictor, samples, places, count)
        for (index, first), own, true, here in zip(places, found, truth, known, strict=True):
            trajectory, begin = samples.trajectories[index], first + history
            target = torch.arange(begin, begin + count)
            flow = Frames(
                prediction=own.to(true),
                truth=true,
                last=true,
                known=here,
                body=body_at(trajectory, target, true.device),
                spec=own_spec(samples.spec, trajectory),
            )
            terms.append(measure.terms(flow))
            sampling.append(measure.sampling_terms(flow))
    return FreeRuns(
        measure=measure,
        terms=torch.stack(terms),
        sampling=torch.stack(sampling),
        trajectories=torch.tensor([index for (index, _), _ in runs]),
        frames=torch.tensor([count for _, count in runs]),
    )


def _run_free(
    predictor: Iterates, samples: Samples, places: Sequence[tuple[int, int]], count: int
) -> Float[Tensor, "b t c y x"]:
    """Predicted frames, NaN from where a run diverged; each alone, if one of them does."""
    history = predictor.history
    fields, known = _read(samples, places, samples.window.history - history, history)
    blocks: list[Tensor] = []
    with collecting():
        stream = predictor.iterate(fields, count, _parameters(predictor, samples, places), known)
        try:
            blocks += (_finite(block) for block in stream)
        except FloatingPointError:
            if len(places) > 1:
                alone = [_run_free(predictor, samples, [place], count) for place in places]
                return torch.cat(alone)
    done = sum(block.shape[1] for block in blocks)
    rest = fields.new_full((len(places), count - done, *fields.shape[2:]), torch.nan)
    return torch.cat([*(block.to(rest) for block in blocks), rest], dim=1)


class _Rolls:
    """Terms of some starts at a time."""

    def __init__(
        self,
        predictor: Iterates,
        samples: Samples,
        measure: LeadTimes,
        climates: dict[int, Climate],
    ) -> None:
        self.predictor, self.samples, self.measure = predictor, samples, measure
        self.climates, self.steps = climates, samples.window.horizon

    def terms(self, places: Sequence[tuple[int, int]]) -> Float[Tensor, "b lead k"]:
        """Of starts that are rolled out together; each alone, if one of them diverges."""
        try:
            return self._together(places, mark=len(places) == 1)
        except FloatingPointError:
            if len(places) == 1:
                raise
            return torch.cat([self._together([place], mark=True) for place in places])

    def _together(
        self, places: Sequence[tuple[int, int]], *, mark: bool
    ) -> Float[Tensor, "b lead k"]:
        """With ``mark``, a rollout that diverges is marked instead of raised."""
        own_past = self.predictor.history
        fields, known = _read(
            self.samples, places, self.samples.window.history - own_past, own_past
        )
        own = [self.climates[index] for index, _ in places]
        mean = torch.stack([climate.mean for climate in own]).to(fields)
        # Persistence knows no more of a gap than its mean.
        last = torch.where(known[:, -1, None], fields[:, -1], mean)
        with collecting():  # notes on the input: the error is measured
            blocks = self.predictor.iterate(
                fields, self.steps, _parameters(self.predictor, self.samples, places), known
            )
        found, done = [], 0
        while done < self.steps:
            try:
                with collecting():
                    block = _finite(next(blocks))
            except FloatingPointError:
                if not mark:
                    raise
                break
            found.append(self._scored(places, block, done, block.shape[1], last, own))
            done += block.shape[1]
        while done < self.steps:  # what is left of one that diverged, without its predictions
            size = min(64, self.steps - done)
            found.append(self._scored(places, None, done, size, last, own))
            done += size
        return torch.cat(found, dim=1)

    def _scored(
        self,
        places: Sequence[tuple[int, int]],
        block: Tensor | None,
        done: int,
        size: int,
        last: Tensor,
        climates: list[Climate],
    ) -> Float[Tensor, "b lead k"]:
        truth, known = _read(
            self.samples, places, self.samples.window.history + done, size, truth=True
        )
        truth = torch.where(known[:, :, None], truth, 0.0)
        return self.measure.terms(block, truth, last, known, climates).cpu()


def _read(
    samples: Samples,
    places: Sequence[tuple[int, int]],
    offset: int,
    size: int,
    *,
    truth: bool = False,
) -> tuple[Float[Tensor, "b t c y x"], Bool[Tensor, "b t y x"]]:
    """Fields, and where they are known; of the truth, where they were measured."""
    fields, known = [], []
    for index, first in places:
        frames = slice(first + offset, first + offset + size)
        trajectory = samples.trajectories[index]
        fields.append(trajectory.read(frames))
        here = trajectory.measured(frames) if truth else trajectory.known(frames)
        known.append(here.to(fields[-1].device))
    whole = torch.stack(fields)
    return whole if whole.dtype == torch.float64 else whole.float(), torch.stack(known)


def _parameters(
    predictor: Iterates, samples: Samples, places: Sequence[tuple[int, int]]
) -> dict[str, Tensor]:
    given = [samples.trajectories[index].parameters for index, _ in places]
    return {
        name: torch.tensor([values.get(name, torch.nan) for values in given])
        for name in predictor.spec.parameter_names
    }


def _finite(block: Tensor) -> Tensor:
    """A prediction may leave the range of its type on the way to physical units."""
    if not bool(block.isfinite().all()):
        raise FloatingPointError("expected finite predictions, found NaN or infinity")
    return block


def _check(predictor: Iterates, samples: Samples, starts: Sequence[int]) -> None:
    if not starts:
        raise ValueError("expected at least one start, found none")
    if samples.window.history < predictor.history or samples.window.horizon < 1:
        raise ValueError(
            f"expected windows of at least {predictor.history} input frames and one to predict, "
            f"found {samples.window.history} and {samples.window.horizon}"
        )
    if samples.spec.channels != predictor.spec.channels:
        raise ValueError(
            f"expected the channels {list(predictor.spec.channels)} of the predictor, found "
            f"{list(samples.spec.channels)}"
        )
