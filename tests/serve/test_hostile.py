"""Valid requests are answered and memory comes back, whatever other clients do."""

from collections.abc import Collection
from pathlib import Path

import pytest

from tests.serve.hostile import EXPECTED, HOSTILE, TOKEN, VALID, is_back, log_of, run
from tests.serve.server_process import ServerProcess


def check(
    models: Path, clients: int, seconds: float, *options: object, side: int, valid: Collection[str]
) -> set[str]:
    """The kinds of hostile clients that there were."""
    server = ServerProcess([models / "wake", *options], PIBERT_TOKEN=TOKEN).wait_until_ready()
    try:
        report = run(server, clients, seconds, side=side, seed=0, settle=60, valid=valid)
        said = report.text() + log_of(server)
        assert not report.failures, said
        assert report.seconds and is_back(report.memory), said
        for kind, expected in EXPECTED.items():
            found = {status for name, status in report.statuses if name == f"hostile {kind}"}
            assert found <= {expected, "503", "until the end"}, said
    finally:
        assert server.stop() == 0
    return {name.removeprefix("hostile ") for name, _ in report.statuses} & set(HOSTILE)


def test_valid_requests_are_answered_among_hostile_ones(models: Path):
    kinds = sorted(set(VALID) - {"open csv"})  # starting a process for it takes seconds
    check(models, 20, 3.0, "--body", 2, "--memory", 64, side=300, valid=kinds)


@pytest.mark.slow
def test_two_hundred_clients_for_five_minutes(models: Path):
    found = check(models, 200, 300.0, "--queue", 400, side=1000, valid=VALID)
    assert found == set(HOSTILE)
