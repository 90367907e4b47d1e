"""What the data sets of a comparison are, and where they come from: a row for each."""

from collections.abc import Mapping, Sequence
from typing import Any

from pibert.data.wording import counted
from pibert.report.comparison.results import DatasetResults, parameter_text
from pibert.report.comparison.table import UNKNOWN, Cell, Table, digits, integer
from pibert.report.figures import with_unit

SPLITS = {"train": "train", "valid": "validation", "calibration": "calibration", "test": "test"}


def summary(datasets: Sequence[DatasetResults]) -> Table | None:
    """Flow, source, stored and learned fields, and split of every data set."""
    return _table(
        datasets,
        "data-sets",
        "Data sets",
        "As learned: the fields that models see and predict. Split: flows and, in brackets, pairs "
        "of neighbouring frames in them.",
        {
            "flow": _flow,
            "source": lambda data: str(_origin(data).get("kind") or UNKNOWN),
            "stored grid": lambda data: _shape(_origin(data).get("stored_grid")),
            "as learned": learned,
            "split": split_text,
        },
    )


def provenance(datasets: Sequence[DatasetResults]) -> Table | None:
    """Parameters, duration, publisher and fingerprint of every data set."""
    return _table(
        datasets,
        "data-provenance",
        "Provenance of the data",
        "Parameters with their range over all flows. What the files do not state is not listed. "
        "Fingerprint: of the files, or of the recipe of simulated flows.",
        {
            "parameters": _parameters,
            "flows and frames": _duration,
            "publisher": _publisher,
            "fingerprint": _fingerprint,
        },
    )


def _table(
    datasets: Sequence[DatasetResults],
    name: str,
    title: str,
    caption: str,
    columns: Mapping[str, Any],
) -> Table | None:
    rows = []
    for data in datasets:
        if data.models:
            words = (Cell(text=read(data)) for read in columns.values())
            rows.append((Cell(text=data.name), *words))
    head = ("data set", *columns)
    return (
        Table(name=name, title=title, caption=caption, head=head, rows=tuple(rows))
        if rows
        else None
    )


def _origin(data: DatasetResults) -> Mapping[str, Any]:
    """What the source states of the flows; empty in results of earlier versions."""
    return dict(data.info.get("origin") or {})


def _flow(data: DatasetResults) -> str:
    origin, source = _origin(data), data.facts["source"]
    named = [origin.get("title"), origin.get("scenario")]
    if "case" in source:
        named = [f"{source['case']}, preset {source['preset']}"]
    return ", ".join(str(name) for name in named if name) or str(source.get("path", UNKNOWN))


def _shape(shape: Sequence[int] | None) -> str:
    return UNKNOWN if shape is None else " × ".join(map(str, shape))


def learned(data: DatasetResults) -> str:
    """The fields that models see and predict, their grid and stride."""
    spec, stride = data.spec, _origin(data).get("stride", 1)
    channels = ", ".join(map(with_unit, spec.channels, spec.units))
    steps = "" if stride == 1 else f", every {stride}th frame"
    return f"{channels} on {_shape(spec.grid.shape)}{steps}"


def split_text(data: DatasetResults) -> str:
    """The rule of the split, with flows and pairs of frames of each subset."""
    frames = _origin(data).get("frames")
    plan = data.results.get("comparison", {}).get("data", {}).get(data.name, {})
    counts = []
    for name, label in SPLITS.items():
        if pieces := data.info["split"].get(name):
            text = f"{label} {len({piece[0] for piece in pieces})}"
            if frames:
                ends = (frames[home] if stop is None else stop for home, _, stop in pieces)
                pairs = sum(
                    max(0, end - start - 1) for end, (_, start, _) in zip(ends, pieces, strict=True)
                )
                text += f" ({integer(pairs)})"
            counts.append(text)
    seed = f", seed {plan['split_seed']}" if plan.get("split") == "trajectory" else ""
    own = ", flows of its own" if "test" in data.facts["source"] else ""
    return f"{plan.get('split', 'as stored')}{seed}: {', '.join(counts)}{own}"


def _parameters(data: DatasetResults) -> str:
    values: dict[str, list[float]] = {}
    for flow in data.info.get("parameters") or ():
        for name, value in flow.items():
            values.setdefault(name, []).append(value)
    spans = (sorted({min(known), max(known)}) for known in values.values())
    texts = (" to ".join(map(parameter_text, span)) for span in spans)
    return "; ".join(map(" ".join, zip(values, texts, strict=True))) or "none"


def _duration(data: DatasetResults) -> str:
    frames, dt = _origin(data).get("frames"), data.spec.dt
    if not frames:
        return UNKNOWN
    span = " to ".join(integer(count) for count in sorted({min(frames), max(frames)}))
    unit = data.info.get("time_unit") or ""
    step = "" if dt is None else f", {f'{digits(dt)} {unit}'.strip()} apart"
    return f"{counted(len(frames), 'flow')} of {span} frames{step}"


def _publisher(data: DatasetResults) -> str:
    origin = _origin(data)
    version = origin.get("data_version")
    named = [origin.get("url"), f"version {version}" if version else None, origin.get("licence")]
    return "; ".join(str(name) for name in named if name) or str(origin.get("method") or UNKNOWN)


def _fingerprint(data: DatasetResults) -> str:
    source = data.facts["source"]
    found = {"": source, "test ": source.get("test", {})}
    hashes = {name: s.get("fingerprint") or s.get("recipe_hash") for name, s in found.items()}
    return "; ".join(f"{name}{code}" for name, code in hashes.items() if code) or UNKNOWN
