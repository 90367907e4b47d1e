"""The results of a comparison, from the scores of all runs.

``records`` of results.json is a flat list of rows (``comparison/rows.py``), one for every data set,
model, seed, component and metric:

    {"data", "model", "seed", "space", "metric", "component", "value", "low", "high", "unit",
     "better", "against_best"}

Rows of the model ``truth`` hold the true flow's own sampling error over the time of the free runs,
those of ``coarse-solver`` the solver on a coarser grid, whose grid and time ``data`` states.
Beside it are plan, commit, versions, and facts and cost of every run. ``tuning`` has the trials
that chose learning rate and optimiser of every tuned model (``comparison/trials.py``), ``by_flow``
the main errors of every test flow and condition (``evaluation/by_flow.py``), which ``data`` lists.
``ranking`` of each data set has complete models first; ``missing`` counts seeds that failed or have
no finite error.
``paired_tests`` of each data set compare one model with every other (``comparison/paired.py``).
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pibert import config
from pibert.comparison import trials
from pibert.comparison.checks import NAME
from pibert.comparison.coarse_solver import folder_of, read_coarse_solver
from pibert.comparison.jobs import WAKE_OSCILLATOR
from pibert.comparison.paired import paired_tests
from pibert.comparison.plan import Comparison, Job, with_candidates
from pibert.comparison.rows import Row, free_run_weights, make_row, ranking, rows_of
from pibert.data.partial import replace_file
from pibert.evaluation.by_flow import Errors, errors_of, flows_of, summary_of
from pibert.evaluation.scores import Scores, read_scores
from pibert.experiments.evaluation import RECIPE
from pibert.experiments.run_folder import commit, curves_of, versions
from pibert.files import read_json
from pibert.progress import digits
from pibert.report.comparison.results import mean_of, missing_text

FORMAT = 1
FILES = ("results.json", "results.csv", "flows.csv", "curves.csv")
"""Files that a comparison writes to its folder beside its runs."""
_KEPT = (
    "cost",
    "training",
    "state_bytes",
    "at_a_time",
    "rollout",
    "structure",
    "embedding",
    "commit",
    "versions",
    "hardware",
    "pick_rule",
)
"""Facts of a run that the results state beside its rows."""
FLOW_COLUMNS = tuple("data flow parameters outside model seed metric lead unit value".split())
CURVE_COLUMNS = (
    *("data", "model", "seed", "stage", "epoch", "step", "samples", "learning_rate"),
    *("train_loss", "valid_loss", "valid_error", "seconds", "elapsed", "best"),
)


def gather(
    comparison: Comparison, out: Path, failed: Mapping[Job, str], command: str | None = None
) -> dict[str, Any]:
    """Collect all results of a comparison as plain JSON.

    Written to ``results.json``; the rows also to ``results.csv``, the errors by flow to
    ``flows.csv`` and the learning curves to ``curves.csv``. ``failed`` has the runs without scores,
    and why.
    """
    data: dict[str, Any] = {}
    records: list[Row] = []
    errors: list[Errors] = []
    for name in comparison.data:
        jobs = [job for job in comparison.jobs() if job.data == name and job not in failed]
        scores = {job: read_scores(job.folder(out)) for job in jobs}
        if not scores:
            continue
        refuse_unlike(scores)
        first = next(iter(scores.values()))
        coarse = read_coarse_solver(comparison, name, scores, out)
        planned = Counter(job.candidate for job in comparison.jobs() if job.data == name)
        rows, method = rows_of(scores, coarse, planned)
        for job, scored in scores.items():
            for metric, value in summary_of(scored).items():
                better = "none" if "share" in metric else "lower"
                entry = {"metric": metric, "component": "all", "unit": "1", "better": better}
                rows.append(make_row(job, entry, value))
            errors += [{**job.labels, **row} for row in errors_of(scored)]
        records += rows
        data[name] = {
            **{key: first.card["data"][key] for key in ("source", "length_unit", "test_frames")},
            "hash": config.fingerprint(first.card["data"]["source"]),
            "units": first.card["data"]["spec"]["units"],
            "correlation_frames": first.card["correlation_frames"],
            "intervals": method,
            "ranking": ranking(rows, planned),
            "paired_tests": paired_tests(scores, comparison.tested_model, planned),
            **flows_of(first),
        }
        oscillator = out / "runs" / name / WAKE_OSCILLATOR
        if "structure" in first.card and oscillator.exists():
            data[name]["wake_oscillator"] = read_json(oscillator)
        if "free_run" in first.card:
            lengths = first.card["free_run"]["frames"]
            data[name]["free_run"] = {
                "runs": len(lengths),
                "flows": len(first.arrays["free_run/trajectory"].unique()),
                "frames": [min(lengths), max(lengths)],
                "intervals": free_run_weights(first)[1],
            }
        if coarse is not None:
            folder = str(folder_of(out, name).relative_to(out))
            data[name]["coarse_solver"] = {**coarse.card["coarse_solver"], "folder": folder}
    runs = _runs(comparison, out, failed)
    recipes = {
        (run["data"], run["model"], run["seed"]): {name: run.get(name) for name in RECIPE}
        for run in runs
    }
    results = {
        "format": FORMAT,
        "command": command,
        "comparison": config.as_plain(comparison),
        "commit": commit(),
        "versions": versions(),
        "data": data,
        "tuning": trials.as_rows(comparison, out),
        "runs": runs,
        "records": records,
        "by_flow": errors,
    }
    unknown = dict.fromkeys(RECIPE)
    rows = [row | recipes.get((row["data"], row["model"], row["seed"]), unknown) for row in records]
    texts = (
        json.dumps(results, indent=1) + "\n",
        _as_csv(list(rows[0]) if rows else [], rows),
        _as_csv(FLOW_COLUMNS, _flow_rows(data, errors)),
        _as_csv(CURVE_COLUMNS, _curves(comparison, out)),
    )
    for file, text in zip(FILES, texts, strict=True):
        replace_file(out / file, text.encode())
    return results


RANKING_COLUMNS = ("rank", "model", "NMSE", "95 % interval", "skill", "parameters")


def ranking_table(results: Mapping[str, Any], name: str) -> Iterator[tuple[str, ...]]:
    """Return the ranking on a data set as rows of text, with ``RANKING_COLUMNS``."""
    for row in results["data"][name]["ranking"]:
        key = {"data": name, "model": row["model"]}
        wanted = key | {"space": "physical", "component": "all"}
        records = [r for r in results["records"] if wanted.items() <= r.items()]
        nmse, skill = ([r for r in records if r["metric"] == m] for m in ("nmse", "skill"))
        span = "–"
        if not row["missing"] and all(r["low"] is not None for r in nmse):
            span = f"{min(r['low'] for r in nmse):.3g} to {max(r['high'] for r in nmse):.3g}"
        mean = None if row["missing"] else mean_of([r["value"] for r in skill])
        runs = (r for r in results["runs"] if key.items() <= r.items() and "failed" not in r)
        yield (
            str(row["rank"]),
            row["model"] + missing_text(row),
            "–" if row["nmse"] is None else f"{row['nmse']:.3g}",
            span,
            digits(None if mean is None else round(mean, 9)),  # 0 of persistence
            f"{next(runs)['cost']['parameters']:,}",
        )


def read_results(out: Path) -> dict[str, Any]:
    """Read what ``gather`` wrote."""
    path = out / "results.json"
    try:
        results = read_json(path)
        if results.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}, found {results.get('format')}")
    except (FileNotFoundError, NotADirectoryError):
        remedy = f"run a comparison first: pibert compare --config PLAN.toml --out {out}"
        if (out / NAME).is_file():
            remedy = "run the comparison again with the same options, which keeps finished runs"
        raise FileNotFoundError(f"{out}: no results.json; {remedy}") from None
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{path}: not the results of a comparison ({error})") from None
    plan = results.get("comparison")
    return {**results, "comparison": with_candidates(plan)} if isinstance(plan, dict) else results


def refuse_unlike(scores: Mapping[Job, Scores]) -> None:
    """Refuse runs of different data, splits, units, normalisers or test frames."""
    (first_job, first), *others = scores.items()
    for job, other in others:
        names = (f"{run.candidate}-{run.seed}" for run in (first_job, job))
        runs = f"runs {' and '.join(names)}"
        mine, theirs = (
            {key: card["data"][key] for key in ("source", "split", "normalizer", "test_frames")}
            | {key: card["data"]["spec"][key] for key in ("channels", "units", "grid")}
            for card in (first.card, other.card)
        )
        if mine != theirs:
            name, *values = config.first_difference(mine, theirs)
            here, there = (json.dumps(value)[:120] for value in values)
            raise ValueError(
                f"{runs} cannot be compared: {name} is {here} and {there}; evaluate both on the "
                "same data"
            )
        for rows in ("rows/trajectory", "rows/frame"):
            if not torch.equal(first.arrays[rows], other.arrays[rows]):
                raise ValueError(
                    f"{runs} were evaluated on different frames; evaluate both with the same "
                    "history"
                )


def _runs(comparison: Comparison, out: Path, failed: Mapping[Job, str]) -> list[dict[str, Any]]:
    """Return facts and cost of each run; tensors stay in its folder."""
    runs = []
    for job in comparison.jobs():
        if job in failed:
            runs.append(job.labels | {"failed": failed[job]})
            continue
        card = read_scores(job.folder(out)).card
        runs.append(
            job.labels
            | {"folder": str(job.folder(out).relative_to(out))}
            | {key: card[key] for key in _KEPT if key in card}
            | {"shared_device": shares_device(card)}
            | {name: card.get("recipe", {}).get(name) for name in RECIPE}
            | {"config": card["model"]["config"], "name": card["model"]["name"]}
            | {"identity": card["identity"]}
        )
    return runs


def shares_device(card: Mapping[str, Any]) -> bool | None:
    """Return whether other runs used the device, so that times are upper bounds; None: unknown."""
    count = card.get("at_a_time", 1)
    return None if count is None else count > 1


def _flow_rows(data: Mapping[str, Any], errors: Iterable[Errors]) -> Iterator[Row]:
    """A row for every flow, model, seed, metric and lead; no lead is the next frame."""
    for row in errors:
        kept = {key: row[key] for key in ("data", "model", "seed", "metric", "lead", "unit")}
        for flow, value in zip(data[row["data"]]["flows"], row["flows"], strict=True):
            known = " ".join(f"{key}={number:g}" for key, number in flow["parameters"].items())
            own = {"flow": flow["name"], "parameters": known, "outside": " ".join(flow["outside"])}
            yield {**kept, **own, "value": value}


def _curves(comparison: Comparison, out: Path) -> Iterator[Row]:
    """Learning curves of all runs that have a log: a row for every epoch, pretraining first."""
    for job in comparison.jobs():
        source = comparison.candidates[job.candidate].run
        folder = job.folder(out) if source is None else Path(source)
        yield from (job.labels | epoch for epoch in curves_of(folder))


def _as_csv(columns: Sequence[str], rows: Iterable[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
