"""The command line: what it prints, what it leaves behind, and how it says no."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pibert.cli import app
from pibert.demo import run_demo


def test_info_names_every_preset_with_its_size() -> None:
    result = CliRunner().invoke(app, ["info"])
    assert result.exit_code == 0, result.output
    assert "1,560,232" in result.output
    for word in ("torch", "base", "large"):
        assert word in result.output


def test_the_demo_reports_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "demo.png"
    result = CliRunner().invoke(
        app, ["demo", "--steps", "1", "--ahead", "1", "--out", str(picture)]
    )
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "model / persistence" in result.output


def test_the_untrained_model_of_the_demo_is_persistence(tmp_path: Path) -> None:
    result = run_demo(tmp_path / "demo.png", steps=0, ahead=2)
    assert result.persistence[1] > result.persistence[0] > 0
    assert result.ratios == pytest.approx((1.0, 1.0), abs=1e-4)


@pytest.mark.slow
def test_the_demo_learns_to_move_streets_it_has_not_seen(tmp_path: Path) -> None:
    result = run_demo(tmp_path / "demo.png")
    assert max(result.ratios) < 0.4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--out", "x.gif"], "error: pictures are written"),
        (["demo", "--out", "/dev/null/x.png"], "error: "),
    ],
)
def test_a_wrong_value_is_told_in_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(message)
    assert len(result.stderr.splitlines()) == 1


def test_no_arguments_show_the_help() -> None:
    result = CliRunner().invoke(app, [])
    assert "demo" in result.output and "info" in result.output
