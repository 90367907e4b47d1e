from pibert.evaluation.ensembles import entries_of
from pibert.evaluation.scores import Scores
from pibert.evaluation.scoring import vars_of
from pibert.report.comparison.board import Board
from pibert.report.comparison.draws import draws
from tests.report.comparison.invented_board import invented


def test_models_that_sample_have_a_row_each_and_others_none():
    board = invented(3)
    assert draws(board) is None
    entries = entries_of(board.spec)
    facts = {"frames": 64, "draws": 8}
    scores = {
        key: Scores(own.card | ({"draws": facts} if key[0] == "unet" else {}), own.arrays)
        for key, own in board.scores.items()
    }
    records = [
        {"data": "wake", "model": "unet", "seed": 0, "space": "physical", "value": 0.01 * place}
        | vars_of(entry)
        | {"against_best": None}
        for place, entry in enumerate(entries, start=1)
    ]
    results = {**board.results, "records": [*board.results["records"], *records]}
    table = draws(Board(board.name, results, scores))
    assert table is not None and "8 draws for each of 64 test frames" in table.caption
    (row,) = table.rows
    assert row[0].text == "unet" and len(row) == len(table.head) == 12
    numbers = dict(zip(table.head, (cell.number for cell in row), strict=True))
    assert numbers["NMSE of a draw ↓"] == 0.03  # of all channels, after u and v
    assert numbers["CRPS v [m/s] ↓"] == 0.11 and numbers["spread-skill all"] == 0.15
