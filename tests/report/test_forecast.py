"""Strips and moving pictures of predicted frames."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from pibert.report.forecast import GifWriter, Moment, Mp4Writer, Scale, moments
from tests.data.writers.helpers import BODY, block, description


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
    assert scale.limits("error")[1] == pytest.approx(2 * high)  # of 48: one rollout diverged
    exact = Scale(description())
    exact.add(moment(2.5, 2.0))
    assert exact.limits("error")[1] == pytest.approx(0.5, rel=0.05)


def test_flows_show_vorticity_outside_the_body_and_the_error_is_signed() -> None:
    (shown,) = moments(block(0, 1, with_truth=True), description(), slice(None))
    # u grows by 10 over dy, v by 1 over dx; the truth lies 0.25 higher everywhere.
    assert float(shown.prediction[3, 5]) == pytest.approx(1 / 0.1 - 10 / 0.3, rel=1e-5)
    assert bool(shown.prediction[BODY].isnan().all())
    assert shown.layer("error").limit == pytest.approx(0.0, abs=1e-4)
    shifted = Moment(shown.prediction, shown.prediction + 1, 0.0, 1)
    assert shifted.layer("error").shown == pytest.approx(-1.0, abs=1e-5)


def test_a_long_series_is_thinned_out_for_a_gif(tmp_path: Path) -> None:
    path = tmp_path / "flow.gif"
    with GifWriter(path, description(), expected=350) as writer:
        for start in range(0, 14, 7):
            writer.append(block(start, start + 7, with_truth=start < 7))
    assert writer.every == 4
    with Image.open(path) as film:
        assert film.format == "GIF" and film.n_frames == 4  # type: ignore[attr-defined]
    assert [entry.name for entry in tmp_path.iterdir()] == ["flow.gif"]


def test_without_ffmpeg_an_mp4_is_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"ffmpeg.*film.*\.gif"):
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
