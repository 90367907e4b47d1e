"""The demonstration: which commands it consists of, and how it runs them."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from pibert.cli import app
from pibert.cli import info as demo

TINY = ("generate", "cavity", "--samples", "1", "--set", "frames=2", "--set", "points=16")


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["demo", *map(str, words)])


def test_its_commands_and_suggestions_are_commands_that_parse() -> None:
    group: Any = typer.main.get_command(app)
    out = Path("outputs/demo")
    named = list(demo.demo_steps(out, "tour").values())
    assert Path(named[0][1]).is_file()  # a recording that comes with the weights
    named += [tuple(text.split()[1:]) for text in demo.demo_suggestions(out, "tour")]
    for name, *words in named:
        if name != "--help":
            group.commands[name].make_context(name, words)


def pretend(monkeypatch: pytest.MonkeyPatch, *commands: tuple[str, ...]) -> None:
    steps = {f"This is {number}": command for number, command in enumerate(commands)}
    monkeypatch.setattr(demo, "demo_steps", lambda out, preset: steps)


def test_wrong_input_ends_it_and_a_partial_failure_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = str(tmp_path / "flow.h5")
    pretend(monkeypatch, ("inspect", "absent.h5"), (*TINY, "--out", flow))
    result = run("--out", tmp_path)
    assert result.exit_code == 2 and result.stderr.startswith("error: absent.h5")
    assert not Path(flow).exists()

    def fails(*_: object) -> None:
        raise typer.Exit(1)

    pretend(monkeypatch, ("info",), (*TINY, "--out", flow))
    monkeypatch.setattr("pibert.cli.info.platform.python_version", fails)
    result = run("--out", tmp_path)
    assert result.exit_code == 1 and "Done in" in result.output and Path(flow).exists()


@pytest.mark.slow
def test_the_demo_writes_a_rollout_and_a_report_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIBERT_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "demo"
    for _ in range(2):
        result = run("--preset", "quick", "--out", out)
        assert result.exit_code == 0, result.output
        assert "skill against persistence" in result.output
    assert (out / "rollout.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "rollout.gif").read_bytes().startswith(b"GIF89a")
    assert "<html" in (out / "comparison" / "report.html").read_text()
    assert ": training" not in result.output  # nothing was trained again
