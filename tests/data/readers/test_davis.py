"""DaVis vector files: through a stand-in for lvpyio, and through lvpyio where it is installed."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data.readers import davis, identify, open_recordings
from pibert.data.readers.recordings import Hints, SourceError

SHAPE = (4, 6)
U = np.arange(24.0).reshape(SHAPE)
MASKED = np.zeros(SHAPE, bool)
MASKED[0, 0] = True


def scale(slope: float, offset: float, unit: str = "mm") -> SimpleNamespace:
    return SimpleNamespace(slope=slope, offset=offset, unit=unit)


SPEED = scale(0.5, 0.0, "m/s")


class Frame:
    """What lvpyio documents of a frame of vectors, with values in m/s and directions of space."""

    def __init__(self, number: int, choices: np.ndarray, planes: int = 1) -> None:
        self.scales = SimpleNamespace(x=scale(0.1, -5.0), y=scale(-0.1, 20.0), i=SPEED)
        self.grid = SimpleNamespace(x=16, y=8)
        self.components = {
            name: SimpleNamespace(planes=[values], scale=SPEED)
            for name, values in {"U0": U, "TS:Uncertainty Vx": 0 * U + 0.2}.items()
        }
        self.attributes = {"FrameDt": "300 us", "AcqTimeSeries": f"{2000.0 * number} µs"}
        self.active_choice, self.number, self.planes = [choices], number, planes

    def __len__(self) -> int:
        return self.planes

    def as_masked_array(self) -> np.ma.MaskedArray:
        vectors = np.ma.zeros(SHAPE, dtype=[("u", "f8"), ("v", "f8")])
        vectors["u"], vectors["v"] = U + self.number, -U
        vectors.mask = MASKED
        return vectors


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Frames by the name of a file, as a stand-in for lvpyio returns them."""
    frames: dict[str, Any] = {}

    def read_buffer(path: str) -> list[Any]:
        if Path(path).name not in frames:
            raise RuntimeError("File not of type IM7.")
        return [frames[Path(path).name]]

    module = ModuleType("lvpyio")
    module.read_buffer = read_buffer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lvpyio", module)
    return frames


def add(folder: Path, buffers: dict[str, Any], numbers: list[int], choice: int = 0) -> None:
    choices = np.zeros(SHAPE, int)
    choices[2, 3] = choice
    for number in numbers:
        name = f"B{number:05d}.vc7"
        (folder / name).write_bytes(b"vectors")
        buffers[name] = Frame(number, choices)


def test_vectors_positions_times_and_flags(tmp_path: Path, buffers: dict[str, Any]) -> None:
    add(tmp_path, buffers, [1, 2, 4], choice=4)
    assert identify(tmp_path) == "davis"
    (flow,) = open_recordings(tmp_path)
    assert flow.spec.channels == ("u", "v") and flow.spec.units == ("m/s", "m/s")
    assert flow.time.tolist() == pytest.approx([0.002, 0.004, 0.008])
    assert (flow.length_unit, flow.time_unit) == ("mm", "s")
    # Centres of windows of 16 x 8 pixels; rows run downward in the file.
    assert flow.spec.grid.origin == pytest.approx((-5 + 8 * 0.1, 20 - 3.5 * 8 * 0.1))
    assert (flow.spec.grid.dx, flow.spec.grid.dy) == pytest.approx((1.6, 0.8))
    known = torch.from_numpy(~MASKED[::-1].copy())
    assert torch.equal(flow.known()[2], known)
    np.testing.assert_allclose(flow.read()[2, 0][known], (U + 4)[::-1][known.numpy()])
    assert flow.measured()[0].sum() == 22  # one masked, one filled
    assert flow.source["seconds_between_images"] == pytest.approx(3e-4)


def test_uncertainties_can_be_read_and_uneven_times_are_counted(
    tmp_path: Path, buffers: dict[str, Any]
) -> None:
    add(tmp_path, buffers, [1, 2, 3])
    buffers["B00003.vc7"].attributes["AcqTimeSeries"] = "99 s"
    channels = {"u": "u", "v": "v", "uncertainty_u": "uncertainty_u"}
    recordings = open_recordings(tmp_path / "B*.vc7", hints=Hints(channels=channels))
    flow = recordings[0]
    assert flow.spec.dt is None and any("--dt" in note for note in recordings.notes)
    assert float(flow.read()[0, 2].nanmean()) == pytest.approx(0.1)  # scaled
    add(tmp_path, buffers, [1, 2, 3], choice=0)
    for frame in buffers.values():
        frame.active_choice = [np.full(SHAPE, 5)]
    smoothed = open_recordings(tmp_path)
    assert any("smoothed" in note for note in smoothed.notes)
    assert int(smoothed[0].measured()[0].sum()) == 23


def test_images_volumes_damage_and_a_missing_package_are_refused(
    tmp_path: Path, buffers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tmp_path, buffers, [1])
    path = tmp_path / "B00001.vc7"
    buffers["B00001.vc7"].planes = 3
    with pytest.raises(SourceError, match="volume of 3 planes"):
        open_recordings(path)
    buffers["B00001.vc7"].components = {"PIXEL": SimpleNamespace(planes=[U], scale=SPEED)}
    with pytest.raises(SourceError, match="an image, not vectors"):
        open_recordings(path)
    del buffers["B00001.vc7"]
    with pytest.raises(SourceError, match="cannot read it"):
        open_recordings(path)
    monkeypatch.setitem(sys.modules, "lvpyio", None)
    with pytest.raises(ImportError, match=r"lvpyio: pip install .pibert-cfd\[davis\]"):
        open_recordings(path)


def test_a_file_written_by_lvpyio(tmp_path: Path) -> None:
    lvpyio = pytest.importorskip("lvpyio")
    array = np.ma.zeros(SHAPE, dtype=lvpyio.vec2c)
    array["u"], array["v"] = U, -U
    array.mask = MASKED
    buffer = lvpyio.arrays_to_buffer([array])
    lvpyio.write_buffer(buffer, str(tmp_path / "B00001.vc7"))
    (flow,) = open_recordings(tmp_path / "B00001.vc7")
    known = flow.known()[0].numpy()
    assert davis.recognise(tmp_path) and known.sum() == 23
    # Without a scale rows run down the image, and positions are pixels.
    assert sorted(flow.read()[0, 0].numpy()[known].tolist()) == U[~MASKED].tolist()
