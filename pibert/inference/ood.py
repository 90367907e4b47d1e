"""Out-of-distribution (OOD) warning for windows unlike the training data.

Scores of a window, the higher the more unusual:

    fields          Mahalanobis distance of its features from those of training windows
    extremes        the largest standardised value
    parameters      the largest standardised parameter, in size
    <term>          root mean square of a residual of the governing equations (logarithm), in
                    physical units; and ``<term> peak``, its largest value. The equations are those
                    of the data, or else of the model's option ``family``
    consistency     minus the logit of the equation consistency head, if that was trained

Features of each channel: mean, logarithm of the deviation, 1 % and 99 % quantile, roughness along x
and y (logarithm of the mean square difference of neighbours), change since the frame before, and
the difference of the means of right and left, upper and lower half; the correlations of channels;
the logarithms of the residuals; the parameters. An unknown parameter counts as the mean one.

Each score is converted to a surprisal: minus the logarithm of its p-value among reference windows,
continued beyond their upper tenth by an exponential tail. The largest surprisal of a window counts,
and its score is the reason given. Windows that neither training nor the reference saw convert it to
a conformal p-value. With trajectories as the units of the calibration, p <= a has a probability of
at most a for a window of a new trajectory of the same kind. If windows count as independent, false
alarms are more frequent on trajectories that differ: in simulations, 8 % instead of 5 % with ten
trajectories, 12 % with five, 22 % with two.

n calibration units give no p-value below 1 / (n + 1). If the accepted rate is below that, no window
is flagged, and a note reports it.

Unknown points change most scores, also of a normal window. A window with more unknown points than
any calibration window, by more than a negligible share, is tested only with scores that hidden
points cannot raise (``rises_with_gaps`` is False). Its p-value is then at least that of the same
window without gaps, so the rate holds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.fields import FieldSpec, Normalizer
from pibert.fields.equations import residual_sizes, terms_of
from pibert.inference.conformal import MORE_FLOWS, grouped_p_values
from pibert.inference.windows import Windows
from pibert.notes import Note

RATE = 0.05
"""Default rate of false alarms."""
NEGLIGIBLE = 0.002
"""Share of unknown points beyond those of the calibration that hardly changes the scores: a few
vectors of a field."""
TAIL = 0.1
"""Share of the reference beyond which the exponential tail begins."""
RIDGE = 1e-2
"""Added to the covariance, in units of each feature's variance: features that vary together in
training windows may differ by this much."""
_TOGETHER = 64
"""Windows that are scored together."""
_TINY = 1e-12
_LEAST = 1e-6
"""Of a standardised field; below it, single precision is noise."""


@dataclass(frozen=True, eq=False)
class OODResult:
    """Whether each window of a batch is out of distribution."""

    p: Any
    """(batch,): probability of a window as unusual among those of new trajectories like the
    training ones."""
    flagged: Any
    """(batch,): whether p is at most the accepted rate of false alarms."""
    rate: float
    """That rate."""
    reasons: tuple[str, ...]
    """The score with the largest surprisal of each window."""
    lowest_p: float
    """The least p that the calibration can give; above the rate, no window can be flagged."""
    limited: Any
    """(batch,): whether more is unknown than in the calibration, so that only some scores count."""
    unknown: Any
    """(batch,): share of unknown points."""
    most_unknown: float
    """Largest such share in the calibration."""
    notes: tuple[Note, ...] = ()
    """Of ``CalibratedPredictor.detect_ood``; those of a prediction are on the prediction."""


@dataclass(frozen=True, eq=False)
class Surprisal:
    """Scores of reference windows."""

    reference: Float[Tensor, "score n"]
    """In increasing order."""

    @classmethod
    def of(cls, scores: Float[Tensor, "n score"]) -> "Surprisal":
        return cls(scores.T.sort(dim=1).values.contiguous())

    def of_scores(self, scores: Float[Tensor, "b score"]) -> Float[Tensor, "b score"]:
        """Minus the logarithm of each score's p-value."""
        n = self.reference.shape[1]
        above = n - torch.searchsorted(self.reference, scores.T.contiguous())
        start = min(n - 1, int((1 - TAIL) * n))
        edge = self.reference[:, start, None]
        beyond = (self.reference[:, start:] - edge).mean(1, keepdim=True)
        spread = (edge - self.reference[:, n // 2, None]).abs()
        # If the upper tenth is nearly one value, its width is not a measure of what is unusual.
        step = beyond.maximum(0.1 * spread).maximum(0.01 * (1 + edge.abs()))
        share = (n - start + 1) / (n + 1)
        body = -torch.log((above + 1) / (n + 1))
        tail = torch.maximum(body, (scores.T - edge) / step - torch.log(torch.tensor(share)))
        return torch.where(scores.T > edge, tail, body).T


@dataclass(frozen=True, eq=False)
class OODDetector:
    """Flags windows by their largest surprisal."""

    names: tuple[str, ...]
    surprisal: Surprisal
    atoms: Float[Tensor, "group m"]
    """Largest surprisals of calibration windows, group by group."""
    weights: Float[Tensor, " group"]
    count: int
    """Exchangeable units among them."""
    most_unknown: float = 0.0
    """Largest share of unknown points of a calibration window."""
    remedy: str = MORE_FLOWS
    """How to get more units."""

    @property
    def lowest(self) -> float:
        """The least p-value that it can give."""
        return 1 / (self.count + 1)

    @property
    def _lowest_rounded(self) -> float:
        """Rounded up: a rate that is accepted."""
        return math.ceil(1000 * self.lowest) / 1000

    def check_rate(self, false_alarms: float | None) -> None:
        """Raise for an accepted rate of false alarms below the least p-value."""
        if false_alarms is not None and not self.lowest <= false_alarms < 1:
            raise ValueError(
                f"expected a rate of false alarms from {self._lowest_rounded:g}, the least that "
                f"{self.count} calibration units can resolve, to 1, found {false_alarms:g}"
            )

    def p_values(
        self, scores: Float[Tensor, "b score"], limited: Bool[Tensor, " b"] | None = None
    ) -> tuple[Float[Tensor, " b"], Int[Tensor, " b"]]:
        """The p-value of each window, and the index of its most surprising score.

        Args:
            scores: As ``window_scores`` gives them.
            limited: Windows of which only scores count that gaps cannot raise.
        """
        surprisals = self.surprisal.of_scores(scores)
        if limited is not None:
            misled = torch.tensor([rises_with_gaps(name) for name in self.names])
            surprisals = surprisals.masked_fill(limited[:, None] & misled, -torch.inf)
        largest, index = surprisals.max(1)
        return grouped_p_values(largest, self.atoms, self.weights, self.count), index

    def note(self) -> Note | None:
        """A note where no window can be flagged at the default rate."""
        if self.lowest <= RATE:
            return None
        return Note(
            "ood-unresolved",
            f"no input can be flagged as out of distribution: {self.count} calibration units give "
            f"p-values from {self.lowest:.3g} up, above the accepted rate of {RATE:g}",
            f"{self.remedy}, or accept a rate of {self._lowest_rounded:g} (--false-alarms)",
        )

    def detect(
        self,
        scores: Float[Tensor, "b score"],
        false_alarms: float | None = None,
        unknown: Float[Tensor, " b"] | None = None,
    ) -> OODResult:
        """Flag windows that are more unusual than an accepted share of normal ones.

        Args:
            scores: As ``window_scores`` gives them.
            false_alarms: That share; None: ``RATE``.
            unknown: Share of unknown points of each window; None: no unknown points.
        """
        self.check_rate(false_alarms)
        rate = RATE if false_alarms is None else false_alarms
        if unknown is None:
            unknown = torch.zeros(len(scores), dtype=torch.float64)
        limited = unknown > self.most_unknown + NEGLIGIBLE
        p, reasons = self.p_values(scores, limited)
        return OODResult(
            p=p,
            flagged=p <= rate,
            rate=rate,
            reasons=tuple(self.names[index] for index in reasons.tolist()),
            lowest_p=self.lowest,
            limited=limited,
            unknown=unknown,
            most_unknown=self.most_unknown,
        )


@dataclass(frozen=True, eq=False)
class FeatureStatistics:
    """Mean and whitening transform of the features of training windows."""

    mean: Float[Tensor, " k"]
    whitener: Float[Tensor, "k k"]
    """Features minus their mean times this have about unit covariance."""

    @classmethod
    def of(cls, features: Float[Tensor, "n k"]) -> "FeatureStatistics":
        mean = features.mean(0)
        centred = features - mean
        covariance = centred.T @ centred / max(1, len(features) - 1)
        variance = covariance.diagonal()
        # Otherwise any change of a feature that never varies would be infinitely unusual.
        least = (1e-4 * mean.abs()).square() + _LEAST**2
        covariance = covariance + torch.diag(RIDGE * variance + least)
        values, vectors = torch.linalg.eigh(covariance)
        return cls(mean, vectors / values.sqrt())

    def distance(self, features: Float[Tensor, "b k"]) -> Float[Tensor, " b"]:
        return torch.linalg.vector_norm((features - self.mean) @ self.whitener, dim=1)


def scored_spec(predictor: Any, names: Sequence[str] | None = None) -> FieldSpec:
    """The fields of a model, with the equations of its option ``family`` if its data state none.

    Args:
        predictor: A ``Predictor`` or an ``Ensemble``.
        names: Scores of an existing calibration; an older one may have none of equations.
    """
    spec = predictor.spec
    family = predictor.card.get("model", {}).get("config", {}).get("family")
    stated = replace(spec, family=spec.family or family)
    return spec if names is not None and not set(terms_of(stated)) <= set(names) else stated


def score_names(spec: FieldSpec, *, consistency: bool) -> tuple[str, ...]:
    """The names of the scores of a model's windows."""
    terms = [name for term in terms_of(spec) for name in (term, f"{term} peak")]
    names = ["fields", "extremes", *(["parameters"] if spec.parameters else []), *terms]
    return (*names, "consistency") if consistency else tuple(names)


def rises_with_gaps(score: str) -> bool:
    """Whether hidden points can raise a score: not if it is a largest value."""
    return score not in ("extremes", "parameters") and not score.endswith(" peak")


def window_scores(
    windows: Windows,
    consistency: Float[Tensor, " b"] | None,
    spec: FieldSpec,
    normalizer: Normalizer,
    statistics: FeatureStatistics,
) -> Float[Tensor, "b score"]:
    """The scores of ``score_names``, in that order.

    Args:
        windows: Each with a known point.
        consistency: Probability that each obeys its equations; None: no head was trained.
        spec: Of the fields, with the equations.
        normalizer: Of the model.
        statistics: Of training windows.
    """
    chunks = []
    for start in range(0, len(windows.fields), _TOGETHER):
        rows = slice(start, start + _TOGETHER)
        some = Windows(
            fields=windows.fields[rows], known=windows.known[rows], encoded=windows.encoded[rows]
        )
        columns = [statistics.distance(window_features(some, spec, normalizer))]
        columns.append(_standardised(some, normalizer).abs().nan_to_num(0.0).flatten(1).amax(1))
        if count := len(spec.parameters):
            columns.append(some.encoded[:, :count].double().abs().nan_to_num(0.0).amax(1))
        for level, peak in _equation_levels(some, spec):
            columns += [level, peak]
        chunks.append(torch.stack(columns, dim=1))
    scores = torch.cat(chunks)
    if consistency is None:
        return scores
    logits = torch.logit(consistency.double().clamp(1e-7, 1 - 1e-7))
    return torch.cat((scores, -logits[:, None]), dim=1)


def window_features(
    windows: Windows, spec: FieldSpec, normalizer: Normalizer
) -> Float[Tensor, "b k"]:
    """The features of each window that the module lists."""
    z = _standardised(windows, normalizer)  # (b, h, c, y, x), NaN where not seen
    fields = len(spec.channels) - len(spec.state)
    state = z[:, -1, fields:].flatten(2).nanmean(2)
    z = z[:, :, :fields]
    now = z[:, -1]
    flat = now.flatten(2)
    mean = flat.nanmean(2)
    fluctuation = flat - mean[..., None]
    deviation = fluctuation.square().nanmean(2).sqrt()
    ends = torch.nanquantile(flat, torch.tensor([0.01, 0.99], dtype=flat.dtype), dim=2)
    ny, nx = now.shape[-2:]
    features = [
        mean,
        torch.log(deviation + _LEAST),
        *ends,
        _log_mean_square(now.diff(dim=-1)),
        _log_mean_square(now.diff(dim=-2)),
        _mean(now[..., nx // 2 :]) - _mean(now[..., : nx // 2]),
        _mean(now[..., ny // 2 :, :]) - _mean(now[..., : ny // 2, :]),
    ]
    if z.shape[1] > 1:
        features.append(_log_mean_square(now - z[:, -2]))
    for first in range(now.shape[1]):
        for second in range(first):
            product = (fluctuation[:, first] * fluctuation[:, second]).nanmean(1)
            size = (deviation[:, first] * deviation[:, second]).clamp(min=_LEAST)
            features.append((product / size)[:, None])
    features += [level[:, None] for level, _ in _equation_levels(windows, spec)]
    features += [windows.encoded[:, : len(spec.parameters)].double(), state]
    return torch.cat(features, dim=1).nan_to_num(0.0)


def _standardised(windows: Windows, normalizer: Normalizer) -> Float[Tensor, "b h c y x"]:
    z = normalizer.apply(windows.fields.double())
    return torch.where(windows.seen[:, None, None], z, torch.nan)


def _equation_levels(windows: Windows, spec: FieldSpec) -> list[tuple[Tensor, Tensor]]:
    """Logarithms of root mean square and largest value of every residual."""
    if not terms_of(spec):
        return []
    levels = []
    for residual in residual_sizes(windows.fields, spec, windows.encoded, windows.seen).values():
        flat = residual.flatten(1)
        level = flat.square().nanmean(1).nan_to_num(0.0).sqrt()
        levels.append((torch.log(level + _TINY), torch.log(flat.nan_to_num(0.0).amax(1) + _TINY)))
    return levels


def _mean(values: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c"]:
    return values.flatten(2).nanmean(2).nan_to_num(0.0)


def _log_mean_square(values: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c"]:
    return torch.log(_mean(values.square()) + _LEAST**2)
