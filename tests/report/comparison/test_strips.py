import numpy as np
import pytest
import torch

from pibert.evaluation.scores import Scores
from pibert.physics import derivatives
from pibert.report.comparison.board import Board
from pibert.report.comparison.strips import animation, timestep_strip
from tests.report.comparison.invented_board import STRIP, axes_of, invented, once, without


@pytest.mark.parametrize("count", [3, 15])
def test_a_strip_has_a_row_for_the_truth_and_each_model_on_one_scale(count):
    board = invented(count)
    drawn = once(timestep_strip, len(board.models))
    panels = [ax for ax in axes_of(drawn) if ax.images]
    rows = 1 + len(board.shown(6))
    assert len(panels) == 6 * rows
    assert len({ax.images[0].get_clim() for ax in panels}) == 1
    assert [ax.get_ylabel() for ax in panels[::6]] == ["truth", *board.shown(6)]
    titles = [ax.get_title() for ax in panels[:6]]
    # From frame 21 on, a quarter of a second apart, every second frame.
    assert titles == [f"t = {0.25 * frame:.4g} s" for frame in range(21, 33, 2)]
    assert "every 2 frames" in drawn.caption and "vorticity [1/s]" in drawn.caption


def test_panels_show_the_vorticity_with_the_body_masked():
    board = invented(3)
    drawn = once(timestep_strip, len(board.models))
    shown = axes_of(drawn)[0].images[0].get_array()
    u, v = board.reference.arrays["strip/truth"][0].double()
    spin = derivatives.vorticity(u, v, board.spec.grid)
    body = board.spec.grid.body
    assert body is not None
    assert shown.mask[body.numpy()].all()
    inside = ~shown.mask
    assert inside.mean() > 0.8
    # Away from the body the stencil is the plain one.
    assert np.allclose(shown[:, 25:], spin[:, 25:])


def test_points_that_the_scores_call_unknown_are_masked():
    board = invented(3)
    known = torch.ones(STRIP, *board.spec.grid.shape, dtype=torch.bool)
    known[:, :, 20] = False
    scores = {
        key: Scores(own.card, {**own.arrays, "strip/known": known})
        for key, own in board.scores.items()
    }
    drawn = timestep_strip(Board(board.name, board.results, scores))
    assert drawn is not None
    assert axes_of(drawn)[0].images[0].get_array().mask[:, 20].all()


def test_the_animation_is_a_small_moving_png_of_all_frames():
    board = invented(3)
    scores = {
        key: Scores(
            own.card, {n: v[:4] if n.startswith("strip/") else v for n, v in own.arrays.items()}
        )
        for key, own in board.scores.items()
    }
    moving = animation(Board(board.name, board.results, scores))
    assert moving is not None
    assert moving.data.startswith(b"\x89PNG")
    place = moving.data.index(b"acTL")
    assert int.from_bytes(moving.data[place + 4 : place + 8], "big") == 4
    assert len(moving.data) < 1_500_000
    assert moving.mime == "image/png" and "pibert" in moving.caption


def test_without_a_strip_there_is_no_figure():
    board = without(invented(3), "strip/")
    assert timestep_strip(board) is None and animation(board) is None
