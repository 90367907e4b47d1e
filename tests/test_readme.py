"""What the README shows works."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_python_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["y"].shape == (4, 2, 64, 64)  # type: ignore[attr-defined]


def test_every_path_of_the_map_exists() -> None:
    paths = re.findall(r"^\| `([^`]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_make_target_of_the_docs_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"make ([a-z]+)\b(?=`|\s+#)", (ROOT / page).read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
