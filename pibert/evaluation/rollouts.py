"""Rollouts, scored lead time by lead time from many starts, and by the statistics of long runs.

A start is a window of true frames; from it the model is rolled out. Its frames are compared with
the frames that followed, block by block as they are predicted: nothing is kept but terms
(``evaluation/leads.py``), a few dozen numbers for each start and lead time.

A rollout counts as diverged from the first frame of the block of ``horizon`` frames that is not
finite.

A free run begins at the start of a test flow and has a given length; where the flow is long enough
for more, further runs follow, without overlap. Pointwise errors mean little there; the statistics
are compared (``evaluation/statistics.py``). What figures need is kept of the run in the middle of
the list, which no result decides: means, stresses, series at the probes, densities of the values.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.evaluation.leads import Climate, Horizons, LeadTimes, climate_of
from pibert.evaluation.measure import Frames, Measure
from pibert.evaluation.measures import window_measures
from pibert.evaluation.official import mean_window
from pibert.evaluation.scoring import body_at, own_spec, sequences
from pibert.evaluation.statistics import LEAST_FRAMES, Statistics
from pibert.fields import FieldSpec, Normalizer
from pibert.notes import collecting


@runtime_checkable
class RolloutPredictor(Protocol):
    """The part of ``Predictor`` that rollouts use."""

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


Start = tuple[int, int]
"""Trajectory and first frame of a window."""
_MOST_VALUES = 2**26
"""Values of the frames of free runs that are computed together."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RolloutScores:
    """Terms of all starts."""

    measure: LeadTimes
    terms: Float[Tensor, "start lead k"]
    horizons: Horizons
    horizon_terms: Float[Tensor, "start k2"]
    trajectories: Int[Tensor, " start"]
    """The trajectory of each start: the unit to resample for intervals."""
    frames: Int[Tensor, " start"]
    """The first frame of each start's window."""
    stable: Int[Tensor, " start"]
    """Frames before the first bad one; all lead times if none is bad."""
    diverged: Int[Tensor, " start"]
    """Lead time, counted from 1, from which nothing is finite; 0: never."""

    def curves(self) -> Float[Tensor, "lead entry"]:
        """The values of ``measure.entries`` at each lead time, from 1 frame on."""
        return self.measure.values(self.terms.sum(0))

    def summary(self) -> Float[Tensor, " entry"]:
        """The values of ``horizons.entries``."""
        return self.horizons.values(self.horizon_terms.sum(0))


def spread_starts(samples: Samples, count: int) -> list[int]:
    """Numbers of samples, evenly spread over all of them; all if there are no more."""
    count = min(count, len(samples))
    return [number * len(samples) // count for number in range(count)]


def score_rollouts(
    predictor: RolloutPredictor,
    samples: Samples,
    numbers: Sequence[int],
    *,
    threshold: float = 0.5,
    batch_size: int = 16,
) -> RolloutScores:
    """Roll out from each start to the end of its window, and score every frame.

    Args:
        predictor: Of the channels of the samples.
        samples: Their window has at least the predictor's history, and as its horizon the frames to
            predict. With a longer history predictors of less begin at the same frames as others.
        numbers: Samples to start from, such as ``spread_starts`` gives.
        threshold: Of the stable horizon: the squared error, over the variance of the truth in time.
        batch_size: Starts that are rolled out together.
    """
    _check(predictor, samples)
    measure = LeadTimes(spec=predictor.spec, normalizer=predictor.normalizer)
    horizons = Horizons(threshold=threshold)
    starts = [samples.locate(number) for number in numbers]
    climates = {
        index: climate_of(samples.trajectories[index], measure.scales)
        for index in sorted({index for index, _ in starts})
    }
    with collecting():  # notes on the input are not needed: the error is measured
        rows = [
            _lead_terms(predictor, samples, measure, climates, starts[first : first + batch_size])
            for first in range(0, len(starts), batch_size)
        ]
    terms = torch.cat(rows)
    stable = horizons.stable_frames(measure, terms)
    gone = terms[..., 1] > 0
    return RolloutScores(
        measure=measure,
        terms=terms,
        horizons=horizons,
        horizon_terms=horizons.terms(measure, terms, [climates[index] for index, _ in starts]),
        trajectories=torch.tensor([index for index, _ in starts]),
        frames=torch.tensor([frame for _, frame in starts]),
        stable=stable,
        diverged=torch.where(gone.any(1), gone.int().argmax(1) + 1, 0),
    )


def _lead_terms(
    predictor: RolloutPredictor,
    samples: Samples,
    measure: LeadTimes,
    climates: Mapping[int, Climate],
    starts: Sequence[Start],
) -> Float[Tensor, "b lead k"]:
    """Terms of starts that are rolled out together; each alone, if one of them diverges."""
    past, steps = samples.window.history, samples.window.horizon
    chosen = [climates[index] for index, _ in starts]
    newest, known = read_frames(samples, starts, past - 1, 1)
    mean = torch.stack([climate.mean for climate in chosen]).to(newest)
    # Persistence knows no more of a gap than its mean.
    last = torch.where(known[:, 0, None], newest[:, 0], mean)

    def scored(block: Tensor | None, done: int, size: int) -> Tensor:
        truth, known = read_frames(samples, starts, past + done, size, truth=True)
        truth = torch.where(known[:, :, None], truth, 0.0)
        return measure.terms(block, truth, last, known, chosen).cpu()

    rows, done = [], 0
    try:
        for block in _rolled_out(predictor, samples, starts, steps):
            rows.append(scored(block, done, block.shape[1]))
            done += block.shape[1]
    except FloatingPointError:
        if len(starts) > 1:
            alone = [_lead_terms(predictor, samples, measure, climates, [s]) for s in starts]
            return torch.cat(alone)
        for first in range(done, steps, 64):
            rows.append(scored(None, first, min(64, steps - first)))
    return torch.cat(rows, dim=1)


def _rolled_out(
    predictor: RolloutPredictor, samples: Samples, starts: Sequence[Start], steps: int
) -> Iterator[Float[Tensor, "b t c y x"]]:
    """Blocks of predicted frames, all finite; FloatingPointError where one is not."""
    fields, parameters, known = rollout_input(predictor, samples, starts)
    for block in predictor.iterate(fields, steps, parameters, known):
        # A prediction may also leave the range of its type on the way to physical units.
        if not bool(block.isfinite().all()):
            raise FloatingPointError("expected finite predictions, found NaN or infinity")
        yield block


def rollout_input(
    predictor: RolloutPredictor, samples: Samples, starts: Sequence[Start]
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Fields, parameters and known points from which a predictor rolls out."""
    history = predictor.history
    fields, known = read_frames(samples, starts, samples.window.history - history, history)
    given = [samples.trajectories[index].parameters for index, _ in starts]
    parameters = {
        name: torch.tensor([values.get(name, torch.nan) for values in given])
        for name in predictor.spec.parameter_names
    }
    return fields, parameters, known


@dataclass(frozen=True, eq=False, kw_only=True)
class FreeRuns:
    """Statistics of free runs: a row of terms for each."""

    measure: Statistics
    terms: Float[Tensor, "run k"]
    sampling: Float[Tensor, "run k"]
    """Of the true flow against itself (``Statistics.sampling_terms``)."""
    trajectories: Int[Tensor, " run"]
    starts: Int[Tensor, " run"]
    """The first predicted frame of each run."""
    frames: Int[Tensor, " run"]
    """Length of each run."""
    shown: int
    """The run that pictures are of."""
    pictures: dict[str, Tensor]

    @property
    def survived(self) -> Int[Tensor, " run"]:
        """Frames of each run before it is lost; all of them if it is not."""
        return self.measure.survived(self.terms)


def longest_free_run(samples: Samples) -> int:
    """Frames of the longest run that the samples allow."""
    return max((len(piece) for piece in sequences(samples)), default=0)


def score_free_runs(
    predictor: RolloutPredictor, samples: Samples, frames: int, most: int = 0
) -> FreeRuns:
    """Run from the start of every stretch of the samples, and compare the statistics.

    Args:
        predictor: Of the channels of the samples.
        samples: Their window has at least the predictor's history.
        frames: Most frames of a run; it ends with its stretch.
        most: Runs in all, if every stretch has one: long stretches have several.
    """
    _check(predictor, samples)
    runs = _free_run_starts(samples, frames, most)
    measure = Statistics(spec=predictor.spec, normalizer=predictor.normalizer)
    terms: list[Tensor] = []
    sampling: list[Tensor] = []
    pictures: dict[str, Tensor] = {}
    shown = len(runs) // 2
    for count, group in itertools.groupby(runs, lambda run: run[1]):
        begins = [start for start, _ in group]
        values = count * len(samples.spec.channels) * math.prod(samples.spec.grid.shape)
        together = max(1, min(16, _MOST_VALUES // values))
        for first in range(0, len(begins), together):
            for flow in _free_flows(predictor, samples, begins[first : first + together], count):
                if len(terms) == shown:
                    pictures = measure.pictures(flow)
                terms.append(measure.terms(flow))
                sampling.append(measure.sampling_terms(flow))
    return FreeRuns(
        measure=measure,
        terms=torch.stack(terms),
        sampling=torch.stack(sampling),
        trajectories=torch.tensor([index for (index, _), _ in runs]),
        starts=torch.tensor([frame + samples.window.history for (_, frame), _ in runs]),
        frames=torch.tensor([count for _, count in runs]),
        shown=shown,
        pictures=pictures,
    )


def score_windows(
    predictor: RolloutPredictor, samples: Samples, numbers: Sequence[int], *, batch_size: int = 16
) -> tuple[dict[str, Measure], dict[str, Float[Tensor, "start k"]]]:
    """Return the measures of whole rollouts and, by their names, a row of terms for each start.

    Arguments are those of ``score_rollouts``. Rows of rollouts that diverge are NaN.
    """
    _check(predictor, samples)
    past, steps = samples.window.history, samples.window.horizon
    located = [samples.locate(number) for number in numbers]
    groups = [located[i : i + batch_size] for i in range(0, len(located), batch_size)]

    def truths() -> Iterator[Tensor]:
        for starts in groups:
            truth, known = read_frames(samples, starts, past, steps, truth=True)
            yield torch.where(known[:, :, None], truth, 0.0).movedim(2, -1)

    measures = window_measures(predictor.spec, steps, mean_window(truths()))
    rows: dict[str, list[Tensor]] = {name: [] for name in measures}
    for starts in groups:
        for frames in _free_flows(predictor, samples, starts, steps):
            for name, measure in measures.items():
                rows[name].append(measure.terms(frames).cpu())
    return measures, {name: torch.cat(terms) for name, terms in rows.items()}


def _free_run_starts(samples: Samples, frames: int, most: int) -> list[tuple[Start, int]]:
    """Start and length of every run: the first of each stretch, then further ones in turn."""
    rounds: list[tuple[int, Start, int]] = []
    for piece in sequences(samples):
        count = min(frames, len(piece))
        for turn in range(len(piece) // count if count >= LEAST_FRAMES else 0):
            rounds.append((turn, samples.locate(piece[turn * count]), count))
    if not rounds:
        raise ValueError(
            f"expected {LEAST_FRAMES} frames or more for statistics, found runs of "
            f"{min(frames, longest_free_run(samples))}; use longer recordings, or ask for longer "
            "runs"
        )
    rounds.sort(key=lambda run: run[0])
    flows = sum(turn == 0 for turn, _, _ in rounds)
    return sorted((start, count) for _, start, count in rounds[: max(flows, most)])


def _free_flows(
    predictor: RolloutPredictor, samples: Samples, starts: Sequence[Start], count: int
) -> Iterator[Frames]:
    """Prediction and truth of runs that are computed together."""
    history = samples.window.history
    truth, known = read_frames(samples, starts, history, count, truth=True)
    with collecting():
        predicted = _run_free(predictor, samples, starts, truth)
    for n, (index, first) in enumerate(starts):
        trajectory, begin = samples.trajectories[index], first + history
        yield Frames(
            prediction=predicted[n],
            truth=truth[n],
            last=truth[n],
            known=known[n],
            body=body_at(trajectory, torch.arange(begin, begin + count), truth.device),
            spec=own_spec(samples.spec, trajectory),
            parameters=trajectory.parameters,
        )


def _run_free(
    predictor: RolloutPredictor,
    samples: Samples,
    starts: Sequence[Start],
    truth: Float[Tensor, "b t c y x"],
) -> Float[Tensor, "b t c y x"]:
    """Predictions of the true frames, NaN from where a run diverged; each alone, if one does."""
    predicted, done = torch.full_like(truth, torch.nan), 0
    try:
        for block in _rolled_out(predictor, samples, starts, truth.shape[1]):
            predicted[:, done : done + block.shape[1]] = block
            done += block.shape[1]
    except FloatingPointError:
        if len(starts) > 1:
            pairs = zip(starts, truth.split(1), strict=True)
            return torch.cat([_run_free(predictor, samples, [s], t) for s, t in pairs])
    return predicted


def read_frames(
    samples: Samples, starts: Sequence[Start], offset: int, size: int, *, truth: bool = False
) -> tuple[Float[Tensor, "b t c y x"], Bool[Tensor, "b t y x"]]:
    """Fields, and where they are known; of the truth, where they were measured."""
    fields, known = [], []
    for index, first in starts:
        frames = slice(first + offset, first + offset + size)
        trajectory = samples.trajectories[index]
        fields.append(trajectory.read(frames))
        mask = trajectory.measured(frames) if truth else trajectory.known(frames)
        known.append(mask.to(fields[-1].device))
    whole = torch.stack(fields)
    return whole if whole.dtype == torch.float64 else whole.float(), torch.stack(known)


def _check(predictor: RolloutPredictor, samples: Samples) -> None:
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
