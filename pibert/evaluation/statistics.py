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
    strouhal_error       |f' / f - 1|, f the mean frequency of the energy within a third of the
                         highest peak at the probes (``evaluation/temporal.py``), each flow's own;
                         mean over flows. A flow has none without a peak that holds a fifth of the
                         energy within two bins and has a period and a half in the run
    distribution_error   mean distance between the sorted values of prediction and truth at all
                         points (Wasserstein), in standard deviations of the training set; mean
                         over flows and channels
    psd_log_error        |log10 P' / P| of the power spectra at the probes, mean over frequencies,
                         channels and flows
    memory_ratio         correlation time of the fluctuations at the probes, predicted over true
    mean_profile_error, stress_profile_error
                         sqrt(sum |m' - m|^2 / sum |m|^2), and the same of R, along columns: 0.75, 2
                         and 4 diameters behind a body, else the paper's three
    drag_error           |F' / F - 1|, F the mean drag of all bodies from a momentum balance
                         (``evaluation/forces.py``); mean over flows
    drag_coefficient     2 F / (U^2 D) of prediction and truth, mean over flows
    lift_rms_ratio       standard deviation in time of the lift, predicted over true
    lift_frequency_error |f' / f - 1|, f the frequency of the lift, as for strouhal_error
    survival             frames before a run diverges (``evaluation/divergence.py``); mean over
                         flows
    diverged             share of the flows that do not survive to the end

The drag from the balance is given for flows with bodies at rest, known U, D, viscosity and time
step, in a view that reaches around the bodies. D is the reference length of the flow. Where a model
predicts the recorded series ``drag`` or ``lift`` as states of a structure, drag and lift are these
(coefficients of the moving body, positive along x and y). The balance leaves out points that are
unknown in the first or the last frame.

The statistics of a rollout that diverges are infinitely wrong. Means, stresses, frequency and
memory take channels together, in units of their standard deviation where their units differ. Points
that a moving body of the true flow covers at some time are left out.

No model can be expected to do better than the true flow's own sampling error: two stretches of a
flow, each as long as the rollout, differ too. ``sampling_terms`` estimates it from the two halves
of the truth. The squared difference of two halves is twice that of two stretches of full length;
errors that are no squares or roots of squares are those of the halves.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.evaluation.divergence import limit_of, survived
from pibert.evaluation.forces import mean_force, rectangle_around
from pibert.evaluation.measure import (
    ALL,
    Entry,
    Frames,
    channel_scales,
    known_values,
    ratio,
    uniform_series,
)
from pibert.evaluation.regions import stations
from pibert.evaluation.scales import BANDS, num_rings, radial_spectrum, supports_spectra
from pibert.evaluation.temporal import (
    POWER_FLOOR,
    correlation_time,
    log_errors,
    power_density,
    probe_series,
)
from pibert.fields import FieldSpec, Normalizer

LEAST_FRAMES = 20
"""Fewer frames have no statistics."""
PEAK_SHARE = 0.2
"""Of the energy within a peak and its two neighbours on either side."""
LEAST_PERIODS = 1.5
"""Of a peak in a record; a slower change is a trend, or one passing event."""
MOST_VALUES = 100_000
"""Values of a channel that are sorted."""
BINS = 60
"""Of the probability densities that figures show."""

_TERMS = (
    *("flows", "diverged", "survived"),
    *("mean_error", "mean_energy", "stress_error", "stress_energy", "energy", "true_energy"),
    *("low", "mid", "high", "true_low", "true_mid", "true_high"),
    *("strouhal_error", "strouhal_flows", "distribution_error", "distribution_flows"),
    *("memory", "true_memory", "psd_error", "psd_flows"),
    *("mean_profile_error", "mean_profile_energy", "stress_profile_error", "stress_profile_energy"),
    *("drag_error", "drag", "true_drag", "drag_flows"),
    *("lift", "true_lift", "lift_frequency_error", "lift_frequency_flows"),
)
_SQUARES = ("mean_error", "stress_error", "mean_profile_error", "stress_profile_error")
_DRAG = "drag_coefficient"


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
        more = ("psd_log_error", "mean_profile_error", "stress_profile_error", "drag_error")
        return (
            *(Entry(metric=name, component=ALL) for name in errors),
            *(Entry(metric=name, component=ALL, better="none") for name in ratios),
            Entry(metric="survival", component=ALL, unit="frames", better="higher"),
            *(Entry(metric=name, component=ALL) for name in more),
            *(Entry(metric=_DRAG, component=c, better="none") for c in ("prediction", "truth")),
            Entry(metric="lift_rms_ratio", component=ALL, better="none"),
            Entry(metric="lift_frequency_error", component=ALL),
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
        for name in _SQUARES:
            row[_TERMS.index(name)] /= 2
        return row

    def pictures(self, frames: Frames) -> dict[str, Tensor]:
        """What figures show of a run, up to where it is lost; float32, in physical units.

        ``mean`` and ``stress`` (c, c, y, x), ``series`` (t, probe, c) and ``density`` (c, bin) of
        the prediction, those of the truth with ``true_``, ``known`` (y, x), ``probes``, ``edges``.
        """
        series, survived = probe_series(frames), self._survived(frames)
        found: dict[str, Tensor] = {
            "survived": torch.tensor(survived),
            "known": frames.known.any(0),
            "probes": torch.tensor(series.probes).reshape(-1, 2),
            "series": series.prediction,
            "true_series": series.truth,
        }
        truth, prediction, known = frames.truth, frames.prediction, frames.known
        ends = [_values(truth, channel, known) for channel in range(truth.shape[1])]
        spans = [(float(v.min()), float(v.max())) for v in ends]
        margins = [0.1 * max(high - low, 1e-12) for low, high in spans]
        edges = [
            torch.linspace(low - margin, high + margin, BINS + 1, dtype=torch.float64)
            for (low, high), margin in zip(spans, margins, strict=True)
        ]
        found["edges"] = torch.stack(edges)
        for prefix, fields, size in (("", prediction, survived), ("true_", truth, len(truth))):
            if size < LEAST_FRAMES:
                continue
            mean, stress, _ = moments(fields[:size].double(), known[:size])
            found |= {f"{prefix}mean": mean, f"{prefix}stress": stress}
            found[f"{prefix}density"] = torch.stack(
                [
                    torch.histogram(_values(fields[:size], c, known[:size]), e, density=True).hist
                    for c, e in enumerate(edges)
                ]
            )
        return {
            name: (value.float() if value.is_floating_point() else value).cpu()
            for name, value in found.items()
        }

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
            unless_lost(ratio(total["psd_error"], total["psd_flows"])),
            *(
                unless_lost(
                    ratio(total[f"{what}_profile_error"], total[f"{what}_profile_energy"])
                ).sqrt()
                for what in ("mean", "stress")
            ),
            unless_lost(ratio(total["drag_error"], total["drag_flows"])),
            unless_lost(ratio(total["drag"], total["drag_flows"])),
            ratio(total["true_drag"], total["drag_flows"]),
            unless_lost(ratio(total["lift"], total["true_lift"])),
            unless_lost(ratio(total["lift_frequency_error"], total["lift_frequency_flows"])),
        ]
        return torch.stack(values, dim=-1)

    def survived(self, terms: Float[Tensor, "*batch k"]) -> Int[Tensor, "*batch"]:
        """Frames before a run is lost, from its row."""
        return terms[..., _TERMS.index("survived")].long()

    def _scaled(self, fields: Float[Tensor, "t c y x"], frames: Frames) -> Tensor:
        scales = torch.tensor(channel_scales(self.spec, self.normalizer)).to(fields.device)
        return known_values(fields.double() / scales[:, None, None], frames.known)

    def _survived(self, frames: Frames) -> int:
        """Predicted frames before the first one that is lost."""
        truth, prediction = (
            self._scaled(fields, frames) for fields in (frames.truth, frames.prediction)
        )
        mean = truth.sum(0) / frames.known.sum(0).clamp(min=1)
        true_distance, distance = (
            known_values(fields - mean, frames.known).square().sum((1, 2, 3)).sqrt()
            for fields in (truth, prediction)
        )
        most = limit_of(float(true_distance.max()), float(mean.square().sum().sqrt()))
        return int(survived(distance, distance.new_tensor([most])))

    def _compared(self, frames: Frames) -> dict[str, float]:
        (mean, stress, moving), (predicted_mean, predicted_stress, predicted_moving) = (
            moments(self._scaled(fields, frames), frames.known)
            for fields in (frames.truth, frames.prediction)
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
        columns = list(stations(_usual_body(frames), self.spec.grid).values())
        for what, true, predicted in (
            ("mean", mean, predicted_mean),
            ("stress", stress, predicted_stress),
        ):
            line = true[..., columns]
            row[f"{what}_profile_error"] = (predicted[..., columns] - line).square().sum()
            row[f"{what}_profile_energy"] = line.square().sum()
        row |= self._in_time(frames) | drag_terms(frames) | state_force_terms(frames)
        return {name: float(value) for name, value in row.items()}

    def _distance(self, frames: Frames) -> float:
        """Mean distance between the sorted values of each channel, in its standard deviations."""
        distances = []
        for channel, std in enumerate(self.normalizer.std):
            predicted, true = (
                _values(fields, channel, frames.known).sort().values
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
        _, power = power_density(series.truth, series.dt)
        _, predicted = power_density(series.prediction, series.dt)
        # Energies of several channels add up whatever their units are.
        scales = torch.tensor(channel_scales(self.spec, self.normalizer)).to(series.truth)
        both = series.prediction / scales, series.truth / scales
        error = _frequency_error(*both, series.dt)
        if error is not None:
            row |= {"strouhal_error": error, "strouhal_flows": 1.0}
        row |= {"psd_error": float(log_errors(predicted.mean(1), power.mean(1)).mean())}
        row |= {"psd_flows": 1.0}
        memories = [correlation_time(each.flatten(1)) for each in both]
        if memories[1] is not None:
            row |= {"memory": memories[0] or 0.0, "true_memory": memories[1]}
        return row


def moments(
    fields: Float[Tensor, "t c y x"], known: Bool[Tensor, "t y x"]
) -> tuple[Float[Tensor, "c y x"], Float[Tensor, "c c y x"], Float[Tensor, "t c y x"]]:
    """Mean in time, covariances of the channels, and fluctuations; zero where nothing is known."""
    count = known.sum(0).clamp(min=1)
    mean = known_values(fields, known).sum(0) / count
    moving = known_values(fields - mean, known)
    return mean, torch.einsum("tcyx,tdyx->cdyx", moving, moving) / count, moving


def _values(
    fields: Float[Tensor, "t c y x"], channel: int, known: Bool[Tensor, "t y x"]
) -> Float[Tensor, " n"]:
    """Known values of a channel, evenly taken from all; at most about ``MOST_VALUES``."""
    step = max(1, int(known.sum()) // MOST_VALUES)
    return fields[:, channel][known][::step].double().cpu()


def _usual_body(frames: Frames) -> Bool[Tensor, "y x"] | None:
    """What is solid in at least half of the frames."""
    return None if frames.body is None else frames.body.double().mean(0) >= 0.5


def drag_terms(frames: Frames) -> dict[str, float]:
    """Drag coefficients of prediction and truth; nothing where the balance cannot be drawn up."""
    spec, body = frames.spec, frames.body
    speed, size, viscosity = spec.reference_velocity, spec.reference_length, spec.viscosity
    if body is None or spec.velocity is None or not (speed and size and viscosity and spec.dt):
        return {}
    around = rectangle_around(body[0], frames.known.all(0), spec.grid)
    if around is None or bool((body != body[0]).any()):
        return {}
    # A gap in one of these frames is no acceleration.
    known = frames.known & frames.known[0] & frames.known[-1]
    drag, true_drag = (
        float(
            mean_force(
                known_values(fields, known)[:, list(spec.velocity)].cpu(),
                around,
                spec.grid,
                viscosity=viscosity,
                dt=spec.dt,
            )[0]
        )
        * (2 / (speed**2 * size))
        for fields in (frames.prediction, frames.truth)
    )
    error = abs(drag / true_drag - 1) if true_drag else math.inf
    return {"drag_error": error, "drag": drag, "true_drag": true_drag, "drag_flows": 1.0}


def state_force_terms(frames: Frames) -> dict[str, float]:
    """Drag and lift of the moving body; nothing where they are not among the predicted states."""
    spec, row = frames.spec, dict[str, float]()
    forces = {
        name: [
            uniform_series(fields[:, spec.channels.index(name)], frames.known)
            for fields in (frames.prediction, frames.truth)
        ]
        for name in ("drag", "lift")
        if name in spec.state
    }
    if "drag" in forces:
        drag, true_drag = (float(series.mean()) for series in forces["drag"])
        error = abs(drag / true_drag - 1) if true_drag else math.inf
        row |= {"drag_error": error, "drag": drag, "true_drag": true_drag, "drag_flows": 1.0}
    if "lift" in forces:
        lift, true_lift = forces["lift"]
        row |= {
            "lift": float(lift.std(correction=0)),
            "true_lift": float(true_lift.std(correction=0)),
        }
        if spec.dt:
            off = _frequency_error(lift[:, None, None], true_lift[:, None, None], spec.dt)
            if off is not None:
                row |= {"lift_frequency_error": off, "lift_frequency_flows": 1.0}
    return row


def _frequency_error(
    predicted: Float[Tensor, "t probe c"], true: Float[Tensor, "t probe c"], dt: float
) -> float | None:
    """|f' / f - 1|, 1 for a prediction that does not move; None if no true peak stands out."""
    frequency, power = power_density(true, dt)
    _, mine = power_density(predicted, dt)
    true_mean = mean_frequency(frequency, power.sum((1, 2)), least=PEAK_SHARE)
    if true_mean is None or true_mean < LEAST_PERIODS * frequency[1]:
        return None
    moves = mine.sum() > POWER_FLOOR * power.sum()
    mean = (mean_frequency(frequency, mine.sum((1, 2))) if moves else None) or 0.0
    return abs(mean / true_mean - 1)


def mean_frequency(
    frequency: Float[Tensor, " f"], power: Float[Tensor, " f"], *, least: float = 0.0
) -> float | None:
    """The mean frequency of the energy within a third of the highest peak's frequency.

    Irregular shedding has a broad peak, whose highest point is a matter of chance: it moves by some
    per cent from record to record, this mean by a half to two thirds of that. None: as for
    ``dominant_frequency``.
    """
    peak = dominant_frequency(frequency, power, least=least)
    if peak is None:
        return None
    # At least the width of a line under the Hann window.
    near = (frequency - peak).abs() <= max(peak / 3, 2.5 * float(frequency[1]))
    near[0] = False
    return float((frequency * power)[near].sum() / power[near].sum())


def dominant_frequency(
    frequency: Float[Tensor, " f"], power: Float[Tensor, " f"], *, least: float = PEAK_SHARE
) -> float | None:
    """The frequency of the highest peak, between the frequencies of the transform.

    The peak is that of the parabola through the logarithms of three neighbours. None: it holds less
    than a ``least`` share of the energy.
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
