"""Files of every kind that ``pibert convert`` reads, as the server opens them."""

import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.io
import torch

from pibert.data import isolation
from pibert.data.readers import open_recordings
from pibert.serve.answers import Answer
from pibert.serve.app import PAGE
from pibert.serve.limits import Refusal
from pibert.serve.opened import HINTS, KNOWN, open_file, read_hints
from tests.fuzz.corpus import CORPUS
from tests.fuzz.hdf5 import WAYS, lead_out
from tests.lookalikes.flow import X, Y, fields
from tests.serve.server_process import ROOT

METRIC = ({"u": "m/s", "v": "m/s"},)
LIMIT = 10_000_000


def opened(path: Path, *, units: Any = METRIC, limit: int = LIMIT, **hints: Any) -> Answer:
    stated = read_hints(hints)
    return open_file(path.read_bytes(), None, limit, 30.0, units, name=path.name, hints=stated)


def refused(path: Path, **hints: Any) -> Refusal:
    with pytest.raises(Refusal) as found:
        opened(path, **hints)
    return found.value


def write_jet(path: Path) -> None:
    """Bare arrays of a measurement: millimetres, a time step, marks of spurious vectors."""
    own = fields()
    spurious = np.zeros((6, 5, 7), bool)
    spurious[2, 1, 3] = True
    uv = np.stack([own["u"], own["v"]], 1)
    np.savez(path, uv=uv, x_mm=1000 * X, y_mm=1000 * Y, dt_s=np.array(0.05), outlier=spurious)


@pytest.mark.parametrize(
    "name",
    [
        *("flow.npz", "jet.npz", "old.mat", "named.h5", "flow.nc", "flow.csv", "legacy.vtk"),
        *("openpiv.txt", "flow.safetensors"),
    ],
)
def test_the_server_opens_what_convert_reads(name: str, tmp_path: Path):
    path = tmp_path / name
    write_jet(path) if name == "jet.npz" else CORPUS[name](path)
    truth = open_recordings(path)[0]
    answer = opened(path, units=())  # without a model no unit is assumed
    found = answer.facts
    is_metric = found["length_unit"] != truth.length_unit
    scale = 1e-3 if is_metric else 1.0
    assert found["channels"] == list(truth.spec.channels)
    assert found["frames"] == truth.num_frames and found["dt"] == truth.spec.dt
    expected = truth.read().float().numpy()
    known = truth.known().numpy()
    np.testing.assert_array_equal(answer.arrays["known"], known)
    got = np.moveaxis(answer.arrays["fields"], 1, -1)[known]
    np.testing.assert_array_equal(got, np.moveaxis(expected, 1, -1)[known])
    grid = truth.spec.grid
    spacing = [found["grid"][key] for key in ("dx", "dy", "x0", "y0")]
    assert spacing == pytest.approx([scale * n for n in (grid.dx, grid.dy, *grid.origin)])


def test_of_a_long_recording_the_first_frames_are_taken(tmp_path: Path):
    path = tmp_path / "flow.nc"
    CORPUS["flow.nc"](path)
    truth = open_recordings(path)[0]
    answer = opened(path, units=(), limit=4 * 2 * 5 * 7 * 3)
    assert answer.facts["stop"] == 3 and answer.facts["frames"] == 6
    assert "the first 3 of 6 frames" in [note["text"] for note in answer.facts["notes"]]
    np.testing.assert_array_equal(answer.arrays["fields"], truth.read(slice(3)).float().numpy())
    flow = open_recordings(path, isolate=isolation.Limits(1 << 30, 30.0, 1 << 20))
    assert not isinstance(flow[0].states, torch.Tensor)  # frames are sent on request


def test_the_description_lists_the_formats_and_the_metadata():
    page = (PAGE / "index.html").read_text()
    described = (ROOT / "docs" / "serving.md").read_text()
    rows = re.findall(r"^\| \w+ \| ((?:`\.\w+`(?:, )?)+) \|", described, re.MULTILINE)
    assert set(re.findall(r"\.\w+", " ".join(rows))) == set(KNOWN)
    assert sorted(re.findall(r'data-hint="(\w+)"', page)) == sorted(HINTS)
    assert all(f"`{name}`" in described for name in HINTS)


def test_the_hint_that_is_missing_is_named_and_taken(tmp_path: Path):
    one: dict[str, Any] = {**fields(), "x": X}
    np.savez(tmp_path / "one.npz", **one)
    refusal = refused(tmp_path / "one.npz")
    assert refusal.code == "invalid"
    assert "not along y; give their spacing in the same unit (dy)" in refusal.message
    assert opened(tmp_path / "one.npz", dy=0.3).facts["grid"]["dy"] == 0.3

    np.savez(tmp_path / "odd.npz", a=fields()["u"], b=fields()["v"])
    assert "u=NAME" in refused(tmp_path / "odd.npz").message
    hints: dict[str, Any] = {"channels": "u=a,v=b", "dt": 0.05, "dx": 1.0, "dy": 1.0, "unit": "m/s"}
    found = opened(tmp_path / "odd.npz", **hints).facts
    assert (found["channels"], found["dt"], found["units"]) == (["u", "v"], 0.05, ["m/s", "m/s"])
    assert found["grid"]["dx"] == found["grid"]["dy"] == 1.0


@pytest.mark.parametrize("name", ["flow.pvd", "flow.vtm", "flow.zip", "case.foam", "flow", ""])
def test_a_file_that_may_name_others_is_refused(name: str):
    with pytest.raises(Refusal, match="pibert convert") as found:
        open_file(b"<VTKFile/>", None, LIMIT, 30.0, name=name)
    assert found.value.code == "malformed"


@pytest.mark.parametrize("way", WAYS)
def test_hdf5_that_refers_to_other_files_is_refused(tmp_path: Path, way: str):
    path = tmp_path / "flow.h5"
    CORPUS["named.h5"](path)
    with h5py.File(path, "a") as file:
        file["inner/loop"] = file["/"]  # hard links may go round in circles
        file["soft"] = h5py.SoftLink("/u")
    assert opened(path).facts["frames"] == 6
    lead_out(path, way)
    refusal = refused(path)
    assert refusal.code == "malformed" and "another file" in refusal.message


def test_damaged_files_are_refused_in_words(tmp_path: Path):
    for name, data in {
        "a.csv": b"hello",
        "a.txt": b"",
        "a.vtu": b"<VTKFile>",
        "a.mat": b"MATLAB 5.0 MAT-file" + bytes(200),
        "a.nc": b"CDF\x01" + bytes(100),
        "a.vtk": b"# vtk DataFile Version 3.0\nflow\nBINARY\nDATASET STRUCTURED_POINTS\n"
        b"DIMENSIONS 99999 99999 1\nSPACING 1 1 1\nORIGIN 0 0 0\nPOINT_DATA 9999800001\n"
        b"VECTORS U float\n",
    }.items():
        (tmp_path / name).write_bytes(data)
        refusal = refused(tmp_path / name)
        assert refusal.code in ("malformed", "invalid", "too_large")
        assert str(tmp_path) not in refusal.message and "/tmp" not in refusal.message
        assert "Error" not in refusal.message, refusal.message


def test_memory_and_time_of_the_reading_process_are_limited(tmp_path: Path):
    """A file may unpack to far more than it has bytes."""
    content = {name: np.zeros((1000, 60_000)) for name in ("u", "v")}
    scipy.io.savemat(tmp_path / "bomb.mat", content, do_compression=True)
    with pytest.raises(Refusal) as found:
        opened(tmp_path / "bomb.mat", limit=1_000_000)
    assert found.value.code == "too_large" and "memory" in found.value.message
    CORPUS["old.mat"](tmp_path / "old.mat")
    data = (tmp_path / "old.mat").read_bytes()
    with pytest.raises(Refusal) as found:
        open_file(data, None, LIMIT, 1e-4, METRIC, name="old.mat")
    assert found.value.code == "timeout"
