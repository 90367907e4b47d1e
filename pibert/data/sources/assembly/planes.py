"""Series of files that hold one frame each, such as those of VTK and OpenFOAM.

A frame is read as a plane with its points and fields. All frames of a series have the points of the
first; one is read when it is asked for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.sources.assembly.lazy import Where
from pibert.data.sources.assembly.naming import standard_name
from pibert.data.sources.assembly.roles import Variable
from pibert.data.sources.assembly.trajectory import join, make_recordings
from pibert.data.sources.recordings import Hints, Recordings, SourceError


@dataclass(frozen=True, eq=False, kw_only=True)
class Plane:
    """A plane flow: axes (x,) and (y,), meshes (y, x) or points (n,), and fields to match."""

    x: np.ndarray
    y: np.ndarray
    fields: dict[str, np.ndarray]
    """Scalars by name; components of vectors in the plane as ``NAME_x`` and ``NAME_y``."""
    vectors: tuple[str, ...] = ()
    names: dict[str, str] = field(default_factory=dict)
    """What fields are in our words where it differs from what they are called."""
    units: dict[str, str] = field(default_factory=dict)
    """Of the fields, and of ``@x``, ``@y`` and ``@t``, as far as they are stated."""
    time: float | None = None
    remarks: tuple[str, ...] = ()


class SeriesStore:
    """The fields of a series as arrays over its frames, with coordinates ``@x``, ``@y``, ``@t``."""

    def __init__(
        self,
        path: Path,
        files: Sequence[Path],
        read_plane: Callable[[Path], Plane],
        times: Sequence[float] | None,
    ) -> None:
        self.path, self.times = path.absolute(), times
        self.files = [file.absolute() for file in files]
        self.read_plane = read_plane
        self.first = read_plane(self.files[0])
        # The frames of the last call: another channel of them is often asked for next.
        self._held: dict[int, Plane] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_held": {}}

    def read(self, key: str, where: Where) -> np.ndarray:
        if key == "@t":
            return np.asarray(self.times)[where]
        if key in ("@x", "@y"):
            return (self.first.x if key == "@x" else self.first.y)[where]
        assert isinstance(where[0], slice)
        wanted = range(*where[0].indices(len(self.files)))
        self._held = {frame: self._held.get(frame) or self._frame(frame) for frame in wanted}
        blocks = [self._held[frame].fields[key][where[1:]] for frame in wanted]
        return np.stack(blocks) if blocks else np.empty((0, *self.first.fields[key].shape))

    def _frame(self, frame: int) -> Plane:
        plane, file = self.read_plane(self.files[frame]), self.files[frame]
        missing = [name for name in self.first.fields if name not in plane.fields]
        if missing:
            raise SourceError(
                f"{file}: the field {missing[0]!r} of {self.files[0].name} is missing; leave the "
                "file out or write it again"
            )
        for mine, first in ((plane.x, self.first.x), (plane.y, self.first.y)):
            if mine.shape != first.shape or not np.allclose(mine, first, atol=1e-6 * np.ptp(first)):
                raise SourceError(
                    f"{file}: its points differ from those of {self.files[0].name}; a moving mesh "
                    "is not read: sample the flow on a fixed plane"
                )
        return plane


def open_series(
    kind: str,
    path: Path,
    files: Sequence[Path],
    read_plane: Callable[[Path], Plane],
    hints: Hints,
    *,
    times: Sequence[float] | None = None,
    name: str | None = None,
    source: Mapping[str, Any] = {},
) -> Recordings:
    """The flow in a series of files.

    Args:
        kind: Key of the reader.
        path: What the user named.
        files: One per frame, in order.
        read_plane: A function of a module, so that it can be pickled.
        hints: What the user says about the files.
        times: Of the frames, where they are known.
        name: Of the flow.
        source: What the files say of where the flow comes from.
    """
    store = SeriesStore(path, files, read_plane, times)
    first, count = store.first, len(files)
    if times is None and count == 1 and first.time is not None:
        store.times = times = [first.time]
    if not first.fields:
        raise SourceError(f"{files[0]}: it holds no scalar or vector field; export it again")
    axes = {"x": first.x, "y": first.y} | ({} if times is None else {"t": np.asarray(times)})
    variables = [
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
        variables.append(
            Variable(
                key=key,
                shape=(count, *values.shape),
                dtype=values.dtype,
                unit=first.units.get(key),
                axes="tyx" if values.ndim == 2 else "tx",  # scattered points lie along x
                name=first.names.get(key) or velocity.get(key),
            )
        )
    remarks = first.remarks
    return make_recordings(kind, store, variables, hints, source=source, remarks=remarks, name=name)


Series = tuple[Sequence[Path], Sequence[float] | None, Callable[[Path], Plane]]
"""Files, times where they are known, and how a file is read."""


def join_series(kind: str, path: Path, series: Mapping[str, Series], hints: Hints) -> Recordings:
    """Several series by name; those that hold no plane flow are left out in words."""
    parts: list[Recordings] = []
    errors: list[SourceError] = []
    for name, (files, times, read_plane) in series.items():
        try:
            part = open_series(kind, path, files, read_plane, hints, times=times, name=name)
            parts.append(part)
        except SourceError as error:
            errors.append(error)
    if not parts:
        raise errors[0]
    joined = join(kind, path, parts)
    left_out = tuple(f"left out: {error}" for error in errors)
    return replace(joined, remarks=(*joined.remarks, *left_out))


def _velocity(plane: Plane) -> dict[str, str]:
    """The components of the only vector, which is the velocity whatever its name."""
    known = {standard_name(key)[0] for key in plane.fields}
    if len(plane.vectors) != 1 or {"u", "v"} & known:
        return {}
    (vector,) = plane.vectors
    return {f"{vector}_x": "u", f"{vector}_y": "v"}
