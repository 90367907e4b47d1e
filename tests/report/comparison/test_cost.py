import pytest

from pibert.evaluation.scores import Scores
from pibert.report.comparison.board import UNTRAINED, Board
from pibert.report.comparison.cost import cost
from tests.report.comparison.invented_board import axes_of, invented, once, overlapping


def names(ax):
    return {text.get_text() for text in ax.texts}


def test_panels_name_the_models_that_have_such_a_cost():
    board = invented(15)
    drawn = once(cost, len(board.models))
    one, many, training, size = axes_of(drawn)
    assert names(one) == names(many) == set(board.models)
    assert names(training) == names(size) == set(board.models) - set(UNTRAINED)
    assert "a machine" in drawn.caption


def test_points_stand_at_cost_and_error():
    board = invented(3)
    drawn = once(cost, len(board.models))
    for ax, expected in zip(axes_of(drawn), (3.0, 0.2, 60.0, 20_000.0), strict=True):
        points = [line for line in ax.lines if line.get_markerfacecolor() == board.colour("unet")]
        assert points[0].get_xdata()[0] == pytest.approx(expected)
        assert points[0].get_ydata()[0] == pytest.approx(board.value("unet", "nmse"))
    assert "pibert has the lowest error" in drawn.alt


def test_names_do_not_overlap_among_fifteen_models():
    drawn = once(cost, 15)
    drawn.figure.draw_without_rendering()
    assert [overlapping(ax) for ax in axes_of(drawn)] == [[]] * 4


def test_the_line_of_best_choices_falls_with_the_cost():
    board = invented(3)
    costs = {"pibert": 5.0, "unet": 2.0, "persistence": 1.0}
    scores = {
        key: Scores(
            own.card | {"cost": {"batches": [{"batch": 1, "ms_per_sample": costs[key[0]]}]}},
            own.arrays,
        )
        for key, own in board.scores.items()
    }
    drawn = cost(Board(board.name, board.results, scores))
    assert drawn is not None
    front = axes_of(drawn)[0].lines[0]
    assert list(front.get_xdata())[:3] == [1.0, 2.0, 5.0]
    errors = [board.value(name, "nmse") for name in ("persistence", "unet", "pibert")]
    assert list(front.get_ydata())[:3] == errors


def test_without_errors_there_is_no_figure():
    board = invented(3)
    assert cost(Board(board.name, {**board.results, "records": []}, board.scores)) is None
