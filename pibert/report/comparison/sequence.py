"""Metrics of whole sequences: RealPDEBench's, as its code computes them, as bars.

    fRMSE    error of the Fourier modes in space and time, all and by thirds of the wave numbers
    KE       error of half the variance in time of u and v
    MVPE     error of the mean velocity at probes behind the body

Definitions and their oddities are in ``evaluation/official.py``. All are errors: less is better.
"""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import NORMAL, SMALL, Drawn, with_unit
from pibert.report.comparison.plots import frame, logarithmic, plain, sheet

SINGLE = {
    "fRMSE, all wave numbers": "official_frmse",
    "KE": "official_ke",
    "MVPE": "official_mvpe",
}
BANDS = {band: f"official_frmse_{band}" for band in ("low", "mid", "high")}


def sequence_metrics(board: Board) -> Drawn | None:
    """Bars of the metrics that were measured; None where none was."""
    single = {title: _values(board, metric) for title, metric in SINGLE.items()}
    single = {title: values for title, values in single.items() if values}
    bands = {band: _values(board, metric) for band, metric in BANDS.items()}
    bands = {band: values for band, values in bands.items() if values}
    if not single and not bands:
        return None
    count = len(single) + bool(bands)
    models = [m for m in board.models if any(m in v for v in (*single.values(), *bands.values()))]
    figure, axes = sheet(2.6 * count + 1.2, 0.23 * len(models) + 1.3, 1, count, sharey=True)
    letters = iter("abcd")
    for ax, (title, values) in zip(axes[0], single.items(), strict=False):
        unit = _unit(board, SINGLE[title])
        frame(ax, f"{next(letters)}  {title}", x=with_unit("error", unit))
        _bars(ax, board, models, values)
    if bands:
        ax = axes[0, -1]
        unit = _unit(board, next(iter(BANDS.values())))
        frame(ax, f"{next(letters)}  fRMSE by band", x=with_unit("error", unit))
        _dots(ax, board, models, bands)
    axes[0, 0].set_yticks(range(len(models)), models, fontsize=NORMAL)
    axes[0, 0].set_ylim(len(models) - 0.4, -0.6)
    for ax in axes[0]:
        ax.grid(False, axis="y")
        ax.tick_params(axis="y", length=0)
    caption = (
        f"Data set {board.name}: metrics of whole sequences as RealPDEBench's code computes "
        "them, of one-step (teacher-forced) predictions, in physical units over the test part; "
        "models in the order of their rank, scales logarithmic, less is better. KE is the variance "
        "in time of the velocity, not its energy."
    )
    first = next(iter({**single, **bands}.values()))
    best = min(first, key=first.__getitem__)
    alt = f"Bars of {count} sequence metrics of {len(models)} models; {best} leads in the first."
    return Drawn(figure, caption, alt)


def _values(board: Board, metric: str) -> dict[str, float]:
    found = {model: _value(board, model, metric) for model in board.models}
    return {model: value for model, value in found.items() if value is not None and value > 0}


def _value(board: Board, model: str, metric: str) -> float | None:
    """Of the channels that were measured, whichever they are."""
    own = [
        record["value"]
        for record in board.records
        if (record["model"], record["metric"], record["space"]) == (model, metric, "physical")
        and record["value"] is not None
    ]
    return sum(own) / len(own) if own else None


def _unit(board: Board, metric: str) -> str | None:
    unit = next((r["unit"] for r in board.records if r["metric"] == metric), None)
    return None if unit is None else str(unit).replace("^2", "²")


def _bars(ax: Axes, board: Board, models: Sequence[str], values: Mapping[str, float]) -> None:
    low, high = min(values.values()), max(values.values())
    # Room for the numbers beyond the longest bar, and for the shortest to be seen.
    logarithmic(ax, "x", [low / 1.6, high * max(2.0, (high / low) ** 0.5)])
    start = ax.get_xlim()[0]
    for row, model in enumerate(models):
        if model not in values:
            continue
        ax.barh(row, values[model] - start, left=start, height=0.7, color=board.colour(model))
        ax.annotate(
            f"{values[model]:.2g}" if values[model] >= 1e-3 else plain(values[model]),
            (values[model], row),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
        )


def _dots(
    ax: Axes, board: Board, models: Sequence[str], bands: Mapping[str, Mapping[str, float]]
) -> None:
    logarithmic(ax, "x", [value for values in bands.values() for value in values.values()])
    marks = dict(zip(BANDS, ("o", "s", "^"), strict=True))
    for row, model in enumerate(models):
        own = [values[model] for values in bands.values() if model in values]
        if own:
            ax.plot([min(own), max(own)], [row, row], color="0.8", lw=1.0, zorder=1)
    for band, values in bands.items():
        ax.plot([], [], marks[band], color="0.3", ms=4.5, label=band)
        for row, model in enumerate(models):
            if model in values:
                ax.plot(values[model], row, marks[band], color=board.colour(model), ms=4.5)
    # Models are ranked, so the errors of the last rows are large, and the lower left is free.
    ax.legend(fontsize=SMALL, frameon=False, loc="lower left", handletextpad=0.1)
