"""Valid requests are answered and memory is released, whatever other clients do."""

from pathlib import Path

import pytest

from tests.serve.hostile import EXPECTED, HOSTILE, TOKEN, log_of, run
from tests.serve.server_process import ServerProcess


def check(models: Path, clients: int, seconds: float, *options: object, side: int) -> set[str]:
    """The kinds of hostile clients that there were."""
    with ServerProcess([models / "wake", *options], PIBERT_TOKEN=TOKEN) as server:
        crowd, is_back = run(server, clients, seconds, side=side, seed=0, settle=60)
        said = f"{crowd.statuses} {crowd.failures[:20]} {log_of(server)}"
        assert is_back and not crowd.failures, said
        assert "200" in {status for _, status in crowd.statuses}, said
        for kind, expected in EXPECTED.items():
            found = {status for name, status in crowd.statuses if name == kind}
            assert found <= {expected, "503", "until the end"}, said
    return {kind for kind, _ in crowd.statuses} & set(HOSTILE)


def test_valid_requests_are_answered_among_hostile_ones(models: Path):
    check(models, 20, 3.0, "--body", 2, "--memory", 64, side=300)


@pytest.mark.slow
def test_two_hundred_clients_for_five_minutes(models: Path):
    assert check(models, 200, 300.0, "--queue", 400, side=1000) == set(HOSTILE)
