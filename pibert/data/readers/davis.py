"""DaVis vector files (.vc7, and .im7 that hold vectors) through lvpyio, LaVision's own reader.

A file is a frame; a folder or a pattern of numbered files is a trajectory. Positions and
velocities are in DaVis's units, y upwards. Masked and disabled vectors are missing. DaVis marks
vectors that it filled or smoothed alike (choices 4 and 5): if only some vectors of a frame are
marked, they are filled; if all are, the field was smoothed, and none is.

The time of acquisition sets the times, if it grows evenly from the first file to the second and to
the last. ``FrameDt``, the time between the two images of a pair, belongs to the calibration.
Uncertainties along x and y are fields that the user can name (``--channels``).
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.readers.recordings import Hints, Recordings, SourceError
from pibert.data.readers.shared.assembly import join
from pibert.data.readers.shared.calibration import DELAY
from pibert.data.readers.shared.files import count_frames, find_files, find_series
from pibert.data.readers.shared.interpolation import percent
from pibert.data.readers.shared.naming import standard_unit
from pibert.data.readers.shared.series import Plane, Series, open_series
from pibert.data.wording import import_extra

TITLE = "DaVis vectors (.vc7)"
HINTS = ("channels", "shape")
MEASURED = True

_SUFFIXES = (".vc7", ".im7")
_POST_PROCESSED = (4, 5)
_MORE = {"TS:Uncertainty Vx": "uncertainty_u", "TS:Uncertainty Vy": "uncertainty_v"}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_EVEN = 1e-3
"""Largest relative deviation of the last time from even ones."""


def recognise(path: Path) -> bool:
    files = find_files(path, _SUFFIXES)
    return bool(files) and all(file.suffix.lower() in _SUFFIXES for file in files)


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    groups = find_series(path, _SUFFIXES)
    return join("davis", path, [_open(path, *group, hints) for group in groups.items()])


def _open(path: Path, name: str, members: Mapping[int, Path], hints: Hints) -> Recordings:
    files, numbers = list(members.values()), list(members)
    facts = _read(files[0])[0].attributes
    delay = _seconds(facts.get("FrameDt"))
    source: dict[str, Any] = {"program": "DaVis", DELAY: delay}
    times, clock = _times(files, numbers)
    read = partial(read_plane, clock=clock)
    facts = {"counted": clock is None}
    series = Series(files=files, read=read, times=times, source=source, facts=facts)
    return open_series("davis", path, series, hints, name=name)


def _times(files: Sequence[Path], numbers: Sequence[int]) -> tuple[list[float] | None, str | None]:
    """Times of the frames in seconds; without a unit, frame numbers if some are missing."""
    found = count_frames(numbers)
    unknown, counted = (found, None), found or list(map(float, range(len(files))))
    if len(files) < 2:
        return unknown
    stated = [_seconds(_read(files[i])[0].attributes.get("AcqTimeSeries")) for i in (0, 1, -1)]
    if None in stated:
        return unknown
    first, second, last = (time or 0.0 for time in stated)
    step = (second - first) / counted[1]
    if not step > 0 or abs(last - first - step * counted[-1]) > _EVEN * step * counted[-1]:
        return unknown
    return [first + step * count for count in counted], "s"


def _seconds(text: Any) -> float | None:
    """Parse a time such as ``300 us``."""
    found = re.fullmatch(r"\s*([-+.\deE]+)\s*(\S+)\s*", str(text))
    if found is None or found[2] not in _SECONDS:
        return None
    try:
        return float(found[1]) * _SECONDS[found[2]]
    except ValueError:
        return None


def _read(path: Path) -> tuple[Any, int]:
    """The first frame of vectors of a file, and the number of frames."""
    library = import_extra("lvpyio", "reading DaVis files", "davis")
    try:
        buffer = library.read_buffer(str(path))
        frame = buffer[0]
        planes = len(frame)
    except (RuntimeError, ValueError, OSError, IndexError, KeyError, TypeError) as error:
        raise SourceError(
            f"{path}: DaVis's reader cannot read it ({error}); get a new copy of it"
        ) from error
    if "U0" not in frame.components:
        raise SourceError(
            f"{path}: it holds an image, not vectors; process it in DaVis and give the .vc7 files"
        )
    if planes != 1:
        raise SourceError(f"{path}: a volume of {planes} planes; extract one plane in DaVis")
    return frame, len(buffer)


def read_plane(path: Path, clock: str | None = None) -> Plane:
    """Read one file."""
    frame, count = _read(path)
    vectors, scales, grid = frame.as_masked_array(), frame.scales, frame.grid
    ny, nx = vectors.shape
    x, y = (
        (np.arange(n) + 0.5) * step * scale.slope + scale.offset
        for n, step, scale in ((nx, grid.x, scales.x), (ny, grid.y, scales.y))
    )
    names = list(vectors.dtype.names)
    valid = ~np.ma.getmaskarray(vectors[names[0]])
    fields = {name: np.where(valid, np.asarray(vectors[name]), np.nan) for name in names}
    units = {name: standard_unit(scales.i.unit) for name in fields}
    processed = np.isin(frame.active_choice[0], _POST_PROCESSED) & valid
    filled = processed & ~processed[valid].all()
    for theirs, ours in _MORE.items():
        if theirs in frame.components:
            part = frame.components[theirs]
            values = part.planes[0] * part.scale.slope + part.scale.offset
            fields[ours] = np.where(valid, values, np.nan)
            units[ours] = standard_unit(part.scale.unit)
    notes = [f"{count} frames in {path.name}: the first was taken"] if count > 1 else []
    if filled.any():
        share = percent(float(filled.sum() / valid.sum()))
        notes.append(f"{share} of the vectors of the first frame were filled by DaVis")
    elif processed.any():
        notes.append("DaVis has smoothed all vectors")
    units |= {"@x": standard_unit(scales.x.unit), "@y": standard_unit(scales.y.unit)}
    units |= {} if clock is None else {"@t": clock}
    fields["filled"] = filled.astype(np.uint8)
    return Plane(x=x, y=y, fields=fields, units=units, notes=tuple(notes))
