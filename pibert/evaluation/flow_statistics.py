"""Statistics of a recording: moments, spectra at probes, phase averages and modes.

Moments are over the measured vectors of each point: filled ones do not count. With <> the mean in
time and u' = u - <u>:

    stress     <u'u'>, <u'v'>, <v'v'>: Reynolds stresses (over the density)
    tke        half their trace; of two components in the plane, if no third was measured
    error      standard error of the mean: rms / sqrt(n), n the number of independent samples. That
               is the number of measured frames over twice the integral time scale, in frames: the
               autocorrelation of a channel, all points together, up to its first zero

Modes (``evaluation/modes.py``) need complete fields of the velocity; filled vectors count there.
Points that are never known (bodies, masks) are left out. Spectra are averages over segments that
overlap by half (Welch). A phase average needs a period: a given one, or that of the highest peak of
the spectrum at the probes if it holds a fifth of the energy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Complex, Float, Num
from torch import Tensor

from pibert.data.outliers import flag_outliers, usual_noise
from pibert.data.provenance import counts_frames
from pibert.data.units import in_consistent_units
from pibert.data.views import spread
from pibert.data.wording import counted
from pibert.display import as_html
from pibert.evaluation.measure import Frames, gradient_unit, require_velocity, velocity_unit
from pibert.evaluation.modes import (
    DMD,
    LEAST_SEGMENT,
    POD,
    SPOD,
    default_segment,
    dmd,
    pod,
    segments,
    spod,
)
from pibert.evaluation.statistics import LEAST_PERIODS, dominant_frequency
from pibert.evaluation.temporal import (
    KNOWN_SHARE,
    Probes,
    choose_probes,
    integral_time,
    power_density,
    series_at,
)
from pibert.fields import FieldSpec, Trajectory, read_mask
from pibert.notes import in_python
from pibert.physics import derivatives

MOST_VALUES = 1 << 28
"""Numbers of a recording that is held in memory, a gigabyte."""
MOST_FRAMES = 4000
"""Frames of which modes are computed; the effort grows with their third power."""
_CORRELATED = 400
"""Points whose autocorrelation is computed."""
_OUTLIERS, _OUTLIER_FRAMES = 1e-3, 16
"""Share of spurious vectors that is reported, and the frames that are tested for them."""
_LEAST_FRAMES = 8


@dataclass(frozen=True, kw_only=True)
class StatsOptions:
    """What to compute."""

    probes: tuple[tuple[float, float], ...] = ()
    """Coordinates (x, y) of the probes in the recording's unit; empty: chosen ones."""
    period: float | None = None
    """Of the phase average, in the unit of time; None: that of the dominant frequency."""
    phases: int = 8
    segment: int | None = None
    """Frames of a segment of spectra and SPOD; None: about a quarter of the record."""
    rank: int = 20
    """Most POD modes that DMD uses."""

    def __post_init__(self) -> None:
        for name, least in (("phases", 2), ("segment", LEAST_SEGMENT), ("rank", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be {least} or more, found {value}")
        if self.period is not None and not 0 < self.period < math.inf:
            raise ValueError(f"period must be positive, found {self.period}")


@dataclass(frozen=True, eq=False, kw_only=True)
class Spectra:
    """Power spectral density of each channel at points."""

    probes: Probes
    frequency: Float[Tensor, " f"]
    """From zero."""
    power: Float[Tensor, "f probe c"]
    dominant: float | None
    """The frequency of the highest peak, all probes together, from the whole record; None if it
    does not stand out or is below the lowest of ``frequency``."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PhaseAverage:
    """Means of the frames around equally spaced phases of a period, from the first frame on."""

    period: float
    mean: Float[Tensor, "phase c y x"]
    count: Float[Tensor, "phase y x"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FlowStatistics:
    """Fields of statistics, NaN where fewer than two vectors were measured."""

    flow: Trajectory
    """What they are of, in metres and seconds where its units are known."""
    velocity: tuple[int, ...]
    """Channels of two or three components."""
    dt: float | None
    """Between frames, in frames if the recording states no time; None: not uniform."""
    count: Float[Tensor, "y x"]
    mean: Float[Tensor, "c y x"]
    rms: Float[Tensor, "c y x"]
    """Of the fluctuations."""
    error: Float[Tensor, "c y x"]
    stress: Float[Tensor, "k k y x"]
    vorticity: Float[Tensor, "y x"]
    """Of the mean flow."""
    independent: Mapping[str, float | None]
    """Independent samples by channel; None: the record is too short to tell."""
    spectra: Spectra | None
    phase: PhaseAverage | None
    pod: POD | None
    spod: SPOD | None
    dmd: DMD | None
    points: Bool[Tensor, "y x"]
    """Those of the modes."""
    notes: tuple[str, ...] = field(default=())

    @property
    def tke(self) -> Float[Tensor, "y x"]:
        return torch.einsum("kkyx->yx", self.stress) / 2

    @property
    def spec(self) -> FieldSpec:
        return self.flow.spec

    @property
    def frequency_unit(self) -> str:
        unit = self.flow.time_unit or ("frame" if counts_frames(self.flow) else "time")
        return f"1/({unit})" if "/" in unit else f"1/{unit}"

    @property
    def gradient_unit(self) -> str:
        return gradient_unit(velocity_unit(self.spec), self.flow.length_unit)

    def field_of(self, mode: Tensor) -> Num[Tensor, "k y x"]:
        """A mode, over the points of all components, as a field; NaN elsewhere."""
        fields = torch.full((len(self.velocity), *self.points.shape), math.nan, dtype=mode.dtype)
        fields[:, self.points] = mode.view(len(self.velocity), -1)
        return fields

    def lifted(self, mode: Complex[Tensor, " r"]) -> Complex[Tensor, "k y x"]:
        """A mode in POD coefficients as a field."""
        assert self.pod is not None
        return self.field_of(mode @ self.pod.modes.to(mode))

    def __repr__(self) -> str:
        lines = [f"{name}: {value}" for name, value in self._facts().items()]
        return "\n".join([*lines, *(f"Note: {in_python(note)}" for note in self.notes)])

    def _repr_html_(self) -> str:
        return as_html(self._facts(), map(in_python, self.notes))

    def _facts(self) -> dict[str, str]:
        found = self.summary()
        facts = {"statistics": f"{found['name']}, {found['frames']} frames"}
        for key in ("mean", "rms"):
            values = (
                f"{name} {values[key]:.4g} [{values['unit']}]"
                for name, values in found["channels"].items()
            )
            facts[f"{key} over the field"] = ", ".join(values)
        unit = velocity_unit(self.spec)
        square = "" if unit == "1" else f" [({unit})^2]"
        facts["turbulent kinetic energy"] = f"{found['tke']:.4g}{square}"
        if found["dominant_frequency"] is not None:
            frequency = f"{found['dominant_frequency']:.4g} {self.frequency_unit}"
            facts["dominant frequency"] = frequency
        return facts

    def summary(self) -> dict[str, Any]:
        """Plain numbers: averages over points, and the leading modes."""
        spec, names = self.spec, self.spec.channels

        def average(values: Tensor) -> float | None:
            known = values[values.isfinite()]
            return float(known.mean()) if len(known) else None

        def root(values: Tensor) -> float | None:
            square = average(values.square())
            return None if square is None else math.sqrt(square)

        moments = {
            name: {
                "unit": spec.units[i],
                "mean": average(self.mean[i]),
                "rms": root(self.rms[i]),
                "error_of_mean": root(self.error[i]),
                "independent_samples": self.independent[name],
            }
            for i, name in enumerate(names)
        }
        letters = [names[i] for i in self.velocity]
        stress = {
            f"{a}{b}": average(self.stress[i, j])
            for i, a in enumerate(letters)
            for j, b in enumerate(letters)
            if i <= j
        }
        found: dict[str, Any] = {
            "name": self.flow.name,
            "frames": self.flow.num_frames,
            "dt": self.dt,
            "units": {
                "length": self.flow.length_unit,
                "frequency": self.frequency_unit,
                "vorticity": self.gradient_unit,
            },
            "measured_share": float(self.count.mean()) / self.flow.num_frames,
            "channels": moments,
            "stresses": stress,
            "tke": average(self.tke),
            "vorticity_rms": root(self.vorticity),
            "dominant_frequency": None if self.spectra is None else self.spectra.dominant,
            "period": None if self.phase is None else self.phase.period,
            "pod": None if self.pod is None else self.pod.share[:20].tolist(),
            "spod": None,
            "dmd": None,
            "notes": list(self.notes),
        }
        if self.spod is not None:
            energy = self.spod.energy
            found["spod"] = [
                {
                    "frequency": float(self.spod.frequency[i]),
                    "first_mode_share": float(energy[i, 0] / energy[i].sum()),
                    "share_of_all": float(energy[i].sum() / energy.sum()),
                }
                for i in self.spod.peaks(5)
            ]
        if self.dmd is not None:
            rows = zip(self.dmd.frequency, self.dmd.growth, self.dmd.amplitude, strict=True)
            keys = ("frequency", "growth", "amplitude")
            found["dmd"] = [dict(zip(keys, map(float, row), strict=True)) for row in rows][:10]
        return found


def flow_statistics(flow: Trajectory, options: StatsOptions | None = None) -> FlowStatistics:
    """Compute all statistics that a recording allows; notes say why others are left out."""
    options = options or StatsOptions()
    probes, unit, dx = options.probes, flow.length_unit, flow.spec.grid.dx
    flow = in_consistent_units(flow)
    scale = flow.spec.grid.dx / dx
    spec, notes = flow.spec, list[str]()
    require_velocity(spec, "statistics of a flow")
    if flow.num_frames < 2:
        raise ValueError(
            f"trajectory {flow.name!r}: statistics need two frames or more, found 1; give all "
            "files of the recording as a quoted pattern, such as 'run/B*.txt'"
        )
    if math.prod(flow.states.shape) > MOST_VALUES:
        t, c, ny, nx = flow.states.shape
        raise ValueError(
            f"trajectory {flow.name!r}: {t} frames of {c} x {ny} x {nx} values do not fit in "
            "memory; take some of them: pibert convert FILE part.h5 --frames 0:1000, --stride, "
            "--crop or --keep u,v"
        )
    fields = flow.read().to("cpu", torch.float32)
    finite = fields.isfinite().all(1)
    known = flow.known().cpu() & finite
    measured = flow.measured().cpu() & finite
    fields = torch.where(known[:, None], fields, 0.0)
    assert spec.velocity is not None
    velocity = (*spec.velocity, *(i for i, name in enumerate(spec.channels) if name == "w"))
    count, mean, covariance = _moments(fields, measured, spec)
    if not bool((count >= 2).any()):
        raise ValueError(
            f"trajectory {flow.name!r}: no point was measured twice; check the masks with pibert "
            "inspect"
        )
    rms = torch.einsum("ccyx->cyx", covariance).sqrt()
    if (spurious := _outlier_share(flow, fields, measured)) > _OUTLIERS:
        notes.append(
            f"{spurious:.1%} of the vectors do not fit their neighbours: spurious vectors raise "
            "rms, stresses and spectra; replace them first (pibert fill FILE --out filled.h5)"
        )
    dt = _time_step(flow)
    independent = _independent(fields, measured, spec)
    vorticity, defined = derivatives.where_defined(
        lambda u, v: derivatives.vorticity(u, v, spec.grid),
        *(mean[i].nan_to_num() for i in spec.velocity),
        known=count >= 2,
    )
    share = count / flow.num_frames
    samples = torch.tensor([independent[name] or math.nan for name in spec.channels]).double()
    body = None
    if flow.body is not None:
        body = read_mask(flow.body, slice(None)).cpu().expand_as(known)
    spectra = modes = phase = None
    if dt is None:
        notes.append(
            "spectra, SPOD and DMD are left out: the frames are not equally spaced in time"
        )
    elif flow.num_frames < _LEAST_FRAMES:
        notes.append(
            f"spectra need {_LEAST_FRAMES} frames or more, found {flow.num_frames}: no spectra"
        )
    else:
        frames = Frames(
            prediction=fields, truth=fields, last=fields, known=measured, body=body, spec=spec
        )
        chosen = _probe_points(probes, scale, unit, frames) if probes else choose_probes(frames)
        if chosen:
            spectra = _spectra(chosen, frames, dt, options.segment, notes)
        else:
            notes.append(f"no probe is measured in {KNOWN_SHARE:.0%} of the frames: no spectra")
    phase = _phase_average(flow, fields, measured, spectra, options, notes)
    points = known.all(0)
    modes, spods, dmds = _modes(flow, fields[:, list(velocity)], known, body, dt, options, notes)
    if any(independent[spec.channels[i]] is None for i in velocity):
        notes.append(
            "the record is too short for its correlation time: the error of the mean is not known"
        )
    return FlowStatistics(
        flow=flow,
        velocity=velocity,
        dt=dt,
        count=count,
        mean=mean,
        rms=rms,
        error=rms / (samples[:, None, None] * share).sqrt(),
        stress=covariance[list(velocity)][:, list(velocity)],
        vorticity=torch.where(defined & (count >= 2), vorticity, math.nan),
        independent=independent,
        spectra=spectra,
        phase=phase,
        pod=modes,
        spod=spods,
        dmd=dmds,
        points=points,
        notes=tuple(notes),
    )


def _moments(fields: Tensor, measured: Tensor, spec: FieldSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Count (y, x), mean (c, y, x) and covariances (c, c, y, x) in time, in blocks of frames."""
    c, blocks = len(spec.channels), list(range(0, len(fields), 256))
    count = measured.sum(0).double()
    total = torch.zeros(c, *spec.grid.shape, dtype=torch.float64)
    products = torch.zeros(c, c, *spec.grid.shape, dtype=torch.float64)
    for start in blocks:
        part = slice(start, start + 256)
        total += torch.where(measured[part, None], fields[part].double(), 0.0).sum(0)
    mean = total / torch.where(count >= 2, count, math.nan)
    for start in blocks:
        part = slice(start, start + 256)
        moving = torch.where(measured[part, None], fields[part] - mean, 0.0)
        products += torch.einsum("tcyx,tdyx->cdyx", moving, moving)
    return count, mean, products / torch.where(count >= 2, count, math.nan)


def _time_step(flow: Trajectory) -> float | None:
    steps = flow.time.diff()
    step = float(steps.mean())
    return step if bool((steps - step).abs().max() < 1e-3 * step) else None


def _independent(fields: Tensor, measured: Tensor, spec: FieldSpec) -> dict[str, float | None]:
    """Number of independent samples in the record, by channel."""
    rows, columns = (measured.double().mean(0) >= KNOWN_SHARE).nonzero(as_tuple=True)
    step = max(1, len(rows) // _CORRELATED)
    points = tuple(zip(rows[::step].tolist(), columns[::step].tolist(), strict=True))
    if not points:
        return dict.fromkeys(spec.channels)
    series, found = series_at(points, fields, measured), {}
    for i, name in enumerate(spec.channels):
        scale = integral_time(series[..., i])
        found[name] = None if scale is None else min(1.0, 0.5 / scale) * len(fields)
    return found


def _probe_points(
    probes: tuple[tuple[float, float], ...], scale: float, unit: str | None, frames: Frames
) -> Probes:
    """Rows and columns of the points nearest to coordinates in the recording's unit."""
    grid, found = frames.spec.grid, []
    for x, y in probes:
        column = round((scale * x - grid.origin[0]) / grid.dx)
        row = round((scale * y - grid.origin[1]) / grid.dy)
        inside = 0 <= row < grid.shape[0] and 0 <= column < grid.shape[1]
        if not inside or float(frames.known[:, row, column].double().mean()) < KNOWN_SHARE:
            ends = [
                f"{name} from {start / scale:g} to {(start + (n - 1) * step) / scale:g}"
                for name, start, n, step in (
                    ("x", grid.origin[0], grid.shape[1], grid.dx),
                    ("y", grid.origin[1], grid.shape[0], grid.dy),
                )
            ]
            problem = f"is measured in less than {KNOWN_SHARE:.0%} of the frames"
            raise ValueError(
                f"the probe at {x:g},{y:g} {problem if inside else 'is outside the field'}; choose "
                f"a point with {' and '.join(ends)}{f' {unit}' if unit else ''}"
            )
        found.append((row, column))
    return tuple(found)


def _spectra(
    probes: Probes, frames: Frames, dt: float, segment: int | None, notes: list[str]
) -> Spectra:
    series = series_at(probes, frames.truth, frames.known)
    parts = segments(series, segment or default_segment(len(series)))
    densities = [power_density(part, dt) for part in parts]
    frequency, whole = power_density(series[..., list(frames.spec.velocity or ())], dt)
    dominant = dominant_frequency(frequency, whole.sum((1, 2)))
    resolved = densities[0][0]
    periods = 0.0 if dominant is None else dominant * dt * len(series)
    if dominant is not None and dominant < resolved[1]:
        # Also the transform of turbulence has its highest peak in one of its first bins.
        if periods >= LEAST_PERIODS:
            notes.append(
                f"the highest peak of the spectrum has {periods:.2g} periods in the record, fewer "
                f"than the {len(series) / len(parts[0]):.2g} that segments of {len(parts[0])} "
                "frames resolve: record longer, or give a longer --segment"
            )
        dominant = None
    if periods < LEAST_PERIODS:
        dominant = None
    return Spectra(
        probes=probes,
        frequency=resolved,
        power=torch.stack([power for _, power in densities]).mean(0),
        dominant=dominant,
    )


def _phase_average(
    flow: Trajectory,
    fields: Tensor,
    measured: Tensor,
    spectra: Spectra | None,
    options: StatsOptions,
    notes: list[str],
) -> PhaseAverage | None:
    period = options.period
    if period is None and spectra is not None and spectra.dominant is not None:
        period = 1 / spectra.dominant
    if period is None:
        why = "no frequency dominates" if spectra is not None else "without spectra no period"
        notes.append(f"{why}: for phase averages give the --period")
        return None
    length = float(flow.time[-1] - flow.time[0])
    if period > length:
        raise ValueError(
            f"--period {period:g} is longer than the recording, {length:g} "
            f"{flow.time_unit or 'frames'}; give the period in this unit"
        )
    n = options.phases
    number = ((flow.time - flow.time[0]) / period * n + 0.5).floor().long() % n
    count = torch.zeros(n, *measured.shape[1:], dtype=torch.float64)
    total = torch.zeros(n, *fields.shape[1:], dtype=torch.float64)
    for frame, phase in enumerate(number.tolist()):
        count[phase] += measured[frame]
        total[phase] += torch.where(measured[frame], fields[frame], 0.0)
    if not bool(count.any(2).any(1).all()):
        notes.append(f"some of the {n} phases have no frame; choose fewer --phases")
    mean = total / torch.where(count > 0, count, math.nan)[:, None]
    return PhaseAverage(period=period, mean=mean, count=count)


def _modes(
    flow: Trajectory,
    fields: Tensor,
    known: Tensor,
    body: Tensor | None,
    dt: float | None,
    options: StatsOptions,
    notes: list[str],
) -> tuple[POD | None, SPOD | None, DMD | None]:
    points = known.all(0)
    gaps = known.any(0) & ~points
    if bool(gaps.any()):
        missing, whole = int((~known[:, gaps]).sum()), int(known.any(0).sum()) * len(known)
        why = (
            f"{missing:,} of {whole:,} vectors are missing; fill them first (pibert fill FILE "
            "--out filled.h5)"
        )
        if empty := int((~known.any(2).any(1)).sum()):
            why = (
                f"{empty} of {counted(len(known), 'frame')} have no vector; take the others "
                "(pibert convert FILE part.h5 --frames FIRST:END), or remove the files"
            )
        elif body is not None and bool((body & gaps).any()):
            why = (
                "a moving body covers some points in some frames; take a region without it (pibert "
                "convert FILE wake.h5 --crop x=FROM:TO)"
            )
        notes.append(f"POD, SPOD and DMD are left out: {why}")
        return None, None, None
    if len(fields) > MOST_FRAMES:
        notes.append(f"the modes are those of the first {MOST_FRAMES} of {len(fields)} frames")
        fields = fields[:MOST_FRAMES]
    states = fields[:, :, points].flatten(1).double()
    found = pod(states - states.mean(0))
    if dt is None:
        return found, None, None
    segment, spods = options.segment or default_segment(len(fields)), None
    try:
        spods = spod(found.coefficients, dt, segment)
    except ValueError as error:
        notes.append(str(error))
    if options.rank > (most := len(fields) // 2):
        notes.append(
            f"DMD uses {counted(most, 'POD mode')} of {counted(len(fields), 'frame')}: with more "
            "it becomes a Fourier transform of the record; record longer, or give a lower --rank"
        )
    dynamics = dmd(found.coefficients, dt, options.rank)
    amplitude = dynamics.amplitude / math.sqrt(int(points.sum()))  # over the field
    return found, spods, replace(dynamics, amplitude=amplitude)


def _outlier_share(flow: Trajectory, fields: Tensor, measured: Tensor) -> float:
    """Share of outliers among the measured vectors of some frames."""
    noise = usual_noise(flow, velocity := flow.spec.velocity or ())
    if noise is None:
        return 0.0
    frames = list(spread(len(fields), _OUTLIER_FRAMES))
    tested = measured[frames]
    flagged = flag_outliers(fields[frames][:, list(velocity)], noise=noise, known=tested)
    return int(flagged.sum()) / max(1, int(tested.sum()))


def tables(found: FlowStatistics) -> dict[str, tuple[list[str], Tensor]]:
    """Numbers as columns, by the name of a file: their names, and values (row, column)."""
    names, result = found.spec.channels, dict[str, tuple[list[str], Tensor]]()
    if found.spectra is not None:
        grid = found.spec.grid
        places = [
            f"{grid.origin[0] + column * grid.dx:.6g};{grid.origin[1] + row * grid.dy:.6g}"
            for row, column in found.spectra.probes
        ]
        columns = [f"{name} at {place}" for place in places for name in names]
        values = (found.spectra.frequency[:, None], found.spectra.power.flatten(1))
        result["spectra"] = ["frequency", *columns], torch.cat(values, dim=1)
    if found.pod is not None:
        share = found.pod.share
        number = torch.arange(1, len(share) + 1).double()
        columns = ["mode", "energy", "share", "cumulative"]
        result["pod"] = columns, torch.stack((number, found.pod.energy, share, share.cumsum(0)), 1)
        time = found.flow.time[: len(found.pod.coefficients), None]
        few = found.pod.coefficients[:, :20]
        labels = ["time", *(f"a{i + 1}" for i in range(few.shape[1]))]
        result["pod_coefficients"] = labels, torch.cat((time, few), dim=1)
    if found.spod is not None:
        energy = found.spod.energy
        labels = ["frequency", *(f"energy of mode {i + 1}" for i in range(energy.shape[1]))]
        result["spod"] = labels, torch.cat((found.spod.frequency[:, None], energy), dim=1)
    if found.dmd is not None:
        columns = ["frequency", "growth", "amplitude"]
        result["dmd"] = columns, torch.stack([getattr(found.dmd, name) for name in columns], dim=1)
    return result


def fields_of(found: FlowStatistics, modes: int) -> dict[str, Trajectory]:
    """Statistics as recordings, by the name of a file; modes are counted as frames, from 1."""
    spec, names = found.spec, found.spec.channels
    letters = [names[i] for i in found.velocity]
    unit = velocity_unit(spec)
    square = "1" if unit == "1" else f"({unit})^2"
    moments = {"count": ("1", found.count), "tke": (square, found.tke)}
    for kind in ("mean", "rms", "error"):
        values = getattr(found, kind)
        if bool(values.isfinite().any()):
            moments |= {f"{kind}_{n}": (spec.units[i], values[i]) for i, n in enumerate(names)}
    for i, a in enumerate(letters):
        for j, b in enumerate(letters[i:], i):
            moments[f"{a}{b}"] = (square, found.stress[i, j])

    def recording(
        name: str, channels: Mapping[str, str], values: Tensor, time: Tensor | None = None
    ) -> Trajectory:
        values = values.float()
        number = torch.arange(1.0, len(values) + 1) if time is None else time
        kept = replace(
            spec, channels=tuple(channels), units=tuple(channels.values()), family=None, dt=None
        )
        valid, local = values.isfinite().all(1), {**found.flow.local, "statistics": name}
        body = kept.grid.body  # of a moving one only the gaps remain
        return replace(
            found.flow,
            name=name,
            states=values,
            time=number,
            time_unit=None if time is None else found.flow.time_unit,
            spec=kept,
            body=body,
            valid=valid if body is None else valid | body,
            filled=None,
            series={},
            local=local,
        )

    result = {
        "moments": recording(
            "moments",
            {name: unit for name, (unit, _) in moments.items()},
            torch.stack([values for _, values in moments.values()])[None],
        ),
        "vorticity": recording(
            "vorticity", {"vorticity": found.gradient_unit}, found.vorticity[None, None]
        ),
    }
    units = dict(zip(names, spec.units, strict=True))
    if found.phase is not None:
        steps = torch.arange(len(found.phase.mean)).double() / len(found.phase.mean)
        result["phases"] = recording("phases", units, found.phase.mean, steps * found.phase.period)
    plain = dict.fromkeys(letters, "1")
    whole = {**plain, **{f"{name}_imag": "1" for name in letters}}

    def complex_fields(rows: list[Tensor]) -> Tensor:
        lifted = torch.stack([found.lifted(row) for row in rows])
        return torch.cat((lifted.real, lifted.imag), dim=1)

    if found.pod is not None:
        leading = [found.field_of(mode) for mode in found.pod.modes[:modes]]
        result["pod_modes"] = recording("pod_modes", plain, torch.stack(leading))
    if found.spod is not None and (peaks := found.spod.peaks(modes)):
        rows = [found.spod.modes[index, 0] for index in peaks]
        result["spod_modes"] = recording("spod_modes", whole, complex_fields(rows))
    if found.dmd is not None:
        rows = list(found.dmd.modes[:modes])
        result["dmd_modes"] = recording("dmd_modes", whole, complex_fields(rows))
    return result
