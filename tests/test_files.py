"""Small text files must be regular, small and not deeply nested."""

import os
from pathlib import Path

import pytest

from pibert import files
from pibert.files import parse_json, read_json, read_text, read_toml
from tests.helpers import refused

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("levels", [64, 65, 1000, 100_000])
def test_json_is_refused_from_65_levels_on(levels: int) -> None:
    text = "[" * (levels + 1) + "]" * (levels + 1)
    if levels <= files.DEEPEST:
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
    with refused("a.toml", "more than 64"):
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
    os.truncate(path, files.LARGEST + 1)  # takes no room on the disk
    with refused("65,536 KiB", "67,108,865"):
        read_json(path)
