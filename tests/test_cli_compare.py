"""``pibert compare``, ``evaluate`` and ``report`` as a user types them."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pibert.comparison import FILES
from pibert.comparison import page as page_module
from pibert.evaluation import cost
from pibert.report.comparison.figures import FIGURES
from pibert.report.comparison.page import write_report
from tests.command import run

SMALL = (
    "data.wakes.recipe.frames=20",
    "data.wakes.recipe.warm_up=2.0",
    "samples=128",
    "rollout.steps=2",
)
SETTINGS = [word for change in SMALL for word in ("--set", change)]


def pibert(*words: str) -> tuple[int, str]:
    result = run(*words)
    return result.exit_code, result.output


@pytest.fixture(scope="module", autouse=True)
def timed_once() -> Iterator[None]:
    """Models are called once and not for half a second to measure what they cost."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WARM_UP", "LEAST_REPEATS", "MOST_REPEATS"):
            patch.setattr(cost, name, 1)
        yield


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("comparison") / "out"
    models = "pibert,unet,linear-extrapolation"
    code, text = pibert(
        "compare", "--preset", "quick", "--models", models, "--out", str(out), *SETTINGS
    )
    assert code == 0, text
    assert "persistence" in text and "pibert report" in text
    return out


def test_a_repeated_comparison_computes_nothing_and_prints_its_ranking_as_json(
    compared: Path,
) -> None:
    scores = {path: path.stat().st_mtime_ns for path in compared.rglob("scores.json")}
    models = "pibert,unet,linear-extrapolation"
    words = ["compare", "--preset", "quick", "--models", models, "--out", str(compared)]
    result = run(*words, *SETTINGS, "--json")
    assert result.exit_code == 0, result.output
    assert scores == {path: path.stat().st_mtime_ns for path in compared.rglob("scores.json")}
    found, results = json.loads(result.stdout), json.loads((compared / "results.json").read_text())
    assert found["data"]["wakes"]["ranking"] == results["data"]["wakes"]["ranking"]
    assert found["failed"] == found["left_out"] == []
    assert found["written"] == [str(compared / name) for name in FILES]
    assert all((compared / name).stat().st_size for name in FILES)


def test_models_left_out_of_the_results_are_reported(compared: Path) -> None:
    words = ["compare", "--preset", "quick", "--out", str(compared), *SETTINGS, "--models"]
    code, text = pibert(*words, "linear-extrapolation")
    assert code == 0, text
    assert "pibert, unet: add them" in " ".join(text.split())
    code, text = pibert(*words, "pibert,unet,linear-extrapolation")
    assert code == 0 and "leave out" not in text
    assert len(json.loads((compared / "results.json").read_text())["runs"]) == 4


def test_the_report_is_one_page_with_tables_and_pictures(
    compared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = list({section: (section, make) for section, make in reversed(FIGURES)}.values())
    monkeypatch.setattr(page_module, "write_report", partial(write_report, figures=first))
    code, text = pibert("report", str(compared))
    assert code == 0, text
    page = (compared / "report.html").read_text()
    for word in ("persistence", "unet", "data:image/webp;base64", "<table", "validation"):
        assert word in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    assert "could not be drawn" not in page
    assert "| model |" in (compared / "tables.md").read_text().replace("| rank ", "")
    assert "\\toprule" in (compared / "tables.tex").read_text()


def test_models_are_tuned_on_request(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["compare", "--preset", "quick", "--models", "unet", "--out", str(out), *SETTINGS]
    words += ["--tune", "--set", "tuning.learning_rates=[1e-3,1e-2]", "--set", "tuning.budget=0.5"]
    code, text = pibert(*words)
    assert code == 0, text
    (record,) = json.loads((out / "results.json").read_text())["tuning"]
    best = min(record["trials"], key=lambda trial: trial["valid_error"])["learning_rate"]
    assert record["chosen"]["learning_rate"] == best
    (found,) = json.loads(run(*words, "--json").stdout)["tuning"]
    assert found == {key: record[key] for key in found}
    end = "highest" if best == 0.01 else "lowest"
    shown = " ".join(text.split())
    assert "muon at 0.001, 0.01" in shown and f"muon at {best:g} (the {end} rate tried)" in shown


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--models", "unett"], "unknown candidates unett; choose from: pibert"),
        (["--run", "mine=nowhere"], "finished run, model.json is missing"),
        (["--set", "sample=3"], "did you mean"),
    ],
)
def test_a_wrong_plan_is_refused_before_anything_is_written(
    words: list[str], problem: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, text = pibert("compare", "--out", str(out), *words)
    assert code == 2
    assert problem in " ".join(text.split())
    assert not out.exists()


def test_a_report_needs_results_of_a_comparison(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no folder")
    for path in (tmp_path, tmp_path / "notes.txt"):
        code, text = pibert("report", str(path))
        assert code == 2
        assert "run a comparison first" in " ".join(text.split())
    (tmp_path / "comparison.json").write_text("{}")  # begun
    begun = " ".join(pibert("report", str(tmp_path))[1].split())
    assert "again with the same options, which keeps finished runs" in begun
    (tmp_path / "results.json").write_text('{"format": 99}')
    assert "expected format 1, found 99" in " ".join(pibert("report", str(tmp_path))[1].split())
