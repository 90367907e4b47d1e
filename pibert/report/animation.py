"""Moving pictures of predicted frames: GIF, and MP4 where ffmpeg is installed.

What they show is that of ``report/forecast.py``, the same panels side by side. Frames are spooled
to the disk as they come and drawn at the end, when the common scale is known. A long series is
thinned out: a GIF is held in memory while it is made.
"""

import contextlib
import importlib.util
import math
import os
import shutil
import subprocess
import tempfile
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch
from matplotlib.animation import AbstractMovieWriter, FFMpegWriter, PillowWriter

from pibert.data.writers.frames import Block, Description, FrameWriter
from pibert.data.writers.spool import Spool
from pibert.report.comparison.drawn import NORMAL, blank, with_unit
from pibert.report.figures import add_bar
from pibert.report.forecast import (
    Moment,
    Scale,
    caption,
    draw,
    height_over_width,
    moments,
    quantity_name,
    rows_of,
)

_DPI = 100
_RATE, _SLOWEST, _LASTS = 12, 2, 4
"""Frames a second, at most and at least, and seconds that a film lasts between the two."""
_PANEL = 2.6
"""Inches of the width of a panel."""


class FilmWriter(FrameWriter):
    """A moving picture.

    Args:
        path: The file.
        about: What is drawn.
        overwrite: Whether an older one may be replaced.
        expected: How many frames will come; at most ``most`` of them are drawn, evenly spread.
    """

    most: ClassVar[int]
    _spool: Spool | None = None
    _partial: Path | None = None

    def __init__(
        self, path: Path | str, about: Description, *, overwrite: bool = False, expected: int
    ) -> None:
        super().__init__(path, about, overwrite=overwrite)
        self.every = max(1, math.ceil(expected / self.most))
        """One of so many frames is drawn."""

    @property
    def rate(self) -> int:
        """Frames a second: a film of few is slow enough to be watched."""
        return min(max(len(self._moments) // _LASTS, _SLOWEST), _RATE)

    @abstractmethod
    def _movie(self) -> AbstractMovieWriter:
        """What encodes the drawings."""

    def _begin(self) -> None:
        self._spool = Spool(self.path.parent, (3, *self.about.spec.grid.shape))
        self._moments: list[tuple[float, int]] = []
        self._scale, self._has_truth = Scale(self.about), False

    def _append(self, block: Block) -> None:
        assert self._spool is not None
        first = -self.count % self.every
        for moment in moments(block, self.about, slice(first, None, self.every)):
            self._scale.add(moment)
            self._has_truth = self._has_truth or moment.has_truth
            self._moments.append((moment.time, moment.number))
            assert moment.half is not None
            layers = (moment.prediction, moment.truth, moment.half)
            self._spool.append(torch.stack(layers)[None])

    def _finish(self) -> None:
        suffix = self.path.suffix  # tells the encoder what to make
        handle, name = tempfile.mkstemp(
            dir=self.path.parent, prefix=f".{self.path.stem}-", suffix=suffix
        )
        os.close(handle)
        self._partial = Path(name)
        try:
            self._film(self._partial)
        except subprocess.CalledProcessError as error:
            raise OSError(f"{self.path}: ffmpeg could not make it ({error}); take .gif") from error
        os.chmod(self._partial, 0o644)
        os.replace(self._partial, self.path)

    def _film(self, path: Path) -> None:
        rows = rows_of(self._has_truth, self.about.bars is not None)
        grid = self.about.spec.grid
        height = min(max(_PANEL * height_over_width(grid), 0.9), 4.0)
        figure = blank(len(rows) * (_PANEL + 0.6) + 0.2, height + 0.95)
        axes = figure.subplots(1, len(rows), squeeze=False)[0]
        images = []
        for ax, row in zip(axes, rows, strict=True):
            image = draw(ax, self._moment(0), row, grid, self._scale)
            add_bar(ax, image, extend="max" if row == "half-width" else "both")
            ax.set_title(row, fontsize=NORMAL + 1)
            ax.set_xlabel(with_unit("x", self.about.length_unit), fontsize=NORMAL)
            images.append(image)
        axes[0].set_ylabel(with_unit("y", self.about.length_unit), fontsize=NORMAL)
        clock = figure.suptitle(self._clock(self._moment(0)), fontsize=NORMAL, x=0.01, ha="left")
        # The layout is that of the first frame: panels that move would be distracting.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        movie: Any = self._movie()
        with movie.saving(figure, str(path), _DPI):
            for place in range(len(self._moments)):
                moment = self._moment(place)
                for image, row in zip(images, rows, strict=True):
                    image.set_data(moment.layer(row).values)
                clock.set_text(self._clock(moment))
                movie.grab_frame()

    def _moment(self, place: int) -> Moment:
        assert self._spool is not None
        prediction, truth, half = self._spool.read(slice(place, place + 1))[0]
        return Moment(prediction, truth, *self._moments[place], half)

    def _clock(self, moment: Moment) -> str:
        return f"{quantity_name(self.about)}, {caption(moment, self.about)}"

    def _discard(self) -> None:
        if self._spool is not None:
            self._spool.close()
        if self._partial is not None:
            with contextlib.suppress(OSError):
                self._partial.unlink(missing_ok=True)


class GifWriter(FilmWriter):
    """A GIF."""

    most = 100

    def _movie(self) -> AbstractMovieWriter:
        return PillowWriter(fps=self.rate)


class _Ffmpeg(FFMpegWriter):
    """The program of the system, or else that of the package imageio-ffmpeg."""

    @classmethod
    def bin_path(cls) -> str:
        own = FFMpegWriter.bin_path()
        if shutil.which(own) is None and importlib.util.find_spec("imageio_ffmpeg"):
            from imageio_ffmpeg import get_ffmpeg_exe

            return str(get_ffmpeg_exe())
        return own


class Mp4Writer(FilmWriter):
    """An MP4; needs ffmpeg."""

    most = 1000

    def check(self) -> None:
        super().check()
        if not _Ffmpeg.isAvailable():
            raise ImportError(
                f"{self.path}: expected the program ffmpeg for .mp4, found none; install it "
                "(pip install 'pibert-cfd[film]' has one), or take .gif"
            )

    def _movie(self) -> AbstractMovieWriter:
        return _Ffmpeg(fps=self.rate, codec="h264")
