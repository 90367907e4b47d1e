"""Flows that a model is scored or calibrated on: a split of its run, or other data.

Other data are brought into the representation of the training data: channels, grid, stride and the
metadata that the user stated for training.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pibert import config
from pibert.data.dataset import common_spec
from pibert.data.readers import identify, idle_hints, options_of
from pibert.experiments.experiment import DataConfig
from pibert.experiments.flows import IDENTITIES, Flows, prepare, prepare_test
from pibert.experiments.run_folder import experiment_of, unfinished
from pibert.fields import FieldSpec
from pibert.inference import Predictor, load
from pibert.inference.model_file import stated_in
from pibert.inference.model_input import unknown_parameters
from pibert.inference.recording import fit_units, units_of
from pibert.notes import Note, warn

_OF_ONE_RECORDING = (
    *("parameters", "body", "mask", "scale", "pulse_delay"),
    *("override_units", "override_metadata"),
)
"""Hints on training data that do not apply to other data."""


def flows_of_run(folder: Path) -> Flows:
    """Return the flows that a run was trained on, with their split."""
    experiment, started_in = experiment_of(folder)
    with contextlib.chdir(started_in):
        return prepare(experiment.data)


def flows_to_score(
    folder: Path, data: Path | str | None = None, stated: Mapping[str, Any] | None = None
) -> Flows:
    """Return the flows that a model is scored on: its own test split, or all of other data.

    With ``data`` the model need not be a run; ``stated`` is their metadata, as for ``as_trained``.
    """
    if not folder.is_dir():
        raise NotADirectoryError(
            f"{folder}: expected a run folder, a model folder or the name of a shipped model, "
            "found a file; name its folder"
        )
    note_unfinished(folder)
    if data is None:
        return flows_of_run(folder)
    predictor = load(folder)
    plan = as_trained(predictor, data, stated)
    flows = prepare_test(plan, predictor.spec, predictor.normalizer)
    flows = _in_units_of(flows, predictor.spec)
    if what := same_as_trained(predictor, flows):
        text = (
            "these flows belong to the data set that the model was trained on (the same "
            f"{what}): it may have seen them"
        )
        remedy = "without --data a run is scored only on its test split"
        warn(Note("training-data", text, remedy))
    names = {*predictor.spec.parameter_names}
    given = [names & flow.parameters.keys() for flow in flows.trajectories]
    everywhere = set.intersection(*given)
    some = any(own != everywhere for own in given)
    how = "convert those without it with --parameter {name}=NUMBER, then join them"
    how = how if some else "--parameter {name}=NUMBER"
    for note in unknown_parameters(predictor.spec, dict.fromkeys(everywhere), how):
        warn(replace(note, text=f"some flows: {note.text}") if some else note)
    for trajectory in flows.trajectories:
        if sizes := trajectory.local.get("resize"):
            old, new = (" x ".join(map(str, sizes[end])) for end in ("from", "to"))
            text = f"the true frames are on {new} points, resampled from {old}"
            warn(Note("resampled-truth", text))
    return flows


def note_unfinished(*models: Path | str) -> None:
    """Warn of runs that were stopped or are still training."""
    for path in map(Path, models):
        if text := unfinished(path if path.is_dir() else path.parent):
            warn(Note("unfinished-run", text))


def as_trained(
    predictor: Predictor, data: Path | str, stated: Mapping[str, Any] | None = None
) -> DataConfig:
    """Return settings that read other data in the representation of the training data.

    Args:
        predictor: The model.
        data: A file or folder of flows.
        stated: Metadata of ``data``: ``kind``, ``hints`` and ``options`` of ``DataConfig``. Other
            hints on the training data apply too, with a note, except facts of one recording.
    """
    trained = stated_in(predictor.card, "provenance", "experiment", "data")
    plan, stated = DataConfig(path=str(data)), stated or {}
    if trained:
        parsed = config.parse(DataConfig, trained, "the data of the model's training")
        plan = replace(
            parsed, path=str(data), case=None, test=None, calibration=None, measurement=None
        )
    kind = stated.get("kind") or identify(data)
    left_out = {*_OF_ONE_RECORDING, *stated.get("hints", {}), *idle_hints(kind, plan.hints)}
    inherited = {
        name: value
        for name, value in plan.hints.items()
        if kind != "native" and name not in left_out  # a native file states everything itself
    }
    if inherited:
        listed = ", ".join(f"{name} = {value}" for name, value in inherited.items())
        text = f"as stated for the training data: {listed}"
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


def _in_units_of(flows: Flows, spec: FieldSpec) -> Flows:
    """Give flows without units those of a model, with a note."""
    if flows.spec.channels != spec.channels:
        return flows
    pairs = (zip(flow.spec.units, spec.units, strict=True) for flow in flows.trajectories)
    if not any(unit == "1" != wanted for pair in pairs for unit, wanted in pair):
        return flows
    views = tuple(fit_units(flow, [units_of(spec)], warn) for flow in flows.trajectories)
    common = replace(common_spec(views), parameters=flows.spec.parameters)
    return replace(flows, trajectories=views, spec=common)


def same_as_trained(predictor: Predictor, flows: Flows) -> str | None:
    """Return what shows that flows are of the model's training data set; None: nothing."""
    theirs = stated_in(predictor.card, "provenance", "data")
    mine = {flows.source.get("fingerprint")}
    mine |= {trajectory.local.get("recipe_hash") for trajectory in flows.trajectories}
    known = (what for what in IDENTITIES if theirs.get(what) is not None)
    return next((what for what in known if theirs[what] in mine), None)


def check_fields(spec: FieldSpec, flows: Flows, where: Path | str) -> None:
    """Refuse flows whose channels, units, grid or time step are not those of a model."""
    theirs = flows.spec
    for what in ("channels", "units"):
        if getattr(spec, what) != getattr(theirs, what):
            raise ValueError(
                f"{where}: expected the {what} {getattr(spec, what)} of the model, found "
                f"{getattr(theirs, what)}; state what the file does not say (--channels, --unit; "
                "with --length-unit and --time-unit too, all is converted to metres and seconds), "
                "or convert the data"
            )
    if spec.grid.shape != theirs.grid.shape:
        raise ValueError(
            f"{where}: expected {spec.grid.shape} points, as the model was trained on, found "
            f"{theirs.grid.shape}; resample them with data.size"
        )
    if spec.dt and theirs.dt and abs(spec.dt - theirs.dt) > 1e-3 * spec.dt:
        every = round(spec.dt / theirs.dt)
        fits = every > 1 and abs(every * theirs.dt - spec.dt) <= 1e-3 * spec.dt
        remedy = f"keep one frame of {every}: pibert convert FILE NAME.h5 --stride {every}"
        raise ValueError(
            f"{where}: expected frames dt = {spec.dt:g} apart, the time step of the model, found "
            f"{theirs.dt:g}; {remedy if fits else 'give flows with its time step'}; or state the "
            "time step if the file does not: --dt"
        )
