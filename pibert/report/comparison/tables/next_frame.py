"""Errors of the next frame: components, scales, physics, slices, probes, benchmark metrics."""

from collections.abc import Iterable
from dataclasses import replace

from pibert.evaluation.regions import SLICES
from pibert.evaluation.scales import BANDS, GROUPS, SCALES
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.table import (
    DAGGER,
    UNKNOWN,
    Cell,
    Metric,
    MetricTable,
    Table,
    digits,
    measured,
    percent,
    slug,
)

_POINTWISE = {
    "nmse": "NMSE",
    "lmae": "LMAE",
    "lpcc": "LPCC",
    "r2": "R²",
    "rel_l2": "RelL2",
    "rmse": "RMSE",
}

PAIRED = ("nmse", "lpcc", "r2")
RIVALS = ("fourierflow", "fourierflow-det", "pinn")
"""Models that the paper sets beside PIBERT; the best rival here comes first."""
_STRUCTURE = (
    Metric("vorticity NMSE", "vorticity_nmse", "vorticity"),
    Metric("vorticity RMSE", "vorticity_rmse", "vorticity"),
    Metric("boundary MSE", "boundary_mse"),
    Metric("boundary NMSE", "boundary_nmse"),
    Metric("divergence RMSE", "divergence_rmse", "divergence"),
    Metric("spectral L2", "spectral_rel_l2", "kinetic_energy"),
    Metric("log spectrum", "spectral_log_error", "kinetic_energy"),
    Metric("spectral slope error", "spectral_slope_error", "kinetic_energy"),
)

scales = MetricTable(
    "scales",
    "Errors by scale",
    "NMSE after averaging over k × k points (scale k), and of the sub-bands of a three-level Haar "
    "transform, averaged over channels and bands: coarse is level 3, fine is level 1.",
    [
        *(Metric(f"scale {k}", f"scale_{k}_nmse") for k in SCALES),
        *(Metric(f"Haar {group}", "haar_nmse", group) for group in GROUPS),
    ],
)
spectra = MetricTable(
    "spectra",
    "Spectral bands",
    "Bands are thirds of the wavenumber range. NMSE of the band-passed field, which includes phase "
    "errors; relative error of the radial spectrum, which does not; root mean square error of the "
    "logarithm of the mean spectrum; its relative L2 error; and its slope.",
    [
        *(Metric(f"NMSE, {band}", "band_nmse", band) for band in BANDS),
        *(Metric(f"spectrum, {band}", "band_spectrum_error", band) for band in BANDS),
        Metric("log spectrum", "spectral_log_error", "kinetic_energy"),
        Metric("spectral L2", "spectral_rel_l2", "kinetic_energy"),
        Metric("slope", "spectral_slope", "prediction", truth="truth"),
        Metric("slope error", "spectral_slope_error", "kinetic_energy"),
    ],
)
physics = MetricTable(
    "physics",
    "Vorticity, divergence, boundary",
    "The last row has the divergence of the data, which is not zero on a grid: a lower one is not "
    "an improvement. Near the body: within half a diameter.",
    [
        Metric("vorticity NMSE", "vorticity_nmse", "vorticity"),
        Metric("vorticity RMSE", "vorticity_rmse", "vorticity"),
        Metric("divergence RMSE", "divergence_rmse", "divergence"),
        Metric("mean square divergence", "divergence_mean_square", "prediction", truth="truth"),
        Metric("boundary NMSE", "boundary_nmse"),
        Metric("boundary MSE", "boundary_mse"),
        Metric("near-body NMSE", "near_body_nmse"),
        Metric("near-body RMSE", "near_body_rmse"),
    ],
)
temporal = MetricTable(
    "temporal",
    "Energy in time, one-step predictions",
    "Power at probes, predicted over true, in thirds of the frequency range: 1 is correct, bold is "
    "nearest to 1. Each frame is predicted from the true frame before it, so the numbers show how "
    "much energy one step adds or removes, not the dynamics of a rollout. Persistence, which "
    "repeats the truth one step late, is correct by construction.",
    [
        *(Metric(f"{band} band", f"psd_ratio_{band}", form=digits, ideal=1.0) for band in BANDS),
        Metric("log PSD error", "psd_log_error"),
    ],
)


def components(data: DatasetResults) -> list[Table]:
    """A table for every channel, the speed, and all channels together."""
    tables = []
    for name in _components(data):
        columns = [Metric(label, metric, name) for metric, label in _POINTWISE.items()]
        short = {"|u|": "speed"}.get(name, name)
        title = {"|u|": "Speed |u|", "all": "All channels"}.get(name, f"Component {name}")
        caption = "Next frame, physical units, pooled over all known points."
        tables.append(MetricTable(f"component-{short}", title, caption, columns)(data))
    return _found(tables)


def _components(data: DatasetResults, metric: str = "nmse") -> dict[str, None]:
    """Components of a metric, in the order of the records."""
    return dict.fromkeys(r["component"] for r in data.records if r["metric"] == metric)


def _found(tables: Iterable[Table | None]) -> list[Table]:
    return [table for table in tables if table is not None]


def pairs(data: DatasetResults) -> list[Table]:
    """PIBERT beside single other models, component by component, with the gain in NMSE."""
    subject = data.subject
    if subject is None:
        return []
    found = dict.fromkeys((data.rival(), *RIVALS))
    others = [m for m in found if m in data.models and m != subject]
    return _found(_pair(data, subject, other) for other in others)


def _pair(data: DatasetResults, subject: str, other: str) -> Table | None:
    rows = []
    for component in _components(data):
        error, theirs = (data.value(m, "nmse", component) for m in (subject, other))
        if error is None or not theirs:
            continue
        gain = 1 - error / theirs
        cells = [Cell(text=component), Cell(text=percent(gain), number=gain)]
        for metric in PAIRED:
            column = measured(data, Metric(metric, metric, component, note="none"))
            if column is None:
                cells += [Cell(text=UNKNOWN)] * 2
                continue
            own = replace(
                column, values={m: column.values[m] for m in (subject, other)}, level=frozenset()
            )
            cells += [own.cell(subject), own.cell(other)]
        rows.append(tuple(cells))
    if not rows:
        return None
    labels = (f"{_POINTWISE[metric]}, {m}" for metric in PAIRED for m in (subject, other))
    return Table(
        name=slug(f"{data.name}-pair-{other}"),
        title=f"{subject} and {other}, component by component",
        caption="Next frame, physical units, means over seeds. Gain: by how much the NMSE of "
        f"{subject} is lower than that of {other}; negative where it is higher. Bold: the better "
        "of the two. The table of paired tests says which differences of all channels are "
        "significant.",
        head=("component", "gain in NMSE", *labels),
        rows=tuple(rows),
        is_folded=other != data.rival(),
    )


def best_models(data: DatasetResults) -> Table | None:
    """One row for every error by scale and of structure: PIBERT's, and the best model's."""
    subject = data.subject
    if subject is None:
        return None
    rows = []
    named = [metric._replace(label=f"{metric.label} NMSE") for metric in scales.columns]
    for metric in (*named, *_STRUCTURE):
        column = measured(data, metric)
        best = None if column is None else column.best()
        if column is None or best is None:
            continue
        winner = next(m for m in data.models if column.values[m] == best)
        value = replace(column.cell(winner), best=False)
        rows.append((Cell(text=column.label), column.cell(subject), Cell(text=winner), value))
    if not rows:
        return None
    return Table(
        name=slug(f"{data.name}-best-models"),
        title="Scales and structure: the best models",
        caption="Next frame, all models, predictors without training included. Spectral L2: "
        "relative error of the mean spectrum, which ignores phase and is dominated by the largest "
        f"scales. Bold: {subject} is best; {DAGGER}: not significantly different from the best.",
        head=("error", subject, "best model", "its value"),
        rows=tuple(rows),
    )


def standardised(data: DatasetResults) -> Table | None:
    """NMSE and R² in standardised units, for comparison with published tables."""
    columns = [
        Metric(f"{label} {name}", metric, name, "standardised")
        for metric, label in (("nmse", "NMSE"), ("r2", "R²"))
        for name in _components(data)
    ]
    caption = (
        "Each channel minus its training mean, divided by its training standard deviation: the "
        "units of published tables. In these units |u| is not the speed."
    )
    return MetricTable("standardised", "Standardised units", caption, columns)(data)


def haar(data: DatasetResults) -> list[Table]:
    """Errors of every Haar sub-band, a table for each channel."""
    caption = "NMSE of each sub-band. L: low, H: high, first along x, then along y; then the level."
    tables = []
    for channel in data.spec.channels:
        start = f"{channel}_"
        names = [name for name in _components(data, "haar_nmse") if name.startswith(start)]
        columns = [Metric(name.removeprefix(start), "haar_nmse", name) for name in names]
        title = f"Haar sub-bands of {channel}"
        tables.append(MetricTable(f"haar-{channel}", title, caption, columns)(data))
    return [replace(table, is_folded=True) for table in _found(tables)]


def slices(data: DatasetResults) -> Table | None:
    """Errors along columns of the grid and along the wake line; None without a body."""
    if not data.info["has_body"]:
        return None
    velocity = "|u|" if "v" in data.spec.channels else data.spec.channels[0]
    columns = [
        *(Metric(key.replace("_", " "), f"slice_{key}_rel_l2", velocity) for key in SLICES),
        Metric("wake line u", "wake_line_rel_l2", "u"),
        Metric("wake line vorticity", "wake_line_rel_l2", "vorticity"),
    ]
    caption = (
        f"Relative L2 error of {velocity} along the paper's columns 11, 32 and 52 of 64, scaled to "
        "the grid width, 0.75, 2 and 4 diameters downstream of the body's centre, at most at the "
        "end of the view, and along the row through it."
    )
    return MetricTable("slices", "Slices and wake line", caption, columns)(data)


def official(data: DatasetResults) -> Table | None:
    """RealPDEBench's own metrics."""
    metrics = dict.fromkeys(
        (r["metric"], r["component"]) for r in data.records if r["metric"].startswith("official_")
    )
    columns = [Metric(m.removeprefix("official_").replace("_", " "), m, c) for m, c in metrics]
    caption = (
        "Computed as in the benchmark's code, but for one-step (teacher-forced) predictions, in "
        "which persistence keeps every frequency. The benchmark's own tables are for 20 frames at "
        "once and are not comparable."
    )
    return MetricTable("official", "RealPDEBench metrics, one-step predictions", caption, columns)(
        data
    )
