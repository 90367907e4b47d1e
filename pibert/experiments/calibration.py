"""Calibrating a model: on flows that its plan set aside, or on others that it has not seen."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pibert import config
from pibert.data.dataset import Window, common_spec
from pibert.data.provenance import predicted_by
from pibert.data.readers import identify, idle_hints, options_of
from pibert.experiments.experiment import DataConfig, Experiment
from pibert.experiments.flows import IDENTITIES, Flows, prepare, prepare_test
from pibert.experiments.run_folder import read_record, unfinished
from pibert.fields import FieldSpec
from pibert.inference import Predictor, load
from pibert.inference.calibration import Calibration, CalibrationSettings, calibrate
from pibert.inference.calibration_file import SHEET, TENSORS, save_calibration
from pibert.inference.ensemble import Ensemble
from pibert.inference.model_file import find_model, shipped_models, stated_in
from pibert.inference.recording import fit_units, units_of
from pibert.notes import Note, warn

HOW_TO_STATE = (
    "state what the file does not say (--channels, --unit; with --length-unit and --time-unit too, "
    "all is brought to metres and seconds), or convert the data"
)
_OF_ONE_RECORDING = (
    *("parameters", "body", "mask", "scale", "pulse_delay"),
    *("override_units", "override_metadata"),
)
"""Hints on training data that say nothing about other data."""


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
        flows: Those of the run, where the caller has prepared them.
        device: Where the model computes.
        out: Folder of the calibration; that of the run if not given.
        overwrite: Whether a calibration that is there may be replaced.
    """
    folder, settings = Path(folder), settings or CalibrationSettings()
    _refuse_existing(Path(out or folder), overwrite)
    experiment, started_in = _experiment_of(folder)
    for member in members:
        _refuse_other_data(experiment, Path(member))
    if flows is None:
        with contextlib.chdir(started_in if started_in.is_dir() else "."):
            flows = prepare(experiment.data)
    subset = _unseen_subset(flows, folder)
    _refuse_predicted(flows, folder)
    _note_unfinished(folder, *members)
    settings = replace(settings, group_by=experiment.data.group_by)
    models = [load(path, device) for path in (folder, *members)]
    predictor: Any = models[0] if len(models) == 1 else Ensemble(models)
    history = predictor.history
    _check_leads(settings.leads, flows, subset, history)
    found = calibrate(
        predictor,
        flows.samples("train", Window(history=history)),
        flows.samples(subset, Window(history=history, horizon=settings.leads)),
        settings,
    )
    save_calibration(
        _made(out or folder),
        found,
        predictor.spec.channels,
        members=members,
        provenance={
            "data": flows.source,
            "subset": subset,
            "split": experiment.data.split,
            "split_seed": experiment.data.split_seed,
        },
    )
    return found


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
    """Calibrate any model on flows that, so the caller vouches, nothing of its making saw.

    Args:
        model: A run or model folder, or the name of a shipped model.
        data: A file or folder of flows, all of which calibrate. The training data are refused.
        settings: How to calibrate.
        stated: What the data do not say, as for ``as_trained``.
        out: Folder of the calibration; that of the model if not given, unless it is a shipped one.
        members: Other models, for an ensemble.
        device: Where the models compute.
        overwrite: Whether a calibration that is there may be replaced.
    """
    path, settings = find_model(model), settings or CalibrationSettings()
    if out is None and path in shipped_models().values():
        raise ValueError(
            f"{model}: expected a folder for the calibration of a model that comes with the "
            "package, found none; give one: --out FOLDER"
        )
    target = Path(out or (path if path.is_dir() else path.parent))
    _refuse_existing(target, overwrite)
    models = [load(own, device) for own in (path, *members)]
    predictor: Any = models[0] if len(models) == 1 else Ensemble(models)
    plan = as_trained(models[0], data, stated)
    settings = replace(settings, group_by=plan.group_by)
    flows = prepare_test(plan, predictor.spec, predictor.normalizer)
    _refuse_predicted(flows, data)
    for own in models:
        _refuse_training_data(own, flows, data)
    _refuse_other_fields(predictor, flows, data)
    _note_unfinished(path, *members)
    _check_leads(settings.leads, flows, "test", predictor.history)
    window = Window(history=predictor.history, horizon=settings.leads)
    found = calibrate(predictor, None, flows.samples("test", window), settings)
    save_calibration(
        _made(target),
        found,
        predictor.spec.channels,
        members=members,
        provenance={"data": flows.source},
    )
    return found


def _made(folder: Path | str) -> Path:
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder)


def _refuse_existing(folder: Path, overwrite: bool) -> None:
    for name in (SHEET, TENSORS):
        if (folder / name).exists() and not overwrite:
            raise FileExistsError(
                f"{folder / name} exists; add --overwrite, or choose another folder: --out FOLDER"
            )


def _note_unfinished(*models: Path | str) -> None:
    for folder in map(Path, models):
        if text := unfinished(folder if folder.is_dir() else folder.parent):
            warn(Note("unfinished-run", text))


def _refuse_predicted(flows: Flows, data: Path | str) -> None:
    """Bars from predicted flows would tell the distance to another model, not to the truth."""
    for trajectory in flows.trajectories:
        if (made := predicted_by(trajectory.source)) is not None:
            raise ValueError(
                f"{data}: expected measured or simulated flows to calibrate on, found trajectory "
                f"{trajectory.name!r}, {made}; leave such flows out"
            )


def as_trained(
    predictor: Predictor, data: Path | str, stated: Mapping[str, Any] | None = None
) -> DataConfig:
    """Other data in the representation of the training data.

    Args:
        predictor: The model.
        data: Where they are.
        stated: What they do not say: ``kind``, ``hints`` and ``options`` of ``DataConfig``. Other
            hints of the training data hold for them too, with a note, except those that are facts
            of one recording.
    """
    trained = stated_in(predictor.card, "provenance", "experiment", "data")
    plan, stated = DataConfig(path=str(data)), stated or {}
    if trained:
        parsed = config.parse(DataConfig, trained, "the data of the model's training")
        plan = replace(parsed, path=str(data), case=None, measurement=None)
    kind = stated.get("kind") or identify(data)
    left_out = {*_OF_ONE_RECORDING, *stated.get("hints", {}), *idle_hints(kind, plan.hints)}
    inherited = {
        name: value
        for name, value in plan.hints.items()
        if kind != "native" and name not in left_out  # a native file says everything itself
    }
    if inherited:
        found = ", ".join(f"{name} = {value}" for name, value in inherited.items())
        text = f"as stated for the training data: {found}"
        warn(Note("inherited-metadata", text, "give the option where it differs"))
    options = {name: value for name, value in plan.options.items() if name in options_of(kind)}
    return replace(
        plan,
        kind=kind,
        hints={**inherited, **stated.get("hints", {})},
        options={**options, **stated.get("options", {})},
        channels=predictor.spec.channels,
        size=predictor.spec.grid.shape,
    )


def in_units_of(flows: Flows, spec: FieldSpec) -> Flows:
    """Flows without units in those of a model, with a note; others unchanged."""
    if flows.spec.channels != spec.channels:
        return flows
    pairs = (zip(flow.spec.units, spec.units, strict=True) for flow in flows.trajectories)
    if not any(own == "1" != wanted for pair in pairs for own, wanted in pair):
        return flows
    views = tuple(fit_units(flow, [units_of(spec)], warn) for flow in flows.trajectories)
    common = replace(common_spec(views), parameters=flows.spec.parameters)
    return replace(flows, trajectories=views, spec=common)


def same_as_trained(predictor: Predictor, flows: Flows) -> str | None:
    """What shows that flows are of the data set that the model was trained on; None: nothing."""
    theirs = stated_in(predictor.card, "provenance", "data")
    mine = {flows.source.get("fingerprint")}
    mine |= {trajectory.local.get("recipe_hash") for trajectory in flows.trajectories}
    known = (what for what in IDENTITIES if theirs.get(what) is not None)
    return next((what for what in known if theirs[what] in mine), None)


def _refuse_training_data(predictor: Predictor, flows: Flows, data: Path | str) -> None:
    if what := same_as_trained(predictor, flows):
        raise ValueError(
            f"{data}: expected flows that neither training nor selection saw, found flows of "
            f"the data set that the model was trained on (the same {what}), so that they "
            "may have trained it; give others, such as simulated ones of another seed, "
            "or calibrate a run on the share that its plan set aside: pibert calibrate RUN"
        )


def _refuse_other_fields(predictor: Any, flows: Flows, data: Path | str) -> None:
    mine, theirs = predictor.spec, flows.spec
    if mine.units != theirs.units:
        raise ValueError(
            f"{data}: expected the units {mine.units} of the model, found {theirs.units}; "
            f"{HOW_TO_STATE}"
        )
    if mine.dt and theirs.dt and abs(mine.dt - theirs.dt) > 1e-3 * mine.dt:
        raise ValueError(
            f"{data}: expected frames dt = {mine.dt:g} apart, as the model steps, found "
            f"{theirs.dt:g}; give flows with its time step, or state it where the file does not: "
            "--dt"
        )


def _experiment_of(folder: Path) -> tuple[Experiment, Path]:
    """The experiment of a run, and where it was started: its paths are meant from there."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: expected a run folder with config.json, found none; the split that set "
            "flows aside for calibration is recorded there; any model can be calibrated on flows "
            "that it has not seen: --data FILE"
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


def _unseen_subset(flows: Flows, folder: Path) -> str:
    """The split of a run that neither training nor selection saw: calibration, or else test."""
    if flows.split.calibration:
        return "calibration"
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


def _check_leads(leads: int, flows: Flows, subset: str, history: int) -> None:
    found = flows.longest(subset)
    if found >= history + leads:
        return
    most = found - history
    remedy = f"choose --leads {most}, or " if most > 0 else ""
    raise ValueError(
        f"--leads {leads}: expected at least {history + leads} consecutive frames in the {subset} "
        f"flows, {history} as input, found at most {found}; {remedy}calibrate on longer flows: "
        "--data FILE"
    )
