"""Rollouts, scored lead time by lead time from many starts, and by the statistics of long runs.

A start is a window of true frames; from it the model is rolled out. Its frames are compared with
the frames that followed, and nothing is kept but terms (``evaluation/leads.py``), a few dozen
numbers for each start and lead time.

A rollout is not finite from the first frame of the block of ``horizon`` frames on in which a value
is not. When it has diverged says ``evaluation/divergence.py``.

A free run begins at the start of a test flow and has a given length; where the flow is long enough
for more, further runs follow, without overlap. Pointwise errors mean little there; the statistics
are compared (``evaluation/statistics.py``). What figures need is kept of the run in the middle of
the list, which no result decides: means, stresses, series at the probes, densities of the values.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.evaluation.leads import Horizons, LeadTimes, climate_of
from pibert.evaluation.measure import Frames
from pibert.evaluation.measures import window_measures
from pibert.evaluation.official import mean_window
from pibert.evaluation.scoring import body_at, own_spec, sequences
from pibert.evaluation.statistics import LEAST_FRAMES, Statistics
from pibert.fields import FieldSpec, Normalizer, Trajectory
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Replay:
    """Frames that were computed beforehand, in place of those of a predictor."""

    spec: FieldSpec
    normalizer: Normalizer
    flows: Mapping[int, Trajectory]
    """By the number of the trajectory that each one stands for, frame for frame."""


Start = tuple[int, int]
"""Trajectory and first frame of a window."""
_MOST_VALUES = 2**26
"""Values of the frames that are rolled out together."""


def spread_starts(samples: Samples, count: int) -> list[int]:
    """Numbers of samples, evenly spread over all of them; all if there are no more."""
    count = min(count, len(samples))
    return [number * len(samples) // count for number in range(count)]


def score_rollouts(
    predictor: RolloutPredictor, samples: Samples, numbers: Sequence[int], *, windows: bool = False
) -> dict[str, Tensor]:
    """Roll out from each start to the end of its window, and score every frame.

    Args:
        predictor: Of the channels of the samples.
        samples: Their window has at least the predictor's history, and as its horizon the frames to
            predict. With a longer history predictors of less begin at the same frames as others.
        numbers: Samples to start from, such as ``spread_starts`` gives.
        windows: Whether to score every rollout as a whole too (``measures.window_measures``).

    Returns:
        ``terms`` (start, lead, k) of ``LeadTimes`` and ``horizon_terms`` (start, k) of
        ``Horizons``; ``trajectory`` and first ``frame`` of each start's window; ``stable``: frames
        of each start before the first bad one; ``diverged``: the lead time, counted from 1, at
        which it diverged, 0: never; ``curves`` (lead, entry) and ``summary`` (entry), the
        values of both measures; with ``windows`` also ``rollout/<measure>`` (start, k), NaN where
        a rollout is not finite.
    """
    measure = LeadTimes(spec=predictor.spec, normalizer=predictor.normalizer)
    starts, steps = [samples.locate(number) for number in numbers], samples.window.horizon
    climates = {
        index: climate_of(samples.trajectories[index], measure.scales)
        for index in sorted({index for index, _ in starts})
    }
    whole = {}
    if windows:
        whole = window_measures(predictor.spec, steps, mean_window(_windows(samples, starts)))
    rows: list[Tensor] = []
    window_rows: dict[str, list[Tensor]] = {name: [] for name in whole}
    runs = ((start, steps) for start in starts)
    for (index, _), frames in zip(starts, rolled_out(predictor, samples, runs), strict=True):
        # Persistence knows no more of a gap than its mean.
        last = torch.where(frames.last.isnan(), climates[index].mean.to(frames.last), frames.last)
        rows.append(measure.terms(replace(frames, last=last), climates[index]).cpu())
        for name, own in whole.items():
            window_rows[name].append(own.terms(frames).cpu())
    terms, horizons = torch.stack(rows), Horizons()
    horizon_terms = horizons.terms(measure, terms, [climates[index] for index, _ in starts])
    lasted = horizon_terms[:, -2].long()
    return {
        "terms": terms,
        "horizon_terms": horizon_terms,
        "trajectory": torch.tensor([index for index, _ in starts]),
        "frame": torch.tensor([frame for _, frame in starts]),
        "stable": horizon_terms[:, 1].long(),
        "diverged": torch.where(lasted < steps, lasted + 1, 0),
        "curves": measure.values(terms.sum(0)),
        "summary": horizons.values(horizon_terms.sum(0)),
        **{name: torch.cat(found) for name, found in window_rows.items()},
    }


def _windows(samples: Samples, starts: Sequence[Start]) -> Iterator[Tensor]:
    """The true frames of each window, zero where not known, (1, t, y, x, c)."""
    history, steps = samples.window.history, samples.window.horizon
    for start in starts:
        truth, known = read_frames(samples, [start], history, steps, truth=True)
        yield torch.where(known[:, :, None], truth, 0.0).movedim(2, -1)


def longest_free_run(samples: Samples) -> int:
    """Frames of the longest run that the samples allow."""
    return max((len(piece) for piece in sequences(samples)), default=0)


def score_free_runs(
    predictor: RolloutPredictor | Replay, samples: Samples, frames: int, most: int = 0
) -> dict[str, Tensor]:
    """Run from the start of every stretch of the samples, and compare the statistics.

    Args:
        predictor: Of the channels of the samples.
        samples: Their window has at least the predictor's history.
        frames: Most frames of a run; it ends with its stretch.
        most: Runs in all, if every stretch has one: long stretches have several.

    Returns:
        ``terms`` (run, k) of ``Statistics``, and ``sampling`` (run, k), those of the true flow
        against itself; ``trajectory``, first predicted ``frame`` and length ``frames`` of each run;
        ``run``, the one that pictures are of, and these as ``shown/<name>``.
    """
    runs = _free_run_starts(samples, frames, most)
    measure = Statistics(spec=predictor.spec, normalizer=predictor.normalizer)
    terms: list[Tensor] = []
    sampling: list[Tensor] = []
    pictures: dict[str, Tensor] = {}
    shown = len(runs) // 2
    for flow in rolled_out(predictor, samples, runs):
        flow = always_fluid(flow) if predictor.spec.moving else flow
        if len(terms) == shown:
            pictures = measure.pictures(flow)
        terms.append(measure.terms(flow))
        sampling.append(measure.sampling_terms(flow))
    return {
        "terms": torch.stack(terms),
        "sampling": torch.stack(sampling),
        "trajectory": torch.tensor([index for (index, _), _ in runs]),
        "frame": torch.tensor([frame + samples.window.history for (_, frame), _ in runs]),
        "frames": torch.tensor([count for _, count in runs]),
        "run": torch.tensor(shown),
        **{f"shown/{name}": value for name, value in pictures.items()},
    }


def always_fluid(frames: Frames) -> Frames:
    """The frames without the points that a moving body covers at some time.

    A run in another phase has its body elsewhere, and values inside a body mean nothing.
    """
    known = frames.known.all(0)
    return replace(frames, known=known.expand_as(frames.known)) if bool(known.any()) else frames


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


def rolled_out(
    predictor: RolloutPredictor | Replay, samples: Samples, runs: Iterable[tuple[Start, int]]
) -> Iterator[Frames]:
    """Prediction and truth of rollouts of some frames from each start, in their order.

    Predictions are NaN from where a rollout is not finite, ``last`` where that frame is not known.
    """
    needed = 1 if isinstance(predictor, Replay) else predictor.history
    if samples.window.history < needed or samples.window.horizon < 1:
        raise ValueError(
            f"expected windows of at least {needed} input frames and one to predict, found "
            f"{samples.window.history} and {samples.window.horizon}"
        )
    if samples.spec.channels != predictor.spec.channels:
        raise ValueError(
            f"expected the channels {list(predictor.spec.channels)} of the predictor, found "
            f"{list(samples.spec.channels)}"
        )
    history = samples.window.history
    for count, group in itertools.groupby(runs, lambda run: run[1]):
        starts = [start for start, _ in group]
        values = count * len(samples.spec.channels) * math.prod(samples.spec.grid.shape)
        together = max(1, min(16, _MOST_VALUES // values))
        for batch in (starts[i : i + together] for i in range(0, len(starts), together)):
            truth, known = read_frames(samples, batch, history, count, truth=True)
            newest, seen = read_frames(samples, batch, history - 1, 1)
            last = torch.where(seen[:, :, None], newest, math.nan)
            with collecting():  # notes on the input are not needed: the error is measured
                predicted = _predicted(predictor, samples, batch, truth)
            for n, (index, first) in enumerate(batch):
                trajectory, begin = samples.trajectories[index], first + history
                yield Frames(
                    prediction=predicted[n],
                    truth=torch.where(known[n, :, None], truth[n], 0.0),
                    last=last[n].expand_as(truth[n]),
                    known=known[n],
                    body=body_at(trajectory, torch.arange(begin, begin + count), truth.device),
                    spec=own_spec(samples.spec, trajectory),
                    parameters=trajectory.parameters,
                )


def _predicted(
    predictor: RolloutPredictor | Replay,
    samples: Samples,
    starts: Sequence[Start],
    truth: Float[Tensor, "b t c y x"],
) -> Float[Tensor, "b t c y x"]:
    """Predictions of the true frames, NaN from where a run is not finite; each alone, if one is."""
    if isinstance(predictor, Replay):
        begin, size = samples.window.history, truth.shape[1]
        runs = (predictor.flows[i].read(slice(n + begin, n + begin + size)) for i, n in starts)
        return torch.stack(list(runs)).to(truth)
    predicted, done = torch.full_like(truth, math.nan), 0
    fields, parameters, known = rollout_input(predictor, samples, starts)
    try:
        for block in predictor.iterate(fields, truth.shape[1], parameters, known):
            # A prediction may also leave the range of its type on the way to physical units.
            if not bool(block.isfinite().all()):
                raise FloatingPointError("expected finite predictions, found NaN or infinity")
            predicted[:, done : done + block.shape[1]] = block
            done += block.shape[1]
    except FloatingPointError:
        if len(starts) > 1:
            pairs = zip(starts, truth.split(1), strict=True)
            return torch.cat([_predicted(predictor, samples, [s], t) for s, t in pairs])
    return predicted


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
