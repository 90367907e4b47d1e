"""The report in a real browser: nothing is cut that there is room for, large or small."""

from pathlib import Path
from typing import Any

import pytest

from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import Drawn, blank
from pibert.report.comparison.page import write_report
from tests.report.comparison.handmade_board import handmade, record
from tests.serve.visit import browser, expect

__all__ = ["browser"]

METRICS = ("nmse", "lmae", "lpcc", "r2", "rel_l2", "rmse")
WIDTH = 960


def wide(board: Board) -> Drawn:
    return Drawn(blank(WIDTH / 96, 4), "A wide one.", "Nothing.")


@pytest.fixture
def report(tmp_path: Path) -> str:
    errors = {"unet": [0.0279, 0.0281], "pibert": [0.0376, 0.0379], "persistence": [0.07, 0.07]}
    more = [
        record(model, metric, value, seed=seed, component="u")
        for model, values in errors.items()
        for seed, value in enumerate(values)
        for metric in METRICS
    ]
    board = handmade(errors, more)
    return write_report(tmp_path, board.results, [board], [("Fields", wide)]).as_uri()


def opened(browser: Any, address: str, width: int) -> Any:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    return page


def test_a_table_takes_half_the_page_where_it_fits_and_else_the_whole(
    browser: Any, report: str
) -> None:
    page = opened(browser, report, 1400)
    boxes = page.locator(".tables .scroll").all()
    assert all(box.evaluate("box => box.scrollWidth <= box.clientWidth") for box in boxes)
    whole = page.locator("main").bounding_box()["width"]
    widths = {
        name: page.locator(f"#wakes-{name}").bounding_box()["width"] / whole
        for name in ("component-u", "seeds")
    }
    assert widths["component-u"] > 0.9 and widths["seeds"] < 0.5


def test_on_a_small_screen_a_figure_is_whole_and_a_tap_enlarges_it(
    browser: Any, report: str
) -> None:
    page = opened(browser, report, 390)
    picture = page.locator("figure.picture img")
    expect(page.locator("figure.picture")).to_have_class("picture shrunk")
    assert picture.bounding_box()["width"] < 390
    picture.click()
    assert picture.bounding_box()["width"] == WIDTH
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("figure.picture .scroll").press("Enter")
    assert picture.bounding_box()["width"] < 390


def test_a_large_screen_has_nothing_to_enlarge(browser: Any, report: str) -> None:
    page = opened(browser, report, 1400)
    expect(page.locator("figure.picture")).to_have_class("picture")
    page.locator("figure.picture img").click()
    assert page.locator("figure.picture img").bounding_box()["width"] == WIDTH
