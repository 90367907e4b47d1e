"""The table and the figure of tuning, from results written by hand."""

from dataclasses import replace
from typing import Any

from pibert.report.comparison.board import Board
from pibert.report.comparison.markup import Cell
from pibert.report.comparison.tuning import tuning, tuning_table
from pibert.report.comparison.wording import protocol
from tests.report.comparison.handmade_board import handmade
from tests.report.comparison.invented_board import axes_of

ERRORS = {"unet": 0.02, "pibert": 0.01, "persistence": 0.04, "taken": 0.03}
RATES = (1e-3, 2e-3, 4e-3)


def trial(optimizer: str, rate: float, error: float | None) -> dict[str, Any]:
    return {"optimizer": optimizer, "learning_rate": rate, "samples": 4000, "valid_error": error}


def record(model: str, chosen: tuple[str, float], edge: str | None, trials: list[Any]) -> Any:
    by_setting = {(own["optimizer"], own["learning_rate"]): own["valid_error"] for own in trials}
    optimizer, rate = chosen
    return {
        "data": "wakes", "model": model, "tuned_on": "wakes", "trials": trials, "edge": edge,
        "chosen": {
            "optimizer": optimizer, "learning_rate": rate, "valid_error": by_setting[chosen],
        },
    }  # fmt: skip


def board_of(records: list[Any], optimizers: tuple[str, ...] = ("adamw", "muon")) -> Board:
    board = handmade(ERRORS)
    plan = dict(board.results["comparison"]) | {
        "entrants": {name: {"run": "runs/mine" if name == "taken" else None} for name in ERRORS},
        "tuning": {
            "learning_rates": list(RATES), "optimizers": list(optimizers), "budget": 0.2,
            "seed": 0, "reuse": {},
        },
    }  # fmt: skip
    recipe = {"optimizer": "adamw", "learning_rate": 3e-4}
    runs = [own | recipe if own["model"] == "taken" else own for own in board.results["runs"]]
    results = {**board.results, "comparison": plan, "tuning": records, "runs": runs}
    return replace(board, results=results)


def both() -> Board:
    tried = [(name, rate) for name in ("adamw", "muon") for rate in RATES]
    unet = [
        trial(*own, error)
        for own, error in zip(tried, (5.0, 4.0, 3.0, 4.0, 2.0, None), strict=True)
    ]
    pibert = [
        trial(*own, error) for own, error in zip(tried, (8.0, 7.0, 6.0, 5.0, 4.0, 1.0), strict=True)
    ]
    return board_of(
        [
            record("unet", ("muon", 2e-3), None, unet),
            record("pibert", ("muon", 4e-3), "highest", pibert),
        ]
    )


def cells(board: Board) -> dict[str, dict[str, Cell]]:
    table = tuning_table(board)
    assert table is not None
    return {row[0].text: dict(zip(table.head, row, strict=True)) for row in table.rows}


def test_the_table_shows_what_each_model_was_tuned_to_and_what_was_not_tuned() -> None:
    found = cells(both())
    assert set(found) == set(ERRORS)
    assert found["unet"]["optimiser"].text == "muon"
    rate = found["unet"]["learning rate"]
    assert (rate.text, rate.number, rate.note) == ("0.002", 2e-3, "")
    assert found["pibert"]["learning rate"].note == "highest tried"
    assert found["persistence"]["optimiser"].text == "not tuned"
    taken = found["taken"]
    assert (taken["optimiser"].text, taken["optimiser"].note) == ("adamw", "not tuned")
    assert taken["learning rate"].text == "0.0003"


def test_the_table_has_every_trial_with_the_chosen_one_bold() -> None:
    found = cells(both())
    assert found["unet"]["muon 0.004"].text == "diverged"
    assert [name for name, cell in found["unet"].items() if cell.best] == ["muon 0.002"]
    assert found["pibert"]["adamw 0.001"].number == 8
    table = tuning_table(both())
    assert table is not None and "6 trials of 4,000 samples (20 % of the budget" in table.caption


def test_the_figure_has_a_line_for_each_model_and_a_ring_at_the_choice() -> None:
    board = both()
    drawn = tuning(board)
    panels = axes_of(drawn)
    assert [ax.get_title(loc="left") for ax in panels] == ["adamw", "muon"]
    lines = {line.get_color(): line for line in panels[1].lines if line.get_marker() == "."}
    unet = lines[board.colour("unet")]
    assert list(unet.get_xdata()) == [1e-3, 2e-3]  # the third diverged
    assert list(unet.get_ydata()) == [4, 2]
    rings = [[li for li in ax.lines if li.get_marker() == "o"] for ax in panels]
    assert [len(own) for own in rings] == [0, 2]
    assert sorted(li.get_xdata()[0] for li in rings[1]) == [2e-3, 4e-3]
    assert drawn is not None and "Rings" in drawn.caption and "2 models" in drawn.alt


def test_the_protocol_states_the_budget_edges_and_who_was_not_tuned() -> None:
    board = both()
    facts = dict(protocol(board.results, [board]))
    assert "as tuned" in facts["Budget"] and "learning rate 0.001" not in facts["Budget"]
    said = facts["Tuning"]
    assert said.startswith("Learning rates 0.001, 0.002, 0.004 with adamw and muon;")
    assert "6 trials of 4,000 samples (20 % of the budget" in said
    assert "may lie beyond: pibert on wakes (highest)." in said
    assert "Not tuned: persistence and taken." in said


def test_without_tuning_there_is_neither_table_nor_figure() -> None:
    board = handmade(ERRORS)
    assert tuning_table(board) is None and tuning(board) is None
    assert "Tuning" not in dict(protocol(board.results, [board]))


def test_one_rate_alone_makes_no_figure() -> None:
    one = [trial("adamw", 1e-3, 2.0), trial("muon", 1e-3, 1.0)]
    board = board_of([record("unet", ("muon", 1e-3), None, one)])
    assert tuning(board) is None
    assert cells(board)["unet"]["muon 0.001"].best
