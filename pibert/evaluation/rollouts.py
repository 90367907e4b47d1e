"""Rollouts from many starts, scored lead time by lead time.

A start is a window of true frames; from it a predictor goes on alone. What comes out is compared
with the frames that followed, block by block as they are made: nothing is kept but terms
(``evaluation/leads.py``), a few dozen numbers for each start and lead time.

A rollout that diverges is recorded as such from the first frame that was not handed out, which is
the first of a block of ``horizon`` frames.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.evaluation.leads import Climate, Horizons, LeadTimes, climate_of
from pibert.fields import FieldSpec, Normalizer
from pibert.predictor.given import without_doubts


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
    horizons, steps = Horizons(threshold=threshold), samples.window.horizon
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
        horizon_terms=horizons.terms(stable, steps, own),
        trajectories=torch.tensor([index for index, _ in places]),
        frames=torch.tensor([frame for _, frame in places]),
        stable=stable,
        diverged=torch.where(gone.any(1), gone.int().argmax(1) + 1, 0),
    )


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
        fields, known = self._read(places, self.samples.window.history - own_past, own_past)
        own = [self.climates[index] for index, _ in places]
        mean = torch.stack([climate.mean for climate in own]).to(fields)
        # Persistence knows no more of a gap than its mean.
        last = torch.where(known[:, -1, None], fields[:, -1], mean)
        with without_doubts():  # how far off it is, is measured
            blocks = self.predictor.iterate(fields, self.steps, self._parameters(places), known)
        found, done = [], 0
        while done < self.steps:
            try:
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
        truth, known = self._read(places, self.samples.window.history + done, size, truth=True)
        truth = torch.where(known[:, :, None], truth, 0.0)
        return self.measure.terms(block, truth, last, known, climates).cpu()

    def _read(
        self, places: Sequence[tuple[int, int]], offset: int, size: int, *, truth: bool = False
    ) -> tuple[Float[Tensor, "b t c y x"], Bool[Tensor, "b t y x"]]:
        """Fields, and where they are known; of the truth, where they were measured."""
        fields, known = [], []
        for index, first in places:
            frames = slice(first + offset, first + offset + size)
            trajectory = self.samples.trajectories[index]
            fields.append(trajectory.read(frames))
            here = trajectory.measured(frames) if truth else trajectory.known(frames)
            known.append(here.to(fields[-1].device))
        whole = torch.stack(fields)
        return whole if whole.dtype == torch.float64 else whole.float(), torch.stack(known)

    def _parameters(self, places: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
        given = [self.samples.trajectories[index].parameters for index, _ in places]
        return {
            name: torch.tensor([values.get(name, torch.nan) for values in given])
            for name in self.predictor.spec.parameter_names
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
