"""Flows to learn and predict from: a file, a folder, arrays or xarray."""

import contextlib
import functools
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from pibert.api.arrays import as_arrays, check_values, named_channels, with_mask
from pibert.display import Picture, as_html, draw
from pibert.fields import Trajectory
from pibert.notes import in_python

if TYPE_CHECKING:
    from pibert.data.readers.recordings import Hints, Recordings
    from pibert.evaluation.flow_statistics import FlowStatistics

P = ParamSpec("P")
T = TypeVar("T")


def speaks_python(call: Callable[P, T]) -> Callable[P, T]:
    """Name keyword arguments in place of options in the errors of a function."""

    @functools.wraps(call)
    def speaking(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
            if len(error.args) == 1 and isinstance(error.args[0], str):
                error.args = (in_python(error.args[0]),)
            raise

    return speaking


@dataclass(frozen=True, eq=False, repr=False)
class Flow(Sequence[Trajectory]):
    """One or more recordings with the same channels: trajectories, by number or name.

    Fields are read when they are used.
    """

    recordings: "Recordings"
    path: Path | None = None
    """A file, folder or pattern that has exactly these flows; None: they are in memory."""
    stated: Mapping[str, Any] = field(default_factory=dict)
    """How to read the path: ``kind``, ``hints`` and ``options``."""

    def __len__(self) -> int:
        return len(self.recordings.names)

    @overload
    def __getitem__(self, which: int | str) -> Trajectory: ...
    @overload
    def __getitem__(self, which: slice) -> "Flow": ...
    def __getitem__(self, which: int | str | slice) -> "Trajectory | Flow":
        if isinstance(which, slice):
            return Flow(replace(self.recordings, names=self.recordings.names[which]))
        return self.recordings[which]

    @property
    def name(self) -> str:
        is_pattern = self.path is None or not self.path.exists()
        return self.recordings.names[0] if is_pattern else self.recordings.path.stem

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader assumed or noticed."""
        return tuple(map(in_python, self.recordings.notes))

    def numpy(self, which: int | str = 0) -> Any:
        """Return one recording as an array (time, channel, y, x), NaN where it is unknown."""
        import torch

        trajectory = self[which]
        states = trajectory.read()
        return torch.where(trajectory.known()[:, None], states, torch.nan).numpy()

    @speaks_python
    def plot(self, path: Path | str | None = None, *, which: int | str = 0) -> Picture:
        """Plot a frame and statistics of one recording; write .png, .pdf or .svg to a path."""
        from pibert.data.inspection import inspect
        from pibert.report.inspection import draw_inspection

        found = inspect(self.recordings)
        return draw(lambda target: draw_inspection(target, self[which], found), path)

    @speaks_python
    def save(self, path: Path | str) -> Path:
        """Write a file in the format of its suffix (``pibert.data.writers``).

        Units are kept. Native files hold any number of recordings, the others one.
        """
        from pibert.data.writers import check_output, write_trajectories

        path = Path(path)
        check_output(path, self.recordings)
        write_trajectories(path, self)
        return path

    @speaks_python
    def select(
        self,
        *,
        frames: slice = slice(None),
        stride: int = 1,
        channels: Sequence[str] | None = None,
        size: tuple[int, int] | None = None,
        **region: Any,
    ) -> "Flow":
        """Return a view of some frames, channels and points.

        Args:
            frames: Such as ``slice(100, 900)``.
            stride: Use every Nth frame.
            channels: Names of the channels to keep, in this order.
            size: Rows and columns to resample to.
            region: ``x=(0, 0.02)`` and ``y`` in the flow's coordinates, either end None, or
                ``rows=slice(2, -2)`` and ``columns``.
        """
        from pibert.data.resample import Region, crop, represent

        kept = Region(**region)

        def view(trajectory: Trajectory) -> Trajectory:
            return represent(
                crop(trajectory, kept), frames=frames, stride=stride, channels=channels, size=size
            )

        selected = Flow(self.recordings.changed(view))
        selected[0]  # a wrong selection is an error here, not where the view is used
        return selected

    @speaks_python
    def fill(
        self,
        *,
        flag_outliers: bool = True,
        noise: float | None = None,
        fill_masked: bool = False,
        settings: Any = None,
    ) -> "Flow":
        """Fill missing vectors and replace outliers, by thin-plate splines in each frame.

        Filled values are marked: they are never scored or learned from. A pretrained model fills
        with ``model.fill(flow)``.

        Args:
            flag_outliers: Also replace vectors that do not fit their neighbours.
            noise: Accepted fluctuation of the velocity; lower values flag more vectors. None: a
                tenth of the velocity's standard deviation.
            fill_masked: Also fill points that no frame knows, such as a shadow.
            settings: ``FillSettings`` of another method.
        """
        from pibert.data.filling import fill_recordings, thin_plate
        from pibert.notes import warn

        if settings is None:
            settings = thin_plate(
                self.recordings,
                flag_outliers=flag_outliers,
                noise=noise,
                fill_masked=fill_masked,
            )
        with tempfile.TemporaryDirectory(prefix="pibert-") as folder:
            target = Path(folder) / f"{self.name}.h5"
            fill_recordings(self.recordings, target, settings, on_note=warn)
            return join([as_flow(each.load()) for each in read(target)])

    @speaks_python
    def stats(self, which: int | str = 0, **options: Any) -> "FlowStatistics":
        """Compute means, stresses, spectra, phase averages and modes of one recording.

        Args:
            which: Its number or name.
            options: ``probes``, ``period``, ``phases``, ``segment`` and ``rank``, as for
                ``pibert stats``.
        """
        from pibert.evaluation.flow_statistics import StatsOptions, flow_statistics

        return flow_statistics(self[which], StatsOptions(**options))

    def loader(
        self, *, history: int = 1, horizon: int = 1, batch_size: int = 32, seed: int = 0
    ) -> Any:
        """Return a PyTorch ``DataLoader`` of standardised windows, shuffled; items are ``Batch``.

        ``loader.dataset`` is a ``Dataset`` with ``spec`` and ``normalizer``, whose statistics are
        those of all frames: split the flows first, such as ``flow[:8]``, to keep some unseen.
        """
        from pibert.data.dataset import BatchOrder, Samples, Window, common_spec, make_loader
        from pibert.data.normalize import fit_normalizer, fit_parameters
        from pibert.data.splits import Segment

        flows = [trajectory.load() for trajectory in self]
        every = [Segment(index) for index in range(len(flows))]
        spec = replace(common_spec(flows), parameters=fit_parameters(flows, every))
        samples = Samples(
            flows,
            window=Window(history=history, horizon=horizon),
            normalizer=fit_normalizer(flows, every),
            spec=spec,
        )
        return make_loader(samples, BatchOrder(len(samples), batch_size, seed=seed, shuffle=True))

    @cached_property
    def key(self) -> str:
        """A fingerprint of flows in memory."""
        digest = hashlib.sha256()
        for flow in self:
            units = (flow.length_unit, flow.time_unit)
            facts = (flow.name, flow.spec.to_dict(), dict(flow.parameters), flow.time.tolist())
            digest.update(json.dumps((*facts, *units), default=str).encode())
            for block in (flow.read(), flow.known(), flow.measured()):
                digest.update(block.contiguous().numpy().data)
        return digest.hexdigest()[:12]

    @contextlib.contextmanager
    def as_file(self) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        """A path that has the flows, and how to read it; flows in memory get a temporary file."""
        if self.path is not None:
            yield self.path, self.stated
            return
        with tempfile.TemporaryDirectory(prefix="pibert-") as folder:
            yield self.save(Path(folder) / f"{self.name}-{self.key}.h5"), {}

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self._facts().items())

    def _repr_html_(self) -> str:
        return as_html(self._facts(), self.notes, self.plot())

    def _facts(self) -> dict[str, str]:
        first = self[0]
        spec, grid = first.spec, first.spec.grid
        units = zip(spec.channels, spec.units, strict=True)
        length, time = (unit or "" for unit in (first.length_unit, first.time_unit))
        frames = [flow.num_frames for flow in self]
        span = " to ".join(dict.fromkeys(map(str, (min(frames), max(frames)))))
        step = "dt not stated" if spec.dt is None else f"dt {spec.dt:.4g} {time}".rstrip()
        facts = {
            "flow": self.name if len(self) == 1 else f"{self.name}, {len(self)} recordings",
            "frames": f"{span}, {step}",
            "channels": ", ".join(n if unit == "1" else f"{n} [{unit}]" for n, unit in units),
            "grid": f"{grid.shape[0]} x {grid.shape[1]} points (rows x columns), "
            f"dx {grid.dx:.4g}, dy {grid.dy:.4g} {length}".rstrip(),
        }
        if first.parameters:
            facts["parameters"] = ", ".join(
                f"{name} {_range([flow.parameters.get(name) for flow in self])}"
                for name in spec.parameter_names
            )
        if first.body is not None:
            facts["body"] = "marked"
        return facts


@speaks_python
def read(
    path: Path | str | Sequence[Path | str],
    *,
    kind: str | None = None,
    options: Mapping[str, Any] | None = None,
    **hints: Any,
) -> Flow:
    """Read a file, a folder or a pattern such as ``run/B*.txt`` as a flow.

    Args:
        path: Any kind that ``pibert inspect`` reads; a list of paths gives all of their flows.
        kind: Reader to use if the kind of file is not recognised.
        options: Further options of that reader.
        hints: What the file does not state: ``dt``, ``dx``, ``dy``, ``unit``, ``length_unit``,
            ``time_unit``, ``scale``, ``pulse_delay``, ``channels``, ``parameters``, ``sides``,
            ``family``, ``body``, ``mask``, ``flip`` ..., as the options of ``pibert inspect``.
    """
    if isinstance(path, list | tuple):
        return join([read(each, kind=kind, options=options, **hints) for each in path])
    from pibert.data.readers import open_recordings

    if not isinstance(path, str | Path):
        raise TypeError(
            f"expected the path of a file or folder, found {type(path).__name__}; make a flow of "
            "arrays with pibert.flow"
        )
    path, stated = Path(path), _stated(kind, options, hints)
    found = open_recordings(path, kind, _hints(hints), options or {})
    return _noted(Flow(found, path, stated))


@speaks_python
def flow(
    data: Any,
    *,
    name: str = "flow",
    mask: Any = None,
    body: Any = None,
    channels: Sequence[str] | Mapping[str, str] | None = None,
    **hints: Any,
) -> Flow:
    """Make a flow of arrays, tensors or xarray.

    Args:
        data: An array or tensor (time, channel, y, x), or (time, y, x) of one channel; several
            flows as (flow, time, channel, y, x); arrays (time, y, x) by channel name, also with
            ``x``, ``y`` and ``t``; an xarray ``Dataset`` or ``DataArray``.
        name: Name of the flow.
        mask: True where the fields are known: (y, x) or (time, y, x), with rows and columns in the
            order of the fields. NaN and what a NumPy masked array hides are unknown anyway.
        body: True inside a solid body, of the same shapes; or a region such as
            ``circle:0,0,0.5``.
        channels: Names of all channels of an array; of named arrays, those to use, or
            ``{"u": "Vx"}`` if they have other names.
        hints: ``dt``, ``dx``, ``dy``, ``unit``, ``length_unit``, ``time_unit``, ``parameters`` ...,
            as for ``read``.
    """
    from pibert.data.readers import open_memory

    arrays = as_arrays(data, name)
    check_values(arrays)
    if channels is not None:
        hints["channels"] = named_channels(channels, arrays, hints.get("axes"))
    if isinstance(body, str):
        hints["body"], body = body, None
    masks = {"valid": mask, "body": body}
    given = {role: marked for role, marked in masks.items() if marked is not None}
    for role, marked in given.items():
        arrays = with_mask(arrays, role, marked)
        if hints.get("channels"):
            hints["channels"] = {**hints["channels"], role: role}
    made = Flow(open_memory(arrays, _hints(hints), name=name))
    if given and not made[0].known().any():
        raise ValueError(
            f"{name}: expected points that are known, found none outside mask= and body=; a mask "
            "is True where the fields are known, a body is True inside"
        )
    return _noted(made)


def join(flows: Sequence[Flow]) -> Flow:
    """Several flows as one set, such as a parameter sweep; equal names get numbers."""
    if len(flows) == 1:
        return flows[0]
    if not flows:
        raise ValueError("expected at least one flow, found an empty list")
    from pibert.data.readers.recordings import Recordings

    found: dict[str, Trajectory] = {}
    for own in flows:
        for trajectory in own:
            name, number = trajectory.name, 2
            while name in found:
                name, number = f"{trajectory.name}-{number}", number + 1
            found[name] = replace(trajectory, name=name)
    notes = tuple(dict.fromkeys(note for own in flows for note in own.recordings.notes))
    path = Path(flows[0].name)
    return Flow(
        Recordings(
            kind="arrays", path=path, names=tuple(found), load=found.__getitem__, notes=notes
        )
    )


def as_flow(data: Any, **hints: Any) -> Flow:
    """A flow of anything that ``read`` and ``flow`` take, or a list of these."""
    if isinstance(data, Flow):
        return data
    if isinstance(data, Trajectory):
        from pibert.data.readers.recordings import Recordings

        path, load = Path(data.name), {data.name: data}.__getitem__
        return Flow(Recordings(kind="arrays", path=path, names=(data.name,), load=load))
    if isinstance(data, str | Path):
        return read(data, **hints)
    if isinstance(data, list | tuple):
        return join([as_flow(each, **hints) for each in data])
    return flow(data, **hints)


def _noted(found: Flow) -> Flow:
    from pibert.notes import warn

    for note in found.notes:
        warn(note)
    return found


def _hints(given: Mapping[str, Any]) -> "Hints":
    from pibert.data.readers.recordings import Hints

    known = [each.name for each in fields(Hints)]
    if unknown := sorted(set(given) - set(known)):
        raise TypeError(f"unknown arguments {', '.join(unknown)}; known: {', '.join(known)}")
    return Hints(**{n: _tuples(n, value) for n, value in given.items() if value is not None})


def _tuples(name: str, value: Any) -> Any:
    if name in ("dt", "dx", "dy") and value is not None:
        return _number(name, value)
    if name == "parameters" and value is not None:
        return {key: _number(f"parameter {key}", number) for key, number in value.items()}
    if name in ("flip", "body", "mask") and isinstance(value, str):
        return tuple(value.split(",")) if name == "flip" else (value,)
    return tuple(value) if isinstance(value, list) else value


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected a number, found {value!r}") from None


def _stated(
    kind: str | None, options: Mapping[str, Any] | None, hints: Mapping[str, Any]
) -> dict[str, Any]:
    """As a configuration file has it: plain lists."""
    plain = {name: _tuples(name, value) for name, value in hints.items() if value is not None}
    plain = {n: list(value) if isinstance(value, tuple) else value for n, value in plain.items()}
    return {"kind": kind, "hints": plain, "options": dict(options or {})}


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "unknown"
    return " to ".join(dict.fromkeys(f"{value:.4g}" for value in (min(known), max(known))))
