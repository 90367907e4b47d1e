"""Files that are frames: of a folder or a pattern, in the order of the numbers in their names.

Where several numbers change in the names the last one counts the frames, and the others tell
trajectories apart.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pibert.data.sources.recordings import SourceError


def find_files(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """The file itself, the files of a folder, or those of a pattern such as ``run/B*.txt``."""
    if path.is_file():
        return [path]
    found = path.iterdir() if path.is_dir() else path.parent.glob(path.name)
    return sorted(
        file for file in found if file.suffix.lower() in suffixes and not file.name[0] == "."
    )


def group_by_number(files: Sequence[Path]) -> dict[str, dict[int, Path]]:
    """Trajectories by name: the files in the order of their frame numbers."""
    skeletons: dict[str, list[Path]] = {}
    for file in files:
        skeletons.setdefault(re.sub(r"\d+", "#", file.name), []).append(file)
    groups: dict[str, dict[int, Path]] = {}
    for skeleton, alike in skeletons.items():
        numbers = np.array([[int(n) for n in re.findall(r"\d+", file.stem)] for file in alike])
        changing = np.flatnonzero((numbers != numbers[0]).any(0))
        taken = set(groups)
        for file, row in zip(alike, numbers, strict=True):
            number = int(row[changing[-1]]) if len(changing) else 0
            name = _without_number(file.stem, int(changing[-1])) if len(changing) else file.stem
            members = groups.setdefault(name if name not in taken else f"{name} {skeleton}", {})
            if number in members:
                raise SourceError(
                    f"{file}: {members[number].name} has the same number; keep the files of one "
                    "recording in a folder of their own"
                )
            members[number] = file
    return {name: dict(sorted(members.items())) for name, members in groups.items()}


def _without_number(stem: str, which: int) -> str:
    number = list(re.finditer(r"\d+", stem))[which]
    rest = stem[: number.start()] + stem[number.end() :]
    return re.sub(r"([ _.-])[ _.-]+", r"\1", rest).strip(" _.-") or "vectors"
