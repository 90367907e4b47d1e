"""Run the studies of pretraining and write docs/pretraining.md.

python -m studies                          # for a GPU: some 15 minutes on an H200
python -m studies --only wakes jet         # some studies; the page keeps the results of the others
python -m studies --quick --out page       # tiny, minutes on a CPU: does it run?

Studies: wakes, jet (filling), consistency, labels, schedule. We may not distribute the jet
recording; give your copy with --jet FILE.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pibert.experiments import load_experiment
from pibert.experiments.experiment import Experiment
from pibert.experiments.run_folder import commit, versions
from studies import consistency, filling, labels, page, schedule
from studies.progress import Lines

CONFIGS = Path(__file__).parents[1] / "configs"
STUDIES = ("wakes", "jet", "consistency", "labels", "schedule")
QUICK = (
    "pretraining.epochs=1",
    "training.epochs=1",
    "model.options.width=32",
    "model.options.depth=1",
    "hardware.precision=float32",
)
"""Changes that make a study small enough to see whether it runs."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--runs", type=Path, default=Path("outputs/studies"))
    parser.add_argument("--only", nargs="*", choices=STUDIES, help="some of the studies")
    parser.add_argument("--jet", default="data/jet_piv_train.npz", help="the jet recording (npz)")
    parser.add_argument(
        "--score", action="store_true", help="wakes, jet: score the models in --runs, do not train"
    )
    parser.add_argument("--quick", action="store_true", help="tiny")
    options = parser.parse_args()
    if options.quick and options.out == Path("docs"):
        parser.error("--quick is not for the page in docs/; give another folder with --out")
    folder = options.out / "pretraining"
    folder.mkdir(parents=True, exist_ok=True)
    reporter = Lines()
    for study in options.only or STUDIES:
        start = time.perf_counter()
        result = _measure(study, options, reporter)
        result["seconds"] = time.perf_counter() - start
        result["measured"] = _circumstances()
        (folder / f"{study}.json").write_text(json.dumps(result, indent=1) + "\n")
        for picture in (options.runs / study).glob("*.png"):
            (folder / f"{study}-{picture.name}").write_bytes(picture.read_bytes())
        page.write(options.out)
        reporter.say(f"{study}: {result['seconds']:.0f} s")


def _measure(study: str, options: Any, reporter: Lines) -> dict[str, Any]:
    out: Path = options.runs / study
    quick: bool = options.quick
    filled: dict[str, Any] = {"train": not options.score, "most": 4 if quick else filling.MOST}
    make: dict[str, Callable[[], dict[str, Any]]] = {
        "wakes": lambda: filling.measure(_experiment("wakes-piv", quick), out, reporter, **filled),
        "jet": lambda: filling.measure(
            _experiment("jet-filling", quick, f"data.path={options.jet}"), out, reporter, **filled
        ),
        "consistency": lambda: consistency.measure(
            _experiment("wakes-consistency", quick), out, reporter, 8 if quick else consistency.MOST
        ),
        "labels": lambda: labels.measure(
            _experiment("labels", quick),
            out,
            reporter,
            steps=3 if quick else labels.STEPS,
            seeds=(0,) if quick else labels.SEEDS,
        ),
        "schedule": lambda: schedule.measure(_experiment("wakes-base", quick), out, reporter),
    }
    return make[study]()


def _experiment(name: str, quick: bool, *changes: str) -> Experiment:
    experiment = load_experiment(CONFIGS / f"{name}.toml", (*changes, *(QUICK if quick else ())))
    if quick and experiment.data.case is not None:
        # The smallest set of the kind, whatever the preset.
        data = replace(experiment.data, preset="demo", recipe={}, size=None)
        return replace(experiment, data=data)
    return experiment


def _circumstances() -> dict[str, Any]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "device": device,
        "versions": versions(),
    }


if __name__ == "__main__":
    main()
