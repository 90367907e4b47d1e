"""Ridge regression from sums over rows: what is kept does not grow with the data.

A row is features x followed by targets y. Kept are the count, the means and the sums of products of
deviations from them, in float64; sums of two sets of rows merge into those of both. With z the
features standardised by mean and deviation of the rows that are fitted,

    min over beta of  sum (y - mean - z . beta)^2 + alpha |beta|^2

The squared error of a fit on other rows is a quadratic form of *their* sums, so the held-out

    R^2 = 1 - sum (y - fit)^2 / sum (y - mean of these rows)^2

needs no second pass.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

CONSTANT = 1e-6
"""A feature that varies by less than this part of its mean is rounding, and is not used."""


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Sums over rows, of which a row is features followed by targets."""

    count: int
    width: int
    """How many features there are."""
    mean: Float[Tensor, " k"]
    scatter: Float[Tensor, "k k"]
    """Sum of products of deviations from the mean."""

    @classmethod
    def of(cls, features: Float[Tensor, "n d"], targets: Float[Tensor, "n s"]) -> Self:
        rows = torch.cat((features.double(), targets.to(features.device).double()), dim=1)
        if not bool(rows.isfinite().all()):
            raise ValueError("expected finite embeddings and vorticity, found NaN or inf")
        mean = rows.mean(0)
        rows = rows - mean
        return cls(count=len(rows), width=features.shape[1], mean=mean, scatter=rows.mT @ rows)

    def merged(self, other: Self) -> Self:
        """Of the rows of both."""
        count = self.count + other.count
        apart = other.mean - self.mean
        between = apart.outer(apart) * (self.count * other.count / count)
        return replace(
            self,
            count=count,
            mean=self.mean + apart * (other.count / count),
            scatter=self.scatter + other.scatter + between,
        )

    def fit(self, alpha: float) -> Float[Tensor, "d s"]:
        """Ridge coefficients of the features as they are, standardised on the way."""
        d = self.width
        std = (self.scatter.diagonal()[:d] / self.count).sqrt()
        used = std > CONSTANT * self.mean[:d].abs()
        inverse = torch.where(used, 1 / torch.where(used, std, 1.0), 0.0)
        gram = inverse[:, None] * self.scatter[:d, :d] * inverse
        # Features that are not used have empty rows, which a one on the diagonal makes solvable.
        gram = gram + torch.diag(torch.where(used, alpha, 1.0))
        right = inverse[:, None] * self.scatter[:d, d:]
        # On the CPU, where the solver also takes features that depend on each other.
        solution = torch.linalg.lstsq(gram.cpu(), right.cpu(), driver="gelsy").solution
        return inverse[:, None] * solution.to(inverse)

    def r2(self, fitted: Self, alpha: float) -> Float[Tensor, " s"]:
        """Of the fit to other rows, on these; NaN where these do not vary."""
        d = self.width
        slope = fitted.fit(alpha)
        offset = (self.mean - fitted.mean)[d:] - (self.mean - fitted.mean)[:d] @ slope
        crossed = (slope * self.scatter[:d, d:]).sum(0)
        explained = (slope * (self.scatter[:d, :d] @ slope)).sum(0)
        variation = self.scatter.diagonal()[d:]
        squares = (variation - 2 * crossed + explained).clamp(min=0) + self.count * offset.square()
        return torch.where(variation > 0, 1 - squares / variation, torch.nan)


def held_out_r2(
    judged: Sequence[Moments], fitted: Sequence[Moments], strengths: Sequence[float]
) -> Float[Tensor, " s"]:
    """R^2 of the fit to some rows on others; the strength is chosen by the fitted rows alone.

    Args:
        judged: Parts of the rows to judge on.
        fitted: Parts of the rows to fit. Where there are two, each is judged by the fit to the
            other, and the strength with the highest mean R^2 over all targets is taken.
        strengths: Of the ridge, to choose from; the first where there is nothing to choose by.
    """
    alpha = strengths[0]
    if len(fitted) == 2 and len(strengths) > 1:
        alpha = max(strengths, key=lambda own: _mutual_r2(fitted[0], fitted[1], own))
    return reduce(Moments.merged, judged).r2(reduce(Moments.merged, fitted), alpha)


def _mutual_r2(first: Moments, second: Moments, alpha: float) -> float:
    both = torch.stack((first.r2(second, alpha), second.r2(first, alpha)))
    mean = float(both.nanmean())
    return mean if math.isfinite(mean) else -math.inf
