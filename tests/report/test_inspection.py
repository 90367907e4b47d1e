"""The picture of an inspection: drawn for any kind of channels, frames and masks."""

import math
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pibert.data.inspection.judge import inspect
from pibert.data.sources.recordings import Recordings
from pibert.fields import FieldSpec, Grid, Trajectory
from pibert.report import inspection
from pibert.report.inspection import draw_inspection


def draw(path: Path, trajectory: Trajectory) -> tuple[int, int]:
    """Draw, and give width and height."""
    recordings = Recordings(
        kind="native", path=Path("flow.h5"), names=("a",), load=lambda name: trajectory
    )
    draw_inspection(path, trajectory, inspect(recordings))
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def flow(
    shape: tuple[int, int] = (12, 20),
    frames: int = 5,
    channels: tuple[str, ...] = ("u", "v"),
    body: Tensor | None = None,
    valid: Tensor | None = None,
) -> Trajectory:
    generator = torch.Generator().manual_seed(0)
    return Trajectory(
        name="a",
        states=torch.randn(frames, len(channels), *shape, generator=generator),
        time=0.1 * torch.arange(frames, dtype=torch.float64),
        spec=FieldSpec(channels=channels, dt=0.1, grid=Grid(shape, 0.1, 0.2)),
        body=body,
        valid=valid,
    )


def test_a_picture_is_written_whole_into_a_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "flow.png"
    width, _ = draw(path, flow())
    assert width == pytest.approx((4 * 1.3 * 2.6 + 1.6) * 150, abs=1)  # u, v and two derivatives
    assert os.listdir(path.parent) == ["flow.png"]


def test_missing_points_get_a_map_of_their_own_and_a_body_alone_does_not(tmp_path: Path) -> None:
    body = torch.zeros(12, 20, dtype=torch.bool)
    body[3:6, 3:6] = True
    width, height = draw(tmp_path / "a.png", flow(body=body))
    assert width == pytest.approx((4 * 1.3 * 2.6 + 1.6) * 150, abs=1)
    valid = torch.ones(5, 12, 20, dtype=torch.bool)
    valid[1:, 2, 10] = False
    narrower, higher = draw(tmp_path / "b.png", flow(body=body, valid=valid))
    assert narrower < width and higher > height  # two rows of three panels


def figure_of(path: Path, trajectory: Trajectory, monkeypatch: pytest.MonkeyPatch) -> Figure:
    """What is drawn, before it becomes a file."""
    figures: list[Figure] = []

    def keep(figure: Figure, path: Path) -> Path:
        figures.append(figure)
        return path

    monkeypatch.setattr(inspection, "write_figure", keep)
    recordings = Recordings(
        kind="arrays", path=Path("flow.npz"), names=("a",), load=lambda name: trajectory
    )
    draw_inspection(path, trajectory, inspect(recordings))
    return figures[0]


def panels(figure: Figure) -> dict[str, Axes]:
    return {ax.get_title(): ax for sub in figure.subfigs for ax in sub.axes if ax.get_title()}


def test_derivatives_are_per_second_while_fields_keep_their_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shear u = 3 y with u in m/s and y in mm: a vorticity of -3000 per second."""
    still = flow()
    _, y = still.spec.grid.coordinates()
    states = torch.stack((3 * y, torch.zeros_like(y)))[None].repeat(5, 1, 1, 1)
    spec = replace(still.spec, units=("m/s", "m/s"))
    shear = replace(still, states=states, spec=spec, length_unit="mm", time_unit="s")
    found = panels(figure_of(tmp_path / "a.png", shear, monkeypatch))
    assert {"u [m/s]", "vorticity [1/s]", "divergence [1/s]"} <= set(found)
    vorticity = found["vorticity [1/s]"].images[0].get_array()
    assert vorticity is not None and np.asarray(vorticity) == pytest.approx(-3000, rel=1e-4)
    assert found["u [m/s]"].get_xlabel() == "x [mm]"


def test_a_field_almost_of_one_sign_is_not_drawn_around_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, _ = Grid((12, 20), 0.1, 0.2).coordinates()
    still = flow()
    states = torch.stack((x - 0.1, x - 0.9))[None].repeat(5, 1, 1, 1)
    figure = figure_of(tmp_path / "a.png", replace(still, states=states), monkeypatch)
    u, v = (panels(figure)[name].images[0].get_clim() for name in ("u", "v"))
    assert u == pytest.approx((-0.1, 1.8)) and v == pytest.approx((-1.0, 1.0))


def test_one_channel_is_shown_as_it_begins_and_ends_and_one_frame_has_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scalar = flow(channels=("T",))
    found = panels(figure_of(tmp_path / "a.png", scalar, monkeypatch))
    assert isinstance(scalar.states, Tensor)
    for title, frame in (("first frame", 0), ("T", 2), ("last frame", 4)):
        shown = found[title].images[0].get_array()
        assert shown is not None
        torch.testing.assert_close(torch.from_numpy(shown.data).float(), scalar.states[frame, 0])
    one = flow(channels=("T",), frames=1)
    found = panels(figure_of(tmp_path / "a.png", one, monkeypatch))
    assert set(found) == {"T", "values of this frame", "spectrum along x"}


def test_a_tall_view_gives_a_tall_picture(tmp_path: Path) -> None:
    width, height = draw(tmp_path / "a.png", flow((40, 20)))
    assert height > 0.5 * width


@pytest.mark.parametrize(
    "trajectory",
    [
        flow(frames=1),
        flow(channels=("T",)),
        flow(channels=tuple("abcdefghi")),
        flow(shape=(2, 9)),
    ],
    ids=["one frame", "no velocity", "many channels", "two rows"],
)
def test_unusual_data_can_be_drawn(tmp_path: Path, trajectory: Trajectory) -> None:
    draw(tmp_path / "flow.png", trajectory)


def test_values_that_are_not_finite_and_a_field_at_rest_can_be_drawn(tmp_path: Path) -> None:
    trajectory = flow()
    assert isinstance(trajectory.states, Tensor)
    trajectory.states[:, 0, 2, 3] = math.nan
    trajectory.states[:, 1] = 0.0
    draw(tmp_path / "a.png", trajectory)


def test_frames_without_a_known_point_can_be_drawn(tmp_path: Path) -> None:
    draw(tmp_path / "a.png", flow(valid=torch.zeros(12, 20, dtype=torch.bool)))


def test_another_kind_of_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"written as \.png"):
        draw(tmp_path / "flow.pdf", flow())
    assert os.listdir(tmp_path) == []
