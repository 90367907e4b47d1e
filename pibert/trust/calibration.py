"""Calibration: what held-out flows say about the errors of a model and about odd windows.

The flows that calibrate are those that neither training nor selection saw. Some of their
trajectories (a quarter) fit what needs fitting: the difficulty map, and the reference of the alarm.
The others calibrate: scores of rollouts from several starts, kept per trajectory, channel and lead
time. Bars hold for a value at a random known point of a random window of a new trajectory that is
exchangeable with these; not for all points at once.

What counts as independent is ``units``. With ``trajectories`` nothing is assumed of what happens
within one, and K of them give levels up to K / (K + 1). With ``windows`` each start counts as if it
were independent: the quantile of all scores, right on average where trajectories are alike, but
without a guarantee for a new one; the spread over trajectories tells how far it may be off.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.fields import FieldSpec
from pibert.trust import conformal
from pibert.trust.alarm import Surprise, Watch, largest_surprises
from pibert.trust.difficulty import Difficulty, fit_difficulty
from pibert.trust.ensemble import identity
from pibert.trust.forecasts import Windows, forecast, read_windows, windows_by_trajectory
from pibert.trust.groups import (
    FITTING,
    STARTS,
    Units,
    choose_starts,
    choose_units,
    count_units,
    part_groups,
    weigh,
)
from pibert.trust.oddity import (
    Looks,
    Typical,
    part_names,
    part_scores,
    watched_spec,
    window_features,
)

LEVELS = (0.5, 0.8, 0.9, 0.95)
ATOMS = 512
"""Quantiles that are kept of the scores of a trajectory, channel and lead time."""
_TRAINING_WINDOWS = 2000
_TOGETHER = 64
"""Windows that are looked at together."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to calibrate."""

    difficulty: str = "residual"
    leads: int = 8
    """Lead times that get bars of their own, in frames."""
    starts: int | None = None
    """Windows of each trajectory, at most; None: ``STARTS``, and more where trajectories are too
    few to be the units (``choose_starts``). A calibration states the number that was taken."""
    units: Units | None = None
    """What counts as independent; None: trajectories where there are enough."""
    seed: int = 0
    """Of the choice which trajectories fit and which calibrate."""
    group_by: tuple[str, ...] = ()
    """Parameters: trajectories that agree in all of them repeat a condition, and count as one."""

    def __post_init__(self) -> None:
        if self.leads < 1 or (self.starts is not None and self.starts < 1):
            raise ValueError(
                f"expected at least 1 lead time and start, found {self.leads} and {self.starts}"
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class Calibration:
    """All that is needed for bars and alarms."""

    weights_sha256: str
    """Of the model, or of all members of an ensemble."""
    settings: Settings
    units: Units
    difficulty: Difficulty
    scores: Float[Tensor, "group lead c m"]
    """Atoms of the scores of each trajectory that calibrated."""
    windows: Int[Tensor, " group"]
    """Starts that these are from."""
    typical: Typical
    watch: Watch
    guide_losses: Mapping[str, float]
    same_flows: bool = False
    """Whether the flows that calibrated trained the model too, with other stretches of time."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "watch", replace(self.watch, remedy=self.remedy))

    @property
    def count(self) -> int:
        """Exchangeable units."""
        return count_units(self.units, self.windows)

    @property
    def group_weights(self) -> Float[Tensor, " group"]:
        return weigh(self.units, self.windows)

    @property
    def highest_level(self) -> float:
        return conformal.highest_level(self.count)

    @property
    def leads(self) -> int:
        return self.scores.shape[1]

    def quantiles(self, level: float) -> Float[Tensor, "lead c"]:
        """Half-widths of bars, in scales."""
        wanted = conformal.corrected_level(level, self.count, self.remedy)
        return conformal.grouped_quantile(self.scores, self.group_weights, wanted)

    def left_out(self, level: float) -> Float[Tensor, "group lead c"] | None:
        """Coverage of each trajectory by bars from the others; None where they do not give it."""
        left = self.windows.sum() - self.windows if self.units == "windows" else None
        counts = torch.full_like(self.windows, len(self.windows) - 1) if left is None else left
        if len(self.windows) < 2 or level > conformal.highest_level(int(counts.min())):
            return None
        return conformal.left_out_coverage(self.scores, self.group_weights, level, counts)

    @property
    def remedy(self) -> str:
        """How there would be more units."""
        if self.units == "trajectories":
            return "calibrate on more trajectories, or count windows: --units windows"
        starts = self.settings.starts or STARTS
        # With fewer windows than were asked for, there are no more. A trajectory that calibrates
        # alone may be the only one: then some of its windows fit.
        most = int(self.windows.max())
        parted = len(self.windows) == 1 and most == starts - max(1, round(FITTING * starts))
        if most < starts and not parted:
            return conformal.MORE_FLOWS
        return f"{conformal.MORE_FLOWS} or windows of each trajectory (--starts, here {starts})"

    def assumption(self) -> str:
        """What the levels rest on, in a sentence."""
        k, n = len(self.windows), int(self.windows.sum())
        if self.same_flows:
            return (
                f"{n} windows of {k} {'flow' if k == 1 else 'flows'} that trained the model with "
                f"other stretches of time, {self.units} taken for independent: right for such "
                "stretches at best, and nothing is said of other flows"
            )
        one, all_ = "trajectory", "trajectories"
        if self.settings.group_by:
            one, all_ = "condition", "conditions"
        if self.units == "trajectories":
            return (
                f"{k} {all_} exchangeable with new ones; nothing is assumed within a "
                f"{one}; levels up to {math.floor(1000 * self.highest_level) / 1000:g}"
            )
        return (
            f"{n} windows of {k} {one if k == 1 else all_} taken for independent, which windows of "
            f"one {one} are not: right on average where new {all_} are like these, no guarantee "
            "for each"
        )


def calibrate(
    predictor: Any, training: Samples | None, held_out: Samples, settings: Settings | None = None
) -> Calibration:
    """Measure errors and oddity on held-out flows.

    Args:
        predictor: A ``Predictor`` or an ``Ensemble``, read from files.
        training: Windows of the training part, for what typical windows look like; None where they
            are not at hand: then the held-out trajectories that fit say it.
        held_out: Windows of the calibration part: ``history`` frames of the predictor, and as
            horizon the lead times of the settings.
        settings: How to calibrate.
    """
    settings = settings or Settings()
    same_flows = training is not None and bool(_homes(training) & _homes(held_out))
    units = settings.units or choose_units(held_out, same_flows, settings.group_by)
    starts = settings.starts or choose_starts(held_out, units, settings.group_by)
    by_unit = windows_by_trajectory(held_out, starts, settings.group_by)
    fitting, calibrating = part_groups(by_unit, settings.seed)
    spec = watched_spec(predictor)
    fit_windows = [read_windows(held_out, own, spec) for own in fitting]
    difficulty, losses = fit_difficulty(
        settings.difficulty, [forecast(predictor, own) for own in fit_windows], spec
    )
    looked_at = fit_windows if training is None else _spread(training, spec)
    typical = _fit_typical(predictor, looked_at)
    surprise = Surprise.of(torch.cat([look_at(predictor, own, typical) for own in fit_windows]))
    atoms, odd, windows, unknown = [], [], [], []
    for own in calibrating:
        given = read_windows(held_out, own, spec)
        made = forecast(predictor, given)
        atoms.append(_atoms(made.errors() / difficulty.scales(made, spec)))
        odd.append(look_at(predictor, given, typical))
        windows.append(len(own))
        unknown.append(float(given.unknown(spec.grid).max()))
    sizes = torch.tensor(windows)
    largest = [conformal.summarise(s, 64) for s in largest_surprises(surprise, odd)]
    watch = Watch(
        part_names(spec, consistency=judges_consistency(predictor)),
        surprise,
        torch.stack(largest),
        weigh(units, sizes),
        count_units(units, sizes),
        max(unknown),
    )
    return Calibration(
        weights_sha256=identity(predictor),
        settings=replace(settings, starts=starts),
        units=units,
        difficulty=difficulty,
        scores=torch.stack(atoms),
        windows=sizes,
        typical=typical,
        watch=watch,
        guide_losses=losses,
        same_flows=same_flows,
    )


def _homes(samples: Samples) -> set[int]:
    """The trajectories that windows are from, whatever the list they stand in."""
    return {id(samples.trajectories[samples.locate(n)[0]]) for n in range(len(samples))}


def judges_consistency(predictor: Any) -> bool:
    """Whether the equation consistency head was trained."""
    return bool(predictor.card.get("trained", {}).get("consistency", False))


def look_at(
    predictor: Any, given: Windows, typical: Typical, spec: FieldSpec | None = None
) -> Float[Tensor, "b part"]:
    """Scores of every part of the alarm, with the equations of a spec: ``watched_spec`` if none."""
    spec = spec or watched_spec(predictor)
    parts = []
    for start in range(0, len(given.fields), _TOGETHER):
        some = slice(start, start + _TOGETHER)
        looks = _looks(predictor, given, some)
        parts.append(part_scores(looks, spec, predictor.normalizer, typical))
    return torch.cat(parts)


def _looks(predictor: Any, given: Windows, some: slice) -> Looks:
    fields, known = given.fields[some], given.known[some]
    consistency = None
    if judges_consistency(predictor):
        parameters = {name: values[some] for name, values in given.parameters.items()}
        consistency = predictor.consistency(fields, parameters, known)
    return Looks(
        fields=fields,
        seen=given.seen[some],
        parameters=given.encoded[some],
        consistency=consistency,
    )


def _spread(training: Samples, spec: FieldSpec) -> Iterator[Windows]:
    """Windows of the training part, evenly spread."""
    count = min(_TRAINING_WINDOWS, len(training))
    numbers = [place * len(training) // count for place in range(count)]
    for start in range(0, count, _TOGETHER):
        yield read_windows(training, numbers[start : start + _TOGETHER], spec)


def _fit_typical(predictor: Any, windows: Iterable[Windows]) -> Typical:
    features, spec = [], watched_spec(predictor)
    for given in windows:
        looks = Looks(
            fields=given.fields, seen=given.seen, parameters=given.encoded, consistency=None
        )
        features.append(window_features(looks, spec, predictor.normalizer))
    return Typical.of(torch.cat(features))


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
