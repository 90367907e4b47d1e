import numpy as np
import pytest

from pibert.report.comparison.tokens import tokens
from tests.report.comparison.invented_board import axes_of, invented, once, without


def panel(drawn, word):
    return next(ax for ax in axes_of(drawn) if word in ax.get_title(loc="left"))


@pytest.mark.parametrize("count", [3, 15])
def test_all_diagnostics_have_a_panel(count):
    drawn = once(tokens, count)
    titles = [ax.get_title(loc="left") for ax in axes_of(drawn) if ax.images]
    assert [title.split("  ")[0] for title in titles] == list("abcdef")
    assert "6 × 10 + 1 tokens" in titles[0]
    assert "0.50 Fourier" in drawn.caption and "three, frame 21" in drawn.caption


def test_the_gain_is_the_difference_of_relative_errors_over_the_points_of_a_token():
    board = invented(3)
    drawn = once(tokens, len(board.models))
    shown = panel(drawn, "gain over unet").images[0].get_array()
    own, rival = (board.first(name).arrays["picks/prediction"][1] for name in ("pibert", "unet"))
    truth = board.reference.arrays["picks/truth"][1]
    patch = (slice(None), slice(8, 12), slice(20, 24))
    errors = [(field[patch] - truth[patch]).norm() / truth[patch].norm() for field in (rival, own)]
    expected = float(errors[0] - errors[1])
    assert np.allclose(shown[8:12, 20:24], expected, rtol=1e-5)
    low, high = panel(drawn, "gain").images[0].get_clim()
    assert low == -high


def test_the_residual_of_the_picked_frame_is_drawn_patch_by_patch():
    board = invented(3)
    drawn = once(tokens, len(board.models))
    residual = board.first("pibert").arrays["tokens/residual"][1].numpy()
    shown = panel(drawn, "Residual").images[0].get_array()
    assert np.allclose(shown[::4, ::4], residual)


def test_the_marked_token_is_the_query():
    board = invented(3)
    drawn = once(tokens, len(board.models))
    row, column = board.first("pibert").arrays["tokens/query"][1].tolist()
    grid = board.spec.grid
    x, y = (float(part[4 * row, 4 * column]) for part in grid.coordinates())
    mark = panel(drawn, "marked").lines[0]
    assert mark.get_xdata()[0] == pytest.approx(x + 1.5 * grid.dx, abs=1e-5)
    assert mark.get_ydata()[0] == pytest.approx(y + 1.5 * grid.dy, abs=1e-5)


def test_what_the_scores_lack_is_left_out():
    drawn = tokens(without(invented(3), "tokens/residual", "tokens/fourier"))
    assert drawn is not None
    titles = [ax.get_title(loc="left") for ax in axes_of(drawn) if ax.images]
    assert len(titles) == 4 and not any("Fourier" in title for title in titles)
    assert tokens(without(invented(3), "tokens/")) is None
