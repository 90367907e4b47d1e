"""One frame of a plane flow, as the readers of single files return it, and series of such files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.sources.gridding.cells import CellMesh


@dataclass(frozen=True, eq=False, kw_only=True)
class _Frame:
    """What both kinds of frames state."""

    vectors: tuple[str, ...] = ()
    """Vector fields; their components in the plane are the fields ``NAME_x`` and ``NAME_y``."""
    names: dict[str, str] = field(default_factory=dict)
    """Our names of fields where they differ from those in the file."""
    units: dict[str, str] = field(default_factory=dict)
    """Of the fields, and of ``@x``, ``@y`` and ``@t``, as far as the file states them."""
    time: float | None = None
    place: Mapping[str, Any] | None = None
    """Where the plane lies in space: ``{"normal": "z", "position": 0.5}``."""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Plane(_Frame):
    """A flow on points: axes (x,) and (y,), meshes (y, x) or scattered (n,), with its fields."""

    x: np.ndarray
    y: np.ndarray
    fields: dict[str, np.ndarray]
    """Scalars by name."""


@dataclass(frozen=True, eq=False, kw_only=True)
class CellPlane(_Frame):
    """A flow on a mesh; a field has cell values (m,), point values (n,), or both."""

    mesh: CellMesh
    cells: dict[str, np.ndarray] = field(default_factory=dict)
    points: dict[str, np.ndarray] = field(default_factory=dict)
    edges: dict[str, np.ndarray] = field(default_factory=dict)
    """Boundary values on the mesh's edges (f,), as far as they are known."""
    zeros: dict[str, np.ndarray] = field(default_factory=dict)
    """Numbers of points at which a field is zero, as the velocity normal to a symmetry plane."""

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.cells, *self.points]))


@dataclass(frozen=True, eq=False, kw_only=True)
class Series:
    """The files of one flow, one per frame, and what is known about all of them."""

    files: Sequence[Path]
    read: Callable[[Path], Plane | CellPlane]
    """Reads one file. It can be pickled."""
    times: Sequence[float] | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    """Source facts that the files state."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Sides, viscosity and parameters, as ``trajectory.make_recordings`` takes them."""
    moves: bool | None = None
    """Whether the mesh moves; None: compare the meshes of the first and the last frames."""
    box: np.ndarray | None = None
    """[[left, bottom], [right, top]] that contains a moving mesh in all frames."""
    remarks: tuple[str, ...] = ()
