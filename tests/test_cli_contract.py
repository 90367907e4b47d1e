"""What scripts rely on: help, exit codes, tracebacks, completion, and what ``--json`` prints."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pibert import __version__
from pibert.cli import app
from pibert.cli.terminal import show_json
from pibert.comparison.presets import PRESETS
from pibert.inference import shipped_models
from tests.command import run

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "commands.md").read_text()
GROUP: Any = typer.main.get_command(app)


def commands(group: Any = GROUP, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every command that does something, by the words that call it."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= commands(command, (*path, name))
        else:
            found[" ".join((*path, name))] = command
    return found


COMMANDS = commands()


# Help


def test_the_version_is_printed() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"pibert {__version__}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_parse(name: str) -> None:
    examples = re.findall(r"Example: pibert (.*)", COMMANDS[name].help)
    assert examples
    for example in examples:
        assert example.startswith(name)
        words, called = shlex.split(example), GROUP
        while words and hasattr(called, "commands"):
            called = called.commands[words.pop(0)]
        called.make_context("pibert", words)


# Exit codes


def fail(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def identify(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr("pibert.data.readers.identify", identify)


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ValueError("expected this"), 2, "error: expected this\n"),
        (FileNotFoundError(2, "No such file", "a.h5"), 2, "error: a.h5: No such file\n"),
        (ImportError("needs scipy"), 2, "error: needs scipy\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (KeyError("x"), 1, "error: KeyError: 'x'; see where with: pibert --traceback ...\n"),
    ],
)
def test_errors_are_one_line_and_a_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, says: str
) -> None:
    fail(monkeypatch, error)
    result = run("inspect", "a.h5")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", says)


@pytest.mark.parametrize("error", [ValueError("expected this"), KeyError("this")])
def test_a_traceback_is_shown_if_asked_for(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fail(monkeypatch, error)
    code = run("inspect", "a.h5").exit_code
    for words, env in ((["--traceback"], {}), ([], {"PIBERT_TRACEBACK": "1"})):
        result = run(*words, "inspect", "a.h5", env=env)
        assert result.exit_code == code
        # What leaves the program is printed by Python, or held by the runner.
        assert "in identify" in result.stderr or result.exception is error


def test_usage_errors_exit_with_2_and_all_codes_are_documented() -> None:
    for words in (["nix"], ["inspect"], ["rollout", "a.h5", "--steps", "x"]):
        result = run(*words)
        assert (result.exit_code, result.stdout) == (2, "")
    assert re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE) == ["0", "1", "2", "130", "143"]


def test_an_option_that_takes_one_value_is_refused_if_it_is_given_twice(tmp_path: Path) -> None:
    result = run("convert", "a.h5", str(tmp_path / "b.h5"), "--flip", "x", "--flip", "u")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: --flip takes one value, found 2; give it once")
    # Repeatable options, and marks that are on already, are not concerned.
    words = ("--parameter", "Re=1", "--parameter", "a=2", "--overwrite", "--overwrite")
    assert "no such file" in run("convert", "a.h5", str(tmp_path / "b.h5"), *words).stderr


# Completion


def complete(*words: str, cwd: Path = ROOT) -> list[str]:
    """What bash would offer for the last word."""
    result = CliRunner().invoke(
        app,
        [],
        prog_name="pibert",
        env={
            "_PIBERT_COMPLETE": "complete_bash",
            "COMP_WORDS": shlex.join(["pibert", *words])
            if words[-1]
            else "pibert " + shlex.join(words[:-1]) + " ",
            "COMP_CWORD": str(len(words)),
        },
    )
    return result.stdout.split()


def test_the_shell_completes_commands_and_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert complete("") == GROUP.list_commands(None)
    assert complete("re") == ["resume", "report"]
    assert "--model" in complete("rollout", "--mo")
    shipped = list(shipped_models())
    assert shipped and complete("rollout", "a.h5", "--model", shipped[0][:4]) == shipped
    assert shipped[0] in complete("serve", "") and shipped[0] in complete("export", "")
    assert complete("generate", "cyl") == ["cylinder"]
    assert complete("generate", "cylinder", "--preset", "r") == ["realpdebench-like"]
    assert complete("compare", "--preset", "") == list(PRESETS)
    assert complete("compare", "--preset", "tour", "--models", "pibert,u") == ["pibert,unet"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "wake").mkdir(parents=True)
    assert complete("rollout", "a.h5", "--model", "ru") == ["runs/"]
    assert complete("rollout", "a.h5", "--model", "runs/") == ["runs/wake/"]


# JSON


def as_json(*words: str | Path) -> dict[str, Any]:
    """The one object that a command prints."""
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


WITH_JSON = {name for name, c in COMMANDS.items() if any("--json" in p.opts for p in c.params)}


def test_the_page_lists_every_command_with_json() -> None:
    listed = re.findall(r"^\| `([a-z ]+)` \|", PAGE, re.MULTILINE)
    assert set(listed) == WITH_JSON


@pytest.mark.parametrize("name", sorted(WITH_JSON))
def test_standard_output_is_reserved_for_json(name: str, capsys: pytest.CaptureFixture) -> None:
    """Whatever a package prints while the command runs goes to standard error."""
    words = shlex.split(re.findall(r"Example: pibert (.*)", COMMANDS[name].help)[0])
    words = words[len(name.split()) :]
    with COMMANDS[name].make_context("pibert", [*words, "--json"]):
        print("fno_skip='linear'")
        show_json({"answer": 1})
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"answer": 1}
    assert "fno_skip" in printed.err
    print("again")
    assert capsys.readouterr().out == "again\n"


def test_json_is_alone_on_standard_output_of_a_process() -> None:
    code = """
import os, subprocess
from pibert.cli.terminal import show_json, stdout_for_json
with stdout_for_json():
    os.write(1, b"from a library in C\\n")
    subprocess.run(["echo", "from a child process"])
    show_json({"answer": 1})
print("after")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == '{\n  "answer": 1\n}\nafter\n', done.stderr
    assert done.stderr == "from a library in C\nfrom a child process\n"


def test_info_lists_models_and_weights() -> None:
    found = as_json("info")
    assert found["models"]["pibert"]["base"] == 1_560_232
    assert found["versions"]["pibert"] == __version__
    assert found["shipped"] == {name: str(path) for name, path in shipped_models().items()}
    assert "OpenPIV" in found["kinds"]["piv"]


def test_generate_and_convert_report_what_they_wrote(tmp_path: Path) -> None:
    assert "demo" in as_json("generate")["cases"]["cylinder"]
    flow, copy = tmp_path / "flow.h5", tmp_path / "copy.h5"
    words = ("generate", "cavity", "--samples", "2", "--set", "frames=3", "--set", "points=16")
    first = as_json(*words, "--out", flow)
    assert (first["trajectories"], first["diverged"], first["was_there"]) == (2, {}, False)
    assert first["written"] == [str(flow)]
    assert as_json(*words, "--out", flow) == first | {"was_there": True}
    found = as_json("convert", flow, copy, "--keep", "u,v")
    assert found == {"trajectories": 2, "bytes": copy.stat().st_size, "written": [str(copy)]}


# Environment


def test_every_variable_that_is_read_is_on_the_page() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "pibert").rglob("*.py"))
    names = set(re.findall(r"[\"'](PIBERT_[A-Z_]+)[\"']", text))
    assert {"PIBERT_CACHE", "PIBERT_TOKEN", "PIBERT_TRACEBACK"} <= names
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE] == []
