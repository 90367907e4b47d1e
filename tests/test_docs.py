"""What the pages of the documentation show works: Python, commands, links.

Tutorials, which are followed as a whole, have a test file of their own.
"""

import pkgutil
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

import pibert
from pibert.cli import app
from tests import standins
from tests.documents import (
    LINKING,
    PAGES,
    ROOT,
    anchors,
    blocks,
    inline_commands,
    links,
    python_blocks,
    read_page,
    run_python,
    words,
)
from tests.helpers import TINY_OPTIONS, tiny_spec
from tests.serve.server_process import ServerProcess
from tests.test_tutorials import TUTORIALS

COMMAND = typer.main.get_command(app)
OF_THE_GROUP = {option for parameter in COMMAND.params for option in parameter.opts}
"""Options before the name of a command."""
# Typer brings a click of its own, whose errors are public by this one alone.
UsageError: Any = typer.BadParameter.__base__
ELSEWHERE = {
    "README.md": "tests/test_readme.py",
    "docs/data.md": "tests/test_readme.py",
    "docs/data-format.md": "tests/data/test_format.py",
    "docs/export.md": "tests/export/test_exporting.py",
}
"""Pages whose Python another test runs."""
HERE = (
    "docs/piv.md",
    "docs/predicting.md",
    "docs/python.md",
    "docs/rollout.md",
    "docs/runs.md",
    "docs/serving.md",
    "docs/sweeps.md",
    "docs/uncertainty.md",
)


def parse(command: str, *, whole: bool = True) -> None:
    """Hold a command against the real options; nothing is run.

    Args:
        command: As it is typed.
        whole: Whether all that is needed must be there.
    """
    arguments = words(command)[1:]
    while arguments and arguments[0] in OF_THE_GROUP:
        del arguments[: 2 if arguments[0] == "--import" else 1]
    if ">" in arguments:
        del arguments[arguments.index(">") :]
    if not arguments:
        return
    left_out = "..." in arguments or not whole
    arguments = [word for word in arguments if word != "..."]
    chosen: Any = COMMAND
    while hasattr(chosen, "resolve_command") and arguments and arguments != ["--help"]:
        _, chosen, arguments = chosen.resolve_command(typer.Context(chosen), arguments)
    if "--help" in arguments or hasattr(chosen, "resolve_command"):
        return
    try:
        chosen.make_context(chosen.name, arguments)
    except typer.BadParameter as error:
        if type(error).__name__ != "MissingParameter" or not left_out:
            raise


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_one_that_exists(page: str) -> None:
    for block in blocks(page):
        if block.kind == "shell":
            try:
                parse(block.text)
            except UsageError as error:
                pytest.fail(f"{block.text}: {error.message}")
    for command in inline_commands(page):
        try:
            parse(command, whole=False)
        except UsageError as error:
            pytest.fail(f"{command}: {error.message}")


def test_all_python_of_the_pages_is_run_by_some_test() -> None:
    found = {page for page in PAGES if python_blocks(page)}
    assert found - {*TUTORIALS} == {*ELSEWHERE, *HERE}
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(), (page, test)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_example_of_predicting_runs(here: Path) -> None:
    standins.trained_model(here)
    fields = np.load("fields.npy")
    code, gradients = python_blocks("docs/predicting.md")
    names: Any = run_python(
        "docs/predicting.md", code, fields=fields, known=np.isfinite(fields).all((1, 2))
    )
    assert names["frames"].shape == (3, 50, 2, 16, 16)
    names = run_python("docs/predicting.md", gradients)
    assert names["by_fields"].any() and names["by_reynolds"].any()


def test_the_example_of_statistics_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    standins.wakes(here)
    (code,) = python_blocks("docs/piv.md")
    names: Any = run_python("docs/piv.md", code)
    assert names["found"].tke.shape == names["found"].spec.grid.shape
    assert "torch.Size" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pibert.notes.InputWarning")
@pytest.mark.parametrize("which", ["loop", "optuna"])
def test_the_examples_of_sweeps_choose_on_validation_data(
    here: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    if which == "optuna":
        pytest.importorskip("optuna")
    standins.wakes(here)
    whole, evaluated = pibert.fit, []

    def tiny(flow: Any, *, settings: dict[str, Any], **how: Any) -> Any:
        tiny = {"rollout_training": None, "model.options": dict(TINY_OPTIONS["pibert-mr"])}
        return whole(flow, settings=settings | tiny, **how | {"epochs": 1})

    monkeypatch.setattr(pibert, "fit", tiny)
    monkeypatch.setattr(pibert.Model, "evaluate", lambda model: evaluated.append(model.path))
    loop, optuna = python_blocks("docs/sweeps.md")
    run_python("docs/sweeps.md", loop if which == "loop" else optuna)
    errors = {
        path.parent: pibert.load(path.parent).card["metrics"]["reconstruction"]
        for path in (here / "runs").rglob("model.json")
    }
    assert len(errors) == 4
    assert [path.resolve() for path in evaluated] == [min(errors, key=lambda k: errors[k])]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pibert.notes.InputWarning")
def test_the_page_on_python_can_be_followed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standins.piv_recording(here, frames=60)
    whole = pibert.fit

    def short(flow: Any, **how: Any) -> Any:
        name = how.get("model", "pibert-mr")
        tiny = {} if "start" in how else {"model.options": dict(TINY_OPTIONS[name])}
        how["settings"] = how.get("settings", {}) | tiny
        return whole(flow, **how | {"epochs": 1})

    monkeypatch.setattr(pibert, "fit", short, raising=False)
    names: dict[str, Any] = {}
    for code in python_blocks("docs/python.md"):
        names = run_python("docs/python.md", code, **names)
    assert names["scores"]["skill"].keys() >= {"u", "v", "all"}
    assert names["ahead"].low.shape == (3, 2, 16, 20) and names["x"].grad.any()
    assert Path("runs/B-comparison/results.json").exists()
    for file in ("rollout.png", "noise.png", "noise.h5", "ahead.nc", "models/jet", "models/mine"):
        assert Path(file).exists(), file


def test_the_example_of_a_writer_runs(here: Path) -> None:
    frames = (torch.randn(2, 2, 16, 16), torch.tensor([0.1, 0.2]).double(), torch.tensor([1, 2]))
    block = (*frames, torch.ones(2, 16, 16, dtype=torch.bool))
    (code,) = python_blocks("docs/rollout.md")
    run_python("docs/rollout.md", code, spec=tiny_spec(), blocks=[block])
    assert len(list((here / "wake_frames").glob("*.vti"))) == 2


def test_the_example_of_prediction_intervals_runs(here: Path) -> None:
    standins.calibrated_model(here)
    (code,) = python_blocks("docs/uncertainty.md")
    names: Any = run_python("docs/uncertainty.md", code)
    found = names["found"]
    assert found.fields.shape == (4, 6, 2, 8, 12)
    assert (found.intervals.high >= found.intervals.low)[:, :, :, 0].all()
    assert names["ood"].p.shape == (4,)


def test_the_example_of_a_run_runs(here: Path) -> None:
    standins.wakes(here)
    (code,) = python_blocks("docs/runs.md")
    names: Any = run_python("docs/runs.md", code)
    assert names["finished"].metrics and names["predictor"].spec.channels == ("u", "v")


@pytest.mark.slow
def test_the_example_of_a_request_runs(here: Path) -> None:
    standins.trained_model(here)
    np.save("fields.npy", np.nan_to_num(np.load("fields.npy")))
    (code,) = python_blocks("docs/serving.md")
    server = ServerProcess([here / "runs/wake", "--wait", 0])
    try:
        server.wait_until_ready()
        names: Any = run_python("docs/serving.md", code.replace(":8000", f":{server.port}"))
    finally:
        server.stop()
    assert names["frames"].shape == (3, 1, 2, 16, 16)


def broken(page: str) -> list[str]:
    """Links of a page whose file or heading is not there."""
    found = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        name = str(target.relative_to(ROOT)) if target.is_relative_to(ROOT) else ""
        is_there = target.exists() and (not anchor or (name in LINKING and anchor in anchors(name)))
        found += [] if is_there else [link]
    return found


@pytest.mark.parametrize("page", LINKING)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: str) -> None:
    assert broken(page) == []


def test_every_name_of_the_reference_exists() -> None:
    pages = [page for page in PAGES if page.startswith("docs/reference/")]
    names = re.findall(r"^::: (\S+)$", "\n".join(map(read_page, pages)), re.MULTILINE)
    assert len(names) > 50
    assert [name for name in names if pkgutil.resolve_name(name) is None] == []


@pytest.mark.slow
def test_the_site_is_built_without_a_broken_link(tmp_path: Path) -> None:
    build = pytest.importorskip("mkdocs.commands.build", reason="needs the extra docs")
    settings = pytest.importorskip("mkdocs.config")
    build.build(settings.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path)))
    assert "Predictor" in (tmp_path / "reference/predictor.html").read_text()
    for page in ("changelog.html", "notebooks/own-arrays.html", "benchmarks.html"):
        assert (tmp_path / page).exists()
