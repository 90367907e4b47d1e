"""Calibrating the model of a finished run on the flows that its plan set aside for that."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pibert import config
from pibert.data.dataset import Window
from pibert.experiments.experiment import Experiment
from pibert.experiments.flows import Flows, prepare
from pibert.experiments.record import read_record
from pibert.predictor import load
from pibert.trust.artefact import save_calibration
from pibert.trust.calibration import Calibration, Settings, calibrate
from pibert.trust.ensemble import Ensemble


def calibrate_run(
    folder: Path | str,
    settings: Settings | None = None,
    *,
    members: Sequence[Path | str] = (),
    flows: Flows | None = None,
    device: str = "cpu",
) -> Calibration:
    """Calibrate a run on its calibration part, and write the result beside its model.

    Args:
        folder: A finished run.
        settings: How to calibrate.
        members: Other runs of the same experiment with other seeds, for an ensemble.
        flows: Those of the run, where the caller has prepared them.
        device: Where the model computes.
    """
    folder, settings = Path(folder), settings or Settings()
    experiment, started_in = _experiment_of(folder)
    for member in members:
        _refuse_other_data(experiment, Path(member))
    _need_share(experiment, folder, flows)
    if flows is None:
        with contextlib.chdir(started_in if started_in.is_dir() else "."):
            flows = prepare(experiment.data)
    _need_share(experiment, folder, flows)
    models = [load(path, device) for path in (folder, *members)]
    predictor: Any = models[0] if len(models) == 1 else Ensemble(models)
    history = predictor.history
    found = calibrate(
        predictor,
        flows.samples("train", Window(history=history)),
        flows.samples("calibration", Window(history=history, horizon=settings.leads)),
        settings,
    )
    save_calibration(
        folder,
        found,
        predictor.spec.channels,
        members=members,
        provenance={
            "data": flows.source,
            "split": experiment.data.split,
            "split_seed": experiment.data.split_seed,
        },
    )
    return found


def _experiment_of(folder: Path) -> tuple[Experiment, Path]:
    """The experiment of a run, and where it was started: its paths are meant from there."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: expected a run folder with config.json, found none; the split that set "
            "flows aside for calibration is recorded there"
        )
    recorded = read_record(path)
    experiment = config.parse(Experiment, recorded["experiment"], str(path))
    return experiment, Path(recorded.get("directory", "."))


def _refuse_other_data(experiment: Experiment, member: Path) -> None:
    """All members must have been trained on the same part: another's may hold our calibration."""
    theirs, _ = _experiment_of(member)
    if theirs.data != experiment.data:
        raise ValueError(
            f"{member}: expected a run on the same [data], found others; run the experiment again "
            "with another seed alone: --set seed=1"
        )


def _need_share(experiment: Experiment, folder: Path, flows: Flows | None) -> None:
    if experiment.data.split != "stated" and not experiment.data.shares.calibration:
        raise ValueError(
            f"{folder}: expected a calibration share that neither training nor selection saw, "
            "found none in its plan; train with one: --set data.shares.calibration=0.2 (and less "
            "for data.shares.train)"
        )
    if flows is not None and not flows.split.calibration:
        raise ValueError(
            f"{folder}: expected flows in the calibration part, found none; state the part "
            "'calibration' for some trajectories, or choose data.split = 'trajectory'"
        )
