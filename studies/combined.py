"""Combine the results of comparisons that were run in pieces: by seed, or by model.

    python -m studies.combined outputs/wakes-0 outputs/wakes-1 --tested pibert-mr --out wakes.md

Each argument is the folder of a comparison, or its results.json, also compressed (.gz). All must
have the same plan but for models, seeds and tuning, and the same test flows. The table has the NMSE
of the next frame, the mean over seeds, with a 95 % interval of 10,000 resamples of the test flows
and, for each model, of its seeds. Ratios are of errors on the same flows; p-values have Holm's
correction for the number of models (``pibert/comparison/paired.py``).

Models that pieces share must be the same: their settings, and those of their runs, but for tuning,
whose choices must agree too. The seeds of a model are those of all pieces. A seed that failed, was
not run or has no finite error is missing: such a model has no mean and no test, comes after the
others, and is named below the table.

Where the data have ``group_by``, flows of one condition are resampled together. With fewer than ten
flows, or conditions, there are no intervals and no tests, and a line below the table says so.
"""

import argparse
import gzip
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pibert.comparison.paired import holm, p_value
from pibert.comparison.plan import with_candidates
from pibert.comparison.results import FORMAT
from pibert.config import first_difference
from pibert.evaluation.intervals import LEAST, ends

RESAMPLES = 10_000
_OWN = ("candidates", "seeds", "tuning", "tested")
"""Settings of a plan that may differ between pieces."""
_TUNED = ("optimizer", "learning_rate")
"""Settings of a model that tuning chooses; its runs state them."""
Run = tuple[str, int]
"""Model and seed."""


class Errors(NamedTuple):
    """Sums over the frames of each test flow, (flow,), up to a factor that all flows share."""

    squared_error: Tensor
    energy: Tensor


class Gathered(NamedTuple):
    """The errors of all pieces, and what their test flows are."""

    errors: dict[Run, Errors]
    units: Tensor
    """The number of the independent unit of each test flow, (flow,)."""
    grouped_by: tuple[str, ...] = ()
    """Parameters in which the flows of a unit agree; empty: each flow is a unit."""
    missing: Mapping[Run, str] = {}
    """Runs without errors, and why."""

    @property
    def few(self) -> str | None:
        """Return why there are no intervals and no tests; None if there are."""
        count, flows = len(self.units.unique()), len(self.units)
        if count >= LEAST:
            return None
        found = f"{flows} test flows"
        if self.grouped_by:
            found += f" are repetitions of {count} conditions ({', '.join(self.grouped_by)})"
        return f"No intervals and no tests: {found}; at least {LEAST} independent ones are needed."

    @property
    def reports(self) -> list[str]:
        """Return a sentence for every missing run."""
        return [f"{model}: seed {seed} {why}." for (model, seed), why in self.missing.items()]


class Value(NamedTuple):
    """A number with its interval, whose ends are None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        span = "" if None in self else f" [{self.low:.3g}, {self.high:.3g}]"
        return f"{self.value:.3g}{span}"


class Line(NamedTuple):
    """A model in the table; ``ratio`` and ``p`` are None for the tested one."""

    model: str
    seeds: int
    missing: int
    """Seeds without errors; with any, ``nmse`` is None."""
    nmse: Value | None
    flows_won: int
    ratio: Value | None
    p: float | None


def read(path: Path) -> dict[str, Any]:
    """Return the results of a comparison."""
    path = path / "results.json" if path.is_dir() else path
    try:
        content = path.read_bytes()
        found = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}")
    except FileNotFoundError:
        raise SystemExit(f"{path}: no such file; run the comparison first") from None
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise SystemExit(f"{path}: not the results of a comparison ({error})") from None
    return {**found, "comparison": with_candidates(found["comparison"])}


def gathered(pieces: Mapping[str, Mapping[str, Any]], data: str) -> Gathered:
    """Return the errors of every run on a data set, refusing pieces that cannot be compared."""
    runs: dict[Run, Errors] = {}
    lost: dict[Run, str] = {}
    models: dict[tuple[str, str], tuple[str, Any]] = {}
    (first_name, first), *_ = pieces.items()
    for name, results in pieces.items():
        if data not in results["data"]:
            raise SystemExit(f"{name}: no data set {data!r}, but {', '.join(results['data'])}")
        mine, others = _shared(first, data), _shared(results, data)
        if mine != others:
            key, here, there = first_difference(mine, others)
            raise SystemExit(
                f"{first_name} and {name} differ in {key}: {str(here)[:200]} and {str(there)[:200]}"
            )
        for (model, what), found in _models(results, data).items():
            before, known = models.setdefault((model, what), (name, found))
            if known != found:
                key, here, there = first_difference(known, found, what)
                raise SystemExit(
                    f"{before} and {name} have different models named {model!r}: {key} is "
                    f"{str(here)[:200]} and {str(there)[:200]}; rename one of them"
                )
        for run in results["runs"]:
            if run["data"] == data and "failed" in run:
                lost[run["model"], run["seed"]] = f"failed in {name}: {run['failed']}"
        frames = torch.tensor([flow["test_frames"] for flow in results["data"][data]["flows"]])
        tables: dict[Run, dict[str, Tensor]] = {}
        for row in results["by_flow"]:
            if row["data"] == data and row["lead"] is None and row["metric"] in ("nmse", "rmse"):
                if None in row["flows"] and row["metric"] == "rmse":
                    lost[row["model"], row["seed"]] = f"has no finite error in {name}"
                values = torch.tensor(
                    [math.nan if value is None else value for value in row["flows"]],
                    dtype=torch.float64,
                )
                tables.setdefault((row["model"], row["seed"]), {})[row["metric"]] = values
        for run, table in tables.items():
            squared = table["rmse"].square() * frames
            if not bool(squared.isfinite().all()):
                continue
            errors = Errors(squared, squared / table["nmse"])
            if not bool(errors.energy.isfinite().all()):
                raise SystemExit(f"{name}: {run[0]} has no NMSE on some test flows")
            if run in runs and not all(map(torch.allclose, runs[run], errors)):
                raise SystemExit(f"{name}: {run[0]} with seed {run[1]} has other errors elsewhere")
            runs[run] = errors
    facts = first["data"][data]
    names = tuple(facts["source"].get("group_by") or ())
    own = [flow["condition"] for flow in facts["flows"]]
    units = own if names and None not in own else range(len(own))  # None: no two flows share one
    missing = _missing(pieces.values(), data, runs, lost)
    return Gathered(runs, torch.tensor(list(units)), names, missing)


def _models(results: Mapping[str, Any], data: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the ``settings`` of each model, and those that its ``run`` on a data set states."""
    found = {
        (model, "settings"): {key: value for key, value in settings.items() if key not in _TUNED}
        for model, settings in results["comparison"]["candidates"].items()
    }
    for run in results["runs"]:
        if run["data"] == data and "failed" not in run:
            stated = {key: run.get(key) for key in (*_TUNED, "name", "config")}
            found[run["model"], "run"] = stated
    return found


def _missing(
    pieces: Iterable[Mapping[str, Any]],
    data: str,
    runs: Mapping[Run, Errors],
    lost: Mapping[Run, str],
) -> dict[Run, str]:
    """Return the runs without errors: all trained models need the seeds of all pieces."""
    rows = [run for results in pieces for run in results["runs"] if run["data"] == data]
    trained = {run["model"] for run in rows if run.get("training") or "failed" in run}
    added = {
        model
        for results in pieces
        for model, settings in results["comparison"]["candidates"].items()
        if settings.get("run") is not None
    }
    seeds = dict.fromkeys(run["seed"] for run in rows if run["model"] in trained - added)
    planned = [(run["model"], run["seed"]) for run in rows]
    planned += [(model, seed) for model in sorted(trained - added) for seed in seeds]
    return {run: lost.get(run, "was not run") for run in dict.fromkeys(planned) if run not in runs}


def _shared(results: Mapping[str, Any], data: str) -> dict[str, Any]:
    plan, facts = results["comparison"], results["data"][data]
    settings = {
        key: value for key, value in plan.items() if key not in (*_OWN, "data", "published")
    }
    return {
        "plan": settings,
        "data": {"settings": plan["data"][data], "hash": facts["hash"]},
        "flows": [
            {key: flow[key] for key in ("name", "test_frames", "condition")}
            for flow in facts["flows"]
        ],
    }


def table_of(gathered: Gathered, tested: str, seed: int = 0) -> list[Line]:
    """Return the models by their error, the lowest first; then those with missing seeds."""
    missing = Counter(model for model, _ in gathered.missing)
    runs: dict[str, list[Errors]] = {model: [] for model in missing}
    for (model, _), errors in gathered.errors.items():
        runs.setdefault(model, []).append(errors)
    if tested not in runs:
        raise SystemExit(f"no model {tested!r}, but {', '.join(runs)}; choose with --tested")
    by_model = {model: own for model, own in runs.items() if not missing[model]}
    values = {
        model: float(torch.stack([e.squared_error.sum() / e.energy.sum() for e in own]).mean())
        for model, own in by_model.items()
    }
    of_flows = {
        model: torch.stack([e.squared_error for e in own]).mean(0)
        for model, own in by_model.items()
    }
    best = torch.stack(list(of_flows.values())).argmin(0).tolist() if of_flows else []
    order = sorted(values, key=values.__getitem__)
    others = [model for model in order if model != tested and tested in values]
    resampled: dict[str, Tensor] = {}
    p_values: dict[str, float | None] = {}
    if gathered.few is None:
        resampled = _resampled(by_model, gathered.units, seed)
        squares = {model: _by_unit(own, gathered.units) for model, own in by_model.items()}
        found = [p_value(squares[tested], squares[model]) for model in others]
        p_values = dict(zip(others, holm(found), strict=True))
    lines = []
    for model in order:
        nmse, ratio = Value(values[model]), None
        if resampled:
            nmse = _with_interval(nmse, resampled[model])
        if model in others:
            ratio = Value(values[model] / values[tested])
            if resampled:
                ratio = _with_interval(ratio, resampled[model] / resampled[tested])
        won = best.count(list(of_flows).index(model))
        lines.append(Line(model, len(by_model[model]), 0, nmse, won, ratio, p_values.get(model)))
    for model, count in sorted(missing.items(), key=lambda pair: pair[1]):
        lines.append(Line(model, len(runs[model]), count, None, 0, None, None))
    return lines


def _by_unit(runs: Sequence[Errors], units: Tensor) -> Tensor:
    """Return the squared errors of each seed on each unit, (seed, unit)."""
    index = units.unique(return_inverse=True)[1]
    errors = torch.stack([run.squared_error for run in runs])
    return errors.new_zeros(len(runs), int(index.max()) + 1).index_add(1, index, errors)


def _resampled(
    by_model: Mapping[str, Sequence[Errors]], units: Tensor, seed: int
) -> dict[str, Tensor]:
    """Return the NMSE of each model with the same units, and with seeds of its own, (resample,)."""
    generator = torch.Generator().manual_seed(seed)
    index = units.unique(return_inverse=True)[1]
    count = int(index.max()) + 1
    chosen = torch.randint(count, (RESAMPLES, count), generator=generator)
    weights = torch.zeros(RESAMPLES, count, dtype=torch.float64)
    weights.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=torch.float64))
    weights = weights[:, index]
    resampled = {}
    for model, own in by_model.items():
        ratios = torch.stack([(weights @ e.squared_error) / (weights @ e.energy) for e in own])
        seeds = torch.randint(len(own), (len(own), RESAMPLES), generator=generator)
        resampled[model] = ratios.gather(0, seeds).mean(0)
    return resampled


def _with_interval(value: Value, resampled: Tensor) -> Value:
    low, high = ends(resampled[:, None], 0.95)
    return Value(value.value, float(low), float(high))


def markdown(lines: Sequence[Line], tested: str, *notes: str | None) -> str:
    """Return the table as Markdown, with notes below it."""
    rows = [
        f"| model | seeds | NMSE, next frame | flows won | error / that of {tested} | p (Holm) |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    for line in lines:
        ratio = "–" if line.ratio is None else str(line.ratio)
        p = "–" if line.p is None else f"{line.p:.2g}"
        seeds = str(line.seeds)
        if line.missing:
            seeds += f" of {line.seeds + line.missing}"
        cells = (line.model, seeds, line.nmse or "–", line.flows_won, ratio, p)
        rows.append(f"| {' | '.join(map(str, cells))} |")
    rows += [f"\n{note}" for note in notes if note]
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("pieces", nargs="+", type=Path, help="folders or results.json[.gz]")
    parser.add_argument("--data", help="the data set; may be left out if there is one")
    parser.add_argument("--tested", default="pibert-mr", help="the model of the paired tests")
    parser.add_argument("--out", type=Path, help="write the table to this file")
    options = parser.parse_args()
    pieces = {str(path): read(path) for path in options.pieces}
    names = list(next(iter(pieces.values()))["data"])
    if options.data is None and len(names) > 1:
        parser.error(f"several data sets ({', '.join(names)}); choose with --data")
    data = options.data or names[0]
    found = gathered(pieces, data)
    text = markdown(table_of(found, options.tested), options.tested, found.few, *found.reports)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
