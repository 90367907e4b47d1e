"""A section of the validation page: checks with expected ranges, text and pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor


@dataclass(frozen=True)
class Check:
    """One figure and the range that it should lie in."""

    what: str
    found: float
    low: float
    high: float

    @property
    def passed(self) -> bool:
        return self.low <= self.found <= self.high

    def row(self) -> str:
        verdict = "yes" if self.passed else "**no**"
        return f"| {self.what} | {self.found:.4g} | {self.low:.4g} to {self.high:.4g} | {verdict} |"


@dataclass(frozen=True)
class Part:
    """A section of the page."""

    title: str
    text: str
    checks: tuple[Check, ...] = ()
    pictures: tuple[tuple[str, str], ...] = ()
    """File name and caption."""
    notes: str = ""
    """Below the table."""

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", self.text, ""]
        if self.checks:
            lines += ["| quantity | result | expected | in range |", "| --- | --- | --- | --- |"]
            lines += [check.row() for check in self.checks] + [""]
        if self.notes:
            lines += [self.notes, ""]
        for name, caption in self.pictures:
            lines += [f"![{caption}](solver/{name})", "", f"*{caption}*", ""]
        return "\n".join(lines)


def widened(bounds: tuple[float, float], share: float = 0.02) -> tuple[float, float]:
    """A published range with a margin on either side."""
    return bounds[0] * (1 - share), bounds[1] * (1 + share)


def new_figure(width: float = 9.0, height: float = 4.0) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure).print_png(str(path))


def frequency(signal: Tensor, dt: float) -> float:
    """Return the frequency of a nearly periodic signal, from its upward crossings of the mean."""
    signal = signal.double() - signal.double().mean()
    place = ((signal[:-1] <= 0) & (signal[1:] > 0)).nonzero()[:, 0]
    if len(place) < 2:
        return float("nan")
    exact = place + signal[place] / (signal[place] - signal[place + 1])
    return (len(place) - 1) / ((exact[-1] - exact[0]).item() * dt)


def peak_frequency(signal: Tensor, dt: float, low: float = 0.0) -> float:
    """Return the frequency where the spectrum (Hann window) is largest, refined by a parabola."""
    signal = signal.double() - signal.double().mean()
    power = torch.fft.rfft(signal * torch.hann_window(len(signal), dtype=torch.float64)).abs()
    power[: max(1, round(low * len(signal) * dt))] = 0
    place = int(power[1:-1].argmax()) + 1
    a, b, c = (power[place + k].clamp(min=1e-30).log() for k in (-1, 0, 1))
    shift = float(0.5 * (a - c) / (a - 2 * b + c))
    return (place + shift) / (len(signal) * dt)


def amplitude(signal: Tensor, dt: float, at: float) -> float:
    """Return the amplitude at a frequency, by least squares over whole periods."""
    count = int(int(len(signal) * dt * at) / (dt * at))
    signal = signal[-count:].double() - signal[-count:].double().mean()
    phase = 2 * torch.pi * at * dt * torch.arange(count, dtype=torch.float64)
    return 2 * float(torch.complex(torch.cos(phase), -torch.sin(phase)).mul(signal).mean().abs())


def interpolate(x: Sequence[float], xs: Tensor, values: Tensor) -> Tensor:
    """Interpolate values along a line linearly."""
    wanted = torch.tensor(list(x), dtype=torch.float64)
    right = torch.searchsorted(xs.double(), wanted).clamp(1, len(xs) - 1)
    share = (wanted - xs[right - 1]) / (xs[right] - xs[right - 1])
    return (1 - share) * values[right - 1].double() + share * values[right].double()
