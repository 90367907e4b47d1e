"""Downloads from the hub and from a folder laid out like it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pibert.data import download as module
from pibert.data.download import (
    DownloadError,
    FolderHub,
    HuggingFaceHub,
    Plan,
    RemoteFile,
    What,
    download,
    scenario_files,
)
from tests.command import well
from tests.helpers import refused

FILES = {
    "version.json": 30,
    "README.md": 10,
    "cylinder/channels.json": 5,
    "cylinder/README.md": 20,
    "cylinder/remain_params_real.json": 7,
    "cylinder/remain_params_numerical.json": 8,
    "cylinder/mean_std.pt": 900,
    "cylinder/hf_dataset/train_index_real.json": 11,
    "cylinder/hf_dataset/train_index_numerical.json": 12,
    "cylinder/hf_dataset/real/state.json": 13,
    "cylinder/hf_dataset/real/data-00000-of-00002.arrow": 4000,
    "cylinder/hf_dataset/real/data-00001-of-00002.arrow": 5000,
    "cylinder/hf_dataset/numerical/data-00000-of-00001.arrow": 9000,
    "fsi/hf_dataset/real/data-00000-of-00001.arrow": 6000,
}
METADATA = 30 + 10 + 5 + 7 + 11


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    for number, (name, size) in enumerate(FILES.items()):
        path = tmp_path / "mirror" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * size)
    return tmp_path / "mirror"


def fetch(
    root: Path, scenario: str, kinds: Sequence[str] = ("real",), what: What = "all", **how: Any
) -> Plan:
    return download(root, scenario, scenario_files(scenario, kinds, what), **how)


def paths(files: Sequence[RemoteFile]) -> set[str]:
    return {file.path for file in files}


def contents(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_a_scenario_arrives_complete_with_progress(mirror: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    steps: list[tuple[int, int]] = []
    hub = FolderHub(mirror)
    plan = fetch(root, "cylinder", hub=hub, dry_run=True)
    assert not root.exists()
    fetch(root, "cylinder", hub=hub, on_progress=lambda done, all_: steps.append((done, all_)))
    total = METADATA + 13 + 4000 + 5000
    assert plan.missing_bytes == total and steps[-1] == (total, total)
    wanted = {name for name in FILES if "numerical" not in name and not name.startswith("fsi")}
    assert contents(root) == wanted - {"cylinder/mean_std.pt", "cylinder/README.md"}
    for name in contents(root):
        assert (root / name).read_bytes() == (mirror / name).read_bytes()


def test_existing_files_are_not_fetched_again(mirror: Path, tmp_path: Path) -> None:
    root, hub = tmp_path / "data", FolderHub(mirror)
    fetch(root, "fsi", hub=hub)
    shard = root / "fsi/hf_dataset/real/data-00000-of-00001.arrow"
    before = shard.stat().st_mtime_ns
    (root / "version.json").write_bytes(b"short")
    plan = fetch(root, "fsi", hub=hub)
    assert paths(plan.missing) == {"version.json"} and plan.present_bytes == 6010
    assert shard.stat().st_mtime_ns == before
    assert (root / "version.json").stat().st_size == 30


def test_a_full_disk_is_noticed_before_anything_is_fetched(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=5999))
    with refused("6.0 kB are", "6.0 kB left", error=DownloadError):
        fetch(tmp_path / "data", "fsi", what="fields", hub=FolderHub(mirror))
    assert not (tmp_path / "data").exists()


def test_folders_that_are_not_there_are_named(mirror: Path, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="the folder 'foil' in it, found cylinder, fsi"):
        fetch(tmp_path, "foil", hub=FolderHub(mirror))
    with pytest.raises(DownloadError, match="'fsi'"):
        fetch(tmp_path, "fsi", ("numerical",), "fields", hub=FolderHub(mirror))


def test_a_hub_that_delivers_less_is_noticed(mirror: Path, tmp_path: Path) -> None:
    class Lazy(FolderHub):
        def fetch(self, files: Any, root: Path, on_bytes: Callable[[int], None]) -> None:
            super().fetch(files[1:], root, on_bytes)

    with refused("1 file", "README.md", error=DownloadError):
        fetch(tmp_path / "data", "fsi", hub=Lazy(mirror))


def test_the_hub_is_asked_for_exactly_these_files(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    calls: list[dict[str, Any]] = []

    def list_repo_tree(self: Any, repo_id: str, folder: str | None, **how: Any) -> Iterator[Any]:
        assert (repo_id, how["repo_type"], how["revision"]) == ("me/set", "dataset", "v2")
        for file in FolderHub(mirror).list_files(folder or ""):
            yield hub.hf_api.RepoFile(path=file.path, size=file.size, oid="0")
        yield hub.hf_api.RepoFolder(path="cylinder/hf_dataset", oid="0")

    def snapshot_download(repo_id: str, **how: Any) -> None:
        calls.append(how)
        files = [RemoteFile(path, FILES[path]) for path in how["allow_patterns"]]
        FolderHub(mirror).fetch(files, how["local_dir"], lambda count: None)

    monkeypatch.setattr(hub.HfApi, "list_repo_tree", list_repo_tree)
    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    remote = HuggingFaceHub("me/set", revision="v2")
    plan = fetch(tmp_path / "data", "cylinder", what="metadata", hub=remote)
    assert plan.missing_bytes == METADATA
    assert calls[0]["repo_type"] == "dataset" and calls[0]["local_dir"] == tmp_path / "data"
    assert set(calls[0]["allow_patterns"]) == contents(tmp_path / "data")


def test_a_hub_that_cannot_be_reached_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def refuse(*args: Any, **how: Any) -> Any:
        raise ConnectionError("no route to host\nand more")

    monkeypatch.setattr(hub.HfApi, "list_repo_tree", refuse)
    with refused("no route to host", "check", error=DownloadError):
        fetch(tmp_path, "cylinder", hub=HuggingFaceHub())


def test_the_competition_comes_as_archives(tmp_path: Path) -> None:
    for name in ("README.md", "train_real.tar.gz", "train_sim.tar.gz"):
        (tmp_path / "hub").mkdir(exist_ok=True)
        (tmp_path / "hub" / name).write_bytes(b"x" * 100)
    data = tmp_path / "my data"
    result = well("download", "realpde-competition", "--to", data, "--from", tmp_path / "hub")
    assert contents(data) == {"README.md", "train_real.tar.gz"}
    assert "tar -xzf" in result.output and "'" in result.output  # a path with a space is quoted
