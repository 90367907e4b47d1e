"""Calibrate a model on flows that it has not seen: a split of its run, or other data."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pibert.data.dataset import Samples, Window
from pibert.data.provenance import predicted_by
from pibert.data.splits import SplitRule
from pibert.data.wording import counted
from pibert.experiments.flows import Flows, prepare_test
from pibert.experiments.held_out import (
    as_trained,
    check_fields,
    flows_of_run,
    note_unfinished,
    same_as_trained,
)
from pibert.experiments.run_folder import experiment_of
from pibert.inference import Predictor, load
from pibert.inference.calibration import Calibration, CalibrationSettings, calibrate
from pibert.inference.calibration_file import SHEET, TENSORS, save_calibration
from pibert.inference.ensemble import Ensemble
from pibert.inference.model_file import find_model, shipped_models
from pibert.notes import Note, warn

_FEW = 5
"""Independent units below which the width of intervals is arbitrary; one is refused."""


def calibrate_run(
    folder: Path | str,
    settings: CalibrationSettings | None = None,
    *,
    members: Sequence[Path | str] = (),
    flows: Flows | None = None,
    device: str = "cpu",
    out: Path | str | None = None,
    overwrite: bool = True,
) -> Calibration:
    """Calibrate a run on its calibration split, and write the result beside its model.

    A run without one is calibrated on its test split, with a note: training and selection did not
    see that either.

    Args:
        folder: A finished run.
        settings: How to calibrate.
        members: Other runs of the same experiment with other seeds, for an ensemble.
        flows: Those of the run, if the caller has prepared them.
        device: Where the model computes.
        out: Folder of the calibration; that of the run if not given.
        overwrite: Whether an existing calibration may be replaced.
    """
    folder, settings = Path(folder), settings or CalibrationSettings()
    _refuse_existing(Path(out or folder), overwrite)
    data = experiment_of(folder)[0].data
    for member in members:
        if experiment_of(Path(member))[0].data != data:  # it may have seen our calibration split
            raise ValueError(
                f"{member}: expected a run on the same [data], found another; run the experiment "
                "again and change only the seed: --set seed=1"
            )
    flows = flows or flows_of_run(folder)
    subset = _unseen_subset(flows, folder, data.split)
    _refuse_predicted(flows, folder)
    note_unfinished(folder, *members)
    models = [load(path, device) for path in (folder, *members)]
    return _calibrate(
        models,
        flows,
        subset,
        replace(settings, group_by=data.group_by),
        flows.samples("train", Window(history=models[0].history)),
        Path(out or folder),
        members,
        {"subset": subset, "split": data.split, "split_seed": data.split_seed},
    )


def calibrate_on(
    model: Path | str,
    data: Path | str,
    settings: CalibrationSettings | None = None,
    *,
    stated: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    members: Sequence[Path | str] = (),
    device: str = "cpu",
    overwrite: bool = True,
) -> Calibration:
    """Calibrate any model on flows that neither its training nor its selection saw.

    Args:
        model: A run or model folder, or the name of a shipped model.
        data: A file or folder of flows, all of which calibrate. The training data are refused.
        settings: How to calibrate.
        stated: Metadata of the data, as for ``as_trained``.
        out: Folder of the calibration; that of the model if not given, unless it is a shipped one.
        members: Other models, for an ensemble.
        device: Where the models compute.
        overwrite: Whether an existing calibration may be replaced.
    """
    path, settings = find_model(model), settings or CalibrationSettings()
    if out is None and path in shipped_models().values():
        raise ValueError(
            f"{model}: expected a folder for the calibration of a model that comes with the "
            "package, found none; give one: --out FOLDER, in Python "
            "pibert.load(model.save('FOLDER')).calibrate(flow)"
        )
    target = Path(out or (path if path.is_dir() else path.parent))
    _refuse_existing(target, overwrite)
    models = [load(member, device) for member in (path, *members)]
    plan = as_trained(models[0], data, stated)
    flows = prepare_test(plan, models[0].spec, models[0].normalizer)
    _refuse_predicted(flows, data)
    for predictor in models:
        if what := same_as_trained(predictor, flows):
            raise ValueError(
                f"{data}: expected flows that neither training nor selection saw, found flows of "
                f"the data set that the model was trained on (the same {what}), so that they may "
                "have trained it; give others, such as simulated ones of another seed, or "
                "calibrate a run on the share that its plan set aside: pibert calibrate RUN"
            )
    check_fields(models[0].spec, flows, data)
    note_unfinished(path, *members)
    settings = replace(settings, group_by=plan.group_by)
    return _calibrate(models, flows, "test", settings, None, target, members, {})


def _calibrate(
    models: Sequence[Predictor],
    flows: Flows,
    subset: str,
    settings: CalibrationSettings,
    train: Samples | None,
    folder: Path,
    members: Sequence[Path | str],
    provenance: Mapping[str, Any],
) -> Calibration:
    """Calibrate a model, or the ensemble of several, on a subset, and write the result."""
    predictor: Any = models[0] if len(models) == 1 else Ensemble(models)
    history, leads = predictor.history, settings.leads
    if (longest := flows.longest(subset)) < history + leads:
        remedy = f"choose --leads {longest - history}, or " if longest > history else ""
        raise ValueError(
            f"--leads {leads}: expected at least {history + leads} consecutive frames in the "
            f"{subset} flows, {history} as input, found at most {longest}; {remedy}calibrate on "
            "longer flows: --data FILE"
        )
    samples = flows.samples(subset, Window(history=history, horizon=leads))
    calibration = calibrate(predictor, train, samples, settings)
    if calibration.count < _FEW:
        text = (
            f"the intervals rest on {counted(calibration.count, 'independent unit')} only: their "
            "width is a guess and may be far off"
        )
        warn(Note("few-calibration-units", text, "calibrate on more or longer flows"))
    folder.mkdir(parents=True, exist_ok=True)
    save_calibration(
        folder,
        calibration,
        predictor.spec.channels,
        members=members,
        provenance={"data": flows.source, **provenance},
    )
    return calibration


def _refuse_existing(folder: Path, overwrite: bool) -> None:
    for name in (SHEET, TENSORS):
        if (folder / name).exists() and not overwrite:
            raise FileExistsError(
                f"{folder / name} exists; add --overwrite, or choose another folder: --out FOLDER"
            )


def _refuse_predicted(flows: Flows, data: Path | str) -> None:
    """Intervals from predicted flows would measure the distance to a model, not to the truth."""
    for trajectory in flows.trajectories:
        if (maker := predicted_by(trajectory.source)) is not None:
            raise ValueError(
                f"{data}: expected measured or simulated flows to calibrate on, found trajectory "
                f"{trajectory.name!r}, {maker}; leave such flows out"
            )


def _unseen_subset(flows: Flows, folder: Path, split: str) -> str:
    """Return the split that neither training nor selection saw: calibration, or else test."""
    if flows.split.calibration:
        return "calibration"
    if SplitRule.parse(split).kind in ("higher", "lower"):
        raise ValueError(
            f"{folder}: expected a calibration split, since the test flows are outside the "
            f"training range (data.split = {split!r}) and intervals hold for flows like those of "
            "the calibration, found none; train with one (--set data.shares.calibration=0.1, and "
            "less for data.shares.train), or calibrate on other flows: --data FILE"
        )
    if not flows.split.test:
        raise ValueError(
            f"{folder}: expected a calibration or test split, found neither; train with one "
            "(--set data.shares.calibration=0.2, and less for data.shares.train), or calibrate on "
            "other flows: --data FILE"
        )
    text = (
        "the run has no calibration split, so its test split calibrates: the coverage of the "
        "intervals cannot be measured on that any more"
    )
    remedy = "set other flows aside in training, such as --set data.shares.calibration=0.1, or give"
    warn(Note("calibrated-on-test", text, f"{remedy} others: --data FILE", "info"))
    return "test"
