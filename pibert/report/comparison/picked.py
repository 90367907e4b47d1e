"""Frames that were picked to look at, and the quantities that are shown of them.

Picked are frames by the error of persistence, not by that of a model. Everything is in physical
units; the body and unknown points are masked.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.evaluation.components import SPEED, gradient_unit, velocity_unit
from pibert.physics import derivatives
from pibert.report.comparison.board import Board
from pibert.report.figures import Layer

PICKS = {"easy": 0, "median": 1, "hard": 2}
"""Places of the picked frames in the scores: 5th, 50th and 95th percentile."""
VORTICITY = "vorticity"


class Picked(NamedTuple):
    """One frame to look at."""

    truth: Float[Tensor, "c y x"]
    predictions: dict[str, Float[Tensor, "c y x"]]
    """By model, the best first."""
    shown: Bool[Tensor, "y x"]
    """Where the truth is known, outside the body."""
    words: str
    """Which frame of which trajectory."""


def pick(board: Board, name: str) -> Picked | None:
    """The picked frame of a name in ``PICKS``; None where the scores have none."""
    place, reference = PICKS[name], board.reference
    rows = reference.arrays.get("picks/rows")
    if rows is None or place >= len(rows):
        return None
    found = {model: board.first(model).arrays.get("picks/prediction") for model in board.models}
    shown = reference.arrays["picks/known"][place]
    if board.spec.grid.body is not None:
        shown = shown & ~board.spec.grid.body
    return Picked(
        reference.arrays["picks/truth"][place].double(),
        {model: field[place].double() for model, field in found.items() if field is not None},
        shown,
        _words(board, int(rows[place])),
    )


def _words(board: Board, row: int) -> str:
    """Such as ``cylinder-0004, frame 12 (Re = 161)``."""
    facts, arrays = board.reference.card["data"], board.reference.arrays
    trajectory, frame = int(arrays["rows/trajectory"][row]), int(arrays["rows/frame"][row])
    parameters = facts["parameters"][trajectory] if facts.get("parameters") else {}
    values = ", ".join(f"{name} = {value:.3g}" for name, value in parameters.items())
    return f"{facts['names'][trajectory]}, frame {frame}" + (f" ({values})" if values else "")


def quantities(board: Board, field: Float[Tensor, "c y x"], shown: Tensor) -> dict[str, Layer]:
    """Channels, and of a flow the speed and the vorticity, by name."""
    spec = board.spec
    found = {name: (field[place], shown) for place, name in enumerate(spec.channels)}
    if spec.velocity is not None:
        u, v = (field[place] for place in spec.velocity)
        spin, defined = derivatives.where_defined(
            lambda u, v: derivatives.vorticity(u, v, spec.grid), u, v, known=shown
        )
        # A stencil can be free of unknown points around a point that is itself unknown.
        found |= {SPEED: (torch.hypot(u, v), shown), VORTICITY: (spin, defined & shown)}
    return {
        name: Layer(np.ma.masked_array(values.numpy(), mask=~visible.numpy()))
        for name, (values, visible) in found.items()
    }


def unit_of(board: Board, quantity: str) -> str:
    """The unit of one of the quantities."""
    spec = board.spec
    if quantity in spec.channels:
        return spec.units[spec.channels.index(quantity)]
    unit = velocity_unit(spec)
    if quantity == SPEED:
        return unit
    return gradient_unit(unit, board.reference.card["data"]["length_unit"])


def chief(board: Board) -> str:
    """The quantity that stands for the field where there is room for one."""
    return board.spec.channels[0] if board.spec.velocity is None else SPEED


def frame_text(board: Board, picked: Picked) -> str:
    """Data set, frame and rule, for captions."""
    rule = board.reference.card["pick_rule"]
    return f"Data set {board.name}: {picked.words}, one of the {rule}."


def excess(layers: list[Layer], low: float, high: float) -> str:
    """Which ends of a scale some layer leaves."""
    found = {layer.excess(low, high) for layer in layers} - {"neither"}
    return "neither" if not found else found.pop() if len(found) == 1 else "both"
