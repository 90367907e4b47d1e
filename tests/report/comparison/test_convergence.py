from dataclasses import replace

import pytest

from pibert.evaluation.scores import Scores
from pibert.report.comparison.board import Board
from pibert.report.comparison.convergence import convergence
from tests.report.comparison.invented_board import axes_of, invented, once


def curves(ax):
    """Lines of several points that are no marks."""
    return [line for line in ax.lines if len(line.get_xdata()) > 2]


def test_every_trained_model_has_a_curve_and_a_name():
    for count, trained in ((3, 2), (15, 10)):
        drawn = once(convergence, count)
        ax = axes_of(drawn)[0]
        assert len(curves(ax)) == trained
        names = {text.get_text() for text in ax.texts}
        assert {"pibert", "unet"} <= names and "persistence" not in names
        assert ax.get_yscale() == "log"
        assert "wake" in drawn.caption and f"{trained} models" in drawn.alt


def test_all_models_end_at_the_budget_and_pretraining_takes_its_share_of_it():
    drawn = once(convergence, 3)
    by_colour = {line.get_color(): line for line in curves(axes_of(drawn)[0])}
    pibert, unet = (by_colour[invented(3).colour(name)] for name in ("pibert", "unet"))
    assert pibert.get_xdata()[-1] == unet.get_xdata()[-1] == 5000
    assert unet.get_xdata()[0] == pytest.approx(5000 * 2 / 20)
    assert pibert.get_xdata()[0] == pytest.approx(5000 * (5 + 2) / 25)
    assert pibert.get_ydata()[0] == pytest.approx(0.1 / 2**0.8)


def test_a_run_with_a_budget_of_its_own_ends_there():
    board = invented(3)
    card = board.scores["unet", 0].card
    stage = card["training"]["training"] | {"samples": 1200}
    own = Scores(card | {"training": {"training": stage}}, board.scores["unet", 0].arrays)
    drawn = convergence(replace(board, scores={**board.scores, ("unet", 0): own}))
    by_colour = {line.get_color(): line for line in curves(axes_of(drawn)[0])}
    assert by_colour[board.colour("unet")].get_xdata()[-1] == 1200
    assert by_colour[board.colour("pibert")].get_xdata()[-1] == 5000


def test_a_ring_marks_the_epoch_that_was_chosen():
    drawn = once(convergence, 3)
    rings = [line for line in axes_of(drawn)[0].lines if line.get_marker() == "o"]
    assert sorted(line.get_xdata()[0] for line in rings) == pytest.approx([4500, 4600])


def test_without_training_there_is_no_figure():
    board = invented(3)
    bare = {
        key: Scores(own.card | {"training": {}}, own.arrays) for key, own in board.scores.items()
    }
    assert convergence(Board(board.name, board.results, bare)) is None
