"""Tables against numbers worked out by hand, and their three looks."""

import re
import statistics
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from pibert.report.comparison import diagnostic_tables, run_tables
from pibert.report.comparison.markup import Cell, Table, as_html, as_latex, as_markdown
from pibert.report.comparison.numbers import digits, duration, near_one, scaled, size
from pibert.report.comparison.tables import (
    components,
    overview,
    seeds,
    standardised,
    summary,
    tables_of,
)
from tests.report.comparison.handmade_board import handmade, record, together

ERRORS = {"unet": 0.02, "pibert": 0.01, "persistence": 0.04}


def cell(table: Table | None, model: str, column: str) -> Cell:
    assert table is not None
    place = next(n for n, label in enumerate(table.head) if label.startswith(column))
    return next(row for row in table.rows if row[table.header].text == model)[place]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (0.0279038, "0.0279"), (0.000244, "2.44e-4"), (1.0, "1.00"), (-2.0694, "-2.07"),
        (12345.6, "12300"), (1234567.0, "1.23e6"), (0.0009996, "0.00100"), (0.99999, "1.00"),
        (float("inf"), "∞"), (float("nan"), "–"), (100, "100"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits(value, text):
    assert digits(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.954, "0.954"), (0.99960, "0.99960"), (0.9999999999, "0.999999"), (1.0, "1.000"),
        (-0.1334, "-0.133"), (-1e-9, "0.000"), (-250.0, "-250"), (0.0, "0.000"),
    ],
)  # fmt: skip
def test_what_is_near_one_shows_what_is_missing_and_is_not_rounded_up_to_it(value, text):
    assert near_one(value) == text


def test_sizes_counts_and_times_have_units():
    assert [size(73), size(6_200_000), size(999_900)] == ["73 B", "6.20 MB", "1.00 MB"]
    assert [scaled(0), scaled(50_680_896)] == ["0", "50.7 M"]
    assert [duration(1.254), duration(150), duration(7200)] == ["1.25 s", "2.5 min", "2.0 h"]


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
    assert "not significantly different from it" in table.caption


def test_the_summary_tells_what_models_cost():
    table = summary(handmade(ERRORS))
    assert cell(table, "pibert", "parameters").text == "1,560,232"
    assert cell(table, "pibert", "ms at batch 128").text == "1.15"
    assert cell(table, "pibert", "training").text == "90.0 s"  # 30 of them pretraining
    assert cell(table, "persistence", "training").text == "–"


def test_without_intervals_nothing_is_marked_and_the_caption_says_why():
    table = summary(handmade(ERRORS, marked=False))
    assert table is not None
    assert not any(own.level or own.note for row in table.rows for own in row)
    assert "too little data for intervals" in table.caption


def test_several_seeds_give_mean_spread_and_the_widest_interval():
    pibert, unet = [0.010, 0.014, 0.018], [0.02, 0.02, 0.03]
    board = handmade({"pibert": pibert, "unet": unet, "persistence": 0.04})
    assert cell(summary(board), "pibert", "NMSE").text == "0.0140"
    assert cell(summary(board), "pibert", "NMSE").note == "[0.00900, 0.0216]"
    table = seeds(board)
    spread = statistics.stdev(pibert)
    assert cell(table, "pibert", "standard").number == pytest.approx(spread)
    assert cell(table, "unet", "seed 2").text == "0.0300"
    assert cell(table, "persistence", "standard").text == "–"
    assert cell(table, "persistence", "seed 2").text == "0.0400"
    whole = components(board)[0]
    assert cell(whole, "pibert", "NMSE").note == "± 0.0040"
    assert cell(whole, "persistence", "NMSE").note == ""
    assert seeds(handmade(ERRORS)) is None


def test_a_model_level_with_the_best_in_one_seed_alone_is_marked():
    board = handmade({"pibert": [0.01, 0.01], "unet": [0.02, 0.02]})
    assert not cell(summary(board), "unet", "NMSE").level
    last = next(r for r in board.results["records"] if (r["model"], r["seed"]) == ("unet", 1))
    last["against_best"] = "level"
    assert cell(summary(board), "unet", "NMSE").level


def test_the_dagger_of_a_column_is_about_the_bold_model_of_that_column():
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


def test_higher_is_better_for_r2_and_units_stand_in_the_head():
    more = [record(m, "r2", v, better="higher") for m, v in (("pibert", 0.9), ("unet", 0.95))]
    more += [record(m, "rmse", v, unit="m/s") for m, v in (("pibert", 0.3), ("unet", 0.2))]
    (table,) = components(handmade(ERRORS, more))
    assert table.head == ("model", "NMSE ↓", "R² ↑", "RMSE [m/s] ↓")
    assert cell(table, "unet", "R²").best and not cell(table, "pibert", "R²").best
    assert cell(table, "unet", "RMSE").best
    assert cell(table, "persistence", "RMSE").text == "–"


def test_what_looks_the_same_for_all_has_no_best_and_equals_share_it():
    more = [record(m, "rmse", 0.2) for m in ERRORS]
    more += [record(m, "mae", v) for m, v in zip(ERRORS, (0.1, 0.1000001, 0.3), strict=True)]
    more += [record(m, "lmae", v) for m, v in zip(ERRORS, (0.1, 0.1000001, 0.3), strict=True)]
    (table,) = components(handmade(ERRORS, more))
    assert not any(cell(table, m, "RMSE").best for m in ERRORS)
    assert [cell(table, m, "LMAE").best for m in ERRORS] == [True, True, False]


def test_every_component_has_a_table_and_standardised_numbers_have_their_own():
    more = [record(m, "nmse", 0.1, component=c) for m in ERRORS for c in ("u", "|u|")]
    more += [record(m, "nmse", 0.7, space="standardised") for m in ERRORS]
    board = handmade(ERRORS, more)
    assert [t.title for t in components(board)] == ["All channels", "Component u", "Speed |u|"]
    assert cell(components(board)[0], "pibert", "NMSE").text == "0.0100"
    assert cell(standardised(board), "pibert", "NMSE all").text == "0.700"


def test_the_floor_of_the_data_stands_below_the_models():
    more = [record("pibert", "divergence_mean_square", 0.004, component="prediction",
                   better="none", unit="(1/D)^2"),
            record("pibert", "divergence_mean_square", 0.003, component="truth", better="none"),
            record("pibert", "divergence_rmse", 0.01, component="divergence")]  # fmt: skip
    table = diagnostic_tables.physics(handmade(ERRORS, more))
    assert table is not None
    assert [own.text for own in table.foot[0]] == ["(data)", "", "0.00300"]
    assert not cell(table, "pibert", "mean square").best


def test_the_caption_of_slices_speaks_of_a_body_only_where_there_is_one():
    fixed = [record(m, "slice_column_11_rel_l2", 0.1, component="|u|") for m in ERRORS]
    tied = [record(m, "slice_far_wake_rel_l2", 0.1, component="|u|") for m in ERRORS]
    free, wake = (diagnostic_tables.slices(handmade(ERRORS, own)) for own in (fixed, fixed + tied))
    assert free is not None and wake is not None
    assert "body" not in free.caption and "downstream of the body" in wake.caption


def test_the_best_ratio_is_the_nearest_to_one():
    # ln 1.9 = 0.64 is less than -ln 0.5 = 0.69, and a ratio of 0 is infinitely far.
    values = {"pibert": 0.5, "unet": 1.9, "persistence": 0.0}
    more = [record(m, "psd_ratio_low", v, better="none") for m, v in values.items()]
    table = diagnostic_tables.temporal(handmade(ERRORS, more))
    assert [cell(table, m, "low").best for m in values] == [False, True, False]


def test_rollouts_show_lead_times_and_what_diverged():
    table = run_tables.rollout(handmade(ERRORS))
    assert table is not None
    assert [label for label in table.head if "NMSE" in label] == [
        "NMSE at 1 ↓", "NMSE at 2 ↓", "NMSE at 4 ↓",
    ]  # fmt: skip
    assert cell(table, "unet", "NMSE at 2").text == "0.200"
    assert cell(table, "unet", "NMSE at 4").text == "∞"
    assert cell(table, "unet", "diverged").text == "50 %"
    assert cell(table, "unet", "stable horizon").text == "2.50"
    assert "6 starts" in table.caption


def test_costs_and_training_are_those_of_the_runs_that_did_not_fail():
    board = handmade({**ERRORS, "unet": [0.02, 0.02]}, failed=[("fno2d", "out of memory")])
    costs, ended = run_tables.cost(board), run_tables.training(board)
    assert cell(costs, "pibert", "checkpoint").text == "6.20 MB"
    assert cell(costs, "pibert", "FLOPs").text == "50.7 M"
    assert cell(costs, "unet", "training").text == "90.0 s"  # the mean of 60 and 120
    assert cell(ended, "unet", "validation loss").text == "0.250"
    assert cell(ended, "pibert", "pretraining").text == "2"
    assert cell(ended, "persistence", "best epoch").text == "–"


def test_times_of_runs_that_shared_a_device_are_marked_as_upper_bounds():
    board = handmade(ERRORS)
    alone = run_tables.cost(board)
    assert alone is not None and "shared a device" not in alone.caption
    assert cell(alone, "unet", "training").note == ""
    company = {"unet": (3, True), "pibert": (None, None), "persistence": (1, False)}
    runs = [
        {**run, "at_a_time": company[run["model"]][0], "shared_device": company[run["model"]][1]}
        for run in board.results["runs"]
    ]
    shared = replace(board, results={**board.results, "runs": runs})
    for table in (run_tables.cost(shared), run_tables.training(shared), summary(shared)):
        assert cell(table, "unet", "training").note == "shared device"
        assert cell(table, "pibert", "training").note == "trained elsewhere"
        assert cell(table, "persistence", "training").note == ""
        assert table is not None and "Up to 3 runs at a time shared a device" in table.caption
        assert "upper bounds, and cannot be compared" in table.caption


def test_persistence_and_the_unet_stand_in_every_table_however_many_models_there_are():
    names = [f"variant-{n}" for n in range(23)]
    errors = {m: 0.001 * (n + 1) for n, m in enumerate([*names, "unet", "persistence"])}
    more = [record(m, metric, 0.1, component=c)
            for m in errors
            for metric, c in (("scale_2_nmse", "all"), ("vorticity_nmse", "vorticity"),
                              ("slice_far_wake_rel_l2", "|u|"), ("psd_log_error", "all"),
                              ("haar_nmse", "u_LL3"), ("band_nmse", "low"),
                              ("official_rmse", "all"))]  # fmt: skip
    made = [table for _, table in tables_of(handmade(errors, more))]
    assert len(made) >= 11
    for table in made:
        assert {"unet", "persistence"} <= {row[table.header].text for row in table.rows}
        assert len(table.rows) == 25


def test_what_was_not_measured_has_no_table():
    names = [table.name for _, table in tables_of(handmade(ERRORS))]
    assert "wakes-summary" in names
    assert not any(
        name.startswith(("wakes-temporal", "wakes-haar", "wakes-slices")) for name in names
    )


def test_over_data_sets_only_models_that_ran_on_all_have_a_mean_rank():
    boards = together(
        handmade({"pibert": 0.01, "unet": 0.02, "dmd": 0.03}, name="wakes"),
        handmade({"pibert": 0.04, "unet": 0.02}, name="jet"),
    )
    table = overview(boards)
    assert [cell(table, m, "mean rank").number for m in ("pibert", "unet", "dmd")] == [
        1.5,
        1.5,
        None,
    ]
    assert cell(table, "pibert", "jet").note == "#2"
    assert cell(table, "dmd", "jet").text == "–"
    assert overview(boards[:1]) is None


HOSTILE = Table(
    name="hostile",
    title="A & B | <script>",
    caption="100 % of x_1",
    head=("model", "error ↓"),
    rows=(
        (Cell(text="<b>|a_b&c%</b>"), Cell(text="2.44e-4", number=2.44e-4, best=True, level=True)),
        (Cell(text="v1e5"), Cell(text="-0.5", number=-0.5, note="[-1.0e-5, 3.00]")),
    ),
    foot=((Cell(text="(data)"), Cell(text="")),),
)


class Outline(HTMLParser):
    """Tags that are open, cells of every row, and values to sort by."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[int] = []
        self.values: list[str | None] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += 1
            assert tag == "td" or dict(attrs)["scope"] in ("row", "col")
        if "data-value" in dict(attrs):
            self.values.append(dict(attrs)["data-value"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_html_is_well_formed_and_takes_no_text_for_markup():
    outline = Outline()
    outline.feed(as_html(HOSTILE))
    assert outline.open == [] and outline.rows == [2, 2, 2, 2]
    assert [float(value or "nan") for value in outline.values] == [2.44e-4, -0.5]
    assert "<b>|a_b&c%</b>" in outline.text and "v1e5" in outline.text
    assert "2.44×10<sup>−4</sup></b><sup>†</sup>" in as_html(HOSTILE)
    assert "−0.5" in as_html(HOSTILE)


def test_markdown_keeps_its_columns():
    lines = [line for line in as_markdown(HOSTILE).splitlines() if line.startswith("|")]
    assert len(lines) == 5
    for line in lines:
        assert len(re.findall(r"(?<!\\)\|", line)) == 3
    assert "**2.44e-4**†" in lines[2]


def test_latex_keeps_its_columns_and_sets_powers():
    text = as_latex(HOSTILE)
    body = text.partition(r"\midrule")[2].partition(r"\bottomrule")[0]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 3
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == 1
        assert not re.search(r"(?<!\\)[%_#]", row)
    assert r"$2.44\times10^{-4}$" in rows[0] and r"\textdagger" in rows[0]
    assert "v1e5" in rows[1] and r"$-$0.5 {\scriptsize [$-$$1.0\times10^{-5}$, 3.00]}" in rows[1]
    plain = re.sub(r"\\[{}]", "", text)
    assert plain.count("{") == plain.count("}") and plain.count("$") % 2 == 0


def test_rows_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="expected 2 cells in every row of 'odd', found 1"):
        Table(name="odd", title="", caption="", head=("a", "b"), rows=((Cell(text="x"),),))
