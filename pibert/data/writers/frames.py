"""What writers of frames share: what is written, blocks of it, and how a file comes to its name.

A writer is used in a ``with`` block and takes frames one block at a time, so its memory does not
grow with their number. What it writes lies under a temporary name until the block ends well; an
error, or no frame at all, leaves nothing behind.
"""

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.data.partial import refuse_no_place, remove_leftovers
from pibert.fields import FieldSpec

ENDS = ("low", "high")
"""Of an error bar: what stands behind the name of its channel."""


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
    """Level of the error bars that go with the fields; None: there are none."""
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
        """Names and units of the ends of the bars: ``u_low``, ``u_high`` ...; empty without any."""
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
    """Ends of the error bars, if there are any; NaN where none can be told."""
    high: Float[Tensor, "t c y x"] | None = None
    filled: Bool[Tensor, "t y x"] | None = None
    """Known points whose value was put in, not measured, where ``Description.marks_filled``."""

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
    """Writes frames in the order of time; see the module.

    Args:
        path: The file to write; its folder must be there.
        about: What is written.
        overwrite: Whether an older output of this name may be replaced.
    """

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
        refuse_no_place(self.path)
        folder = self.path.parent
        if not os.access(folder, os.W_OK):
            raise PermissionError(
                f"{self.path}: the folder {folder} cannot be written; choose another or change its "
                "rights"
            )
        for target in self.targets:
            if target.exists() and not self.overwrite:
                raise FileExistsError(f"{target} exists; add --overwrite or choose another name")

    def __enter__(self) -> Self:
        self.check()
        for target in self.targets:
            remove_leftovers(target)
        try:
            with self._explained():
                self._begin()
        except BaseException:
            self._discard()
            raise
        return self

    def append(self, block: Block) -> None:
        """Write some more frames."""
        with self._explained():
            self._append(block)
        self.count += len(block.time)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None and not self.count:
                raise ValueError(f"{self.path}: there is no frame, so nothing is written")
            if kind is None:
                with self._explained():
                    self._finish()
        finally:
            self._discard()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """What the system refuses, with the file and what to do."""
        try:
            yield
        except OSError as error:
            if error.errno is None:
                raise
            raise OSError(
                error.errno,
                f"{self.path}: cannot write: {os.strerror(error.errno)}; nothing was changed; "
                "check the space and the rights of the folder",
            ) from error

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
