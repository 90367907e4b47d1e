"""What the README shows works."""

import functools
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import config
from typer.testing import CliRunner

import pibert
from pibert.cli import app
from pibert.comparison import page as report_page
from pibert.report.comparison.figures import FIGURES
from tests import standins
from tests.documents import blocks, python_blocks, run_python, words
from tests.helpers import TINY_OPTIONS
from tests.lookalikes.piv import sample, write_openpiv
from tests.standins import SHORT_WAKES

ROOT = Path(__file__).parents[1]
TINY = TINY_OPTIONS["pibert-mr"]


def example_with(words: str) -> str:
    (code,) = [code for code in python_blocks("README.md") if words in code]
    return code


def test_the_python_example_runs() -> None:
    names: Any = run_python("README.md", example_with("build_model"))
    assert names["y"].shape == (4, 2, 64, 64)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pibert.notes.InputWarning")
def test_the_three_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    piv_run(Path("my_piv_run"), frames=40)
    short = functools.partial(pibert.fit, epochs=1, settings={"model.options": TINY})
    monkeypatch.setattr(pibert, "fit", short, raising=False)
    names: Any = run_python("README.md", example_with("pibert.fit"))
    assert set(names["scores"]["skill"]) >= {"u", "v"} and Path("rollout.png").stat().st_size


def test_every_path_of_the_map_exists() -> None:
    paths = re.findall(r"^\| `([^`]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_make_target_of_the_docs_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"make ([a-z]+)\b(?=`|\s+#)", (ROOT / page).read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_example_of_the_data_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = python_blocks("docs/data.md")
    monkeypatch.chdir(tmp_path)
    standins.wakes(tmp_path)
    names: Any = run_python("docs/data.md", code)
    assert names["batch"].x.shape == (16, 2, 5, 7)
    assert len(names["split"].train) == 7


# Commands

MODEL = {"width": 16, "depth": 1, "modes": 4, "dropout": 0.0}


def settings(prefix: str, values: dict[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in ("--set", f"{prefix}{name}={value}")]


_EXPERIMENT = [
    *settings("data.recipe.", SHORT_WAKES),
    *settings("model.options.", MODEL),
    *settings("", {"training.epochs": 1, "pretraining.epochs": 1, "training.warmup_epochs": 0.0}),
]
CHEAP: dict[str, list[str]] = {
    "generate": settings("", SHORT_WAKES),
    "train": _EXPERIMENT,
    "pretrain": _EXPERIMENT,
    "compare": [
        *("--models", "pibert,persistence"),
        *settings("data.wakes.recipe.", SHORT_WAKES),
        *settings("data.wakes.shares.", {"train": 0.5, "valid": 0.2}),
        *settings("candidates.pibert.model.options.", MODEL | {"heads": 2}),
        *settings("", {"samples": 96, "training.batch_size": 8}),
        *settings("rollout.", {"steps": 2, "starts": 2}),
    ],
    "rollout": ["--steps", "2"],
    **dict.fromkeys(("predict", "inspect", "convert", "fill", "export"), []),
    **dict.fromkeys(("info", "config", "report", "evaluate", "resume", "calibrate"), []),
}
"""What makes a command short; a command that is not here is not run, and the test says so."""
ELSEWHERE = {
    "demo": "tests/test_demo.py",
    "download": "tests/test_cli.py",
    "serve": "tests/serve/test_loading.py",
}
"""Commands that take minutes, a network or no end, and where they are tried."""


def piv_run(folder: Path, frames: int = 3) -> None:
    folder.mkdir()
    for number in range(frames):
        write_openpiv(folder / f"B{number:05}.txt", sample(8, 12))


def arrays(path: Path) -> None:
    """Three frames of u and v on points 1.5 mm apart."""
    velocity = np.random.default_rng(0).normal(size=(2, 3, 8, 12))
    np.savez(path, u=velocity[0], v=velocity[1], x=1.5 * np.arange(12), y=1.5 * np.arange(8))


def piv_file(path: Path) -> None:
    call("convert", "wake.h5", str(path), "--piv", "missing=0.1")


SAMPLE = "pibert/weights/cylinder-mr/sample.h5"


def sample_file(path: Path) -> None:
    path.parent.mkdir(parents=True)
    shutil.copy(ROOT / SAMPLE, path)


STAND_INS: dict[str, Callable[[Path], Any]] = {
    "my_piv_run/": piv_run,
    "my_run.npz": arrays,
    "piv.h5": piv_file,
    SAMPLE: sample_file,
}
"""What a user would have, by the name that it has in the README."""


def fetch(name: str) -> None:
    """What a command names: from the checkout it is typed in, or a stand-in for the user's own."""
    here = Path(name)
    if here.exists():
        return
    if name in STAND_INS:
        STAND_INS[name](here)
    elif name.startswith(("configs/", "pibert/")) and (ROOT / name).is_file():
        here.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, here)


def call(*arguments: str) -> None:
    # What is exported is traced, which the checks of the test run cannot be.
    config.update("jaxtyping_disable", arguments[0] == "export")
    try:
        result = CliRunner().invoke(app, list(arguments))
    finally:
        config.update("jaxtyping_disable", False)
    assert result.exit_code == 0, f"pibert {' '.join(arguments)}\n{result.output}"


def shortened(command: str) -> list[str] | None:
    """The arguments of a command with what makes it short; None if it is tried elsewhere."""
    arguments = words(command)[1:]
    name = next((word for word in arguments if not word.startswith("-")), None)
    if name is None or "--help" in arguments:
        return arguments
    if name in ELSEWHERE:
        assert name in (ROOT / ELSEWHERE[name]).read_text()
        return None
    assert name in CHEAP, f"{command}: say in tests/test_readme.py how to make it short"
    if name == "train" and "--config" not in arguments:  # the defaults on a recording
        return [*arguments, *settings("", {"training.epochs": 1})]
    for option in {word for word in CHEAP[name] if word.startswith("--")} - {"--set", "--out"}:
        if option in arguments:  # an option that takes one value is refused if it is given twice
            del arguments[(place := arguments.index(option)) : place + 2]
    return arguments + CHEAP[name]


def follow_commands(name: str) -> list[str]:
    """Run the commands of a page in their order, in the current folder; gives them."""
    done = [block.text for block in blocks(name) if block.kind == "shell"]
    for command in done:
        arguments = shortened(command)
        for word in arguments or ():
            fetch(word)
        if arguments is not None:
            call(*arguments)
    return done


@pytest.mark.slow  # .ci/run has it
def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIBERT_CACHE", str(tmp_path / "cache"))
    # A picture of each kind takes half a minute; tests/report has them.
    few = functools.partial(report_page.write_report, figures=FIGURES[:1])
    monkeypatch.setattr(report_page, "write_report", few)
    assert len(follow_commands("README.md")) > 3
