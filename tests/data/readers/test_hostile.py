"""Files that would take all memory, never end, or break a parser are refused."""

import json
import os
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from pibert.data.format import FormatError, Reader
from pibert.data.provenance import own_record
from pibert.data.readers import open_recordings
from pibert.data.readers.recordings import Hints, SourceError
from tests.fuzz.corpus import CORPUS
from tests.helpers import refused


def write_two_regions(path: Path) -> None:
    """120 points in two dense regions, two thousand times their size away from each other."""
    rng = np.random.default_rng(0)
    points = rng.random((120, 2))
    points[60:] += 2e3
    rows = np.concatenate([points, rng.random((120, 2))], 1)
    np.savetxt(path, rows, delimiter=",", header="x,y,u,v", comments="")


def test_points_in_distant_regions_do_not_ask_for_a_huge_grid(tmp_path: Path) -> None:
    write_two_regions(tmp_path / "two.csv")
    with pytest.raises(SourceError, match=r"the 120 points.*--shape ROWSxCOLUMNS"):
        open_recordings(tmp_path / "two.csv")
    found = open_recordings(tmp_path / "two.csv", hints=Hints(shape=(20, 30)))
    assert found[0].spec.grid.shape == (20, 30)
    with refused("at most", "--shape 100000x100000", error=SourceError):
        open_recordings(tmp_path / "two.csv", hints=Hints(shape=(10**5, 10**5)))


def write_lie(path: Path, shape: str, stated: int | None = None) -> None:
    """An archive whose array of eight bytes declares another shape; of another size, if stated."""
    content = BytesIO()
    np.save(content, np.zeros(1))
    data = content.getvalue().replace(b"(1,)", shape.encode(), 1)
    head = data.index(b"\n") + 1
    assert len(data) - 8 - head < 64
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("u", "v"):
            archive.writestr(f"{name}.npy", data)
    if stated is not None:
        packed = path.read_bytes()
        size = len(data).to_bytes(4, "little")
        path.write_bytes(packed.replace(size + size, size + stated.to_bytes(4, "little")))


@pytest.mark.parametrize("stated", [None, 4_000_000_000])
def test_an_archive_whose_header_lies_is_refused(stated: int | None, tmp_path: Path) -> None:
    write_lie(tmp_path / "lie.npz", "(1,30000,16000)", stated)
    with pytest.raises(SourceError, match="u.npy declares 3840000000 bytes"):
        open_recordings(tmp_path / "lie.npz")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, None) for name in ("flow.csv", "flow.npz", "flow.h5", "flow.mat", "a.nc")),
        *(("data-0.arrow", "realpdebench"), ("a1.txt", "piv"), ("a.csv", "table")),
    ],
)
def test_a_named_pipe_is_refused_at_once(name: str, kind: str | None, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with refused(name, "named pipe"):
        open_recordings(tmp_path if kind else tmp_path / name, kind)
    with pytest.raises(ValueError, match="found a device"):
        open_recordings("/dev/zero")


DEEP = "[" * 200_000


def test_deep_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "native.h5"
    CORPUS["native.h5"](path)
    with h5py.File(path, "r+") as file:
        # As many brackets as an attribute takes.
        file["trajectories/a"].attrs["source"] = np.bytes_(DEEP[:60_000])
    with pytest.raises(FormatError, match="native.h5: trajectory 'a'"):
        Reader(path)["a"]
    assert own_record(DEEP) == {}
    CORPUS["cfdbench"](tmp_path / "cfdbench")
    (case,) = (tmp_path / "cfdbench").rglob("case.json")
    case.write_text(DEEP)
    with pytest.raises(SourceError, match="case.json: the JSON object"):
        list(open_recordings(tmp_path / "cfdbench"))
    CORPUS["arrow"](tmp_path / "arrow")
    (tmp_path / "arrow" / "state.json").write_text(json.dumps({}) + DEEP)
    with pytest.raises(SourceError, match="state.json: "):
        open_recordings(tmp_path / "arrow", "realpdebench")


@pytest.mark.parametrize("name", ["x", "t"])
@pytest.mark.parametrize("values", [1.0, np.full(8, b"text")])
def test_an_axis_of_something_else_is_refused(tmp_path: Path, name: str, values: Any) -> None:
    CORPUS["10030.h5"](tmp_path / "10030.h5")
    with h5py.File(tmp_path / "10030.h5", "r+") as file:
        if name in file:
            del file[name]
        file[name] = values
    with pytest.raises(SourceError, match=f"10030.h5: expected .*numbers in '/{name}'"):
        open_recordings(tmp_path / "10030.h5")
