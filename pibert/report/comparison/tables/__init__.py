"""All tables of a report: a table is a function of ``DatasetResults`` and a line in ``TABLES``.

A function returns None where nothing was measured for its table. Every table lists all models, best
first.
"""

from collections.abc import Callable, Sequence

from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.table import Table
from pibert.report.comparison.tables import cost, next_frame, paper, ranking, rollouts

Maker = Callable[[DatasetResults], Table | Sequence[Table] | None]
TABLES: tuple[tuple[str, Maker], ...] = (
    ("Ranking", ranking.summary),
    ("Ranking", ranking.paired),
    ("Ranking", ranking.rates),
    ("Ranking", ranking.seeds),
    ("Published", paper.published),
    ("Rollout", rollouts.rollout),
    ("Rollout", rollouts.intervals),
    ("Structure", rollouts.vibrations),
    ("Statistics", rollouts.free_runs),
    ("Statistics", rollouts.more_free_runs),
    ("Flows", ranking.flows),
    ("Flows", ranking.conditions),
    ("Components", next_frame.components),
    ("Components", next_frame.pairs),
    ("Components", next_frame.standardised),
    ("Scales", next_frame.best_models),
    ("Scales", next_frame.scales),
    ("Scales", next_frame.spectra),
    ("Scales", next_frame.haar),
    ("Physics", next_frame.physics),
    ("Physics", rollouts.family),
    ("Wake", next_frame.slices),
    ("Time", next_frame.temporal),
    ("Benchmark", next_frame.official),
    ("Benchmark", rollouts.official_rollouts),
    ("Benchmark", rollouts.competition),
    ("Cost", cost.cost),
    ("Convergence", cost.tuning),
    ("Convergence", cost.training),
)
"""Section of the page and function of each table, in the order of the page."""


def tables_of(data: DatasetResults) -> list[tuple[str, Table]]:
    """All tables of a dataset with their sections."""
    found: list[tuple[str, Table]] = []
    for section, make in TABLES:
        tables = make(data)
        tables = [tables] if isinstance(tables, Table) else tables or ()
        found += [(section, table) for table in tables]
    return found
