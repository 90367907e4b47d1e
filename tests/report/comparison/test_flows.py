"""Errors flow by flow: what the table says of them, and where the points of the figure stand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pibert.report.comparison.board import Board
from pibert.report.comparison.flows import flow_errors, flow_table, flows
from tests.report.comparison.handmade_board import handmade, record
from tests.report.comparison.invented_board import axes_of
from tests.report.comparison.test_tables import cell

NMSE = {
    "unet": [0.01, 0.02, 0.30, 0.02],
    "pibert": [0.02, 0.01, 0.40, 0.03],
    "persistence": [0.1, 0.1, 0.5, 0.1],
}
SHARE = [0.05, 0.05, 0.8, 0.1]
REYNOLDS = [400.0, 100.0, 300.0, 200.0]


def errors(model: str, metric: str, values: Any, *, seed: int = 0, lead: int | None = None) -> Any:
    own = {"data": "wakes", "model": model, "seed": seed, "metric": metric, "lead": lead}
    return own | {"unit": "1", "flows": list(values), "conditions": None}


def board(count: int = 4, **parameters: Any) -> Board:
    """Four flows, or as many times them, of which the third carries most of the error."""
    pooled = {"unet": 0.1, "pibert": 0.12, "persistence": 0.2}
    more = [
        record(model, metric, value)
        for model in NMSE
        for metric, value in (("nmse_flow_mean", 0.0875), ("largest_flow_share", 0.8))
    ]
    plain = handmade(pooled, more)
    times = count // 4
    rows = []
    for model, values in NMSE.items():
        rows.append(errors(model, "nmse", values * times))
        rows.append(errors(model, "squared_error_share", [s / times for s in SHARE * times]))
        rolled = [None if model == "pibert" else 5 * values[0], *values[1:]] * times
        rows += [errors(model, "nmse", rolled, lead=lead) for lead in (1, 5, 20)]
    listed = [
        {"name": f"w{n}", "parameters": {"Re": REYNOLDS[n % 4] + n // 4}, "test_frames": 10}
        for n in range(count)
    ]
    facts = {**plain.facts, "flows": listed, "conditions": None} | parameters
    results = {**plain.results, "by_flow": rows, "data": {"wakes": facts}}
    return replace(plain, results=results)


def test_the_table_shows_what_the_pooled_error_hides():
    table = flow_table(board())
    assert cell(table, "unet", "NMSE, pooled").text == "0.100"
    assert cell(table, "unet", "mean over flows").text == "0.0875"
    assert cell(table, "unet", "median flow").text == "0.0200"
    worst = cell(table, "pibert", "worst flow")
    assert (worst.text, worst.note) == ("0.400", "w2")
    assert cell(table, "unet", "share of the worst").text == "80 %"
    won = {model: cell(table, model, "flows won").text for model in NMSE}
    assert won == {"unet": "3", "pibert": "1", "persistence": "0"}
    assert table is not None and "25 % would be an equal share" in table.caption


def test_numbers_of_flows_are_means_over_seeds_and_none_where_a_seed_has_none():
    plain = board()
    second = [errors("unet", "nmse", [0.03, None, 0.1, 0.02], seed=1)]
    results = {**plain.results, "by_flow": [*plain.results["by_flow"], *second]}
    found = flow_errors(replace(plain, results=results), "unet", "nmse")
    assert found == pytest.approx([0.02, None, 0.2, 0.02])
    assert flow_errors(plain, "unet", "skill") == []


def test_points_stand_at_the_errors_in_the_order_of_the_reynolds_number():
    drawn = flows(board())
    assert drawn is not None
    first, rollout, shares = axes_of(drawn)[:3]
    labels = [text.get_text() for text in first.get_yticklabels()]
    assert labels == ["w1  Re 100", "w3  Re 200", "w2  Re 300", "w0  Re 400"]
    unet, *others = [line for line in first.lines if line.get_marker() != "None"]
    assert len(others) == 2
    assert list(unet.get_xdata()) == [0.02, 0.02, 0.30, 0.01]
    assert list(unet.get_ydata()) == [0, 1, 2, 3]
    assert rollout.get_title(loc="left").endswith("Rollout, 5 frames ahead")
    pibert = [line for line in rollout.lines if line.get_marker() != "None"][1]
    assert list(pibert.get_ydata()) == [0, 1, 2]  # the last one diverged
    assert [bar.get_width() for bar in shares.patches] == pytest.approx([0.05, 0.1, 0.8, 0.05])
    assert "in the order of Re" in drawn.caption and "of pibert" in drawn.caption
    drawn.figure.draw_without_rendering()


def test_of_many_flows_some_are_shown_from_the_first_to_the_last():
    drawn = flows(board(200))
    assert drawn is not None
    first = axes_of(drawn)[0]
    labels = [text.get_text() for text in first.get_yticklabels()]
    assert len(labels) == 48 and labels[0] == "w1  Re 100" and labels[-1].startswith("w196")
    assert "48 of 200, evenly," in drawn.caption
    unet = [line for line in first.lines if line.get_marker() != "None"][0]
    assert len(unet.get_xdata()) == 48 and np.isfinite(unet.get_xdata()).all()


def test_without_flows_to_compare_there_is_neither_table_nor_figure():
    one = board()
    facts = {**one.facts, "flows": one.facts["flows"][:1]}
    rows = [{**own, "flows": own["flows"][:1]} for own in one.results["by_flow"]]
    alone = replace(one, results={**one.results, "data": {"wakes": facts}, "by_flow": rows})
    assert flow_table(alone) is None and flows(alone) is None
    older = handmade({"unet": 0.1, "persistence": 0.2})  # results without errors by flow
    assert flow_table(older) is None and flows(older) is None
