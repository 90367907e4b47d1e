"""RealPDEBench: measured and simulated flows, from the hub's Arrow files or the publishers' HDF5.

    {root}/{scenario}/hf_dataset/{real|numerical}/data-*.arrow     one row, one trajectory
    {root}/{scenario}/{real|numerical}/{name}.h5                   one file, one trajectory
    {root}/{train_real|train_sim}/{Re}_{angle}.h5                  the RealPDE competition of 2026

Opening reads names, shapes and coordinates, never a field; a trajectory reads the requested frames
and fields. Channels are u and v, and p where the row has it (the simulations); the stored vorticity
is read only on request (``--channels omega=vo``).

The files state fields, shapes, and sometimes x, y and t without units. Frame interval and body
geometry come from the publishers' code, the parameters from the names. Where x and y are missing or
not uniform the grid counts pixels. Measured points that are not finite are not valid. Reference:
https://huggingface.co/datasets/AI4Science-WestlakeU/RealPDEBench

An entry of the published split names a trajectory and the first frame of a window of 20 input and
20 target frames. The lists are shuffled; their order is kept. A test mode chooses the validation
and test windows by the group of their trajectory: ``seen`` (its other windows train), ``in_dist``
and ``out_dist`` (parameters inside the training range or at its edge), ``unseen`` for both. Windows
of different lists may overlap; ``splits.split_in_time`` makes a strict split. The PIBERT paper
takes one pair of frames from each window: a window of 2.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pibert.data.hdf5 import open_hdf5
from pibert.data.readers.realpdebench.facts import DUPLICATE, SCENARIOS, STORED_AS, describe
from pibert.data.readers.realpdebench.rows import (
    ArrowRow,
    RawRow,
    Row,
    Shard,
    download_command,
    shard_paths,
)
from pibert.data.readers.recordings import (
    PARSING,
    Hints,
    Recordings,
    SourceError,
    check_channels,
    reading,
)
from pibert.data.splits import Segment, Split
from pibert.files import parse_json, read_text, require_regular

TITLE = "RealPDEBench (Arrow or raw HDF5)"
ISOLATED = False

KINDS = ("real", "numerical")
COMPETITION = {"train_real": ("airfoil", "real"), "train_sim": ("airfoil", "numerical")}
"""Folders of the competition's data: scenario and kind."""
WINDOW = 40
"""Frames of a published window: 20 inputs, 20 targets."""

_SUFFIXES = {".arrow": "data-*.arrow", ".h5": "*.h5"}
_GROUPS: dict[str, tuple[str, ...]] = {
    "all": (),
    "seen": ("remain",),
    "in_dist": ("in_dist_test",),
    "out_dist": ("out_dist_test",),
    "unseen": ("in_dist_test", "out_dist_test"),
}
"""Groups of trajectories of a test mode."""


class Subset(NamedTuple):
    """The trajectories of one scenario and kind, as a folder or a single file."""

    path: Path
    suffix: str
    scenario: str | None
    kind: str | None

    def __str__(self) -> str:
        return f"{self.scenario or '?'} {self.kind or '?'} ({self.suffix}): {self.path}"


def recognise(path: Path) -> bool:
    subset = next(iter(find_subsets(path)), None)
    if subset is None:
        return False
    first = min(subset.path.glob(_SUFFIXES[subset.suffix]), default=subset.path)
    require_regular(first)
    if subset.suffix == ".arrow":
        with first.open("rb") as file:
            head = file.read(1 << 16)
        return all(name in head for name in (b"sim_id", b"shape_t", b"shape_h"))
    with reading(first), open_hdf5(first) as h5:
        measured = "measured_data/u" in h5 and "measured_data/v" in h5
        return measured or {"u", "v", "re", "aoa"} <= {*h5}


def find_subsets(path: Path) -> list[Subset]:
    """Find the subsets of a root, a scenario's folder, a folder of trajectories or a file."""
    path = path.absolute()
    for suffix, pattern in _SUFFIXES.items():
        if (path.is_file() and path.suffix == suffix) or any(path.glob(pattern)):
            near = [folder.name for folder in (path, *path.parents)][:4]
            scenario = next((name for name in near if name in SCENARIOS), None)
            kind = next((name for name in near[:2] if name in KINDS), None)
            for name in filter(COMPETITION.__contains__, near[:2]):
                scenario, kind = COMPETITION[name]
            return [Subset(path, suffix, scenario, kind)]
    below = [path / kind for kind in (*KINDS, *COMPETITION)]
    below += [path / "hf_dataset" / kind for kind in KINDS]
    if path.name not in SCENARIOS:
        below += [path / scenario for scenario in SCENARIOS]
    return [subset for folder in below if folder.is_dir() for subset in find_subsets(folder)]


def open_recordings(
    path: Path,
    hints: Hints = Hints(),
    *,
    scenario: str | None = None,
    kind: Literal["real", "numerical"] | None = None,
    every: int = 1,
    window: int = WINDOW,
    test_mode: str = "all",
) -> Recordings:
    """Open the trajectories of one scenario and kind, below the root of the data or a folder in it.

    State ``scenario`` and ``kind`` where the path holds several or does not name them. ``every``
    takes every Nth row and column, as the publishers do. ``window`` and ``test_mode`` are for the
    published split.
    """
    if every < 1:
        raise ValueError(f"every: expected 1 or more, found {every}")
    check_channels(path, hints, STORED_AS)
    if scenario is not None and scenario not in SCENARIOS:
        raise ValueError(f"unknown scenario {scenario!r}; choose from: {', '.join(SCENARIOS)}")
    subset = _choose(path, scenario, kind)
    rows, notes = _rows(subset, every)
    options: dict[str, Any] = {
        "scenario": subset.scenario,
        "kind": subset.kind,
        "hints": hints,
        "source": {"data_version": _version(subset)},
    }
    first = next(iter(rows))
    frames = {name: row.shape[0] for name, row in rows.items()}
    return Recordings(
        kind="realpdebench",
        path=subset.path,
        names=tuple(rows),
        load=lambda name: describe(name, rows[name], **options)[0],
        published_split=None
        if subset.scenario == "airfoil"
        else lambda: published_split(subset.path, frames, window, test_mode),
        notes=(*notes, *describe(first, rows[first], **options)[1]),
    )


def _choose(path: Path, scenario: str | None, kind: str | None) -> Subset:
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file or folder")
    subsets = find_subsets(path)
    if not subsets:
        raise SourceError(
            f"{path}: found no RealPDEBench data; expected SCENARIO/hf_dataset/real/data-*.arrow "
            f"or SCENARIO/real/*.h5 with a scenario among {', '.join(SCENARIOS)}; complete the "
            f"download: {download_command(path)}"
        )
    fitting = [
        subset._replace(scenario=subset.scenario or scenario, kind=subset.kind or kind)
        for subset in subsets
        if scenario is None or subset.scenario in (None, scenario)
        if kind is None or subset.kind in (None, kind)
    ]
    if len(fitting) != 1:
        problem = "more than one set" if fitting else f"no {scenario or ''} {kind or ''}".rstrip()
        raise SourceError(
            f"{path}: {problem}; choose one (--scenario, --type real or numerical), or give its "
            f"folder. There are: {'; '.join(map(str, subsets))}"
        )
    return fitting[0]


def _rows(subset: Subset, every: int) -> tuple[dict[str, Row], list[str]]:
    """The stored trajectories by name, and notes."""
    path, notes = subset.path, list[str]()
    stored: list[Row] = []
    if subset.suffix == ".arrow":
        shards = [Shard(file) for file in ([path] if path.is_file() else shard_paths(path))]
        for shard in shards:
            stored += [ArrowRow(shard, row, every) for row in range(shard.table.num_rows)]
        if cut := [shard.path.name for shard in shards if not shard.is_complete()]:
            notes = [f"{cut} lack the mark that ends an Arrow stream: trajectories may be missing"]
    else:
        files = [path] if path.is_file() else sorted(path.glob("*.h5"))
        stored += [RawRow(file, every) for file in files]
    rows: dict[str, Row] = {}
    for row in stored:
        name = _bare_name(row.name)
        if (subset.scenario, subset.kind, name) == ("airfoil", "real", DUPLICATE):
            notes.append(f"{DUPLICATE} is left out: it repeats the fields of 6300_0")
            continue
        if name in rows:
            raise SourceError(f"{row.where}: {rows[name].where} has a trajectory {name!r} too")
        rows[name] = row
    if not rows:
        raise SourceError(
            f"{path}: it holds no trajectory; resume the download: {download_command(path)}"
        )
    return rows, notes


def _bare_name(name: str) -> str:
    """The name of a trajectory without ``.h5``, which some files add."""
    return name.removesuffix(".h5")


def _version(subset: Subset) -> str | None:
    """The version in the root's version.json, if there is one."""
    for folder in list(subset.path.parents)[:4]:
        if (folder / "version.json").is_file():
            try:
                return str(parse_json(read_text(folder / "version.json"))["data_version"])
            except (OSError, ValueError, KeyError, TypeError):
                return None
    return None


def published_split(
    path: Path, frames: Mapping[str, int], window: int = WINDOW, test_mode: str = "all"
) -> Split:
    """Return the windows of the three lists, in their order.

    Args:
        path: A folder or file of trajectories; it leads through the scenario's folder and names the
            kind (real or numerical).
        frames: Number of frames of each trajectory. Segments count the trajectories in this order.
        window: Frames to take from the beginning of each window.
        test_mode: Which validation and test windows to take.
    """
    if not 2 <= window <= WINDOW:
        raise ValueError(f"window: expected 2 to {WINDOW} frames, found {window}")
    if test_mode not in _GROUPS:
        raise ValueError(f"test_mode: expected one of {', '.join(_GROUPS)}, found {test_mode!r}")
    folder, kind = _scenario_folder(path), (path.parent if path.is_file() else path).name
    chosen = set(frames)
    if test_mode != "all":
        files = [folder / f"{group}_params_{kind}.json" for group in _GROUPS[test_mode]]
        present = [file for file in files if file.is_file()] or files  # groups may be empty
        chosen = {_bare_name(name) for file in present for name in _read_json(file, dict)}
    number = {name: index for index, name in enumerate(frames)}

    def segments(split: str) -> tuple[Segment, ...]:
        entries = read_index(folder, split, kind)
        if split != "train":
            entries = [entry for entry in entries if test_mode == "all" or entry[0] in chosen]
        for name, start in entries:
            if start + WINDOW > frames.get(name, 0):
                found = f"which has {frames[name]}" if name in frames else "which is not there"
                raise SourceError(
                    f"{folder}: the {split} index names frames {start} to {start + WINDOW - 1} of "
                    f"{name!r}, {found}; complete the download: {download_command(path)}"
                )
        if not entries:
            problem = f"the {split} index for {kind} has no window of test_mode {test_mode!r}"
            raise SourceError(f"{folder}: {problem}; choose another")
        return tuple(Segment(number[name], start, start + window) for name, start in entries)

    return Split(segments("train"), segments("val"), (), segments("test"))


def read_index(folder: Path, split: str, kind: str) -> list[tuple[str, int]]:
    """Read the entries (trajectory, first frame) of a published list in their order."""
    path = _scenario_folder(folder) / "hf_dataset" / f"{split}_index_{kind}.json"
    entries: list[tuple[str, int]] = []
    for item in _read_json(path, list):
        name, frame = (item.get(k) if isinstance(item, dict) else 0 for k in ("sim_id", "time_id"))
        if not isinstance(name, str) or not isinstance(frame, int) or frame < 0:
            raise SourceError(
                f"{path}: entry {len(entries)}: expected a name as sim_id and a frame as time_id, "
                f"found {repr(item)[:80]}; {_again(path)}"
            )
        entries.append((_bare_name(name), frame))
    return entries


def _scenario_folder(path: Path) -> Path:
    """The folder of a scenario, from itself or from a folder or file of trajectories in it."""
    folder = path.parent if path.is_file() else path
    folder = folder.parent if folder.name in KINDS else folder
    return folder.parent if folder.name == "hf_dataset" else folder


def _again(path: Path) -> str:
    return f"remove it and run: {download_command(path, ' --what metadata')}"


def _read_json(path: Path, kind: type) -> Any:
    if not path.is_file():
        raise SourceError(
            f"{path}: there is no such file; download it: "
            f"{download_command(path, ' --what metadata')}"
        )
    with reading(path, "the list", remedy=_again(path), errors=PARSING):
        data = parse_json(read_text(path))
        if not isinstance(data, kind):
            raise ValueError(f"expected a {kind.__name__}, found a {type(data).__name__}")
        return data
