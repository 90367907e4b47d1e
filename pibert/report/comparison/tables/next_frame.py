"""Errors of the next frame: components, scales, physics, slices, probes, benchmark metrics."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pibert.evaluation.regions import DOWNSTREAM, PAPER_COLUMNS
from pibert.evaluation.scales import BANDS, GROUPS, SCALES
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.table import Table, digits, marks, measured, table_of

_POINTWISE = {
    "nmse": "NMSE",
    "lmae": "LMAE",
    "lpcc": "LPCC",
    "r2": "R²",
    "rel_l2": "RelL2",
    "rmse": "RMSE",
}


def components(data: DatasetResults) -> list[Table]:
    """A table for every channel, the speed, and all channels together."""
    tables = []
    for name in _components(data):
        columns = [(label, metric, name) for metric, label in _POINTWISE.items()]
        short = {"|u|": "speed"}.get(name, name)
        title = {"|u|": "Speed |u|", "all": "All channels"}.get(name, f"Component {name}")
        caption = "Next frame, physical units, pooled over all known points."
        tables.append(_metrics(data, f"component-{short}", title, caption, columns))
    return [table for table in tables if table is not None]


def _components(data: DatasetResults, metric: str = "nmse") -> dict[str, None]:
    """Components of a metric, in the order of the records."""
    return dict.fromkeys(r["component"] for r in data.records if r["metric"] == metric)


def standardised(data: DatasetResults) -> Table | None:
    """NMSE and R² in standardised units, for comparison with published tables."""
    columns = [
        measured(data, f"{label} {name}", metric, name, space="standardised")
        for metric, label in (("nmse", "NMSE"), ("r2", "R²"))
        for name in _components(data)
    ]
    caption = (
        "Each channel minus its training mean, divided by its training standard deviation: the "
        f"units of published tables. In these units |u| is not the speed. {marks(data)}"
    )
    return table_of(data, "standardised", "Standardised units", caption, columns)


def scales(data: DatasetResults) -> Table | None:
    """Errors from large to small scales."""
    columns = [
        *((f"scale {k}", f"scale_{k}_nmse") for k in SCALES),
        *((f"Haar {group}", "haar_nmse", group) for group in GROUPS),
    ]
    caption = (
        "NMSE after averaging over k × k points (scale k), and of the sub-bands of a three-level "
        "Haar transform, averaged over channels and bands: coarse is level 3, fine is level 1."
    )
    return _metrics(data, "scales", "Errors by scale", caption, columns)


def haar(data: DatasetResults) -> list[Table]:
    """Errors of every Haar sub-band, a table for each channel."""
    caption = (
        "NMSE of each sub-band. L is low, H is high, first along x, then along y; the number is "
        "the level."
    )
    tables = []
    for channel in data.spec.channels:
        start = f"{channel}_"
        names = [name for name in _components(data, "haar_nmse") if name.startswith(start)]
        columns = [(name.removeprefix(start), "haar_nmse", name) for name in names]
        title = f"Haar sub-bands of {channel}"
        tables.append(_metrics(data, f"haar-{channel}", title, caption, columns))
    return [replace(table, is_folded=True) for table in tables if table is not None]


def spectra(data: DatasetResults) -> Table | None:
    """Errors by band of the radial spectrum."""
    energy = "kinetic_energy"
    columns = [
        *(measured(data, f"NMSE, {band}", "band_nmse", band) for band in BANDS),
        *(measured(data, f"spectrum, {band}", "band_spectrum_error", band) for band in BANDS),
        measured(data, "log spectrum", "spectral_log_error", energy),
        measured(data, "slope", "spectral_slope", "prediction", truth="truth"),
        measured(data, "slope error", "spectral_slope_error", energy),
    ]
    caption = (
        "Bands are thirds of the wavenumber range. NMSE of the band-passed field, which includes "
        "phase errors; relative error of the radial spectrum, which does not; root mean square "
        f"error of the logarithm of the spectrum; and its slope. {marks(data)}"
    )
    return table_of(data, "spectra", "Spectral bands", caption, columns)


def physics(data: DatasetResults) -> Table | None:
    """Vorticity, divergence, boundary and near-body errors."""
    square = "divergence_mean_square"
    columns = [
        measured(data, "vorticity NMSE", "vorticity_nmse", "vorticity"),
        measured(data, "vorticity RMSE", "vorticity_rmse", "vorticity"),
        measured(data, "divergence RMSE", "divergence_rmse", "divergence"),
        measured(data, "mean square divergence", square, "prediction", truth="truth"),
        measured(data, "boundary NMSE", "boundary_nmse"),
        measured(data, "boundary MSE", "boundary_mse"),
        measured(data, "near-body NMSE", "near_body_nmse"),
        measured(data, "near-body RMSE", "near_body_rmse"),
    ]
    caption = (
        "Compare the divergence with that of the data (last row), which is not zero on a grid; a "
        "lower divergence than that of the data is not an improvement. Near the body: within half "
        f"a diameter. {marks(data)}"
    )
    return table_of(data, "physics", "Vorticity, divergence, boundary", caption, columns)


def slices(data: DatasetResults) -> Table | None:
    """Errors along columns of the grid and along the wake line."""
    velocity = "|u|" if "v" in data.spec.channels else data.spec.channels[0]
    keys = [*DOWNSTREAM, *(f"column_{number}" for number in PAPER_COLUMNS)]
    columns = [
        *((key.replace("_", " "), f"slice_{key}_rel_l2", velocity) for key in keys),
        ("wake line u", "wake_line_rel_l2", "u"),
        ("wake line vorticity", "wake_line_rel_l2", "vorticity"),
    ]
    where = "the paper's fixed columns 11, 32 and 52 of 64, scaled to the grid width"
    if data.info.get("has_body"):
        where = (
            f"columns 0.75, 2 and 4 diameters downstream of the body's centre, along {where}, and "
            "along the row through the body's centre, downstream of it"
        )
    caption = f"Relative L2 error of {velocity} along {where}."
    return _metrics(data, "slices", "Slices and wake line", caption, columns)


def temporal(data: DatasetResults) -> Table | None:
    """Energy at probes of one-step predictions."""
    columns = [
        *(
            measured(data, f"{band} band", f"psd_ratio_{band}", ideal=1.0, form=digits)
            for band in BANDS
        ),
        measured(data, "log PSD error", "psd_log_error"),
    ]
    caption = (
        "Power at probes, predicted over true, in thirds of the frequency range: 1 is correct, "
        "bold is nearest to 1. One-step (teacher-forced) predictions: each frame is predicted from "
        "the true frame before it. Persistence repeats the truth one step late, so its spectra are "
        "correct by construction. The numbers show how much energy one step adds or removes, not "
        f"the dynamics of a rollout. {marks(data)}"
    )
    return table_of(data, "temporal", "Energy in time, one-step predictions", caption, columns)


def official(data: DatasetResults) -> Table | None:
    """RealPDEBench's own metrics."""
    metrics = dict.fromkeys(
        (r["metric"], r["component"]) for r in data.records if r["metric"].startswith("official_")
    )
    columns = [(m.removeprefix("official_").replace("_", " "), m, c) for m, c in metrics]
    caption = (
        "Computed as in the benchmark's code, including its peculiarities, but for one-step "
        "(teacher-forced) predictions, in which persistence keeps every frequency. The benchmark's "
        "own tables are for 20 frames at once and are not comparable."
    )
    title = "RealPDEBench metrics, one-step predictions"
    return _metrics(data, "official", title, caption, columns)


def ensembles(data: DatasetResults) -> Table | None:
    """Scores of single samples and of ensembles, for models that sample."""
    facts = {m: card for m in data.models if (card := data.first(m).card.get("draws"))}
    if not facts:
        return None
    components = (*data.spec.channels, "all")
    columns = [
        measured(data, "NMSE of a member", "draw_nmse"),
        measured(data, "NMSE of the mean", "draws_mean_nmse"),
        *(measured(data, f"spread {name}", "draws_spread", name) for name in components),
        *(
            measured(data, f"spread-skill {name}", "spread_skill", name, ideal=1.0)
            for name in components
        ),
        *(measured(data, f"CRPS {name}", "crps", name) for name in components),
    ]
    first = next(iter(facts.values()))
    caption = (
        f"{first['draws']} ensemble members for each of {first['frames']} evenly spaced test "
        "frames, physical units. Spread: root mean square of the standard deviation over members. "
        "Spread-skill: spread over the error of the mean, corrected for the number of members; 1 "
        "is reliable, less is overconfident. CRPS is the fair estimate; for a single prediction it "
        "equals the mean absolute error. Models that do not sample have no row."
    )
    table = table_of(data, "ensembles", "Ensembles", caption, columns)
    if table is None:
        return None
    return replace(table, rows=tuple(row for row in table.rows if row[0].text in facts))


def _metrics(
    data: DatasetResults, name: str, title: str, caption: str, columns: Iterable[Sequence[str]]
) -> Table | None:
    """A table of columns (label, metric, component), the last one optional."""
    numbers = [measured(data, *column) for column in columns]
    return table_of(data, name, title, f"{caption} {marks(data)}", numbers)
