"""Embedding-physics alignment: how well a linear map predicts vorticity from a model's embeddings.

Rows. A row is one token of one sample: its embedding (d numbers) and the vorticity of the newest
input frame at its place, at several scales. Embeddings are what ``Stepper.embed`` gives (each model
says of which layer), averaged over a token's patch where the map is finer. Vorticity is
dv/dx - du/dy in physical units, by central differences of second order (one-sided at sides that are
not periodic); it is defined at known points none of whose neighbours in the stencil is unknown.

Target. At scale k the vorticity is averaged over cells of k x k points (the defined ones of them),
brought back to the points by bilinear interpolation, and averaged over the defined points of the
token's patch. Cells at the largest y and x may be smaller; cells without a defined point do not
take part. Tokens with less than half of their points defined are left out, at every scale. A patch
is itself an average: at scales below its size the targets differ little.

Fit. Ridge regression on standardised features, and its R^2 on rows that it has not seen
(``held_out_r2``). Its strength is chosen on the fitted trajectories alone, each half
scored by the fit to the other.

Folds. Neighbours in space or time are nearly copies of each other: with rows split at random, an
embedding that only tells *which sample* it is seems to know the physics. Here whole trajectories
are dealt to two folds in turn; a single recording is cut into halves in time with a gap between
them. Each fold is scored by the fit to the other, and R^2 is the mean of both.

Vorticity is linear in the velocity, so an embedding that keeps enough of the input scores well and
need not have learnt anything: a value means something next to that of the untrained model, and to
those of the input itself (``raw_input``). A wide embedding can keep more than a narrow one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pibert.data.dataset import Samples
from pibert.evaluation.measure import require_velocity
from pibert.evaluation.scales import SCALES
from pibert.fields import Batch, FieldSpec, Normalizer
from pibert.inference.explanation import evaluating
from pibert.models.layers import lattice_shape, to_patches
from pibert.models.stepper import Stepper
from pibert.physics import derivatives

CONSTANT = 1e-6
"""A feature that varies by less than this part of its mean is rounding, and is not used."""
STRENGTHS = (1e-3, 1e-1, 1e1, 1e3)
"""Of the ridge, to choose from; the first where there is too little to choose by."""
GAP_SHARE = 0.1
"""Of the frames of a single recording, left out between its halves unless a gap is given."""
Embedding = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
"""(x, parameters, mask) -> tokens (b, n, d), row by row, where a parameter token may follow; or a
map (b, d, ty, tx), of every point or of every patch."""


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
    scored: Sequence[Moments], fitted: Sequence[Moments], strengths: Sequence[float]
) -> Float[Tensor, " s"]:
    """R^2 of the fit to some rows on others; the strength is chosen by the fitted rows alone.

    Args:
        scored: Parts of the rows to score on.
        fitted: Parts of the rows to fit. Where there are two, each is scored by the fit to the
            other, and the strength with the highest mean R^2 over all targets is taken.
        strengths: Of the ridge, to choose from; the first where there is nothing to choose by.
    """
    alpha = strengths[0]
    if len(fitted) == 2 and len(strengths) > 1:
        alpha = max(strengths, key=lambda own: _mutual_r2(fitted[0], fitted[1], own))
    return reduce(Moments.merged, scored).r2(reduce(Moments.merged, fitted), alpha)


def _mutual_r2(first: Moments, second: Moments, alpha: float) -> float:
    both = torch.stack((first.r2(second, alpha), second.r2(first, alpha)))
    mean = float(both.nanmean())
    return mean if math.isfinite(mean) else -math.inf


def alignment(
    model: Stepper | Embedding,
    samples: Samples,
    *,
    patch: int | None = None,
    scales: Sequence[int] = SCALES,
    alpha: float | None = None,
    gap: int | None = None,
    most: int = 2048,
    batch_size: int = 32,
    device: torch.device | str | None = None,
) -> dict[int, float]:
    """Held-out R^2 at every scale.

    Args:
        model: One that ``embed`` gives a map of, or a function that gives embeddings.
        samples: Windows of trajectories; their newest input frame has the velocity.
        patch: Points along a token's side. Models are comparable at a common one: maps that are
            finer are averaged over it. None: as the embeddings are.
        scales: In points.
        alpha: Of the ridge; None: chosen by the rows that are fitted.
        gap: Frames between the halves of a single recording; None: a tenth of them. It should be
            longer than the correlation time.
        most: Samples to take, evenly spread; neighbours in time tell little more.
        batch_size: Samples to embed at once.
        device: Where the model is, if not on the CPU.
    """
    chosen, folds = two_folds(samples, gap=gap, most=most)
    spec, normalizer = samples.spec, samples.normalizer

    def batches() -> Iterator[tuple[Batch, Tensor]]:
        for start in range(0, len(chosen), batch_size):
            part = slice(start, start + batch_size)
            yield samples.batch(chosen[part]).to(device or "cpu"), folds[part]

    return alignment_of_batches(
        model, batches(), spec=spec, normalizer=normalizer, patch=patch, scales=scales, alpha=alpha
    )


def alignment_of_batches(
    model: Stepper | Embedding,
    batches: Iterable[tuple[Batch, Int[Tensor, " b"]]],
    *,
    spec: FieldSpec,
    normalizer: Normalizer,
    patch: int | None = None,
    scales: Sequence[int] = SCALES,
    alpha: float | None = None,
) -> dict[int, float]:
    """Held-out R^2 at every scale, of batches in any form.

    Args:
        model: As for ``alignment``.
        batches: Each with the trajectory of its samples as a number. Even ones are a fold, odd
            ones the other; within a fold every second one is the other half.
        spec: Channels of one input frame, and the grid.
        normalizer: Of the channels of one input frame.
        patch: As for ``alignment``.
        scales: In points.
        alpha: As for ``alignment``.
    """
    require_velocity(spec, "the alignment with vorticity")
    if not scales or min(scales) < 1 or not (alpha is None or alpha >= 0):
        raise ValueError(
            f"expected scales of 1 or more points and alpha of 0 or more, found {tuple(scales)} "
            f"and {alpha}"
        )
    parts: tuple[dict[int, Moments], dict[int, Moments]] = ({}, {})
    for batch, trajectories in batches:
        features, size = _embed(model, batch, patch)
        targets, counted = vorticity_targets(batch, spec, normalizer, scales, size)
        for number in dict.fromkeys(trajectories.tolist()):
            fold, half = parts[number % 2], number // 2 % 2
            rows = counted & (trajectories == number).to(counted.device)[:, None, None]
            if bool(rows.any()):
                more = Moments.of(features[rows], targets[rows])
                fold[half] = more.merged(fold[half]) if half in fold else more
    if not all(parts):
        raise ValueError(
            "expected tokens with known vorticity in both folds, found a fold without; give more "
            "trajectories, or number the halves of a recording"
        )
    first, second = (list(fold.values()) for fold in parts)
    strengths = STRENGTHS if alpha is None else (alpha,)
    both = (held_out_r2(first, second, strengths), held_out_r2(second, first, strengths))
    return dict(zip(scales, torch.stack(both).mean(0).tolist(), strict=True))


def raw_input(spec: FieldSpec, patch: int | None = None) -> Embedding:
    """The newest velocity itself as an embedding, of which nothing is learned.

    Args:
        spec: Channels of one input frame.
        patch: All values of every patch of so many points a side are its embedding; None: the
            values of every point are, of which tokens then have the mean.
    """
    require_velocity(spec, "an embedding by the velocity")
    assert spec.velocity is not None
    places = list(spec.velocity)

    def embed(x: Tensor, parameters: Tensor | None, mask: Tensor | None) -> Tensor:
        field = x[:, -len(spec.channels) :][:, places]
        field = field if mask is None else torch.where(mask[:, None], field, 0.0)
        if patch is None:
            return field
        lattice = lattice_shape((field.shape[-2], field.shape[-1]), patch)
        return to_patches(field, patch).mT.unflatten(-1, lattice)

    return embed


def two_folds(
    samples: Samples, *, gap: int | None = None, most: int = 2048
) -> tuple[list[int], Int[Tensor, " n"]]:
    """Samples to take, evenly spread, and the number of the trajectory of each.

    Of a single one the quarters in time are numbered, the early ones even and the late ones odd,
    and windows that reach into the gap between early and late are left out.
    """
    if most < 2 or (gap is not None and gap < 0):
        raise ValueError(
            f"expected at least 2 samples and a gap of 0 or more frames, found {most}, {gap}"
        )
    step = max(1.0, len(samples) / most)
    chosen = [int(place * step) for place in range(min(most, len(samples)))]
    places = [samples.locate(sample) for sample in chosen]
    numbers = {index: n for n, index in enumerate(dict.fromkeys(index for index, _ in places))}
    if len(numbers) > 1:
        return chosen, torch.tensor([numbers[index] for index, _ in places])
    past = samples.window.history  # the frames that embedding and vorticity come from
    times = [start for _, start in places]
    first, last = min(times), max(times) + past
    gap = round(GAP_SHARE * (last - first)) if gap is None else gap
    end = (first + last - gap) // 2
    early = [s for s, t in zip(chosen, times, strict=True) if t + past <= end]
    late = [s for s, t in zip(chosen, times, strict=True) if t >= end + gap]
    if not early or not late:
        raise ValueError(
            f"expected windows of {past} frames on both sides of a gap of {gap} frames, found "
            f"{len(early)} and {len(late)} in {last - first} frames; take a smaller gap"
        )
    numbered = [
        fold + 2 * (2 * place >= len(part))
        for fold, part in enumerate((early, late))
        for place in range(len(part))
    ]
    return early + late, torch.tensor(numbered)


def _embed(
    model: Stepper | Embedding, batch: Batch, patch: int | None
) -> tuple[Float[Tensor, "b ty tx d"], int]:
    """Embeddings on their lattice, and the points along a token's side."""
    shape = (batch.x.shape[-2], batch.x.shape[-1])
    embed = model.embed if isinstance(model, Stepper) else model
    mode = evaluating(model) if isinstance(model, nn.Module) else nullcontext()
    with torch.no_grad(), mode:
        found = embed(batch.x, batch.parameters, batch.mask)
    if found is None:
        raise ValueError(
            f"expected a model with a map of hidden numbers, found {type(model).__name__}, whose "
            "embed gives none; give a function that returns embeddings"
        )
    if found.ndim == 4:
        return _coarsened(found, shape, patch)
    if patch is None or found.ndim != 3:
        shown = f"shape {tuple(found.shape)} and patch {patch}; give patch="
        raise ValueError(f"expected tokens (b, n, d) or a map (b, d, ty, tx), found {shown}")
    lattice = lattice_shape(shape, patch)
    beyond = found.shape[1] - lattice[0] * lattice[1]
    if beyond not in (0, 1):
        raise ValueError(
            f"expected {lattice[0]} x {lattice[1]} tokens of {patch} x {patch} points, and at most "
            f"one for the parameters, found embeddings of shape {tuple(found.shape)}; give patch="
        )
    return found[:, : found.shape[1] - beyond].unflatten(1, lattice), patch


def _coarsened(
    found: Float[Tensor, "b d ty tx"], shape: tuple[int, int], patch: int | None
) -> tuple[Float[Tensor, "b y2 x2 d"], int]:
    """A map averaged over patches, and their size; as it is without a patch."""
    sizes = (*((patch,) if patch else ()), *range(1, max(shape) + 1))
    own = next((p for p in sizes if lattice_shape(shape, p) == found.shape[2:]), None)
    if own is None or (patch or own) % own:
        raise ValueError(
            f"expected a map that divides {shape} points into patches of {patch or 'some'} points "
            f"or of a divisor of it, found one of shape {tuple(found.shape)}"
        )
    patch = patch or own
    # Only cells that are there count in a patch at a side.
    means = F.avg_pool2d(found.double(), patch // own, ceil_mode=True, count_include_pad=False)
    return means.permute(0, 2, 3, 1), patch


def vorticity_targets(
    batch: Batch, spec: FieldSpec, normalizer: Normalizer, scales: Sequence[int], patch: int
) -> tuple[Float[Tensor, "b ty tx s"], Bool[Tensor, "b ty tx"]]:
    """The vorticity that each token should know, at every scale, and which tokens count."""
    frame = normalizer.invert(batch.x[:, -len(spec.channels) :].double())
    assert spec.velocity is not None
    u, v = (frame[:, place] for place in spec.velocity)
    curl, defined = derivatives.where_defined(
        lambda u, v: derivatives.vorticity(u, v, spec.grid), u, v, known=batch.mask, linear=True
    )
    defined = defined & batch.mask  # a central difference does not touch the point itself
    share = _cell_means(defined.double(), patch)
    # A patch that reaches beyond the grid has fewer points, of which half are asked for.
    counted = share >= 0.5 * _cell_means(torch.ones_like(curl[:1]), patch)
    found = []
    for scale in scales:
        smooth = torch.where(defined, smoothed(curl, defined, scale), 0.0)
        found.append(_cell_means(smooth, patch) / torch.where(counted, share, 1.0))
    return torch.stack(found, dim=-1), counted


def smoothed(
    values: Float[Tensor, "b y x"], where: Bool[Tensor, "b y x"], scale: int
) -> Float[Tensor, "b y x"]:
    """Averages over cells of scale x scale points, interpolated between the cells' centres."""
    if scale == 1:
        return values
    ny, nx = values.shape[-2:]
    total = _cell_means(torch.where(where, values, 0.0), scale)
    share = _cell_means(where.double(), scale)
    here = share > 0
    means = torch.where(here, total / torch.where(here, share, 1.0), 0.0)
    both = torch.stack((means, here.to(means.dtype)), dim=1)
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
