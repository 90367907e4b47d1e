"""Where a case stores its files: in the case folder, or in one piece per processor.

A decomposed case has folders ``processor0``, ``processor1`` ... or, in the collated format, one
folder ``processorsN`` whose files hold one block per processor. Any file may be compressed
(``.gz``).
"""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pibert.data.readers.openfoam.dictionary import Dictionary, Parser
from pibert.data.readers.recordings import PARSING, SourceError, reading
from pibert.data.readers.shared.files import unpack_gzip

_TIME = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_BLOCK = re.compile(rb"\s*(?://[^\n]*\n\s*)*(\d+)\s*\(")


@dataclass(frozen=True)
class Storage:
    """The folders of a case, or of its processors."""

    case: Path
    """Files outside this folder are not read."""
    folders: tuple[Path, ...]
    collated: int = 0
    """Number of processors in the only folder, in the collated format; 0 otherwise."""

    @property
    def processors(self) -> int:
        return self.collated or len(self.folders)

    def has(self, name: str) -> bool:
        return all(_find(folder / name) is not None for folder in self.folders)

    def names(self, folder: str) -> set[str]:
        """Names in a folder that every processor has."""
        paths = [processor / folder for processor in self.folders]
        if not all(path.is_dir() for path in paths):
            return set()
        return set.intersection(*({e.name.removesuffix(".gz") for e in p.iterdir()} for p in paths))

    def times(self) -> dict[str, float]:
        """Time folders that every processor has."""
        return {name: float(name) for name in self.names("") if _TIME.fullmatch(name)}

    def incomplete_times(self) -> list[str]:
        """Time folders that only some processors have, in order."""
        found = {entry.name for p in self.folders if p.is_dir() for entry in p.iterdir()}
        return sorted((n for n in found - self.names("") if _TIME.fullmatch(n)), key=float)

    def read(self, name: str) -> list[Parser]:
        """The file of every processor, with its header parsed."""
        files = [(folder / name, _load(folder / name)) for folder in self.folders]
        with parsing(self.folders[0] / name):
            if not self.collated:
                return [Parser(data, path, case=self.case) for path, data in files]
            ((path, data),) = files
            return self._blocks(data, path)

    def _blocks(self, data: bytes, path: Path) -> list[Parser]:
        """The blocks of a collated file; only the first has a header."""
        outer = Parser(data, path, case=self.case)
        if outer.head.get("class") != ["decomposedBlockData"]:
            raise ValueError("it is not in the collated format, unlike its folder")
        parsers: list[Parser] = []
        head: Dictionary | None = None
        position = outer.position
        while (found := _BLOCK.match(data, position)) is not None:
            end = found.end() + int(found[1])
            if data[end : end + 1] != b")":
                raise ValueError("it ends within a processor's block")
            parsers.append(Parser(data[found.end() : end], path, head, case=self.case))
            head, position = parsers[0].head, end + 1
        if len(parsers) != self.collated:
            raise ValueError(
                f"found the blocks of {len(parsers)} processors, expected {self.collated}"
            )
        return parsers


def find_storages(case: Path) -> list[Storage]:
    """The case itself and, if it is decomposed, its processors."""
    found = [Storage(case, (case,))]
    processors = [folder for folder in case.glob("processor[0-9]*") if folder.name[9:].isdecimal()]
    if processors:
        ordered = sorted(processors, key=lambda folder: int(folder.name[9:]))
        found.append(Storage(case, tuple(ordered)))
    for folder in sorted(case.glob("processors[0-9]*")):
        if not folder.name[10:].isdecimal():
            raise SourceError(f"{folder}: results of groups of processors; run reconstructPar")
        found.append(Storage(case, (folder,), int(folder.name[10:])))
    return found


def time_folders(folder: Path) -> list[tuple[float, Path]]:
    """Time folders in a folder, in the order of time."""
    if not folder.is_dir():
        return []
    entries = [e for e in folder.iterdir() if _TIME.fullmatch(e.name) and e.is_dir()]
    return sorted((float(entry.name), entry) for entry in entries)


parsing = partial(reading, what="this OpenFOAM file", remedy="write it again", errors=PARSING)
"""Turns errors on the content of a file into a ``SourceError`` that names it."""


def _find(path: Path) -> Path | None:
    """The file, or its compressed form."""
    packed = path.with_name(path.name + ".gz")
    return next((file for file in (path, packed) if file.is_file()), None)


def _load(path: Path) -> bytes:
    found = _find(path)
    if found is None:
        raise SourceError(f"{path}: this file of the case is missing; copy it too.")
    with parsing(found):
        return unpack_gzip(found) if found.suffix == ".gz" else found.read_bytes()
