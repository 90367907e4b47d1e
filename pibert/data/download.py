"""Fetching published data: what to fetch and how large it is first, then resumable transfers.

A ``Hub`` lists files with their sizes and fetches them. There are two: the Hugging Face hub (extra
``hub``), and a folder laid out like it, such as a mirror on a shared disk. Files that are there
with the right size are not fetched again.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from pibert.data.wording import counted, import_extra

REALPDEBENCH = "AI4Science-WestlakeU/RealPDEBench"

What = Literal["metadata", "fields", "all"]
Progress = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes of the whole plan."""

_COPY_BYTES = 1 << 23


class DownloadError(ValueError):
    """A transfer that cannot be made; the message gives the remedy."""


class RemoteFile(NamedTuple):
    """A file of a hub; the path is relative to its root."""

    path: str
    size: int


@runtime_checkable
class Hub(Protocol):
    """Where files come from."""

    def list_files(self, folder: str) -> list[RemoteFile]:
        """The files in a folder and below; of the root itself (an empty name), without below."""
        ...

    def fetch(
        self, files: Sequence[RemoteFile], root: Path, on_bytes: Callable[[int], None]
    ) -> None:
        """Bring files below a root; what an interrupted call left is continued."""
        ...


@dataclass(frozen=True)
class Plan:
    """What a download fetches."""

    root: Path
    present: tuple[RemoteFile, ...]
    """Files that are there already."""
    missing: tuple[RemoteFile, ...]
    free: int
    """Bytes that the disk has left."""

    @property
    def missing_bytes(self) -> int:
        return sum(file.size for file in self.missing)

    @property
    def present_bytes(self) -> int:
        return sum(file.size for file in self.present)


def download(
    root: Path | str,
    scenario: str,
    kinds: Sequence[str] = ("real",),
    what: What = "all",
    *,
    hub: Hub | None = None,
    on_plan: Callable[[Plan], None] = lambda plan: None,
    on_progress: Progress = lambda done, total: None,
    dry_run: bool = False,
) -> Plan:
    """Fetch a scenario of RealPDEBench, such as ``cylinder``, into its folder in ``root``.

    ``kinds`` are among real and numerical; ``what`` is the small files (splits and parameters), the
    fields, or all. ``on_plan`` is called before anything is fetched and may raise to stop;
    ``dry_run`` stops after it. Without a ``hub`` files come from the Hugging Face hub.
    """
    root = Path(root)
    hub = HuggingFaceHub() if hub is None else hub
    plan = make_plan(root, hub, realpdebench_patterns(scenario, kinds, what), scenario)
    on_plan(plan)
    if dry_run:
        return plan
    if plan.missing_bytes > plan.free:
        raise DownloadError(
            f"{root}: {size_text(plan.missing_bytes)} are to be fetched, but the disk has "
            f"{size_text(plan.free)} left; make room or choose another folder"
        )
    done, total = plan.present_bytes, plan.present_bytes + plan.missing_bytes

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        on_progress(done, total)

    hub.fetch(plan.missing, root, on_bytes)
    wrong = [file.path for file in plan.missing if not _is_there(root, file)]
    if wrong:
        raise DownloadError(
            f"{root}: {counted(len(wrong), 'file')} did not arrive whole, such as {wrong[0]}; run "
            "it again"
        )
    return plan


def realpdebench_patterns(scenario: str, kinds: Sequence[str], what: What) -> list[str]:
    """Paths of the wanted files, with * for any name."""
    patterns = []
    if what in ("metadata", "all"):
        patterns += ["version.json", "README.md", f"{scenario}/channels.json"]
        for kind in kinds:
            patterns += [f"{scenario}/*_params_{kind}.json"]
            patterns += [f"{scenario}/hf_dataset/*_index_{kind}.json"]
    if what in ("fields", "all"):
        patterns += [f"{scenario}/hf_dataset/{kind}/*" for kind in kinds]
    return patterns


def make_plan(root: Path, hub: Hub, patterns: Sequence[str], folder: str) -> Plan:
    """The files of a folder (and beside it) that fit a pattern, and which of them are missing."""
    listed = [*hub.list_files(""), *hub.list_files(folder)]

    def is_wanted(path: str) -> bool:
        # A star stands for a name here, not for a path.
        alike = (pattern for pattern in patterns if pattern.count("/") == path.count("/"))
        return any(map(PurePosixPath(path).match, alike))

    wanted = [file for file in listed if is_wanted(file.path)]
    if not any(file.path.startswith(f"{folder}/") for file in wanted):
        raise DownloadError(
            f"nothing to fetch for {folder!r}: {len(listed)} files there, none of them like "
            f"{', '.join(patterns)}"
        )
    present = tuple(file for file in wanted if _is_there(root, file))
    missing = tuple(file for file in wanted if not _is_there(root, file))
    existing = next(path for path in (root.absolute(), *root.absolute().parents) if path.exists())
    return Plan(root, present, missing, shutil.disk_usage(existing).free)


def size_text(count: int) -> str:
    """Bytes in words, as disks count them: 35.9 GB."""
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        del units[0]
    return f"{count} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def _is_there(root: Path, file: RemoteFile) -> bool:
    path = root / file.path
    return path.is_file() and path.stat().st_size == file.size


class FolderHub:
    """A folder laid out like the hub; a copy appears whole, and goes on after an interruption."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise DownloadError(f"{folder}: there is no such folder to copy from")

    def list_files(self, folder: str) -> list[RemoteFile]:
        if folder and not (self.folder / folder).is_dir():
            there = sorted(path.name for path in self.folder.iterdir() if path.is_dir())
            raise DownloadError(f"{self.folder}: there is no {folder!r}; there are: {there}")
        paths = (self.folder / folder).rglob("*") if folder else self.folder.glob("*")
        return [
            RemoteFile(path.relative_to(self.folder).as_posix(), path.stat().st_size)
            for path in sorted(paths)
            if path.is_file()
        ]

    def fetch(
        self, files: Sequence[RemoteFile], root: Path, on_bytes: Callable[[int], None]
    ) -> None:
        for file in files:
            target = root / file.path
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                _copy(self.folder / file.path, target, on_bytes)
            except OSError as error:
                raise DownloadError(
                    f"{target}: cannot copy ({error.strerror or error}); check the space and the "
                    "rights of the folder, and run the command again: it continues where it stopped"
                ) from error


def _copy(source: Path, target: Path, on_bytes: Callable[[int], None]) -> None:
    status = source.stat()
    # The name contains which version of the source was begun.
    begun = target.with_name(f".{target.name}.{status.st_size}-{status.st_mtime_ns}.partial")
    with source.open("rb") as reader, begun.open("ab") as writer:
        if writer.tell() > status.st_size:
            writer.truncate(0)
        reader.seek(writer.tell())
        on_bytes(writer.tell())
        while block := reader.read(_COPY_BYTES):
            writer.write(block)
            on_bytes(len(block))
        writer.flush()
        os.fsync(writer.fileno())
    os.replace(begun, target)


class HuggingFaceHub:
    """A data set of the Hugging Face hub; it keeps its own notes to continue a transfer."""

    def __init__(
        self, repo_id: str = REALPDEBENCH, revision: str | None = None, endpoint: str | None = None
    ) -> None:
        self.repo_id, self.revision, self.endpoint = repo_id, revision, endpoint

    def list_files(self, folder: str) -> list[RemoteFile]:
        with self._explained() as library:
            entries = library.HfApi(endpoint=self.endpoint).list_repo_tree(
                self.repo_id,
                folder or None,
                recursive=bool(folder),
                revision=self.revision,
                repo_type="dataset",
            )
            # Folders have no size.
            return [RemoteFile(e.path, e.size) for e in entries if hasattr(e, "size")]

    def fetch(
        self, files: Sequence[RemoteFile], root: Path, on_bytes: Callable[[int], None]
    ) -> None:
        if not files:
            return
        with self._explained() as library:
            library.snapshot_download(
                self.repo_id,
                repo_type="dataset",
                revision=self.revision,
                endpoint=self.endpoint,
                local_dir=root,
                allow_patterns=[file.path for file in files],
            )
        on_bytes(sum(file.size for file in files))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[Any]:
        library = import_extra("huggingface_hub", "downloading", extra="hub")
        try:
            yield library
        # Its errors, those of the network among them, share no base class.
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise DownloadError(
                f"{self.repo_id}: the hub could not be read ({reason}); check the name, the "
                "network and HF_ENDPOINT, or copy from a folder; an interrupted download continues"
            ) from error
