"""Reading: only the frames and channels that are asked for are taken from the file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pibert.data.format.layout import REWRITE, FormatError, blocks, find_not_finite
from pibert.data.format.parsing import Parser
from pibert.data.format.storage import Storage
from pibert.fields import MASKS, Trajectory, read_mask


def check(path: Path | str) -> None:
    """Read a whole file and raise a ``FormatError`` that names the first broken thing."""
    with Reader(path) as reader:
        for trajectory in reader:
            for key in MASKS:
                mask = getattr(trajectory, key)
                for frames in blocks(trajectory) if mask is not None else ():
                    read_mask(mask, frames)
            for frames in blocks(trajectory):
                block = trajectory.read(frames)
                problem = find_not_finite(trajectory, frames, block)
                if problem:
                    raise FormatError(
                        f"{path}: trajectory {trajectory.name!r}: {problem}; mark the point in "
                        f"'valid' or 'body', or leave the trajectory out"
                    )


class Reader:
    """The trajectories of a file, by position or name; fields are read when asked for.

    It may be pickled and used after a fork: every process opens the file once, for itself.
    """

    def __init__(self, path: Path | str) -> None:
        self._storage = Storage(path)
        with self._storage.blamed("its header"):
            self.names: tuple[str, ...] = tuple(self._storage.open()["trajectories"])
        if not self.names:
            raise FormatError(f"{self.path}: it holds no trajectory; {REWRITE}")

    @property
    def path(self) -> Path:
        return self._storage.path

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[name] for name in self.names)

    def __getitem__(self, key: int | str) -> Trajectory:
        name = self.names[key] if isinstance(key, int) else key
        if name not in self.names:
            some = ", ".join(self.names[:8]) + (", ..." if len(self) > 8 else "")
            raise KeyError(f"{self.path}: no trajectory {name!r}; there are: {some}")
        with self._storage.blamed(f"trajectory {name!r}"):
            return Parser(self._storage, name, self._storage.group(name)).trajectory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file in this process; the next read opens it again."""
        self._storage.close()
