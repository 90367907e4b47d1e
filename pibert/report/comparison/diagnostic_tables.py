"""Tables of the diagnostics: scales, spectra, physics, the wake, behaviour in time.

A table is a function of a ``Board``; None where nothing was measured for it.
"""

from pibert.report.comparison.board import Board
from pibert.report.comparison.columns import Column, columns_of, marks, table_of
from pibert.report.comparison.markup import Table
from pibert.report.comparison.numbers import digits


def scales(board: Board) -> Table | None:
    """From large to small scales."""
    columns = [
        *(Column(label=f"scale {k}", metric=f"scale_{k}_nmse") for k in (1, 2, 4, 8)),
        *(
            Column(label=f"Haar {group}", metric="haar_nmse", component=group)
            for group in ("coarse", "intermediate", "fine")
        ),
    ]
    caption = (
        "NMSE after averaging over k × k points (scale k), and of the sub-bands of a Haar "
        "transform with three levels, as the mean over channels and bands: coarse is level 3, "
        f"fine is level 1. {marks(board)}"
    )
    return table_of("scales", "Errors by scale", caption, board, columns_of(board, columns))


def haar(board: Board) -> list[Table]:
    """Every sub-band, a table for each channel."""
    made = []
    for channel in board.spec.channels:
        start = f"{channel}_"
        metric = [r["component"] for r in board.records if r["metric"] == "haar_nmse"]
        bands = [name for name in dict.fromkeys(metric) if name.startswith(start)]
        columns = [
            Column(label=name.removeprefix(start), metric="haar_nmse", component=name)
            for name in bands
        ]
        caption = (
            "NMSE of each sub-band; L low, H high, first along x, then along y; the number is the "
            f"level. {marks(board)}"
        )
        title = f"Haar sub-bands of {channel}"
        made.append(table_of(f"haar-{channel}", title, caption, board, columns_of(board, columns)))
    return [table for table in made if table is not None]


def spectra(board: Board) -> Table | None:
    """Bands of the radial spectrum."""
    bands = ("low", "mid", "high")
    columns = [
        *(Column(label=f"NMSE, {b}", metric="band_nmse", component=b) for b in bands),
        *(Column(label=f"spectrum, {b}", metric="band_spectrum_error", component=b) for b in bands),
        Column(label="log spectrum", metric="spectral_log_error", component="kinetic_energy"),
        Column(
            label="slope",
            metric="spectral_slope",
            component="prediction",
            truth=("spectral_slope", "truth"),
        ),
        Column(label="slope error", metric="spectral_slope_error", component="kinetic_energy"),
    ]
    caption = (
        "Thirds of the range of wave numbers: NMSE of the band-passed field, which sees the "
        "phase, and relative error of the radial spectrum, which does not; then the root mean "
        f"square error of its logarithm, and its slope. {marks(board)}"
    )
    return table_of("spectra", "Spectral bands", caption, board, columns_of(board, columns))


def physics(board: Board) -> Table | None:
    """Vorticity, divergence, boundary, near body."""
    columns = [
        Column(label="vorticity NMSE", metric="vorticity_nmse", component="vorticity"),
        Column(label="vorticity RMSE", metric="vorticity_rmse", component="vorticity"),
        Column(label="divergence RMSE", metric="divergence_rmse", component="divergence"),
        Column(
            label="mean square divergence",
            metric="divergence_mean_square",
            component="prediction",
            truth=("divergence_mean_square", "truth"),
        ),
        Column(label="boundary NMSE", metric="boundary_nmse"),
        Column(label="boundary MSE", metric="boundary_mse"),
        Column(label="near-body NMSE", metric="near_body_nmse"),
        Column(label="near-body RMSE", metric="near_body_rmse"),
    ]
    caption = (
        "Compare the divergence with that of the data, which is not zero on a grid: its own mean "
        "square is the floor in the last row, and to lie below it is no merit. Near the body: "
        f"within half a diameter. {marks(board)}"
    )
    title = "Vorticity, divergence, boundary"
    return table_of("physics", title, caption, board, columns_of(board, columns))


def slices(board: Board) -> Table | None:
    """Columns of the grid, and the wake line."""
    places = {
        "near_body": "near body",
        "wake_core": "wake core",
        "far_wake": "far wake",
        "column_11": "column 11",
        "column_32": "column 32",
        "column_52": "column 52",
    }
    velocity = "|u|" if "v" in board.spec.channels else board.spec.channels[0]
    columns = [
        *(
            Column(label=label, metric=f"slice_{key}_rel_l2", component=velocity)
            for key, label in places.items()
        ),
        Column(label="wake line u", metric="wake_line_rel_l2", component="u"),
        Column(label="wake line vorticity", metric="wake_line_rel_l2", component="vorticity"),
    ]
    made = columns_of(board, columns)
    tied = (
        " columns 0.75, 2 and 4 diameters downstream of the body's centre, and along"
        if any(column.label.startswith("far wake") for column in made)
        else ""
    )
    line = "; then along the row through the body's centre, downstream of it" if tied else ""
    caption = (
        f"Relative L2 error of {velocity} along{tied} the paper's fixed columns, 11, 32 "
        f"and 52 of 64, scaled to the width{line}. {marks(board)}"
    )
    title = "Slices and wake line"
    return table_of("slices", title, caption, board, made)


def temporal(board: Board) -> Table | None:
    """Energy at probes of frames predicted one step ahead."""
    columns = [
        *(
            Column(label=f"{band} band", metric=f"psd_ratio_{band}", ideal=1.0, form=digits)
            for band in ("low", "mid", "high")
        ),
        Column(label="log PSD error", metric="psd_log_error"),
    ]
    caption = (
        "Power at probes, predicted over true, in thirds of the range of frequencies: 1 is right, "
        "and bold is nearest to it. One-step (teacher-forced) predictions: each frame is predicted "
        f"from the true one before it. {_persistence(board)}The numbers say how much energy a "
        f"step adds or takes away, nothing of a model's own dynamics. {marks(board)}"
    )
    title = "Energy in time, one-step predictions"
    return table_of("temporal", title, caption, board, columns_of(board, columns))


def _persistence(board: Board) -> str:
    """What a predictor that repeats the last frame has, to read the others by."""
    error = board.value("persistence", "psd_log_error") if "persistence" in board.models else None
    said = "Persistence repeats the truth a step late, so its spectra are right by construction"
    return f"{said}. " if error is None else f"{said} (log PSD error {digits(error)}). "


def official(board: Board) -> Table | None:
    """RealPDEBench's own metrics, as its code gives them."""
    found = dict.fromkeys(
        (r["metric"], r["component"]) for r in board.records if r["metric"].startswith("official_")
    )
    columns = [
        Column(label=m.removeprefix("official_").replace("_", " "), metric=m, component=c)
        for m, c in found
    ]
    caption = (
        "As the benchmark's code computes them, oddities included, but of one-step (teacher-"
        "forced) predictions, in which persistence keeps every frequency: the benchmark's own "
        "tables are of 20 frames at once, and do not compare. "
        f"{marks(board)}"
    )
    title = "RealPDEBench's metrics, one-step predictions"
    return table_of("official", title, caption, board, columns_of(board, columns))
