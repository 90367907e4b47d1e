"""Data sets from the solver: a recipe in, a file in the native format out.

Work is done in groups of samples that are simulated side by side. A finished group is a file of
its own in the folder ``NAME.parts`` beside the target; when all are there they are merged and the
folder goes. So an interrupt loses at most one group, what is complete can be used as it is (the
parts are ordinary files), and the same call goes on where the last one stopped. A recipe is known
by the hash of its content and of the version that runs it; parts of another recipe are never mixed
in.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

from pibert import __version__
from pibert.data.format import Reader, Writer, write
from pibert.fields import Trajectory
from pibert.solver.recipes import Diverged, Recipe

OnProgress = Callable[[float], None]
"""Called with the number of samples done, not always whole."""


@dataclass(frozen=True)
class Generated:
    """What came of a recipe."""

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
            f"interrupted: {completed} of {samples} trajectories are complete in {parts}; the same "
            "command goes on from there, and `pibert convert` makes a file of what is there"
        )


def describe(recipe: Recipe) -> dict[str, Any]:
    """A recipe as plain JSON: everything that decides the numbers."""
    content = json.loads(json.dumps(asdict(cast(Any, recipe))))
    return {"case": recipe.case, "version": __version__, **content}


def recipe_hash(recipe: Recipe) -> str:
    text = json.dumps(describe(recipe), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def change(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """A recipe with other values, names and kinds checked; ``scales.diameter`` reaches inside."""
    for key, value in changes.items():
        recipe = _changed(recipe, key.split("."), value)
    return recipe


def _changed(target: Any, path: list[str], value: Any) -> Any:
    names = [f.name for f in fields(target)]
    if path[0] not in names:
        raise ValueError(f"there is no setting {path[0]!r}; choose from: {', '.join(names)}")
    present = getattr(target, path[0])
    if is_dataclass(present) and len(path) > 1:
        return replace(target, **{path[0]: _changed(present, path[1:], value)})
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(present, float) and type(value) is int:
        value = float(value)
    if isinstance(present, tuple) and isinstance(value, tuple) and present:
        value = tuple(float(v) if isinstance(present[0], float) else v for v in value)
    known = present is not None
    if known and (type(value) is not type(present) or _length(value) != _length(present)):
        raise ValueError(f"{path[0]} must be like {present!r}, found {value!r}")
    return replace(target, **{path[0]: value})


def _length(value: Any) -> int:
    return len(value) if isinstance(value, tuple) else 0


def generate(
    recipe: Recipe,
    path: Path | str,
    *,
    device: str = "cpu",
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
) -> Generated:
    """Simulate what a recipe asks for and write it to a file; goes on with what is begun.

    Args:
        recipe: From ``pibert.solver.presets`` or made by hand.
        path: The file to write.
        device: Where to simulate. Results differ in the last digits between kinds of hardware.
        overwrite: Replace a file that holds something else.
        on_progress: Called now and then.
    """
    path = Path(path)
    if recipe.samples < 1 or recipe.group < 1:
        raise ValueError(
            f"expected at least one sample and a group of one, found samples={recipe.samples}, "
            f"group={recipe.group}"
        )
    code = recipe_hash(recipe)
    if path.exists():
        found = _hash_in(path)
        if found == code:
            return _already_there(path, code)
        if not overwrite:
            raise FileExistsError(
                f"{path} exists and holds something else (recipe {found or 'none'}, this one is "
                f"{code}); remove it, choose another name or ask to overwrite it"
            )
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}; make it first")
    parts = path.with_name(f"{path.name}.parts")
    with _claimed(parts, recipe, code):
        try:
            for number, first in enumerate(range(0, recipe.samples, recipe.group)):
                indices = range(first, min(first + recipe.group, recipe.samples))
                marker = parts / f"group-{number:04d}.json"
                if not marker.exists():
                    _make_group(recipe, code, indices, marker, device, on_progress)
                if on_progress is not None:
                    on_progress(float(indices.stop))
            return _merge(path, parts, code)
        except KeyboardInterrupt:
            if not parts.exists():  # all was merged already
                raise
            raise Interrupted(parts, _count(parts), recipe.samples) from None


def _make_group(
    recipe: Recipe,
    code: str,
    indices: range,
    marker: Path,
    device: str,
    on_progress: OnProgress | None,
) -> None:
    def progress(share: float) -> None:
        if on_progress is not None:
            on_progress(indices.start + share * len(indices))

    outcomes = recipe.simulate(indices, device=device, progress=progress)
    recipe_facts = {"recipe": describe(recipe), "recipe_hash": code}
    done = [
        replace(o, local={**o.local, **recipe_facts}) for o in outcomes if isinstance(o, Trajectory)
    ]
    if done:
        write(marker.with_suffix(".h5"), done)
    # The marker comes last: without it the group is made anew.
    _write_text(marker, json.dumps([asdict(o) for o in outcomes if isinstance(o, Diverged)]))


def _merge(path: Path, parts: Path, code: str) -> Generated:
    diverged = [
        Diverged(**entry)
        for marker in sorted(parts.glob("group-*.json"))
        for entry in json.loads(marker.read_text())
    ]
    files = sorted(parts.glob("group-*.h5"))
    if not files:
        reasons = "; ".join(f"{d.name}: {d.reason}" for d in diverged[:3])
        raise FloatingPointError(f"every sample diverged, nothing is written ({reasons})")
    completed = 0
    with Writer(path) as writer:
        for file in files:
            with Reader(file) as reader:
                for trajectory in reader:
                    writer.add(trajectory)
                    completed += 1
    shutil.rmtree(parts)
    return Generated(path, code, completed, tuple(diverged))


@contextlib.contextmanager
def _claimed(parts: Path, recipe: Recipe, code: str) -> Iterator[None]:
    """The folder of parts, of this recipe and for this process alone."""
    parts.mkdir(exist_ok=True)
    note = parts / "recipe.json"
    lock = os.open(parts / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BlockingIOError(
                f"{parts}: another process is at work on it; wait for it or choose another name"
            ) from None
        if not note.exists():
            _write_text(note, json.dumps({"hash": code, **describe(recipe)}, indent=1))
        found = json.loads(note.read_text()).get("hash")
        if found != code:
            raise FileExistsError(
                f"{parts} holds parts of another recipe ({found}, this one is {code}); remove it, "
                "or choose another name"
            )
        yield
    finally:
        os.close(lock)


def _hash_in(path: Path) -> str | None:
    try:
        with Reader(path) as reader:
            return cast(str | None, reader[0].local.get("recipe_hash"))
    except (ValueError, OSError):
        return None


def _already_there(path: Path, code: str) -> Generated:
    with Reader(path) as reader:
        return Generated(path, code, len(reader), (), was_there=True)


def _count(parts: Path) -> int:
    total = 0
    for file in parts.glob("group-*.h5"):
        if file.with_suffix(".json").exists():
            with Reader(file) as reader:
                total += len(reader)
    return total


def _write_text(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
