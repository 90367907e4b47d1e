import numpy as np
import pytest

from pibert.evaluation.temporal import power_density
from pibert.report.comparison.time import power_spectra, probe_traces
from tests.report.comparison.invented_board import FRAMES, axes_of, invented, once, without


@pytest.mark.parametrize("count", [3, 15])
def test_series_are_in_true_time_with_the_errors_beside_them(count):
    board = invented(count)
    drawn = once(probe_traces, len(board.models))
    axes = [ax for ax in axes_of(drawn) if ax.get_title(loc="left").startswith("P1")]
    series, error = axes
    arrays = board.first("unet").arrays
    truth, own = (arrays[f"probes/{name}"][:, 0, 1].numpy() for name in ("truth", "prediction"))
    colour = board.colour("unet")
    lines = [
        next(line for line in ax.lines if line.get_color() == colour) for ax in (series, error)
    ]
    assert np.allclose(lines[0].get_xdata(), 0.25 * np.arange(1, FRAMES + 1))
    assert np.allclose(lines[0].get_ydata(), own)
    assert np.allclose(lines[1].get_ydata(), own - truth)
    assert series.get_ylabel() == "v [m/s]"
    assert "three (Re = 150)" in drawn.caption


def test_four_probes_are_marked_where_they_are():
    board = invented(3)
    drawn = once(probe_traces, len(board.models))
    flow = axes_of(drawn)[0]
    x, y = board.spec.grid.coordinates()
    places = board.reference.arrays["probes/places"]
    known = {(round(float(x[r, c]), 4), round(float(y[r, c]), 4)) for r, c in places}
    dots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in flow.lines]
    assert len(dots) == len(set(dots)) == 4
    assert {(round(a, 4), round(b, 4)) for a, b in dots} <= known
    assert [text.get_text() for text in flow.texts] == ["P1", "P2", "P3", "P4"]


@pytest.mark.parametrize("count", [3, 15])
def test_power_spectra_are_means_over_the_probes_with_the_ratios_beside_them(count):
    board = invented(count)
    drawn = once(power_spectra, len(board.models))
    left, table = axes_of(drawn)
    series = board.first("unet").arrays["probes/prediction"][..., 1]
    frequency, power = power_density(series, 0.25)
    line = next(one for one in left.lines if one.get_color() == board.colour("unet"))
    assert np.allclose(line.get_xdata(), frequency[1:])
    assert np.allclose(line.get_ydata(), power.mean(1)[1:])
    assert left.get_xlabel() == "frequency f [1/s]"
    words = [text.get_text() for text in table.texts]
    assert set(board.models) <= set(words)
    assert f"{board.value('unet', 'psd_ratio_mid'):.3f}" in words


def test_without_probes_there_are_no_figures():
    board = without(invented(3), "probes/")
    assert probe_traces(board) is None and power_spectra(board) is None
