import numpy as np
import pytest

from pibert.report.comparison.rollout import rollout, stable_horizon
from tests.report.comparison.invented_board import axes_of, invented, once, without


@pytest.mark.parametrize("count", [3, 15])
def test_curves_are_those_of_all_components(count):
    board = invented(count)
    drawn = once(rollout, len(board.models))
    error, skill, correlation = axes_of(drawn)
    lead = np.arange(1, 13)
    for ax, expected in (
        (error, 0.004 * lead**1.5),
        (skill, 1 - 0.016 * lead**1.5),
        (correlation, np.exp(-0.004 * lead**1.5)),
    ):
        line = next(one for one in ax.lines if one.get_color() == board.colour("unet"))
        assert np.allclose(line.get_ydata(), expected)
    assert {text.get_text() for text in correlation.texts} == set(board.shown(9))
    assert "4 rollouts" in drawn.caption and "0.25 s" in drawn.caption


def test_a_cross_marks_the_last_frame_before_rollouts_diverge():
    still = rollout(invented(3))
    assert still is not None and "diverged" not in still.caption
    drawn = once(rollout, 15)
    assert "fno2d diverged" in drawn.caption
    for ax in axes_of(drawn):
        crosses = [line for line in ax.lines if line.get_marker() == "x"]
        assert [list(line.get_xdata()) for line in crosses] == [[7]]


def test_bars_show_all_models_the_most_stable_on_top():
    for count in (3, 15):
        board = invented(count)
        drawn = once(stable_horizon, len(board.models))
        ax = axes_of(drawn)[0]
        lengths = [bar.get_width() for bar in ax.patches]
        assert len(lengths) == count and lengths == sorted(lengths, reverse=True)
        words = [text.get_text() for text in ax.texts]
        assert "100% to the end" in words[0]
        assert any("diverged" in word for word in words) == (count == 15)
        assert "3.5 frames" in drawn.caption and "is that of pibert" in drawn.alt


def test_without_rollouts_there_are_no_figures():
    board = without(invented(3), "rollout/")
    assert rollout(board) is None and stable_horizon(board) is None
