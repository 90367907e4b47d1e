import numpy as np
import pytest

from pibert.report.comparison.alignment import embedding_alignment
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
