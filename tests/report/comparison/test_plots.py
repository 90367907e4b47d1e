import numpy as np
from matplotlib.text import Text

from pibert.report.comparison.plots import (
    Label,
    label_points,
    settle,
    sheet,
)
from tests.report.comparison.invented_results import overlapping


def boxes(ax):
    """Where the words are, without the lines that lead to them."""
    return [Text.get_window_extent(text) for text in ax.texts]


def test_names_of_points_cover_neither_each_other_nor_a_point():
    figure, axes = sheet(5, 4)
    ax = axes[0, 0]
    ax.set(xlim=(0, 1), ylim=(0, 1))
    draw = np.random.default_rng(1)
    settle(figure)
    points = 0.3 + 0.4 * draw.random((15, 2))
    label_points(ax, [Label(x, y, f"model {n}", "red") for n, (x, y) in enumerate(points)])
    figure.draw_without_rendering()
    assert overlapping(ax) == []
    found = boxes(ax)
    for place in ax.transData.transform(points):
        assert not any(box.contains(*place) for box in found)
    frame = ax.get_window_extent()
    assert all(frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1) for box in found)
