"""Bars: heights and whiskers are the records, models stand by rank, gaps where nothing is known."""

from dataclasses import replace
from typing import Any

import pytest
from matplotlib.colors import to_rgba

from pibert.report.comparison import bars
from pibert.report.comparison.bars import Group, bar_of
from pibert.report.comparison.board import Board
from tests.report.comparison.cut_board import drawn_once, make_board, many


def panel(figure, title: str) -> Any:
    return next(ax for ax in figure.axes if title in ax.get_title(loc="left"))


def with_records(board: Board, keep) -> Board:
    results = {**board.results, "records": [r for r in board.records if keep(r)]}
    return replace(board, results=results)


@pytest.mark.parametrize("count", [3, 15])
@pytest.mark.parametrize("draw", bars.FIGURES)
def test_every_figure_can_be_drawn(draw, count: int) -> None:
    drawn = drawn_once(draw, count)
    if count == 15:  # arranging panels takes its time
        drawn.figure.draw_without_rendering()
    assert "wakes" in drawn.caption and "20 test frames" in drawn.caption
    assert "95 %" in drawn.caption


def test_heights_are_the_values_and_models_stand_by_rank() -> None:
    drawn = drawn_once(bars.metrics, 15)
    ax = panel(drawn.figure, "NMSE")
    heights = [patch.get_height() for patch in ax.patches]
    # Four groups (u, v, |u|, all) of ten models.
    assert heights == pytest.approx([0.01 * n for n in range(1, 11)] * 4)
    places = [patch.get_x() for patch in ax.patches]
    assert places == sorted(places)
    (legend,) = drawn.figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == [f"{n}. {m}" for n, m in enumerate(many(10), start=1)]


def test_bars_have_the_colour_of_their_model() -> None:
    board, drawn = make_board(3), drawn_once(bars.metrics, 3)
    first = panel(drawn.figure, "LMAE").patches[:3]
    assert [p.get_facecolor() for p in first] == [to_rgba(board.colour(m)) for m in board.models]


def test_whiskers_run_over_the_intervals_of_all_seeds() -> None:
    board = make_board(2, seeds=3)
    bar = bar_of(board, "unet", Group("all", "nmse"))
    assert bar is not None
    # Values 0.010, 0.011, 0.012; each interval is a tenth to both sides.
    assert bar.value == pytest.approx(0.011)
    assert bar.low == pytest.approx(0.009) and bar.high == pytest.approx(0.0132)


def test_without_intervals_there_are_no_whiskers_and_no_word_of_them() -> None:
    drawn = bars.metrics(make_board(3, intervals=False))
    assert drawn is not None
    assert not any(ax.lines for ax in drawn.figure.axes)
    assert "hiskers" not in drawn.caption


def test_many_models_leave_pibert_and_persistence_in() -> None:
    names = (*(f"model-{n}" for n in range(12)), "pibert", "unet", "persistence")
    drawn = bars.metrics(make_board(names=names))
    assert drawn is not None
    texts = [text.get_text() for text in drawn.figure.legends[0].get_texts()]
    assert len(texts) == bars.MOST
    assert texts[-3:] == ["13. pibert", "14. unet", "15. persistence"]


def test_a_share_below_zero_is_written_down() -> None:
    board = make_board(2)
    record = next(
        r
        for r in board.records
        if (r["model"], r["metric"], r["component"]) == ("pibert", "r2", "v")
    )
    record["value"], record["low"] = -3.5, -4.0  # type: ignore[index]
    drawn = bars.metrics(board)
    assert drawn is not None
    ax = panel(drawn.figure, "R")
    assert ax.get_ylim()[0] == 0
    assert [text.get_text() for text in ax.texts] == ["\N{MINUS SIGN}3.5"]


def test_scales_show_every_group_from_coarse_to_fine() -> None:
    drawn = drawn_once(bars.scales, 3)
    labels = {
        ax.get_title(loc="left")[:3]: [t.get_text() for t in ax.get_xticklabels()]
        for ax in drawn.figure.axes
    }
    assert labels == {
        "(a)": ["coarse", "intermediate", "fine"],
        "(b)": ["k = 1", "k = 2", "k = 4", "k = 8"],
        "(c)": ["low", "mid", "high"],
        "(d)": ["low", "mid", "high"],
    }


def test_panels_without_records_are_left_out_and_nothing_is_drawn_without_any() -> None:
    board = make_board(3)
    few = bars.scales(with_records(board, lambda r: r["metric"] == "band_nmse"))
    assert few is not None
    assert [ax.get_title(loc="left") for ax in few.figure.axes] == [
        "(a) bands of wave numbers, NMSE"
    ]
    empty = with_records(board, lambda r: False)
    assert bars.metrics(empty) is None and bars.scales(empty) is None


def test_a_model_without_a_value_leaves_its_place_empty() -> None:
    board = make_board(3)
    gap = with_records(board, lambda r: (r["model"], r["metric"]) != ("pibert", "nmse"))
    drawn = bars.metrics(gap)
    assert drawn is not None
    patches = panel(drawn.figure, "NMSE").patches[:2]
    assert [p.get_height() for p in patches] == pytest.approx([0.01, 0.03])
    # The third model keeps its place: the middle one is free.
    assert patches[1].get_x() - patches[0].get_x() > 1.9 * patches[0].get_width()
