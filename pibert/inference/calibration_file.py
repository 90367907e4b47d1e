"""The file of a calibration: ``calibration.safetensors`` and ``calibration.json`` beside a model.

The JSON names the model by the fingerprint of its weights, and states the assumptions and the
measured coverage; it names its tensors by a fingerprint too, so that halves of two calibrations are
never combined. Both are written under other names and renamed when complete.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from pibert.files import read_json, read_safetensors
from pibert.inference.calibration import LEVELS, Calibration, CalibrationSettings
from pibert.inference.conformal import count_units, weigh
from pibert.inference.difficulty import GUIDES, Difficulty
from pibert.inference.model_file import fingerprint
from pibert.inference.ood import FeatureStatistics, OODDetector, Surprisal

FORMAT, VERSION = "pibert-calibration", 1
TENSORS, SHEET = "calibration.safetensors", "calibration.json"

Sheet = dict[str, Any]


def save_calibration(
    folder: Path | str,
    calibration: Calibration,
    channels: Sequence[str],
    *,
    members: Sequence[Path | str] = (),
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write a calibration completely or not at all; an existing one is replaced.

    Args:
        folder: Of the model; of the first one of an ensemble.
        calibration: Of that model.
        channels: Their names.
        members: Folders of the other members of an ensemble.
        provenance: Of the data, as plain JSON.
    """
    from pibert.data.partial import remove_leftovers, replace_file

    folder = Path(folder)
    tensors = {name: t.detach().cpu().contiguous() for name, t in _tensors(calibration).items()}
    sheet = {
        "format": FORMAT,
        "version": VERSION,
        "weights_sha256": calibration.weights_sha256,
        "members": [
            os.path.relpath(Path(member).resolve(), folder.resolve()) for member in members
        ],
        "settings": asdict(calibration.settings),
        "units": calibration.units,
        "same_flows": calibration.same_flows,
        "assumption": calibration.assumption(),
        "highest_level": calibration.highest_level,
        "difficulty": calibration.difficulty.guide,
        "guide_losses": dict(calibration.guide_losses),
        "alarm_parts": list(calibration.detector.names),
        "alarm_most_unknown": calibration.detector.most_unknown,
        "alarm_lowest_p": calibration.detector.lowest,
        "coverage": summarise_coverage(calibration, channels),
        "provenance": dict(provenance or {}),
        "tensors_sha256": fingerprint(tensors),
    }
    text = json.dumps(sheet, indent=2, allow_nan=False) + "\n"
    content = save({name: t.clone() for name, t in tensors.items()})
    for name, data in ((TENSORS, content), (SHEET, text.encode())):
        remove_leftovers(folder / name)
        replace_file(folder / name, data)
    return folder


def summarise_coverage(calibration: Calibration, channels: Sequence[str]) -> list[dict[str, Any]]:
    """Coverage of each trajectory by intervals from the others, by channel and lead time."""
    rows: list[dict[str, Any]] = []
    for level in LEVELS:
        coverage = calibration.left_out(level)
        if coverage is None:
            continue
        for lead in sorted({1, calibration.leads}):
            for channel, values in zip(channels, coverage[:, lead - 1].T, strict=True):
                row = {"level": level, "lead": lead, "channel": channel}
                row |= {"coverage": float(values.mean())}
                row |= {"lowest": float(values.min()), "highest": float(values.max())}
                rows.append(row)
    return rows


def read_sheet(folder: Path | str) -> Sheet:
    """The JSON of a calibration."""
    path = Path(folder) / SHEET
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: expected {SHEET}, found none; make it with: pibert calibrate RUN "
            "(in Python model.calibrate()), or for any model with: "
            "pibert calibrate MODEL --data FILE --out FOLDER, and name that folder"
        )
    try:
        sheet = read_json(path)
    except ValueError as error:
        raise ValueError(f"{error}; calibrate again") from None
    if not isinstance(sheet, dict) or sheet.get("format") != FORMAT:
        raise ValueError(f"{path}: expected format {FORMAT!r}, found another; calibrate again")
    version = sheet.get("version")
    if version != VERSION:
        raise ValueError(
            f"{path}: expected version {VERSION}, found {version!r}; update pibert, or calibrate "
            "again"
        )
    return sheet


def read_calibration(folder: Path | str, weights_sha256: str) -> Calibration:
    """The calibration in a folder; ValueError if it is of other weights."""
    folder, sheet = Path(folder), read_sheet(folder)
    if sheet.get("weights_sha256") != weights_sha256:
        raise ValueError(
            f"{folder / SHEET}: expected the calibration of weights {weights_sha256[:12]}, found "
            f"that of {str(sheet.get('weights_sha256'))[:12]}; calibrate this model: pibert "
            f"calibrate {folder} --overwrite"
        )
    try:
        tensors, _ = read_safetensors(folder / TENSORS)
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{folder / TENSORS}: expected a whole safetensors file ({error}); calibrate again"
        ) from error
    if fingerprint(tensors) != sheet.get("tensors_sha256"):
        raise ValueError(
            f"{folder}: {TENSORS} and {SHEET} are not of one calibration; calibrate again"
        )
    try:
        return _restored(sheet, tensors)
    except (LookupError, TypeError) as error:
        raise ValueError(
            f"{folder / SHEET}: expected a complete calibration, found one that lacks or garbles "
            f"{error}; calibrate again"
        ) from error


def _tensors(calibration: Calibration) -> dict[str, Tensor]:
    sizes = calibration.difficulty.sizes
    return {
        "scores": calibration.scores,
        "windows": calibration.windows,
        "difficulty.values": calibration.difficulty.values,
        **({} if sizes is None else {"difficulty.sizes": sizes}),
        "typical.mean": calibration.statistics.mean,
        "typical.whitener": calibration.statistics.whitener,
        "alarm.reference": calibration.detector.surprisal.reference,
        "alarm.atoms": calibration.detector.atoms,
    }


def _restored(sheet: Sheet, tensors: Mapping[str, Tensor]) -> Calibration:
    units, windows, settings = sheet["units"], tensors["windows"], dict(sheet["settings"])
    settings["group_by"] = tuple(settings.get("group_by", ()))
    detector = OODDetector(
        tuple(sheet["alarm_parts"]),
        Surprisal(tensors["alarm.reference"]),
        tensors["alarm.atoms"],
        weigh(units, windows),
        count_units(units, windows),
        float(sheet.get("alarm_most_unknown", 0.0)),
    )
    return Calibration(
        weights_sha256=sheet["weights_sha256"],
        settings=CalibrationSettings(**settings),
        units=units,
        same_flows=bool(sheet.get("same_flows", False)),
        difficulty=Difficulty(
            _known_guide(sheet["difficulty"]),
            tensors["difficulty.values"],
            tensors.get("difficulty.sizes"),
        ),
        scores=tensors["scores"],
        windows=windows,
        statistics=FeatureStatistics(tensors["typical.mean"], tensors["typical.whitener"]),
        detector=detector,
        guide_losses={_current(guide): loss for guide, loss in sheet["guide_losses"].items()},
    )


def _known_guide(name: str) -> str:
    guide = _current(name)
    if guide not in ("constant", "ensemble", *GUIDES):
        raise ValueError(
            f"expected widths that follow one of: constant, ensemble, {', '.join(GUIDES)}; found "
            f"{name!r}, which only earlier versions have; calibrate again"
        )
    return guide


def _current(guide: str) -> str:
    """The present name of a guide: files of earlier versions have ``place``."""
    return guide.replace("place", "position")
