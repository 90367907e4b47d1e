"""Calibration: errors of a model and scores of its input windows, measured on held-out flows.

A quarter of the trajectories fit the difficulty map and the reference of the out-of-distribution
warning. The others calibrate: scores of rollouts from several starts, kept per trajectory, channel
and lead time. Intervals hold for a value at a random known point of a random window of a new
trajectory that is exchangeable with these; not for all points at once.

``units`` states what counts as independent. With ``trajectories`` nothing is assumed within one,
and K of them give levels up to K / (K + 1). With ``windows`` each start counts as independent: the
levels are right on average if trajectories are alike, but without a guarantee for a new one.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.fields import FieldSpec
from pibert.inference import conformal
from pibert.inference.conformal import (
    STARTS,
    Units,
    choose_starts,
    choose_units,
    count_units,
    refuse_one,
    split_groups,
    weigh,
)
from pibert.inference.difficulty import Difficulty, fit_difficulty
from pibert.inference.ood import (
    FeatureStatistics,
    OODDetector,
    Surprisal,
    score_names,
    scored_spec,
    window_features,
    window_scores,
)
from pibert.inference.predictor import Predictor
from pibert.inference.windows import (
    RecordedWindows,
    forecast,
    read_windows,
    windows_by_trajectory,
)

LEVELS = (0.5, 0.8, 0.9, 0.95)
ATOMS = 512
"""Quantiles that are kept of the scores of a trajectory, channel and lead time."""
_TRAINING_WINDOWS = 2000
_TOGETHER = 64
"""Windows that are read together."""


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """How to calibrate."""

    difficulty: str = "residual"
    leads: int = 8
    """Lead times with intervals of their own, in frames."""
    starts: int | None = None
    """Windows of each trajectory, at most; None: ``STARTS``, and more where trajectories are too
    few to be the units (``choose_starts``). A calibration states the number that was taken."""
    units: Units | None = None
    """What counts as independent; None: trajectories if there are enough."""
    seed: int = 0
    """Of the choice which trajectories fit and which calibrate."""
    group_by: tuple[str, ...] = ()
    """Parameters: trajectories that agree in all of them repeat a condition, and count as one."""

    def __post_init__(self) -> None:
        if self.leads < 1 or (self.starts is not None and self.starts < 1):
            raise ValueError(
                f"expected at least 1 lead time and start, found {self.leads} and {self.starts}"
            )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Calibration:
    """All that is needed for prediction intervals and the out-of-distribution warning."""

    weights_sha256: str
    """Of the model, or of all members of an ensemble."""
    settings: CalibrationSettings
    units: Units
    difficulty: Difficulty
    scores: Float[Tensor, "group lead c m"]
    """Atoms of the scores of each trajectory that calibrated."""
    windows: Int[Tensor, " group"]
    """Starts that these are from."""
    statistics: FeatureStatistics
    detector: OODDetector
    guide_losses: Mapping[str, float]
    same_flows: bool = False
    """Whether the flows that calibrated trained the model too, with other stretches of time."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "detector", replace(self.detector, remedy=self.remedy))

    @property
    def count(self) -> int:
        """Exchangeable units."""
        return count_units(self.units, self.windows)

    @property
    def highest_level(self) -> float:
        return conformal.highest_level(self.count)

    @property
    def leads(self) -> int:
        return self.scores.shape[1]

    def __repr__(self) -> str:
        return (
            f"Calibration({self.leads} leads, {self.count} independent {self.units}, "
            f"levels up to {self.highest_level:.3g})"
        )

    def quantiles(self, level: float) -> Float[Tensor, "lead c"]:
        """Half-widths of intervals, in scales."""
        wanted = conformal.corrected_level(level, self.count, self.remedy)
        return conformal.grouped_quantile(self.scores, weigh(self.units, self.windows), wanted)

    def left_out(self, level: float) -> Float[Tensor, "group lead c"] | None:
        """Coverage of each trajectory by intervals from the others; None if they are too few."""
        counts = torch.full_like(self.windows, len(self.windows) - 1)
        if self.units == "windows":
            counts = self.windows.sum() - self.windows
        if len(self.windows) < 2 or level > conformal.highest_level(int(counts.min())):
            return None
        return conformal.left_out_coverage(
            self.scores, weigh(self.units, self.windows), level, counts
        )

    @property
    def remedy(self) -> str:
        """How to get more units."""
        if self.units == "trajectories":
            return conformal.COUNT_WINDOWS
        starts = self.settings.starts or STARTS
        return f"{conformal.MORE_FLOWS} or windows of each trajectory (--starts, here {starts})"

    def assumption(self) -> str:
        """What the levels rest on, in one sentence."""
        k, n = len(self.windows), int(self.windows.sum())
        if self.same_flows:
            return (
                f"{n} windows of {k} {'flow' if k == 1 else 'flows'} that also trained the model, "
                f"at other times; {self.units} count as independent: the levels hold for later "
                "times of these flows at best, not for other flows"
            )
        one, all_ = "trajectory", "trajectories"
        if self.settings.group_by:
            one, all_ = "condition", "conditions"
        if self.units == "trajectories":
            return (
                f"{k} {all_}, assumed to be exchangeable with new ones; nothing is assumed within "
                f"a {one}; levels up to {math.floor(1000 * self.highest_level) / 1000:g}"
            )
        return (
            f"{n} windows of {k} {one if k == 1 else all_}, which count as independent although "
            f"windows of one {one} are not: the levels hold on average for new {all_} like these, "
            "without a guarantee for each"
        )


def calibrate(
    predictor: Predictor,
    training: Samples | None,
    held_out: Samples,
    settings: CalibrationSettings | None = None,
) -> Calibration:
    """Measure errors and scores of windows on held-out flows.

    Args:
        predictor: Read from files; may be an ``Ensemble``.
        training: Windows of the training split, for the statistics of typical windows; None: those
            of the held-out trajectories that fit.
        held_out: Windows of the calibration split: ``history`` frames of the predictor, and as
            horizon the lead times of the settings.
        settings: How to calibrate.
    """
    settings = settings or CalibrationSettings()
    same_flows = training is not None and bool(_sources(training) & _sources(held_out))
    units = settings.units or choose_units(held_out, same_flows, settings.group_by)
    starts = settings.starts or choose_starts(held_out, units, settings.group_by)
    groups = windows_by_trajectory(held_out, starts, settings.group_by)
    fitting, calibrating = split_groups(groups, settings.seed)
    sizes = torch.tensor([len(numbers) for numbers in calibrating])
    refuse_one(units, sizes)
    spec = scored_spec(predictor)
    fit_windows = [read_windows(held_out, numbers, spec) for numbers in fitting]
    difficulty, losses = fit_difficulty(
        settings.difficulty, [forecast(predictor, windows) for windows in fit_windows], spec
    )
    typical = fit_windows if training is None else _spread_windows(training, spec)
    statistics = FeatureStatistics.of(
        torch.cat([window_features(windows, spec, predictor.normalizer) for windows in typical])
    )
    surprisal = Surprisal.of(
        torch.cat([score_windows(predictor, windows, statistics) for windows in fit_windows])
    )
    atoms, surprisals, unknown = [], [], []
    for numbers in calibrating:
        windows = read_windows(held_out, numbers, spec)
        rollouts = forecast(predictor, windows)
        atoms.append(_atoms(rollouts.errors() / difficulty.scales(rollouts, spec)))
        largest = surprisal.of_scores(score_windows(predictor, windows, statistics)).amax(1)
        surprisals.append(conformal.summarise(largest, 64))
        unknown.append(float(windows.unknown_share(spec.grid).max()))
    detector = OODDetector(
        score_names(spec, consistency=predictor.has_head("consistency")),
        surprisal,
        torch.stack(surprisals),
        weigh(units, sizes),
        count_units(units, sizes),
        max(unknown),
    )
    return Calibration(
        weights_sha256=predictor.weights_sha256,
        settings=replace(settings, starts=starts),
        units=units,
        difficulty=difficulty,
        scores=torch.stack(atoms),
        windows=sizes,
        statistics=statistics,
        detector=detector,
        guide_losses=losses,
        same_flows=same_flows,
    )


def _sources(samples: Samples) -> set[int]:
    """The trajectories that windows are from."""
    return {id(samples.trajectories[samples.locate(n)[0]]) for n in range(len(samples))}


def score_windows(
    predictor: Predictor, windows: RecordedWindows, statistics: FeatureStatistics
) -> Float[Tensor, "b score"]:
    """Scores of the out-of-distribution warning."""
    consistency = None
    if predictor.has_head("consistency"):
        given = predictor.prepare(windows.fields, windows.parameters, windows.known)
        consistency = predictor.consistency_of(given).cpu()
    spec = scored_spec(predictor)
    return window_scores(windows, consistency, spec, predictor.normalizer, statistics)


def _spread_windows(training: Samples, spec: FieldSpec) -> Iterator[RecordedWindows]:
    """Windows of the training split, evenly spread."""
    count = min(_TRAINING_WINDOWS, len(training))
    numbers = [n * len(training) // count for n in range(count)]
    for start in range(0, count, _TOGETHER):
        yield read_windows(training, numbers[start : start + _TOGETHER], spec)


def _atoms(scores: Float[Tensor, "b lead c y x"]) -> Float[Tensor, "lead c m"]:
    """Upper quantiles of the scores of a trajectory, of every lead time and channel."""
    found = []
    for lead in scores.movedim(1, 0):
        for values in lead.movedim(1, 0):
            known = values[~values.isnan()]
            if not len(known):
                raise ValueError(
                    "expected known points in every trajectory and at every lead time to "
                    "calibrate on, found none in one; leave out trajectories without any"
                )
            found.append(conformal.summarise(known, ATOMS))
    return torch.stack(found).unflatten(0, (scores.shape[1], -1)).float()
