"""Pixels into metres: by the user's scale and pulse delay, and by those of a header."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data.readers import open_recordings
from pibert.data.readers.recordings import Hints, Recordings, SourceError
from pibert.data.readers.shared.metadata import state
from pibert.fields import Trajectory
from tests.data.readers.test_metadata import trajectory_of
from tests.helpers import refused
from tests.lookalikes.piv import sample, write_openpiv, write_tsi

FILES = Path(__file__).parent / "files"
SCALED: dict[str, Any] = {"scale": "0.05mm/px", "pulse_delay": "27ms"}


def opened(path: Path, **hints: Any) -> Recordings:
    return open_recordings(path, hints=Hints(**hints))


def read_columns(name: str) -> np.ndarray:
    text = (FILES / name).read_text().splitlines()[1:]
    return np.array([[float(cell) for cell in line.replace(",", " ").split()] for line in text])


def on_grid(column: np.ndarray, rows: int) -> torch.Tensor:
    """Values of a file, which starts with the upper row, in rows that grow with y."""
    return torch.from_numpy(column.reshape(rows, -1)[::-1].copy()).float()


def assert_velocity(flow: Trajectory, columns: np.ndarray, rows: int, factor: float) -> None:
    for channel in (0, 1):
        wanted = factor * on_grid(columns[:, 2 + channel], rows)
        torch.testing.assert_close(flow.read()[0, channel], wanted, rtol=1e-5, atol=0)


def test_tsi_pixels_become_metres_per_second_by_scale_and_header() -> None:
    recordings = opened(FILES / "tsi_pixels.vec", scale="0.05mm/px")
    (flow,), columns = recordings, read_columns("tsi_pixels.vec")
    # 32 px of 0.05 mm apart; u in m/s is pixels times 5e-5 m over the header's 55000 us.
    assert (flow.spec.grid.dx, flow.spec.grid.dy) == pytest.approx((1.6e-3, 1.6e-3))
    assert flow.spec.grid.origin == pytest.approx((1539 * 5e-5, 1386 * 5e-5))
    assert flow.length_unit == "m" and flow.spec.units == ("m/s", "m/s")
    assert_velocity(flow, columns, 6, 5e-5 / 55000e-6)
    assert flow.read()[0, 0, 0, -1].item() == pytest.approx(columns[-1, 2] * 5e-5 / 0.055)
    assert torch.equal(flow.known()[0], on_grid(columns[:, 4], 6) > 0)
    applied = flow.local["calibration"]
    assert applied["metres_per_pixel"] == pytest.approx(5e-5)
    assert applied["seconds_between_images"] == pytest.approx(0.055)
    assert applied["from"] == {"metres_per_pixel": "user", "seconds_between_images": "header"}
    assert flow.spec.dt is None  # of the pair of images, not of the vector fields
    (note,) = (text for text in recordings.notes if "calibrated" in text)
    assert "50 um/px (user)" in note and "55 ms (header)" in note


def test_calibrated_tsi_files_are_unchanged() -> None:
    (flow,), columns = opened(FILES / "tsi_calibrated.vec"), read_columns("tsi_calibrated.vec")
    assert flow.length_unit == "mm" and flow.spec.units == ("m/s", "m/s")
    assert_velocity(flow, columns, 6, 1.0)
    assert flow.source["metres_per_pixel"] == pytest.approx(19.530001e-6)
    with pytest.raises(SourceError, match="--scale and --pulse-delay .* mm, m/s"):
        opened(FILES / "tsi_calibrated.vec", **SCALED)


def test_a_header_with_scale_and_delay_calibrates_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.vec"
    write_tsi(path, sample(), np.ones((4, 6)), "pixel", "pixel", pixel=(85.81, 42.0))
    recordings = opened(path)
    (flow,), grid = recordings, recordings[0].spec.grid
    # Scales of their own along x and y; 50 us between the images.
    assert (grid.dx, grid.dy) == pytest.approx((16 * 85.81e-6, 8 * 42e-6))
    u, v = (torch.from_numpy(sample()[name]).float() for name in "uv")
    torch.testing.assert_close(flow.read()[0, 0], u * 85.81e-6 / 50e-6, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(flow.read()[0, 1], v * 42e-6 / 50e-6, rtol=1e-4, atol=1e-4)
    assert flow.local["calibration"]["metres_per_pixel"] == pytest.approx([85.81e-6, 42e-6])
    # The user may keep pixels, and a pixel of exactly 1 um is no calibration.
    kept = opened(path, unit="px/frame", length_unit="px")[0]
    assert kept.length_unit == "px" and kept.spec.units == ("px/frame", "px/frame")
    write_tsi(path, sample(), np.ones((4, 6)), "pixel", "pixel", pixel=(1.0, 1.0))
    assert opened(path)[0].length_unit == "px"


def test_options_that_contradict_a_header_need_override_units() -> None:
    path = FILES / "tsi_pixels.vec"
    with pytest.raises(SourceError, match="27 ms .* 55 ms; .*--override-units"):
        opened(path, **SCALED)
    replaced = opened(path, **SCALED, override_units=True)[0]
    assert_velocity(replaced, read_columns("tsi_pixels.vec"), 6, 5e-5 / 27e-3)
    same = opened(path, scale="50um/px", pulse_delay="0.055 s")[0]
    assert_velocity(same, read_columns("tsi_pixels.vec"), 6, 5e-5 / 0.055)


def test_openpiv_text_without_units_is_pixels_where_a_scale_is_given() -> None:
    path, columns = FILES / "openpiv.txt", read_columns("openpiv.txt")
    (flow,) = opened(path, scale="20px/mm", pulse_delay="500us")
    factor = 5e-5 / 5e-4
    assert flow.spec.grid.dx == pytest.approx(16 * 5e-5) and flow.spec.units == ("m/s", "m/s")
    assert_velocity(flow, columns, 7, factor)
    known = flow.known()[0]
    # The particles move 3 px to the right and 2 px up between the images: 0.3 and 0.2 m/s.
    assert flow.read()[0, 0][known].median().item() == pytest.approx(0.3, rel=0.05)
    assert flow.read()[0, 1][known].median().item() == pytest.approx(0.2, rel=0.05)
    per_second = opened(path, unit="px/s", length_unit="px", scale="0.05mm/px")[0]
    assert_velocity(per_second, columns, 7, 5e-5)
    notes = opened(path, **SCALED, dt=0.01).notes
    assert any("27 ms is longer" in note for note in notes)


def test_velocities_taken_for_displacements_are_reported(tmp_path: Path) -> None:
    field = sample()
    for factor, is_reported in ((1.0, False), (500.0, True)):
        write_openpiv(tmp_path / "a.txt", {**field, "u": factor * (field["u"] + 1)})
        notes = opened(tmp_path / "a.txt", **SCALED).notes
        assert is_reported == any("too large for a pair" in note for note in notes)
    (flow,) = opened(tmp_path / "a.txt", scale="0.05mm/px", unit="px/s")
    assert flow.spec.units == ("m/s", "m/s") and flow.length_unit == "m"


def test_a_scale_needs_a_delay_and_vice_versa() -> None:
    path = FILES / "openpiv.txt"
    with pytest.raises(SourceError, match="--scale was given without --pulse-delay"):
        opened(path, scale="20px/mm")
    with pytest.raises(SourceError, match="--pulse-delay was given without --scale"):
        opened(path, pulse_delay="1ms")
    # Velocities that are calibrated already need none.
    flow = opened(path, scale="20px/mm", unit="m/s")[0]
    assert flow.length_unit == "m" and flow.spec.grid.dx == pytest.approx(8e-4)
    assert_velocity(flow, read_columns("openpiv.txt"), 7, 1.0)


def test_uncertainties_are_calibrated_like_their_components(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        name: rng.uniform(1, 2, (3, 5, 7)) for name in ("u", "v", "uncertainty_u", "snr")
    }
    path = tmp_path / "flow.npz"
    np.savez(path, **arrays, x=16.0 * np.arange(7), y=16.0 * np.arange(5), t=np.arange(3.0))
    channels = {name: name for name in arrays}
    (flow,) = opened(path, channels=channels, scale="0.05mm/px", pulse_delay="1ms")
    assert flow.spec.units == ("m/s", "m/s", "m/s", "1")
    factors = torch.tensor([0.05, 0.05, 0.05, 1.0])[:, None, None]
    wanted = factors * torch.from_numpy(np.stack(list(arrays.values()), 1)).float()
    torch.testing.assert_close(flow.read(), wanted, rtol=1e-5, atol=0)
    (stated,) = opened(path, channels=channels, unit="mm/s", length_unit="mm")
    assert stated.spec.units[2] == stated.spec.units[0]


def test_pixels_cannot_be_declared_as_metres_per_second() -> None:
    remedies = ("--scale 0.05mm/px", "--override-units", "55 ms")
    with refused("u in px/frame", *remedies, error=SourceError):
        opened(FILES / "tsi_pixels.vec", unit="m/s")
    (note,) = (r for r in opened(FILES / "tsi_pixels.vec").notes if "px" in r)
    assert "--scale 0.05mm/px" in note and "--pulse-delay" not in note and "55 ms" in note
    (note,) = (r for r in opened(FILES / "openpiv.txt").notes if "pixels" in r)
    assert "16 x 16 apart" in note and "--scale" in note and "--pulse-delay" in note
    declared = opened(FILES / "openpiv.txt", unit="m/s", length_unit="mm").notes
    assert any("look like pixels (lengths in mm" in note for note in declared)


def test_positions_closer_than_a_pixel_are_reported() -> None:
    """PIVPy labels positions in mm as pixels."""
    close = trajectory_of(units=("mm", "mm"), length_unit="px", dx=0.3125, dy=0.25)
    _, (note,) = state(close, Hints())
    assert "only 0.3125 x 0.25 pixels apart" in note
    with pytest.raises(SourceError, match="unit"):
        state(close, Hints(**SCALED))
    right = Hints(unit="m/s", length_unit="mm", override_units=True)
    flow, _ = state(close, right)
    assert flow.spec.units == ("m/s", "m/s") and flow.length_unit == "mm"


def test_counted_points_are_not_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, u=np.ones((2, 4, 5)), v=np.ones((2, 4, 5)))
    with refused("spacing in pixels", "--dx 16", error=SourceError):
        opened(path, **SCALED)
    flow = opened(path, **SCALED, dx=16.0, dy=8.0, length_unit="px")[0]
    assert (flow.spec.grid.dx, flow.spec.grid.dy) == pytest.approx((8e-4, 4e-4))
    assert flow.read()[0, 0, 0, 0].item() == pytest.approx(5e-5 / 27e-3)


def test_frames_of_another_calibration_are_refused(tmp_path: Path) -> None:
    for name, delay in (("B1.vec", 50.0), ("B2.vec", 90.0)):
        units = ("pixel", "pixel")
        write_tsi(tmp_path / name, sample(), np.ones((4, 6)), *units, pixel=None, delay=delay)
    flow = opened(tmp_path / "B*.vec", scale="0.05mm/px")[0]
    with pytest.raises(SourceError, match=r"B2.vec: its header states"):
        flow.read()
