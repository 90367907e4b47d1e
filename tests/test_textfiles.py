"""Small text files must be regular, small and not deeply nested."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pibert import textfiles
from pibert.cli import app
from pibert.textfiles import parse_json, read_json, read_text, read_toml

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("levels", [64, 65, 1000, 100_000])
def test_json_is_refused_from_65_levels_on(levels: int) -> None:
    text = "[" * (levels + 1) + "]" * (levels + 1)
    if levels <= textfiles.DEEPEST:
        parse_json(text)
    else:
        with pytest.raises(ValueError, match="more than 64 nested levels"):
            parse_json(text)


@pytest.mark.parametrize(
    "text", [f"a = {DEEP[:2000]}{DEEP[-2000:]}", "[" + ".".join("a" * 1000) + "]\nb = 1"]
)
def test_toml_is_refused_where_it_is_nested_too_deeply(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match="a.toml: not valid TOML: more than 64 nested levels"):
        read_toml(path)


def test_a_pipe_or_a_device_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(ValueError, match="expected a file, found a (named pipe|device)"):
            read_text(path)


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.touch()
    os.truncate(path, textfiles.LARGEST + 1)  # takes no room on the disk
    with pytest.raises(ValueError, match="at most 65,536 KiB of text, found 67,108,865 bytes"):
        read_json(path)


@pytest.mark.parametrize("kind", ["pipe", "deep"])
@pytest.mark.parametrize(
    "words",
    [
        ("config", "show", "--config", "{}/config.json"),
        ("train", "--config", "{}/config.json", "--out", "{}/new"),
        ("resume", "{}"),
        ("evaluate", "{}"),
    ],
    ids=lambda words: words[0],
)
def test_commands_refuse_a_run_with_an_unreadable_config(
    tmp_path: Path, kind: str, words: tuple[str, ...]
) -> None:
    path = tmp_path / "config.json"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_text(DEEP)
    result = CliRunner().invoke(app, [word.format(tmp_path) for word in words])
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert tmp_path.name in result.stderr
