"""Plasma fields by name: operating conditions, ne, Te, potential and species densities, and T.

This is the form in which the PIBERT paper's authors used an inductively coupled plasma: all fields
are of the same time, and T is mapped from the others (``Window(horizon=0, targets=("T",))``). Their
data are not public; the keys ``AUTHORS`` are those of the converter they published, which expects
one HDF5 file per run with fields (1, t, n) at scattered nodes. Other files (``.npz``, HDF5, MATLAB)
are read with other keys.

With a key for the time a file is one trajectory; without one it is a table, and every entry of its
arrays a trajectory of one frame. Fields are (t, n) at positions (n, 2) and are then brought to a
uniform grid, or (t, y, x) without positions; leading axes of length 1 do not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pibert.data.sources.gridding.uniform import on_uniform_grid
from pibert.data.sources.icp.named_arrays import read_named
from pibert.data.sources.recordings import Hints, Recordings, SourceError
from pibert.fields import Trajectory

SUFFIXES = (".h5", ".hdf5", ".npz", ".mat")


@dataclass(frozen=True, kw_only=True)
class FieldKeys:
    """Where a file keeps what; groups and names are joined by ``/``."""

    channels: Mapping[str, str]
    """Channel to key."""
    species: str | None = None
    """A group, all members of which are channels ``n_<name>``: number densities."""
    conditions: str | None = None
    """Numbers per run (k) or per entry of a table (entries, k)."""
    condition_names: tuple[str, ...] = ()
    """Of the k conditions; numbered if they are not named."""
    positions: str | None = None
    time: str | None = None

    @property
    def single(self) -> tuple[str, ...]:
        """All keys but the members of the group."""
        others = (self.conditions, self.positions, self.time)
        return (*self.channels.values(), *(key for key in others if key is not None))


AUTHORS = FieldKeys(
    channels={"ne": "state/ne", "Te": "state/te", "V": "state/v", "T": "state/T"},
    species="state/num_of_density",
    conditions="conditions",
    positions="node/node_pos",
    time="state/t",
)


def open_fields(path: Path, keys: FieldKeys = AUTHORS, hints: Hints = Hints()) -> Recordings:
    """The runs or table entries of a file, or of all files in a folder and the folders in it."""
    path = Path(path).absolute()
    table = _Table(path, keys, hints)
    return Recordings(
        kind="icp",
        path=path,
        names=tuple(table.entries),
        load=table.load,
        remarks=("fields of one time: meant for mapping channels to others, not for forecasting",),
    )


def _find_files(path: Path) -> list[Path]:
    """The files that may hold fields."""
    if path.is_file():
        return [path]
    files = sorted(path.glob("*")) + sorted(path.glob("*/*"))
    return [file for file in files if file.suffix.lower() in SUFFIXES and file.is_file()]


@dataclass(frozen=True)
class _Entry:
    file: Path
    index: int | None
    """Row of a table; None for a whole run."""


@dataclass
class _Table:
    """Makes trajectories of entries; the arrays of the last file stay in memory."""

    path: Path
    keys: FieldKeys
    hints: Hints
    entries: dict[str, _Entry] = field(default_factory=dict)
    _last: tuple[Path, dict[str, np.ndarray]] | None = None

    def __post_init__(self) -> None:
        files = _find_files(self.path)
        if not files:
            raise SourceError(f"{self.path}: expected files {', '.join(SUFFIXES)}, found none")
        for file in files:
            place = file.relative_to(self.path) if file != self.path else Path(file.name)
            name = "_".join(place.with_suffix("").parts)
            if name in self.entries or f"{name}_{0:06d}" in self.entries:
                raise SourceError(
                    f"{self.path}: two files are called {name!r}; open them one by one"
                )
            if self.keys.time is not None:
                self.entries[name] = _Entry(file, None)
                continue
            count = len(next(iter(self._fields(file, self._read(file)).values())))
            self.entries |= {f"{name}_{i:06d}": _Entry(file, i) for i in range(count)}

    def load(self, name: str) -> Trajectory:
        entry, keys = self.entries[name], self.keys
        stored = self._read(entry.file)
        rows = slice(None) if entry.index is None else slice(entry.index, entry.index + 1)
        fields = {key: array[rows] for key, array in self._fields(entry.file, stored).items()}
        if keys.positions is None:
            ny, nx = next(iter(fields.values())).shape[1:]
            x, y = np.arange(float(nx)), np.arange(float(ny))
        else:
            x, y = stored[keys.positions].T
        # What was done is in the local representation, with the interpolation error.
        trajectory, _ = on_uniform_grid(
            name,
            fields,
            x,
            y,
            time=None if keys.time is None else stored[keys.time].ravel(),
            units=dict.fromkeys(fields, "unknown"),
            parameters=self._conditions(entry, stored),
            source={"file": str(entry.file), "entry": entry.index},
            hints=self.hints,
        )
        return trajectory

    def _read(self, file: Path) -> dict[str, np.ndarray]:
        if self._last is None or self._last[0] != file:
            self._last = file, read_named(file, self.keys.single, group=self.keys.species)
        return self._last[1]

    def _fields(self, file: Path, stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Channels as (t, n) or (t, y, x), all of one shape."""
        keys = dict(self.keys.channels)
        if self.keys.species is not None:
            prefix = f"{self.keys.species}/"
            members = sorted(key for key in stored if key.startswith(prefix))
            keys |= {f"n_{key.removeprefix(prefix)}": key for key in members}
        axes = 3 if self.keys.positions is None else 2
        fields = {}
        for channel, key in keys.items():
            array = stored[key]
            while array.ndim > axes and array.shape[0] == 1:
                array = array[0]
            fields[channel] = array[None] if array.ndim == axes - 1 else array
        shape = next(iter(fields.values())).shape
        if self.keys.positions is not None:
            points = stored[self.keys.positions].shape
            if len(points) != 2 or points[1] != 2 or points[0] != shape[-1]:
                raise SourceError(
                    f"{file}: expected {shape[-1]} positions (n, 2) at {self.keys.positions!r}, as "
                    f"there are values, found shape {points}"
                )
        for channel, array in fields.items():
            if array.ndim != axes or array.shape != shape or not array.size:
                raise SourceError(
                    f"{file}: expected all fields as {'(t, n)' if axes == 2 else '(t, y, x)'} of "
                    f"one shape, found {stored[keys[channel]].shape} at {keys[channel]!r} beside "
                    f"{shape}; name other keys"
                )
        return fields

    def _conditions(self, entry: _Entry, stored: Mapping[str, np.ndarray]) -> dict[str, float]:
        if self.keys.conditions is None:
            return {}
        array = np.atleast_1d(stored[self.keys.conditions])
        if array.ndim == 2 and len(array) == 1:
            array = array[0]
        elif array.ndim == 2 and entry.index is not None and entry.index < len(array):
            array = array[entry.index]
        names = self.keys.condition_names
        names = names or tuple(f"condition_{i + 1}" for i in range(array.shape[-1]))
        if array.shape != (len(names),) or not np.isfinite(array).all():
            raise SourceError(
                f"{entry.file}: expected {len(names)} finite numbers at {self.keys.conditions!r}, "
                f"per run or per entry, found {array if array.ndim == 1 else array.shape}"
            )
        return dict(zip(names, array.tolist(), strict=True))
