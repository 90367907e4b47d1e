import pytest
from matplotlib.text import Text

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


@pytest.mark.parametrize("count", [15, 25])
def test_names_cover_neither_each_other_nor_a_point(count):
    drawn = once(cost, count)
    drawn.figure.draw_without_rendering()
    assert [overlapping(ax) for ax in axes_of(drawn)] == [[]] * 4
    for ax in axes_of(drawn):
        points = [line for line in ax.lines if line.get_marker() != "None"]
        assert len(points) == len(ax.texts)
        for point in points:
            place = ax.transData.transform(point.get_xydata()[0])
            covering = [t for t in ax.texts if Text.get_window_extent(t).contains(*place)]
            assert covering == []


def test_no_two_of_25_models_look_alike():
    board = invented(25)
    assert len(set(board.models)) == 25
    assert len({board.colour(model) for model in board.models}) == 25
    looks = {
        (line.get_marker(), line.get_markerfacecolor(), line.get_markeredgecolor())
        for line in axes_of(once(cost, 25))[0].lines
        if line.get_marker() != "None"
    }
    assert len(looks) == 25
    # However many there are, a colour and a mark come together once.
    many = Board("x", {"data": {"x": {"ranking": [{"model": f"m{n}"} for n in range(77)]}}}, {})
    assert len({(many.colour(model), many.mark(model)) for model in many.models}) == 77


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


def test_training_times_of_shared_devices_are_upper_bounds_without_a_best_choice():
    board = invented(3)
    scores = {
        key: Scores(own.card | {"at_a_time": 4}, own.arrays) for key, own in board.scores.items()
    }
    runs = [run | {"at_a_time": 4} for run in board.results["runs"]]
    drawn = cost(Board(board.name, {**board.results, "runs": runs}, scores))
    assert drawn is not None and "Up to 4 runs at a time shared a device" in drawn.caption
    one, _, training, _ = axes_of(drawn)
    assert training.get_xlabel() == (
        "training time [s], upper bound: up to 4 runs shared the device"
    )
    fronts = [sum("steps" in line.get_drawstyle() for line in ax.lines) for ax in (one, training)]
    assert fronts == [1, 0]


def test_without_errors_there_is_no_figure():
    board = invented(3)
    assert cost(Board(board.name, {**board.results, "records": []}, board.scores)) is None
