"""Coverage of prediction intervals and detections of the OOD warning, on simulated wakes.

python -m studies.uncertainty          # some minutes on two cores; writes docs/uncertainty/
python -m studies.uncertainty --out page --runs outputs/uncertainty-2

Trains configs/uncertainty.toml with three seeds, calibrates on the calibration split, and scores
once on trajectories of the test split. Nothing is chosen on those. Writes results.json,
coverage.png and detection.png; the tables of docs/uncertainty.md go to tables.md beside the runs.
"""

import argparse
import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pibert.data.dataset import Window
from pibert.evaluation.geometry import locate
from pibert.experiments import Experiment, load_experiment
from pibert.experiments.calibration import calibrate_run
from pibert.experiments.flows import Flows, prepare, prepare_test
from pibert.experiments.run import run
from pibert.experiments.run_folder import commit, versions
from pibert.inference import load
from pibert.inference.calibration import LEVELS, Calibration, CalibrationSettings, score_windows
from pibert.inference.ensemble import Ensemble
from pibert.inference.windows import Forecast, forecast, read_windows, windows_by_trajectory
from studies.consistency_metrics import auc
from studies.faults import FAULTS, OTHER_FLOWS, Stretch, restated
from studies.progress import Lines
from studies.uncertainty_figures import draw_coverage, draw_detection
from studies.uncertainty_tables import write_tables

CONFIG = Path(__file__).parents[1] / "configs" / "uncertainty.toml"
SEEDS = (0, 1, 2)
LEADS, STARTS = 6, 6
MAIN = "residual"
METHODS = ("constant", "ensemble", MAIN)
"""The last one stays beside the model."""
FALSE_ALARMS = 0.05
WINDOWS = 16
"""Of each trajectory, to score the warning on."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/uncertainty"))
    parser.add_argument("--runs", type=Path, default=Path("outputs/uncertainty"))
    options = parser.parse_args()
    experiment = load_experiment(CONFIG)
    reporter = Lines()
    flows = prepare(experiment.data)
    folders = [
        run(
            replace(experiment, seed=seed),
            options.runs / f"seed-{seed}",
            reporter=reporter,
            flows=flows,
        ).folder
        for seed in SEEDS
    ]
    results: dict[str, Any] = {
        "commit": commit(),
        "versions": versions(),
        "trajectories": {
            part: len(getattr(flows.split, part))
            for part in ("train", "valid", "calibration", "test")
        },
        "coverage": {},
    }
    for name in METHODS:
        settings = CalibrationSettings(difficulty=name, leads=LEADS, starts=STARTS)
        members = folders[1:] if name == "ensemble" else []
        found = calibrate_run(folders[0], settings, members=members, flows=flows)
        calibrations = {name: found}
        if name == MAIN:
            calibrations[f"{name}, windows"] = replace(found, units="windows")
            model = load(folders[0])
            others = _other_flows(model, flows, experiment)
            results["detection"] = score_warning(model, found, flows, others)
        made = make_forecasts(_predictor(folders, found), flows, LEADS)
        for title, one in calibrations.items():
            results["coverage"][title] = score_intervals(made, one, flows)
            reporter.say(f"{title}: {results['coverage'][title]['marginal']}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(results, options.out)
    print(write_tables(results, options.runs / "tables.md"))


def _predictor(folders: list[Path], found: Calibration) -> Any:
    models = [load(folder) for folder in folders]
    return Ensemble(models) if found.difficulty.guide == "ensemble" else models[0]


def make_forecasts(
    predictor: Any, flows: Flows, leads: int, starts: int = STARTS
) -> list[Forecast]:
    """For every test trajectory."""
    samples = flows.samples("test", Window(history=predictor.history, horizon=leads))
    return [
        forecast(predictor, read_windows(samples, own, predictor.spec))
        for own in windows_by_trajectory(samples, starts).values()
    ]


def score_intervals(forecasts: list[Forecast], found: Calibration, flows: Flows) -> dict[str, Any]:
    """Coverage and width on test trajectories; (trajectory, level, lead, channel, region)."""
    spec, masks = flows.spec, regions(flows)
    quantiles = torch.stack([found.quantiles(level) for level in LEVELS])  # (level, lead, c)
    covered, widths = [], []
    for made in forecasts:
        scales = found.difficulty.scales(made, spec)
        scores = made.errors() / scales
        known = ~scores.isnan()
        rows = []
        for limit in quantiles:
            inside = (scores <= limit[None, :, :, None, None]) & known
            shares = [
                (inside & mask).sum((0, 3, 4)) / (known & mask).sum((0, 3, 4)).clamp(min=1)
                for mask in masks.values()
            ]
            rows.append(torch.stack(shares, dim=-1))
        covered.append(torch.stack(rows))
        half = quantiles[:, None, :, :, None, None] * scales
        widths.append(_mean_width(half, known))
    every, width = torch.stack(covered), torch.stack(widths).mean(0)  # (level, lead, c)
    std = torch.tensor(flows.normalizer.std)
    whole = every[..., 0]  # (trajectory, level, lead, c); the first region is everywhere
    per_trajectory = whole[:, :, 0].mean(-1)
    return {
        "guide": found.difficulty.guide,
        "guide_losses": dict(found.guide_losses),
        "units": found.units,
        "count": found.count,
        "assumption": found.assumption(),
        "levels": list(LEVELS),
        "channels": list(spec.channels),
        "marginal": whole[:, :, 0].mean(0).tolist(),
        "marginal_all_leads": whole.mean((0, 2)).tolist(),
        "trajectories": per_trajectory.T.tolist(),
        "standard_error": (whole[:, :, 0].std(0) / len(whole) ** 0.5).tolist(),
        "by_lead": whole.mean((0, 3)).tolist(),
        "regions": {
            name: every[:, :, 0, :, place].mean((0, 2)).tolist() for place, name in enumerate(masks)
        },
        "width": (width / std).tolist(),
    }


def _mean_width(half: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Mean half-width over known points, (level, lead, c)."""
    total = torch.where(known, half, 0.0).sum((1, 4, 5))
    return total / known.sum((0, 3, 4))


def regions(flows: Flows) -> dict[str, torch.Tensor]:
    """Everywhere; within a diameter of the body; behind it; and the rest."""
    grid = flows.spec.grid
    assert grid.body is not None
    place = locate(grid.body[None], grid)
    rows, columns = (torch.arange(size)[:, None] for size in grid.shape)
    x = (columns.T - place.centre_x) * grid.dx / place.diameter  # from its centre, in diameters
    y = (rows - place.centre_y) * grid.dy / place.diameter
    near = torch.hypot(x, y) < 1.5
    wake = (x > 0) & (y.abs() < 1.25) & ~near
    return {
        "everywhere": torch.ones_like(near),
        "near the body": near,
        "wake": wake,
        "far field": ~near & ~wake,
    }


def score_warning(
    predictor: Any, found: Calibration, flows: Flows, others: dict[str, Stretch]
) -> dict[str, Any]:
    """AUC and detection rate of every fault on windows of test trajectories, and of other flows."""
    sound = _stretch(flows, predictor)
    scores = _scores(predictor, found, sound)
    p, _ = found.detector.p_values(scores)
    level = found.detector.surprisal.of_scores(scores).amax(1)
    results: dict[str, Any] = {
        "windows": len(p),
        "false_alarms": float((p <= FALSE_ALARMS).double().mean()),
        "parts": list(found.detector.names),
        "faults": {},
    }
    generator = torch.Generator().manual_seed(0)
    cases = {
        name: (kind, make(sound, generator))
        for name, (kind, make) in FAULTS.items()
        if kind != "time" or predictor.history > 1  # one frame does not tell
    }
    cases |= {name: ("parameters", stretch) for name, stretch in others.items()}
    for name, (kind, stretch) in cases.items():
        theirs = _scores(predictor, found, stretch)
        surprises = found.detector.surprisal.of_scores(theirs)
        odd, p_odd = surprises.amax(1), found.detector.p_values(theirs)[0]
        both, labels = torch.cat((level, odd)), torch.zeros(len(level) + len(odd)).bool()
        labels[len(level) :] = True
        reason = torch.bincount(surprises.argmax(1)).argmax()
        results["faults"][name] = {
            "kind": kind,
            "windows": len(odd),
            "auc": auc(both, labels),
            "detected": float((p_odd <= FALSE_ALARMS).double().mean()),
            "reason": found.detector.names[int(reason)],
            "roc": _roc(level, odd),
            "auc_of_parts": {
                part: auc(torch.cat((scores[:, i], theirs[:, i])), labels)
                for i, part in enumerate(found.detector.names)
            },
        }
    return results


def _other_flows(predictor: Any, flows: Flows, experiment: Experiment) -> dict[str, Stretch]:
    """Wakes at Reynolds numbers outside the training range."""
    found = {}
    for name, (bounds, stated) in OTHER_FLOWS.items():
        recipe = experiment.data.recipe | {
            "samples": 8,
            "group": 8,
            "frames": 10,
            "reynolds": list(bounds),
            "seed": 1,
        }
        data = replace(experiment.data, recipe=recipe)
        others = _stretch(prepare_test(data, flows.spec, flows.normalizer), predictor)
        found[name] = others if stated is None else restated(others, stated)
    return found


def _stretch(flows: Flows, predictor: Any) -> Stretch:
    """Windows of the test part with the frame that follows each."""
    samples = flows.samples("test", Window(history=predictor.history, horizon=1))
    own = [n for each in windows_by_trajectory(samples, WINDOWS).values() for n in each]
    given = read_windows(samples, own, predictor.spec)
    return Stretch(given, predictor.spec, predictor.normalizer)


def _scores(predictor: Any, found: Calibration, stretch: Stretch) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of units that are far off: they are
        return score_windows(predictor, stretch.given, found.statistics)


def _roc(sound: torch.Tensor, odd: torch.Tensor) -> list[list[float]]:
    """False alarms and detections at thresholds of sound windows, closer where few are flagged."""
    ranks = torch.logspace(0, math.log10(len(sound)), 60).round().long().unique()
    thresholds = sound.sort(descending=True).values[ranks - 1]
    found = (odd[None] >= thresholds[:, None]).double().mean(1)
    return [_rounded(ranks / len(sound)), _rounded(found)]


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def draw(results: dict[str, Any], out: Path) -> None:
    """Both figures."""
    coverage, main_one = results["coverage"], results["coverage"][MAIN]
    test = results["trajectories"]["test"]
    draw_coverage(
        out / "coverage.png",
        LEVELS,
        {name: one["trajectories"] for name, one in coverage.items()},
        main_one["regions"],
        {level: main_one["by_lead"][place] for place, level in enumerate(LEVELS)},
        title=f"{test} unseen wakes; next frame left and middle; regions and lead times: {MAIN}",
    )
    panels: dict[str, dict[str, Any]] = {}
    for name, fault in results["detection"]["faults"].items():
        panels.setdefault(fault["kind"], {})[name] = fault["roc"]
    draw_detection(
        out / "detection.png",
        panels,
        results["detection"]["false_alarms"],
        title=f"windows of {test} unseen wakes; dotted: windows are flagged at p <= 0.05",
    )


if __name__ == "__main__":
    main()
