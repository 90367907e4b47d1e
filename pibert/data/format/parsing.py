"""From a group of the file to a trajectory: everything is looked at, nothing is believed.

Fields and masks of many frames stay in the file until they are asked for.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from pibert.data.format.layout import (
    GAPS,
    NUMBERS,
    REWRITE,
    SPACING_TOLERANCE,
    FormatError,
    as_text,
    keeps_step,
)
from pibert.data.format.storage import Storage
from pibert.fields import MASKS, FieldSpec, FrameSource, Grid, Parameter, Sides, Trajectory
from pibert.physics import find_family


class Parser:
    """Makes a trajectory of a group, and names the first thing in it that is wrong."""

    def __init__(self, storage: Storage, name: str, group: h5py.Group) -> None:
        self.storage, self.name, self.group = storage, name, group

    def trajectory(self) -> Trajectory:
        channels = tuple(self.json("channels", list))
        states = self.dataset("fields", 4, np.float32)
        t, c, ny, nx = states.shape
        if c != len(channels):
            raise self.fail(f"'fields' has {c} channels, but 'channels' names {channels}")
        time, x, y = (self.axis(key, count) for key, count in (("time", t), ("x", nx), ("y", ny)))
        dx, dy = self.uniform_step("dx", "x", x), self.uniform_step("dy", "y", y)
        numbers = {key: self.number(key) for key in NUMBERS}
        if (np.diff(time) <= 0).any():
            frame = int(np.argmax(np.diff(time) <= 0)) + 1
            raise self.fail(f"'time' must grow, but does not at frame {frame}")
        if numbers["dt"] is not None and not keeps_step(time, numbers["dt"]):
            raise self.fail(
                f"the frames of 'time' are not dt = {numbers['dt']:g} apart ({GAPS}; without the "
                "attribute dt any increasing time is right)"
            )
        masks = {key: self.mask(key, states.shape) for key in MASKS}
        parameters = self.json("parameters", dict)
        series = {key: torch.from_numpy(self.axis(f"series/{key}", t)) for key in self.series()}
        with self.stated():
            family = self.text("family") if "family" in self.group.attrs else None
            if family is not None:
                find_family(family)
            sides = Sides(**self.json("sides", dict))
            spec = FieldSpec(
                channels=channels,
                units=tuple(self.json("units", list)),
                parameters=tuple(
                    Parameter(name=key, scaling=entry["scaling"])
                    for key, entry in parameters.items()
                ),
                grid=Grid((ny, nx), dx, dy, sides, origin=(float(x[0]), float(y[0]))),
                family=family,
                **numbers,
            )
            return Trajectory(
                name=self.name,
                states=StoredFields(self.storage, self.name, states.shape),
                time=torch.from_numpy(time),
                spec=spec,
                parameters={
                    key: float(entry["value"])
                    for key, entry in parameters.items()
                    if entry["value"] is not None
                },
                series=series,
                source=self.json("source", dict),
                local=self.json("local", dict),
                length_unit=self.unit("x"),
                time_unit=self.unit("time"),
                **masks,
            )

    def fail(self, problem: str, remedy: str = REWRITE) -> FormatError:
        return FormatError(f"{self.storage.path}: trajectory {self.name!r}: {problem}; {remedy}")

    @contextlib.contextmanager
    def stated(self) -> Iterator[None]:
        """A refusal of what the file states is blamed on the file."""
        try:
            yield
        except FormatError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise self.fail(str(error)) from error

    def dataset(self, key: str, ndim: int, dtype: type) -> h5py.Dataset:
        # A link without a readable object is damage, which HDF5 reports.
        if self.group.get(key, getlink=True) is None:
            raise self.fail(f"dataset {key!r} is missing")
        dataset = self.group[key]
        if not isinstance(dataset, h5py.Dataset):
            raise self.fail(f"{key!r} must be a dataset, found a group")
        if dataset.ndim != ndim:
            raise self.fail(f"{key!r} must have {ndim} axes, found shape {dataset.shape}")
        if dataset.dtype != dtype:
            raise self.fail(f"{key!r} must be {np.dtype(dtype).name}, found {dataset.dtype.name}")
        return dataset

    def axis(self, key: str, count: int) -> np.ndarray:
        values: np.ndarray = self.dataset(key, 1, np.float64)[...]
        if len(values) != count:
            raise self.fail(f"{key!r} has {len(values)} entries, but 'fields' needs {count}")
        if not np.isfinite(values).all():
            raise self.fail(f"{key!r} holds values that are not finite")
        return values

    def series(self) -> list[str]:
        if self.group.get("series", getlink=True) is None:
            return []
        if not isinstance(self.group["series"], h5py.Group):
            raise self.fail("'series' must be a group of datasets")
        return list(self.group["series"])

    def uniform_step(self, name: str, key: str, axis: np.ndarray) -> float:
        step = self.number(name)
        if step is None:
            raise self.fail(f"attribute {name!r} is missing")
        if not step > 0 or _deviation(axis, step) > SPACING_TOLERANCE:
            raise self.fail(
                f"the points of {key!r} are not uniformly {name} = {step:g} apart",
                "resample the data to a uniform grid",
            )
        return step

    def mask(self, key: str, shape: tuple[int, ...]) -> Tensor | FrameSource | None:
        if self.group.get(key, getlink=True) is None:
            return None
        ndim = getattr(self.group[key], "ndim", 0)
        dataset = self.dataset(key, 2 if ndim == 2 else 3, np.uint8)
        if dataset.shape not in (shape[2:], (shape[0], *shape[2:])):
            raise self.fail(
                f"{key!r} must have shape {shape[2:]} or {(shape[0], *shape[2:])}, "
                f"found {dataset.shape}"
            )
        if ndim == 2:
            return _to_mask(dataset[...], lambda problem: self.fail(f"{key!r} {problem}"))
        return StoredMask(self.storage, self.name, key, dataset.shape)

    def unit(self, key: str) -> str | None:
        attributes = self.group[key].attrs
        return as_text(attributes["units"]) if "units" in attributes else None

    def number(self, key: str) -> float | None:
        return float(self.group.attrs[key]) if key in self.group.attrs else None

    def text(self, key: str) -> str:
        if key not in self.group.attrs:
            raise self.fail(f"attribute {key!r} is missing")
        return as_text(self.group.attrs[key])

    def json(self, key: str, kind: type) -> Any:
        try:
            value = json.loads(self.text(key))
        except json.JSONDecodeError as error:
            raise self.fail(f"attribute {key!r} is not JSON ({error})") from error
        if not isinstance(value, kind):
            raise self.fail(f"attribute {key!r} must be a JSON {kind.__name__}, found {value!r}")
        return value


class StoredFields:
    """The dataset ``fields`` of a trajectory."""

    def __init__(self, storage: Storage, name: str, shape: tuple[int, ...]) -> None:
        self.storage, self.name, self._shape = storage, name, shape

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        if channels is None:
            return torch.from_numpy(self.storage.read(self.name, "fields", frames))
        # HDF5 wants indices that grow; any order and repetition is made from those.
        wanted = sorted({range(self._shape[1])[channel] for channel in channels})
        places = [wanted.index(range(self._shape[1])[channel]) for channel in channels]
        fields = torch.from_numpy(self.storage.read(self.name, "fields", frames, wanted))
        return fields if places == list(range(len(wanted))) else fields[:, places]


class StoredMask:
    """A mask dataset with one frame per time."""

    def __init__(self, storage: Storage, name: str, key: str, shape: tuple[int, ...]) -> None:
        self.storage, self.name, self.key, self._shape = storage, name, key, shape

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        assert channels is None
        return _to_mask(self.storage.read(self.name, self.key, frames), self._fail)

    def _fail(self, problem: str) -> FormatError:
        return FormatError(
            f"{self.storage.path}: trajectory {self.name!r}: {self.key!r} {problem}; {REWRITE}"
        )


def _to_mask(values: np.ndarray, fail: Callable[[str], FormatError]) -> Tensor:
    if values.max(initial=0) > 1:
        raise fail(f"must hold 0 and 1 alone, found {values.max()}")
    return torch.from_numpy(values).to(torch.bool)


def _deviation(axis: np.ndarray, step: float) -> float:
    """Largest deviation of the steps of an axis from the given one, as a share of it."""
    return float(np.abs(np.diff(axis) / step - 1).max(initial=0.0))
