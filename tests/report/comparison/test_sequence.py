import pytest

from pibert.report.comparison.board import Board
from pibert.report.comparison.sequence import BANDS, SINGLE, sequence_metrics
from tests.report.comparison.invented_board import axes_of, invented


def measured(count, metrics):
    """A board whose models have these metrics, 0.001 times their rank."""
    board = invented(count)
    records = [
        {
            "data": "wake",
            "model": model,
            "seed": 0,
            "space": "physical",
            "metric": metric,
            "component": "u,v",
            "value": 0.001 * (place + 1),
            "unit": "m/s",
        }
        for place, model in enumerate(board.models)
        for metric in metrics
    ]
    return Board(board.name, {**board.results, "records": records}, board.scores)


@pytest.mark.parametrize("count", [3, 15])
def test_bars_reach_the_values_in_the_order_of_the_ranking(count):
    board = measured(count, [*SINGLE.values(), *BANDS.values()])
    drawn = sequence_metrics(board)
    assert drawn is not None
    axes = axes_of(drawn)
    assert len(axes) == 4
    assert [label.get_text() for label in axes[0].get_yticklabels()] == list(board.models)
    for ax in axes[:3]:
        ends = [bar.get_x() + bar.get_width() for bar in ax.patches]
        assert ends == pytest.approx([0.001 * n for n in range(1, count + 1)])
        assert ax.get_xscale() == "log"
    assert "pibert leads" in drawn.alt


def test_only_what_was_measured_has_a_panel():
    drawn = sequence_metrics(measured(3, ["official_ke"]))
    assert drawn is not None
    assert [ax.get_title(loc="left") for ax in axes_of(drawn)] == ["a  KE"]


def test_without_sequence_metrics_there_is_no_figure():
    assert sequence_metrics(invented(3)) is None
