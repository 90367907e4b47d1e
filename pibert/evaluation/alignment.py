"""Embedding-physics alignment: how well a linear map predicts vorticity from a model's embeddings.

Rows. A row is one token of one sample: its embedding (d numbers) and the vorticity of the newest
input frame there, at several scales. Embeddings are those of PIBERT and multiresolution PIBERT
(``embed``), averaged over a token's patch where the map is finer. Vorticity is dv/dx - du/dy in
physical units, by central differences of second order (one-sided at sides that are not periodic);
it is defined at known points none of whose neighbours in the stencil is unknown.

Target. At scale k the vorticity is averaged over cells of k x k points (the defined ones of them),
brought back to the points by bilinear interpolation, and averaged over the defined points of the
token's patch. Cells at the largest y and x may be smaller; cells without a defined point are left
out. So are tokens with less than half of their points defined, at every scale. A patch is itself an
average: at scales below its size the targets differ little.

Fit. Ridge regression on standardised features, and its R^2 on rows that it has not seen
(``held_out_r2``). Its strength is chosen on the fitted trajectories alone, each half scored by the
fit to the other.

Folds. Neighbours in space or time are nearly copies of each other: with rows split at random, an
embedding that only identifies *the sample* seems to know the physics. Here whole trajectories are
dealt to two folds in turn; a single recording is cut into halves in time with a gap between them.
Each fold is scored by the fit to the other, and R^2 is the mean of both.

Vorticity is linear in the velocity, so an embedding that keeps enough of the input scores well and
need not have learnt anything: compare a value with that of the untrained model and with those of
the input itself (``raw_input``). A wide embedding can keep more than a narrow one.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.evaluation.measure import require_velocity
from pibert.evaluation.scales import SCALES
from pibert.fields import Batch, FieldSpec, Normalizer
from pibert.inference.explanation import TokenModel, evaluating
from pibert.models.layers import lattice_shape, to_patches
from pibert.physics import derivatives

CONSTANT = 1e-6
"""A feature that varies by less than this part of its mean is rounding, and is not used."""
STRENGTHS = (1e-3, 1e-1, 1e1, 1e3)
"""Of the ridge, to choose from; the first where there is too little to choose by."""
GAP_SHARE = 0.1
"""Of the frames of a single recording, left out between its halves."""
BATCH = 32
Embedding = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
"""(x, parameters, mask) -> a map (b, d, ty, tx), of every point or of every patch."""


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Sums over rows, from which a ridge regression is fitted and scored without a second pass.

    A row is features x followed by targets y. Sums of two sets of rows merge into those of both.
    With z the features standardised by mean and deviation of the fitted rows, ``fit`` minimises
    sum (y - mean - z . beta)^2 + alpha |beta|^2. Its squared error on other rows is a quadratic
    form of their sums, which gives R^2 = 1 - sum (y - fit)^2 / sum (y - mean of these rows)^2.
    """

    count: int
    width: int
    """Number of features."""
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
        """The sums over the rows of both."""
        count = self.count + other.count
        shift = other.mean - self.mean
        between = shift.outer(shift) * (self.count * other.count / count)
        return replace(
            self,
            count=count,
            mean=self.mean + shift * (other.count / count),
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
        """R^2 on these rows of the fit to others; NaN where these do not vary."""
        d = self.width
        slope = fitted.fit(alpha)
        offset = (self.mean - fitted.mean)[d:] - (self.mean - fitted.mean)[:d] @ slope
        crossed = (slope * self.scatter[:d, d:]).sum(0)
        explained = (slope * (self.scatter[:d, :d] @ slope)).sum(0)
        variation = self.scatter.diagonal()[d:]
        squares = (variation - 2 * crossed + explained).clamp(min=0) + self.count * offset.square()
        return torch.where(variation > 0, 1 - squares / variation, torch.nan)


def held_out_r2(
    scored: Sequence[Moments], fitted: Sequence[Moments], strengths: Sequence[float] = STRENGTHS
) -> Float[Tensor, " s"]:
    """R^2 of the fit to some rows on others; the strength is chosen by the fitted rows alone.

    Where the fitted rows come in two halves, each is scored by the fit to the other, and the
    strength with the highest mean R^2 over all targets is taken; else the first one.
    """
    alpha = strengths[0]
    if len(fitted) == 2:
        alpha = max(strengths, key=lambda strength: _mutual_r2(fitted[0], fitted[1], strength))
    return reduce(Moments.merged, scored).r2(reduce(Moments.merged, fitted), alpha)


def _mutual_r2(first: Moments, second: Moments, alpha: float) -> float:
    both = torch.stack((first.r2(second, alpha), second.r2(first, alpha)))
    mean = float(both.nanmean())
    return mean if math.isfinite(mean) else -math.inf


def alignment(
    model: TokenModel | Embedding,
    samples: Samples,
    *,
    patch: int,
    most: int = 2048,
    device: torch.device | str = "cpu",
) -> dict[int, float]:
    """Held-out R^2 at every one of ``SCALES``.

    Args:
        model: PIBERT, or a function that returns embeddings.
        samples: Windows of trajectories; their newest input frame has the velocity.
        patch: Points along a token's side; maps that are finer are averaged over it.
        most: Samples to take, evenly spread; neighbours in time add little.
        device: Where the model is.
    """
    spec, normalizer = samples.spec, samples.normalizer
    require_velocity(spec, "the alignment with vorticity")
    chosen, numbers = two_folds(samples, most)
    folds: tuple[dict[int, Moments], dict[int, Moments]] = ({}, {})
    for start in range(0, len(chosen), BATCH):
        batch = samples.batch(chosen[start : start + BATCH]).to(device)
        trajectories = numbers[start : start + BATCH]
        features = _embed(model, batch, patch)
        targets, counted = vorticity_targets(batch, spec, normalizer, SCALES, patch)
        for number in dict.fromkeys(trajectories.tolist()):
            fold, half = folds[number % 2], number // 2 % 2
            rows = counted & (trajectories == number).to(counted.device)[:, None, None]
            if bool(rows.any()):
                more = Moments.of(features[rows], targets[rows])
                fold[half] = more.merged(fold[half]) if half in fold else more
    if not all(folds):
        raise ValueError(
            "expected tokens with known vorticity in both folds, found a fold without; use more "
            "trajectories"
        )
    first, second = (list(fold.values()) for fold in folds)
    both = (held_out_r2(first, second), held_out_r2(second, first))
    return dict(zip(SCALES, torch.stack(both).mean(0).tolist(), strict=True))


def raw_input(spec: FieldSpec, patch: int | None = None) -> Embedding:
    """The newest velocity itself as an embedding, of which nothing is learned.

    With a patch, all values of every patch are its embedding; without, the values of every point
    are, of which tokens then have the mean.
    """
    assert spec.velocity is not None
    channels = list(spec.velocity)

    def embed(x: Tensor, parameters: Tensor | None, mask: Tensor | None) -> Tensor:
        field = x[:, -len(spec.channels) :][:, channels]
        field = field if mask is None else torch.where(mask[:, None], field, 0.0)
        if patch is None:
            return field
        lattice = lattice_shape((field.shape[-2], field.shape[-1]), patch)
        return to_patches(field, patch).mT.unflatten(-1, lattice)

    return embed


def two_folds(samples: Samples, most: int = 2048) -> tuple[list[int], Int[Tensor, " n"]]:
    """Samples to take, evenly spread, and the number of the trajectory of each.

    Even numbers are one fold, odd ones the other; within a fold every second number is the other
    half. Of a single trajectory the quarters in time are numbered, the early ones even and the late
    ones odd, and windows that reach into the gap between early and late are left out.
    """
    step = max(1.0, len(samples) / most)
    chosen = [int(n * step) for n in range(min(most, len(samples)))]
    starts = [samples.locate(sample) for sample in chosen]
    numbers = {index: n for n, index in enumerate(dict.fromkeys(index for index, _ in starts))}
    if len(numbers) > 1:
        return chosen, torch.tensor([numbers[index] for index, _ in starts])
    past = samples.window.history  # the frames that embedding and vorticity come from
    times = [start for _, start in starts]
    first, last = min(times), max(times) + past
    gap = round(GAP_SHARE * (last - first))
    end = (first + last - gap) // 2
    early = [s for s, t in zip(chosen, times, strict=True) if t + past <= end]
    late = [s for s, t in zip(chosen, times, strict=True) if t >= end + gap]
    if not early or not late:
        raise ValueError(
            f"expected windows of {past} frames on both sides of a gap of {gap} frames, found "
            f"{len(early)} and {len(late)} in {last - first} frames; use a longer test split"
        )
    quarters = [
        fold + 2 * (2 * n >= len(half))
        for fold, half in enumerate((early, late))
        for n in range(len(half))
    ]
    return early + late, torch.tensor(quarters)


def _embed(model: TokenModel | Embedding, batch: Batch, patch: int) -> Float[Tensor, "b ty tx d"]:
    """Embeddings, averaged over patches where the model's map is finer."""
    shape = (batch.x.shape[-2], batch.x.shape[-1])
    embed = model.embed if isinstance(model, TokenModel) else model
    mode = evaluating(model) if isinstance(model, TokenModel) else nullcontext()
    with torch.no_grad(), mode:
        hidden = embed(batch.x, batch.parameters, batch.mask)
    sizes = [size for size in range(patch, 0, -1) if patch % size == 0]
    size = next((size for size in sizes if lattice_shape(shape, size) == hidden.shape[2:]), None)
    if size is None:
        raise ValueError(
            f"expected a map that divides {shape} points into patches of {patch} points or of a "
            f"divisor of it, found {tuple(hidden.shape[2:])} from {type(model).__name__}"
        )
    # Only the cells inside the grid count in a patch at a side.
    means = F.avg_pool2d(hidden.double(), patch // size, ceil_mode=True, count_include_pad=False)
    return means.permute(0, 2, 3, 1)


def vorticity_targets(
    batch: Batch, spec: FieldSpec, normalizer: Normalizer, scales: Sequence[int], patch: int
) -> tuple[Float[Tensor, "b ty tx s"], Bool[Tensor, "b ty tx"]]:
    """The vorticity of each token at every scale, and which tokens count."""
    frame = normalizer.invert(batch.x[:, -len(spec.channels) :].double())
    assert spec.velocity is not None
    u, v = (frame[:, channel] for channel in spec.velocity)
    curl, defined = derivatives.where_defined(
        lambda u, v: derivatives.vorticity(u, v, spec.grid), u, v, known=batch.mask, linear=True
    )
    defined = defined & batch.mask  # a central difference does not touch the point itself
    share = _cell_means(defined.double(), patch)
    # A patch that reaches beyond the grid has fewer points, of which half must be defined.
    counted = share >= 0.5 * _cell_means(torch.ones_like(curl[:1]), patch)
    targets = []
    for scale in scales:
        smooth = torch.where(defined, smoothed(curl, defined, scale), 0.0)
        targets.append(_cell_means(smooth, patch) / torch.where(counted, share, 1.0))
    return torch.stack(targets, dim=-1), counted


def smoothed(
    values: Float[Tensor, "b y x"], where: Bool[Tensor, "b y x"], scale: int
) -> Float[Tensor, "b y x"]:
    """Averages over cells of scale x scale points, interpolated between the cells' centres."""
    if scale == 1:
        return values
    ny, nx = values.shape[-2:]
    total = _cell_means(torch.where(where, values, 0.0), scale)
    share = _cell_means(where.double(), scale)
    filled = share > 0
    means = torch.where(filled, total / torch.where(filled, share, 1.0), 0.0)
    both = torch.stack((means, filled.to(means.dtype)), dim=1)
    # The first centre lies half a cell in; between it and the side its value holds.
    size = (both.shape[-2] * scale, both.shape[-1] * scale)
    fine = F.interpolate(both, size, mode="bilinear", align_corners=False)[..., :ny, :nx]
    value, weight = fine.unbind(1)
    return torch.where(weight > 0, value / torch.where(weight > 0, weight, 1.0), 0.0)


def _cell_means(values: Float[Tensor, "b y x"], size: int) -> Float[Tensor, "b y2 x2"]:
    """Sums over cells divided by size^2; beyond the grid there are zeros."""
    ny, nx = values.shape[-2:]
    padded = F.pad(values, (0, -nx % size, 0, -ny % size))
    return F.avg_pool2d(padded[:, None], size)[:, 0]
