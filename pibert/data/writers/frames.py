"""Description, blocks of frames and base class of the writers.

A writer is used in a ``with`` block and takes one block of frames at a time, so its memory does not
grow with their number. It writes under a temporary name until the ``with`` block ends without an
error; an error, or no frame at all, leaves nothing behind.
"""

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.data.partial import (
    GrowingFile,
    PartialFile,
    check_writable,
    make_folder,
    remove_leftovers,
    writing,
)
from pibert.data.views import frame_blocks
from pibert.fields import FieldSpec, Trajectory, read_mask
from pibert.physics import derivatives

ENDS = ("low", "high")
"""Suffixes of the channels that hold the ends of prediction intervals."""


class Placement(NamedTuple):
    """The position of a plane in space."""

    normal: int = 2
    """The axis normal to it; the other two, in their order, are x and y of the plane."""
    position: float = 0.0
    """The coordinate along that axis."""

    def along_axes(self, x: Any, y: Any, across: Any) -> tuple[Any, Any, Any]:
        """Return values for the plane's axes and its normal in the order of space."""
        values = [x, y]
        values.insert(self.normal, across)
        return values[0], values[1], values[2]


@dataclass(frozen=True, eq=False, kw_only=True)
class Description:
    """Everything known before the first frame."""

    name: str
    spec: FieldSpec
    """Channels, units and grid of the frames; the grid's body is part of the file."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    """As of a ``Trajectory``."""
    local: Mapping[str, Any] = field(default_factory=dict)
    length_unit: str | None = None
    time_unit: str | None = None
    vorticity_unit: str | None = None
    """None: no vorticity in formats for other programs."""
    counted: str = "step"
    """The meaning of ``Block.number``: steps of a rollout, or frames of the source."""
    interval_level: float | None = None
    """Level of the prediction intervals; None: there are none."""
    marks_filled: bool = False
    """Whether blocks have a mask of filled values."""
    body_moves: bool = False
    """Whether blocks have a mask of the body; a resting one is that of the grid."""
    state: tuple[str, ...] = ()
    """Series of values per frame; with intervals, their ends are further ones."""

    @property
    def placement(self) -> Placement:
        """The source's plane; z = 0 if it states none."""
        plane = self.local.get("plane")
        if not isinstance(plane, Mapping):
            return Placement()
        return Placement("xyz".index(plane["normal"]), float(plane["position"]))

    @property
    def interval_units(self) -> dict[str, str]:
        """Units of the ends of intervals by name: ``u_low``, ``u_high`` ...; may be empty."""
        if self.interval_level is None:
            return {}
        pairs = zip(self.spec.channels, self.spec.units, strict=True)
        return {f"{name}_{end}": unit for name, unit in pairs for end in ENDS}

    @property
    def series(self) -> tuple[str, ...]:
        """Names of all series: ``displacement``, ``displacement_low`` ..."""
        if self.interval_level is None:
            return self.state
        return tuple(n for name in self.state for n in (name, *(f"{name}_{e}" for e in ENDS)))

    @property
    def whole_spec(self) -> FieldSpec:
        """The spec with the ends of intervals as further channels."""
        spec, ends = self.spec, self.interval_units
        channels, units = (*spec.channels, *ends), (*spec.units, *ends.values())
        return replace(spec, channels=channels, units=units)

    def to_json(self) -> str:
        """What the arrays of another format do not state, for ``provenance.restored``."""
        whole = self.whole_spec
        mappings = {key: dict(getattr(self, key)) for key in ("parameters", "source", "local")}
        spec = replace(whole, grid=replace(whole.grid, body=None)).to_dict()
        units = {"length_unit": self.length_unit, "time_unit": self.time_unit}
        return json.dumps({**mappings, **units, "spec": spec}, ensure_ascii=False)

    @property
    def body(self) -> Bool[Tensor, "y x"]:
        grid = self.spec.grid
        return torch.zeros(grid.shape, dtype=torch.bool) if grid.body is None else grid.body


@dataclass(frozen=True, eq=False, kw_only=True)
class Block:
    """Consecutive frames in physical units, float32, on the CPU."""

    fields: Float[Tensor, "t c y x"]
    time: Float[Tensor, " t"]
    number: Int[Tensor, " t"]
    known: Bool[Tensor, "t y x"]
    """Points outside bodies whose input was known; elsewhere the fields are undefined."""
    truth: Float[Tensor, "t c y x"] | None = None
    """Ground truth, NaN where unknown; not written to data files."""
    low: Float[Tensor, "t c y x"] | None = None
    """Ends of the prediction intervals; NaN where there is none."""
    high: Float[Tensor, "t c y x"] | None = None
    filled: Bool[Tensor, "t y x"] | None = None
    """Known points whose value was filled, with ``Description.marks_filled``."""
    body: Bool[Tensor, "t y x"] | None = None
    """Points inside a body, with ``Description.body_moves``."""
    series: Mapping[str, Float[Tensor, " t"]] = field(default_factory=dict)
    """Those of ``Description.series``; of predictions also ``NAME_true``, NaN where unknown, which
    is not written to data files."""

    @property
    def intervals(self) -> Float[Tensor, "t c2 y x"]:
        """The ends in the order of ``Description.interval_units``, NaN where not known."""
        assert self.low is not None and self.high is not None
        ends = torch.stack((self.low, self.high), dim=2).flatten(1, 2)
        return torch.where(self.known[:, None], ends, torch.nan)

    @property
    def masked(self) -> Float[Tensor, "t c y x"]:
        """The fields with NaN where they are not known."""
        return torch.where(self.known[:, None], self.fields, torch.nan)


class FrameWriter(ABC):
    """Writes frames, in the order of time, to a file."""

    def __init__(self, path: Path | str, about: Description, *, overwrite: bool = False) -> None:
        self.path, self.about, self.overwrite = Path(path), about, overwrite
        self.count = 0
        """Frames appended so far."""
        self.resources = contextlib.ExitStack()
        """Closes and removes temporary files at the end, also after an error."""

    @property
    def targets(self) -> tuple[Path, ...]:
        """Files and folders that are written, ``path`` first."""
        return self.targets_of(self.path)

    @staticmethod
    def targets_of(path: Path) -> tuple[Path, ...]:
        return (path,)

    def check(self) -> None:
        """Raise if the targets cannot be written, before any work is done."""
        check_writable(self.path)
        for target in self.targets:
            if target.exists() and not self.overwrite:
                raise FileExistsError(f"{target} exists; add --overwrite or choose another name")

    def __enter__(self) -> Self:
        self.check()
        make_folder(self.path)
        for target in self.targets:
            remove_leftovers(target)
        try:
            with writing(self.path):
                self._begin()
        except BaseException:
            self.resources.close()
            raise
        return self

    def append(self, block: Block) -> None:
        """Write a block of frames."""
        with writing(self.path):
            self._append(block)
        self.count += len(block.time)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and not self.count:
                raise ValueError(f"{self.path}: no frame was given, so nothing is written")
            if kind is None:
                with writing(self.path):
                    self._finish()
        finally:
            self.resources.close()

    def grow(self, path: Path, open_with: Callable[[PartialFile], Any]) -> GrowingFile:
        """Open an HDF5 file that is removed at the end unless it is published."""
        output = GrowingFile(path, open_with)
        self.resources.callback(output.discard)
        return output

    @abstractmethod
    def _begin(self) -> None:
        """Open the temporary output, and register in ``resources`` what must be cleaned up."""

    @abstractmethod
    def _append(self, block: Block) -> None:
        """Write a block to it."""

    @abstractmethod
    def _finish(self) -> None:
        """Complete the output and rename it."""


def describe(trajectory: Trajectory) -> Description:
    """Describe a trajectory without reading its frames."""
    return Description(
        name=trajectory.name,
        spec=trajectory.spec,
        parameters=trajectory.parameters,
        source=trajectory.source,
        local=trajectory.local,
        length_unit=trajectory.length_unit,
        time_unit=trajectory.time_unit,
        counted="frame",
        marks_filled=trajectory.filled is not None,
        body_moves=trajectory.body is not None and len(trajectory.body.shape) == 3,
        state=tuple(trajectory.series),
    )


def blocks_of(trajectory: Trajectory) -> Iterator[Block]:
    """Yield the frames of a trajectory in blocks."""
    moves = describe(trajectory).body_moves
    for frames in frame_blocks(trajectory):
        known = trajectory.known(frames).cpu()
        filled = body = None
        if trajectory.body is not None and moves:
            body = read_mask(trajectory.body, frames).cpu()
        if trajectory.filled is not None:
            filled = known & read_mask(trajectory.filled, frames).cpu()
        yield Block(
            fields=trajectory.read(frames).to("cpu", torch.float32),
            time=trajectory.time[frames],
            number=torch.arange(frames.start, frames.stop),
            known=known,
            filled=filled,
            body=body,
            series={name: values[frames] for name, values in trajectory.series.items()},
        )


def point_arrays(block: Block, about: Description) -> dict[str, np.ndarray]:
    """Return scalars (t, y, x) and vectors (t, y, x, 3) by name."""
    fields, spec = block.masked, about.spec
    arrays: dict[str, Tensor] = {}
    plane = spec.velocity or ()
    if plane:
        velocity = [*plane, *(i for i, name in enumerate(spec.channels) if name == "w")]
        vectors = torch.zeros(*fields[:, 0].shape, 3)
        vectors[..., : len(velocity)] = fields[:, velocity].movedim(1, -1)
        vectors[~block.known] = torch.nan
        arrays["velocity"] = vectors[..., list(about.placement.along_axes(0, 1, 2))]
    scalars = {name: i for i, name in enumerate(spec.channels) if i not in plane}
    arrays |= {name: fields[:, i] for name, i in scalars.items()}
    if about.vorticity_unit is not None:
        arrays["vorticity"] = vorticity(block, about)
    if about.interval_level is not None:
        arrays.update(zip(about.interval_units, block.intervals.unbind(1), strict=True))
    arrays["valid"] = block.known.to(torch.uint8)
    if about.marks_filled:
        assert block.filled is not None
        arrays["filled"] = block.filled.to(torch.uint8)
    if about.body_moves or spec.grid.body is not None:
        body = about.body if block.body is None else block.body
        arrays["body"] = body.to(torch.uint8).expand_as(block.known)
    return {name: array.contiguous().numpy() for name, array in arrays.items()}


def vorticity(block: Block, about: Description) -> Float[Tensor, "t y x"]:
    """Return the vorticity, NaN where it is not defined."""
    spec = about.spec
    if spec.velocity is None:
        raise ValueError(
            f"the vorticity needs a velocity, found channels {list(spec.channels)}; leave it out"
        )
    u, v = (block.fields[:, channel].double() for channel in spec.velocity)
    spin, defined = derivatives.where_defined(
        lambda u, v: derivatives.vorticity(u, v, spec.grid), u, v, known=block.known
    )
    return torch.where(defined & block.known, spin, torch.nan).float()
