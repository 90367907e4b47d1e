"""Recordings that the server offers, and frames of a recording as an answer."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pibert.data.format import Reader
from pibert.fields import Trajectory, read_mask
from pibert.serve.answers import Answer
from pibert.serve.models import SAMPLE, Served
from pibert.serve.refusal import Refusal


class Recordings:
    """Trajectories of native files by an id that is safe in an address.

    Args:
        files: Those that the server was started with.
        models: Served models; a file ``sample.h5`` in their folders counts too.
    """

    def __init__(self, files: Iterable[Path], models: Iterable[Served]) -> None:
        self._found: dict[str, Trajectory] = {}
        models = list(models)
        beside = [m.folder / SAMPLE for m in models if m.folder and (m.folder / SAMPLE).is_file()]
        paths = dict.fromkeys(Path(path).resolve() for path in (*files, *beside))
        for path in paths:
            stem = path.parent.name if path.name == SAMPLE else path.stem
            for trajectory in Reader(path):
                self._found[self._free_id(f"{stem}-{trajectory.name}")] = trajectory
        self._models = models

    def _free_id(self, text: str) -> str:
        base = free = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:80] or "recording"
        count = 1
        while free in self._found:
            count += 1
            free = f"{base}-{count}"
        return free

    def __len__(self) -> int:
        return len(self._found)

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "id": place,
                **describe(trajectory),
                "models": [
                    model.name
                    for model in self._models
                    if set(model.predictor.spec.channels) <= set(trajectory.spec.channels)
                ],
            }
            for place, trajectory in self._found.items()
        ]

    def read(self, place: str, start: int, stop: int | None, limit: int) -> Answer:
        """Frames of the recording with this id."""
        if place not in self._found:
            raise Refusal("not_found", f"there is no sample {place!r:.100}; see /v1/samples")
        return take_frames(self._found[place], start, stop, limit)


def describe(trajectory: Trajectory) -> dict[str, Any]:
    """What is known of a recording beside its frames."""
    spec = trajectory.spec
    return {
        "name": trajectory.name,
        "frames": trajectory.num_frames,
        "channels": list(spec.channels),
        "units": list(spec.units),
        "dt": spec.dt,
        "grid": {"shape": list(spec.grid.shape), "dx": spec.grid.dx, "dy": spec.grid.dy},
        "parameters": dict(trajectory.parameters),
    }


def take_frames(
    trajectory: Trajectory,
    start: int,
    stop: int | None,
    limit: int,
    remarks: Sequence[str] = (),
) -> Answer:
    """Some frames of a recording.

    Args:
        trajectory: The recording.
        start: The first frame.
        stop: The one after the last. None: as many as fit.
        limit: Most bytes of the fields.
        remarks: What to tell of it.
    """
    count = trajectory.num_frames
    _, c, ny, nx = trajectory.states.shape
    most = limit // (4 * c * ny * nx)
    if start >= count:
        raise Refusal("invalid", f"start: expected a frame from 0 to {count - 1}, found {start}")
    end = min(count, start + most if stop is None else stop)
    if end <= start or end - start > most:
        raise Refusal(
            "invalid",
            f"stop: expected 1 to {most} frames from {start} on, found {end - start}; ask in parts",
        )
    frames = slice(start, end)
    fields, known = trajectory.read(frames).float(), trajectory.known(frames)
    known = known & fields.isfinite().all(1)
    arrays = {
        "fields": torch.where(known[:, None], fields, torch.nan).numpy(),
        "known": known.numpy().astype(np.uint8),
    }
    if trajectory.body is not None:
        arrays["body"] = read_mask(trajectory.body, frames).numpy().astype(np.uint8)
    facts = describe(trajectory) | {"start": start, "stop": end, "remarks": list(remarks)}
    return Answer(arrays, facts)
