"""Figures and tables of free runs: lines and maps hold the statistics, divergence is named."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pibert.evaluation.regions import stations
from pibert.evaluation.temporal import power_density
from pibert.report.comparison import free_runs
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.table import Numbers
from pibert.report.comparison.tables.rollouts import free_runs as table
from pibert.report.comparison.tables.rollouts import more_free_runs
from tests.report.comparison.handmade_results import Given, handmade, record
from tests.report.comparison.invented_results import axes_of, invented, legend_of, once, without

FIGURES = (
    free_runs.free_run_fields,
    free_runs.free_run_profiles,
    free_runs.free_run_spectra,
    free_runs.free_run_densities,
)


@pytest.mark.parametrize("make", FIGURES)
def test_without_free_runs_a_figure_is_left_out(make):
    assert make(without(invented(3), "free_run/")) is None


def test_without_records_of_free_runs_there_are_neither_tables_nor_errors():
    data = handmade({"pibert": 0.01, "persistence": 0.1})
    assert free_runs.free_run_errors(data) is None
    assert table(data) is None and more_free_runs(data) is None


def test_profiles_are_means_in_time_at_the_stations():
    data = invented(5)
    arrays = data.first("pibert").arrays
    panels = axes_of(once(free_runs.free_run_profiles, 5))
    columns = list(stations(data.spec.grid.body, data.spec.grid).values())
    known = arrays["free_run/shown/known"].numpy()
    for ax, column in zip(panels[:3], columns, strict=True):
        line = next(line for line in ax.lines if line.get_color() == data.colour("pibert"))
        expected = arrays["free_run/shown/mean"][0].numpy()[:, column]
        shown = known[:, column]
        assert np.allclose(np.asarray(line.get_xdata())[shown], expected[shown])
        assert np.isnan(np.asarray(line.get_xdata())[~shown]).all()


def test_spectra_are_those_of_the_free_runs_at_the_probes():
    data = invented(5)
    arrays = data.first("unet").arrays
    ax, ratios = axes_of(once(free_runs.free_run_spectra, 5))
    line = next(line for line in ax.lines if line.get_label() == "unet")
    _, power = power_density(arrays["free_run/shown/series"][..., 1], data.spec.dt or 1.0)
    expected = power.mean(1)[1:].numpy()
    seen = expected > 1e-4 * expected.max()
    assert np.allclose(np.asarray(line.get_ydata())[seen], expected[seen])
    # The fourth model diverged half-way: it has no spectrum over this time, and the text says so.
    assert "fno2d" not in legend_of(ratios)
    assert "fno2d after 20" in once(free_runs.free_run_spectra, 5).caption


def test_densities_integrate_to_one():
    arrays = invented(3).first("pibert").arrays
    widths = arrays["free_run/shown/edges"].diff(dim=1)
    for name in ("density", "true_density"):
        whole = (arrays[f"free_run/shown/{name}"] * widths).sum(1)
        assert torch.allclose(whole, torch.ones(2), atol=0.02)


def test_errors_mark_diverged_models():
    for ax in axes_of(once(free_runs.free_run_errors, 5)):
        assert sum(line.get_marker() == "x" for line in ax.lines) == 1


def test_the_table_ends_with_the_truth_against_itself_and_counts_diverged_runs():
    found = table(invented(5))
    assert found is not None
    rows = {row[0].text: dict(zip(found.head, row, strict=True)) for row in found.lines}
    assert list(rows)[-1] == "(truth against itself)"
    assert rows["fno2d"]["stress error ↓"].text == "∞" and not rows["fno2d"]["stress error ↓"].best
    assert rows["fno2d"]["diverged ↓"].text == "100 %"
    assert rows["pibert"]["stress error ↓"].best and rows["pibert"]["stress error ↓"].note
    assert rows["(truth against itself)"]["mean flow error ↓"].number is not None
    assert rows["(truth against itself)"]["survival [frames] ↑"].text == ""


def ran_freely(errors: Given, records: list[dict[str, Any]]) -> DatasetResults:
    data = handmade(errors, records)
    facts = {"runs": 10, "flows": 10, "frames": [50, 60], "intervals": "10 flows"}
    return replace(
        data, results={**data.results, "data": {"wakes": {**data.facts, "free_run": facts}}}
    )


def test_a_seed_that_diverged_is_not_left_out_of_the_mean():
    more = [
        record("pibert", "free_run_stress_error", 0.2, seed=0),
        record("pibert", "free_run_stress_error", None, seed=1),
        record("pibert", "free_run_diverged", 0.0, seed=0),
        record("pibert", "free_run_diverged", 1.0, seed=1),
        record("unet", "free_run_stress_error", 0.5),
        record("unet", "free_run_diverged", 0.0),
    ]
    data = ran_freely({"pibert": (0.01, 0.01), "unet": 0.02}, more)
    found = table(data)
    assert found is not None
    rows = {row[0].text: dict(zip(found.head, row, strict=True)) for row in found.lines}
    assert rows["pibert"]["stress error ↓"].text == "∞" and rows["unet"]["stress error ↓"].best


@pytest.mark.parametrize(("values", "best"), [((0.0, 119.0), None), ((0.0, 1.6, 0.4), 1.6)])
def test_a_ratio_far_from_one_is_not_marked_as_best(
    values: tuple[float, ...], best: float | None
) -> None:
    column = Numbers(label="energy", values=dict(zip("abc", values, strict=False)), ideal=1.0)
    assert column.best() == best
