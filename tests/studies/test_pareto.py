"""The page on choosing a model states what the committed results hold."""

import re

import pytest

from studies.pareto import DATA, costs, errors, read_results, rollouts
from tests.documents import read_page

PAGE = "docs/choose-a-model.md"
ROWS = {
    "`pibert-mr`, `large`": "pibert-mr-large",
    "`pibert-mr`, `base`": "pibert-mr",
    "`mwt`": "mwt",
    "`unet`": "unet",
    "`pibert`": "pibert-scratch",
    "`fno2d`, `modes16`": "fno2d-modes16",
}
"""Models by their first cell in the table."""


def table() -> dict[str, list[str]]:
    (found,) = re.findall(r"^\| model \| cylinder wakes.*?\n\n", read_page(PAGE), re.M | re.S)
    rows = [
        [cell.strip(" *") for cell in line.split("|")[1:-1]] for line in found.strip().splitlines()
    ]
    return {ROWS[row[0]]: row[1:] for row in rows if row[0] in ROWS}


def agrees(stated: str, value: float) -> bool:
    """Whether a number is the value, rounded to the digits that are stated."""
    digits = len(re.sub(r"e.*", "", stated).replace(".", "").lstrip("0"))
    return float(stated) == float(f"{value:.{digits}g}")


def test_errors_and_costs_of_the_page_are_those_of_the_results() -> None:
    stated = table()
    assert stated.keys() == set(ROWS.values())
    for column, name in enumerate(DATA):
        for model, error in errors(read_results(name)).items():
            if model in stated:
                assert agrees(stated[model][column], error), (name, model, error)
    time, arithmetic = costs(read_results("cylinder")).values()
    for model, row in stated.items():
        assert agrees(row[5], time[model]), (model, time[model])
        assert float(row[4]) == pytest.approx(arithmetic[model], abs=0.06)


def test_rollouts_that_diverge_end_early() -> None:
    jet = rollouts(read_results("jet"))
    assert max(jet["dmd"]) == 40 and max(jet["pibert-mr"]) < 40
