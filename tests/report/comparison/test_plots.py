import math

import numpy as np
import pytest
import torch
from matplotlib.text import Text

from pibert.report.comparison.plots import (
    Label,
    label_ends,
    label_points,
    line_style,
    logarithmic,
    masked,
    plain,
    settle,
    sheet,
    spread,
    time_unit,
)
from tests.report.comparison.invented_board import invented, overlapping


def boxes(ax):
    """Where the words are, without the lines that lead to them."""
    return [Text.get_window_extent(text) for text in ax.texts]


def test_heights_far_enough_apart_stay_where_they_are():
    assert spread([0.1, 0.5, 0.9], 0.2, 0, 1) == pytest.approx([0.1, 0.5, 0.9])


def test_heights_in_a_heap_are_moved_apart_around_their_middle():
    assert spread([0.5, 0.5, 0.5], 0.1, 0, 1) == pytest.approx([0.4, 0.5, 0.6])
    assert spread([0.98, 1.0], 0.1, 0, 1) == pytest.approx([0.9, 1.0])


def test_spread_heights_are_the_nearest_that_keep_the_gap():
    wanted, gap = [0.2, 0.28, 0.3, 0.7], 0.15
    found = spread(wanted, gap, 0, 1)
    assert min(np.diff(found)) >= gap - 1e-12
    cost = sum((a - b) ** 2 for a, b in zip(found, wanted, strict=True))
    draw = np.random.default_rng(0)
    for _ in range(2000):
        other = np.sort(np.array(found) + 0.05 * draw.standard_normal(4))
        if min(np.diff(other)) >= gap:
            assert ((other - wanted) ** 2).sum() >= cost - 1e-12


def test_names_at_the_ends_of_lines_do_not_overlap():
    figure, axes = sheet(5, 4)
    ax = axes[0, 0]
    ax.set(xlim=(0, 1), ylim=(0, 1))
    label_ends(ax, [Label(1.0, 0.5 + 0.001 * n, f"model {n}", "red") for n in range(15)])
    settle(figure)
    assert overlapping(ax) == []
    found = boxes(ax)
    assert len(found) == 15
    assert all(box.x0 > ax.get_window_extent().x1 for box in found)
    order = sorted(range(15), key=lambda n: found[n].y0)
    assert [ax.texts[n].get_text() for n in order] == [f"model {n}" for n in range(15)]


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


def test_numbers_of_a_scale_are_short():
    assert [plain(v) for v in (0.0, 0.01, 20.0, 5e4, 1e-5, 2e8)] == [
        "0",
        "0.01",
        "20",
        "50,000",
        "$10^{-5}$",
        "$2\u00b710^{8}$",
    ]


@pytest.mark.parametrize("values", [[1.0, 1.03], [0.02, 0.09], [1e-6, 10.0], [3.0, 3.0]])
def test_a_logarithmic_axis_shows_all_values_and_a_few_numbers(values):
    figure, axes = sheet(4, 3)
    ax = axes[0, 0]
    logarithmic(ax, "y", values)
    figure.draw_without_rendering()
    low, high = ax.get_ylim()
    assert low < min(values) and high > max(values)
    inside = [t for t in ax.get_yticks() if low <= t <= high]
    assert 1 <= len(inside) <= 12
    assert math.isclose(math.log(values[0] / low), math.log(high / values[1]), rel_tol=1e-6)


def test_lines_tell_trained_models_variants_and_references_apart():
    board = invented(15)
    styles = {m: line_style(board, m)["ls"] for m in ("fno2d", "fourierflow-det", "dmd")}
    assert styles == {"fno2d": "-", "fourierflow-det": "--", "dmd": ":"}
    assert line_style(board, "pibert")["lw"] > line_style(board, "unet")["lw"]


def test_time_has_the_unit_that_fits_the_velocity():
    assert time_unit(invented(3)) == "s"


def test_masked_points_do_not_count():
    values = torch.zeros(3, 5)
    values[1, 2] = 7.0
    known = torch.ones(3, 5, dtype=torch.bool)
    assert masked(values, known).limit == 7.0
    known[1, 2] = False
    assert masked(values, known).limit == 0.0
