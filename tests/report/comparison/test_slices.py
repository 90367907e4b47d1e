"""Cross-sections: lines are where the measures put them, and show the values there."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pibert.evaluation.scores import Scores
from pibert.report.comparison import cuts, slices
from pibert.report.comparison.board import COLOURS, Board
from pibert.report.comparison.picked import pick
from tests.report.comparison.cut_board import drawn_once, make_board, spec, truth


def titled(figure, start: str):
    return next(ax for ax in figure.axes if ax.get_title(loc="left").startswith(start))


def changed(board: Board, known: torch.Tensor | None, has_body: bool) -> Board:
    """With other unknown points; None: without picked frames."""
    found = {}
    for key, own in board.scores.items():
        arrays = {n: a for n, a in own.arrays.items() if not n.startswith("picks/")}
        if known is not None:
            arrays = {**own.arrays, "picks/known": known.expand(3, -1, -1)}
        data = {**own.card["data"], "has_body": has_body}
        found[key] = Scores({**own.card, "data": data}, arrays)
    return replace(board, scores=found)


def cut_of(board: Board) -> cuts.Places:
    picked = pick(board, "median")
    assert picked is not None
    return cuts.places(board, picked)


@pytest.mark.parametrize("count", [3, 15])
@pytest.mark.parametrize("draw", slices.FIGURES)
def test_every_figure_can_be_drawn(draw, count: int) -> None:
    drawn = drawn_once(draw, count)
    if count == 15:  # arranging panels takes its time
        drawn.figure.draw_without_rendering()
    assert "wakes" in drawn.caption and "frames picked by a coin" in drawn.caption


@pytest.mark.parametrize("draw", slices.FIGURES)
def test_one_model_of_fields_that_are_no_flow_is_enough(draw) -> None:
    drawn = draw(make_board(names=("dmd",), own=spec(body=False, family="diffusion")))
    assert drawn is not None and "|u|" not in drawn.caption


def test_columns_are_tied_to_the_body() -> None:
    found = cut_of(make_board())
    # D = 0.8 = 8 columns, centre 7.5: 7.5 + 6 = 13.5, 7.5 + 16, 7.5 + 32; half-way is the next.
    assert [s.column for s in found.slices] == [14, 24, 40]
    assert [s.label for s in found.slices] == ["near body", "wake core", "far wake"]
    assert (found.row, found.first) == (7, 10)


def test_without_a_body_the_columns_are_the_papers() -> None:
    found = cut_of(make_board(own=spec(body=False)))
    assert [s.column for s in found.slices] == [11 * 48 // 64, 24, 52 * 48 // 64]
    # Called as in the tables, whatever the grid.
    assert [s.label for s in found.slices] == ["column 11", "column 32", "column 52"]
    assert (found.row, found.first, found.line) == (8, 0, "middle row")


def test_a_body_that_moves_is_where_points_are_unknown_inside_the_view() -> None:
    board = make_board(own=spec(body=False))
    known = ~spec().grid.body  # type: ignore[operator]
    assert cut_of(changed(board, known, has_body=True)) == cut_of(make_board())
    # Unknown points at the border may be anything.
    known[0, 0] = False
    assert cut_of(changed(board, known, has_body=True)).line == "middle row"
    assert cut_of(changed(board, ~spec().grid.body, has_body=False)).line == "middle row"  # type: ignore[operator]


def test_profiles_hold_the_values_of_their_column_against_y() -> None:
    drawn = drawn_once(slices.multiscale, 3)
    ax = titled(drawn.figure, "(c) near body, x = 0.7 m")
    u, v = truth(spec())[1].float().double()
    speed = torch.hypot(u, v)[:, 14].numpy()
    line = next(own for own in ax.lines if own.get_color() == COLOURS["truth"])
    assert np.allclose(line.get_xdata(), speed)
    assert np.allclose(line.get_ydata(), -1.2 + 0.2 * np.arange(16))
    assert ax.get_xlabel() == "|u| [m/s]"


def test_the_wake_line_starts_behind_the_body_and_breaks_where_nothing_is_defined() -> None:
    drawn = drawn_once(slices.multiscale, 3)
    u = truth(spec())[1, 0].float().double()
    line = titled(drawn.figure, "(f) u").lines[0]
    assert np.allclose(line.get_xdata(), -0.7 + 0.1 * np.arange(10, 48))
    assert np.allclose(line.get_ydata(), u[7, 10:].numpy())
    spin = titled(drawn.figure, "(g) vorticity").lines[0].get_ydata()
    # The stencil of the first point behind the body touches it.
    assert np.isnan(spin[0]) and np.isfinite(spin[1:]).all()


def test_bars_of_the_slices_are_the_records_of_the_speed() -> None:
    drawn = drawn_once(slices.multiscale, 3)
    ax = titled(drawn.figure, "(b)")
    assert [p.get_height() for p in ax.patches] == pytest.approx([0.01, 0.02, 0.03] * 3)


def test_lines_are_few_and_by_rank_with_pibert_its_rival_and_persistence() -> None:
    names = (*(f"model-{n}" for n in range(12)), "persistence", "pibert")
    found = cuts.drawn_models(make_board(names=names))
    assert found == ["model-0", "model-1", "persistence", "pibert"]
    assert cuts.drawn_models(make_board(names=("dmd",))) == ["dmd"]


def test_wider_lines_lie_below_thinner_ones() -> None:
    board = make_board(4)
    styles = [cuts.styles(board, name) for name in ("truth", "pibert", "unet")]
    assert [s["lw"] for s in styles] == sorted((s["lw"] for s in styles), reverse=True)
    assert [s["zorder"] for s in styles] == sorted(s["zorder"] for s in styles)


def test_maps_of_a_frame_share_the_scale_of_its_truth() -> None:
    drawn = drawn_once(slices.cross_sections, 15)
    shown: list[Any] = [image for ax in drawn.figure.axes for image in ax.images]
    shown = [image for image in shown if image.get_array().shape == (16, 48)]
    assert len(shown) == 9
    for place in range(3):
        three = shown[3 * place : 3 * place + 3]
        values = three[0].get_array()
        assert {i.get_clim() for i in three} == {(values.min(), values.max())}
        assert all(i.get_array().mask[6, 7] and i.get_array().mask[0, 0] for i in three)


def test_cross_sections_name_every_frame_and_both_models() -> None:
    drawn = drawn_once(slices.cross_sections, 15)
    for words in ("easy: a, frame 3", "median: c, frame 8", "hard: c, frame 14", "pibert and unet"):
        assert words in drawn.caption


@pytest.mark.parametrize("draw", slices.FIGURES)
def test_nothing_is_drawn_without_picked_frames(draw) -> None:
    assert draw(changed(make_board(3), None, has_body=True)) is None
