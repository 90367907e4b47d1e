"""Errors frame by frame: quantiles, densities, frames without error or without energy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from pibert.evaluation.scores import Scores
from pibert.report.comparison.board import Board
from pibert.report.comparison.distribution import (
    density,
    error_distribution,
    frame_errors_of,
)
from tests.report.comparison.cut_board import make_board, many

ERRORS = torch.logspace(-3, 0, 40, dtype=torch.float64)


def board_with(*errors: Tensor | None, seeds: int = 1) -> Board:
    """Models with these errors, best first; a later seed has them ten times as large."""
    board = make_board(len(errors), seeds=seeds)
    found = {}
    for (model, seed), own in board.scores.items():
        error = errors[board.models.index(model)]
        arrays = dict(own.arrays)
        if error is not None:
            arrays["errors/prediction"] = error * 10**seed
        found[model, seed] = Scores(own.card, arrays)
    return replace(board, scores=found)


@pytest.mark.parametrize("count", [1, 3, 15])
def test_the_figure_can_be_drawn_with_a_violin_for_every_model(count: int) -> None:
    drawn = error_distribution(board_with(*[ERRORS * (1 + n) for n in range(count)]))
    assert drawn is not None
    drawn.figure.draw_without_rendering()
    (ax,) = drawn.figure.axes
    assert len(ax.collections) == count and ax.get_xscale() == "log"
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == [f"{n}. {model}" for n, model in enumerate(many(count), start=1)]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the best on top
    assert "wakes" in drawn.caption and "40" in drawn.caption


def test_lines_and_dot_are_the_quantiles_of_the_errors() -> None:
    errors = torch.tensor([0.4, 0.1, 0.3, 0.2, 0.5], dtype=torch.float64)
    drawn = error_distribution(board_with(ERRORS, errors))
    assert drawn is not None
    thin, thick, dot = drawn.figure.axes[0].lines[3:6]
    assert thin.get_xdata() == pytest.approx([0.12, 0.48])
    assert thick.get_xdata() == pytest.approx([0.2, 0.4])
    assert dot.get_xdata() == pytest.approx([0.3]) and dot.get_ydata() == pytest.approx([1])


def test_a_violin_ends_at_the_least_and_the_greatest_error() -> None:
    drawn = error_distribution(board_with(ERRORS, ERRORS / 7))
    assert drawn is not None
    for violin, scale in zip(drawn.figure.axes[0].collections, (1.0, 7.0), strict=True):
        (path,) = violin.get_paths()
        x, y = np.asarray(path.vertices).T
        assert (x.min(), x.max()) == pytest.approx((1e-3 / scale, 1 / scale))
        assert y.max() - y.min() == pytest.approx(0.8)


def test_the_density_of_normal_logarithms_is_normal() -> None:
    shares = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    logs = (-2 + 0.3 * math.sqrt(2) * torch.erfinv(2 * shares - 1)).numpy()
    x, found = density(logs, 401)
    expected = np.exp(-0.5 * ((x + 2) / 0.3) ** 2) / (0.3 * math.sqrt(2 * math.pi))
    # The Gaussians widen the peak: (h / s)^2 / 2 with h = 0.9 s n^(-1/5).
    assert np.abs(found - expected).max() < 0.01 * expected.max()
    assert found.mean() * (x[-1] - x[0]) == pytest.approx(1, abs=0.01)


def test_frames_of_all_seeds_count() -> None:
    board = board_with(ERRORS, ERRORS, seeds=2)
    found = frame_errors_of(board)[board.models[1]]
    assert np.allclose(found.errors, np.sort(np.concatenate((ERRORS, 10 * ERRORS))))
    drawn = error_distribution(board)
    assert drawn is not None and "2 seeds" in drawn.caption


def test_frames_without_energy_are_left_out_and_counted() -> None:
    errors = ERRORS.clone()
    errors[[3, 8]] = torch.nan
    board = board_with(errors)
    (found,) = frame_errors_of(board).values()
    assert found.silent == 2 and found.errors.size == 38 and np.isfinite(found.errors).all()
    drawn = error_distribution(board)
    assert drawn is not None and "2 of them are zero everywhere" in drawn.caption


def test_frames_without_error_have_no_logarithm_but_count_in_the_quantiles() -> None:
    still = ERRORS.clone()
    still[:30] = 0.0
    drawn = error_distribution(board_with(ERRORS, still))
    assert drawn is not None
    drawn.figure.draw_without_rendering()
    (ax,) = drawn.figure.axes
    assert [text.get_text() for text in ax.texts] == ["75% without error"]
    assert ax.lines[5].get_xdata() == pytest.approx([ax.get_xlim()[0]])  # the median is zero


def test_nothing_is_drawn_where_no_errors_are_known() -> None:
    assert error_distribution(board_with(None, None)) is None
    assert error_distribution(board_with(torch.zeros(5, dtype=torch.float64))) is None
    nothing = torch.full((5,), torch.nan, dtype=torch.float64)
    assert error_distribution(board_with(nothing)) is None


def test_a_single_frame_has_a_shape() -> None:
    drawn = error_distribution(board_with(ERRORS[5:6], ERRORS))
    assert drawn is not None
    drawn.figure.draw_without_rendering()
