"""Pictures and animations of predicted frames beside the true ones: PNG strips, GIF, MP4.

Flows show vorticity, other fields their first channel. Prediction and truth share the scale of the
truth, or without truth that of the first predicted frame. The error is prediction minus truth, on a
scale of at most twice that of the truth. So a diverging rollout does not fade the rest. With
prediction intervals their half-width is shown too; for flows it is the wider one of u and v, since
vorticity has no interval. Bodies and unknown points are grey.

Frames of animations are spooled to disk as they come and drawn at the end, when the common scale is
known. Long series are thinned out, since a GIF is held in memory. MP4 needs ffmpeg.
"""

import contextlib
import importlib.util
import math
import os
import shutil
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.animation import AbstractMovieWriter, FFMpegWriter, PillowWriter
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from pibert.data.writers import PICTURES, WRITERS
from pibert.data.writers.csv import CsvWriter
from pibert.data.writers.frames import Block, Description, FrameWriter
from pibert.data.writers.native import Spool
from pibert.evaluation.measure import gradient_unit, velocity_unit
from pibert.fields import Grid
from pibert.report.figures import (
    ERRORS,
    NORMAL,
    PANEL,
    SIGNED,
    SMALL,
    VALUES,
    Layer,
    add_bar,
    blank,
    height_over_width,
    is_signed,
    show,
    vorticity_of,
    with_unit,
    write_figure,
    write_film,
)
from pibert.report.structure import StateHistory, displacements

COLUMNS = 6
_RATE, _SLOWEST, _LASTS = 12, 2, 4
"""Frames per second, at most and at least, and the seconds that a film lasts in between."""
_CENTRED: dict[str, Any] = {"ha": "center", "va": "center", "color": "0.45", "fontsize": SMALL}


class StripWriter(FrameWriter):
    """A PNG with one column per frame: prediction, and truth and error where known.

    Below them is the state of moving bodies: displacement against time, phase portrait.

    ``expected`` is the number of frames to come; without ``numbers`` (``Block.number`` of the
    frames to draw) the columns are spread over them.
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
        self._columns = set(np.linspace(0, expected - 1, COLUMNS).round().astype(int).tolist())
        self._kept: list[Moment] = []
        self._state = StateHistory(about)

    def _begin(self) -> None:
        self.resources.callback(self._kept.clear)

    def _append(self, block: Block) -> None:
        self._state.add(block)
        for index, moment in enumerate(moments(block, self.about, slice(None))):
            if self._numbers is None:
                wanted = self.count + index in self._columns
            else:
                wanted = moment.number in self._numbers
            if wanted:
                self._kept.append(moment)

    def _finish(self) -> None:
        if not self._kept:
            wanted = sorted(self._numbers or ())
            raise ValueError(
                f"{self.path}: none of the {self.about.counted}s to draw, {wanted}, was predicted"
            )
        scale = Scale(self.about)
        for moment in self._kept:
            scale.add(moment)
        rows = rows_of(
            any(moment.has_truth for moment in self._kept), self.about.interval_level is not None
        )
        length = self.about.length_unit
        height = min(max(1.7 * height_over_width(self.about.spec.grid), 0.5), 2.6)
        width, heights = len(self._kept) * 1.7 + 2.1, [len(rows) * (height + 0.24) + 0.85]
        if self.about.state:
            heights.append(2.2 * len(displacements(self.about)))
        whole = blank(width, sum(heights))
        figure, *below = whole.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[
            :, 0
        ]
        for part in below:
            self._state.draw(part)
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
        write_figure(whole, self.path)


class Moment(NamedTuple):
    """One frame of the quantity shown; NaN where it is unknown."""

    prediction: Float[Tensor, "y x"]
    truth: Float[Tensor, "y x"]
    time: float
    number: int
    half: Float[Tensor, "y x"] | None = None
    """Half the width of the prediction intervals, if there are any."""

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
    """The common scales of values, errors and intervals, collected frame by frame."""

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
            # Where truth is constant, there is no such limit.
            most = 2 * max((r[2] for r in self._true), default=0.0) or self.error
            widest = max(min(self.error, most), 1e-12)
            return -widest, widest, ERRORS
        if row == "half-width":
            return 0.0, max(self.half, 1e-12), VALUES
        ranges = self._true or ([self._first] if self._first else [(0.0, 1.0, 1.0)])
        low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
        if is_signed(low, high, always=self._is_vorticity):
            widest = max(r[2] for r in ranges) or max(-low, high)
            return -widest, widest, SIGNED
        return low, high if high > low else low + 1.0, VALUES


def _range(layer: Layer) -> tuple[float, float, float]:
    return *layer.inner, layer.robust_limit


def moments(block: Block, about: Description, frames: slice) -> list[Moment]:
    """The quantity shown, of some frames of a block."""
    values = _quantity(block.masked[frames], about)
    truth = torch.full_like(values, torch.nan)
    if block.truth is not None:
        known = block.known[frames, None]
        truth = _quantity(torch.where(known, block.truth[frames], torch.nan), about)
    half = torch.full_like(values, torch.nan)
    if block.low is not None and block.high is not None:
        channels = list(about.spec.velocity or (0,))
        half = (block.high[frames, channels] - block.low[frames, channels]).amax(1) / 2
        half = torch.where(block.known[frames], half, torch.nan)
    times, numbers = block.time[frames].tolist(), block.number[frames].tolist()
    return [Moment(*each) for each in zip(values, truth, times, numbers, half, strict=True)]


def _quantity(fields: Float[Tensor, "t c y x"], about: Description) -> Float[Tensor, "t y x"]:
    spec = about.spec
    if spec.velocity is None:
        return fields[:, 0]
    fields = fields.double()
    known = fields[:, list(spec.velocity)].isfinite().all(1)
    spin, defined = vorticity_of(spec, fields, known, linear=True)
    return torch.where(defined, spin, torch.nan).float()


def quantity_name(about: Description) -> str:
    """The quantity shown with its unit, and that of the intervals."""
    spec = about.spec
    if spec.velocity is None:
        shown = interval = with_unit(spec.channels[0], spec.units[0])
    else:
        unit = velocity_unit(spec)
        shown = with_unit("vorticity", gradient_unit(unit, about.length_unit))
        interval = with_unit("the wider of u and v", unit)
    level = about.interval_level
    if level is None:
        return shown
    return f"{shown}; half-width of {100 * level:g} % prediction intervals of {interval}"


def rows_of(has_truth: bool, has_intervals: bool) -> tuple[str, ...]:
    rows = ("truth", "prediction", "error") if has_truth else ("prediction",)
    return (*rows, "half-width") if has_intervals else rows


def draw(ax: Axes, moment: Moment, row: str, grid: Grid, scale: Scale) -> Any:
    """Draw a panel in a thin frame with few ticks."""
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


class FilmWriter(FrameWriter):
    """An animation; of the frames that are ``expected``, ``most`` are drawn, evenly spread."""

    most: ClassVar[int]

    def __init__(
        self, path: Path | str, about: Description, *, overwrite: bool = False, expected: int
    ) -> None:
        super().__init__(path, about, overwrite=overwrite)
        self.every = max(1, math.ceil(expected / self.most))
        """Every Nth frame is drawn."""

    @property
    def rate(self) -> int:
        """Frames per second: a film of few frames is slow enough to be watched."""
        return min(max(len(self._moments) // _LASTS, _SLOWEST), _RATE)

    @abstractmethod
    def _movie(self) -> AbstractMovieWriter:
        """The encoder."""

    def _begin(self) -> None:
        spool = Spool(self.path.parent, (3, *self.about.spec.grid.shape))
        self._spool = self.resources.enter_context(contextlib.closing(spool))
        self._moments: list[tuple[float, int]] = []
        self._scale, self._has_truth = Scale(self.about), False

    def _append(self, block: Block) -> None:
        first = -self.count % self.every
        for moment in moments(block, self.about, slice(first, None, self.every)):
            self._scale.add(moment)
            self._has_truth = self._has_truth or moment.has_truth
            self._moments.append((moment.time, moment.number))
            assert moment.half is not None
            layers = (moment.prediction, moment.truth, moment.half)
            self._spool.append(torch.stack(layers)[None])

    def _finish(self) -> None:
        suffix = self.path.suffix  # tells the encoder the format
        handle, name = tempfile.mkstemp(
            dir=self.path.parent, prefix=f".{self.path.stem}-", suffix=suffix
        )
        os.close(handle)
        partial = Path(name)
        self.resources.callback(partial.unlink, missing_ok=True)
        try:
            self._film(partial)
        except subprocess.CalledProcessError as error:
            raise OSError(f"{self.path}: ffmpeg failed ({error}); use .gif") from error
        os.chmod(partial, 0o644)
        os.replace(partial, self.path)

    def _film(self, path: Path) -> None:
        rows = rows_of(self._has_truth, self.about.interval_level is not None)
        grid = self.about.spec.grid
        height = min(max(PANEL * height_over_width(grid), 0.9), 4.0)
        figure = blank(len(rows) * (PANEL + 0.6) + 0.2, height + 0.95)
        axes = figure.subplots(1, len(rows), squeeze=False)[0]
        images = []
        for ax, row in zip(axes, rows, strict=True):
            image = draw(ax, self._moment(0), row, grid, self._scale)
            add_bar(ax, image, extend="max" if row == "half-width" else "both")
            ax.set_title(row, fontsize=NORMAL + 1)
            ax.set_xlabel(with_unit("x", self.about.length_unit), fontsize=NORMAL)
            images.append(image)
        axes[0].set_ylabel(with_unit("y", self.about.length_unit), fontsize=NORMAL)
        clock = figure.suptitle("", fontsize=NORMAL, x=0.01, ha="left")

        def update(number: int) -> None:
            moment = self._moment(number)
            for image, row in zip(images, rows, strict=True):
                image.set_data(moment.layer(row).values)
            clock.set_text(f"{quantity_name(self.about)}, {caption(moment, self.about)}")

        write_film(figure, self._movie(), path, update, len(self._moments))

    def _moment(self, number: int) -> Moment:
        prediction, truth, half = self._spool.read(slice(number, number + 1))[0]
        return Moment(prediction, truth, *self._moments[number], half)


class GifWriter(FilmWriter):
    """A GIF."""

    most = 100

    def _movie(self) -> AbstractMovieWriter:
        return PillowWriter(fps=self.rate)


class _Ffmpeg(FFMpegWriter):
    """The program of the system, or else that of the package imageio-ffmpeg."""

    @classmethod
    def bin_path(cls) -> str:
        path = FFMpegWriter.bin_path()
        if shutil.which(path) is None and importlib.util.find_spec("imageio_ffmpeg"):
            from imageio_ffmpeg import get_ffmpeg_exe

            return str(get_ffmpeg_exe())
        return path


class Mp4Writer(FilmWriter):
    """An MP4; needs ffmpeg."""

    most = 1000

    def check(self) -> None:
        super().check()
        if not _Ffmpeg.isAvailable():
            raise ImportError(
                f"{self.path}: .mp4 needs the program ffmpeg, found none; install it "
                "(pip install 'pibert-cfd[film]' has one), or use .gif"
            )

    def _movie(self) -> AbstractMovieWriter:
        return _Ffmpeg(fps=self.rate, codec="h264")


def make_writer(
    path: Path,
    suffix: str,
    about: Description,
    overwrite: bool,
    expected: int,
    shown: Sequence[int] | None = None,
) -> FrameWriter:
    """The writer of a format, given as a suffix: data, a strip of frames or an animation."""
    if suffix == ".csv":
        return CsvWriter(path, about, overwrite=overwrite)
    if suffix in WRITERS:
        return WRITERS[suffix](path, about, overwrite=overwrite)
    if suffix in PICTURES:
        return StripWriter(path, about, overwrite=overwrite, expected=expected, numbers=shown)
    animation = GifWriter if suffix == ".gif" else Mp4Writer
    return animation(path, about, overwrite=overwrite, expected=expected)
