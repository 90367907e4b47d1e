"""Tables of what runs cost, where their training ended, and how their rollouts go.

They come from the runs themselves, not from records, so they have neither intervals nor marks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pibert.evaluation.scores import Scores
from pibert.report.comparison.board import Board
from pibert.report.comparison.columns import Numbers, table_of
from pibert.report.comparison.markup import Table
from pibert.report.comparison.numbers import digits, duration, integer, percent, scaled, size
from pibert.report.comparison.wording import taken_runs

BATCH = 128
"""Size of the batches that the summary tells the time of."""
_SHARED, _ELSEWHERE = "shared device", "trained elsewhere"
"""Beside times of training that are upper bounds, or of unknown circumstances."""


def summary_costs(board: Board) -> list[Numbers]:
    """What stands in the ranked summary."""
    return [
        _cost(board, "parameters", lambda run: run["cost"]["parameters"], integer),
        _cost(board, f"ms at batch {BATCH}", lambda run: _batch(run, BATCH, "ms_per_sample")),
        _training_time(board),
    ]


def cost(board: Board) -> Table | None:
    """What each model takes."""
    columns = [
        _cost(board, "parameters", lambda run: run["cost"]["parameters"], integer),
        _cost(board, "checkpoint", lambda run: run["cost"]["checkpoint_bytes"], size),
        _training_time(board),
        _cost(board, "ms at batch 1", lambda run: _batch(run, 1, "ms_per_sample")),
        _cost(board, f"ms at batch {BATCH}", lambda run: _batch(run, BATCH, "ms_per_sample")),
        _cost(board, "peak memory", lambda run: _batch(run, BATCH, "peak_bytes"), size),
        _cost(board, "FLOPs", lambda run: run["cost"]["flops"], scaled),
        _cost(board, "sampler steps", lambda run: run["cost"].get("sampler_steps"), integer),
    ]
    devices = dict.fromkeys(run["cost"]["device"] for run in _runs(board) if "cost" in run)
    caption = (
        "Milliseconds of a sample: median of single calls after warm-up, the device waited for, on "
        f"{'; '.join(devices) or 'an unknown device'}. Peak memory at batch {BATCH}, on a GPU "
        "only. FLOPs of one sample count products and convolutions, no Fourier transforms. "
        f"Training includes pretraining.{sharing_text(board)}"
    )
    return table_of("cost", "Cost", caption, board, columns)


def sharing_text(board: Board) -> str:
    """What times of training are worth that were measured beside other runs; empty: all alone."""
    most = max((run.get("at_a_time") or 1 for run in _runs(board)), default=1)
    if most < 2:
        return ""
    return (
        f" Up to {most} runs at a time shared a device (marked {_SHARED}): their times of training "
        "are upper bounds, and cannot be compared."
    )


def _training_time(board: Board) -> Numbers:
    """With a mark where other runs used the device, or nobody knows."""
    column = _cost(board, "training", _seconds, duration)
    notes = {}
    for run in _runs(board):
        shared = run.get("shared_device", (run.get("at_a_time") or 1) > 1)
        if shared is not False and column.values.get(run["model"]) is not None:
            notes[run["model"]] = _SHARED if shared else _ELSEWHERE
    return replace(column, notes=notes)


def training(board: Board) -> Table | None:
    """Where the training of each model ended."""

    def stage(run: Mapping[str, Any]) -> Mapping[str, Any]:
        return run.get("training", {}).get("training", {})

    def reached(run: Mapping[str, Any]) -> int | float | None:
        monitor = board.results["comparison"]["training"]["monitor"]
        own = {epoch: values.get(monitor) for epoch, values in stage(run).get("curve", [])}
        return own.get(stage(run).get("best_epoch"))

    def pretrained(run: Mapping[str, Any]) -> int | float | None:
        return run.get("training", {}).get("pretraining", {}).get("epochs")

    columns = [
        _cost(board, "samples seen", _samples_seen, integer),
        _cost(board, "pretraining epochs", pretrained, integer),
        _cost(board, "epochs", lambda run: stage(run).get("epochs"), integer),
        _cost(board, "best epoch", lambda run: stage(run).get("best_epoch"), integer),
        _cost(board, "validation loss there", reached),
        _training_time(board),
    ]
    taken = [name for name in taken_runs(board.results) if name in board.models]
    exempt = f" but for {', '.join(taken)}, trained elsewhere" if taken else ""
    caption = (
        f"All models{exempt} see the same number of samples to within half an epoch, counted with "
        "repetition, pretraining included. The epoch is chosen on "
        "the validation part; a best epoch that is the last one says that more training might help."
        f"{sharing_text(board)}"
    )
    return table_of("training", "Training", caption, board, columns)


def rollout(board: Board) -> Table | None:
    """Errors at some lead times, and how long rollouts are of use."""
    steps = min((_steps(own) for own in board.scores.values()), default=0)
    if not steps:
        return None
    leads = sorted({1, max(1, round(steps / 4)), max(1, round(steps / 2)), steps})
    last = f"at {steps}"
    columns = [
        *(_rolled(board, f"NMSE at {lead} ↓", lead, "nmse", "lower") for lead in leads),
        _rolled(board, f"correlation {last} ↑", steps, "correlation", "higher"),
        _rolled(board, f"spectral drift {last} ↓", steps, "spectral_drift", "lower"),
        _rolled(board, f"diverged {last} ↓", steps, "diverged", "lower", percent),
        _rolled(board, "stable horizon [frames] ↑", None, "stable_horizon", "higher"),
        _rolled(board, "stable to the end ↑", None, "stable_to_end", "higher", percent),
    ]
    dt = board.spec.dt
    time = "" if dt is None else f", {dt:g} apart"
    starts = next((run["rollout"]["starts"] for run in _runs(board) if "rollout" in run), 0)
    caption = (
        f"Each model continues from true frames with its own predictions: {starts} starts spread "
        "over the test part, "
        f"lead times in frames{time}. Stable: until the error exceeds half the variance of the "
        "flow in time; a rollout stable to the end counts with all its frames, so the horizon is a "
        "lower bound there. Bold: best of the column."
    )
    return table_of("rollout", "Rollout", caption, board, columns)


def _steps(scores: Scores) -> int:
    curves = scores.arrays.get("rollout/curves")
    return 0 if curves is None else len(curves)


def _rolled(
    board: Board,
    label: str,
    lead: int | None,
    metric: str,
    better: str,
    form: Callable[[int | float], str] = digits,
) -> Numbers:
    """At a lead time, or of the summary; the mean over seeds."""
    found: dict[str, list[float]] = {model: [] for model in board.models}
    for (model, _), scores in board.scores.items():
        entries = scores.card.get("rollout", {}).get("entries" if lead else "summary", [])
        names = [(entry["metric"], entry["component"]) for entry in entries]
        if model in found and (metric, "all") in names:
            values = scores.arrays["rollout/curves"][lead - 1] if lead else None
            values = scores.arrays["rollout/summary"] if values is None else values
            found[model].append(float(values[names.index((metric, "all"))]))
    means = {m: sum(own) / len(own) if own else None for m, own in found.items()}
    return Numbers(label=label, values=means, better=better, form=form)


def _runs(board: Board) -> list[Mapping[str, Any]]:
    runs = board.results["runs"]
    return [run for run in runs if run["data"] == board.name and "failed" not in run]


def _cost(
    board: Board,
    label: str,
    read: Callable[[Mapping[str, Any]], int | float | None],
    form: Callable[[int | float], str] = digits,
) -> Numbers:
    """The mean over the runs of each model."""
    values: dict[str, float | None] = {}
    for model in board.models:
        found = [read(run) for run in _runs(board) if run["model"] == model and "cost" in run]
        known = [float(value) for value in found if value is not None]
        values[model] = sum(known) / len(known) if known else None
    return Numbers(label=label, values=values, form=form)


def _batch(run: Mapping[str, Any], count: int, what: str) -> int | float | None:
    sizes = {batch["batch"]: batch[what] for batch in run["cost"]["batches"]}
    return sizes.get(count)


def _samples_seen(run: Mapping[str, Any]) -> int | float | None:
    found = [stage.get("samples") for stage in run.get("training", {}).values()]
    return sum(found) if found and None not in found else None


def _seconds(run: Mapping[str, Any]) -> int | float | None:
    stages: Sequence[Mapping[str, Any]] = list(run.get("training", {}).values())
    return sum(stage["seconds"] for stage in stages) if stages else None
