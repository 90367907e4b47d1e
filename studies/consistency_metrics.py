"""How well a model separates windows that obey their equations from those that do not.

For every kind of negative and every amplitude: the area under the ROC curve (AUC) of the model's
validity logit, its accuracy at logit zero, and for comparison the AUC of linear probes that see
only simple statistics of the window. A kind that a probe detects can be detected without any notion
of the equation.

The statistics are mean, variance and logarithmic radial spectrum of every channel. One probe sees
them pooled over the frames, another sees those of each frame. Shuffled windows have the same set of
frames, so the first probe cannot detect them. The second can if the flow decays or grows, because
the order then shows in the statistics of single frames. Windows with wrong parameters have the same
fields, so there is no probe for them.

A probe is a linear discriminant with a ridge, fitted on every second trajectory and scored on the
others, and vice versa; the mean of both AUCs counts. A direction that does not carry over to other
trajectories detects nothing, so 0.9 and 0.1 average to 0.5. ``probe_aucs`` returns both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pibert.data.dataset import Samples
from pibert.pretraining.adversarial import evaluation_mode
from pibert.pretraining.negatives import Negatives

AMPLITUDES = (0.03, 0.1, 0.3)
SPECTRUM_FLOOR = 1e-8
"""Share of the variance below which power does not count: near it, single precision is noise."""
RIDGE = 1e-3
"""Of the probe, in units of each statistic's variance."""
LEAST_SPREAD = 1e-4
"""Of a statistic of standardised fields; one that varies less is only rounding, such as the mean of
a field without one."""


@dataclass(frozen=True, kw_only=True)
class ConsistencyRecord:
    """Scores of one kind of negative."""

    kind: str
    amplitude: float | None
    """None where the kind has none."""
    auc: float
    accuracy: float
    """Share of all windows, valid and invalid, on the right side of logit zero."""
    probe_auc: float | None
    """Of statistics of all frames together; None for wrong parameters, which leave the fields as
    they are, and for a single window, which cannot both fit and score a probe."""
    frame_probe_auc: float | None
    """Of statistics of every frame; None also where a window is a single frame."""
    n: int
    """Windows of either label."""


def auc(scores: Float[Tensor, " n"], labels: Bool[Tensor, " n"]) -> float:
    """Chance that a positive scores higher than a negative; a tie counts half.

    Raises:
        ValueError: Unless there are both.
    """
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if not positives or not negatives:
        raise ValueError(
            f"expected scores of both labels, found {positives} positive and {negatives} negative"
        )
    if not bool(scores.isfinite().all()):
        raise ValueError("expected finite scores, found others")
    _, place, count = scores.double().unique(return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    rank = (last - (count - 1) / 2)[place]  # the mean rank of those that tie
    above = float(rank[labels].sum()) - positives * (positives + 1) / 2
    return above / (positives * negatives)


def window_statistics(
    x: Float[Tensor, "b hc y x"], mask: Bool[Tensor, "b y x"], channels: int
) -> Float[Tensor, "b k"]:
    """Mean, variance and log radial spectrum per channel, over all frames of a window together.

    Mean and variance are over the known points. The spectrum is that of the field as it is, zero
    where not known, summed over rings of whole wave numbers (waves per grid, of the shorter side).
    """
    fields = x.double().unflatten(1, (-1, channels))  # (b, h, c, y, x)
    here = mask[:, None, None]
    count = here.sum((-2, -1)).clamp(min=1) * fields.shape[1]  # (b, 1, 1)
    mean = torch.where(here, fields, 0.0).sum((1, 3, 4)) / count[..., 0]
    apart = torch.where(here, fields - mean[:, None, :, None, None], 0.0)
    variance = apart.square().sum((1, 3, 4)) / count[..., 0]
    power = torch.fft.rfft2(torch.where(here, fields, 0.0), norm="ortho").abs().square().sum(1)
    ring, rings = _rings(x.shape[-2], x.shape[-1], x.device)
    total = torch.zeros(*power.shape[:2], rings, dtype=power.dtype, device=x.device)
    total = total.index_add(2, ring, power.flatten(2))
    floor = SPECTRUM_FLOOR * total[..., 1:].sum(-1, keepdim=True) + torch.finfo(x.dtype).tiny
    spectrum = torch.log(total[..., 1:] + floor)
    return torch.cat((mean, variance, spectrum.flatten(1)), dim=1)


def frame_statistics(
    x: Float[Tensor, "b hc y x"], mask: Bool[Tensor, "b y x"], channels: int
) -> Float[Tensor, "b k"]:
    """``window_statistics`` of every frame, one after the other."""
    frames = x.split(channels, dim=1)
    return torch.cat([window_statistics(frame, mask, channels) for frame in frames], dim=1)


def _rings(ny: int, nx: int, device: torch.device) -> tuple[Int[Tensor, " k"], int]:
    """The ring of every mode of a half spectrum, those in the corners in the last; their number."""
    shorter = min(ny, nx)
    ky = torch.fft.fftfreq(ny, device=device)[:, None] * shorter
    kx = torch.fft.rfftfreq(nx, device=device) * shorter
    rings = shorter // 2 + 1
    return torch.hypot(ky, kx).round().long().clamp(max=rings - 1).flatten(), rings


def probe_auc(
    valid: Float[Tensor, "n k"], invalid: Float[Tensor, "n k"], groups: Int[Tensor, " n"]
) -> float | None:
    """The mean of ``probe_aucs``; None where there are none."""
    found = probe_aucs(valid, invalid, groups)
    return sum(found) / len(found) if found else None


def probe_aucs(
    valid: Float[Tensor, "n k"], invalid: Float[Tensor, "n k"], groups: Int[Tensor, " n"]
) -> tuple[float, ...]:
    """Two AUCs of a linear discriminant, on groups that did not fit it; none for a single window.

    Args:
        valid: Statistics of valid windows.
        invalid: Those of the negative made of each.
        groups: Which windows belong together (their trajectory). Every second group goes to the
            second half, so both halves span the order of the groups. Each half is scored by the
            probe that the other one fitted. A single group is split in the middle.
    """
    order, place = groups.unique(return_inverse=True)
    second = place % 2 == 1
    if len(order) == 1:
        second = torch.arange(len(groups), device=groups.device) >= (len(groups) + 1) // 2
    if not bool(second.any()):
        return ()
    found = []
    for fitted in (second, ~second):
        direction = _discriminant(valid[fitted], invalid[fitted])
        scores = torch.cat((valid[~fitted], invalid[~fitted])).double() @ direction
        labels = torch.arange(len(scores), device=scores.device) < len(scores) // 2
        found.append(auc(scores, labels))
    return tuple(found)


def _discriminant(valid: Tensor, invalid: Tensor) -> Float[Tensor, " k"]:
    """Fisher's direction: the difference of the means over the covariance within the labels."""
    valid, invalid = valid.double(), invalid.double()
    scale = 1 / (torch.cat((valid, invalid)).std(0, correction=0) + LEAST_SPREAD)
    valid, invalid = valid * scale, invalid * scale
    difference = valid.mean(0) - invalid.mean(0)
    within = torch.cat((valid - valid.mean(0), invalid - invalid.mean(0)))
    covariance = within.mT @ within / len(within)
    covariance.diagonal().add_(RIDGE)
    return torch.linalg.solve(covariance, difference) * scale


@torch.no_grad()
def score_consistency(
    model: nn.Module,
    samples: Samples,
    negatives: Negatives,
    amplitudes: Sequence[float] = AMPLITUDES,
    *,
    batch_size: int = 64,
    most: int | None = None,
    device: torch.device | str | None = None,
) -> list[ConsistencyRecord]:
    """A record for every kind of negative, and amplitude where the kind has one.

    Args:
        model: With ``consistency``; scored in evaluation mode and left as it was.
        samples: Windows that the model was not trained on.
        negatives: What makes the invalid windows.
        amplitudes: Relative changes.
        batch_size: Windows per call of the model.
        most: Score this many windows, evenly spread over all; None: all.
        device: Where the model is; that of its first parameter if not given.
    """
    count = len(samples) if most is None else min(most, len(samples))
    numbers = [i * len(samples) // count for i in range(count)]
    groups = torch.tensor([samples.locate(i)[0] for i in numbers])
    cases = [
        (kind, amplitude)
        for kind in negatives.kinds
        for amplitude in (amplitudes if negatives.has_amplitude(kind) else (None,))
    ]
    where = device or next(model.parameters()).device
    scored: Any = model
    logits: dict[object, list[Tensor]] = {case: [] for case in (None, *cases)}
    features: dict[object, list[tuple[Tensor, ...]]] = {case: [] for case in (None, *cases)}
    with evaluation_mode(model):
        for start in range(0, count, batch_size):
            batch = samples.batch(numbers[start : start + batch_size]).to(where)
            for case in (None, *cases):
                x, parameters = batch.x, batch.parameters
                if case is not None:
                    x, parameters = negatives.make(case[0], batch, model, case[1])
                logits[case].append(scored.consistency(x, parameters, batch.mask).float().cpu())
                features[case].append(_features(x, batch.mask, negatives))
    valid, seen = torch.cat(logits[None]), _joined(features[None])
    return [
        _record(case, valid, torch.cat(logits[case]), seen, _joined(features[case]), groups)
        for case in cases
    ]


def _features(x: Tensor, mask: Tensor, negatives: Negatives) -> tuple[Tensor, ...]:
    """Statistics of the window and, where it has several frames, of each frame."""
    see = (window_statistics, frame_statistics)[: 1 if negatives.history == 1 else 2]
    if x.device.type == "mps":  # has no double precision
        x, mask = x.cpu(), mask.cpu()
    return tuple(statistics(x, mask, negatives.channels).cpu() for statistics in see)


def _joined(parts: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def _record(
    case: tuple[str, float | None],
    valid: Tensor,
    invalid: Tensor,
    seen: tuple[Tensor, ...],
    made: tuple[Tensor, ...],
    groups: Tensor,
) -> ConsistencyRecord:
    labels = torch.arange(2 * len(valid)) < len(valid)
    right = torch.cat((valid > 0, invalid <= 0))
    probes: list[float | None] = [None, None]
    if case[0] != "parameters":
        pairs = zip(seen, made, strict=True)
        probes[: len(seen)] = [probe_auc(mine, other, groups) for mine, other in pairs]
    return ConsistencyRecord(
        kind=case[0],
        amplitude=case[1],
        auc=auc(torch.cat((valid, invalid)), labels),
        accuracy=float(right.double().mean()),
        probe_auc=probes[0],
        frame_probe_auc=probes[1],
        n=len(valid),
    )
