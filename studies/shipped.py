"""Prediction intervals of the shipped models: calibrated and scored on new wakes.

python -m studies.shipped                      # for a GPU: two minutes on an H200
python -m studies.shipped cylinder-mr --wakes 26 8 --frames 50     # for a CPU: about an hour

Simulates wakes with the recipe of the training data and other seeds, calibrates on some, scores
the others, and writes for each model calibration.json, calibration.safetensors, coverage.png,
detection.png and coverage.json with all numbers. Nothing is chosen on the scored wakes.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from pibert.data.generate import change, generate
from pibert.experiments.calibration import calibrate_on
from pibert.experiments.flows import prepare_test
from pibert.experiments.held_out import as_trained
from pibert.experiments.run_folder import commit, versions
from pibert.inference import load
from pibert.inference.calibration import CalibrationSettings
from pibert.inference.model_file import find_model, shipped_models
from pibert.solver.presets import find_preset
from studies.uncertainty import MAIN, draw, make_forecasts, score_intervals, score_warning
from studies.uncertainty_tables import write_tables

CASE, PRESET = "cylinder", "realpdebench-like"
SEEDS = {"calibrating": 1, "testing": 3}
WAKES, FRAMES, GROUP = (48, 24), 100, 24
"""GROUP wakes are simulated together on a GPU; on a CPU it is one."""
STARTS = 12
SETTINGS = CalibrationSettings(difficulty=MAIN, leads=20, starts=STARTS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="*", help="names or folders; all that are shipped")
    parser.add_argument(
        "--wakes", type=int, nargs=2, default=WAKES, help="how many calibrate, how many test"
    )
    parser.add_argument("--frames", type=int, default=FRAMES, help="of each wake")
    parser.add_argument("--flows", type=Path, default=Path("outputs/wakes"))
    parser.add_argument("--out", type=Path, default=Path("outputs/shipped"))
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    group = GROUP if device == "cuda" else 1
    recipes: dict[str, dict[str, Any]] = {
        name: {"samples": samples, "group": group, "frames": options.frames, "seed": seed}
        for (name, seed), samples in zip(SEEDS.items(), options.wakes, strict=True)
    }
    for name, changes in recipes.items():
        simulated(options.flows / f"{name}.h5", changes, device)
    for model in options.models or shipped_models():
        out = options.out / find_model(model).name
        results = score(model, options.flows, recipes, out, device)
        print(write_tables(results, out / "tables.md"))


def simulated(path: Path, changes: dict[str, Any], device: str) -> None:
    """New wakes in a file; one that is there already is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    generate(change(find_preset(CASE, PRESET), changes), path, device=device)


def score(
    model: str, flows_at: Path, recipes: dict[str, dict[str, Any]], out: Path, device: str
) -> dict[str, Any]:
    """Calibrate a model on some flows and score intervals and warning on others."""
    found = calibrate_on(model, flows_at / "calibrating.h5", SETTINGS, out=out, device=device)
    predictor = load(model, device)
    testing = as_trained(predictor, flows_at / "testing.h5")
    flows = prepare_test(testing, predictor.spec, predictor.normalizer)
    made = make_forecasts(predictor, flows, SETTINGS.leads, STARTS)
    results = {
        "commit": commit(),
        "versions": versions(),
        "case": CASE,
        "preset": PRESET,
        "recipes": recipes,
        "trajectories": {"test": len(flows.trajectories)},
        "coverage": {MAIN: score_intervals(made, found, flows)},
        "detection": score_warning(predictor, found, flows, {}),
    }
    (out / "coverage.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(results, out)
    return results


if __name__ == "__main__":
    main()
