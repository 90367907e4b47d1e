"""Combine the results of comparisons that were run in pieces: by seed, or by model.

    python -m studies.combined outputs/wakes-0 outputs/wakes-1 --tested pibert-mr --out wakes.md

Each argument is the folder of a comparison, or its results.json, also compressed (.gz). All must
have the same plan but for models, seeds and tuning, and the same test flows. The table has the NMSE
of the next frame, the mean over seeds, with a 95 % interval of 10,000 resamples of the test flows
and, for each model, of its seeds. Ratios are of errors on the same flows; p-values have Holm's
correction for the number of models (``pibert/comparison/paired.py``).
"""

import argparse
import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pibert.comparison.paired import holm, p_value
from pibert.comparison.results import FORMAT
from pibert.config import first_difference
from pibert.evaluation.intervals import LEAST, ends

RESAMPLES = 10_000
_OWN = ("candidates", "seeds", "tuning", "tested")
"""Settings of a plan that may differ between pieces."""
Run = tuple[str, int]
"""Model and seed."""


class Errors(NamedTuple):
    """Sums over the frames of each test flow, (flow,), up to a factor that all flows share."""

    squared_error: Tensor
    energy: Tensor


class Line(NamedTuple):
    """A model in the table; ``ratio``, its interval and ``p`` are None for the tested one."""

    model: str
    seeds: int
    nmse: float
    low: float
    high: float
    flows_won: int
    ratio: tuple[float, float, float] | None
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
    return found


def gathered(pieces: Mapping[str, Mapping[str, Any]], data: str) -> dict[Run, Errors]:
    """Return the errors of every run on a data set, refusing pieces that cannot be compared."""
    runs: dict[Run, Errors] = {}
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
        frames = torch.tensor([flow["test_frames"] for flow in results["data"][data]["flows"]])
        tables: dict[Run, dict[str, Tensor]] = {}
        for row in results["by_flow"]:
            if row["data"] == data and row["lead"] is None and row["metric"] in ("nmse", "rmse"):
                if None in row["flows"]:
                    raise SystemExit(f"{name}: {row['model']} has no error on some test flows")
                values = torch.tensor(row["flows"], dtype=torch.float64)
                tables.setdefault((row["model"], row["seed"]), {})[row["metric"]] = values
        for run, table in tables.items():
            squared = table["rmse"].square() * frames
            found = Errors(squared, squared / table["nmse"])
            if run in runs and not all(map(torch.allclose, runs[run], found)):
                raise SystemExit(f"{name}: {run[0]} with seed {run[1]} has other errors elsewhere")
            runs[run] = found
    return runs


def _shared(results: Mapping[str, Any], data: str) -> dict[str, Any]:
    plan, facts = results["comparison"], results["data"][data]
    settings = {
        key: value for key, value in plan.items() if key not in (*_OWN, "data", "published")
    }
    return {
        "plan": settings,
        "data": {"settings": plan["data"][data], "hash": facts["hash"]},
        "flows": [{key: flow[key] for key in ("name", "test_frames")} for flow in facts["flows"]],
    }


def table_of(runs: Mapping[Run, Errors], tested: str, seed: int = 0) -> list[Line]:
    """Return the models by their error, the lowest first."""
    by_model: dict[str, list[Errors]] = {}
    for (model, _), errors in runs.items():
        by_model.setdefault(model, []).append(errors)
    if tested not in by_model:
        raise SystemExit(f"no model {tested!r}, but {', '.join(by_model)}; choose with --tested")
    count = len(next(iter(runs.values())).energy)
    if count < LEAST:
        raise SystemExit(f"expected at least {LEAST} test flows for intervals, found {count}")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(count, (RESAMPLES, count), generator=generator)
    weights = torch.zeros(RESAMPLES, count, dtype=torch.float64)
    weights.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=torch.float64))
    values, resampled, of_flows = {}, {}, {}
    for model, own in by_model.items():
        values[model] = float(
            torch.stack([e.squared_error.sum() / e.energy.sum() for e in own]).mean()
        )
        ratios = torch.stack([(weights @ e.squared_error) / (weights @ e.energy) for e in own])
        seeds = torch.randint(len(own), (len(own), RESAMPLES), generator=generator)
        resampled[model] = ratios.gather(0, seeds).mean(0)
        of_flows[model] = torch.stack([e.squared_error for e in own]).mean(0)
    best = torch.stack(list(of_flows.values())).argmin(0).tolist()
    order = sorted(values, key=values.__getitem__)
    others = [model for model in order if model != tested]
    p_values = [p_value(resampled[model] / resampled[tested]) for model in others]
    corrected = dict(zip(others, holm(p_values), strict=True))
    lines = []
    for model in order:
        low, high = (float(end) for end in ends(resampled[model][:, None], 0.95))
        ratio = None
        if model != tested:
            span = ends((resampled[model] / resampled[tested])[:, None], 0.95)
            ratio = (values[model] / values[tested], float(span[0]), float(span[1]))
        won = best.count(list(of_flows).index(model))
        seeds_of = len(by_model[model])
        lines.append(
            Line(model, seeds_of, values[model], low, high, won, ratio, corrected.get(model))
        )
    return lines


def markdown(lines: Sequence[Line], tested: str) -> str:
    """Return the table as Markdown."""
    rows = [
        f"| model | seeds | NMSE, next frame | flows won | error / that of {tested} | p (Holm) |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    for line in lines:
        ratio = "–" if line.ratio is None else _interval(*line.ratio)
        p = "–" if line.p is None else f"{line.p:.2g}"
        span = _interval(line.nmse, line.low, line.high)
        rows.append(f"| {line.model} | {line.seeds} | {span} | {line.flows_won} | {ratio} | {p} |")
    return "\n".join(rows) + "\n"


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.3g} [{low:.3g}, {high:.3g}]"


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
    text = markdown(table_of(gathered(pieces, data), options.tested), options.tested)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
