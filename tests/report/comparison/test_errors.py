"""Figures of errors: dots, violins and points have the recorded values; models are ranked."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pibert.evaluation.scores import Scores
from pibert.report.comparison import errors
from pibert.report.comparison.errors import (
    error_distribution,
    frame_errors_of,
)
from pibert.report.comparison.plots import logarithmic, sheet
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.tables import ranking
from tests.report.comparison.handmade_results import handmade, record
from tests.report.comparison.invented_results import axes_of, invented
from tests.report.comparison.test_tables import cell

FRAME_ERRORS = torch.logspace(-3, 0, 40, dtype=torch.float64)


def panel(axes: list[Any], title: str) -> Any:
    return next(ax for ax in axes if title in ax.get_title(loc="left"))


def test_dots_stand_at_the_values_of_the_models_by_rank() -> None:
    data = invented(3)
    ax = panel(axes_of(errors.metrics(data)), "NMSE")
    components = ("u", "v", "|u|", "all")
    expected = [data.value(m, "nmse", c) or 0.0 for c in components for m in data.models]
    dots = [line for line in ax.lines if len(line.get_xdata()) == 1]
    assert [dot.get_xdata()[0] for dot in dots] == pytest.approx(expected)
    rows = [dot.get_ydata()[0] for dot in dots]
    assert np.round(rows).tolist() == [0, 1, 2] * 4
    # Every dot lies on its interval, which invented results have 10 % to either side.
    spans = [sorted(line.get_xdata()) for line in ax.lines if len(line.get_xdata()) == 2]
    assert np.allclose(spans, [[0.9 * v, 1.1 * v] for v in expected])
    # Scores near one are shown by their distance to it.
    ax = panel(axes_of(errors.metrics(data)), "R²")
    found = [line.get_xdata()[0] for line in ax.lines if len(line.get_xdata()) == 1]
    assert found[:3] == pytest.approx([1 - (data.value(m, "r2", "u") or 0.0) for m in data.models])


@pytest.mark.parametrize("high", [1.2e-6, 2e-5, 0.5, 1e7])
def test_logarithmic_axes_have_labels_whatever_their_range(high: float) -> None:
    figure, axes = sheet(2.5, 2.5)
    logarithmic(axes[0, 0], "x", [1e-6, high])
    figure.draw_without_rendering()
    low, top = axes[0, 0].xaxis.get_view_interval()
    ticks = [tick for tick in axes[0, 0].xaxis.get_major_ticks() if low <= tick.get_loc() <= top]
    assert len([tick for tick in ticks if tick.label1.get_text()]) > 1


def with_errors(*given: Tensor | None) -> DatasetResults:
    """Models with these frame errors, best first."""
    data, found = invented(len(given)), {}
    for (model, seed), own in data.scores.items():
        error = given[data.models.index(model)]
        more = {} if error is None else {"errors/prediction": error}
        found[model, seed] = Scores(own.card, {**own.arrays, **more})
    return replace(data, scores=found)


def test_frames_without_a_positive_error_are_left_out() -> None:
    given = FRAME_ERRORS.clone()
    given[[3, 8]], given[0] = torch.nan, 0.0
    (errors,) = frame_errors_of(with_errors(given)).values()
    assert errors.size == 37 and (errors > 0).all()
    assert error_distribution(with_errors(FRAME_ERRORS[5:6], FRAME_ERRORS)) is not None
    for nothing in (None, torch.zeros(5).double(), torch.full((5,), math.nan).double()):
        assert error_distribution(with_errors(nothing)) is None


NMSE = {
    "unet": [0.01, 0.02, 0.30, 0.02],
    "pibert": [0.02, 0.01, 0.40, 0.03],
    "persistence": [0.1, 0.1, 0.5, 0.1],
}
SHARE = [0.05, 0.05, 0.8, 0.1]
REYNOLDS = [400.0, 100.0, 300.0, 200.0]


def by_flow(model: str, metric: str, values: Any, *, seed: int = 0, lead: Any = None) -> Any:
    own = {"data": "wakes", "model": model, "seed": seed, "metric": metric, "lead": lead}
    return own | {"unit": "1", "flows": list(values), "conditions": None}


def flow_results(count: int = 4) -> DatasetResults:
    """Four flows, or as many times them, of which the third has most of the error."""
    more = [
        record(model, metric, value)
        for model in NMSE
        for metric, value in (("nmse_flow_mean", 0.0875), ("largest_flow_share", 0.8))
    ]
    plain = handmade({"unet": 0.1, "pibert": 0.12, "persistence": 0.2}, more)
    times = count // 4
    rows = []
    for model, values in NMSE.items():
        rows.append(by_flow(model, "nmse", values * times))
        rows.append(by_flow(model, "squared_error_share", [s / times for s in SHARE * times]))
        rolled = [None if model == "pibert" else 5 * values[0], *values[1:]] * times
        rows += [by_flow(model, "nmse", rolled, lead=lead) for lead in (1, 5, 20)]
    listed = [
        {"name": f"w{n}", "parameters": {"Re": REYNOLDS[n % 4] + n // 4}, "test_frames": 10}
        for n in range(count)
    ]
    facts = {**plain.facts, "flows": listed, "conditions": None}
    return replace(plain, results={**plain.results, "by_flow": rows, "data": {"wakes": facts}})


def test_the_table_shows_how_the_error_is_spread_over_flows():
    table = ranking.flows(flow_results())
    assert cell(table, "unet", "NMSE, pooled").text == "0.100"
    assert cell(table, "unet", "mean over flows").text == "0.0875"
    assert cell(table, "unet", "median flow").text == "0.0200"
    worst = cell(table, "pibert", "worst flow")
    assert (worst.text, worst.note) == ("0.400", "w2")
    assert cell(table, "unet", "share of the worst").text == "80 %"
    won = {model: cell(table, model, "flows won").text for model in NMSE}
    assert won == {"unet": "3", "pibert": "1", "persistence": "0"}


def test_numbers_of_flows_are_means_over_seeds_and_none_where_a_seed_has_none():
    plain = flow_results()
    second = [by_flow("unet", "nmse", [0.03, None, 0.1, 0.02], seed=1)]
    results = {**plain.results, "by_flow": [*plain.results["by_flow"], *second]}
    found = ranking.flow_errors(replace(plain, results=results), "unet", "nmse")
    assert found == pytest.approx([0.02, None, 0.2, 0.02])
    assert ranking.flow_errors(plain, "unet", "skill") == []


def points(ax: Any) -> list[Any]:
    return [line for line in ax.lines if line.get_marker() != "None"]


def test_points_stand_at_the_errors_in_the_order_of_the_reynolds_number():
    first, rollout, shares = axes_of(errors.flows(flow_results()))[:3]
    labels = [text.get_text() for text in first.get_yticklabels()]
    assert labels == ["w1  Re 100", "w3  Re 200", "w2  Re 300", "w0  Re 400"]
    unet, *others = points(first)
    assert len(others) == 2
    assert list(unet.get_xdata()) == [0.02, 0.02, 0.30, 0.01]
    assert list(unet.get_ydata()) == [0, 1, 2, 3]
    assert "5 frames ahead" in rollout.get_title(loc="left")
    assert list(points(rollout)[1].get_ydata()) == [0, 1, 2]  # the last one diverged
    assert [bar.get_width() for bar in shares.patches] == pytest.approx([0.05, 0.1, 0.8, 0.05])


def test_a_table_has_a_column_for_every_condition() -> None:
    plain = flow_results()
    conditions = [{"parameters": {"Re": re}, "flows": 2} for re in (200.0, 400.0)]
    facts = {**plain.facts, "conditions": conditions}
    rows = [{**row, "conditions": row["flows"][:2]} for row in plain.results["by_flow"]]
    results = {**plain.results, "data": {"wakes": facts}, "by_flow": rows}
    table = ranking.conditions(replace(plain, results=results))
    assert cell(table, "unet", "Re 200 (2)").text == "0.0100"
    assert cell(table, "pibert", "Re 400 (2)").text == "0.0100"
    assert ranking.conditions(plain) is None


def test_without_flows_to_compare_there_is_neither_table_nor_figure():
    one = flow_results()
    facts = {**one.facts, "flows": one.facts["flows"][:1]}
    rows = [{**own, "flows": own["flows"][:1]} for own in one.results["by_flow"]]
    alone = replace(one, results={**one.results, "data": {"wakes": facts}, "by_flow": rows})
    older = handmade({"unet": 0.1, "persistence": 0.2})  # results without errors by flow
    for own in (alone, older):
        assert ranking.flows(own) is None and errors.flows(own) is None
        assert ranking.conditions(own) is None
