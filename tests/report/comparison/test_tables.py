"""Tables: numbers as text, marks of the best, and cells that hold the records."""

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest

from pibert.report.comparison.table import Cell, Table, digits, duration, near_one, scaled, size
from pibert.report.comparison.tables import benchmarks
from pibert.report.comparison.tables.next_frame import best_models, components, pairs, temporal
from pibert.report.comparison.tables.paper import published
from pibert.report.comparison.tables.ranking import overview, paired, rates, seeds, summary
from pibert.report.comparison.tables.rollouts import rollout
from tests.comparison.setups import changed
from tests.report.comparison.handmade_results import handmade, record, together

ERRORS = {"unet": 0.02, "pibert": 0.01, "persistence": 0.04}


def cell(table: Table | None, model: str, column: str) -> Cell:
    assert table is not None
    place = next(n for n, label in enumerate(table.head) if label.startswith(column))
    return next(row for row in table.rows if row[table.header].text == model)[place]


@pytest.mark.parametrize(
    ("written", "values"),
    [
        (
            digits,
            {0.0: "0", 0.0279038: "0.0279", 0.000244: "2.44e-4", -2.0694: "-2.07", 12345.6: "12300",
             1234567.0: "1.23e6", 0.0009996: "0.00100", 0.99999: "1.00", math.inf: "∞",
             math.nan: "–", 100: "100"},
        ),
        (
            near_one,
            {0.954: "0.954", 0.99960: "0.99960", 0.9999999999: "0.999999", 1.0: "1.000",
             -1e-9: "0.000", -250.0: "-250"},
        ),
        (size, {73: "73 B", 6_200_000: "6.20 MB", 999_900: "1.00 MB"}),
        (scaled, {0: "0", 50_680_896: "50.7 M"}),
        (duration, {1.254: "1.25 s", 150: "2.5 min", 7200: "2.0 h"}),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_units_and_are_not_rounded_up_to_one(written, values):
    assert [written(value) for value in values] == list(values.values())


def test_the_summary_ranks_by_the_mean_error_and_marks_the_best_and_what_is_level():
    table = summary(handmade(ERRORS, level=["unet"]))
    assert table is not None
    assert [row[1].text for row in table.rows] == ["pibert", "unet", "persistence"]
    assert [row[0].text for row in table.rows] == ["1", "2", "3"]
    best, close, last = (cell(table, m, "NMSE") for m in ("pibert", "unet", "persistence"))
    assert (best.best, best.level) == (True, False)
    assert (close.best, close.level) == (False, True)
    assert (last.best, last.level) == (False, False)
    assert best.note == "[0.00900, 0.0120]"
    few = summary(handmade(ERRORS, marked=False))
    assert few is not None and "too little data for intervals" in few.caption


def test_paired_tests_name_the_better_model_only_where_the_corrected_p_is_small():
    data = handmade(ERRORS | {"mwt": 0.008})
    assert paired(data) is None
    found = {"unet": (2.0, 0.001), "persistence": (4.0, 0.2), "mwt": (0.8, 0.01)}
    tests = [
        {"model": "pibert", "against": m, "ratio": ratio, "low": 0.7, "high": 5.0, "p": p / 2,
         "p_holm": p}
        for m, (ratio, p) in found.items()
    ]  # fmt: skip
    facts = {"wakes": {**data.facts, "paired_tests": tests}}
    data = replace(data, results={**data.results, "data": facts})
    table = paired(data)
    assert table is not None and "of one seed" in table.caption
    assert [row[0].text for row in table.rows] == [
        "mwt",
        "unet",
        "persistence",
    ]
    results = {m: cell(table, m, "result").text for m in found}
    assert results == {
        "mwt": "mwt better", "unet": "pibert better", "persistence": "not significant"
    }  # fmt: skip
    assert cell(table, "unet", "NMSE / pibert").note == "[0.700, 5.00]"
    assert cell(table, "unet", "p, corrected").text == "0.00100"


def test_models_with_missing_seeds_have_no_mean_and_are_named():
    errors: Any = {"pibert": [0.02, 0.02], "unet": [0.01], "persistence": 0.04}
    data = handmade(errors, failed=[("unet", "its loss is not finite")])
    missing = {"pibert": 0, "persistence": 0, "unet": 1}
    order = [
        {"rank": n, "model": m, "nmse": None, "seeds": 1, "missing": count}
        for n, (m, count) in enumerate(missing.items(), 1)
    ]
    facts = {"wakes": {**data.facts, "ranking": order}}
    data = replace(data, results={**data.results, "data": facts})
    table = summary(data)
    assert table is not None and "unet (1 of 2 seeds missing)" in table.caption
    found = cell(table, "unet", "NMSE")
    assert found.text == "–" and not found.note and cell(table, "pibert", "NMSE").text == "0.0200"


def test_several_seeds_give_mean_spread_and_the_widest_interval():
    pibert, unet = [0.010, 0.014, 0.018], [0.02, 0.02, 0.03]
    data = handmade({"pibert": pibert, "unet": unet, "persistence": 0.04})
    assert cell(summary(data), "pibert", "NMSE").text == "0.0140"
    assert cell(summary(data), "pibert", "NMSE").note == "[0.00900, 0.0216]"
    table = seeds(data)
    spread = statistics.stdev(pibert)
    assert cell(table, "pibert", "standard").number == pytest.approx(spread)
    assert cell(table, "unet", "seed 2").text == "0.0300"
    assert cell(table, "persistence", "standard").text == "–"
    assert cell(table, "persistence", "seed 2").text == "0.0400"
    whole = components(data)[0]
    assert cell(whole, "pibert", "NMSE").note == "± 0.0040"
    assert cell(whole, "persistence", "NMSE").note == ""
    assert seeds(handmade(ERRORS)) is None


def test_the_dagger_of_a_column_refers_to_the_bold_model_of_that_column():
    marks = {"pibert": "level", "unet": "best", "persistence": "different"}
    values = {"pibert": 0.21, "unet": 0.2, "persistence": 0.4}
    more = [record(m, "rmse", v, mark=marks[m]) for m, v in values.items()]
    more += [record(m, "lmae", 0.2, mark=marks[m]) for m in values]
    (table,) = components(handmade(ERRORS, more, level=["unet"]))
    assert cell(table, "pibert", "NMSE").best and cell(table, "unet", "NMSE").level
    assert cell(table, "unet", "RMSE").best and cell(table, "pibert", "RMSE").level
    assert not cell(table, "persistence", "RMSE").level
    # Where all look the same nothing is bold, and a dagger would refer to nothing.
    assert not any(cell(table, m, "LMAE").level for m in values)


def test_the_best_goes_by_the_direction_of_a_metric_and_ties_share_it():
    more = [record(m, "r2", v, better="higher") for m, v in (("pibert", 0.9), ("unet", 0.95))]
    more += [record(m, "rmse", 0.2, unit="m/s") for m in ("pibert", "unet")]
    more += [record(m, "lmae", v) for m, v in zip(ERRORS, (0.1, 0.1000001, 0.3), strict=True)]
    (table,) = components(handmade(ERRORS, more))
    assert {"NMSE ↓", "R² ↑", "RMSE [m/s] ↓"} <= set(table.head)
    assert cell(table, "unet", "R²").best and not cell(table, "pibert", "R²").best
    assert not any(cell(table, m, "RMSE").best for m in ERRORS)  # equal numbers
    assert [cell(table, m, "LMAE").best for m in ERRORS] == [True, True, False]
    assert cell(table, "persistence", "RMSE").text == "–"


def test_the_best_ratio_is_the_nearest_to_one():
    # ln 1.9 = 0.64 is less than -ln 0.5 = 0.69, and a ratio of 0 is infinitely far.
    values = {"pibert": 0.5, "unet": 1.9, "persistence": 0.0}
    more = [record(m, "psd_ratio_low", v, better="none") for m, v in values.items()]
    table = temporal(handmade(ERRORS, more))
    assert [cell(table, m, "low").best for m in values] == [False, True, False]


def test_win_rates_stand_beside_top_two_rates_for_slices_and_bands():
    shares = {"unet": (0.25, 0.75), "pibert": (0.75, 1.0)}
    more = [
        record(m, f"{prefix}{kind}", value, component=component, better="higher")
        for m, values in shares.items()
        for kind, value in zip(("win_rate", "top_two_rate"), values, strict=True)
        for prefix, component in (("", "all"), ("slice_near_body_rel_l2_", "|u|"))
    ]
    table = rates(handmade(ERRORS, more))
    for column in ("all points", "near body"):
        best = cell(table, "pibert", column)
        assert (best.number, best.best, best.note) == (0.75, True, "(100 %)")
        assert cell(table, "unet", column).note == "(75 %)"
    assert rates(handmade(ERRORS)) is None


def test_pairs_give_the_gain_over_the_best_rival_and_the_models_of_the_paper():
    more = [record("pinn", m, v, better="higher") for m, v in (("lpcc", 0.5), ("r2", 0.2))]
    more += [record(m, k, 0.9, better="higher") for m in ("pibert", "unet") for k in ("lpcc", "r2")]
    tables = pairs(handmade(ERRORS | {"unet": 0.002, "pinn": 0.005}, more))
    assert [table.title.split(",")[0] for table in tables] == ["pibert and unet", "pibert and pinn"]
    ((whole, gain, own, other, *_),) = tables[1].rows
    assert whole.text == "all" and gain.number == pytest.approx(1 - 0.01 / 0.005)
    assert other.best and not own.best
    assert pairs(handmade({"unet": 0.01, "persistence": 0.02})) == []
    # Level with the best of all models, which says nothing about the pair.
    (table, *_) = pairs(handmade({"dmd": 0.001, "pibert": 0.01, "unet": 0.02}, level=["unet"]))
    assert not any(cell.level for row in table.rows for cell in row)


def test_the_best_model_of_every_scale_stands_beside_pibert():
    more = [record(m, "scale_2_nmse", v) for m, v in (("pibert", 0.4), ("unet", 0.3))]
    values = {"pibert": 0.1, "unet": 0.2, "persistence": 0.05}
    more += [record(m, "spectral_rel_l2", v, component="kinetic_energy") for m, v in values.items()]
    table = best_models(handmade(ERRORS, more))
    assert table is not None
    assert [[c.text for c in row] for row in table.rows] == [
        ["scale 2 NMSE ↓", "0.400", "unet", "0.300"],
        ["spectral L2 ↓", "0.100", "persistence", "0.0500"],
    ]


def test_rollouts_show_lead_times_and_what_diverged():
    table = rollout(handmade(ERRORS))
    assert table is not None
    assert [label for label in table.head if "NMSE" in label] == [
        "NMSE at 1 ↓", "NMSE at 2 ↓", "NMSE at 4 ↓",
    ]  # fmt: skip
    assert cell(table, "unet", "NMSE at 2").text == "0.200"
    assert cell(table, "unet", "NMSE at 4").text == "∞"
    assert cell(table, "unet", "diverged").text == "50 %"
    assert cell(table, "unet", "stable horizon").text == "2.50"


def test_over_data_sets_only_models_that_ran_on_all_have_a_mean_rank():
    datasets = together(
        handmade({"pibert": 0.01, "unet": 0.02, "dmd": 0.03}, name="wakes"),
        handmade({"pibert": 0.04, "unet": 0.02}, name="jet"),
    )
    table = overview(datasets)
    assert [cell(table, m, "mean rank").number for m in ("pibert", "unet", "dmd")] == [
        1.5,
        1.5,
        None,
    ]
    assert cell(table, "pibert", "jet").note == "#2"
    assert cell(table, "dmd", "jet").text == "–"
    assert overview(datasets[:1]) is None


def test_the_papers_numbers_are_marked_as_published_and_stand_beside_ours():
    more = [record("fourierflow-det", "nmse", 0.07, space="standardised")]
    more.append(record("pibert", "slice_column_11_rel_l2_win_rate", 0.5, component="|u|"))
    data = handmade(ERRORS | {"fourierflow-det": 0.03}, more)
    assert published(data) == []
    comparison = {**data.results["comparison"], "published": {"wakes": "cylinder-real"}}
    data = replace(data, results={**data.results, "comparison": comparison})
    errors, components, best, costs, shares, protocol = published(data)
    assert cell(errors, "fourierflow", "NMSE, published").text == "0.05931"
    assert cell(errors, "deeponet2d", "LMAE, published").text == "0.26190"  # as printed
    assert cell(errors, "fourierflow", "NMSE, here").number == 0.07
    assert cell(errors, "pinn", "NMSE, published").text == "0.39938"
    assert cell(errors, "pinn", "NMSE, here").text == "–"
    assert [c.text for c in components.rows[3][:4]] == ["v", "pinn", "0.73364", "–"]
    assert cell(best, "Drag proxy (data: 0.05773)", "its value, published").text == "0.06000"
    assert cell(costs, "pibert", "ms per sample, published").text == "5.85"
    assert cell(costs, "pibert", "ms per sample, here").number == pytest.approx(6.676)
    assert cell(shares, "column 11", "win rate, published").text == "86.9 %"
    assert cell(shares, "column 11", "win rate, here").text == "50 %"
    assert "73, 9 and 10" in cell(protocol, "split", "the paper").text
    assert "20,000 samples" in cell(protocol, "budget", "here").text
    rows, columns = data.spec.grid.shape
    assert f"{rows} × {columns}" in cell(protocol, "fields", "here").text


def test_the_papers_gains_and_best_models_stand_beside_ours():
    def standardised(model, metric, value, component="all"):
        return record(model, metric, value, component=component, space="standardised")

    more = [
        standardised("pibert", "nmse", 0.02, "v"),
        standardised("fourierflow", "nmse", 0.08, "v"),
        standardised("pibert", "scale_4_nmse", 0.03),
        standardised("unet", "scale_4_nmse", 0.01),
        standardised("pibert", "haar_nmse", 0.5, "v_HL1"),
        standardised("unet", "haar_nmse", 0.6, "v_HL1"),
    ]
    data = handmade(ERRORS | {"fourierflow": 0.03}, more)
    comparison = {**data.results["comparison"], "published": {"wakes": "fsi-real"}}
    data = replace(data, results={**data.results, "comparison": comparison})
    _, components, best, *_ = published(data)
    gain = dict(zip(components.head, components.rows[2], strict=True))
    assert (gain["component"].text, gain["model"].text) == ("v", "pibert")
    assert gain["NMSE, published"].text == "0.000381"
    assert gain["gain in NMSE, published"].text == "34.7 %"
    assert gain["gain in NMSE, here"].text == "75.0 %"
    assert cell(best, "Scale-4 NMSE", "PIBERT, published").text == "0.00006776"
    assert cell(best, "Scale-4 NMSE", "best model, here").text == "unet"
    assert cell(best, "Divergence MSE", "best model, published").text == "deeponet2d"
    assert cell(best, "Divergence MSE", "its value, here").text == "–"
    assert cell(best, "v-HL1 NMSE", "PIBERT, published").text == "0.00435680"
    assert cell(best, "v-HL1 NMSE", "PIBERT, here").number == 0.5
    assert cell(best, "v-HL1 NMSE", "best model, here").text == "pibert"


def test_data_sets_are_described_with_their_parameters_and_pairs_of_frames():
    data = handmade(ERRORS)
    origin = {"frames": [5, 6, 7, 8], "stride": 20}
    parameters = [{"Re": 1832.0}, {"Re": 10031.0}, {}, {"Re": 2000.0}]
    facts = {"origin": origin, "parameters": parameters}
    scores = {key: changed(own, **facts) for key, own in data.scores.items()}
    source = {"path": "x", "fingerprint": "abc", "test": {"fingerprint": "def"}}
    results = {**data.results, "data": {"wakes": {**data.facts, "source": source}}}
    data = replace(data, scores=scores, results=results)
    # Trajectories 0 and 2 train: 4 and 6 pairs.
    split = cell(benchmarks.summary([data]), "wakes", "split").text
    assert "train 2 (10), validation 1 (5), test 1 (7)" in split
    table = benchmarks.provenance([data])
    assert cell(table, "wakes", "parameters").text == "Re 1832 to 10031"
    assert cell(table, "wakes", "fingerprint").text == "abc; test def"
