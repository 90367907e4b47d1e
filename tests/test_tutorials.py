"""Tutorials, landing page and cookbook can be followed: valid files, commands that work."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from jaxtyping import config
from typer.testing import CliRunner

import pibert
from pibert.cli import app
from pibert.comparison import load_comparison
from pibert.experiments import load_experiment
from pibert.models import MODELS, PRESETS
from tests import standins
from tests.documents import PAGES, blocks, python_blocks, run_python, words
from tests.helpers import TINY_OPTIONS

TUTORIALS: dict[str, Callable[[Path], None]] = {
    "docs/index.md": standins.one_recording,
    "docs/cookbook.md": standins.cookbook,
    "docs/reference/pibert.md": lambda folder: None,
    "docs/reference/fields.md": lambda folder: None,
    "docs/reference/models.md": lambda folder: None,
    "docs/tutorials/arrays.md": lambda folder: None,
    "docs/tutorials/compare.md": standins.flows_at_reynolds_numbers,
    "docs/tutorials/coupled.md": lambda folder: None,
    "docs/tutorials/piv.md": standins.piv_recording,
    "docs/tutorials/cfd.md": standins.cfd_cases,
    "docs/tutorials/realpdebench.md": standins.realpdebench,
    "docs/tutorials/new-model.md": lambda folder: None,
}
"""Pages that are followed from top to bottom, with what the user is to have."""


def test_every_tutorial_is_followed() -> None:
    assert {page for page in PAGES if page.startswith("docs/tutorials/")} <= {*TUTORIALS}


def test_every_configuration_of_the_tutorials_is_valid(tmp_path: Path) -> None:
    seen = []
    with as_a_user():
        run_python("mine.py", python_blocks("docs/tutorials/new-model.md")[0])
        for page in TUTORIALS:
            for block in blocks(page):
                if block.kind == "toml" and not block.text.startswith("# pyproject.toml"):
                    path = tmp_path / "plan.toml"
                    path.write_text(block.text)
                    compares = "[candidates." in block.text
                    (load_comparison if compares else load_experiment)(path)
                    seen.append(page)
    assert len(seen) == 3


ROOT = Path(__file__).parents[1]
SMALL = ("width=8", "local_width=8", "token_width=16", "heads=2", "cycles=1", "modes=2")
"""Options of pibert-mr."""
WAKES = [f"{name}={v}" for name, v in (standins.SHORT_WAKES | {"samples": 8, "group": 8}).items()]
VIBRATION = (
    *("samples=4", "group=4", "frames=40", "warm_up=30.0", "domain=[14,8]"),
    *("upstream=4.0", "view=[20,28]", "body=[9.5,9.0,6.0]"),
)
SHORT = ("epochs=1", "batch_size=8")


def shrunk(arguments: list[str]) -> list[str]:
    """A command of a tutorial with settings that make it short."""
    changes: list[str] = []
    text = " ".join(arguments)
    if arguments[0] == "generate":
        changes = [*(VIBRATION if "tandem" in text else WAKES)]
    if arguments[0] in ("train", "pretrain"):
        stage = "training" if arguments[0] == "train" else "pretraining"
        changes = [*(f"{stage}.{setting}" for setting in SHORT), "data.guard=0"]
        if "cylinder-mr" in text:
            changes += ["data.labelled=0.1"]
        elif "model.name=" in text:
            changes += ["model.options.width=8"]
        elif "start=" not in text:
            changes += [f"model.options.{option}" for option in SMALL]
        if "stated" in text:
            changes += ["data.size=[8,16]"]
        elif "realpde" in text:
            changes += ["data.shares.train=0.5", "data.shares.valid=0.25", "data.size=[8,16]"]
    if arguments[0] == "compare":
        changes = ["samples=60", "training.batch_size=8"]
        changes += [f"candidates.pibert-mr.model.options.{option}" for option in SMALL]
        if "cylinder-real" in text:
            arguments = [
                str(ROOT / word) if word.startswith("configs") else word for word in arguments
            ]
            arguments += ["--models", "pibert-mr,unet,persistence"]
            changes += [f"data.cylinder.{option}" for option in ("stride=4", "size=[8,16]")]
            changes += ["hardware.precision=float32", "rollout.steps=2"]
        if "mine.toml" in text:
            recipe = "data.wakes.recipe"
            changes += [f"{recipe}.{change}" for change in WAKES] + ["rollout.steps=2"]
        else:
            changes += ["rollout.starts=2"]
        changes += ["candidates.unet.model.options.width=4"]
    return arguments + [word for change in changes for word in ("--set", change)]


def cannot_run(page: str, text: str) -> bool:
    """Commands that need a network, GPUs or an installed package, or that have no end."""
    if any(word in text for word in ("pibert download", "pibert serve", "devices=4", "workers 4")):
        return True
    return page.endswith("new-model.md") and "runs/mine" in text  # tests/test_plugins.py


def follow(page: str) -> None:
    """Do what a page says, in its order, in the current folder."""
    names: dict[str, object] = {}
    for kind, text in blocks(page):
        named = re.match(r"# (\S+\.(?:toml|py))\n", text)
        if kind == "shell":
            command = words(text.partition(" > ")[0])[1:]
            start = 2 if command[0] == "--import" else 0
            arguments = shrunk(command[start:])
            if cannot_run(page, text):
                continue
            result = CliRunner().invoke(app, command[:start] + arguments)
            assert result.exit_code == 0, f"{text}\n{result.output}"
        elif named:
            Path(named[1]).write_text(text)
        elif kind == "python":
            names = run_python(page, text, **names)


@contextmanager
def as_a_user() -> Iterator[None]:
    """Without the checks of the test run, which export cannot trace; models that a page adds go."""
    models, presets = dict(MODELS), dict(PRESETS)
    config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        config.update("jaxtyping_disable", False)
        for now, before in ((MODELS, models), (PRESETS, presets)):
            now.clear()
            now.update(before)  # type: ignore[arg-type]
        sys.modules.pop("mine", None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pibert.notes.InputWarning")
@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_can_be_followed(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PIBERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIBERT_IMPORT", "")
    small = {"model.options": TINY_OPTIONS["pibert-mr"]}
    monkeypatch.setattr(pibert, "fit", partial(pibert.fit, epochs=1, settings=small), raising=False)
    compare = partial(pibert.compare, samples=60, settings={"training.batch_size": 8})
    monkeypatch.setattr(pibert, "compare", compare, raising=False)
    TUTORIALS[page](tmp_path)
    with as_a_user():
        follow(page)
