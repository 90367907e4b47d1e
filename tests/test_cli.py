"""The command line: what it prints, what it leaves behind, and how it says no."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pibert.cli import app
from pibert.data.format import Reader, check
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


def save_flow(folder: Path) -> Path:
    """A shear with a vortex as .npz, without a word on time and units."""
    y, x = np.mgrid[0:16, 0:24] * 0.1
    u = np.stack([1 + y + 0.1 * frame * np.sin(3 * y) for frame in range(4)])
    v = np.stack([0.2 * np.sin(3 * x + 0.1 * frame) for frame in range(4)])
    path = folder / "shear.flow.npz"
    np.savez(path, u=u, v=v, x=x[0], y=y[:, 0])
    return path


def test_inspect_says_what_a_file_holds_and_draws_it(tmp_path: Path) -> None:
    picture = tmp_path / "new" / "shear.png"
    result = CliRunner().invoke(
        app, ["inspect", str(save_flow(tmp_path)), "--picture", str(picture)]
    )
    assert result.exit_code == 0, result.output
    for words in ("16 x 24", "dx 0.1", "dt not stated", "no time step", "What to do"):
        assert words in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_inspect_draws_into_outputs_under_the_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["inspect", save_flow(tmp_path).name]).exit_code == 0
    assert (tmp_path / "outputs" / "shear.png").is_file()


def test_inspect_prints_json_that_hints_have_changed(tmp_path: Path) -> None:
    arguments = ["--json", "--dt", "0.5", "--unit", "m/s", "--length-unit", "m"]
    arguments += ["--channels", "u=v,v=u", "--parameter", "Re=100", "--dx", "0.2"]
    result = CliRunner().invoke(app, ["inspect", str(save_flow(tmp_path)), *arguments])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["dt"] == 0.5 and facts["length_unit"] == "m" and facts["spacing"][0] == 0.2
    assert facts["parameters"] == {"Re": [100.0, 100.0]}
    named = {channel["name"]: channel for channel in facts["channels"]}
    assert named["v"]["low"] == pytest.approx(1.0) and named["u"]["unit"] == "m/s"


def test_a_table_without_a_field_is_shown_as_columns(tmp_path: Path) -> None:
    path = tmp_path / "drag.csv"
    path.write_text("t,Cd\n0.5,1.25\n1.5,1.75\n2.5,1.5\n")
    result = CliRunner().invoke(app, ["inspect", str(path)])
    assert result.exit_code == 0, result.output
    for words in ("3 rows", "Cd", "1.25", "1.75", "no field"):
        assert words in result.output
    result = CliRunner().invoke(app, ["inspect", str(path), "--json"])
    assert json.loads(result.stdout)["columns"]["Cd"] == [1.25, 1.75]


def test_convert_makes_a_native_file(tmp_path: Path) -> None:
    out = tmp_path / "out.h5"
    arguments = ["--dt", "0.1", "--stride", "2", "--keep", "v", "--size", "8x12"]
    result = CliRunner().invoke(app, ["convert", str(save_flow(tmp_path)), str(out), *arguments])
    assert result.exit_code == 0, result.output
    check(out)
    (trajectory,) = Reader(out)
    assert trajectory.states.shape == (2, 1, 8, 12)
    assert trajectory.spec.channels == ("v",) and trajectory.spec.dt == pytest.approx(0.2)
    assert trajectory.local["file"] == "shear.flow.npz"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "absent.npz"], "absent.npz: there is no such file"),
        (["inspect", "notes.md"], "notes.md: a file of no known kind"),
        (["inspect", "broken.npz"], "broken.npz"),
        (["inspect", "shear.flow.npz", "--kind", "numpy"], "unknown kind 'numpy'"),
        (["inspect", "shear.flow.npz", "--parameter", "Re"], "--parameter takes NAME=NUMBER"),
        (["inspect", "shear.flow.npz", "--parameter", "Re=x"], "--parameter takes NAME=NUMBER"),
        (["inspect", "shear.flow.npz", "--channels", "u"], "--channels takes NAME=VALUE"),
        (["inspect", "shear.flow.npz", "--picture", "x.gif"], "pictures are written as .png"),
        (["convert", "shear.flow.npz", "out.h5", "--size", "8"], "--size takes ROWSxCOLUMNS"),
        (["convert", "shear.flow.npz", "out.h5", "--keep", "w"], "unknown channels ['w']"),
        (["convert", "shear.flow.npz", "shear.flow.npz"], "is the input or a part of it"),
        (["convert", "drag.csv", "out.h5"], "drag.csv"),
    ],
)
def test_inspect_and_convert_say_no_in_one_line_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    save_flow(tmp_path)
    (tmp_path / "notes.md").write_text("# Notes\n")
    (tmp_path / "broken.npz").write_bytes((tmp_path / "shear.flow.npz").read_bytes()[:900])
    (tmp_path / "drag.csv").write_text("t,Cd\n0.5,1.25\n1.5,1.75\n")
    before = sorted(tmp_path.iterdir())
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_missing_extra_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object) -> None:
        raise ImportError("reading MATLAB files needs scipy: pip install 'pibert-cfd[io]'")

    monkeypatch.setattr("pibert.data.sources.identify", without)
    result = CliRunner().invoke(app, ["inspect", "x.mat"])
    assert result.exit_code == 2
    assert result.stderr == (
        "error: reading MATLAB files needs scipy: pip install 'pibert-cfd[io]'\n"
    )
