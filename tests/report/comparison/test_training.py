"""Cost, tuning and convergence: points, lines and cells hold the results."""

from dataclasses import replace
from typing import Any

import pytest

from pibert.evaluation.scores import Scores
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.table import Cell
from pibert.report.comparison.tables import cost as tables
from pibert.report.comparison.text import protocol
from pibert.report.comparison.training import convergence, cost, pareto_front, tuning
from tests.report.comparison.handmade_results import handmade
from tests.report.comparison.invented_results import axes_of, invented, once

ERRORS = {"unet": 0.02, "pibert": 0.01, "persistence": 0.04, "taken": 0.03}
RATES = (1e-3, 2e-3, 4e-3)


def with_card(data: DatasetResults, change: Any) -> DatasetResults:
    """The same results with entries of each card changed by ``change(model)``."""
    scores = {
        key: Scores(own.card | change(key[0]), own.arrays) for key, own in data.scores.items()
    }
    return replace(data, scores=scores)


def test_points_stand_at_cost_and_error():
    data = invented(3)
    axes = axes_of(once(cost, 3))
    for ax, expected in zip(axes, (3.0, 0.2, 2e6, 60.0, 20_000.0), strict=False):
        points = [line for line in ax.lines if line.get_markerfacecolor() == data.colour("unet")]
        assert points[0].get_xdata()[0] == pytest.approx(expected)
        assert points[0].get_ydata()[0] == pytest.approx(data.value("unet", "nmse"))


def test_the_line_of_best_choices_falls_with_the_cost():
    data = invented(3)
    costs = {"pibert": 5.0, "unet": 2.0, "persistence": 1.0}
    drawn = cost(
        with_card(data, lambda m: {"cost": {"batches": [{"batch": 1, "ms_per_sample": costs[m]}]}})
    )
    front = next(li for li in axes_of(drawn)[0].lines if "steps" in li.get_drawstyle())
    assert list(front.get_xdata())[:3] == [1.0, 2.0, 5.0]
    errors = [data.value(name, "nmse") for name in ("persistence", "unet", "pibert")]
    assert list(front.get_ydata())[:3] == errors
    assert drawn is not None and "a: persistence, unet, pibert" in drawn.caption
    shared_runs = [{**run, "at_a_time": 4} for run in data.results["runs"]]
    shared = axes_of(cost(replace(data, results={**data.results, "runs": shared_runs})))[3]
    # Upper bounds have no best choice.
    assert "upper bound" in shared.get_xlabel()
    assert not any("steps" in line.get_drawstyle() for line in shared.lines)
    assert cost(DatasetResults(data.name, {**data.results, "records": []}, data.scores)) is None


def test_the_front_has_no_model_that_another_beats_at_the_same_or_lower_cost():
    errors = {"a": 0.5, "b": 0.2, "c": 0.3, "d": 0.2, "e": 0.1}
    costs = {"a": 1.0, "b": 2.0, "c": 1.5, "d": 3.0, "e": 9.0}
    assert pareto_front(errors, costs) == ["a", "c", "b", "e"]
    assert pareto_front(errors, costs | {"a": 2.0}) == ["c", "b", "e"]


def curves(ax):
    """Lines of several points."""
    return [line for line in ax.lines if len(line.get_xdata()) > 2]


def test_all_models_end_at_the_budget_and_pretraining_takes_its_share_of_it():
    data = invented(3)
    ax = axes_of(once(convergence, 3))[0]
    by_colour = {line.get_color(): line for line in curves(ax)}
    pibert, unet = (by_colour[data.colour(name)] for name in ("pibert", "unet"))
    assert pibert.get_xdata()[-1] == unet.get_xdata()[-1] == 5000
    assert unet.get_xdata()[0] == pytest.approx(5000 * 2 / 20)
    assert pibert.get_xdata()[0] == pytest.approx(5000 * (5 + 2) / 25)
    assert pibert.get_ydata()[0] == pytest.approx(0.1 / 2**0.8)
    rings = [line for line in ax.lines if line.get_marker() == "o"]
    assert sorted(line.get_xdata()[0] for line in rings) == pytest.approx([4500, 4600])
    assert convergence(with_card(data, lambda m: {"training": {}})) is None


def test_the_stage_on_rollouts_does_not_stretch_the_axis_of_samples():
    stages = {
        "pretraining": {"epochs": 2, "samples": 1000, "best_epoch": 2, "curve": []},
        "training": {"epochs": 10, "samples": 500, "best_epoch": 10,
                     "curve": [[5, {"reconstruction": 0.2}], [8, {"reconstruction": 0.15}],
                               [10, {"reconstruction": 0.1}]]},
        "rollouts": {"epochs": 3, "samples": 1400, "best_epoch": 3, "curve": []},
    }  # fmt: skip
    plot = convergence(with_card(invented(3), lambda m: {"training": stages}))
    assert plot is not None and "stage on rollouts" in plot.caption
    for line in curves(axes_of(plot)[0]):
        assert list(line.get_xdata()) == [1250, 1400, 1500]


def record(model: str, chosen: tuple[str, float], edge: str | None, errors: Any) -> Any:
    trials = [
        {"optimizer": name, "learning_rate": rate, "samples": 4000, "valid_error": error}
        for (name, rate), error in errors.items()
    ]
    best = {"optimizer": chosen[0], "learning_rate": chosen[1], "valid_error": errors[chosen]}
    return {
        "data": "wakes", "model": model, "tuned_on": "wakes", "trials": trials, "edge": edge,
        "chosen": best,
    }  # fmt: skip


def results_of(*records: Any) -> DatasetResults:
    data = handmade(ERRORS)
    plan = dict(data.results["comparison"]) | {
        "entrants": {name: {"run": "runs/mine" if name == "taken" else None} for name in ERRORS},
        "tuning": {
            "learning_rates": list(RATES), "optimizers": ["adamw", "muon"], "budget": 0.2,
            "seed": 0, "reuse": {},
        },
    }  # fmt: skip
    recipe = {"optimizer": "adamw", "learning_rate": 3e-4}
    runs = [own | recipe if own["model"] == "taken" else own for own in data.results["runs"]]
    results = {**data.results, "comparison": plan, "tuning": list(records), "runs": runs}
    return replace(data, results=results)


def tuned() -> DatasetResults:
    tried = [(name, rate) for name in ("adamw", "muon") for rate in RATES]
    unet = dict(zip(tried, (5.0, 4.0, 3.0, 4.0, 2.0, None), strict=True))
    pibert = dict(zip(tried, (8.0, 7.0, 6.0, 5.0, 4.0, 1.0), strict=True))
    return results_of(
        record("unet", ("muon", 2e-3), None, unet),
        record("pibert", ("muon", 4e-3), "highest", pibert),
    )


def cells(data: DatasetResults) -> dict[str, dict[str, Cell]]:
    table = tables.tuning(data)
    assert table is not None
    return {row[0].text: dict(zip(table.head, row, strict=True)) for row in table.rows}


def test_the_table_shows_every_trial_and_what_was_chosen() -> None:
    found = cells(tuned())
    assert set(found) == set(ERRORS)
    rate = found["unet"]["learning rate"]
    assert (rate.text, rate.number, rate.note) == ("0.002", 2e-3, "")
    assert found["unet"]["optimiser"].text == "muon"
    assert found["unet"]["muon 0.004"].text == "diverged"
    assert [name for name, cell in found["unet"].items() if cell.best] == ["muon 0.002"]
    assert found["pibert"]["adamw 0.001"].number == 8
    assert "highest" in found["pibert"]["learning rate"].note
    assert found["persistence"]["optimiser"].text == "not tuned"
    taken = found["taken"]
    assert (taken["optimiser"].text, taken["optimiser"].note) == ("adamw", "not tuned")
    assert taken["learning rate"].text == "0.0003"


def test_without_tuning_there_is_neither_table_nor_figure_and_one_rate_makes_no_figure() -> None:
    data = handmade(ERRORS)
    assert tables.tuning(data) is None and tuning(data) is None
    assert "Tuning" not in dict(protocol(data.results, [data]))
    one = {("adamw", 1e-3): 2.0, ("muon", 1e-3): 1.0}
    alone = results_of(record("unet", ("muon", 1e-3), None, one))
    assert tuning(alone) is None and cells(alone)["unet"]["muon 0.001"].best
