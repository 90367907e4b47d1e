"""Generate data sets with the solver: from a recipe to a file in the native format.

Samples are simulated in groups. Each finished group is a file in the folder ``NAME.parts`` beside
the target; when all are complete they are merged and the folder is removed. So an interrupt loses
at most one group, the finished groups are ordinary files, and the same call resumes. A recipe is
identified by the hash of its content and of the version that runs it; groups of different recipes
are never mixed.
"""

import contextlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pibert import __version__
from pibert.config import as_plain, fingerprint, overridden, parse
from pibert.data.format import Reader, Writer, write
from pibert.data.partial import lock as lock_file
from pibert.data.partial import make_folder, replace_file
from pibert.fields import Trajectory
from pibert.files import read_json
from pibert.notes import warn
from pibert.solver.recipes import Diverged, Recipe

IDENTITY = ("recipe_hash", "recipe_outcome", "part_of")
"""Provenance keys that mark a file as the complete set of a recipe, or as one of its groups."""

PATIENCE = 12 * 3600.0
"""Seconds that a process waits for another one that generates the same file."""
LOCK = "lock"
"""The file in the folder of groups that the working process locks."""

OnProgress = Callable[[float], None]
"""Called with the number of samples done, which may be a fraction."""


@dataclass(frozen=True)
class Generated:
    """The result of a recipe."""

    path: Path
    recipe_hash: str
    completed: int
    diverged: tuple[Diverged, ...]
    was_there: bool = False
    """The file was already complete; nothing was simulated."""


class Interrupted(KeyboardInterrupt):
    """An interrupt, with what is complete so far."""

    def __init__(self, parts: Path, completed: int, samples: int) -> None:
        super().__init__(
            f"interrupted: {completed} of {samples} trajectories are complete in {parts}; rerun "
            "the command to resume, or write them to a file with pibert convert"
        )


def describe(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain JSON: everything that determines the numbers."""
    content = json.loads(json.dumps(asdict(recipe)))
    return {"case": recipe.case, "version": __version__, **content}


def recipe_hash(recipe: Recipe) -> str:
    return fingerprint(describe(recipe))


def change(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return a recipe with checked changes; ``scales.diameter`` reaches into a section."""
    settings = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    return parse(type(recipe), overridden(as_plain(recipe), settings))


def generate(
    recipe: Recipe,
    path: Path | str,
    *,
    device: str = "cpu",
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
    patience: float = PATIENCE,
) -> Generated:
    """Simulate a recipe and write it to a file; resumes an interrupted call.

    If another process generates the same file, wait for it at most ``patience`` seconds and
    continue where it stops. ``overwrite`` replaces a file of another recipe. Results differ in the
    last digits between kinds of hardware.
    """
    path = Path(path)
    code = recipe_hash(recipe)
    parts = path.with_name(f"{path.name}.parts")
    done = _find_complete(path, code, overwrite)
    if done is None or parts.exists():
        make_folder(path)
        with _claimed(parts, recipe, code, overwrite, patience):
            # Another process may have completed it meanwhile.
            done = _find_complete(path, code, overwrite)
            if done is None:
                report = on_progress or (lambda done: None)
                done = _simulate(recipe, code, path, parts, device, report)
            _clear(parts)
    return done


def _find_complete(path: Path, code: str, overwrite: bool) -> Generated | None:
    """Return the complete set of this recipe; raise if the file is something else."""
    if not path.exists():
        return None
    try:
        with Reader(path) as reader:
            found = reader[0].local.get("recipe_hash")
            outcome = reader[0].local.get("recipe_outcome") or {}
            if found == code and outcome.get("completed") == len(reader):
                diverged = tuple(Diverged(**entry) for entry in outcome["diverged"])
                return Generated(path, code, len(reader), diverged, was_there=True)
    except (ValueError, OSError):
        found = None
    if not overwrite:
        raise FileExistsError(
            f"{path} exists and is not of this recipe ({code}), but of {found or 'none'}; remove "
            "it, choose another name or overwrite it (--overwrite)"
        )
    return None


def _simulate(
    recipe: Recipe, code: str, path: Path, parts: Path, device: str, on_progress: OnProgress
) -> Generated:
    """Simulate the missing groups, and merge them all."""
    try:
        for number, first in enumerate(range(0, recipe.samples, recipe.group)):
            indices = range(first, min(first + recipe.group, recipe.samples))
            marker = parts / f"group-{number:06d}.json"
            if not marker.exists():
                _simulate_group(recipe, code, indices, marker, device, on_progress)
            on_progress(float(indices.stop))
        return _merge(path, parts, code)
    except KeyboardInterrupt:
        raise Interrupted(parts, _count(parts), recipe.samples) from None


def _simulate_group(
    recipe: Recipe, code: str, indices: range, marker: Path, device: str, on_progress: OnProgress
) -> None:
    def progress(share: float) -> None:
        on_progress(indices.start + share * len(indices))

    try:
        outcomes = recipe.simulate(indices, device=device, progress=progress)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        raise MemoryError(
            f"{len(indices)} samples side by side do not fit the memory of {device}; make the "
            "group, the domain or the number of cells smaller"
        ) from error
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine()
    hardware = f"{name}, torch {torch.__version__}"
    facts = {"recipe": describe(recipe), "part_of": code, "computed_on": hardware}
    done = [replace(o, local={**o.local, **facts}) for o in outcomes if isinstance(o, Trajectory)]
    if done:
        write(marker.with_suffix(".h5"), done)
    # The marker comes last: a group without it is simulated again.
    lost = [asdict(o) for o in outcomes if isinstance(o, Diverged)]
    replace_file(marker, json.dumps(lost).encode())


def _merge(path: Path, parts: Path, code: str) -> Generated:
    markers = sorted(parts.glob("group-*.json"))
    diverged = [entry for marker in markers for entry in read_json(marker)]
    files = [marker.with_suffix(".h5") for marker in markers if marker.with_suffix(".h5").exists()]
    if not files:
        reasons = "; ".join(f"{d['name']}: {d['reason']}" for d in diverged[:3])
        for marker in markers:  # nothing to resume from
            marker.unlink()
        raise FloatingPointError(
            f"every sample diverged, nothing is written ({reasons}); use more cells, a lower "
            "speed, the regularised scheme or a Smagorinsky term"
        )
    completed = sum(_length(file) for file in files)
    outcome = {"completed": completed, "diverged": diverged}
    with Writer(path) as writer:
        for file in files:
            with Reader(file) as reader:
                for trajectory in reader:
                    local = dict(trajectory.local)
                    assert local.pop("part_of") == code
                    local |= {"recipe_hash": code, "recipe_outcome": outcome}
                    writer.add(replace(trajectory, local=local))
    return Generated(path, code, completed, tuple(Diverged(**entry) for entry in diverged))


@contextlib.contextmanager
def _claimed(
    parts: Path, recipe: Recipe, code: str, overwrite: bool, patience: float
) -> Iterator[None]:
    """Reserve the folder of groups for this recipe and this process."""
    note = parts / "recipe.json"
    lock = _locked(parts, patience)
    try:
        found = None
        if note.exists():
            content = read_json(note)
            found = str(content.get("hash")) if isinstance(content, dict) else ""
        if found not in (code, None) and not overwrite:
            raise FileExistsError(
                f"{parts} has groups of another recipe ({found}, this one is {code}); remove it, "
                "choose another name or overwrite it (--overwrite)"
            )
        if found != code:
            for orphan in parts.glob("group-*"):
                orphan.unlink()
            replace_file(note, json.dumps({"hash": code, **describe(recipe)}, indent=1).encode())
        try:
            yield
        finally:
            exists = os.fstat(lock).st_nlink > 0
            if exists and not any(parts.glob("group-*.json")):  # nothing to resume from
                _clear(parts)
    finally:
        os.close(lock)


def _locked(parts: Path, patience: float) -> int:
    """Lock the folder; the system releases the lock when the process ends."""
    end, has_warned = time.monotonic() + patience, False
    while True:
        parts.mkdir(exist_ok=True)
        try:
            lock = os.open(parts / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue  # another process has just removed the folder
        try:
            lock_file(lock)
            if os.fstat(lock).st_nlink:
                return lock
            os.close(lock)  # the folder was removed meanwhile
            continue
        except BaseException as error:
            os.close(lock)
            if not isinstance(error, BlockingIOError):
                raise
        if time.monotonic() >= end:
            raise BlockingIOError(
                f"{parts}: another process has been working on it for {patience / 3600:.3g} hours; "
                "wait for it, or choose another name"
            )
        if not has_warned:
            warn(
                f"{parts}: another process is working on these flows; waiting for it, at most "
                f"{patience / 3600:.3g} hours"
            )
            has_warned = True
        time.sleep(0.2)


def _clear(parts: Path) -> None:
    """Remove the folder, the lock last: until then no other process works in it."""
    for entry in parts.iterdir():
        if entry.name != LOCK:
            entry.unlink()
    with contextlib.suppress(OSError):  # Windows keeps open files
        (parts / LOCK).unlink(missing_ok=True)
        parts.rmdir()  # unless another process has started in it


def _count(parts: Path) -> int:
    files = (marker.with_suffix(".h5") for marker in parts.glob("group-*.json"))
    return sum(_length(file) for file in files if file.exists())


def _length(file: Path) -> int:
    with Reader(file) as reader:
        return len(reader)
