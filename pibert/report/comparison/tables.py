"""The ranked summary, the tables of components, and the literal list of all tables of a report.

Every table has all models as rows, the best first: none is cut, so that persistence and the U-Net
stand in each. A table is a function of a ``Board``; None where nothing was measured for it.
"""

import math
import statistics
from collections.abc import Callable, Sequence

from pibert.report.comparison import diagnostic_tables, flows, run_tables
from pibert.report.comparison.board import UNTRAINED, Board
from pibert.report.comparison.columns import (
    Column,
    Numbers,
    columns_of,
    marks,
    several,
    table_of,
)
from pibert.report.comparison.draws import draws
from pibert.report.comparison.markup import Cell, Table
from pibert.report.comparison.numbers import digits, percent
from pibert.report.comparison.run_tables import sharing_text, summary_costs
from pibert.report.comparison.tuning import tuning_table

_POINTWISE = {
    "nmse": "NMSE",
    "lmae": "LMAE",
    "lpcc": "LPCC",
    "r2": "R²",
    "rel_l2": "RelL2",
    "rmse": "RMSE",
}


def overview(boards: Sequence[Board]) -> Table | None:
    """Rank and NMSE of every model on every data set; None where there is only one set."""
    if len(boards) < 2:
        return None
    ranks = {board.name: {m: n for n, m in enumerate(board.models, 1)} for board in boards}
    models = list(dict.fromkeys(m for board in boards for m in board.models))
    # A model that has not run everywhere has no mean rank.
    means = {
        m: sum(own[m] for own in ranks.values()) / len(ranks)
        for m in models
        if all(m in own for own in ranks.values())
    }
    models.sort(key=lambda m: means.get(m, math.inf))
    columns = [Numbers(label="mean rank ↓", values=means, better="lower", form=digits)]
    for board in boards:
        errors: dict[str, float | None] = {m: board.value(m, "nmse") for m in models}
        places = {m: f"#{own}" for m, own in ranks[board.name].items()}
        columns.append(
            Numbers(label=f"{board.name} NMSE ↓", values=errors, better="lower", notes=places)
        )
    return Table(
        name="overview",
        title="All data sets",
        caption="NMSE of all channels, physical units, with the rank (#) on each data set. "
        "Bold: best of the column. Whether differences are significant stands in the ranked "
        "summaries.",
        head=("model", *(column.label for column in columns)),
        rows=tuple((Cell(text=m), *(column.cell(m) for column in columns)) for m in models),
    )


def summary(board: Board) -> Table | None:
    """Ranked by NMSE, with what the ranking should be weighed against."""
    columns = columns_of(
        board,
        (
            Column(label="NMSE", metric="nmse", interval=True),
            Column(label="NMSE, mean over flows", metric="nmse_flow_mean"),
            Column(label="skill", metric="skill"),
            Column(label="R²", metric="r2"),
            Column(label="RMSE", metric="rmse"),
            Column(label="win rate", metric="win_rate", form=percent),
        ),
    )
    # The spread over seeds has a table of its own.
    plain = [columns[0], *map(_without_notes, columns[1:])]
    over = "; with several seeds from their lowest end to their highest" if several(board) else ""
    table = table_of(
        "summary",
        f"{board.name}: next frame, ranked",
        "NMSE of all channels in physical units with its 95 % interval"
        f"{over}. Skill is against persistence, which has 0. Win rate: share of the test frames "
        "on which a model is the best of all, its equals sharing the frame. "
        f"{marks(board)} A difference is significant where "
        "its 95 % interval, from the same draws for both models, leaves out zero."
        f"{sharing_text(board)}",
        board,
        [*plain, *summary_costs(board)],
    )
    if table is None:
        return None
    ranks = [Cell(text=str(n), number=n) for n in range(1, len(table.rows) + 1)]
    return Table(
        name=table.name,
        title=table.title,
        caption=table.caption,
        head=("rank", *table.head),
        rows=tuple((rank, *row) for rank, row in zip(ranks, table.rows, strict=True)),
        header=1,
    )


def _without_notes(column: Numbers) -> Numbers:
    return Numbers(
        label=column.label,
        values=column.values,
        better=column.better,
        form=column.form,
        level=column.level,
    )


def seeds(board: Board) -> Table | None:
    """NMSE of every seed; None where there is only one."""
    if not several(board):
        return None
    numbers = sorted({seed for _, seed in board.scores})
    found = {m: {r["seed"]: r["value"] for r in board.find(m, "nmse")} for m in board.models}
    known = {m: [v for v in own.values() if v is not None] for m, own in found.items()}
    spread = {m: statistics.stdev(v) if len(v) > 1 else None for m, v in known.items()}
    for model in set(UNTRAINED) & set(found):  # the one run is that of every seed
        found[model] = dict.fromkeys(numbers, board.value(model, "nmse"))
    columns = [
        Numbers(
            label="mean NMSE ↓",
            values={m: board.value(m, "nmse") for m in board.models},
            better="lower",
        ),
        Numbers(label="standard deviation", values=spread),
        *(
            Numbers(label=f"seed {n}", values={m: found[m].get(n) for m in found}, better="lower")
            for n in numbers
        ),
    ]
    caption = (
        "Bold: best of the column. Predictors that nothing is trained of are the same for all "
        "seeds."
    )
    return table_of("seeds", "NMSE over seeds", caption, board, columns)


def components(board: Board) -> list[Table]:
    """A table for every channel, the speed, and all together."""
    found = dict.fromkeys(r["component"] for r in board.records if r["metric"] == "nmse")
    made = [_component(board, name) for name in found]
    return [table for table in made if table is not None]


def _component(board: Board, name: str) -> Table | None:
    columns = [Column(label=v, metric=k, component=name) for k, v in _POINTWISE.items()]
    plain = {"|u|": "speed", "all": "all"}.get(name, name)
    title = {"|u|": "Speed |u|", "all": "All channels"}.get(name, f"Component {name}")
    caption = f"Next frame, physical units, pooled over all known points. {marks(board)}"
    return table_of(f"component-{plain}", title, caption, board, columns_of(board, columns))


def standardised(board: Board) -> Table | None:
    """The compact form in the units that models see, for comparison with published tables."""
    found = dict.fromkeys(r["component"] for r in board.records if r["metric"] == "nmse")
    columns = [
        Column(label=f"{label} {name}", metric=metric, component=name, space="standardised")
        for metric, label in (("nmse", "NMSE"), ("r2", "R²"))
        for name in found
    ]
    caption = (
        "Each channel less its training mean, over its training standard deviation: the units of "
        f"published tables. |u| is then no speed. {marks(board)}"
    )
    title = "Standardised units"
    return table_of("standardised", title, caption, board, columns_of(board, columns))


Maker = Callable[[Board], Table | Sequence[Table] | None]
TABLES: tuple[tuple[str, Maker], ...] = (
    ("Ranking", summary),
    ("Ranking", seeds),
    ("Flows", flows.flow_table),
    ("Components", components),
    ("Components", standardised),
    ("Scales", diagnostic_tables.scales),
    ("Scales", diagnostic_tables.spectra),
    ("Scales", diagnostic_tables.haar),
    ("Physics", diagnostic_tables.physics),
    ("Wake", diagnostic_tables.slices),
    ("Time", diagnostic_tables.temporal),
    ("Benchmark", diagnostic_tables.official),
    ("Model", draws),
    ("Cost", run_tables.cost),
    ("Convergence", tuning_table),
    ("Convergence", run_tables.training),
    ("Rollout", run_tables.rollout),
)
"""Section and table, in the order of the page."""


def tables_of(board: Board) -> list[tuple[str, Table]]:
    """All tables of a data set with their sections."""
    found: list[tuple[str, Table]] = []
    for section, make in TABLES:
        made = make(board)
        tables = [made] if isinstance(made, Table) else list(made or ())
        found += [(section, table) for table in tables]
    return found
