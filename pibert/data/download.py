"""Downloads published data: first a plan with sizes, then transfers that a second call resumes.

Files come from the Hugging Face hub (extra ``hub``), or from a folder laid out like it, such as a
mirror on a shared disk. Files that exist with the right size are not fetched again.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

from rich import filesize

from pibert.data.wording import counted, import_extra

REALPDEBENCH = "AI4Science-WestlakeU/RealPDEBench"
COMPETITION = "AI4Science-WestlakeU/RealPDE-Competition-Data"
ARCHIVES = {"real": "train_real.tar.gz", "numerical": "train_sim.tar.gz"}
"""Of the competition, by kind."""

What = Literal["metadata", "fields", "all"]
Progress = Callable[[int, int], None]
"""Called with the bytes present and the bytes of the whole plan."""

_COPY_BYTES = 1 << 23
size_text = filesize.decimal


class DownloadError(ValueError):
    """A transfer that failed; the message gives the remedy."""


class RemoteFile(NamedTuple):
    """A file of a hub; the path is relative to its root."""

    path: str
    size: int


@dataclass(frozen=True)
class Plan:
    """The files of a download."""

    root: Path
    present: tuple[RemoteFile, ...]
    missing: tuple[RemoteFile, ...]
    free: int
    """Bytes that the disk has left."""

    @property
    def missing_bytes(self) -> int:
        return sum(file.size for file in self.missing)

    @property
    def present_bytes(self) -> int:
        return sum(file.size for file in self.present)


class FolderHub:
    """A folder laid out like the hub."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise DownloadError(f"{folder}: there is no such folder to copy from")

    def list_files(self, folder: str) -> list[RemoteFile]:
        """List the files in a folder and below; those of the root (an empty name) without below."""
        if folder and not (self.folder / folder).is_dir():
            folders = sorted(path.name for path in self.folder.iterdir() if path.is_dir())
            raise DownloadError(
                f"{self.folder}: expected the folder {folder!r} in it, found "
                f"{', '.join(folders) or 'no folders'}; give the folder that holds {folder!r}"
            )
        paths = (self.folder / folder).rglob("*") if folder else self.folder.glob("*")
        return [
            RemoteFile(path.relative_to(self.folder).as_posix(), path.stat().st_size)
            for path in sorted(paths)
            if path.is_file()
        ]

    def fetch(
        self, files: Sequence[RemoteFile], root: Path, on_bytes: Callable[[int], None]
    ) -> None:
        """Copy files below a root; a file appears when it is complete."""
        for file in files:
            target = root / file.path
            partial = target.with_name(f".{target.name}.partial")
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                with (self.folder / file.path).open("rb") as reader, partial.open("wb") as writer:
                    while block := reader.read(_COPY_BYTES):
                        writer.write(block)
                        on_bytes(len(block))
                    writer.flush()
                    os.fsync(writer.fileno())
                partial.replace(target)
            except OSError as error:
                raise DownloadError(
                    f"{target}: cannot copy ({error.strerror or error}); check the free space and "
                    "the permissions of the folder, and rerun the command; complete files are kept"
                ) from error


class HuggingFaceHub:
    """A data set of the Hugging Face hub, whose library resumes interrupted transfers."""

    def __init__(
        self, repo_id: str = REALPDEBENCH, revision: str | None = None, endpoint: str | None = None
    ) -> None:
        self.repo_id, self.endpoint = repo_id, endpoint
        self._options = {"revision": revision, "repo_type": "dataset"}

    def list_files(self, folder: str) -> list[RemoteFile]:
        with self._library() as library:
            entries = library.HfApi(endpoint=self.endpoint).list_repo_tree(
                self.repo_id, folder or None, recursive=bool(folder), **self._options
            )
            # Folders have no size.
            return [RemoteFile(e.path, e.size) for e in entries if hasattr(e, "size")]

    def fetch(
        self, files: Sequence[RemoteFile], root: Path, on_bytes: Callable[[int], None]
    ) -> None:
        if files:
            with self._library() as library:
                library.snapshot_download(
                    self.repo_id,
                    endpoint=self.endpoint,
                    local_dir=root,
                    allow_patterns=[file.path for file in files],
                    **self._options,
                )
            on_bytes(sum(file.size for file in files))

    @contextlib.contextmanager
    def _library(self) -> Iterator[Any]:
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


Hub = FolderHub | HuggingFaceHub


def download(
    root: Path | str,
    folder: str,
    patterns: Sequence[str],
    *,
    hub: Hub,
    on_progress: Progress = lambda done, total: None,
    dry_run: bool = False,
) -> Plan:
    """Fetch the files of a folder of the hub that fit the patterns, to the same place in ``root``.

    An empty folder is the root of the hub, whose files are always listed. In a pattern * stands for
    a name. ``dry_run`` only makes the plan.
    """
    root = Path(root)
    plan = _make_plan(root, hub, folder, patterns)
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
    incomplete = [file.path for file in plan.missing if not _is_present(root, file)]
    if incomplete:
        raise DownloadError(
            f"{root}: {counted(len(incomplete), 'file')} did not arrive complete, such as "
            f"{incomplete[0]}; run it again"
        )
    return plan


def scenario_files(scenario: str, kinds: Sequence[str], what: What = "all") -> list[str]:
    """Patterns of a scenario of RealPDEBench, such as ``cylinder``.

    ``kinds`` are among real and numerical; ``what`` is the small files (splits and parameters), the
    fields, or all.
    """
    patterns = []
    if what in ("metadata", "all"):
        patterns += ["version.json", "README.md", f"{scenario}/channels.json"]
        for kind in kinds:
            patterns += [f"{scenario}/*_params_{kind}.json"]
            patterns += [f"{scenario}/hf_dataset/*_index_{kind}.json"]
    if what in ("fields", "all"):
        patterns += [f"{scenario}/hf_dataset/{kind}/*" for kind in kinds]
    return patterns


def _make_plan(root: Path, hub: Hub, folder: str, patterns: Sequence[str]) -> Plan:
    listed = [*hub.list_files(""), *(hub.list_files(folder) if folder else ())]

    def is_wanted(path: str) -> bool:
        # A star stands for a name here, not for a path.
        same_depth = (pattern for pattern in patterns if pattern.count("/") == path.count("/"))
        return any(map(PurePosixPath(path).match, same_depth))

    wanted = [file for file in listed if is_wanted(file.path)]
    if not any(file.path.startswith(f"{folder}/" if folder else "train_") for file in wanted):
        raise DownloadError(
            f"nothing to fetch{f' for {folder!r}' if folder else ''}: none of the {len(listed)} "
            f"listed files is like {', '.join(patterns)}"
        )
    present = tuple(file for file in wanted if _is_present(root, file))
    missing = tuple(file for file in wanted if file not in present)
    existing = next(path for path in (root.absolute(), *root.absolute().parents) if path.exists())
    return Plan(root, present, missing, shutil.disk_usage(existing).free)


def _is_present(root: Path, file: RemoteFile) -> bool:
    path = root / file.path
    return path.is_file() and path.stat().st_size == file.size
