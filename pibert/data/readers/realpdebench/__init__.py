"""RealPDEBench: measured and simulated flows, from the hub's Arrow files or the publishers' HDF5.

    {root}/{scenario}/hf_dataset/{real|numerical}/data-*.arrow     one row, one trajectory
    {root}/{scenario}/{real|numerical}/{name}.h5                   one file, one trajectory

Opening reads names, shapes and coordinates, never a field; a trajectory reads the frames and fields
that it is asked for. Channels are u and v, and p where the row has it (the simulations); the stored
vorticity comes only on request, as ``omega``.

What the files state is little: fields, shapes, and sometimes x, y and t without units. Frame
interval and body geometry come from the publishers' code, the parameters from the names. Where x
and y are missing or not uniform the grid is that of the pixels. Measured points that are not finite
are not valid. Reference: https://huggingface.co/datasets/AI4Science-WestlakeU/RealPDEBench
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pibert.data.hdf5 import DAMAGED, open_hdf5
from pibert.data.readers.realpdebench.facts import SCENARIOS, STORED_AS, describe
from pibert.data.readers.realpdebench.rows import ArrowRow, ArrowRows, RawRow, Row, shard_paths
from pibert.data.readers.recordings import Hints, Recordings, SourceError, check_channels
from pibert.fields import Trajectory
from pibert.regular_files import require_regular

TITLE = "RealPDEBench (Arrow or raw HDF5)"
ISOLATED = False
KINDS = ("real", "numerical")


class Part(NamedTuple):
    """The trajectories of one scenario and kind in one form."""

    path: Path
    form: Literal["arrow", "hdf5"]
    scenario: str | None
    kind: str | None

    def __str__(self) -> str:
        return f"{self.scenario or '?'} {self.kind or '?'} ({self.form}): {self.path}"


def recognise(path: Path) -> bool:
    try:
        return any(_looks_right(part) for part in find_parts(path)[:1])
    except DAMAGED:
        return False


def _looks_right(part: Part) -> bool:
    if part.form == "arrow":
        shards = [part.path] if part.path.is_file() else sorted(part.path.glob("data-*.arrow"))
        require_regular(shards[0])
        with shards[0].open("rb") as file:
            head = file.read(1 << 16)
        return all(name in head for name in (b"sim_id", b"shape_t", b"shape_h"))
    path = part.path if part.path.is_file() else sorted(part.path.glob("*.h5"))[0]
    with open_hdf5(path) as h5:
        return "measured_data/u" in h5 and "measured_data/v" in h5


def find_parts(path: Path) -> list[Part]:
    """What a root, a scenario's folder, a folder of trajectories or a single file holds."""
    path = path.absolute()
    if path.is_file():
        forms: dict[str, Literal["arrow", "hdf5"]] = {".arrow": "arrow", ".h5": "hdf5"}
        form = forms.get(path.suffix)
        return [_part(path, form)] if form else []
    if path.is_dir():
        if next(path.glob("data-*.arrow"), None):
            return [_part(path, "arrow")]
        if next(path.glob("*.h5"), None):
            return [_part(path, "hdf5")]
    below = [path / kind for kind in KINDS] + [path / "hf_dataset" / kind for kind in KINDS]
    if path.name not in SCENARIOS:
        below += [path / scenario for scenario in SCENARIOS]
    return [part for folder in below if folder.is_dir() for part in find_parts(folder)]


def _part(path: Path, form: Literal["arrow", "hdf5"]) -> Part:
    near = [folder.name for folder in (path, *path.parents)][:4]
    scenario = next((name for name in near if name in SCENARIOS), None)
    return Part(path, form, scenario, next((name for name in near[:2] if name in KINDS), None))


def open_recordings(
    path: Path,
    hints: Hints = Hints(),
    *,
    scenario: str | None = None,
    kind: Literal["real", "numerical"] | None = None,
    channels: Sequence[str] | None = None,
) -> Recordings:
    """The trajectories of one scenario and kind, below the root of the data or a folder in it.

    State ``scenario`` and ``kind`` where the path holds several or its name does not say.
    ``channels`` are among u, v, p and omega; default: u, v, and p where the row has it.
    """
    check_channels(path, hints, STORED_AS)
    if channels is None and "omega" in hints.channels:  # the one that is left out otherwise
        channels = ("u", "v", "omega")
    unknown = sorted(set(channels or ()) - set(STORED_AS))
    if unknown:
        raise ValueError(f"unknown channels {unknown}; choose from: {', '.join(STORED_AS)}")
    if scenario is not None and scenario not in SCENARIOS:
        raise ValueError(f"unknown scenario {scenario!r}; choose from: {', '.join(SCENARIOS)}")
    part = _choose(path, scenario, kind)
    rows: dict[str, Row] = {}
    remarks: list[str] = []
    if part.form == "arrow":
        rows, remarks = _arrow_rows(part)
    else:
        paths = [part.path] if part.path.is_file() else sorted(part.path.glob("*.h5"))
        rows = {bare_name(path.name): RawRow.of(path) for path in paths}
    if not rows:
        raise SourceError(f"{part.path}: it holds no trajectory; resume the download")
    options: dict[str, Any] = {
        "scenario": part.scenario,
        "kind": part.kind,
        "channels": None if channels is None else tuple(channels),
        "hints": hints,
        "source": {"data_version": _version(part)},
    }
    names = tuple(rows)
    return Recordings(
        kind="realpdebench",
        path=part.path,
        names=names,
        load=partial(_load, rows=rows, options=options),
        notes=(*remarks, *describe(names[0], rows[names[0]], **options)[1]),
    )


def _choose(path: Path, scenario: str | None, kind: str | None) -> Part:
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file or folder")
    parts = find_parts(path)
    if not parts:
        raise SourceError(
            f"{path}: found no RealPDEBench data; expected SCENARIO/hf_dataset/real/data-*.arrow "
            f"or SCENARIO/real/*.h5 with a scenario among {', '.join(SCENARIOS)}"
        )
    fitting = [
        part._replace(scenario=part.scenario or scenario, kind=part.kind or kind)
        for part in parts
        if scenario in (None, part.scenario) or part.scenario is None
        if kind in (None, part.kind) or part.kind is None
    ]
    if len(fitting) != 1:
        wanted = "more than one set" if fitting else f"no {scenario or ''} {kind or ''}".rstrip()
        listing = "; ".join(str(part) for part in parts)
        raise SourceError(
            f"{path}: {wanted}; say which (--scenario, --type real or numerical), or name its "
            f"folder. There are: {listing}"
        )
    return fitting[0]


def _arrow_rows(part: Part) -> tuple[dict[str, Row], list[str]]:
    shards = (part.path,) if part.path.is_file() else shard_paths(part.path)
    data = ArrowRows(shards)
    rows: dict[str, Row] = {}
    for place in data.places():
        name = data.value(place, "sim_id")
        if not isinstance(name, str) or not name:
            raise SourceError(
                f"{data.where(place, 'sim_id')}: expected the name of a trajectory, found "
                f"{name!r}; this is not the layout of RealPDEBench"
            )
        row = ArrowRow.at(data, place)
        name = bare_name(name)
        if name in rows:
            raise SourceError(
                f"{row.where}: there is a trajectory {name!r} in {rows[name].where} too"
            )
        rows[name] = row
    cut = [path.name for i, path in enumerate(shards) if not data.ends_well(i)]
    remark = f"{cut} lack the mark that ends an Arrow stream: trajectories may be missing"
    return rows, [remark] if cut else []


def bare_name(name: str) -> str:
    """The files call a trajectory ``1800.h5`` and ``1800``."""
    return name.removesuffix(".h5")


def _version(part: Part) -> str | None:
    """The version in the root's version.json, if there is one."""
    for path in (folder / "version.json" for folder in list(part.path.parents)[:4]):
        if path.is_file():
            try:
                return str(json.loads(path.read_text())["data_version"])
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                return None
    return None


def _load(name: str, *, rows: Mapping[str, Row], options: Mapping[str, Any]) -> Trajectory:
    return describe(name, rows[name], **options)[0]
