"""What a log shows of a comparison while its runs train."""

from io import StringIO

from rich.console import Console

from pibert.comparison.jobs import FAILURE
from pibert.comparison.live import LiveTable
from pibert.comparison.plan import Job
from pibert.experiments.experiment import DataConfig
from tests.comparison.setups import comparison_of


def test_a_log_names_a_run_that_failed_at_once_and_where_its_traceback_is() -> None:
    plan, log = comparison_of(DataConfig(path="flows.h5")), StringIO()
    with LiveTable(plan, Console(file=log, width=200)) as table:
        for state in ("waiting", "training 10 %", "failed", "failed"):
            table.update(Job("waves", "fno2d", 3), state)
        first, second = log.getvalue().splitlines()
    assert "fno2d" in first and "training" in first
    assert "fno2d" in second and "failed" in second and FAILURE in second
