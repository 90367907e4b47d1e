"""Trajectories from the named arrays of a file.

On a uniform grid nothing is loaded: frames are read, turned and flipped when they are asked for,
and a point is valid where all of its values are finite. Fields on other points are loaded and
brought to a uniform grid.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pibert.data.sources.assembly.lazy import (
    ArraySource,
    FlagSource,
    KnownSource,
    Piece,
    Store,
    is_marked,
)
from pibert.data.sources.assembly.roles import Roles, Variable, find_roles, meaning
from pibert.data.sources.gridding.layout import Layout, find_layout, percent
from pibert.data.sources.gridding.uniform import describe, on_uniform_grid
from pibert.data.sources.recordings import Hints, Recordings, SourceError
from pibert.fields import FrameSource, Trajectory

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
    remarks: Sequence[str] = (),
    name: str | None = None,
) -> Recordings:
    """The flow, or flows, in the arrays of a file.

    Args:
        kind: Key of the reader.
        store: Reads parts of the arrays.
        variables: What arrays there are.
        hints: What the user says about them.
        order: The order of axes that is usual in such files.
        source: Source facts.
        facts: What else is known: ``sides``, ``viscosity``, ``parameters``, ``local`` as
            ``gridding.uniform.describe`` takes them.
        remarks: What the reader noticed so far.
        name: Of the flow; the file's without one.
    """
    roles = find_roles(store.path, variables, hints, order=order)
    plan = _plan(store, roles, variables, hints, source, facts)
    stem, width = name or store.path.stem, len(str(plan.members - 1))
    names: tuple[str, ...] = (stem,)
    if plan.members > 1:
        names = tuple(f"{stem}-{member:0{width}d}" for member in range(plan.members))
    first, noticed = plan.build(names[0], 0)
    unused = [_not_read(roles)] if roles.unused else []
    return Recordings(
        kind=kind,
        path=store.path,
        names=names,
        load=Loader(plan, names, first),
        remarks=(*remarks, *roles.remarks, *plan.remarks, *noticed, *unused),
    )


def _not_read(roles: Roles) -> str:
    """A note on the arrays that are not used, and how to keep one."""
    kept = (
        f"{our}={piece.key}" + ("" if piece.channel is None else f":{piece.channel}")
        for our, piece in roles.channels.items()
    )
    return (
        f"not read: {'; '.join(roles.unused[:8])}; to keep one as a channel name all of them: "
        f"--channels {','.join(kept)},NAME=..."
    )


def join(kind: str, path: Path, parts: Sequence[Recordings]) -> Recordings:
    """Several recordings as one."""
    return Recordings(
        kind=kind,
        path=path,
        names=tuple(name for part in parts for name in part.names),
        load=JoinedLoader({name: part.load for part in parts for name in part.names}),
        remarks=tuple(dict.fromkeys(remark for part in parts for remark in part.remarks)),
    )


@dataclass(frozen=True, eq=False)
class JoinedLoader:
    """Asks the recording that a name belongs to; may be pickled."""

    loaders: Mapping[str, Callable[[str], Trajectory]]

    def __call__(self, name: str) -> Trajectory:
        return self.loaders[name](name)


@dataclass(frozen=True, eq=False)
class Loader:
    """Makes trajectories by name; may be pickled."""

    plan: "Plan"
    names: tuple[str, ...]
    first: Trajectory

    def __call__(self, name: str) -> Trajectory:
        member = self.names.index(name)
        return self.first if member == 0 else self.plan.build(name, member)[0]


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """What the arrays were found to be, with the coordinates read."""

    store: Store
    pieces: Mapping[str, Piece]
    flags: Mapping[str, tuple[Piece, bool | int]]
    x: np.ndarray
    y: np.ndarray
    shape: tuple[int, ...]
    """(t, y, x), or (t, n) of scattered points."""
    members: int
    hints: Hints
    facts: Mapping[str, Any]
    """Time, units, provenance: what a trajectory is told besides."""
    remarks: tuple[str, ...]

    def build(self, name: str, member: int) -> tuple[Trajectory, tuple[str, ...]]:
        try:
            if len(self.shape) == 3 and self.x.ndim == 1:
                layout = find_layout(name, self.x, self.y, self.shape[1:], self.hints)
                if layout.check is None and layout.shape == self.shape[1:]:
                    return self._view(name, member, layout)
            return self._load(name, member)
        except SourceError as error:
            if str(self.store.path) in str(error):
                raise
            raise SourceError(f"{self.store.path}: {error}") from error

    def _view(self, name: str, member: int, layout: Layout) -> tuple[Trajectory, tuple[str, ...]]:
        """A trajectory whose frames stay in the file."""
        flipped = layout.notes.get("flipped", [])
        flips = {"flip_x": "x" in flipped, "flip_y": "y" in flipped}
        states = self._source(list(self.pieces.values()), member, **flips)
        masks: dict[str, Tensor | FrameSource] = {}
        remarks = list(layout.remarks)
        for role, (piece, marks) in self._decided(states, member, flips, remarks).items():
            flags = FlagSource(self._source([piece], member, **flips), marks)
            moving = "t" in piece.axes
            masks[role] = flags if moving else flags.read(slice(0, 1))[0]
        trajectory = describe(
            name,
            states,
            layout,
            channels=tuple(self.pieces),
            valid=KnownSource(states, masks.get("valid")),
            body=masks.get("body"),
            filled=masks.get("filled"),
            **self._told(layout.notes),
        )
        return trajectory, tuple(remarks)

    def _load(self, name: str, member: int) -> tuple[Trajectory, tuple[str, ...]]:
        """A trajectory in memory on a grid made for it."""
        states = self._source(list(self.pieces.values()), member)
        fields = states.read(slice(None)).numpy()
        remarks: list[str] = []
        masks: dict[str, np.ndarray] = {}
        for role, (piece, marks) in self._decided(states, member, {}, remarks).items():
            values = self._source([piece], member).read(slice(None))[:, 0]
            masks[role] = is_marked(values, marks).numpy()
        trajectory, noticed = on_uniform_grid(
            name,
            {channel: fields[:, place] for place, channel in enumerate(self.pieces)},
            self.x,
            self.y,
            valid=masks.get("valid"),
            body=masks.get("body"),
            filled=masks.get("filled"),
            hints=replace(self.hints, channels={}),
            **self._told({}),
        )
        return trajectory, (*remarks, *noticed)

    def _source(self, pieces: Sequence[Piece], member: int, **flips: bool) -> ArraySource:
        return ArraySource(self.store, pieces, self.shape, member=member, **flips)

    def _told(self, notes: Mapping[str, Any]) -> dict[str, Any]:
        local = ({"gridding": dict(notes)} if notes else {}) | dict(self.facts["local"])
        return dict(self.facts) | {"local": local}

    def _decided(
        self, states: ArraySource, member: int, flips: Mapping[str, bool], remarks: list[str]
    ) -> dict[str, tuple[Piece, bool | int]]:
        """The flags by role. Of ``mask`` and ``chc`` the first frame tells what they mark."""
        flags = dict(self.flags)
        if "chc" in flags:
            piece, marks = flags.pop("chc")
            self._check_chc(self._source([piece], member).read(slice(0, 1)), piece.key)
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
            remarks.append(
                f"the mask {piece.key!r} was not used: it may mark the body or the fluid; call it "
                "'body' or 'fluid'"
            )
            return flags
        remarks.append(
            f"{piece.key!r} was taken for the body where it is {int(ones)}: nothing moves there"
        )
        return flags | {"body": (piece, ones)}

    def _check_chc(self, codes: Tensor, key: str) -> None:
        """Choice codes of TSI and PIVPy are above 0 at valid vectors; OpenPIV's flags are 0 there.

        Early versions of PIVPy copied the one or the other into ``chc``.
        """
        if bool((codes == 0).any()) and not bool((codes < 0).any()):
            raise SourceError(
                f"{self.store.path}: {key!r} is 0 at {percent(float((codes == 0).float().mean()))} "
                "of the vectors, and the file does not say whether 0 marks valid ones (as in "
                f"OpenPIV) or invalid ones (as in PIVPy and TSI); give --channels invalid={key} if "
                f"0 is valid, --channels valid={key} if it is not"
            )


def _plan(
    store: Store,
    roles: Roles,
    variables: Sequence[Variable],
    hints: Hints,
    source: Mapping[str, Any],
    known: Mapping[str, Any],
) -> Plan:
    remarks: list[str] = []
    pieces, flags = dict(roles.channels), dict(roles.flags)
    piece = next(iter(pieces.values()))
    shape = next(variable.shape for variable in variables if variable.key == piece.key)
    size = dict(zip(piece.axes, shape, strict=True))
    frames = size.get("t", 1)
    _require_both_axes(store.path, roles, hints)
    steps = {name: float(_whole(store, v).item()) for name, v in roles.steps.items()}
    x = _axis(store, roles.x, size.get("x", 0), steps.get("dx", hints.dx), "x", remarks)
    y = _axis(store, roles.y, size.get("y", 0), steps.get("dy", hints.dy), "y", remarks)
    if x.ndim == 2 and x.shape == y.shape:
        x, y, transposed = _separate(x, y)
        if transposed:
            pieces = {name: _transposed(piece) for name, piece in pieces.items()}
            flags = {role: (_transposed(piece), marks) for role, (piece, marks) in flags.items()}
            size["x"], size["y"] = size["y"], size["x"]
    axes = next(iter(pieces.values())).axes
    if "y" in axes and axes.index("x") < axes.index("y"):
        remarks.append("the fields are stored x first; they were transposed")
    time, time_unit = _time(store, roles, frames, steps.get("dt"))
    facts = {
        "time": time,
        "units": roles.units,
        "length_unit": _length_unit(store.path, roles),
        "time_unit": time_unit,
        "parameters": {"Re": steps["Re"]} if "Re" in steps else {},
        "source": {"file": store.path.name, **source},
        **known,
        "local": {
            "axes": axes,
            "arrays": {our: piece.key for our, piece in pieces.items()},
            **known.get("local", {}),
        },
    }
    return Plan(
        store=store,
        pieces=pieces,
        flags=flags,
        x=x,
        y=y,
        shape=(frames, *(size[letter] for letter in "yx" if letter in size)),
        members=size.get("b", 1),
        hints=hints,
        facts=facts,
        remarks=tuple(remarks),
    )


def _whole(store: Store, variable: Variable) -> np.ndarray:
    return store.read(variable.key, (slice(None),) * len(variable.shape))


def _axis(
    store: Store,
    variable: Variable | None,
    count: int,
    step: float | None,
    name: str,
    remarks: list[str],
) -> np.ndarray:
    if variable is not None:
        return _whole(store, variable).astype(np.float64)
    if step is None:
        remarks.append(f"the file has no {name}: its points were counted")
    return (step or 1.0) * np.arange(count, dtype=np.float64)


def _require_both_axes(path: Path, roles: Roles, hints: Hints) -> None:
    """Counted points along one axis, beside known places along the other, make a wrong domain."""
    told = {
        "x": roles.x or roles.steps.get("dx") or hints.dx,
        "y": roles.y or roles.steps.get("dy") or hints.dy,
    }
    missing = [axis for axis, known in told.items() if known is None]
    if len(missing) == 1:
        other = "y" if missing == ["x"] else "x"
        raise SourceError(
            f"{path}: it is known where its points lie along {other}, but not along {missing[0]}; "
            f"give their spacing in the same unit (--d{missing[0]})"
        )


def _time(
    store: Store, roles: Roles, frames: int, dt: float | None
) -> tuple[np.ndarray | None, str | None]:
    if roles.t is not None:
        time = _whole(store, roles.t).astype(np.float64).reshape(-1)
        if len(time) == frames:
            return time, _unit(roles.t)
    if dt is None:
        return None, None
    return dt * np.arange(frames), _unit(roles.steps["dt"])


def _unit(variable: Variable) -> str | None:
    """The unit of a coordinate; ``1`` says no more than none."""
    unit = meaning(variable)[1]
    return None if unit == "1" else unit


def _length_unit(path: Path, roles: Roles) -> str | None:
    stated = {
        variable.key: unit
        for variable in (roles.x, roles.y, roles.steps.get("dx"), roles.steps.get("dy"))
        if variable is not None and (unit := _unit(variable))
    }
    if len(set(stated.values())) > 1:
        raise SourceError(
            f"{path}: its coordinates have different units, "
            + ", ".join(f"{key} in {unit}" for key, unit in stated.items())
            + "; bring them to one"
        )
    return next(iter(stated.values()), None)


def _separate(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """The two axes of meshes that have them, and whether the meshes run along x first."""
    near = 1e-9 * max(float(np.ptp(x)), float(np.ptp(y)))
    if np.ptp(x, axis=0).max() <= near and np.ptp(y, axis=1).max() <= near:
        return x[0], y[:, 0], False
    if np.ptp(x, axis=1).max() <= near and np.ptp(y, axis=0).max() <= near:
        return x[:, 0], y[0], True
    return x, y, False


def _transposed(piece: Piece) -> Piece:
    return replace(piece, axes=piece.axes.translate(str.maketrans("xy", "yx")))
