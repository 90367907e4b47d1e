"""What the Markdown pages hold: Python, TOML and commands, in their order."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md"))
)
"""All pages, from the root of the repository."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^    +(\S.*)$", re.MULTILINE)
_INLINE = re.compile(r"(?<!`)`(pibert [^`]+)`(?!`)")


class Block(NamedTuple):
    """A piece of a page: ``python``, ``toml`` or ``shell`` (one command)."""

    kind: str
    text: str


def read_page(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """Fenced blocks, and the commands of indented ones, from the top of the page."""
    text, found, end = read_page(page), list[Block](), 0
    for fence in _FENCE.finditer(text):
        found += _commands(text[end : fence.start()])
        kind, body = fence.groups()
        found += [Block(kind, body)] if kind in ("python", "toml") else _commands_in(body)
        end = fence.end()
    return found + list(_commands(text[end:]))


def python_blocks(page: str) -> list[str]:
    return [block.text for block in blocks(page) if block.kind == "python"]


def run_python(page: str, code: str, **names: object) -> dict[str, object]:
    """Execute a block; returns what it defined."""
    exec(compile(code, page, "exec"), names)
    return names


def inline_commands(page: str) -> list[str]:
    """Commands within sentences, which may leave out what is needed."""
    return [" ".join(found.split()) for found in _INLINE.findall(read_page(page))]


def words(command: str) -> list[str]:
    """A command as a shell splits it, without its comment."""
    return shlex.split(command, comments=True)


def _commands(prose: str) -> Iterator[Block]:
    yield from _commands_in("\n".join(_INDENTED.findall(prose)))


def _commands_in(lines: str) -> list[Block]:
    joined = re.sub(r"\\\n\s*", "", lines)
    return [
        Block("shell", line.strip())
        for line in joined.splitlines()
        if re.match(r"\s*(pibert|python mine\.py) ", line)
    ]
