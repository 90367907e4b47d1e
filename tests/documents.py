"""What the Markdown pages hold: Python, TOML and commands, in their order."""

import json
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
LINKING = sorted(
    [
        *PAGES,
        *(
            str(path.relative_to(ROOT))
            for path in (*ROOT.glob("pibert/weights/*/*.md"), *ROOT.glob("notebooks/*.ipynb"))
        ),
    ]
)
"""Pages, model cards and notebooks."""

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


def run_python(page: str, code: str, /, **names: object) -> dict[str, object]:
    """Execute a block; returns what it defined."""
    exec(compile(code, page, "exec"), names)
    return names


def links(page: str) -> list[str]:
    """Where a page or notebook leads within the repository, with the anchor if there is one."""
    prose = _prose(page)
    found = re.findall(r"\]\(([^)\s]+)", prose) + re.findall(r'(?:src|href)="([^"]+)"', prose)
    return [target for target in found if not re.match(r"\w+:", target)]


def anchors(page: str) -> set[str]:
    """What a link may name after ``#``: both on GitHub and on the site."""
    headings = [re.sub(r"[`*]", "", own) for own in re.findall(r"^#+ (.*)$", _prose(page), re.M)]
    kept = [re.sub(r"[^\w\- ]", "", own.strip().lower()) for own in headings]
    on_github = {own.replace(" ", "-") for own in kept}
    on_site = {re.sub(r"[-\s]+", "-", own.strip()) for own in kept}
    return on_github & on_site


def _prose(page: str) -> str:
    """Without blocks of code; of a notebook, its text."""
    text = read_page(page)
    if page.endswith(".ipynb"):
        cells = json.loads(text)["cells"]
        parts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        text = "\n\n".join(parts)
    return _FENCE.sub("", text)


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
        if re.match(r"\s*pibert ", line)
    ]
