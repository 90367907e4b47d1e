"""Files that are frames: of a folder or a pattern, in the order of the numbers in their names.

Where several numbers change in the names the last one counts the frames, and the others tell
trajectories apart. A pattern may reach into several folders.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pibert.data.sources.recordings import SourceError
from pibert.regular_files import require_regular

_FRAME_FOLDER = re.compile(r"(?:frame|step|time|t)?[ _-]?\d+", re.IGNORECASE)


def expand_pattern(path: Path) -> list[Path]:
    """What fits a pattern such as ``run/B*.txt`` or ``run*/B*.txt``; nothing where nothing does."""
    base = next(parent for parent in path.parents if parent.exists())
    return sorted(base.glob(str(path.relative_to(base))))


def find_files(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """The file itself, the files of a folder, or those of a pattern such as ``run/B*.txt``."""
    require_regular(path)
    if path.is_file():
        return [path]
    found = path.iterdir() if path.is_dir() else expand_pattern(path)
    files = [file for file in found if file.suffix.lower() in suffixes and file.name[0] != "."]
    for file in files:
        require_regular(file)
    return sorted(files)


def shared_folder(files: Sequence[Path]) -> Path:
    """The innermost folder that holds all files."""
    return Path(os.path.commonpath([file.absolute().parent for file in files]))


def group_by_number(files: Sequence[Path]) -> dict[str, dict[int, Path]]:
    """Trajectories by name: the files in the order of their frame numbers.

    Where the files lie in several folders, these are trajectories, or frames if only numbered.
    """
    skeletons: dict[str, list[Path]] = {}
    base = shared_folder(files) if files else Path()
    names = {file: file.absolute().relative_to(base).as_posix() for file in files}
    for file in files:
        if re.search(r"(?:^|/)\d+\.\d+/", names[file]):
            raise SourceError(
                f"{file}: the folder is named by a decimal number, which does not tell the order "
                "of frames; number the folders, or name the files of one"
            )
        skeletons.setdefault(re.sub(r"\d+", "#", names[file]), []).append(file)
    groups: dict[str, dict[int, Path]] = {}
    for skeleton, alike in skeletons.items():
        stems = [names[file].removesuffix(file.suffix) for file in alike]
        numbers = np.array([[int(n) for n in re.findall(r"\d+", stem)] for stem in stems])
        changing = [
            int(place)
            for place in np.flatnonzero((numbers != numbers[0]).any(0))
            if _counts_frames(stems[0], int(place))
        ]
        taken = set(groups)
        for file, stem, row in zip(alike, stems, numbers, strict=True):
            number = int(row[changing[-1]]) if changing else 0
            name = _without_number(stem, changing[-1]) if changing else stem
            name = name.replace("/", "-")
            other = f"{name} {skeleton}".replace("/", "-")
            members = groups.setdefault(name if name not in taken else other, {})
            if number in members:
                raise SourceError(
                    f"{file}: {members[number].name} has the same number; keep the files of one "
                    "recording in a folder of their own"
                )
            members[number] = file
    return {name: dict(sorted(members.items())) for name, members in groups.items()}


def _counts_frames(stem: str, which: int) -> bool:
    """Whether a number may be that of a frame: those in names of folders such as run1 are not."""
    number = list(re.finditer(r"\d+", stem))[which]
    folder, slash, _ = stem[number.start() :].partition("/")
    name = stem[: number.start()].rpartition("/")[2] + folder
    return not slash or _FRAME_FOLDER.fullmatch(name) is not None


def _without_number(stem: str, which: int) -> str:
    number = list(re.finditer(r"\d+", stem))[which]
    rest = stem[: number.start()] + stem[number.end() :]
    return re.sub(r"([ _./-])[ _./-]+", r"\1", rest).strip(" _./-") or "vectors"
