"""What writers of frames share: the description, blocks of frames, and the base class.

A writer is used in a ``with`` block and takes frames one block at a time, so its memory does not
grow with their number. It writes under a temporary name until the block ends well; an error, or no
frame at all, leaves nothing behind.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.data.partial import (
    GrowingFile,
    check_writable,
    make_folder,
    remove_leftovers,
    writing,
)
from pibert.data.views import frame_blocks
from pibert.fields import FieldSpec, Trajectory, read_mask
from pibert.physics import derivatives

ENDS = ("low", "high")
"""Suffixes of the ends of prediction intervals, behind the name of their channel."""


class Placement(NamedTuple):
    """Where a plane lies in space."""

    normal: int = 2
    """The axis across it; the other two, in their order, are x and y of the plane."""
    position: float = 0.0
    """Along that axis."""

    def along_axes(self, x: Any, y: Any, across: Any) -> tuple[Any, Any, Any]:
        """What belongs to the axes of the plane, and across it, in the order of space."""
        values = [x, y]
        values.insert(self.normal, across)
        return values[0], values[1], values[2]


@dataclass(frozen=True, eq=False, kw_only=True)
class Description:
    """What is known before the first frame."""

    name: str
    spec: FieldSpec
    """Channels, units and grid of the frames; the grid's body is part of the file."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    """As of a ``Trajectory``: facts of the source, and what was done here."""
    local: Mapping[str, Any] = field(default_factory=dict)
    length_unit: str | None = None
    time_unit: str | None = None
    vorticity_unit: str | None = None
    """None: formats for other programs get no vorticity."""
    counted: str = "step"
    """What ``Block.number`` counts: steps of a rollout, or frames of the source."""
    bars: float | None = None
    """Level of the prediction intervals of the fields; None: there are none."""
    marks_filled: bool = False
    """Whether blocks say which values were filled, not measured."""

    @property
    def placement(self) -> Placement:
        """Where the source had its plane; z = 0 where it does not say."""
        plane = self.local.get("plane")
        if not isinstance(plane, Mapping):
            return Placement()
        return Placement("xyz".index(plane["normal"]), float(plane["position"]))

    @property
    def bar_units(self) -> dict[str, str]:
        """Units of the ends of intervals by name: ``u_low``, ``u_high`` ...; may be empty."""
        if self.bars is None:
            return {}
        pairs = zip(self.spec.channels, self.spec.units, strict=True)
        return {f"{name}_{end}": unit for name, unit in pairs for end in ENDS}

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
    """Where the fields mean something: outside bodies, and where the input was known."""
    truth: Float[Tensor, "t c y x"] | None = None
    """What they should be; NaN where that is not known. Data files do not hold it."""
    low: Float[Tensor, "t c y x"] | None = None
    """Ends of the prediction intervals, if there are any; NaN where there is none."""
    high: Float[Tensor, "t c y x"] | None = None
    filled: Bool[Tensor, "t y x"] | None = None
    """Known points whose value was filled, not measured, where ``Description.marks_filled``."""

    @property
    def bars(self) -> Float[Tensor, "t c2 y x"]:
        """In the order of ``Description.bar_units``, NaN where the fields mean nothing."""
        assert self.low is not None and self.high is not None
        ends = torch.stack((self.low, self.high), dim=2).flatten(1, 2)
        return torch.where(self.known[:, None], ends, torch.nan)

    @property
    def masked(self) -> Float[Tensor, "t c y x"]:
        """The fields with NaN where they mean nothing."""
        return torch.where(self.known[:, None], self.fields, torch.nan)


class FrameWriter(ABC):
    """Writes frames in the order of time (see the module) to a file."""

    def __init__(self, path: Path | str, about: Description, *, overwrite: bool = False) -> None:
        self.path, self.about, self.overwrite = Path(path), about, overwrite
        self.count = 0
        """Frames appended so far."""

    @property
    def targets(self) -> tuple[Path, ...]:
        """Files and folders that come to be, ``path`` first."""
        return (self.path,)

    def check(self) -> None:
        """Refuse a place that cannot be written, before any work is done."""
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
            self._discard()
            raise
        return self

    def append(self, block: Block) -> None:
        """Write some more frames."""
        with writing(self.path):
            self._append(block)
        self.count += len(block.time)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and not self.count:
                raise ValueError(f"{self.path}: there is no frame, so nothing is written")
            if kind is None:
                with writing(self.path):
                    self._finish()
        finally:
            self._discard()

    @abstractmethod
    def _begin(self) -> None:
        """Open what is written to."""

    @abstractmethod
    def _append(self, block: Block) -> None:
        """Write a block."""

    @abstractmethod
    def _finish(self) -> None:
        """Complete what was written and give it its name."""

    @abstractmethod
    def _discard(self) -> None:
        """Close and remove what is temporary; after any end, perhaps before all is open."""


class GrowingWriter(FrameWriter):
    """Writes into one HDF5 file that grows."""

    _output: GrowingFile | None = None

    @property
    def output(self) -> GrowingFile:
        assert self._output is not None
        return self._output

    def _discard(self) -> None:
        if self._output is not None:
            self._output.discard()


def describe(trajectory: Trajectory) -> Description:
    """What is known of a trajectory before its frames are read."""
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
    )


def blocks_of(trajectory: Trajectory) -> Iterator[Block]:
    """The frames of a trajectory, a few at a time."""
    for frames in frame_blocks(trajectory):
        known = trajectory.known(frames).cpu()
        filled = None
        if trajectory.filled is not None:
            filled = known & read_mask(trajectory.filled, frames).cpu()
        yield Block(
            fields=trajectory.read(frames).to("cpu", torch.float32),
            time=trajectory.time[frames],
            number=torch.arange(frames.start, frames.stop),
            known=known,
            filled=filled,
        )


def point_arrays(block: Block, about: Description) -> dict[str, np.ndarray]:
    """By name, (t, y, x) of scalars or (t, y, x, 3) of vectors."""
    fields, spec = block.masked, about.spec
    found: dict[str, np.ndarray] = {}
    used: set[int] = set()
    if spec.velocity is not None:
        places = list(spec.velocity)
        if "w" in spec.channels:
            places.append(spec.channels.index("w"))
        vectors = torch.zeros(*fields[:, 0].shape, 3)
        vectors[..., : len(places)] = fields[:, places].movedim(1, -1)
        vectors[~block.known] = torch.nan
        found["velocity"] = vectors[..., list(about.placement.along_axes(0, 1, 2))].numpy()
        used = set(places)
    for place, name in enumerate(spec.channels):
        if place not in used:
            found[name] = fields[:, place].contiguous().numpy()
    if about.vorticity_unit is not None:
        found["vorticity"] = vorticity(block, about).numpy()
    if about.bars is not None:
        ends = block.bars
        for place, name in enumerate(about.bar_units):
            found[name] = ends[:, place].contiguous().numpy()
    found["valid"] = block.known.to(torch.uint8).numpy()
    if about.marks_filled:
        assert block.filled is not None
        found["filled"] = block.filled.to(torch.uint8).numpy()
    if spec.grid.body is not None:
        found["body"] = about.body.to(torch.uint8).expand_as(block.known).contiguous().numpy()
    return found


def vorticity(block: Block, about: Description) -> Float[Tensor, "t y x"]:
    """NaN where it is not defined."""
    spec = about.spec
    if spec.velocity is None:
        raise ValueError(
            f"expected a velocity, channels u and v of a flow, for the vorticity, found "
            f"{list(spec.channels)}; do not ask for it"
        )
    u, v = (block.fields[:, place].double() for place in spec.velocity)
    spin, defined = derivatives.where_defined(
        lambda u, v: derivatives.vorticity(u, v, spec.grid), u, v, known=block.known
    )
    return torch.where(defined & block.known, spin, torch.nan).float()
