import numpy as np
import pytest

from pibert.evaluation.spectra import Spectra, wave_numbers
from pibert.report.comparison.spectra import TERMS, spectra
from tests.report.comparison.invented_board import axes_of, invented, once, without


def line_of(ax, colour):
    return next(line for line in ax.lines if line.get_color() == colour)


@pytest.mark.parametrize("count", [3, 15])
def test_energy_and_error_are_those_of_the_terms(count):
    board = invented(count)
    drawn = once(spectra, len(board.models))
    energy, error = axes_of(drawn)
    expected = Spectra(spec=board.spec).curves(board.first("unet").arrays[TERMS].sum(0))
    colour = board.colour("unet")
    assert np.allclose(line_of(energy, colour).get_xdata(), wave_numbers(board.spec.grid))
    assert np.allclose(line_of(energy, colour).get_ydata(), expected["prediction"])
    ratio = expected["error"] / expected["truth"]
    assert np.allclose(line_of(error, colour).get_ydata(), ratio)
    assert {ax.get_xscale() for ax in (energy, error)} == {"log"}
    words = {text.get_text() for text in error.texts}
    assert {"low", "mid", "high", *board.shown(9)} == words
    assert "rad/m" in energy.get_xlabel() and "(m/s)²" in energy.get_ylabel()
    assert ("6 further models" in drawn.caption) == (count == 15)


def test_the_middle_third_of_the_wave_numbers_is_shaded():
    board = invented(3)
    drawn = once(spectra, len(board.models))
    k = wave_numbers(board.spec.grid).numpy()
    shade = axes_of(drawn)[0].patches[0]
    left, right = shade.get_x(), shade.get_x() + shade.get_width()
    inside = (k > left) & (k < right)
    third = len(k) / 3
    assert inside.sum() == int(2 * third + 1e-9) - int(third + 1e-9)


def test_without_spectra_there_is_no_figure():
    assert spectra(without(invented(3), TERMS)) is None
