"""Paired tests of one model against every other, on the headline error of one data set.

The ratio of NMSE is that of the other model over that of the tested one, each the mean over its
seeds: above 1 the tested model is better. Its interval is a bootstrap: 10,000 times the same test
flows for both models and, for each model, as many of its seeds as it has.

The p-value is of the difference ``D`` of the two models' squared errors, summed over the test
flows, each error the mean over seeds. All flows have the same energy in both models, so ``D`` is
the difference of their NMSE up to a factor. The p-value is two-sided and the larger of two:

- Flows. A permutation test by sign flips: if no model is better, the difference ``d`` of each flow
  is as likely to have the other sign. p is the share of sign choices with a sum of at least
  ``|D|``: of all of them with up to 16 flows, else (1 + count) / (1 + 20,000) of random ones. The
  test is exact for independent flows of any size whose differences are symmetric around zero.
- Flows and seeds, where a model has several seeds: Student's t of ``D`` over the root of

      n / (n - 1) sum (d - D m / sum m)^2  +  sum over models of var(error of a seed) / seeds

  with ``m`` the mean error of both models on a flow. The first term is the variance of the ratio
  over ``n`` flows. A good or bad seed changes all flows together: only the second term has it. The
  degrees of freedom are one less than the fewest seeds, which is conservative.

So with several seeds the p-value covers other flows and other training runs. With one seed it
covers other flows only: the same two trained models would differ on them, but other seeds of the
same two models may not. A model that has one run, such as a predictor without training, counts as
it is.

The p-values of one data set are a family, corrected by Holm's step-down method (S. Holm, A simple
sequentially rejective multiple test procedure, Scand. J. Statist. 6, 1979): the chance of a single
false finding below 0.05 is at most 5 %. ``tests/comparison/test_paired_level.py`` measures it.

Flows of one condition (``group_by``) count as one. With two to nine of them there are no tests. Of
a single recording, blocks in time of three correlation times take the place of flows: tests are
about other times of it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.comparison.plan import Job
from pibert.comparison.rows import (
    HEADLINE,
    LEVEL,
    RESAMPLES,
    as_number,
    independent_units,
    measures_of,
    row_weights,
)
from pibert.evaluation.intervals import ends, holding, resampled_values
from pibert.evaluation.pointwise import Pointwise
from pibert.evaluation.scores import Scores

BATCHES = 10
"""Groups of ``RESAMPLES`` resamples for the interval of a ratio."""
MEASURE = f"{HEADLINE[0]}/pointwise"
MOST_EXACT = 16
"""Units up to which all choices of signs are tried."""
FLIPS = 20_000
"""Random choices of signs with more units."""
ROUND_OFF = 1e-9
"""By how much of itself a sum may be smaller and still count as equal."""


def paired_tests(
    scores: Mapping[Job, Scores],
    tested: str | None,
    planned: Mapping[str, int] | None = None,
) -> list[dict[str, Any]]:
    """Return a test against every other model; none without intervals or without ``tested``.

    Each has ``model`` (the tested one), ``against``, ``ratio`` with its 95 % interval ``low`` and
    ``high``, ``p``, and ``p_holm``, corrected for the number of tests. They are None for a model
    without some of its ``planned`` seeds or with one that has no finite error; where that is the
    tested model there are no tests.
    """
    runs: dict[str, list[Scores]] = {}
    for job, scored in scores.items():
        runs.setdefault(job.candidate, []).append(scored)
    if tested is None or tested not in runs or len(runs) < 2:
        return []
    units = independent_units(next(iter(scores.values())))
    if units is None:
        return []
    values, resampled = _errors(runs)
    if not resampled:
        return []
    complete = {
        model
        for model, own in runs.items()
        if len(own) >= (planned or {}).get(model, 0) and math.isfinite(values[model])
    }
    if tested not in complete:
        return []
    squares = {model: _squared_errors(own, units) for model, own in runs.items()}
    tests: list[dict[str, Any]] = []
    for model in (model for model in runs if model != tested):
        if model not in complete:
            unknown = dict.fromkeys(("ratio", "low", "high", "p"))
            tests.append({"model": tested, "against": model, **unknown})
            continue
        value, ratios = values[model] / values[tested], resampled[model] / resampled[tested]
        low, high = holding(value[None], *ends(ratios[:, None], LEVEL))
        span = {"ratio": as_number(value), "low": as_number(low), "high": as_number(high)}
        p = p_value(squares[tested], squares[model])
        tests.append({"model": tested, "against": model, **span, "p": p})
    corrected = holm([test["p"] for test in tests])
    return [{**test, "p_holm": p} for test, p in zip(tests, corrected, strict=True)]


def _squared_errors(runs: Sequence[Scores], units: Tensor) -> Tensor:
    """Return the squared error of every seed on every unit, (seed, unit)."""
    measure = measures_of(runs[0])[MEASURE]
    assert isinstance(measure, Pointwise)
    found = []
    for run in runs:
        rows = run.arrays[f"terms/{MEASURE}"]
        sums = rows.new_zeros(int(units.max()) + 1, rows.shape[1]).index_add(0, units, rows)
        found.append(measure.squared_error(sums))
    return torch.stack(found)


def _errors(runs: Mapping[str, Sequence[Scores]]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the headline error of each model and its resampled values; none if too few data."""
    first = next(iter(runs.values()))[0]
    measure = measures_of(first)[MEASURE]
    index = [(entry.metric, entry.component) for entry in measure.entries].index(HEADLINE[1:])
    terms = {model: [run.arrays[f"terms/{MEASURE}"] for run in own] for model, own in runs.items()}
    values = {
        model: torch.stack([measure.values(rows.sum(0))[index] for rows in own]).mean()
        for model, own in terms.items()
    }
    resampled: dict[str, list[Tensor]] = {model: [] for model in runs}
    for batch in range(BATCHES):
        weights, *_ = row_weights(first, seed=batch)
        if weights is None:
            return values, {}
        generator = torch.Generator().manual_seed(batch)
        for model, own in terms.items():
            seeds = [resampled_values(measure, rows, weights)[:, index] for rows in own]
            chosen = torch.randint(len(seeds), (len(seeds), RESAMPLES), generator=generator)
            resampled[model].append(torch.stack(seeds).gather(0, chosen).mean(0))
    return values, {model: torch.cat(batches) for model, batches in resampled.items()}


def p_value(
    tested: Float[Tensor, "seed unit"], other: Float[Tensor, "others_seed unit"]
) -> float | None:
    """Return the two-sided p-value that two models have the same error; None if one has none.

    Args:
        tested: Squared errors of a model on each independent unit, a row for each seed.
        other: Those of another model on the same units, up to the same factor.
    """
    mine, theirs = tested.double().mean(0), other.double().mean(0)
    if not bool((mine + theirs).isfinite().all()):
        return None
    p = _of_flips(theirs - mine)
    return max(p, _of_seeds(tested.double(), other.double()))


def _of_flips(differences: Tensor) -> float:
    """Return the share of sign choices with a sum as far from zero as that of the differences."""
    count = len(differences)
    if count <= MOST_EXACT:  # of two opposite choices one is enough
        numbers = torch.arange(2 ** (count - 1))[:, None]
        signs = 1 - 2 * (numbers.bitwise_right_shift(torch.arange(count)) & 1)
    else:
        generator = torch.Generator().manual_seed(0)
        signs = 1 - 2 * torch.randint(2, (FLIPS, count), generator=generator, dtype=torch.int8)
    least = (1 - ROUND_OFF) * differences.sum().abs()
    fewer = sum(
        int(((part.double() @ differences).abs() >= least).sum()) for part in signs.split(1024)
    )
    return fewer / len(signs) if count <= MOST_EXACT else (1 + fewer) / (1 + FLIPS)


def _of_seeds(tested: Tensor, other: Tensor) -> float:
    """Return the p-value over flows and seeds; 0 if no model has several seeds."""
    several = [errors for errors in (tested, other) if len(errors) > 1]
    if not several:
        return 0.0
    mine, theirs = tested.mean(0), other.mean(0)
    total, mean = (theirs - mine).sum(), (theirs + mine) / 2
    if total == 0:
        return 1.0
    units = len(mine)
    rest = theirs - mine - mean * (total / mean.sum())
    variance = rest.square().sum() * units / (units - 1)
    variance += sum(errors.sum(1).var() / len(errors) for errors in several)
    return student(float(total.abs() / variance.sqrt()), min(map(len, several)) - 1)


def student(t: float, freedom: int) -> float:
    """Return the probability of Student's t beyond ``t`` on both sides.

    Finite sums for a whole number of degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    if math.isinf(t):
        return 0.0
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for n in range(freedom // 2):
        total += term
        term *= cosine**2 * (2 * n + 1 + odd) / (2 * n + 2 + odd)
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1 - inside))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values corrected by Holm's method; unknown ones stay so and do not count."""
    known = {n: p for n, p in enumerate(p_values) if p is not None and not math.isnan(p)}
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, number in enumerate(sorted(known, key=known.__getitem__)):
        largest = max(largest, min(1.0, (len(known) - rank) * known[number]))
        corrected[number] = largest
    return corrected
