"""The table of readers: recognised and refused files; native files."""

import errno
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pibert.data.format import check, write
from pibert.data.readers import identify, open_recordings
from pibert.data.readers.recordings import Hints, SourceError
from tests.data.helpers import make_trajectory
from tests.fuzz.corpus import CORPUS
from tests.helpers import refused

ROOT = Path(__file__).parents[3]


def test_a_file_that_may_not_be_opened_is_not_called_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "flow.csv"
    path.write_text("x,y,u,v\n0,0,1,1\n1,0,1,1\n0,1,1,1\n1,1,1,1\n")
    assert identify(path) == "table"
    opens = io.open

    def refuse(file: Any, *arguments: Any, **options: Any) -> Any:
        if str(file) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        return opens(file, *arguments, **options)

    monkeypatch.setattr("io.open", refuse)  # modes do not stop an administrator
    for given in (path, tmp_path, tmp_path / "*.csv"):
        with pytest.raises(SourceError, match=r"flow\.csv.*Permission denied"):
            identify(given)


def test_a_folder_of_native_files_is_one_set(tmp_path: Path) -> None:
    write(tmp_path / "part0.h5", [make_trajectory("a"), make_trajectory("b", seed=1)])
    write(tmp_path / "part1.h5", [make_trajectory("b", seed=2)])
    (tmp_path / ".part2.h5").write_bytes(b"half a file")
    recordings = open_recordings(tmp_path)
    assert recordings.names == ("a", "part0-b", "part1-b")
    last = recordings["part1-b"]
    assert last.name == "part1-b"
    assert torch.equal(last.read(), make_trajectory(seed=2).read())
    again = pickle.loads(pickle.dumps(last))
    assert torch.equal(again.read(), last.read())


@pytest.mark.parametrize("name", CORPUS)
def test_recordings_of_every_kind_can_be_pickled_and_converted(tmp_path: Path, name: str) -> None:
    CORPUS[name](tmp_path / name)
    recordings = open_recordings(tmp_path / name)
    first = recordings[0]
    again = pickle.loads(pickle.dumps(first))
    torch.testing.assert_close(again.read(), first.read(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(again.known(), first.known())
    write(tmp_path / "native.hdf", list(recordings))
    check(tmp_path / "native.hdf")


@pytest.mark.parametrize(
    "name",
    [
        *("cfdbench", "eagle", "arrow", "well.hdf5", "run.h5", "named.h5", "flow.npz", "new.mat"),
        *("flow.nc", "flow.csv", "openpiv.txt", "pivlab.mat", "flow.vti", "case"),
    ],
)
def test_a_channel_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, name: str
) -> None:
    CORPUS[name](tmp_path / name)
    found = open_recordings(tmp_path / name)[0].spec.channels
    with refused("absent", name, error=SourceError):
        open_recordings(tmp_path / name, hints=Hints(channels={found[0]: "absent"}))[0]


def test_hints_that_a_kind_does_not_need_are_refused(tmp_path: Path) -> None:
    rows = "".join(f"{x},{y},1,2\n" for y in range(4) for x in range(5))
    (tmp_path / "a.csv").write_text("x,y,u,v\n" + rows)
    write(tmp_path / "a.h5", [make_trajectory()])
    hints: tuple[dict[str, Any], ...]
    hints = ({"axes": "tyx"}, {"shape": (4, 4)}, {"channels": {"u": "v"}})
    for name, hint in (("a.csv", hints[0]), *(("a.h5", hint) for hint in hints)):
        with pytest.raises(SourceError, match=rf"{name}: --{next(iter(hint))} means nothing"):
            open_recordings(tmp_path / name, hints=Hints(family="incompressible", **hint))
    notes = open_recordings(tmp_path / "a.csv", hints=Hints(shape=(7, 9))).notes
    assert any("uniform and was kept" in note for note in notes)


def test_unknown_files_are_refused_with_the_likely_kinds(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'numpy'; choose from: native, "):
        open_recordings(tmp_path, "numpy")
    with refused("absent", error=FileNotFoundError):
        identify(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match="absent"):
        open_recordings(tmp_path / "absent", "native")
    with pytest.raises(SourceError, match="the folder is empty"):
        identify(tmp_path)
    (tmp_path / "empty.dat").touch()
    with pytest.raises(SourceError, match=r"empty\.dat: the file is empty"):
        identify(tmp_path / "empty.dat")
    (tmp_path / "notes.md").write_text("# Notes\n")
    with refused("no known kind", "--kind piv or table", "pibert info", error=SourceError):
        identify(tmp_path / "notes.md")
    (tmp_path / "notes.bin").write_bytes(b"\0" * 100)
    with pytest.raises(SourceError, match="--kind arrays, hdf5 or vtk"):
        identify(tmp_path / "notes.bin")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("index.pkl", "may hold code"),
        ("run.set", "name the folder of its .vc7 files"),
    ],
)
def test_unsupported_formats_give_advice(tmp_path: Path, name: str, advice: str) -> None:
    (tmp_path / name).write_bytes(b"\x00\x01something")
    with pytest.raises(SourceError, match=advice):
        identify(tmp_path / name)
    with pytest.raises(SourceError, match=rf"a folder of \{Path(name).suffix} files: .*{advice}"):
        identify(tmp_path)


def test_the_readers_import_no_optional_package() -> None:
    extras = "scipy pyarrow xarray h5netcdf huggingface_hub matplotlib pandas"
    code = f"""
import sys, pibert.data.readers
print(*[name for name in '{extras}'.split() if name in sys.modules])
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert found.stdout.strip() == ""


def test_a_folder_of_folders_of_text_gets_a_pattern_that_reads_it(tmp_path: Path) -> None:
    rows = "x,y,u,v\n0,0,1,1\n1,0,1,1\n0,1,1,1\n1,1,1,1\n"
    for run in ("run1", "run2"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "about.txt").write_text("Two runs in a tank.\n")
        for frame in (1, 2):
            (tmp_path / run / f"f{frame}.csv").write_text(rows)
    pattern = f"{tmp_path}/run*/*.csv"
    with refused(tmp_path, f"'{pattern}'", error=SourceError):
        identify(tmp_path)
    recordings = open_recordings(pattern)
    assert len(recordings.names) == 2 and recordings[0].num_frames == 2
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "deep").mkdir()
    with refused("no known kind", error=SourceError):
        identify(tmp_path / "other")
