"""Where frames are cut, and whose lines are shown there.

The columns and the wake line are those of ``evaluation/regions.py``. Without a body, or with one
whose place is not known, the paper's columns 11, 32 and 52 of 64 stand in, under these names on
every grid, and the middle row for the wake line.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from pibert.evaluation.geometry import locate, nearest_cell
from pibert.evaluation.regions import DOWNSTREAM, PAPER_COLUMNS, column_downstream, paper_column
from pibert.report.comparison.board import COLOURS, Board
from pibert.report.comparison.drawn import NORMAL
from pibert.report.comparison.picked import Picked
from pibert.report.comparison.plots import line_style

_LINES = 4
"""Models whose lines can be told apart in one panel."""


_COUNTED = " Columns are counted as if 64 made up the width."


class Slice(NamedTuple):
    label: str
    column: int
    metric: str
    """The error along it in the records."""


class Places(NamedTuple):
    """Where a frame is cut."""

    slices: list[Slice]
    row: int
    first: int
    """The column at which the line along the stream begins."""
    line: str
    """What that line is."""
    note: str = ""
    """What the names of the slices mean, for captions."""


def places(board: Board, picked: Picked) -> Places:
    """The lines through a picked frame."""
    grid = board.spec.grid
    body = _body(board, picked)
    if body is None:
        slices = [
            Slice(
                f"column {number}",
                paper_column(number, grid.shape[1]),
                f"slice_column_{number}_rel_l2",
            )
            for number in PAPER_COLUMNS
        ]
        return Places(slices, grid.shape[0] // 2, 0, "middle row", _COUNTED)
    place = locate(body[None], grid)
    slices = [
        Slice(
            region.replace("_", " "),
            int(column_downstream(place, region, grid)),
            f"slice_{region}_rel_l2",
        )
        for region in DOWNSTREAM
    ]
    row = int(nearest_cell(place.centre_y, grid.shape[0]))
    return Places(slices, row, int(place.last_column) + 1, "wake line")


def _body(board: Board, picked: Picked) -> Tensor | None:
    """The body of a frame; of one that moves, the unknown points, if they are all inside."""
    body = board.spec.grid.body
    if body is not None:
        return body if bool(body.any()) else None
    unknown = ~picked.shown
    at_border = unknown[0].any() | unknown[-1].any() | unknown[:, 0].any() | unknown[:, -1].any()
    is_body = board.reference.card["data"]["has_body"] and bool(unknown.any()) and not at_border
    return unknown if is_body else None


def drawn_models(board: Board, most: int = _LINES) -> list[str]:
    """Models for lines, by rank: PIBERT, the best, the best other trained one, persistence."""
    wanted = ["pibert", board.models[0], board.rival(), "persistence", *board.models]
    known = list(dict.fromkeys(m for m in wanted if m in board.models))[:most]
    return sorted(known, key=board.models.index)


def styles(board: Board, name: str) -> dict[str, Any]:
    """How truth and models look where lines lie on each other: the wider, the deeper."""
    if name == "truth":
        return {"color": COLOURS["truth"], "lw": 2.6, "zorder": 2}
    style = line_style(board, name)
    return style | {"zorder": 4 - 0.5 * style["lw"] + 1}


def line_legend(figure: Figure, board: Board, models: Sequence[str]) -> None:
    """Truth and models, above all panels."""
    handles = [Line2D([], [], label=name, **styles(board, name)) for name in ("truth", *models)]
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=len(handles),
        fontsize=NORMAL,
        frameon=False,
    )
