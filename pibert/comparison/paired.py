"""Paired tests of one model against every other, on the headline error of one data set.

The statistic is the ratio of NMSE, other model over tested model, each the mean over its seeds:
above 1 the tested model is better. Both models are resampled together: 10,000 times the same test
flows (or blocks in time, as for intervals) and, for each model, as many of its seeds as it has.

    p = 2 (1 + min(resamples with ratio <= 1, resamples with ratio >= 1)) / (1 + resamples)

The p-values of one data set are a family, corrected by Holm's step-down method (S. Holm, A simple
sequentially rejective multiple test procedure, Scand. J. Statist. 6, 1979): below 0.05 for every
model named different, the chance of a single false one among them is at most 5 %.

Ten flows or three seeds are few for a bootstrap: true p-values are then somewhat larger. With two
to nine flows there are no tests: blocks in time of so few say nothing about other flows. Of a
single recording, tests are about other times of it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pibert.comparison.plan import Job
from pibert.comparison.rows import HEADLINE, LEVEL, RESAMPLES, as_number, measures_of, row_weights
from pibert.evaluation.intervals import MOST_SILENT, ends, holding, resampled_values
from pibert.evaluation.scores import Scores

BATCHES = 10
"""Groups of ``RESAMPLES`` resamples: the smallest p-value is 2e-4, small enough for Holm."""
MEASURE = f"{HEADLINE[0]}/pointwise"


def paired_tests(scores: Mapping[Job, Scores], tested: str | None) -> list[dict[str, Any]]:
    """Return a test against every other model; none without intervals or without ``tested``.

    Each has ``model`` (the tested one), ``against``, ``ratio`` with its 95 % interval ``low`` and
    ``high``, ``p``, and ``p_holm``, corrected for the number of tests.
    """
    runs: dict[str, list[Scores]] = {}
    for job, scored in scores.items():
        runs.setdefault(job.candidate, []).append(scored)
    if tested is None or tested not in runs or len(runs) < 2:
        return []
    values, resampled = _errors(runs)
    if not resampled:
        return []
    tests: list[dict[str, Any]] = []
    for model in (model for model in runs if model != tested):
        value, ratios = values[model] / values[tested], resampled[model] / resampled[tested]
        low, high = holding(value[None], *ends(ratios[:, None], LEVEL))
        span = {"ratio": as_number(value), "low": as_number(low), "high": as_number(high)}
        tests.append({"model": tested, "against": model, **span, "p": p_value(ratios)})
    corrected = holm([test["p"] for test in tests])
    return [{**test, "p_holm": p} for test, p in zip(tests, corrected, strict=True)]


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
        weights, _, method = row_weights(first, seed=batch)
        few = method.startswith("blocks") and len(first.arrays["rows/trajectory"].unique()) > 1
        if weights is None or few:
            return values, {}
        generator = torch.Generator().manual_seed(batch)
        for model, own in terms.items():
            seeds = [resampled_values(measure, rows, weights)[:, index] for rows in own]
            chosen = torch.randint(len(seeds), (len(seeds), RESAMPLES), generator=generator)
            resampled[model].append(torch.stack(seeds).gather(0, chosen).mean(0))
    return values, {model: torch.cat(batches) for model, batches in resampled.items()}


def p_value(ratios: Tensor) -> float | None:
    """Return the two-sided p-value that the ratio is 1; None if too many resamples have none."""
    known = ratios[~ratios.isnan()]
    if len(known) < (1 - MOST_SILENT) * len(ratios):
        return None
    fewer = min(int((known <= 1).sum()), int((known >= 1).sum()))
    return min(1.0, 2 * (1 + fewer) / (1 + len(known)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the p-values corrected by Holm's method; unknown ones stay so and do not count."""
    known = {n: p for n, p in enumerate(p_values) if p is not None and not math.isnan(p)}
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, number in enumerate(sorted(known, key=known.__getitem__)):
        largest = max(largest, min(1.0, (len(known) - rank) * known[number]))
        corrected[number] = largest
    return corrected
