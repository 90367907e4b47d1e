"""All figures of a report: a figure is a function of ``DatasetResults`` and a line in ``FIGURES``.

A function returns None where the data lack what the figure needs. The first line of its docstring
is the text for readers who cannot see the figure. If drawing fails, the name of the figure and the
reason are shown instead, and the report is still written.
"""

import base64
import io
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pibert.report.comparison import (
    errors,
    fields,
    free_runs,
    internals,
    schematic,
    spectra,
    structure,
    time,
    training,
    wake,
)
from pibert.report.comparison.plots import Animation, Plot
from pibert.report.comparison.results import DatasetResults
from pibert.report.figures import DPI, encode_figure

Maker = Callable[[DatasetResults], Plot | Animation | None]
FIGURES: tuple[tuple[str, Maker], ...] = (
    ("Rollout", time.rollout),
    ("Structure", structure.response),
    ("Structure", structure.displacements),
    ("Statistics", free_runs.free_run_errors),
    ("Statistics", free_runs.free_run_fields),
    ("Statistics", free_runs.free_run_profiles),
    ("Statistics", free_runs.free_run_spectra),
    ("Statistics", free_runs.free_run_densities),
    ("Flows", errors.flows),
    ("Components", errors.metrics),
    ("Components", errors.error_distribution),
    ("Scales", errors.scales),
    ("Scales", spectra.spectra),
    ("Fields", fields.overview),
    ("Fields", fields.easy_overview),
    ("Fields", fields.hard_overview),
    ("Fields", fields.components),
    ("Fields", fields.winner_components),
    ("Wake", wake.sketch),
    ("Wake", wake.multiscale),
    ("Wake", wake.cross_sections),
    ("Time", time.probe_traces),
    ("Time", spectra.power_spectra),
    ("Time", time.timestep_strip),
    ("Time", time.animation),
    ("Time", errors.sequence_metrics),
    ("Model", schematic.architecture),
    ("Model", schematic.multiresolution),
    ("Model", internals.tokens),
    ("Model", internals.embedding_alignment),
    ("Cost", training.cost),
    ("Convergence", training.tuning),
    ("Convergence", training.convergence),
)
"""Section of the page and function of each figure, in the order of the page."""


class Picture(NamedTuple):
    """An encoded figure, or the reason why it could not be drawn."""

    section: str
    name: str
    data: bytes = b""
    mime: str = ""
    width: int = 0
    """In CSS pixels."""
    height: int = 0
    caption: str = ""
    alt: str = ""
    error: str = ""
    number: int = 0
    """On the page."""
    file: bytes = b""
    """The figure as a file of its own, if a format was asked for."""

    @property
    def base64(self) -> str:
        return base64.b64encode(self.data).decode()


def draw_figures(
    data: DatasetResults,
    figures: Sequence[tuple[str, Maker]] = FIGURES,
    file_format: str | None = None,
) -> list[Picture]:
    """Draw every figure for which the data suffice, one at a time.

    With one of ``FORMATS``, pictures other than animations also have a ``file``.
    """
    pictures: list[Picture] = []
    for section, make in figures:
        name = getattr(make, "__name__", type(make).__name__)
        empty = Picture(section, name, alt=(make.__doc__ or "").partition("\n")[0])
        try:
            plot = make(data)
            if plot is not None:
                pictures.append(_encoded(plot, empty, file_format))
        except Exception as error:  # the tables are worth having, whatever went wrong
            pictures.append(empty._replace(error=f"{type(error).__name__}: {error}"))
    return pictures


def _encoded(plot: Plot | Animation, empty: Picture, file_format: str | None) -> Picture:
    """A figure as lossless WebP, half the size of a PNG; animations are encoded already."""
    if isinstance(plot, Animation):
        content, mime = plot.data, "image/png"
        # Width and height follow the signature and the name of the first chunk of a PNG.
        width, height = struct.unpack(">II", content[16:24])
    else:
        file = io.BytesIO()
        options = {"lossless": True}
        plot.figure.savefig(file, format="webp", dpi=DPI, facecolor="white", pil_kwargs=options)
        content, mime = file.getvalue(), "image/webp"
        width, height = (round(96 * inches) for inches in plot.figure.get_size_inches())
        if file_format is not None:
            empty = empty._replace(file=encode_figure(plot.figure, file_format, 300))
    return empty._replace(data=content, mime=mime, width=width, height=height, caption=plot.caption)
