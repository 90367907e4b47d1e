"""Files of every kind that ``pibert convert`` reads, as the server opens them."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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


def named() -> dict[str, Any]:
    """The flow as arguments of NumPy, whose own options have other types."""
    return dict(fields())


def write_jet(path: Path) -> None:
    """Bare arrays of a measurement: millimetres, a time step, marks of spurious vectors."""
    own = fields()
    spurious = np.zeros((6, 5, 7), bool)
    spurious[2, 1, 3] = True
    uv = np.stack([own["u"], own["v"]], 1)
    np.savez(path, uv=uv, x_mm=1000 * X, y_mm=1000 * Y, dt_s=np.array(0.05), outlier=spurious)


FILES = ("flow.npz", "old.mat", "named.h5", "flow.nc", "flow.csv", "legacy.vtk", "openpiv.txt")


@pytest.mark.parametrize("name", ["jet.npz", *FILES])
def test_the_server_opens_what_convert_reads(name: str, tmp_path: Path):
    path = tmp_path / name
    (write_jet if name == "jet.npz" else CORPUS[name])(path)
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


def test_the_page_and_its_description_list_the_formats():
    page = (PAGE / "index.html").read_text()
    (accepted,) = re.findall(r'accept="([^"]+)"', page)
    assert tuple(accepted.split(",")) == KNOWN
    described = (ROOT / "docs" / "serving.md").read_text()
    rows = re.findall(r"^\| \w+ \| ((?:`\.\w+`(?:, )?)+) \|", described, re.MULTILINE)
    assert set(re.findall(r"\.\w+", " ".join(rows))) == set(KNOWN)
    assert sorted(re.findall(r'data-hint="(\w+)"', page)) == sorted(HINTS)
    assert all(f"`{name}`" in described for name in HINTS)


def test_the_hint_that_is_missing_is_named_and_taken(tmp_path: Path):
    np.savez(tmp_path / "one.npz", **named(), x=X)
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
    with pytest.raises(Refusal, match="make one native .h5 with pibert convert") as found:
        open_file(b"<VTKFile/>", None, LIMIT, 30.0, name=name)
    assert found.value.code == "malformed"


@pytest.mark.parametrize("way", WAYS)
def test_hdf5_that_refers_to_other_files_is_refused(tmp_path: Path, way: str):
    CORPUS["named.h5"](tmp_path / "flow.h5")
    lead_out(tmp_path / "flow.h5", way)
    refusal = refused(tmp_path / "flow.h5")
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


def test_memory_of_the_reading_process_is_limited(tmp_path: Path):
    """A file may unpack to far more than it has bytes."""
    code = f"""
import numpy as np
from pathlib import Path
from pibert.serve import reading

def unpack(*_, **__):
    return np.ones(600_000_000, np.uint8)

reading.open_recordings = unpack
write_to = Path({str(tmp_path / "out")!r})
flow = Path({str(tmp_path / "flow.npz")!r})
reading.read_file(flow, write_to, 1_000_000, None, (), reading.Hints())
print(write_to.read_text())
"""
    CORPUS["flow.npz"](tmp_path / "flow.npz")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert '["too_large", "reading the file takes too much memory' in done.stdout, done.stderr
