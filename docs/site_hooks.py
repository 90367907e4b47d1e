"""Hooks of the site (mkdocs.yml): pages that lie outside docs/, and links to them.

The change log, the security policy, the timings and the notebooks become pages; links such as
``../CHANGELOG.md``, which work in the repository, lead to these.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "../CHANGELOG.md": "changelog.md",
    "../SECURITY.md": "security.md",
    "../benchmarks/README.md": "benchmarks.md",
    **{
        f"../notebooks/{path.name}": f"notebooks/{path.stem}.md"
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    },
}
"""Sources, from docs/, and the pages they become."""
_LINK = re.compile(r"\]\(([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from elsewhere."""
    for source, page in OUTSIDE.items():
        path = (ROOT / "docs" / source).resolve()
        text = path.read_text(encoding="utf-8")
        content = as_markdown(text, path) if path.suffix == ".ipynb" else text
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links that leave docs/ to the pages made of what they name, and those back into it."""
    here = page.file.src_uri
    origin = next((source for source, made in OUTSIDE.items() if made == here), here)

    def lead(link: re.Match[str]) -> str:
        if ":" in link[1]:
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link[1]))
        target = OUTSIDE.get(target, target.removeprefix("../docs/"))
        return f"]({posixpath.relpath(target, posixpath.dirname(here) or '.')}"

    return _LINK.sub(lead, markdown)


def as_markdown(notebook: str, path: Path) -> str:
    """The cells of a notebook as a page."""
    parts = []
    for cell in json.loads(notebook)["cells"]:
        text = "".join(cell["source"]).strip()
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    parts.insert(1, f"This page is the notebook `{path.relative_to(ROOT)}`.")
    return "\n\n".join(parts) + "\n"
