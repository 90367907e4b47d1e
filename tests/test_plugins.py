"""Packages and files that add models, readers and metrics: the template of the tutorial."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pibert
from pibert import plugins
from pibert.data.readers import READERS, identify
from pibert.evaluation.measures import METRICS
from pibert.inference.model_file import _unknown_model
from pibert.models import MODELS, PRESETS
from pibert.plugins import PluginError, Table, origin_of
from tests.command import refusal, well
from tests.documents import ROOT, blocks, words
from tests.helpers import refused

PAGE = "docs/tutorials/new-model.md"
SHORT = (
    *("training.epochs=1", "training.batch_size=8", "model.options.width=4"),
    *("data.shares.train=0.6", "data.shares.valid=0.2"),
)


def write_template(folder: Path) -> None:
    """The files of the page, and a recording for its reader."""
    for kind, text in blocks(PAGE):
        named = re.match(r"# (\S+\.(?:toml|py))\n", text)
        if kind in ("python", "toml") and named and named[1] != "mine.toml":
            (folder / named[1]).write_text(text)
    generator = np.random.default_rng(0)
    generator.normal(size=(20, 2, 32, 64)).astype("<f4").tofile(folder / "flow.raw")


def process(*command: str, folder: Path, packages: Path | None = None, ok: bool = True) -> str:
    """Run Python in a folder, with packages of another one; its output, or the error."""
    paths = [str(ROOT), *([str(packages)] if packages else [])]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode == 0) is ok, done.stderr[-3000:]
    return done.stdout if ok else done.stderr


def place(source: Path, packages: Path) -> None:
    """What ``pip install --target`` leaves, without its seconds."""
    stated = tomllib.loads((source / "pyproject.toml").read_text())
    project = stated["project"]
    facts = packages / f"pibert_mine-{project['version']}.dist-info"
    facts.mkdir(parents=True)
    name, version = project["name"], project["version"]
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (facts / "entry_points.txt").write_text("\n".join(lines))
    for module in stated["tool"]["setuptools"]["py-modules"]:
        shutil.copy(source / f"{module}.py", packages)


def forget() -> None:
    """As in a new process: nothing of the package is imported."""
    for module in ("mine", "mine_reader", "mine_metric"):
        sys.modules.pop(module, None)
    for table, name in (
        (MODELS, "mine"),
        (PRESETS, "mine"),
        (READERS, "raw"),
        (METRICS, "reversed"),
    ):
        dict.pop(table, name, None)
    importlib.invalidate_caches()
    plugins._installed.cache_clear()


@pytest.fixture
def apart() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.mark.usefixtures("apart")
def test_an_installed_package_adds_a_model_a_reader_and_a_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, work, packages = (tmp_path / name for name in ("source", "work", "packages"))
    for folder in (source, work):
        folder.mkdir()
    write_template(source)
    (source / "flow.raw").rename(work / "flow.raw")
    place(source, packages)
    monkeypatch.chdir(work)
    commands = [words(t)[1:] for kind, t in blocks(PAGE) if kind == "shell" and "runs/mine" in t]
    assert [command[0] for command in commands] == ["train", "evaluate"]
    train, evaluate = commands
    with monkeypatch.context() as patch:
        patch.syspath_prepend(packages)
        forget()
        well(*train, *(word for setting in SHORT for word in ("--set", setting)))
        scores = json.loads(well(*evaluate).stdout)
        known = json.loads(well("info", "--json").stdout)
    assert "mine" in known["models"] and "raw" in known["kinds"]
    assert scores["entries"]["physical/reversed_flow"][0]["metric"] == "reversed_flow"
    assert scores["values"]["physical/reversed_flow"][0] == pytest.approx(1, abs=0.3)
    card = json.loads((work / "runs/mine/model.json").read_text())
    assert card["model"]["name"] == "mine"
    assert card["provenance"]["model_from"] == "pibert-mine 0.1"
    forget()
    with refused("it is in the package pibert-mine 0.1: install that"):
        pibert.load("runs/mine")

    (packages / "mine.py").write_text("import no_such_module\n")
    (packages / "mine_metric.py").write_text("1 / 0\n")
    np.savez(work / "flow.npz", u=np.ones((4, 8, 8)), v=np.ones((4, 8, 8)))
    monkeypatch.syspath_prepend(packages)
    forget()
    assert [*map(identify, (Path("flow.raw"), Path("flow.npz")))] == ["raw", "arrays"]
    with refused("pibert-mine 0.1 cannot be used", "no_such_module", error=PluginError):
        pibert.load("runs/mine")


@pytest.mark.slow  # .ci/run has it
def test_pip_installs_the_package_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    source, packages = tmp_path / "source", tmp_path / "packages"
    source.mkdir()
    write_template(source)
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    process("-m", "pip", "install", *offline, "--target", str(packages), ".", folder=source)
    code = (
        "from pibert.data.readers import identify; from pibert.evaluation.measures import METRICS\n"
        "from pibert.models import MODELS; from pibert.plugins import origin_of\n"
        "print(identify('flow.raw'), *METRICS, origin_of(MODELS['mine']))"
    )
    text = process("-c", code, folder=source, packages=packages)
    assert text.split() == ["raw", "reversed", "pibert-mine", "0.1"]


def test_a_single_file_is_imported_by_every_command(tmp_path: Path) -> None:
    write_template(tmp_path)
    (tmp_path / "here.py").write_text(
        "import mine_reader\n"
        "from pibert.data.readers import READERS\n"
        "READERS['raw'] = mine_reader\n"
    )
    named = ("-m", "pibert", "--import", "here.py")
    process(*named, "convert", "flow.raw", "flow.h5", folder=tmp_path, packages=tmp_path)
    for wrong in ("nowhere", "nowhere.py"):
        assert f"--import {wrong}: there is no such" in refusal("--import", wrong, "info")


def test_help_imports_no_plugin_and_no_torch(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("raise RuntimeError('imported')\n")
    code = (
        "import sys; from typer.testing import CliRunner; from pibert.cli import app\n"
        "result = CliRunner().invoke(app, ['--import', 'loud.py', 'train', '--help'])\n"
        "print(result.exit_code, 'torch' in sys.modules)"
    )
    assert process("-c", code, folder=tmp_path).split() == ["0", "False"]


def test_a_run_names_where_its_model_is_from() -> None:
    assert origin_of(Table) is None
    assert origin_of(type("Mine", (), {"__module__": __name__})) == "test_plugins.py"
    card = {"provenance": {"model_from": "mine.py", "versions": {"pibert": "0.0"}}}
    text = _unknown_model("mine", card)
    assert "pibert --import mine.py" in text and "saved by pibert 0.0" in text
    assert "install the package that adds it" in _unknown_model("mine", {})


def test_a_broken_entry_is_named_and_the_others_work(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    found = {
        "good": EntryPoint("good", "math:pi", "group"),
        "bad": EntryPoint("bad", "math:no_such_name", "group"),
        "own": EntryPoint("own", "math:e", "group"),
    }
    monkeypatch.setattr(plugins, "_installed", lambda group: found)
    table = Table("group", {"own": 1.0})
    assert [*table] == ["own", "good", "bad"] and "bad" in table and dict(table) == {"own": 1.0}
    assert table["good"] == pytest.approx(3.14159265) and table.get("other") is None
    with refused("math:no_such_name", "'bad'", "repair or uninstall", error=PluginError):
        table["bad"]
    with pytest.warns(UserWarning, match="no_such_name"):
        assert [*table.added()] == ["good"]
    with pytest.raises(KeyError):
        table["other"]
