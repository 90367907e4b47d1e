"""All figures of a report, and pictures made of them.

A figure that cannot be drawn does not lose the report: its name and the reason take its place.
"""

import io
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pibert.report.comparison import (
    alignment,
    bars,
    convergence,
    cost,
    distribution,
    fields,
    flows,
    rollout,
    sequence,
    slices,
    spectra,
    strips,
    time,
    tokens,
    tuning,
)
from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import Drawn
from pibert.report.comparison.strips import Animated

DPI = 150
"""Of pictures: sharp on fine screens; a page of three data sets stays well below 15 MB."""
Figures = Drawn | Animated | Sequence[Drawn] | None
Maker = Callable[[Board], Figures]
FIGURES: tuple[tuple[str, Maker], ...] = (
    ("Flows", flows.flows),
    ("Components", bars.metrics),
    ("Components", distribution.error_distribution),
    ("Scales", bars.scales),
    ("Scales", spectra.spectra),
    ("Fields", fields.overview),
    ("Fields", fields.easy_overview),
    ("Fields", fields.hard_overview),
    ("Fields", fields.components),
    ("Fields", fields.winner_components),
    ("Wake", slices.multiscale),
    ("Wake", slices.cross_sections),
    ("Time", time.probe_traces),
    ("Time", time.power_spectra),
    ("Time", strips.timestep_strip),
    ("Time", strips.animation),
    ("Time", sequence.sequence_metrics),
    ("Model", tokens.tokens),
    ("Model", alignment.embedding_alignment),
    ("Cost", cost.cost),
    ("Convergence", tuning.tuning),
    ("Convergence", convergence.convergence),
    ("Rollout", rollout.rollout),
    ("Rollout", rollout.stable_horizon),
)
"""Section and figure, in the order of the page."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure as it stands on the page."""

    section: str
    data: bytes
    mime: str
    width: int
    """On the page, at 96 dots per inch."""
    height: int
    caption: str
    alt: str


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A figure that could not be drawn."""

    section: str
    name: str
    reason: str


def pictures_of(
    board: Board, figures: Sequence[tuple[str, Maker]] = FIGURES
) -> Iterator[Picture | Missing]:
    """Every figure that the data have what it takes for, drawn one at a time."""
    for section, make in figures:
        try:
            made = make(board)
            drawn = [made] if isinstance(made, Drawn | Animated) else list(made or ())
            pictures = [picture_of(section, own) for own in drawn]
        except Exception as error:  # whatever it is, the tables are worth having
            reason = f"{type(error).__name__}: {error}"
            yield Missing(section=section, name=name_of(make), reason=reason)
        else:
            yield from pictures


def picture_of(section: str, drawn: Drawn | Animated) -> Picture:
    """Encode a figure; a moving picture is already."""
    if isinstance(drawn, Animated):
        data, mime = drawn.data, drawn.mime
        # Width and height follow the signature and the name of the first chunk of a PNG.
        width, height = struct.unpack(">II", data[16:24])
    else:
        file = io.BytesIO()
        # Without loss, and half of what a PNG takes.
        lossless = {"lossless": True}
        drawn.figure.savefig(file, format="webp", dpi=DPI, facecolor="white", pil_kwargs=lossless)
        data, mime = file.getvalue(), "image/webp"
        width, height = (round(96 * inches) for inches in drawn.figure.get_size_inches())
    return Picture(
        section=section,
        data=data,
        mime=mime,
        width=width,
        height=height,
        caption=drawn.caption,
        alt=drawn.alt,
    )


def name_of(make: Maker) -> str:
    """What a figure is called where it is missing."""
    home = getattr(make, "__module__", "").rpartition(".")[2]
    name = getattr(make, "__name__", type(make).__name__)
    return name if home in ("", name) else f"{home}.{name}"
