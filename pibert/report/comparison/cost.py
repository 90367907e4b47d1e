"""What accuracy costs: error against time of a prediction, time of training and size.

The step line joins the models that no other beats in both, the best choices at a given cost.
"""

from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.axes import Axes

from pibert.report.comparison.board import UNTRAINED, Board
from pibert.report.comparison.drawn import SMALL, Drawn
from pibert.report.comparison.plots import Label, frame, label_points, logarithmic, settle, sheet
from pibert.report.comparison.run_tables import sharing_text

_UPPER_BOUND = "upper bound"
Cost = Callable[[Mapping[str, Any]], float | None]
"""Of a run; None where it was not measured."""


def cost(board: Board) -> Drawn | None:
    """NMSE against inference at batches of 1 and 128, training seconds and parameters."""
    panels: dict[str, tuple[str, Cost]] = {
        "a  One sample at a time": ("inference [ms per sample]", lambda run: _inference(run, 1)),
        "b  Batches of 128": ("inference [ms per sample]", lambda run: _inference(run, 128)),
        "c  Training": (_training_label(board), _training),
        "d  Size": ("parameters", lambda run: _cost_of(run).get("parameters")),
    }
    errors = {model: board.value(model, "nmse") for model in board.models}
    known = {model: error for model, error in errors.items() if error and error > 0}
    found = {
        title: (name, _costs(board, known, measured)) for title, (name, measured) in panels.items()
    }
    found = {title: panel for title, panel in found.items() if panel[1]}
    if not found:
        return None
    rows = -(-len(found) // 2)
    columns = min(2, len(found))
    many = max(len(costs) for _, costs in found.values())
    tall = min(5.4, 2.7 + 0.12 * many)
    figure, axes = sheet(5.2 * columns, tall * rows, rows, columns)
    for ax, (title, (name, costs)) in zip(axes.flat, found.items(), strict=False):
        frame(ax, title, x=name, y="NMSE of the next frame")
        is_bound = _UPPER_BOUND in name  # no model is the best at a cost that is not its own
        _panel(ax, board, known, costs, with_front=not is_bound)
    for ax in axes.flat[len(found) :]:
        ax.set_axis_off()
    settle(figure)
    for ax, (_, costs) in zip(axes.flat, found.values(), strict=False):
        marks = [Label(costs[m], known[m], m, board.colour(m)) for m in costs]
        label_points(ax, marks, size=SMALL)
    devices = {str(_cost_of(board.first(model).card).get("device", "")) for model in known} - {""}
    where = f" Measured on {', '.join(sorted(devices))}." if devices else ""
    caption = (
        f"Data set {board.name}: NMSE of all components over the test part (physical units) "
        "against cost; lower left is better. The grey line joins the best choices at each cost; "
        "hollow points are predictors that are not trained, which have no place in c and d; other "
        "shapes than circles are variants."
        f"{sharing_text(board)}"
        f"{where}"
    )
    fast = {m: c for _, costs in list(found.values())[:1] for m, c in costs.items()}
    alt = (
        f"Scatter of error against cost of {len(known)} models on {board.name}; "
        f"{min(known, key=known.__getitem__)} has the lowest error, "
        f"{min(fast, key=fast.__getitem__)} costs least in the first panel."
    )
    return Drawn(figure, caption, alt)


def _costs(board: Board, known: Mapping[str, float], measured: Cost) -> dict[str, float]:
    costs = {model: measured(board.first(model).card) for model in known}
    return {model: float(c) for model, c in costs.items() if c is not None and c > 0}


def _panel(
    ax: Axes,
    board: Board,
    errors: Mapping[str, float],
    costs: Mapping[str, float],
    *,
    with_front: bool,
) -> None:
    logarithmic(ax, "y", [errors[model] for model in costs])
    logarithmic(ax, "x", [*costs.values(), 1.6 * max(costs.values())])
    if with_front:
        front = _front({model: (costs[model], errors[model]) for model in costs})
        right = ax.get_xlim()[1]
        x, y = ([costs[m] for m in front] + [right], [errors[m] for m in front])
        ax.plot(x, [*y, y[-1]], color="0.75", lw=1.0, drawstyle="steps-post", zorder=1)
    if "persistence" in errors:
        ax.axhline(errors["persistence"], color="0.6", lw=0.8, ls=":", zorder=1)
    for model, value in costs.items():
        colour = board.colour(model)
        # A white rim keeps points apart that lie on each other.
        fill, rim = ("white", colour) if model in UNTRAINED else (colour, "white")
        width = 1.2 if model in UNTRAINED else 0.6
        point: dict[str, Any] = {"mfc": fill, "mec": rim, "ms": 7.0, "mew": width, "zorder": 3}
        ax.plot(value, errors[model], board.mark(model), **point)


def _front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Those that no other beats in both, the cheapest first."""
    front: list[str] = []
    for model in sorted(points, key=points.__getitem__):
        if not front or points[model][1] < points[front[-1]][1]:
            front.append(model)
    return front


def _cost_of(run: Mapping[str, Any]) -> Mapping[str, Any]:
    return dict(run.get("cost") or {})


def _inference(run: Mapping[str, Any], size: int) -> float | None:
    batches = _cost_of(run).get("batches", ())
    return next((b["ms_per_sample"] for b in batches if b["batch"] == size), None)


def _training_label(board: Board) -> str:
    """Times of runs that shared a device are no more than upper bounds."""
    cards = [board.first(model).card for model in board.models]
    most = max((card.get("at_a_time") or 1 for card in cards), default=1)
    if most < 2:
        return "training time [s], pretraining included"
    return f"training time [s], {_UPPER_BOUND}: up to {most} runs shared the device"


def _training(run: Mapping[str, Any]) -> float | None:
    stages = (run.get("training") or {}).values()
    return sum(stage["seconds"] for stage in stages) or None
