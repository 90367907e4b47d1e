"""Files that are written beside their name and renamed."""

import os
import resource
from pathlib import Path

import pytest

from pibert.data.partial import replace_file


def test_a_file_takes_the_place_of_an_old_one_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    for content in (b"one", b"another"):
        replace_file(path, content)
        assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["note.json"]


def test_the_content_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    flush, rename = os.fsync, os.replace

    def note_flush(descriptor: int) -> None:
        is_folder = os.path.isdir(f"/proc/self/fd/{descriptor}")
        done.append("folder" if is_folder else "file")
        flush(descriptor)

    def note_rename(old: Path, new: Path) -> None:
        done.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note_flush)
    monkeypatch.setattr(os, "replace", note_rename)
    replace_file(tmp_path / "note.json", b"one")
    assert done == ["file", "rename", "folder"]


def test_where_there_is_no_room_the_old_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    replace_file(path, b"one")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            replace_file(path, bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["note.json"]
