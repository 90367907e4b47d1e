"""Imports point downward only, and heavy packages have one door."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "pibert"

# Bottom to top. Modules on one line do not import each other.
LAYERS = (
    ("files", "stopping"),
    ("sample_rng", "compilation", "config", "display", "notes", "progress"),
    ("plugins",),
    ("physics",),
    ("fields",),
    ("solver", "models", "rollout"),
    ("data",),
    ("pretraining",),
    ("inference",),
    ("evaluation", "export"),
    ("training",),
    ("report", "serve"),
    ("experiments",),
    ("comparison",),
    ("api", "cli"),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

DOORS = {
    "matplotlib": "report/",
    "h5py": "data/",
    "fastapi": "serve/",
    "starlette": "serve/",
    "prometheus_client": "serve/",
    "flask": "serve/",
    "uvicorn": "serve/",
    "torch.distributed": "training/",
    "lightning": "training/",
    "pytorch_lightning": "training/",
}


def imported_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import; a relative one starts with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def find_offences(package: Path) -> list[str]:
    """Every import in the package that breaks a rule, as ``file:line: what is wrong``."""
    offences = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package).as_posix()
        own = place.split("/")[0].removesuffix(".py")
        if own not in LEVEL and own != "__init__":
            offences.append(f"{place}:1: {own} has no layer; give it one in LAYERS")
            continue
        for line, name in imported_names(ast.parse(path.read_text())):
            problem = offence(place, own, name)
            if problem:
                offences.append(f"{place}:{line}: {problem}")
    return offences


def offence(place: str, own: str, name: str) -> str | None:
    if name.startswith("."):
        return f"relative import {name}"
    for heavy, door in DOORS.items():
        if f"{name}.".startswith(f"{heavy}.") and not place.startswith(door):
            return f"{heavy} belongs in {door}"
    parts = name.split(".")
    if parts[0] != "pibert" or own == "__init__":
        return None
    if len(parts) == 1 or (parts[1] not in LEVEL and not parts[1].startswith("__")):
        return f"import {name} by its module, not through the package"
    if parts[1] == own or parts[1] not in LEVEL or LEVEL[parts[1]] < LEVEL[own]:
        return None
    direction = "sideways" if LEVEL[parts[1]] == LEVEL[own] else "upward"
    return f"{direction} import of {name} from {own}"


def test_imports_point_down() -> None:
    assert find_offences(PACKAGE) == []


HEAVY = (
    "IPython beartype fastapi h5py huggingface_hub lightning matplotlib onnx onnxruntime optuna "
    "pandas pyarrow scipy tensorboard torch._dynamo torch._inductor torch.utils.tensorboard xarray"
).split()


@pytest.mark.parametrize(
    ("code", "also"),
    [
        ("import pibert", ["torch", "numpy", "typer", "rich"]),
        ("import pibert; pibert.load('cylinder-mr')", ["typer", "rich", "sympy"]),
        (
            "import pibert.cli\nwith contextlib.suppress(SystemExit): pibert.cli.app(['--help'])",
            ["torch", "numpy"],
        ),
        (
            "import pibert.cli\n"
            "with contextlib.suppress(SystemExit): pibert.cli.app(['predict', '--help'])",
            ["torch", "numpy"],
        ),
    ],
    ids=["import", "load", "help", "help on a command"],
)
def test_a_start_loads_only_modules_that_it_needs(code: str, also: list[str]) -> None:
    report = f"print('found:', *[m for m in {HEAVY + also} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"import contextlib, sys\n{code}\n{report}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=PACKAGE.parent,
    )
    assert done.stdout.splitlines()[-1] == "found:"
