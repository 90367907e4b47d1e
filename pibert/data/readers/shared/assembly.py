"""Trajectories from the named arrays of a file.

Fields on a uniform grid stay in the file: frames are read, transposed and flipped on demand. A
point is valid where all of its values are finite and none is a code of missing values such as
-9999. Fields on other points are loaded and resampled to a uniform grid.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.readers.recordings import Hints, Recordings, SourceError, naming
from pibert.data.readers.shared.grids import (
    Layout,
    describe,
    describe_times,
    find_layout,
    on_uniform_grid,
)
from pibert.data.readers.shared.interpolation import percent
from pibert.data.readers.shared.naming import check_axis_units, standard_unit
from pibert.data.readers.shared.roles import Roles, Variable, meaning
from pibert.data.readers.shared.stores import (
    ArraySource,
    Piece,
    Store,
    describe_fill_codes,
    find_fill_codes,
    read_flags,
)
from pibert.data.views import MappedFrames, finite_points, mask_shape
from pibert.fields import Trajectory

_INTERPOLATED = 2
"""The choice code of vectors that TSI Insight interpolated."""


def make_recordings(
    kind: str,
    store: Store,
    variables: Sequence[Variable],
    hints: Hints,
    *,
    order: str = "btcyx",
    source: Mapping[str, Any] = {},
    facts: Mapping[str, Any] = {},
    notes: Sequence[str] = (),
    name: str | None = None,
) -> Recordings:
    """Return the flow, or flows, in the arrays of a file.

    ``order`` is the usual order of axes in such files, ``source`` the source facts; ``facts`` are
    other keywords of ``grids.describe``: ``sides``, ``viscosity`` ... The flow has the name of the
    file unless one is given.
    """
    roles = Roles(store.path, variables, hints, order)
    plan = Plan(store, roles, hints, source, facts)
    stem, width = name or store.path.stem, len(str(plan.members - 1))
    names: tuple[str, ...] = (stem,)
    if plan.members > 1:
        names = tuple(f"{stem}-{member:0{width}d}" for member in range(plan.members))
    first, noticed = plan.build(names[0], 0)
    unused = []
    if roles.unused:
        kept = (
            f"{our}={piece.key}" + ("" if piece.channel is None else f":{piece.channel}")
            for our, piece in roles.channels.items()
        )
        unused = [
            f"not read: {'; '.join(roles.unused[:8])}; to keep one as a channel name all of them: "
            f"--channels {','.join(kept)},NAME=..."
        ]
    return Recordings(
        kind=kind,
        path=store.path,
        names=names,
        load=lambda name: first if name == names[0] else plan.build(name, names.index(name))[0],
        notes=(*notes, *roles.notes, *plan.notes, *noticed, *unused),
    )


def join(kind: str, path: Path, several: Sequence[Recordings]) -> Recordings:
    """Join recordings."""
    names = [name for recordings in several for name in recordings.names]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SourceError(f"{path}: two flows are called {twice[0]!r}; rename one of their files")
    loaders = {name: recordings.load for recordings in several for name in recordings.names}
    notes = tuple(dict.fromkeys(note for recordings in several for note in recordings.notes))
    return Recordings(
        kind=kind,
        path=path,
        names=tuple(loaders),
        load=lambda name: loaders[name](name),
        notes=notes,
    )


class Plan:
    """How trajectories are built from arrays; the coordinates are read at once."""

    def __init__(
        self,
        store: Store,
        roles: Roles,
        hints: Hints,
        source: Mapping[str, Any],
        known: Mapping[str, Any],
    ) -> None:
        self.store, self.hints = store, hints
        self.notes: list[str] = []
        self.pieces, self.flags, size = roles.channels, roles.flags, roles.size
        steps = {name: float(self._whole(v).item()) for name, v in roles.steps.items()}
        self.x, self.y = self._coordinates(roles, steps)
        if self.x.ndim == 2 and self.x.shape == self.y.shape:
            self.x, self.y, transposed = _separate(self.x, self.y)
            if transposed:
                self.pieces = {name: _transposed(piece) for name, piece in self.pieces.items()}
                self.flags = {
                    role: (_transposed(p), marks) for role, (p, marks) in self.flags.items()
                }
                size = {**size, "x": size["y"], "y": size["x"]}
        order = next(iter(self.pieces.values())).axes
        if "y" in order and order.index("x") < order.index("y"):
            self.notes.append("the fields are stored x first; they were transposed")
        frames = size.get("t", 1)
        self.shape = (frames, *(size[letter] for letter in "yx" if letter in size))
        """(t, y, x), or (t, n) for scattered points."""
        self.members = size.get("b", 1)
        time: np.ndarray | None = None
        time_unit = None
        stated = None if roles.t is None else self._whole(roles.t).astype(np.float64).reshape(-1)
        if roles.t is not None and stated is not None and len(stated) == frames:
            time, time_unit = stated, _unit(roles.t)
        elif "dt" in steps:
            time, time_unit = steps["dt"] * np.arange(frames), _unit(roles.steps["dt"])
        if time is not None and time_unit is None and not known.get("counted"):
            time_unit = hints.time_unit and standard_unit(hints.time_unit)
        coordinates = (roles.x, roles.y, roles.steps.get("dx"), roles.steps.get("dy"))
        lengths = (_unit(variable) for variable in coordinates if variable is not None)
        self.facts = {
            "time": time,
            "units": roles.units,
            "length_unit": check_axis_units(store.path, *lengths),
            "time_unit": time_unit,
            "parameters": {"Re": steps["Re"]} if "Re" in steps else {},
            "source": {"file": store.path.name, **source},
            **known,
            "local": {
                "axes": order,
                "arrays": {our: piece.key for our, piece in self.pieces.items()},
                **known.get("local", {}),
            },
        }
        """Time, units, provenance: further arguments of ``describe``."""

    def _whole(self, variable: Variable) -> np.ndarray:
        return self.store.read(variable.key, (slice(None),) * len(variable.shape))

    def _coordinates(
        self, roles: Roles, steps: Mapping[str, float]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Read x and y, or make them from a known spacing, or count the points."""
        stored = {"x": roles.x, "y": roles.y}
        spacing = {"x": steps.get("dx", self.hints.dx), "y": steps.get("dy", self.hints.dy)}
        axes: dict[str, np.ndarray] = {}
        for name, other in (("x", "y"), ("y", "x")):
            variable, step = stored[name], spacing[name]
            if variable is not None:
                values = self._whole(variable).astype(np.float64)
                axes[name] = values.reshape(-1) if variable.is_vector else values
                continue
            if step is None:
                # Counted points beside known coordinates on the other axis distort the domain.
                if stored[other] is not None or spacing[other] is not None:
                    raise SourceError(
                        f"{self.store.path}: the positions of its points are known along {other}, "
                        f"but not along {name}; give their spacing in the same unit (--d{name})"
                    )
                self.notes.append(f"the data have no {name}: their points were counted")
            axes[name] = (step or 1.0) * np.arange(roles.size.get(name, 0), dtype=np.float64)
        return axes["x"], axes["y"]

    def build(self, name: str, member: int) -> tuple[Trajectory, tuple[str, ...]]:
        """Return a trajectory of one flow, and notes."""
        with naming(self.store.path):
            if len(self.shape) == 3 and self.x.ndim == 1:
                layout = find_layout(name, self.x, self.y, self.shape[1:], self.hints.shape)
                in_place = layout.is_kept and "sorted" not in layout.record
                if in_place and layout.shape == self.shape[1:]:
                    return self._view(name, member, layout)
            return self._load(name, member)

    def _view(self, name: str, member: int, layout: Layout) -> tuple[Trajectory, tuple[str, ...]]:
        """Return a trajectory whose frames stay in the file."""
        flipped = layout.record.get("flipped", [])
        flips = {"flip_x": "x" in flipped, "flip_y": "y" in flipped}
        states = self._source(list(self.pieces.values()), member, **flips)
        masks: dict[str, Any] = {}
        first = states.read_stored(slice(0, 1))
        notes = [*layout.notes, *describe_fill_codes(list(self.pieces), first)]
        for role, (piece, marks) in self._resolved_flags(states, member, flips, notes).items():
            source = self._source([piece], member, **flips)
            if "t" in piece.axes:
                masks[role] = MappedFrames(mask_shape(source), partial(read_flags, source, marks))
            else:
                masks[role] = read_flags(source, marks, slice(0, 1))[0]
        trajectory = describe(
            name,
            states,
            layout,
            channels=tuple(self.pieces),
            valid=finite_points(states, masks.pop("valid", None)),
            **masks,
            **{**self.facts, "local": {"gridding": dict(layout.record), **self.facts["local"]}},
        )
        return trajectory, (*notes, *describe_times(self.facts["time"]))

    def _load(self, name: str, member: int) -> tuple[Trajectory, tuple[str, ...]]:
        """Return a trajectory in memory, resampled to a uniform grid."""
        states = self._source(list(self.pieces.values()), member)
        fields = states.read_stored(slice(None))
        notes = describe_fill_codes(list(self.pieces), fields)
        fields[find_fill_codes(fields)] = np.nan
        masks: dict[str, Any] = {
            role: read_flags(self._source([piece], member), marks, slice(None)).numpy()
            for role, (piece, marks) in self._resolved_flags(states, member, {}, notes).items()
        }
        trajectory, noticed = on_uniform_grid(
            name,
            {channel: fields[:, index] for index, channel in enumerate(self.pieces)},
            self.x,
            self.y,
            shape=self.hints.shape,
            **masks,
            **self.facts,
        )
        return trajectory, (*notes, *noticed)

    def _source(self, pieces: Sequence[Piece], member: int, **flips: bool) -> ArraySource:
        return ArraySource(self.store, pieces, self.shape, member=member, **flips)

    def _resolved_flags(
        self, states: ArraySource, member: int, flips: Mapping[str, bool], notes: list[str]
    ) -> dict[str, tuple[Piece, bool | int]]:
        """Return the flags by role; the first frame decides what ``mask`` and ``chc`` mark."""
        flags = dict(self.flags)
        if "chc" in flags:
            piece, marks = flags.pop("chc")
            codes = self._source([piece], member).read(slice(0, 1))
            # Choice codes of TSI and PIVPy are above 0 at valid vectors; OpenPIV's flags are 0
            # there. Early versions of PIVPy copied either into ``chc``.
            if bool((codes == 0).any()) and not bool((codes < 0).any()):
                key, share = piece.key, percent(float((codes == 0).float().mean()))
                raise SourceError(
                    f"{self.store.path}: {key!r} is 0 at {share} of the vectors, and the file does "
                    "not state whether 0 marks valid ones (as in OpenPIV) or invalid ones (as in "
                    f"PIVPy and TSI); give --channels invalid={key} if 0 is valid, --channels "
                    f"valid={key} if it is not"
                )
            flags.setdefault("valid", (piece, marks))
        valid = flags.get("valid")
        if valid is not None and valid[0].key.lower() == "chc":
            flags.setdefault("filled", (valid[0], _INTERPOLATED))
        if "mask" not in flags:
            return flags
        piece, _ = flags.pop("mask")
        frame = states.read(slice(0, 1))[0]
        dead = ((frame == 0) | ~frame.isfinite()).all(0)
        marked = self._source([piece], member, **flips).read(slice(0, 1))[0, 0] != 0
        ones, zeros = bool(dead[marked].all()), bool(dead[~marked].all())
        if ones == zeros or "body" in flags:
            notes.append(f"the mask {piece.key!r} was not used; call it 'body' or 'fluid'")
            return flags
        notes.append(f"{piece.key!r} marks the body where it is {int(ones)}: nothing moves there")
        return flags | {"body": (piece, ones)}


def _unit(variable: Variable) -> str | None:
    """Return the unit of a coordinate; ``1`` counts as none."""
    unit = meaning(variable)[1]
    return None if unit in ("1", "") else unit


def _separate(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the two axes of rectilinear meshes, and whether the meshes run along x first."""
    near = 1e-9 * max(float(np.ptp(x)), float(np.ptp(y)))
    if np.ptp(x, axis=0).max() <= near and np.ptp(y, axis=1).max() <= near:
        return x[0], y[:, 0], False
    if np.ptp(x, axis=1).max() <= near and np.ptp(y, axis=0).max() <= near:
        return x[:, 0], y[0], True
    return x, y, False


def _transposed(piece: Piece) -> Piece:
    return replace(piece, axes=piece.axes.translate(str.maketrans("xy", "yx")))
