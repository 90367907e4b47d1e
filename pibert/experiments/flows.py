"""The flows of an experiment: read or simulated, converted, split, and their statistics."""

import hashlib
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pibert.data.dataset import Samples, Window, common_spec
from pibert.data.filling import count_filled
from pibert.data.generate import OnProgress, change, generate, recipe_hash
from pibert.data.measurement import measure
from pibert.data.normalize import fit_normalizer, fit_parameters
from pibert.data.outliers import flag_outliers
from pibert.data.provenance import frame_step, predicted_by
from pibert.data.readers import open_recordings
from pibert.data.readers.recordings import Hints
from pibert.data.readers.shared.files import expand_pattern
from pibert.data.resample import represent
from pibert.data.splits import (
    RANGES,
    SPLITS,
    Segment,
    Split,
    SplitRule,
    condition,
    split_at_gaps,
    split_by_parameter,
    split_in_time,
    split_trajectories,
)
from pibert.data.units import describe_conversion, in_consistent_units
from pibert.data.wording import counted
from pibert.experiments.experiment import DataConfig
from pibert.fields import FieldSpec, Normalizer, Trajectory
from pibert.notes import warn
from pibert.solver.presets import find_preset
from pibert.solver.recipes import Recipe

IDENTITIES = ("fingerprint", "recipe_hash")
"""Keys of ``Flows.source`` that identify data: of files, or of the recipe of simulated ones."""
_SAME_STEP = 0.01
"""Relative difference up to which time steps count as even."""
CACHE = "PIBERT_CACHE"
"""Environment variable: folder of simulated data, instead of ``~/.cache/pibert``."""


@dataclass(frozen=True, eq=False)
class Flows:
    """Trajectories, their split, and the statistics of the training split."""

    trajectories: tuple[Trajectory, ...]
    split: Split
    normalizer: Normalizer
    spec: FieldSpec
    """The fields of a model for these flows."""
    source: dict[str, Any]
    """Their origin, as plain JSON."""

    def samples(self, subset: str | Sequence[Segment], window: Window) -> Samples:
        """Return the windows of a split by name (``train``, ``valid`` ...), or of segments."""
        segments = getattr(self.split, subset) if isinstance(subset, str) else tuple(subset)
        if not segments:
            raise ValueError(f"the {subset!r} split is empty; give it a share of the data")
        return Samples(
            self.trajectories,
            segments,
            window=window,
            normalizer=self.normalizer,
            spec=self.spec,
        )

    def length(self, segment: Segment) -> int:
        """Return the number of frames of a segment."""
        index, start, stop = segment
        return (self.trajectories[index].num_frames if stop is None else stop) - start

    def longest(self, subset: str | Sequence[Segment]) -> int:
        """Return the most consecutive frames of a subset without a gap in time; 0: it is empty."""
        longest = 0
        for segment in getattr(self.split, subset) if isinstance(subset, str) else subset:
            trajectory = self.trajectories[segment.trajectory]
            for piece in split_at_gaps(segment, trajectory.time, frame_step(trajectory)):
                longest = max(longest, self.length(piece))
        return longest

    def labelled(self, share: float) -> tuple[Segment, ...]:
        """Return a share of the training split: whole trajectories, or the start of the only one.

        A smaller share is a subset of a larger one.
        """
        train = self.split.train
        if len(train) == 1:
            index, start, _ = train[0]
            return (Segment(index, start, start + max(1, round(share * self.length(train[0])))),)
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).tolist()
        count = max(1, math.floor(share * len(train) + 0.5))
        return tuple(train[index] for index in sorted(order[:count]))


def prepare(
    config: DataConfig, *, device: str = "cpu", on_progress: OnProgress | None = None
) -> Flows:
    """Return the flows of a configuration, with the statistics of the training split.

    Flows that are not in the cache are simulated on the device, with calls of ``on_progress``.
    """
    trajectories, source, split = _all_flows(config, device, on_progress)
    _warn_of_filled(trajectories)
    spec = common_spec(trajectories)
    _note_time_steps(trajectories, spec)
    spec = replace(spec, parameters=fit_parameters(trajectories, split.train))
    return Flows(trajectories, split, fit_normalizer(trajectories, split.train), spec, source)


def outline(
    config: DataConfig, *, device: str = "cpu", on_progress: OnProgress | None = None
) -> Flows:
    """Return the flows of ``prepare`` without reading their fields, and without statistics.

    For checks before other processes read them.
    """
    unread = replace(config, in_memory=False, outlier_noise=None)
    trajectories, source, split = _all_flows(unread, device, on_progress)
    spec = common_spec(trajectories)
    unscaled = Normalizer.identity(len(spec.channels))
    return Flows(trajectories, split, unscaled, spec, source)


def prepare_test(config: DataConfig, spec: FieldSpec, normalizer: Normalizer) -> Flows:
    """Return flows that are all in the test split of a model, in its scaling.

    The split of the configuration is not used.
    """
    trajectories, source, _ = _trajectories(config, "cpu", None)
    _warn_of_filled(trajectories)
    everything = tuple(Segment(index) for index in range(len(trajectories)))
    common = replace(common_spec(trajectories), parameters=spec.parameters)
    _note_time_steps(trajectories, common)
    return Flows(trajectories, Split((), (), (), everything), normalizer, common, source)


def _all_flows(
    config: DataConfig, device: str, on_progress: OnProgress | None
) -> tuple[tuple[Trajectory, ...], dict[str, Any], Split]:
    """Return the trajectories, their origin, and their split; flows to test on are the last."""
    trajectories, source, published = _trajectories(config, device, on_progress)
    split, read = _split(trajectories, config, published), {"path": config}
    for subset in config.other_flows():
        others = config_of(config, subset)
        _refuse_simulated_again(subset, others, read)
        flows, source[subset], _ = _trajectories(others, device, on_progress)
        _refuse_same_files(subset, others, read)
        read[subset] = others
        first = len(trajectories)
        segments = tuple(Segment(first + index) for index in range(len(flows)))
        split = replace(split, **{subset: segments})
        trajectories = (*trajectories, *flows)
    return trajectories, source, split


def _refuse_simulated_again(
    subset: str, others: DataConfig, read: Mapping[str, DataConfig]
) -> None:
    """Refuse to simulate flows of another split again."""
    if others.case is None:
        return
    for name, config in read.items():
        if config.case is not None and recipe_of(others).seed == recipe_of(config).seed:
            whose = "the training flows" if name == "path" else f"data.{name}.recipe"
            raise ValueError(
                f"data.{subset}.recipe: expected a seed of its own, found that of {whose}, which "
                f"would be simulated again; set data.{subset}.recipe.seed"
            )


def _refuse_same_files(subset: str, others: DataConfig, read: Mapping[str, DataConfig]) -> None:
    """Refuse files of another split, also as copies."""
    if others.path is None:
        return
    path = Path(others.path)
    for name, config in read.items():
        if config.path is None:
            continue
        known = Path(config.path)
        shared = {f.resolve() for f in _files_of(known)} & {f.resolve() for f in _files_of(path)}
        if shared or _fingerprint(known) == _fingerprint(path):
            whose = "data.path" if name == "path" else f"data.{name}.path"
            found = f": {min(shared).name}" if len(shared) == 1 else ""
            raise ValueError(
                f"data.{subset}.path: expected other flows than those of {whose}, found the same "
                f"files{found}; name others, or leave out data.{subset}"
            )


def _trajectories(
    config: DataConfig, device: str, on_progress: OnProgress | None
) -> tuple[tuple[Trajectory, ...], dict[str, Any], Callable[[], Split] | None]:
    path, source = _locate(config, device, on_progress)
    hints = Hints(**as_hints(config.hints))
    recordings = open_recordings(path, config.kind, hints, as_hints(config.options))
    for note in recordings.notes:
        warn(note)
    trajectories = tuple(_converted(trajectory, config) for trajectory in recordings)
    if names := config.group_by or _condition_names(trajectories, config):
        source["group_by"] = list(names)
    if predicted := sorted({text for t in trajectories if (text := predicted_by(t.source))}):
        source["predicted"] = predicted
        warn(f"{path}: these flows are not ground truth, but {'; '.join(predicted)}")
    return trajectories, source, recordings.published_split


def _warn_of_filled(trajectories: Sequence[Trajectory]) -> None:
    """Warn how much of the flows was not measured."""
    filled, known = map(sum, zip(*map(count_filled, trajectories), strict=True))
    if filled:
        warn(
            f"{filled:,} of {known:,} vectors ({filled / known:.2%}) were filled, not measured: "
            "models take them as input, but training targets, scores and calibration leave them out"
        )


def _note_time_steps(trajectories: Sequence[Trajectory], spec: FieldSpec) -> None:
    """Warn if frames are not one time step apart, since a model takes a single step."""
    steps = {t.spec.dt: t.name for t in reversed(trajectories) if t.spec.dt is not None}
    if spec.dt is None and steps:
        examples = [f"{step:.6g} in {steps[step]!r}" for step in sorted({min(steps), max(steps)})]
        examples += [f"not stated in {t.name!r}" for t in trajectories if t.spec.dt is None][:1]
        warn(
            f"the time step differs between trajectories ({', '.join(examples)}): the model takes "
            "one step for all of them, and one that is trained on them states no time step; bring "
            "them to one with pibert convert --stride or --dt, or use those that agree"
        )
    for trajectory in trajectories:
        intervals = trajectory.time.diff()
        if frame_step(trajectory) is not None or len(intervals) < 2:
            continue
        low, high = float(intervals.min()), float(intervals.max())
        if high > (1 + _SAME_STEP) * low:
            warn(
                f"trajectory {trajectory.name!r}: its frames are not evenly spaced in time, but "
                f"{low:g} to {high:g} apart. The model takes them as one step; state the step with "
                "--dt if most of them keep it, also with --override-units if the times are wrong; "
                "else resample in time"
            )
            return


def cache_folder() -> Path:
    named = os.environ.get(CACHE)
    return Path(named) if named else Path.home() / ".cache" / "pibert"


def config_of(config: DataConfig, subset: str) -> DataConfig:
    """Return the configuration of the flows of a split: itself, unless it has flows of its own."""
    others = config.other_flows().get(subset)
    if others is None:
        return config
    plain = replace(config, test=None, calibration=None)
    if others.path is not None:
        return replace(plain, case=None, recipe={}, path=others.path)
    return replace(plain, recipe=config.recipe | others.recipe)


def recipe_of(config: DataConfig) -> Recipe:
    """Return the recipe of the simulated flows of a configuration."""
    assert config.case is not None
    try:
        return change(find_preset(config.case, config.preset), config.recipe)
    except ValueError as error:
        raise ValueError(f"data: {error}") from None


def with_other_states(
    config: DataConfig, states: Callable[[Trajectory], Trajectory], numbers: Collection[int]
) -> dict[int, Trajectory]:
    """Return some flows of a configuration with other states, by number.

    ``states`` changes a flow as it is stored. Then come the frames, channels and grid of the
    configuration, without noise of a measurement.
    """
    stored = replace(
        config, stride=1, max_frames=None, channels=(), size=None, in_memory=False,
        measurement=None, outlier_noise=None,
    )  # fmt: skip
    plain = replace(config, measurement=None, outlier_noise=None, in_memory=True)
    flows, _, _ = _trajectories(stored, "cpu", None)
    return {number: _converted(states(flows[number]), plain) for number in numbers}


def _locate(
    config: DataConfig, device: str, on_progress: OnProgress | None
) -> tuple[Path, dict[str, Any]]:
    """Return the file of the flows, simulated if needed, and what identifies it."""
    if config.path is not None:
        path = Path(config.path)
        return path, {"path": str(path), "fingerprint": _fingerprint(path)}
    recipe = recipe_of(config)
    code = recipe_hash(recipe)
    path = cache_folder() / f"{config.case}-{code}.h5"
    path.parent.mkdir(parents=True, exist_ok=True)
    diverged = generate(recipe, path, device=device, on_progress=on_progress).diverged
    source: dict[str, Any] = {"case": config.case, "preset": config.preset, "recipe_hash": code}
    if diverged:
        source["diverged"] = [flow.name for flow in diverged]
        warn(
            f"{len(diverged)} of {recipe.samples} flows diverged in the simulation and are left "
            f"out: {'; '.join(f'{flow.name} ({flow.reason})' for flow in diverged)}"
        )
    return path, source


def _fingerprint(path: Path) -> str | None:
    """Return a hash of the name, length, and first and last megabyte of every file.

    ``path`` is a file, a folder or a pattern. None: there is no file, which the reader reports.
    """
    block = 1 << 20
    base = path if path.exists() else path.parent
    files = _files_of(path)
    if not files:
        return None
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{os.path.relpath(file, base)} {size}".encode())
        with file.open("rb") as content:
            digest.update(content.read(block))
            content.seek(max(0, size - block))
            digest.update(content.read(block))
    return digest.hexdigest()[:16]


def _files_of(path: Path) -> list[Path]:
    """Return a file, the files below a folder, or those of a pattern."""
    entries = path.rglob("*") if path.is_dir() else expand_pattern(path)
    return [path] if path.is_file() else sorted(file for file in entries if file.is_file())


def _converted(trajectory: Trajectory, config: DataConfig) -> Trajectory:
    stored, trajectory = trajectory, in_consistent_units(trajectory)
    if trajectory is not stored:
        warn(describe_conversion(trajectory))
    if config.measurement is not None:
        trajectory = measure(trajectory, config.measurement)
    view = represent(
        trajectory,
        stride=config.stride,
        max_frames=config.max_frames,
        channels=config.channels or None,
        size=config.size,
    )
    if config.outlier_noise is not None:
        view = _without_outliers(view, config.outlier_noise)
    return view.load() if config.in_memory else view


def _without_outliers(trajectory: Trajectory, noise: float) -> Trajectory:
    """Mark outliers as not valid; this reads all frames."""
    velocity = trajectory.spec.velocity
    if velocity is None:
        raise ValueError(
            "data.outlier_noise: outliers are looked for among the vectors (u, v), found channels "
            f"{list(trajectory.spec.channels)}"
        )
    known = trajectory.known()
    flagged = flag_outliers(trajectory.read(channels=velocity), noise=noise, known=known)
    valid = torch.ones_like(known) if trajectory.valid is None else known
    return replace(trajectory, valid=valid & ~flagged)


def _split(
    trajectories: Sequence[Trajectory], config: DataConfig, published: Callable[[], Split] | None
) -> Split:
    rule, shares, seed = SplitRule.parse(config.split), config.shares, config.split_seed
    if rule.kind == "time":
        lengths = [trajectory.num_frames for trajectory in trajectories]
        return split_in_time(lengths, shares, guard=config.guard)
    if rule.kind == "trajectory":
        groups = _groups(trajectories, config.group_by, "group_by")
        return split_trajectories(groups, shares, seed=seed)
    if rule.kind == "conditions":
        names = _condition_names(trajectories, config)
        if not names:
            raise ValueError(
                "data.split = 'conditions': expected parameters that vary between flows, found "
                f"none in {counted(len(trajectories), 'flow')}; choose another split"
            )
        return split_trajectories(_groups(trajectories, names, "split"), shares, seed=seed)
    if rule.kind in RANGES:
        values = [float(value) for (value,) in _groups(trajectories, rule.names, "split")]
        return split_by_parameter(values, rule, shares, seed=seed)
    if published is not None:
        split = published()
        in_windows = any(segment.stop is not None for segment in split.train)
        if in_windows and (config.stride != 1 or config.max_frames is not None):
            raise ValueError(
                "data.split = 'stated': the publishers' windows count the frames as stored, found "
                f"stride {config.stride} and max_frames {config.max_frames}; leave both out"
            )
        return split
    stated = [trajectory.local.get("split") for trajectory in trajectories]
    if unknown := [t.name for t, name in zip(trajectories, stated, strict=True) if not name]:
        raise ValueError(
            f"data.split = 'stated': expected data that state a split, found none for "
            f"{len(unknown)} of {len(stated)} trajectories, such as {unknown[0]!r}; choose "
            "data.split = 'trajectory' or 'time'"
        )
    if strange := sorted({str(name) for name in stated if name not in SPLITS}):
        raise ValueError(
            f"the data state the splits {strange} of some trajectories, expected one of "
            f"{', '.join(SPLITS)} for each; choose data.split = 'trajectory' or 'time'"
        )
    return Split(
        *(tuple(Segment(i) for i, split in enumerate(stated) if split == name) for name in SPLITS)
    )


def _condition_names(trajectories: Sequence[Trajectory], config: DataConfig) -> tuple[str, ...]:
    """Return the parameters that name a condition, whose flows a split keeps together.

    Those of a split by range if its values repeat; those of a split by condition, or all that vary.
    """
    rule = SplitRule.parse(config.split)
    if rule.kind in RANGES:
        known = {trajectory.parameters.get(*rule.names) for trajectory in trajectories}
        return rule.names if len(known) < len(trajectories) else ()
    if rule.kind != "conditions" or rule.names:
        return rule.names if rule.kind == "conditions" else ()
    names = set().union(*(trajectory.parameters for trajectory in trajectories))
    values = {name: {t.parameters.get(name) for t in trajectories} for name in names}
    return tuple(sorted(name for name, known in values.items() if len(known) > 1))


def _groups(
    trajectories: Sequence[Trajectory], names: Sequence[str], setting: str
) -> Sequence[Any]:
    """Return a key for each trajectory; those with equal keys stay together."""
    if not names:
        return range(len(trajectories))
    for trajectory in trajectories:
        found = trajectory.parameters
        if missing := [name for name in names if not math.isfinite(found.get(name, math.nan))]:
            raise ValueError(
                f"data.{setting}: expected the parameters {', '.join(names)} in every trajectory, "
                f"found no {', '.join(missing)} in {trajectory.name!r}, which has "
                f"{', '.join(found) or 'none'}"
            )
    return [condition(trajectory.parameters, names) for trajectory in trajectories]


def as_hints(hints: dict[str, Any]) -> dict[str, Any]:
    """Convert hints of a configuration file: lists become tuples; a region may be a text."""

    def convert(name: str, value: Any) -> Any:
        if name in ("body", "mask") and isinstance(value, str):
            return (value,)
        return tuple(value) if isinstance(value, list) else value

    return {name: convert(name, value) for name, value in hints.items()}
