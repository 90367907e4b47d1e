"""Recordings that the server offers, and frames of a recording as an answer."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pibert.data.format import Reader
from pibert.data.provenance import counts_frames, predicted_by
from pibert.data.views import with_state
from pibert.fields import Trajectory, read_mask
from pibert.inference.recording import fit_units, units_of
from pibert.notes import Note, Notes, as_note
from pibert.serve.answers import Answer
from pibert.serve.limits import Refusal
from pibert.serve.models import SAMPLE, Served, free_name

Units = Sequence[Mapping[str, str]]
"""Of the channels of each model, by name."""


class Recordings:
    """Trajectories of native files by an id that is safe in a URL.

    Args:
        files: Given at the start of the server.
        models: Served models; a file ``sample.h5`` in their folders counts too.
    """

    def __init__(self, files: Iterable[Path], models: Iterable[Served]) -> None:
        self._found: dict[str, tuple[Trajectory, list[Note]]] = {}
        models = list(models)
        self.units: Units = [units_of(model.predictor.spec) for model in models]
        folders = [model.path for model in models if model.path.is_dir()]
        beside = [folder / SAMPLE for folder in folders if (folder / SAMPLE).is_file()]
        paths = dict.fromkeys(Path(path).resolve() for path in (*files, *beside))
        for path in paths:
            stem = path.parent.name if path.name == SAMPLE else path.stem
            for trajectory in Reader(path):
                fit = fit_to_models(trajectory, self.units)
                safe = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{stem}-{trajectory.name}").strip("-")[:80]
                self._found[free_name(safe or "recording", self._found)] = fit
        self._models = models

    def __len__(self) -> int:
        return len(self._found)

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "id": key,
                **describe(trajectory),
                "models": [
                    model.name
                    for model in self._models
                    if set(model.predictor.spec.channels) <= set(trajectory.spec.channels)
                ],
            }
            for key, (trajectory, _) in self._found.items()
        ]

    def find(self, key: str) -> tuple[Trajectory, list[Note]]:
        """The recording with this id, and notes on it."""
        if key not in self._found:
            raise Refusal("not_found", f"there is no sample {key!r:.100}; see /v1/samples")
        return self._found[key]


def fit_to_models(trajectory: Trajectory, units: Units) -> tuple[Trajectory, list[Note]]:
    """The trajectory in units that a model takes or in metres and seconds, and notes on that.

    Series that a model reads as the state of a structure become channels.
    """
    notes = Notes()
    trajectory = with_state(trajectory, [name for each in units for name in each])
    fit = fit_units(trajectory, units, notes.add)
    if all(note.code != "units-converted" for note in notes):
        return trajectory, []  # units that would only be assumed are not stated
    return fit, list(notes)


def describe(trajectory: Trajectory) -> dict[str, Any]:
    """The metadata of a recording."""
    spec = trajectory.spec
    return {
        "name": trajectory.name,
        "frames": trajectory.num_frames,
        "channels": list(spec.channels),
        "units": list(spec.units),
        "dt": spec.dt,
        "uneven": spec.dt is None and trajectory.num_frames > 1 and not counts_frames(trajectory),
        "t0": float(trajectory.time[0]),
        "length_unit": trajectory.length_unit,
        "time_unit": trajectory.time_unit,
        "grid": {
            "shape": list(spec.grid.shape),
            "dx": spec.grid.dx,
            "dy": spec.grid.dy,
            "x0": spec.grid.origin[0],
            "y0": spec.grid.origin[1],
        },
        "parameters": dict(trajectory.parameters),
        "predicted": predicted_by(trajectory.source),
    }


def frames_size(trajectory: Trajectory, count: int = 1) -> int:
    """Bytes of some frames in single precision."""
    return count * 4 * math.prod(trajectory.states.shape[1:])


def select_frames(trajectory: Trajectory, start: int, stop: int | None, limit: int) -> range:
    """Frames from ``start`` to the one before ``stop`` (None: as many as ``limit`` bytes hold)."""
    count, most = trajectory.num_frames, limit // frames_size(trajectory)
    if start >= count:
        raise Refusal("invalid", f"start: expected a frame from 0 to {count - 1}, found {start}")
    end = min(count, start + most if stop is None else stop)
    if end <= start or end - start > most:
        raise Refusal(
            "invalid",
            f"stop: expected 1 to {most} frames from {start} on, found {end - start}; send several "
            "requests",
        )
    return range(start, end)


def take_frames(trajectory: Trajectory, chosen: range, notes: Sequence[Note | str] = ()) -> Answer:
    """Frames of a recording, from ``select_frames``."""
    frames = slice(chosen.start, chosen.stop)
    fields, known = trajectory.read(frames).float(), trajectory.known(frames)
    known = known & fields.isfinite().all(1)
    arrays = {
        "fields": torch.where(known[:, None], fields, torch.nan).numpy(),
        "known": known.numpy().astype(np.uint8),
    }
    if trajectory.body is not None:
        arrays["body"] = read_mask(trajectory.body, frames).numpy().astype(np.uint8)
    notes = list(notes)
    if trajectory.filled is not None:
        filled = known & read_mask(trajectory.filled, frames)
        if bool(filled.any()):
            arrays["filled"] = filled.numpy().astype(np.uint8)
            share = int(filled.sum()) / int(known.sum())
            text = f"{share:.2%} of the known vectors were filled, not measured"
            notes.append(Note("filled-vectors", f"{text}: errors leave them out", severity="info"))
    facts = describe(trajectory) | {"start": chosen.start, "stop": chosen.stop}
    return Answer(arrays, facts | {"notes": [as_note(note).to_dict() for note in notes]})
