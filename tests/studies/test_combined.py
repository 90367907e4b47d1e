"""Results of pieces are combined: pooled errors, resampled flows and seeds, what is refused."""

import copy
from pathlib import Path
from typing import Any

import pytest

from studies.combined import gathered, markdown, read, table_of

RESULTS = Path(__file__).parents[2] / "docs/results"
FILE = RESULTS / "cylinder-tuned-results.json.gz"
TANDEM = RESULTS / "fsi-tuned-results.json.gz"


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return read(FILE)


def with_seed(results: dict[str, Any], seed: int, factor: float) -> dict[str, Any]:
    """The same comparison with another seed, whose squared errors are larger by a factor."""
    other = copy.deepcopy(results)
    other["comparison"]["seeds"] = [seed]
    for run in other["runs"]:
        run["seed"] = seed
    for row in other["by_flow"]:
        row["seed"] = seed
        scale = {"nmse": factor, "rmse": factor**0.5}.get(row["metric"], 1.0)
        row["flows"] = [None if value is None else scale * value for value in row["flows"]]
    return other


def test_errors_are_those_of_the_comparison(results: dict[str, Any]) -> None:
    lines = table_of(gathered({"one": results}, "cylinder"), "pibert-mr")
    stated = {
        row["model"]: row["value"]
        for row in results["records"]
        if (row["space"], row["metric"], row["component"]) == ("physical", "nmse", "all")
    }
    found = {line.model: line.nmse.value for line in lines if line.nmse is not None}
    assert found == pytest.approx(stated, rel=1e-9)
    assert [line.model for line in lines] == sorted(stated, key=stated.__getitem__)
    assert sum(line.flows_won for line in lines) == 10
    for nmse in (line.nmse for line in lines):
        assert nmse is not None and nmse.low is not None and nmse.high is not None
        assert nmse.low <= nmse.value <= nmse.high
    assert "| mwt | 1 | 0.000713 [" in markdown(lines, "pibert-mr")


def test_seeds_are_averaged_and_widen_the_interval(results: dict[str, Any]) -> None:
    one = {line.model: line for line in table_of(gathered({"0": results}, "cylinder"), "mwt")}
    pieces = {"0": results, "1": with_seed(results, 1, 3.0)}
    both = {line.model: line for line in table_of(gathered(pieces, "cylinder"), "mwt")}
    for model, line in both.items():
        assert line.seeds == 2
        nmse, alone = line.nmse, one[model].nmse
        assert nmse is not None and alone is not None
        (value, low, high), (before, lowest, highest) = nmse, alone
        assert None not in (low, high, lowest, highest)
        assert value == pytest.approx(2 * before, rel=1e-9)
        assert high > 2 * highest and low < 2 * lowest  # type: ignore[operator]
    # Three times the error with one seed of two: the order of close models is no longer certain.
    certain, uncertain = one["pibert-mr"], both["pibert-mr"]
    assert certain.p == 6 * 2 / 2**10  # all ten flows agree, six tests
    assert uncertain.p is not None and uncertain.p > 0.05


def grouped(results: dict[str, Any], conditions: int) -> dict[str, Any]:
    """Return the comparison with every flow twice, as repetitions of these conditions."""
    other = copy.deepcopy(results)
    facts = other["data"]["cylinder"]
    facts["source"]["group_by"] = ["Re"]
    facts["flows"] = [
        {**flow, "name": f"{flow['name']}-{n}", "condition": place % conditions}
        for n in range(2)
        for place, flow in enumerate(facts["flows"])
    ]
    for row in other["by_flow"]:
        row["flows"] = 2 * row["flows"]
    return other


def test_repetitions_of_a_condition_are_resampled_together(results: dict[str, Any]) -> None:
    once = table_of(gathered({"one": results}, "cylinder"), "pibert-mr")
    twice = table_of(gathered({"one": grouped(results, 10)}, "cylinder"), "pibert-mr")
    for line, same in zip(once, twice, strict=True):
        # Repetitions that are all alike say nothing new.
        assert same.model == line.model and same.nmse == pytest.approx(line.nmse, rel=1e-9)
        assert same.p == pytest.approx(line.p) and same.flows_won == 2 * line.flows_won
    apart = grouped(results, 10)
    del apart["data"]["cylinder"]["source"]["group_by"]
    for line, other in zip(
        twice, table_of(gathered({"one": apart}, "cylinder"), "pibert-mr"), strict=True
    ):
        assert other.nmse is not None and line.nmse is not None
        assert other.nmse.high < line.nmse.high  # type: ignore[operator]


def test_fewer_than_ten_conditions_give_no_interval_and_no_test(results: dict[str, Any]) -> None:
    few = gathered({"one": grouped(results, 9)}, "cylinder")
    lines = table_of(few, "pibert-mr")
    for line in lines:
        assert line.nmse is not None and line.nmse.low is line.nmse.high is line.p is None
    text = markdown(lines, "pibert-mr", few.few)
    assert "20 test flows are repetitions of 9 conditions (Re)" in text
    assert "[" not in text and "| mwt | 1 | 0.000713 |" in text
    tandem = gathered({"one": read(TANDEM)}, "fsi")
    assert len(tandem.units) == 13 and len(tandem.units.unique()) == 5
    assert tandem.few is not None and "5 conditions (Re, mass_ratio)" in tandem.few


def test_pieces_of_other_flows_budgets_or_errors_are_refused(results: dict[str, Any]) -> None:
    more, fewer = with_seed(results, 1, 1.0), with_seed(results, 1, 1.0)
    more["comparison"]["samples"] += 1
    fewer["data"]["cylinder"]["flows"][3]["test_frames"] -= 1
    for other, found in ((more, "samples"), (fewer, "test_frames")):
        with pytest.raises(SystemExit, match=found):
            gathered({"a": results, "b": other}, "cylinder")
    with pytest.raises(SystemExit, match="other errors"):
        gathered({"a": results, "b": with_seed(results, 0, 2.0)}, "cylinder")
    with pytest.raises(SystemExit, match="cylinder"):
        gathered({"a": results}, "jet")
    with pytest.raises(SystemExit, match="--tested"):
        table_of(gathered({"a": results}, "cylinder"), "nothing")


def run_of(results: dict[str, Any], model: str) -> dict[str, Any]:
    """The facts of the only run of a model."""
    (run,) = (run for run in results["runs"] if run["model"] == model)
    return dict(run)


def test_different_models_of_one_name_are_refused(results: dict[str, Any]) -> None:
    larger, built, faster = (with_seed(results, 1, 1.0) for _ in range(3))
    larger["comparison"]["candidates"]["unet"]["model"]["preset"] = "large"
    for other, key, value in ((built, "config", {"width": 4}), (faster, "learning_rate", 0.001)):
        place = other["runs"].index(run_of(other, "unet"))
        other["runs"][place] = {**other["runs"][place], key: value}
    for other, where in (
        (larger, "settings.model.preset is None and large"),
        (built, "run.config"),
        (faster, "run.learning_rate is 0.008 and 0.001"),
    ):
        with pytest.raises(SystemExit, match=f"a and b .* 'unet': {where}"):
            gathered({"a": results, "b": other}, "cylinder")
    # The rates that a tuned piece chose are settings of the piece that reuses them.
    reused = with_seed(results, 1, 1.0)
    reused["comparison"] |= {"tuning": None}
    for model, settings in reused["comparison"]["candidates"].items():
        settings["learning_rate"] = run_of(results, model)["learning_rate"]
        settings["optimizer"] = run_of(results, model)["optimizer"]
    assert not gathered({"a": results, "b": reused}, "cylinder").missing


def without(results: dict[str, Any], model: str, why: str | None) -> dict[str, Any]:
    """The same comparison, in which the run of a model failed (None: is not part of it)."""
    other = copy.deepcopy(results)
    other["by_flow"] = [row for row in other["by_flow"] if row["model"] != model]
    failed = {key: run_of(results, model)[key] for key in ("data", "model", "seed")}
    other["runs"] = [run for run in other["runs"] if run["model"] != model]
    if why is not None:
        other["runs"].append({**failed, "failed": why})
    else:
        del other["comparison"]["candidates"][model]
    return other


@pytest.mark.parametrize("kind", ["failed", "was not run", "has no finite error"])
def test_a_missing_seed_is_reported_and_its_model_comes_last(
    kind: str, results: dict[str, Any]
) -> None:
    second = with_seed(results, 1, 1.0)
    if kind == "has no finite error":
        for row in second["by_flow"]:
            if row["model"] == "mwt" and row["lead"] is None:
                row["flows"][4] = None
    else:
        second = without(second, "mwt", "the loss" if kind == "failed" else None)
    found = gathered({"a": results, "b": second}, "cylinder")
    assert list(found.missing) == [("mwt", 1)]
    lines = table_of(found, "pibert-mr")
    last = lines[-1]
    assert (last.model, last.seeds, last.missing) == ("mwt", 1, 1)
    assert last[3:] == (None, 0, None, None)
    assert all(line.nmse is not None and line.seeds == 2 for line in lines[:-1])
    text = markdown(lines, "pibert-mr", found.few, *found.reports)
    assert "| mwt | 1 of 2 | – | 0 | – | – |" in text and f"mwt: seed 1 {kind}" in text
    # Nothing is compared with an incomplete model.
    assert all(line[-2:] == (None, None) for line in table_of(found, "mwt"))
    again = gathered({"a": results, "b": second, "c": with_seed(results, 1, 1.0)}, "cylinder")
    assert not again.missing


def test_flows_without_energy_are_refused(results: dict[str, Any]) -> None:
    other = with_seed(results, 1, 1.0)
    row = next(r for r in other["by_flow"] if r["metric"] == "nmse" and r["lead"] is None)
    row["flows"][2] = None
    with pytest.raises(SystemExit, match=row["model"]):
        gathered({"a": other}, "cylinder")


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"format": 7}', FILE.read_bytes()[:900]])
@pytest.mark.parametrize("name", ["results.json", "other.json.gz"])
def test_what_is_no_result_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit, match=f"{name}: not the results"):
        read(tmp_path / name)
    with pytest.raises(SystemExit, match="nowhere"):
        read(tmp_path / "nowhere")
