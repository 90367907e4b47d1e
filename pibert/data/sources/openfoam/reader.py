"""OpenFOAM: a plane case, or the surfaces and sets that it sampled.

A case folder is read from its cells, which is exact, unless its samples have more times. To choose,
give the case's ``.foam`` file (for the cells) or its ``postProcessing`` folder (for the samples).
"""

from dataclasses import replace
from pathlib import Path

from pibert.data.sources.assembly.frames import Series
from pibert.data.sources.assembly.planes import join_series
from pibert.data.sources.openfoam.case import has_results, open_case
from pibert.data.sources.openfoam.samples import (
    COLUMNS,
    find_samples,
    has_samples,
    is_table,
    read_columns,
)
from pibert.data.sources.recordings import Hints, Recordings, SourceError

TITLE = "OpenFOAM (a plane case, whole or decomposed; sampled surfaces and sets)"

_MARKS = (".foam", ".openfoam")


def recognise(path: Path) -> bool:
    try:
        if path.is_file():
            suffix = path.suffix.lower()
            return suffix in _MARKS or (suffix in COLUMNS and is_table(path))
        if (path / "postProcessing").is_dir() or (path / "system" / "controlDict").is_file():
            return True
        folders = [path, *path.iterdir()] if path.name == "postProcessing" else [path]
        return any(has_samples(folder) for folder in folders) or has_results(path)
    except SourceError:
        return True  # opening it says what is wrong
    except OSError:
        return False


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    if path.suffix.lower() in _MARKS:
        return _open(path, {path.absolute().parent.name: open_case(path.parent, hints)}, hints)
    if path.is_file():
        return _open(path, {path.stem: Series(files=[path], read=read_columns)}, hints)
    folder = path / "postProcessing"
    samples = find_samples(folder if folder.is_dir() else path)
    if samples and not has_results(path):
        return _open(path, samples, hints)
    name = path.resolve().name
    try:
        case = open_case(path, hints)
    except SourceError as error:
        if not samples:
            raise
        return _open(path, samples, hints, f"the cells of the case were not read: {error}")
    most = max((len(series.files) for series in samples.values()), default=0)
    if most > len(case.files):
        remark = (
            f"read from the samples ({most} times), not from the cells ({len(case.files)} times); "
            "for the cells, give a file in the case that ends with .foam (it may be empty)"
        )
        try:
            return _open(path, samples, hints, remark)
        except SourceError as error:
            return _open(path, {name: case}, hints, f"the samples were left out: {error}")
    remarks = [f"read from the cells; for the samples, give the folder {folder.name}"]
    return _open(path, {name: case}, hints, *(remarks if samples else []))


def _open(path: Path, series: dict[str, Series], hints: Hints, *remarks: str) -> Recordings:
    found = join_series("openfoam", path, series, hints)
    return replace(found, remarks=(*found.remarks, *remarks))
