"""The table of models that sample: what a draw is worth, and whether the spread tells the error."""

from dataclasses import replace

from pibert.report.comparison.board import Board
from pibert.report.comparison.columns import Column, columns_of, table_of
from pibert.report.comparison.markup import Table


def draws(board: Board) -> Table | None:
    """Scores of single draws and of ensembles of them, of the models that give any."""
    facts = {m: board.first(m).card.get("draws") for m in board.models}
    known = {m: own for m, own in facts.items() if own}
    if not known:
        return None
    components = (*board.spec.channels, "all")
    columns = [
        Column(label="NMSE of a draw", metric="draw_nmse"),
        Column(label="NMSE of the mean", metric="draws_mean_nmse"),
        *(
            Column(label=f"{label} {name}", metric=metric, component=name, ideal=ideal)
            for metric, label, ideal in (
                ("draws_spread", "spread", None),
                ("spread_skill", "spread-skill", 1.0),
                ("crps", "CRPS", None),
            )
            for name in components
        ),
    ]
    first = next(iter(known.values()))
    caption = (
        f"{first['draws']} draws for each of {first['frames']} test frames, evenly spread; "
        "physical units. Spread: root mean square of the standard deviation over draws. "
        "Spread-skill: that over the error of the mean, corrected for the number of draws; 1 is "
        "reliable, less is too sure. CRPS is the fair one, whose counterpart for a single "
        "answer is the mean absolute error. Models that do not sample have no row."
    )
    table = table_of("draws", "Draws", caption, board, columns_of(board, columns))
    if table is None:
        return None
    return replace(table, rows=tuple(row for row in table.rows if row[0].text in known))
