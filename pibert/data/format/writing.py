"""Writing: a file appears whole or not at all.

It is written under a temporary name in the same folder and renamed when it is complete and on the
disk.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
import torch
from torch import Tensor

from pibert.data.format.layout import (
    FORMAT,
    GAPS,
    NUMBERS,
    VERSION,
    blocks,
    find_not_finite,
    fixed_text,
    frames_in_chunk,
    keeps_step,
)
from pibert.data.partial import (
    PartialFile,
    interrupts_held,
    partial_path,
    refuse_no_place,
    remove_leftovers,
)
from pibert.fields import MASKS, FrameSource, Trajectory, read_mask
from pibert.physics import find_family

# Object headers of this version have checksums; HDF5 1.10 and later read it.
_LIBVER = ("v110", "v110")


def write(path: Path | str, trajectories: Sequence[Trajectory]) -> None:
    """Write a file of trajectories; all of them or nothing."""
    with Writer(path) as writer:
        for trajectory in trajectories:
            writer.add(trajectory)


class Writer:
    """Writes a file trajectory by trajectory.

    The target appears when the ``with`` block ends well, and replaces an older one only then. A
    trajectory that is refused leaves no trace: the caller may go on with the next.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: h5py.File | None = None
        self._sink: PartialFile | None = None
        self._partial = partial_path(self.path)

    def __enter__(self) -> Self:
        refuse_no_place(self.path)
        if self.path.exists() and not self.path.stat().st_mode & 0o222:
            raise PermissionError(
                f"{self.path} is read-only; make it writable or choose another name"
            )
        remove_leftovers(self.path)
        try:
            with interrupts_held():
                self._begin()
        except BaseException as error:
            if self._file is not None:
                self.__exit__(type(error), error, None)
            raise
        return self

    def _begin(self) -> None:
        try:
            self._sink = PartialFile(self._partial)
        except OSError as error:
            raise self._explain(error) from error
        self._file = h5py.File(self._sink, "w", libver=_LIBVER, track_order=True)
        self._file.attrs["format"] = fixed_text(FORMAT)
        self._file.attrs["version"] = VERSION
        self._file.create_group("trajectories", track_order=True)

    def add(self, trajectory: Trajectory) -> None:
        """Append a trajectory; its states are read and written in blocks of frames."""
        if self._file is None or self._sink is None:
            raise ValueError(f"{self.path}: the writer is closed; use it in a with block")
        group, name = self._file["trajectories"], _checked_name(trajectory.name)
        if name in group:
            raise ValueError(f"{self.path}: there is a trajectory {name!r} already; names differ")
        attributes = _describe(trajectory)
        with interrupts_held() as let_through:
            try:
                self._write(group.create_group(name), trajectory, attributes, let_through)
                self._stop_at_error()
            except BaseException:
                del group[name]
                raise

    def _write(
        self,
        group: h5py.Group,
        trajectory: Trajectory,
        attributes: Mapping[str, Any],
        let_through: Callable[[], None],
    ) -> None:
        for key, value in attributes.items():
            group.attrs[key] = fixed_text(value) if isinstance(value, str) else value
        grid, states = trajectory.spec.grid, trajectory.states
        axes = {
            "time": (trajectory.time.cpu().numpy(), trajectory.time_unit),
            "x": (grid.origin[0] + grid.dx * np.arange(grid.shape[1]), trajectory.length_unit),
            "y": (grid.origin[1] + grid.dy * np.arange(grid.shape[0]), trajectory.length_unit),
        }
        for key, (values, unit) in axes.items():
            axis = group.create_dataset(
                key, data=values.astype("<f8"), chunks=values.shape, fletcher32=True
            )
            if unit is not None:
                axis.attrs["units"] = fixed_text(unit)
        if trajectory.series:
            series = group.create_group("series", track_order=True)
            for key, numbers in trajectory.series.items():
                data = numbers.cpu().numpy().astype("<f8")
                series.create_dataset(
                    _checked_name(key), data=data, chunks=data.shape, fletcher32=True
                )
        for key in MASKS:
            mask = getattr(trajectory, key)
            if mask is not None:
                _write_mask(group, key, mask, trajectory)
        t, c, ny, nx = states.shape
        fields = group.create_dataset(
            "fields",
            (t, c, ny, nx),
            "<f4",
            chunks=(frames_in_chunk(4 * ny * nx, t), 1, ny, nx),
            fletcher32=True,
        )
        for frames in blocks(trajectory):
            block = trajectory.read(frames)
            if block.dtype != torch.float32:
                raise ValueError(
                    f"trajectory {trajectory.name!r}: expected states in float32, found "
                    f"{block.dtype}; convert them first"
                )
            problem = find_not_finite(trajectory, frames, block)
            if problem:
                raise ValueError(
                    f"trajectory {trajectory.name!r}: {problem}; mark the point as not valid or as "
                    "body, or leave the trajectory out"
                )
            fields[frames] = block.cpu().numpy()
            self._stop_at_error()
            let_through()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with interrupts_held():
            file, sink = self._file, self._sink
            assert file is not None and sink is not None
            self._file = None
            try:
                complete = kind is None and len(file["trajectories"])
                file.close()
                if complete:
                    self._stop_at_error()
                    self._publish(sink)
                elif kind is None:
                    raise ValueError(f"{self.path}: no trajectory was added, so nothing is written")
            finally:
                sink.close()
                self._partial.unlink(missing_ok=True)

    def _publish(self, sink: PartialFile) -> None:
        try:
            os.fsync(sink.fileno())
            os.replace(self._partial, self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._explain(error) from error

    def _stop_at_error(self) -> None:
        assert self._sink is not None
        if self._sink.error is not None:
            raise self._explain(self._sink.error) from self._sink.error

    def _explain(self, error: OSError) -> OSError:
        return OSError(
            error.errno,
            f"{self.path}: cannot write: {os.strerror(error.errno or 0)}; nothing was changed; "
            "check the space and the rights of the folder",
        )


def _describe(trajectory: Trajectory) -> dict[str, Any]:
    """The attributes of a trajectory's group; what is unknown is left out."""
    spec = trajectory.spec
    if spec.family is not None:
        find_family(spec.family)
    steps = trajectory.time.cpu().numpy()
    if spec.dt is not None and not keeps_step(steps, spec.dt):
        raise ValueError(
            f"trajectory {trajectory.name!r}: its frames are not dt = {spec.dt:g} apart ({GAPS}); "
            "correct the time, or set dt to None"
        )
    plain = {
        "channels": list(spec.channels),
        "units": list(spec.units),
        "sides": {side: str(kind) for side, kind in spec.grid.sides._asdict().items()},
        "parameters": {
            p.name: {"value": trajectory.parameters.get(p.name), "scaling": p.scaling}
            for p in spec.parameters
        },
        "source": dict(trajectory.source),
        "local": dict(trajectory.local),
    }
    attributes: dict[str, Any] = {}
    for key, value in plain.items():
        try:
            attributes[key] = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"trajectory {trajectory.name!r}: {key} must be plain JSON values ({error})"
            ) from error
    numbers = {key: getattr(spec, key) for key in NUMBERS}
    numbers |= {"dx": spec.grid.dx, "dy": spec.grid.dy, "family": spec.family}
    return attributes | {key: value for key, value in numbers.items() if value is not None}


def _write_mask(
    group: h5py.Group, key: str, mask: Tensor | FrameSource, trajectory: Trajectory
) -> None:
    shape = tuple(mask.shape)
    frames = frames_in_chunk(shape[-2] * shape[-1], shape[0])
    dataset = group.create_dataset(
        key,
        shape,
        "u1",
        chunks=shape if len(shape) == 2 else (frames, *shape[1:]),
        compression="gzip",
        compression_opts=1,
        fletcher32=True,
    )
    if len(shape) == 2:
        dataset[...] = read_mask(mask, slice(None)).cpu().numpy()
        return
    for block in blocks(trajectory):
        dataset[block] = read_mask(mask, block).cpu().numpy()


def _checked_name(name: str) -> str:
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError(f"a name must be a word without '/', found {name!r}")
    return name
