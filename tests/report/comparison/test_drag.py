"""The drag proxy: courses by trajectory, errors by model, nothing where there is no body."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from pibert.evaluation.scores import Scores
from pibert.report.comparison.board import COLOURS, Board
from pibert.report.comparison.drag import FRAMES, courses, drag
from tests.report.comparison.cut_board import drawn_once, make_board, many

Arrays = dict[str, Tensor]


def changed(board: Board, change: Callable[[Arrays], Arrays]) -> Board:
    found = {key: Scores(s.card, change(dict(s.arrays))) for key, s in board.scores.items()}
    return replace(board, scores=found)


def boxes(figure):
    return next(ax for ax in figure.axes if ax.get_title(loc="left").startswith("absolute"))


@pytest.mark.parametrize("count", [1, 3, 15])
def test_the_figure_can_be_drawn(count: int) -> None:
    drawn = drawn_once(drag, count)
    drawn.figure.draw_without_rendering()
    assert "wakes" in drawn.caption and "without a unit" in drawn.caption


def test_courses_are_those_of_the_trajectories_in_the_order_of_frames() -> None:
    drawn = drawn_once(drag, 3)
    first, second = (ax for ax in drawn.figure.axes if "Re" in ax.get_title(loc="left"))
    assert first.get_title(loc="left") == "a, Re = 50"
    assert second.get_title(loc="left") == "c, Re = 150"
    line = next(own for own in second.lines if own.get_color() == COLOURS["truth"])
    assert np.allclose(line.get_xdata(), np.arange(5, 15))
    assert np.allclose(line.get_ydata(), np.linspace(0.1, 0.3, 20)[10:])
    assert first.get_ylim() == second.get_ylim()


def test_boxes_stand_by_rank_and_hold_the_quartiles_of_the_absolute_error() -> None:
    drawn = drawn_once(drag, 15)
    ax = boxes(drawn.figure)
    assert [t.get_text() for t in ax.get_yticklabels()] == [
        f"{n}. {model}" for n, model in enumerate(many(15), start=1)
    ]
    low, high = ax.get_ylim()
    assert low > high  # the best on top
    off = 0.002 * 2 * np.abs(np.cos(np.arange(20.0)))
    second = ax.patches[1]
    left, right = np.quantile(off, (0.25, 0.75))
    assert second.get_x() == pytest.approx(left, rel=1e-5)
    assert second.get_x() + second.get_width() == pytest.approx(right, rel=1e-5)


def test_frames_that_tell_nothing_are_left_out() -> None:
    def spoil(arrays: Arrays) -> Arrays:
        for name in ("drag/truth", "drag/prediction"):
            arrays[name] = arrays[name].clone()
            arrays[name][3] = torch.nan
        return arrays

    drawn = drag(changed(make_board(3), spoil))
    assert drawn is not None
    drawn.figure.draw_without_rendering()
    off = np.delete(0.002 * np.abs(np.cos(np.arange(20.0))), 3)
    assert boxes(drawn.figure).patches[0].get_x() == pytest.approx(np.quantile(off, 0.25), rel=1e-5)


def test_a_model_without_error_does_not_need_a_logarithm() -> None:
    def perfect(arrays: Arrays) -> Arrays:
        return arrays | {"drag/prediction": arrays["drag/truth"].clone()}

    drawn = drag(changed(make_board(1), perfect))
    assert drawn is not None
    drawn.figure.draw_without_rendering()
    assert boxes(drawn.figure).get_xscale() == "linear"


def test_no_line_crosses_a_gap_in_time() -> None:
    def skip(arrays: Arrays) -> Arrays:
        frames = arrays["rows/frame"].clone()
        frames[4:10] += 7
        return arrays | {"rows/frame": frames}

    drawn = drag(changed(make_board(2), skip))
    assert drawn is not None
    line = drawn.figure.axes[0].lines[0]
    assert np.isnan(np.asarray(line.get_ydata(), float)[4])
    assert len(np.asarray(line.get_xdata())) == 11


def test_frames_in_pairs_make_a_line() -> None:
    def pair(arrays: Arrays) -> Arrays:
        return arrays | {"rows/frame": 2 * arrays["rows/frame"] + 1}

    drawn = drag(changed(make_board(2), pair))
    assert drawn is not None
    line = drawn.figure.axes[0].lines[0]
    assert np.isfinite(np.asarray(line.get_ydata(), float)).all()
    assert set(np.diff(np.asarray(line.get_xdata()))) == {2}


def test_of_many_long_trajectories_a_few_are_shown_from_first_to_last() -> None:
    count = 3 * FRAMES

    def lengthen(arrays: Arrays) -> Arrays:
        homes = torch.arange(3).repeat_interleave(FRAMES + 10)
        frames = torch.arange(FRAMES + 10).repeat(3)
        return arrays | {"rows/trajectory": homes, "rows/frame": frames}

    found = courses(changed(make_board(1), lengthen), count + 30)
    assert [course.name for course in found] == ["a, Re = 50", "b, Re = 100", "c, Re = 150"]
    assert [len(course.rows) for course in found] == [FRAMES] * 3
    assert found[1].rows[0] == FRAMES + 10


def test_frames_without_a_home_are_counted_through() -> None:
    (course,) = courses(make_board(1), 12)
    assert course.name == "test frames with a body" and len(course.rows) == 12


def test_nothing_is_drawn_without_a_proxy() -> None:
    def drop(arrays: Arrays) -> Arrays:
        return {name: a for name, a in arrays.items() if not name.startswith("drag/")}

    def blind(arrays: Arrays) -> Arrays:
        return arrays | {"drag/truth": torch.full((20,), torch.nan, dtype=torch.float64)}

    assert drag(changed(make_board(3), drop)) is None
    assert drag(changed(make_board(3), blind)) is None
