import numpy as np
import pytest
import torch

from pibert.evaluation.scores import Scores
from pibert.report.comparison.alignment import embedding_alignment
from pibert.report.comparison.board import Board
from tests.report.comparison.invented_board import axes_of, invented, once, without


@pytest.mark.parametrize(("count", "trained"), [(3, 2), (15, 10)])
def test_every_model_with_embeddings_has_a_line_over_the_scales(count, trained):
    board = invented(count)
    drawn = once(embedding_alignment, len(board.models))
    ax = axes_of(drawn)[0]
    lines = [line for line in ax.lines if len(line.get_xdata()) == 4]
    assert len(lines) == trained
    unet = next(line for line in lines if line.get_color() == board.colour("unet"))
    assert np.allclose(unet.get_ydata(), [0.46, 0.56, 0.66, 0.76])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1", "2", "4", "8"]
    assert "pibert has the highest" in drawn.alt


def test_without_embeddings_there_is_no_figure():
    assert embedding_alignment(without(invented(3), "alignment")) is None


def test_the_input_and_fresh_weights_stand_beside_the_models():
    board = invented(3)
    scores = {
        (model, seed): Scores(
            own.card | {"embedding": {"width": 7, "layer": "a layer"}},
            dict(own.arrays)
            | {
                "alignment_untrained": torch.full((4,), 0.3).double(),
                "alignment_input": torch.full((4,), 0.9).double(),
                "alignment_input_mean": torch.full((4,), 0.1).double(),
            },
        )
        if "alignment" in own.arrays
        else own
        for (model, seed), own in board.scores.items()
    }
    drawn = embedding_alignment(Board(board.name, board.results, scores))
    assert drawn is not None
    left, right = axes_of(drawn)
    lines = [line for line in left.lines if len(line.get_xdata()) == 4]
    # Two models, and the input twice.
    levels = sorted(line.get_ydata()[0] for line in lines)
    assert np.allclose(levels, [0.1, 0.46, 0.5, 0.9])
    assert {"input: values", "input: mean"} <= {text.get_text() for text in left.texts}
    assert [label.get_text() for label in right.get_yticklabels()] == ["unet (7)", "pibert (7)"]
    dots = sorted(line.get_xdata()[0] for line in right.lines if line.get_marker() == "o")
    assert np.allclose(dots, [0.3, 0.3, 0.61, 0.65])
    assert "pibert: a layer" in drawn.caption and "fresh weights" in drawn.caption
