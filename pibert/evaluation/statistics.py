"""Statistics of a flow that a model runs on its own, against those of the true flow.

Beyond the time that a flow can be predicted, frames of a rollout differ from the true ones. A good
model still keeps the statistics over the same time. With m the mean in time at each point, R the
covariances of all pairs of channels there (the Reynolds stresses uu, uv, vv), k half their trace,
and primes for the prediction:

    mean_error           sum |m' - m|^2 / sum |m|^2
    stress_error         sqrt(sum |R' - R|^2 / sum |R|^2)
    energy_ratio         sum k' / sum k: turbulent kinetic energy
    spectrum_ratio_low, _mid, _high
                         energy of the fluctuations in thirds of the wavenumbers, predicted over
                         true (``evaluation/scales.py``)
    strouhal_error       |f' / f - 1|, f the frequency of the highest peak at the probes
                         (``evaluation/temporal.py``); mean over flows. A flow without a peak that
                         holds a fifth of the energy has none
    distribution_error   mean distance between the sorted values of prediction and truth at all
                         points (Wasserstein), in standard deviations of the training set; mean
                         over flows and channels
    memory_ratio         correlation time of the fluctuations at the probes, predicted over true
    survival             frames before the distance of a predicted frame to the true mean flow
                         exceeds three times the largest such distance in the truth; mean over flows
    diverged             share of the flows that do not survive to the end

The statistics of a rollout that diverges are infinitely wrong. ``all`` takes channels together, in
units of their standard deviation where their units differ.

No model can be expected to do better than the true flow's own sampling error: two stretches of a
flow, each as long as the rollout, differ too. ``sampling_terms`` estimates it from the two halves
of the truth. The squared difference of two halves is twice that of two stretches of full length.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.evaluation.measure import ALL, Entry, Frames, channel_scales, known_values, ratio
from pibert.evaluation.scales import BANDS, num_rings, radial_spectrum, supports_spectra
from pibert.evaluation.temporal import (
    POWER_FLOOR,
    correlation_time,
    power_density,
    probe_series,
)
from pibert.fields import FieldSpec, Normalizer

LEAST_FRAMES = 20
"""Fewer frames have no statistics."""
LOST = 3.0
"""A frame farther from the mean flow than any true one by this factor is lost."""
PEAK_SHARE = 0.2
"""Of the energy within a peak and its two neighbours on either side."""
MOST_VALUES = 100_000
"""Values of a channel that are sorted."""

_TERMS = (
    *("flows", "diverged", "survived"),
    *("mean_error", "mean_energy", "stress_error", "stress_energy", "energy", "true_energy"),
    *("low", "mid", "high", "true_low", "true_mid", "true_high"),
    *("strouhal_error", "strouhal_flows", "distribution_error", "distribution_flows"),
    *("memory", "true_memory"),
)


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Terms of every flow, which add up, and their values; see the module."""

    spec: FieldSpec
    normalizer: Normalizer
    """Of the training set, in the units of the frames."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        ratios = ("energy_ratio", *(f"spectrum_ratio_{band}" for band in BANDS), "memory_ratio")
        errors = ("mean_error", "stress_error", "strouhal_error", "distribution_error", "diverged")
        return (
            *(Entry(metric=name, component=ALL) for name in errors),
            *(Entry(metric=name, component=ALL, better="none") for name in ratios),
            Entry(metric="survival", component=ALL, unit="frames", better="higher"),
        )

    def terms(self, frames: Frames) -> Float[Tensor, " k"]:
        """The row of a flow; NaN stands for predictions that a rollout did not reach."""
        survived = self._survived(frames)
        row = dict.fromkeys(_TERMS, 0.0) | {"flows": 1.0, "survived": float(survived)}
        if survived < len(frames.truth):
            row["diverged"] = 1.0
        elif survived >= LEAST_FRAMES:
            row |= self._compared(frames)
        return torch.tensor([row[name] for name in _TERMS], dtype=torch.float64)

    def sampling_terms(self, frames: Frames) -> Float[Tensor, " k"]:
        """The row of a perfect model, from the two halves of the truth."""
        size = len(frames.truth) // 2
        halves = replace(
            frames,
            truth=frames.truth[:size],
            prediction=frames.truth[size : 2 * size],
            last=frames.last[:size],
            known=frames.known[:size] & frames.known[size : 2 * size],
            body=None if frames.body is None else frames.body[:size],
        )
        row = self.terms(halves)
        for name in ("mean_error", "stress_error"):
            row[_TERMS.index(name)] /= 2
        return row

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        """See the module; NaN where undefined."""
        total = dict(zip(_TERMS, sums.unbind(-1), strict=True))
        lost = total["diverged"] > 0

        def unless_lost(value: Tensor) -> Tensor:
            return torch.where(lost, math.inf, value)

        values = [
            unless_lost(ratio(total["mean_error"], total["mean_energy"])),
            unless_lost(ratio(total["stress_error"], total["stress_energy"]).sqrt()),
            unless_lost(ratio(total["strouhal_error"], total["strouhal_flows"])),
            unless_lost(ratio(total["distribution_error"], total["distribution_flows"])),
            ratio(total["diverged"], total["flows"]),
            unless_lost(ratio(total["energy"], total["true_energy"])),
            *(unless_lost(ratio(total[band], total[f"true_{band}"])) for band in BANDS),
            unless_lost(ratio(total["memory"], total["true_memory"])),
            ratio(total["survived"], total["flows"]),
        ]
        return torch.stack(values, dim=-1)

    def _scaled(self, fields: Float[Tensor, "t c y x"], frames: Frames) -> Tensor:
        scales = torch.tensor(channel_scales(self.spec, self.normalizer)).to(fields.device)
        return known_values(fields.double() / scales[:, None, None], frames.known)

    def _survived(self, frames: Frames) -> int:
        """Predicted frames before the first one that is lost."""
        truth, prediction = (
            self._scaled(fields, frames) for fields in (frames.truth, frames.prediction)
        )
        mean = truth.sum(0) / frames.known.sum(0).clamp(min=1)
        limit, distance = (
            known_values(fields - mean, frames.known).square().sum((1, 2, 3)).sqrt()
            for fields in (truth, prediction)
        )
        fine = distance <= LOST * limit.max()  # false where it is not finite
        return int((~fine).cumsum(0).eq(0).sum())

    def _compared(self, frames: Frames) -> dict[str, float]:
        truth, prediction = (
            self._scaled(fields, frames) for fields in (frames.truth, frames.prediction)
        )
        count = frames.known.sum(0).clamp(min=1)
        mean, predicted_mean = truth.sum(0) / count, prediction.sum(0) / count
        moving = known_values(truth - mean, frames.known)
        predicted_moving = known_values(prediction - predicted_mean, frames.known)
        stress, predicted_stress = (
            torch.einsum("tcyx,tdyx->cdyx", part, part) / count
            for part in (moving, predicted_moving)
        )
        row: dict[str, float | Tensor] = {
            "mean_error": (predicted_mean - mean).square().sum(),
            "mean_energy": mean.square().sum(),
            "stress_error": (predicted_stress - stress).square().sum(),
            "stress_energy": stress.square().sum(),
            "energy": torch.einsum("ccyx->", predicted_stress) / 2,
            "true_energy": torch.einsum("ccyx->", stress) / 2,
            "distribution_error": self._distance(frames),
            "distribution_flows": 1.0,
        }
        if supports_spectra(self.spec.grid):
            for prefix, part in (("", predicted_moving), ("true_", moving)):
                spectrum = radial_spectrum(part, frames.known, self.spec.grid).mean(0)
                edges = [round(num_rings(self.spec.grid) * end) for _, end in BANDS.values()]
                sums = [part.sum() for part in spectrum.tensor_split(edges[:-1])]
                row |= {prefix + band: energy for band, energy in zip(BANDS, sums, strict=True)}
        return {name: float(value) for name, value in {**row, **self._in_time(frames)}.items()}

    def _distance(self, frames: Frames) -> float:
        """Mean distance between the sorted values of each channel, in its standard deviations."""
        known, step = frames.known, max(1, int(frames.known.sum()) // MOST_VALUES)
        distances = []
        for channel, std in enumerate(self.normalizer.std):
            predicted, true = (
                fields[:, channel][known][::step].double().sort().values
                for fields in (frames.prediction, frames.truth)
            )
            distances.append(float((predicted - true).abs().mean()) / std)
        return sum(distances) / len(distances)

    def _in_time(self, frames: Frames) -> dict[str, float]:
        """Frequency and memory at the probes."""
        series = probe_series(frames)
        if not series.probes:
            return {}
        row: dict[str, float] = {}
        frequency, power = power_density(series.truth, series.dt)
        _, predicted = power_density(series.prediction, series.dt)
        true_peak = dominant_frequency(frequency, power.sum((1, 2)))
        if true_peak is not None:
            moves = predicted.sum() > POWER_FLOOR * power.sum()
            spectrum = predicted.sum((1, 2))
            peak = (dominant_frequency(frequency, spectrum, least=0.0) if moves else None) or 0.0
            row |= {"strouhal_error": abs(peak / true_peak - 1), "strouhal_flows": 1.0}
        memories = [correlation_time(s.flatten(1)) for s in (series.prediction, series.truth)]
        if memories[1] is not None:
            row |= {"memory": memories[0] or 0.0, "true_memory": memories[1]}
        return row


def dominant_frequency(
    frequency: Float[Tensor, " f"], power: Float[Tensor, " f"], *, least: float = PEAK_SHARE
) -> float | None:
    """The frequency of the highest peak, between the frequencies of the transform.

    The peak is that of the parabola through the logarithms of three neighbours.

    Args:
        frequency: Equally spaced from zero.
        power: A spectral density.
        least: Share of the energy that the peak must hold; None is returned if it holds less.
    """
    whole = power[1:].sum()
    if len(power) < 4 or not whole > 0:
        return None
    top = 1 + int(power[1:].argmax())
    near = power[max(1, top - 2) : top + 3].sum()
    if near < least * whole:
        return None
    if not 1 < top < len(power) - 1:
        return float(frequency[top])
    left, middle, right = power[top - 1 : top + 2].clamp(min=1e-300).log().tolist()
    bend = left - 2 * middle + right
    shift = 0.5 * (left - right) / bend if bend < 0 else 0.0
    return float(frequency[1]) * (top + shift)
