"""RealPDEBench's metrics as its code computes them, corrected variants, and its competition.

A sample is a window of t frames: y the truth, q the prediction, (t, h, w, c) in physical units.
``official_`` marks what their code gives, including its peculiarities, for comparison with
published numbers (RealPDEBench, AI4Science-WestlakeU, code of 2026):

    rmse, mae   over all values of all samples
    rel_l2      mean over samples of |q - y| / |y|
    r2          1 - sum (q - y)^2 / sum (y - ybar)^2, ybar the mean of all samples at each point of
                the window: give it as ``mean`` (``mean_window``), or there is no r2
    ke          mean over samples and points of |e_q - e_y|, e = (var_t u + var_t v) / 2
    frmse       F(k) = sqrt(mean over samples of E(k)) / (t h w) of each channel, E(k) the sum of
                |FFT(q - y)|^2 over i < t/2, j < h/2, l < w/2 with floor(sqrt(i^2 + j^2 + l^2)) = k;
                mean over k < K = min(t, h, w)/2 and channels, and over thirds of the k;
                halves of odd numbers are rounded down
    rel_frmse   mean over a third and channels of F of the error over F of the truth
    fe          mean over samples and frequencies of |FFT(s_q) - FFT(s_y)|, s(t) the sum over points
                and channels: it grows with the number of points
    mvpe        mean over samples, probes and channels of the error of the time mean; probes are
                behind the body (``body_probes``), and where they do not all fit, as with their
                moving cylinder, there is no mvpe

The variance is that of the window, so ke is not a kinetic energy; only an eighth of the spectrum
counts, without the size of a shell; and no point is left out. Points that are not known are taken
as zero in truth and prediction. The variants without the mark leave such points out:

    fluctuation_energy_error, fluctuation_energy_rel_error   |e_q - e_y| as above, and over e_y
    kinetic_energy_error   mean of | |q|^2 - |y|^2 | / 2, of the velocity itself
    frmse_shell_mean       F(k) with the mean over a shell of the whole spectrum
    fe_per_point           of s(t) the mean over points, in every channel, over the number of frames
    mvpe_measured          at stations that fit

Scores of the RealPDE competition (NeurIPS 2026, track 1): 20 frames from 20, on 32 x 64 points.

A window is y, the truth, and q, the prediction, of u and v. Each e is a mean over windows:

    competition_rel_l2   e = |q - y| / |y|
    competition_tke      e = |k_q - k_y| / |k_y|, k = (var_t u + var_t v) / 2 at each point
    competition_mvpe     e = |m_q - m_y| / |m_y|, m the mean in time at nine rows of a column; mean
                         of four columns
    competition_sps      see below

The first three are 100 / (1 + e / 2). The safe prediction score (SPS) rewards narrow intervals that
hold the truth. The reward of a value inside its interval is w exp(-(upper - lower) / sigma), of one
outside it is zero; w = 0.5 a(rel_l2) + 0.3 a(tke) + 0.2 a(mvpe) with a(e) = 0.5 / (0.5 + e) of
its window. The score is 100 times the mean over all values that are not zero in the truth. Entries
without intervals get q -+ 0.05 |q|, as ``terms`` does; ``window_terms`` takes other intervals.

The score for time is left out, since it needs the organisers' machine, and so is the final score,
whose weights are not published. Source: a competitor's notes on version 9 of the starter kit
(github.com/pranay172/realpde-track1). Unknown points count as zero in truth and prediction.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.evaluation.measure import (
    ALL,
    Entry,
    Frames,
    Measure,
    common_unit,
    ratio,
    require_velocity,
    squared_unit,
)
from pibert.evaluation.temporal import BANDS, Probes, body_probes

Windows = Float[Tensor, "sample t h w c"]
_PLAIN = 17
"""Terms of a sample before its spectra."""
_TOGETHER = 8
"""Windows that are transformed at once."""


@lru_cache(maxsize=8)
def shell_numbers(t: int, h: int, w: int, *, half: bool) -> Int[Tensor, "i j l"]:
    """The shell of every wave: of the lower half of each axis, or of all by their distance to 0."""
    axes = []
    for n in (t, h, w):
        index = torch.arange(n // 2 if half else n)
        axes.append(index if half else torch.minimum(index, n - index))
    i, j, l_ = torch.meshgrid(*axes, indexing="ij")
    # Exact: the root of a square in double precision is the whole number.
    return (i * i + j * j + l_ * l_).double().sqrt().floor().long()


def shell_sums(
    power: Float[Tensor, "sample t h w c"], shell: Int[Tensor, "i j l"]
) -> Float[Tensor, "sample k c"]:
    """Sums over the shells below half of the shortest axis."""
    i, j, l_ = shell.shape
    shells = min(power.shape[1:4]) // 2
    values = power[:, :i, :j, :l_].flatten(1, 3)
    index = shell.flatten().to(power.device).clamp(max=shells)  # the last collects the corners
    sums = power.new_zeros(len(power), shells + 1, power.shape[-1])
    return sums.index_add(1, index, values)[:, :shells]


def band_means(spectrum: Float[Tensor, "*batch k c"]) -> list[Float[Tensor, "*batch"]]:
    """Means over all shells and over their thirds, and over channels."""
    shells = spectrum.shape[-2]
    ends = [0, round(shells / 3), round(2 * shells / 3), shells]
    parts = [spectrum, *(spectrum[..., a:b, :] for a, b in zip(ends[:-1], ends[1:], strict=True))]
    return [part.mean((-2, -1)) for part in parts]


def in_windows(fields: Float[Tensor, "n c h w"], frames: int) -> Windows:
    """The whole windows of a trajectory."""
    count = len(fields) // frames
    return fields[: count * frames].unflatten(0, (count, frames)).movedim(2, -1)


def mean_window(
    targets: Iterable[Float[Tensor, "_ t h w c"]],
) -> Float[Tensor, "t h w c"] | None:
    """The mean of all samples at each point of the window; None of one, which has no variance."""
    sums = ((target.double().sum(0), len(target)) for target in targets)
    total, count = reduce(lambda a, b: (a[0] + b[0], a[1] + b[1]), sums)
    return total / count if count > 1 else None


@dataclass(frozen=True, eq=False, kw_only=True)
class Official(Measure):
    """The metrics of a window length; frames of a trajectory are split into such windows."""

    frames: int
    """Of a window; what is left over at the end of a trajectory does not count."""
    mean: Float[Tensor, "t h w c"] | None = None
    """Of all samples; without it there is no r2."""
    name: ClassVar[str] = "official"
    of_sequences: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_velocity(self.spec, "RealPDEBench's metrics")
        expected = (self.frames, *self.spec.grid.shape, len(self.spec.channels))
        if self.mean is not None and tuple(self.mean.shape) != expected:
            raise ValueError(
                f"expected a mean of shape (t, h, w, c) = {expected}, found "
                f"{tuple(self.mean.shape)}"
            )

    @property
    def _shells(self) -> int:
        return min(self.frames, *self.spec.grid.shape) // 2

    @property
    def entries(self) -> tuple[Entry, ...]:
        unit = common_unit(self.spec)
        square = squared_unit(unit)
        kinds = {"official_rel_l2": "1", "official_r2": "1", "official_ke": square}
        kinds |= {"fluctuation_energy_error": square, "kinetic_energy_error": square}
        metrics = ["rmse", "mae", "rel_l2", "r2", "ke", "fe", "mvpe", "frmse"]
        metrics += [f"frmse_{band}" for band in BANDS] + [f"rel_frmse_{band}" for band in BANDS]
        named = [f"official_{metric}" for metric in metrics]
        named += ["fluctuation_energy_error", "fluctuation_energy_rel_error"]
        named += ["kinetic_energy_error", "fe_per_point", "mvpe_measured", "frmse_shell_mean"]
        named += [f"frmse_shell_mean_{band}" for band in BANDS]
        return tuple(
            Entry(
                metric=metric,
                component=ALL,
                unit="1" if "_rel_" in metric else kinds.get(metric, unit),
                better="higher" if metric == "official_r2" else "lower",
            )
            for metric in named
        )

    def terms(self, frames: Frames) -> Float[Tensor, "1 k"]:
        """The sum over the windows of a trajectory."""
        count = len(frames.truth) // self.frames
        width = _PLAIN + 3 * self._shells * len(self.spec.channels)
        total = frames.truth.new_zeros(1, width, dtype=torch.float64)
        probes = (body_probes(frames), body_probes(frames, corrected=True))
        for first in range(0, count, _TOGETHER):
            size = min(_TOGETHER, count - first)
            which = slice(first * self.frames, (first + size) * self.frames)
            target, prediction = (
                in_windows(fields[which], self.frames)
                for fields in (frames.truth, frames.prediction)
            )
            known = frames.known[which].unflatten(0, (size, self.frames))
            rows = self.window_terms(target, prediction, known, probes)
            total += rows.sum(0, keepdim=True)
        return total

    def window_terms(
        self,
        target: Windows,
        prediction: Windows,
        known: Bool[Tensor, "sample t h w"] | None = None,
        probes: tuple[Probes, Probes] = ((), ()),
    ) -> Float[Tensor, "sample k"]:
        """A row of terms for each window.

        Args:
            target: Windows of the measure's length.
            prediction: As the target.
            known: Where the target is known; everywhere if not given.
            probes: Of mvpe and of its variant.
        """
        if known is None:
            known = torch.ones(target.shape[:4], dtype=torch.bool, device=target.device)
        y, q = (torch.where(known[..., None], f.double(), 0.0) for f in (target, prediction))
        fixed = known.all(1)  # (sample, h, w): in all frames
        plain = torch.stack(
            [
                torch.ones(len(y), dtype=torch.float64, device=y.device),
                *_errors(y, q, self.mean),
                *self._energies(y, q, known, fixed),
                *_frequency_errors(y, q, fixed),
                *_profile_errors(q - y, fixed, probes),
            ],
            dim=1,
        )
        error, truth = (torch.fft.fftn(f, dim=(1, 2, 3)).abs().square() for f in (q - y, y))
        octant, whole = (
            shell_numbers(self.frames, *self.spec.grid.shape, half=h) for h in (True, False)
        )
        spectra = [shell_sums(error, octant), shell_sums(truth, octant)]
        sizes = torch.bincount(whole.flatten())[: self._shells].to(error)
        spectra.append(shell_sums(error, whole) / sizes[:, None])
        return torch.cat([plain, *(part.flatten(1) for part in spectra)], dim=1)

    def _energies(self, y: Tensor, q: Tensor, known: Tensor, fixed: Tensor) -> tuple[Tensor, ...]:
        """Mean error of the fluctuation energy; the same summed over known points, true, points."""
        assert self.spec.velocity is not None
        u, v = self.spec.velocity
        e_y, e_q = (
            0.5 * (f[..., u].var(1, correction=0) + f[..., v].var(1, correction=0)) for f in (y, q)
        )
        error = (e_q - e_y).abs()
        kinetic = (0.5 * (q[..., [u, v]].square() - y[..., [u, v]].square()).sum(-1)).abs()
        return (
            error.mean((1, 2)),
            torch.where(fixed, error, 0.0).sum((1, 2)),
            torch.where(fixed, e_y, 0.0).sum((1, 2)),
            fixed.sum((1, 2)).double(),
            kinetic.sum((1, 2, 3)),
            known.sum((1, 2, 3)).double(),
        )

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        """See the module; NaN where undefined."""
        count, square, absolute, rel_l2, spread, *rest = sums[..., :_PLAIN].unbind(-1)
        ke, wrong, energy, points, kinetic, known, fe, fe_point, *profiles = rest
        mvpe, probed, probe, probes = profiles
        size = self.frames * math.prod(self.spec.grid.shape)
        values = count * size * len(self.spec.channels)
        shape = (3, self._shells, len(self.spec.channels))
        spectra = sums[..., _PLAIN:].unflatten(-1, shape)
        mean = ratio(spectra, count[..., None, None, None].expand_as(spectra)).sqrt() / size
        error, truth, shell = mean.unbind(-3)  # (*batch, k, c)
        results = [
            ratio(square, values).sqrt(),
            ratio(absolute, values),
            ratio(rel_l2, count),
            1 - ratio(square, spread),
            ratio(ke, count),
            ratio(fe, count),
            ratio(mvpe, probed),
            *band_means(error),
            *band_means(ratio(error, truth))[1:],
            ratio(wrong, points),
            ratio(wrong, energy),
            ratio(kinetic, known),
            ratio(fe_point, count),
            ratio(probe, probes),
            *band_means(shell),
        ]
        return torch.stack(results, dim=-1)


def _time_mean(fields: Windows, probes: Probes) -> Float[Tensor, "sample probe c"]:
    rows, columns = [row for row, _ in probes], [column for _, column in probes]
    return fields[:, :, rows, columns].mean(1)


def _profile_errors(
    error: Tensor, fixed: Tensor, probes: tuple[Probes, Probes]
) -> tuple[Tensor, ...]:
    """Mean over probes and channels, whether there is any; sum over known probes, their number."""
    coded, inside = probes
    errors = _time_mean(error, coded).flatten(1).abs()
    mean = errors.mean(1) if coded else error.new_zeros(len(error))
    known = _time_mean(fixed[:, None, ..., None].double(), inside)[..., 0]  # (sample, probe)
    corrected = _time_mean(error, inside).abs().mean(-1)
    return mean, torch.full_like(mean, bool(coded)), (known * corrected).sum(1), known.sum(1)


def _errors(y: Tensor, q: Tensor, mean: Tensor | None) -> tuple[Tensor, ...]:
    """Squares, absolute values, relative norm, squares of the truth about the mean."""
    error = (q - y).flatten(1)
    square, norm = error.square().sum(1), y.flatten(1).norm(dim=1)
    spread = torch.zeros_like(square)
    if mean is not None:
        spread = (y - mean.to(y)).flatten(1).square().sum(1)
    return square, error.abs().sum(1), square.sqrt() / norm, spread


def _frequency_errors(y: Tensor, q: Tensor, fixed: Tensor) -> tuple[Tensor, Tensor]:
    """Errors of sums over points and channels; of means over known points in every channel."""
    summed = torch.fft.fft((q - y).sum((2, 3, 4)), dim=1).abs().mean(1)
    mask = fixed[:, None, :, :, None]
    points = mask.sum((2, 3)).clamp(min=1)
    means = torch.where(mask, q - y, 0.0).sum((2, 3)) / points  # (sample, t, c)
    return summed, torch.fft.fft(means, dim=1).abs().mean((1, 2)) / y.shape[1]


SHAPE = (32, 64)
"""Rows and columns of the competition's fields."""
COLUMNS = (13, 21, 29, 37)
ROWS = tuple(range(8, 25, 2))
SIGMA = 0.0563870259
"""In m/s."""
BAND = 0.05
"""Half width of the interval of an entry without one, as a share of its prediction."""
_WEIGHTS = (0.5, 0.3, 0.2)


@dataclass(frozen=True, eq=False, kw_only=True)
class Competition(Measure):
    """The scores of whole windows; frames are those of one window."""

    name: ClassVar[str] = "competition"
    of_sequences: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_velocity(self.spec, "the competition's scores")
        if self.spec.grid.shape != SHAPE:
            raise ValueError(
                f"expected fields of {SHAPE[0]} x {SHAPE[1]} points for the competition's scores, "
                f"found {self.spec.grid.shape}; take every second point: "
                "--set data.NAME.options.every=2"
            )

    @property
    def entries(self) -> tuple[Entry, ...]:
        scores = ("rel_l2", "tke", "mvpe", "sps")
        return tuple(
            Entry(metric=f"competition_{score}", component=ALL, better="higher") for score in scores
        )

    def terms(self, frames: Frames) -> Float[Tensor, "1 k"]:
        """The terms of one window, with the interval of an entry that gives none."""
        assert self.spec.velocity is not None
        y, q = (
            torch.where(frames.known[:, None], fields.double(), 0.0)[:, list(self.spec.velocity)]
            for fields in (frames.truth, frames.prediction)
        )
        return self.window_terms(y, q, q - BAND * q.abs(), q + BAND * q.abs())

    def window_terms(
        self,
        truth: Float[Tensor, "t 2 y x"],
        prediction: Float[Tensor, "t 2 y x"],
        lower: Float[Tensor, "t 2 y x"],
        upper: Float[Tensor, "t 2 y x"],
    ) -> Float[Tensor, "1 k"]:
        """The terms of one window of u and v: windows, three errors, rewards, values."""
        y, q = truth.double(), prediction.double()
        k_y, k_q = (0.5 * f.var(0, correction=0).sum(0) for f in (y, q))
        m_y, m_q = (f.mean(0)[:, list(ROWS)][:, :, list(COLUMNS)] for f in (y, q))
        errors = torch.stack(
            [
                _relative_error(y, q, (0, 1, 2, 3)),
                _relative_error(k_y, k_q, (0, 1)),
                _relative_error(m_y, m_q, (0, 1)).mean(),
            ]
        )
        accuracy = (errors.new_tensor(_WEIGHTS) * 0.5 / (0.5 + errors)).sum()
        inside = (lower <= truth) & (truth <= upper) & (truth != 0)
        reward = torch.where(inside, torch.exp(-(upper - lower) / SIGMA), 0.0).sum()
        one, values = torch.ones_like(accuracy), (truth != 0).sum().to(accuracy)
        return torch.stack([one, *errors, accuracy * reward, values])[None]

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        """See the module; NaN where undefined."""
        windows, rel_l2, tke, mvpe, reward, count = sums.unbind(-1)
        scores = [100 / (1 + 0.5 * ratio(error, windows)) for error in (rel_l2, tke, mvpe)]
        return torch.stack([*scores, 100 * ratio(reward, count)], dim=-1)


def _relative_error(truth: Tensor, prediction: Tensor, axes: tuple[int, ...]) -> Tensor:
    difference, size = (field.square().sum(axes).sqrt() for field in (prediction - truth, truth))
    return difference / size
