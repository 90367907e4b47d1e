"""Predicted frames beside the true ones: what pictures of them show, and a strip of some frames.

Flows show their vorticity, other fields their first channel. Prediction and truth share one scale,
that of the truth where it is known, else that of the first predicted frame: a rollout that leaves
the flow behind does not make it pale. The error is prediction minus truth. Where there are error
bars their half-width is shown too, of flows the wider one of u and v: the vorticity itself has no
bars. Bodies and unknown points are grey.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from pibert.data.writers.frames import Block, Description, FrameWriter
from pibert.evaluation.components import gradient_unit, velocity_unit
from pibert.fields import Grid
from pibert.physics import derivatives
from pibert.report.comparison.drawn import NORMAL, SMALL, blank, with_unit
from pibert.report.figures import (
    ERRORS,
    SIGNED,
    VALUES,
    Layer,
    add_bar,
    is_signed,
    show,
    write_figure,
)

COLUMNS = 6
_SHARE = 0.995
"""Of the points that a scale holds; a few at a body would make the rest pale."""


_CENTRED: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "color": "0.45",
    "fontsize": SMALL,
}


class StripWriter(FrameWriter):
    """A picture of some frames, one column each: prediction, and truth and error where known.

    Args:
        path: A PNG file.
        about: What is drawn.
        overwrite: Whether an older picture may be replaced.
        expected: How many frames will come; without ``numbers`` the columns are spread over them,
            and the last frame with truth has one.
        numbers: ``Block.number`` of the frames to draw.
    """

    def __init__(
        self,
        path: Path | str,
        about: Description,
        *,
        overwrite: bool = False,
        expected: int,
        numbers: Sequence[int] | None = None,
    ) -> None:
        super().__init__(path, about, overwrite=overwrite)
        self._numbers = None if numbers is None else set(numbers)
        self._places = set(np.linspace(0, expected - 1, COLUMNS).round().astype(int).tolist())
        self._kept: list[Moment] = []
        self._spare: tuple[Block, int] | None = None
        """The last frame with truth that has no column, and comes after all that have one."""

    def _begin(self) -> None:
        pass

    def _append(self, block: Block) -> None:
        for place, number in enumerate(block.number.tolist()):
            wanted = self.count + place in self._places
            if not (number in self._numbers if self._numbers is not None else wanted):
                if block.truth is not None and bool(block.truth[place].isfinite().any()):
                    self._spare = block, place
                continue
            moment = _moment(block, self.about, place)
            if self._numbers is None and self._spare is not None and not moment.has_truth:
                moment = _moment(self._spare[0], self.about, self._spare[1])
            self._kept.append(moment)
            self._spare = None

    def _finish(self) -> None:
        if not self._kept:
            wanted = sorted(self._numbers or ())
            raise ValueError(
                f"{self.path}: none of the {self.about.counted}s to draw, {wanted}, was predicted"
            )
        scale = Scale(self.about)
        for moment in self._kept:
            scale.add(moment)
        rows = rows_of(any(moment.has_truth for moment in self._kept), self.about.bars is not None)
        length = self.about.length_unit
        height = min(max(1.7 * height_over_width(self.about.spec.grid), 0.5), 2.6)
        figure = blank(len(self._kept) * 1.7 + 2.1, len(rows) * (height + 0.24) + 0.85)
        axes = figure.subplots(len(rows), len(self._kept), squeeze=False)
        for line, row in zip(axes, rows, strict=True):
            for ax, moment in zip(line, self._kept, strict=True):
                panel = draw(ax, moment, row, self.about.spec.grid, scale)
                if row in ("truth", "error") and not moment.has_truth:
                    ax.set_axis_off()
                    panel.set_visible(False)
                    ax.text(0.5, 0.5, "no truth", **_CENTRED, transform=ax.transAxes)
                elif row == "error":
                    ax.set_title(f"rms {moment.layer('error').rms:.2g}", fontsize=SMALL, pad=3)
            line[0].set_ylabel(f"{row}\n\n{with_unit('y', length)}", fontsize=NORMAL)
            for ax in line[1:]:
                ax.tick_params(labelleft=False)
            add_bar(line[-1], panel, extend="max" if row == "half-width" else "both")
        for column in axes.T:
            *above, lowest = (ax for ax in column if ax.axison)
            lowest.set_xlabel(with_unit("x", length), fontsize=NORMAL)
            for ax in above:
                ax.tick_params(labelbottom=False)
        for ax, moment in zip(axes[0], self._kept, strict=True):
            ax.set_title(caption(moment, self.about), fontsize=SMALL)
        figure.suptitle(quantity_name(self.about), fontsize=NORMAL)
        write_figure(figure, self.path)

    def _discard(self) -> None:
        self._kept, self._spare = [], None


class Moment(NamedTuple):
    """One frame of what is shown; NaN where it is not known."""

    prediction: Float[Tensor, "y x"]
    truth: Float[Tensor, "y x"]
    time: float
    number: int
    half: Float[Tensor, "y x"] | None = None
    """Half the width of the error bars, if there are any."""

    @property
    def has_truth(self) -> bool:
        return not bool(self.truth.isnan().all())

    def layer(self, row: str) -> Layer:
        """``prediction``, ``truth``, ``error`` or ``half-width``."""
        half = torch.full_like(self.prediction, torch.nan) if self.half is None else self.half
        shown = {"prediction": self.prediction, "truth": self.truth, "half-width": half}
        values = self.prediction - self.truth if row == "error" else shown[row]
        return Layer(np.ma.masked_invalid(values.double().numpy()))


class Scale:
    """The common scales of values and of errors, found frame by frame."""

    def __init__(self, about: Description) -> None:
        self._is_vorticity = about.spec.velocity is not None
        self._true: list[tuple[float, float, float]] = []
        self._first: tuple[float, float, float] | None = None
        self.error = self.half = 0.0

    def add(self, moment: Moment) -> None:
        if self._first is None:
            self._first = _range(moment.layer("prediction"))
        if moment.has_truth:
            self._true.append(_range(moment.layer("truth")))
            self.error = max(self.error, _range(moment.layer("error"))[2])
        if moment.half is not None and not bool(moment.half.isnan().all()):
            self.half = max(self.half, _range(moment.layer("half-width"))[2])

    def limits(self, row: str) -> tuple[float, float, str]:
        """Lowest and highest value, and the colours."""
        if row == "error":
            return -max(self.error, 1e-12), max(self.error, 1e-12), ERRORS
        if row == "half-width":
            return 0.0, max(self.half, 1e-12), VALUES
        ranges = self._true or ([self._first] if self._first else [(0.0, 1.0, 1.0)])
        low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
        if is_signed(low, high, always=self._is_vorticity):
            widest = max(r[2] for r in ranges) or max(-low, high)
            return -widest, widest, SIGNED
        return low, high if high > low else low + 1.0, VALUES


def _range(layer: Layer) -> tuple[float, float, float]:
    return *layer.inner, float(np.quantile(np.abs(layer.shown), _SHARE))


def _moment(block: Block, about: Description, place: int) -> Moment:
    return moments(block, about, slice(place, place + 1))[0]


def moments(block: Block, about: Description, frames: slice) -> list[Moment]:
    """What is shown of some frames of a block."""
    values = _quantity(block.masked[frames], about)
    truth = torch.full_like(values, torch.nan)
    if block.truth is not None:
        known = block.known[frames, None]
        truth = _quantity(torch.where(known, block.truth[frames], torch.nan), about)
    half = torch.full_like(values, torch.nan)
    if block.low is not None and block.high is not None:
        places = list(about.spec.velocity or (0,))
        half = (block.high[frames, places] - block.low[frames, places]).amax(1) / 2
        half = torch.where(block.known[frames], half, torch.nan)
    times, numbers = block.time[frames].tolist(), block.number[frames].tolist()
    return [Moment(*each) for each in zip(values, truth, times, numbers, half, strict=True)]


def _quantity(fields: Float[Tensor, "t c y x"], about: Description) -> Float[Tensor, "t y x"]:
    spec = about.spec
    if spec.velocity is None:
        return fields[:, 0]
    u, v = (fields[:, place].double() for place in spec.velocity)
    known = u.isfinite() & v.isfinite()
    spin, defined = derivatives.where_defined(
        lambda u, v: derivatives.vorticity(u, v, spec.grid), u, v, known=known, linear=True
    )
    return torch.where(defined & known, spin, torch.nan).float()


def quantity_name(about: Description) -> str:
    """With its unit, and what the bars are of."""
    spec = about.spec
    if spec.velocity is None:
        shown = barred = with_unit(spec.channels[0], spec.units[0])
    else:
        unit = velocity_unit(spec)
        shown = with_unit("vorticity", gradient_unit(unit, about.length_unit))
        barred = with_unit("the wider of u and v", unit)
    if about.bars is None:
        return shown
    return f"{shown}; half-width of bars of level {about.bars:g}, {barred}"


def rows_of(has_truth: bool, has_bars: bool) -> tuple[str, ...]:
    rows = ("truth", "prediction", "error") if has_truth else ("prediction",)
    return (*rows, "half-width") if has_bars else rows


def draw(ax: Axes, moment: Moment, row: str, grid: Grid, scale: Scale) -> Any:
    """A panel in a thin frame with few ticks."""
    low, high, colours = scale.limits(row)
    image = show(ax, moment.layer(row), grid, low, high, colours)
    ax.tick_params(labelsize=SMALL, length=2, width=0.5)
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.yaxis.set_major_locator(MaxNLocator(4))
    for spine in ax.spines.values():
        spine.set_linewidth(0.5)
    return image


def caption(moment: Moment, about: Description) -> str:
    unit = "" if about.time_unit is None else f" {about.time_unit}"
    return f"{about.counted} {moment.number}, t = {moment.time:.4g}{unit}"


def height_over_width(grid: Grid) -> float:
    return (grid.shape[0] * grid.dy) / (grid.shape[1] * grid.dx)
