"""Writing the native format: a file appears whole or not at all.

It has a temporary name in the same folder until it is complete and on the disk.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
import torch
from torch import Tensor

from pibert.data.format.reading import (
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
    GrowingFile,
    PartialFile,
    interrupts_held,
    make_folder,
    remove_leftovers,
    writing,
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

    The target appears, and replaces an older one, when the ``with`` block ends without an error. A
    trajectory that is refused leaves no trace: the caller may add the next.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._output: GrowingFile | None = None

    def __enter__(self) -> Self:
        make_folder(self.path)
        if self.path.exists() and not self.path.stat().st_mode & 0o222:
            raise PermissionError(
                f"{self.path} is read-only; make it writable or choose another name"
            )
        remove_leftovers(self.path)
        with writing(self.path):
            self._output = GrowingFile(self.path, _create)
        return self

    def add(self, trajectory: Trajectory) -> None:
        """Append a trajectory; its states are read and written in blocks of frames."""
        if self._output is None:
            raise ValueError(f"{self.path}: the writer is closed; use it in a with block")
        group, name = self._output.file["trajectories"], _checked_name(trajectory.name)
        if name in group:
            raise ValueError(
                f"{self.path}: there is a trajectory {name!r} already; choose another name"
            )
        attributes = _describe(trajectory)
        with interrupts_held() as handle_signals:
            try:
                self._write(group.create_group(name), trajectory, attributes, handle_signals)
                self._stop_at_error()
            except BaseException:
                del group[name]
                raise

    def _write(
        self,
        group: h5py.Group,
        trajectory: Trajectory,
        attributes: Mapping[str, Any],
        handle_signals: Callable[[], None],
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
            axis = _write_numbers(group, key, values)
            if unit is not None:
                axis.attrs["units"] = fixed_text(unit)
        if trajectory.series:
            series = group.create_group("series", track_order=True)
            for key, numbers in trajectory.series.items():
                _write_numbers(series, _checked_name(key), numbers.cpu().numpy())
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
            handle_signals()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with interrupts_held():
            output, self._output = self._output, None
            assert output is not None
            try:
                if kind is None and not len(output.file["trajectories"]):
                    raise ValueError(f"{self.path}: no trajectory was added, so nothing is written")
                if kind is None:
                    with writing(self.path):
                        output.close()
                        output.publish()
            finally:
                output.discard()

    def _stop_at_error(self) -> None:
        assert self._output is not None
        with writing(self.path):
            self._output.raise_error()


def _create(sink: PartialFile) -> h5py.File:
    file = h5py.File(sink, "w", libver=_LIBVER, track_order=True)
    file.attrs["format"] = fixed_text(FORMAT)
    file.attrs["version"] = VERSION
    file.create_group("trajectories", track_order=True)
    return file


def _describe(trajectory: Trajectory) -> dict[str, Any]:
    """Return the attributes of a trajectory's group, without unknown ones."""
    spec = trajectory.spec
    if spec.family is not None:
        find_family(spec.family)
    steps = trajectory.time.cpu().numpy()
    if spec.dt is not None and not keeps_step(steps, spec.dt):
        raise ValueError(
            f"trajectory {trajectory.name!r}: its frames are not dt = {spec.dt:g} apart ({GAPS}); "
            "correct the time, or set dt to None"
        )
    plain: dict[str, Any] = {
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
    if spec.bodies:
        plain["bodies"] = [body.to_dict() for body in spec.bodies]
    if spec.state:
        plain["state"] = list(spec.state)
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


def _write_numbers(group: h5py.Group, key: str, values: np.ndarray) -> h5py.Dataset:
    data = values.astype("<f8")
    return group.create_dataset(key, data=data, chunks=data.shape, fletcher32=True)


def _write_mask(
    group: h5py.Group, key: str, mask: Tensor | FrameSource, trajectory: Trajectory
) -> None:
    shape = tuple(mask.shape)
    frames = frames_in_chunk(shape[-2] * shape[-1], shape[0])
    chunks = shape if len(shape) == 2 else (frames, *shape[1:])
    packed = {"compression": "gzip", "compression_opts": 1, "fletcher32": True}
    dataset = group.create_dataset(key, shape, "u1", chunks=chunks, **packed)
    if len(shape) == 2:
        dataset[...] = read_mask(mask, slice(None)).cpu().numpy()
        return
    for block in blocks(trajectory):
        dataset[block] = read_mask(mask, block).cpu().numpy()


def _checked_name(name: str) -> str:
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError(f"a name must not be empty or contain '/', found {name!r}")
    return name
