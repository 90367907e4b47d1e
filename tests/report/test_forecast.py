"""Strips and moving pictures of predicted frames."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from pibert.report import forecast
from pibert.report.animation import GifWriter, Mp4Writer
from pibert.report.comparison.drawn import blank
from pibert.report.forecast import Moment, Scale, StripWriter, moments
from tests.data.writers.helpers import BODY, SHAPE, block, description


def moment(prediction: float, truth: float) -> Moment:
    shape = torch.ones(2, 3)
    values = torch.tensor([[1.0, -1.0, 0.5], [0.5, 0.5, 0.5]])
    return Moment(prediction * values, truth * shape * values, 0.0, 1)


def test_prediction_and_truth_share_the_scale_of_the_truth() -> None:
    scale = Scale(description())
    scale.add(moment(50.0, 2.0))
    scale.add(moment(1.0, 3.0))
    low, high, _ = scale.limits("prediction")
    assert scale.limits("truth") == scale.limits("prediction")
    assert -low == high and 2.5 < high <= 3.0
    assert scale.limits("error")[1] == pytest.approx(48.0, rel=0.05)


def test_without_truth_the_first_prediction_gives_the_scale() -> None:
    scale = Scale(description())
    for size in (2.0, 1e6):
        scale.add(moment(size, float("nan")))
    assert scale.limits("prediction")[1] <= 2.0


def test_flows_show_vorticity_outside_the_body_and_the_error_is_signed() -> None:
    (shown,) = moments(block(0, 1, with_truth=True), description(), slice(None))
    # u grows by 10 over dy, v by 1 over dx; the truth lies 0.25 higher everywhere.
    assert float(shown.prediction[3, 5]) == pytest.approx(1 / 0.1 - 10 / 0.3, rel=1e-5)
    assert bool(shown.prediction[BODY].isnan().all())
    assert shown.layer("error").limit == pytest.approx(0.0, abs=1e-4)
    shifted = Moment(shown.prediction, shown.prediction + 1, 0.0, 1)
    assert shifted.layer("error").shown == pytest.approx(-1.0, abs=1e-5)


def test_a_strip_has_a_column_for_each_step_that_is_asked_for(tmp_path: Path) -> None:
    widths = []
    for name, numbers in (("two", [1, 9]), ("four", [1, 2, 3, 9])):
        path = tmp_path / f"{name}.png"
        with StripWriter(path, description(), expected=10, numbers=numbers) as writer:
            writer.append(block(0, 4, with_truth=True))
            writer.append(block(4, 10))
        with Image.open(path) as picture:
            widths.append(picture.width)
    assert widths[0] < widths[1]
    with pytest.raises(ValueError, match="steps to draw, \\[30\\], was predicted"):
        with StripWriter(tmp_path / "no.png", description(), expected=40, numbers=[30]) as writer:
            writer.append(block(0, 10))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["four.png", "two.png"]


class Opened(StripWriter):
    """Keeps the figure that it would write, and the numbers of its columns."""

    def _finish(self) -> None:
        self.columns = [moment.number for moment in self._kept]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forecast, "write_figure", lambda figure, path: None)
            patch.setattr(forecast, "blank", lambda *size: self._hold(blank(*size)))
            super()._finish()

    def _hold(self, figure: Figure) -> Figure:
        self.figure = figure
        return figure


def strip(tmp_path: Path, true: int, count: int, **options: Any) -> Opened:
    with Opened(tmp_path / "strip.png", description(), expected=count, **options) as writer:
        writer.append(block(0, true, with_truth=True))
        writer.append(block(true, count))
    return writer


def test_the_last_frame_with_truth_has_a_column_rather_than_one_without(tmp_path: Path) -> None:
    assert strip(tmp_path, 20, 21).columns == [1, 5, 9, 13, 17, 20]
    # Far beyond the truth only the first column without it gives way.
    assert strip(tmp_path, 8, 21).columns == [1, 5, 8, 13, 17, 21]
    assert strip(tmp_path, 8, 21, numbers=[1, 21]).columns == [1, 21]


def test_the_outer_panels_of_a_strip_have_coordinates(tmp_path: Path) -> None:
    figure = strip(tmp_path, 20, 21, numbers=[1, 9, 21]).figure
    figure.draw_without_rendering()
    panels = [ax for ax in figure.axes if ax.images]
    assert [ax.get_ylabel() for ax in panels[::3]] == [
        f"{row}\n\ny [m]" for row in ("truth", "prediction", "error")
    ]
    numbered = [bool(ax.xaxis.get_tick_params()["labelbottom"]) for ax in panels]
    # Below the last column there is no error: its numbers stand at the prediction.
    assert [n for n, ax in enumerate(panels) if numbered[n] and ax.axison] == [5, 6, 7]
    assert [ax.get_xlabel() for ax in panels if ax.get_xlabel()] == ["x [m]"] * 3
    # Where the recording has ended the panel says so, rather than being empty.
    said = {n: [text.get_text() for text in ax.texts] for n, ax in enumerate(panels) if ax.texts}
    assert said == {2: ["no truth"], 8: ["no truth"]}


def test_a_long_series_is_thinned_out_for_a_gif(tmp_path: Path) -> None:
    path = tmp_path / "flow.gif"
    with GifWriter(path, description(), expected=350) as writer:
        for start in range(0, 14, 7):
            writer.append(block(start, start + 7, with_truth=start < 7))
    assert writer.every == 4
    with Image.open(path) as film:
        assert film.format == "GIF" and film.n_frames == 4  # type: ignore[attr-defined]
    assert [entry.name for entry in tmp_path.iterdir()] == ["flow.gif"]


def test_a_film_of_few_frames_is_slow_enough_to_be_watched(tmp_path: Path) -> None:
    seconds = []
    for count in (6, 50):
        path = tmp_path / f"{count}.gif"
        with GifWriter(path, description(), expected=count) as writer:
            writer.append(block(0, count))
        with Image.open(path) as film:
            seconds.append(count * film.info["duration"] / 1000)
    assert seconds == pytest.approx([3.0, 50 / 12], rel=0.05)


def test_an_error_leaves_no_film(tmp_path: Path) -> None:
    with pytest.raises(KeyError), GifWriter(tmp_path / "a.gif", description(), expected=2) as film:
        film.append(block(0, 2))
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_without_ffmpeg_an_mp4_is_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"install it \(pip install .*film.*, or take .gif"):
        Mp4Writer(tmp_path / "a.mp4", description(), expected=2).check()


def test_an_mp4_is_a_film_of_all_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="needs the extra film")
    monkeypatch.setenv("PATH", str(tmp_path))  # not that of the system
    path = tmp_path / "flow.mp4"
    with Mp4Writer(path, description(), expected=6) as film:
        film.append(block(0, 4))
        film.append(block(4, 6))
    frames, seconds = ffmpeg.count_frames_and_secs(str(path))
    assert frames == 6 and seconds == pytest.approx(3.0, abs=0.1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["flow.mp4"]


def test_fields_without_a_velocity_show_their_first_channel() -> None:
    about = description()
    about = replace(about, spec=replace(about.spec, family="heat"))
    (shown,) = moments(block(0, 1), about, slice(None))
    assert shown.prediction.shape == SHAPE and float(shown.prediction[3, 5]) == 35.0
