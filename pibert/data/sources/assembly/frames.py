"""One frame of a flow in a plane, as the readers of single files give it, and series of such files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.sources.gridding.cells import CellMesh


@dataclass(frozen=True, eq=False, kw_only=True)
class _Frame:
    """What frames of both kinds state."""

    vectors: tuple[str, ...] = ()
    """Fields that are vectors: their components in the plane are ``NAME_x`` and ``NAME_y``."""
    names: dict[str, str] = field(default_factory=dict)
    """What fields are in our words where it differs from what they are called."""
    units: dict[str, str] = field(default_factory=dict)
    """Of the fields, and of ``@x``, ``@y`` and ``@t``, as far as they are stated."""
    time: float | None = None
    place: Mapping[str, Any] | None = None
    """Where the plane lies in space: ``{"normal": "z", "position": 0.5}``."""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Plane(_Frame):
    """A plane flow: axes (x,) and (y,), meshes (y, x) or points (n,), and fields to match."""

    x: np.ndarray
    y: np.ndarray
    fields: dict[str, np.ndarray]
    """Scalars by name."""


@dataclass(frozen=True, eq=False, kw_only=True)
class CellPlane(_Frame):
    """A plane flow on a mesh; a field has values of cells (m,), at points (n,), or both."""

    mesh: CellMesh
    cells: dict[str, np.ndarray] = field(default_factory=dict)
    points: dict[str, np.ndarray] = field(default_factory=dict)
    edges: dict[str, np.ndarray] = field(default_factory=dict)
    """Values on the edges of the boundary (f,), as far as they are known."""
    zeros: dict[str, np.ndarray] = field(default_factory=dict)
    """Numbers of points where a field is zero, such as a velocity across a plane of symmetry."""

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.cells, *self.points]))


@dataclass(frozen=True, eq=False, kw_only=True)
class Series:
    """The files of one flow, a frame each, and what is known about all of them."""

    files: Sequence[Path]
    read: Callable[[Path], Plane | CellPlane]
    """Reads one of them; it can be pickled."""
    times: Sequence[float] | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    """What the files say of where the flow comes from."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else is known of the flow, as ``trajectory.make_recordings`` takes it."""
    moves: bool | None = None
    """Whether a mesh moves; None leaves that to the frames."""
    box: np.ndarray | None = None
    """[[left, bottom], [right, top]] that holds a moving mesh in all frames."""
    remarks: tuple[str, ...] = ()
