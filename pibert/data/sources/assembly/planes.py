"""Flows from series of files that hold one frame each, such as those of VTK and OpenFOAM.

A frame is read when it is asked for. Points and grids are those of the first frame in all frames;
frames of a mesh, which may move, are sampled on one grid (``sampling``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.sources.assembly.frames import CellPlane, Plane, Series
from pibert.data.sources.assembly.lazy import Where
from pibert.data.sources.assembly.naming import standard_name
from pibert.data.sources.assembly.roles import Variable
from pibert.data.sources.assembly.sampling import MASKS, MeshSampler, open_mesh
from pibert.data.sources.assembly.trajectory import join, make_recordings
from pibert.data.sources.recordings import Hints, Recordings, SourceError


class SeriesStore:
    """The fields of a series as arrays over its frames, with coordinates ``@x``, ``@y``, ``@t``."""

    def __init__(
        self,
        path: Path,
        files: Sequence[Path],
        read: Callable[[Path], Any],
        first: Plane,
        times: Sequence[float] | None,
    ) -> None:
        self.path, self.times, self.first = path.absolute(), times, first
        self.files, self.read_plane = [file.absolute() for file in files], read
        # The frames of the last call: another channel of them is often asked for next.
        self._held: dict[int, Plane] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_held": {}}

    def read(self, key: str, where: Where) -> np.ndarray:
        if key == "@t":
            return np.asarray(self.times)[where]
        if key in ("@x", "@y"):
            return (self.first.x if key == "@x" else self.first.y)[where]
        if len(where) == self.first.fields[key].ndim:
            return self.first.fields[key][where]  # of a mask that is the same in all frames
        assert isinstance(where[0], slice)
        wanted = range(*where[0].indices(len(self.files)))
        self._held = {frame: self._held.get(frame) or self._frame(frame) for frame in wanted}
        blocks = [self._held[frame].fields[key][where[1:]] for frame in wanted]
        return np.stack(blocks) if blocks else np.empty((0, *self.first.fields[key].shape))

    def _frame(self, frame: int) -> Plane:
        plane, file = self.read_plane(self.files[frame]), self.files[frame]
        if not isinstance(plane, Plane):
            raise SourceError(f"{file}: it holds a mesh, unlike the first frame; leave it out")
        missing = [name for name in self.first.fields if name not in plane.fields]
        if missing:
            raise SourceError(
                f"{file}: the field {missing[0]!r} of {self.files[0].name} is missing; leave the "
                "file out or write it again"
            )
        for mine, first in ((plane.x, self.first.x), (plane.y, self.first.y)):
            if mine.shape != first.shape or not np.allclose(mine, first, atol=1e-6 * np.ptp(first)):
                raise SourceError(
                    f"{file}: its points differ from those of {self.files[0].name}. Points that "
                    "move are read only with the cells of their mesh: export the mesh, or sample "
                    "the flow on a fixed plane"
                )
        return plane


def open_series(
    kind: str, path: Path, series: Series, hints: Hints, *, name: str | None = None
) -> Recordings:
    """The flow in a series of files.

    Args:
        kind: Key of the reader.
        path: What the user named.
        series: The files.
        hints: What the user says about them.
        name: Of the flow.
    """
    frame = series.read(series.files[0])
    if not frame.fields:
        raise SourceError(f"{series.files[0]}: it holds no scalar or vector field; export it again")
    remarks = [*series.remarks, *frame.remarks]
    local = dict(series.facts.get("local", {}))
    if frame.place is not None:
        local["plane"] = dict(frame.place)
    read: Callable[[Path], Any] = series.read
    if isinstance(frame, CellPlane):
        read, frame, notes, noticed = open_mesh(f"{series.files[0]}", series, frame, hints.shape)
        hints = replace(hints, shape=None)
        local["gridding"] = notes
        remarks += noticed
    times = series.times
    if times is None and len(series.files) == 1 and frame.time is not None:
        times = [frame.time]
    store = SeriesStore(path, series.files, read, frame, times)
    return make_recordings(
        kind,
        store,
        _variables(store, rests=isinstance(read, MeshSampler) and not read.moves),
        hints,
        source=series.source,
        facts={**series.facts, "local": local},
        remarks=remarks,
        name=name,
    )


def join_series(kind: str, path: Path, series: Mapping[str, Series], hints: Hints) -> Recordings:
    """Several series by name; those that hold no plane flow are left out in words."""
    parts: list[Recordings] = []
    errors: list[SourceError] = []
    for name, one in series.items():
        try:
            parts.append(open_series(kind, path, one, hints, name=name))
        except SourceError as error:
            errors.append(error)
    if not parts:
        raise errors[0]
    joined = join(kind, path, parts)
    left_out = tuple(f"left out: {error}" for error in errors)
    return replace(joined, remarks=(*joined.remarks, *left_out))


def _variables(store: SeriesStore, *, rests: bool) -> list[Variable]:
    """The arrays of a series; masks of a mesh at rest have one frame."""
    first, count, times = store.first, len(store.files), store.times
    axes = {"x": first.x, "y": first.y} | ({} if times is None else {"t": np.asarray(times)})
    found = [
        Variable(
            key=f"@{letter}",
            shape=axis.shape,
            dtype=axis.dtype,
            unit=first.units.get(f"@{letter}"),
            name=letter,
        )
        for letter, axis in axes.items()
    ]
    velocity = _velocity(first)
    for key, values in first.fields.items():
        still = rests and key in MASKS
        if still and (values == (key == "valid")).all():
            continue  # nothing is masked
        found.append(
            Variable(
                key=key,
                shape=values.shape if still else (count, *values.shape),
                dtype=values.dtype,
                unit=first.units.get(key),
                # Scattered points lie along x.
                axes="yx" if still else "tyx" if values.ndim == 2 else "tx",
                name=first.names.get(key) or velocity.get(key),
            )
        )
    return found


def _velocity(plane: Plane) -> dict[str, str]:
    """The components of the only vector, which is the velocity whatever its name."""
    known = {standard_name(key)[0] for key in plane.fields}
    if len(plane.vectors) != 1 or {"u", "v"} & known:
        return {}
    (vector,) = plane.vectors
    return {f"{vector}_x": "u", f"{vector}_y": "v"}
