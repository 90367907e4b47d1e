"""What the models cost: size, time, memory; budgets of training and trials of tuning."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pibert.report.comparison.results import DatasetResults, mean_of
from pibert.report.comparison.table import (
    UNKNOWN,
    Cell,
    Format,
    Numbers,
    Table,
    digits,
    duration,
    integer,
    scaled,
    size,
    slug,
    table_of,
)
from pibert.report.comparison.text import (
    monitored,
    shared_device_text,
    tuned_models,
)

Run = Mapping[str, Any]
BATCH = 128
"""Batch size whose inference time is in the ranked summary."""


def cost(data: DatasetResults) -> Table | None:
    """Size, time and memory of each model."""
    columns = [
        parameters(data),
        cost_column(data, "weights", lambda run: run["cost"]["checkpoint_bytes"], size),
        cost_column(data, "checkpoint", lambda run: run.get("state_bytes"), size),
        training_time(data),
        cost_column(data, "last epoch", last_epoch, duration),
        cost_column(data, "ms at batch 1", lambda run: batch_cost(run, 1)),
        cost_column(data, f"ms at batch {BATCH}", lambda run: batch_cost(run, BATCH)),
        cost_column(data, "peak memory", lambda run: batch_cost(run, BATCH, "peak_bytes"), size),
        cost_column(data, "FLOPs", lambda run: run["cost"]["flops"], scaled),
        cost_column(data, "sampler steps", lambda run: run["cost"].get("sampler_steps"), integer),
    ]
    devices = dict.fromkeys(run["cost"]["device"] for run in data.runs if "cost" in run)
    caption = (
        "Milliseconds per sample: median of synchronised calls after warm-up, on "
        f"{'; '.join(devices) or 'an unknown device'}. Peak memory at batch {BATCH}, GPU only. "
        "FLOPs of one sample count matrix products and convolutions, not Fourier transforms. "
        "Checkpoint: weights and optimiser, from which training resumes. Training time includes "
        f"pretraining; the last epoch is one of training.{shared_device_text(data)}"
    )
    return table_of(data, "cost", "Cost", caption, columns)


def cost_column(
    data: DatasetResults,
    label: str,
    read: Callable[[Run], int | float | None],
    form: Format = digits,
) -> Numbers:
    """The mean over the runs of each model."""
    values = {
        model: mean_of([read(r) for r in data.runs if r["model"] == model and "cost" in r])
        for model in data.models
    }
    return Numbers(label=label, values=values, form=form)


def parameters(data: DatasetResults) -> Numbers:
    return cost_column(data, "parameters", lambda run: run["cost"]["parameters"], integer)


def batch_cost(run: Run, count: int, what: str = "ms_per_sample") -> int | float | None:
    """The cost of a batch of this size; None where it was not measured."""
    batches = (run.get("cost") or {}).get("batches", ())
    return next((b[what] for b in batches if b["batch"] == count), None)


def training_seconds(run: Run) -> float | None:
    """Training time of a run, pretraining included; None without training."""
    stages = (run.get("training") or {}).values()
    return sum(stage["seconds"] for stage in stages) if stages else None


def last_epoch(run: Run) -> float | None:
    """Seconds of the last epoch of training; None where they are not recorded."""
    return (run.get("training") or {}).get("training", {}).get("last_epoch_seconds")


def training_time(data: DatasetResults) -> Numbers:
    """Training time, with a note where other runs used the device, or where that is unknown."""
    column = cost_column(data, "training", training_seconds, duration)
    notes = {}
    for run in data.runs:
        shared = run.get("shared_device", (run.get("at_a_time") or 1) > 1)
        if shared is not False and column.values.get(run["model"]) is not None:
            notes[run["model"]] = "shared device" if shared else "trained elsewhere"
    return replace(column, notes=notes)


def training(data: DatasetResults) -> Table | None:
    """Budget and chosen epoch of each model."""

    def stage(run: Run, name: str = "training") -> Run:
        return run.get("training", {}).get(name, {})

    def reached(run: Run) -> int | float | None:
        monitor = data.results["comparison"]["training"]["monitor"]
        losses = {epoch: values.get(monitor) for epoch, values in stage(run).get("curve", [])}
        return losses.get(stage(run).get("best_epoch"))

    def pretrained(run: Run) -> int | float | None:
        return stage(run, "pretraining").get("epochs")

    def samples(run: Run) -> int | float | None:
        seen = [stage.get("samples") for stage in run.get("training", {}).values()]
        return sum(seen) if seen and None not in seen else None

    columns = [
        cost_column(data, "samples seen", samples, integer),
        cost_column(data, "pretraining epochs", pretrained, integer),
        cost_column(data, "epochs", lambda run: stage(run).get("epochs"), integer),
        cost_column(data, "best epoch", lambda run: stage(run).get("best_epoch"), integer),
        cost_column(data, "validation loss there", reached),
        training_time(data),
    ]
    caption = (
        "Models trained here see the same number of samples to within half an epoch, repetitions "
        "and pretraining included; a rollout counts as often as it calls the model. The epoch is "
        "chosen on the validation split; if the best epoch is the last one, more training might "
        f"help.{shared_device_text(data)}"
    )
    return table_of(data, "training", "Training", caption, columns)


def tuning(data: DatasetResults) -> Table | None:
    """Validation error of each tuning trial, the chosen one in bold."""
    records = tuned_models(data.results, data.name)
    if not records:
        return None
    settings = tuned_settings(records)
    rows = [_tuned_row(data, model, records.get(model), settings) for model in data.models]
    on = ", ".join(dict.fromkeys(record["tuned_on"] for record in records.values()))
    caption = (
        f"Columns of an optimiser and a rate: {monitored(data.results)} on the validation split, "
        f"best epoch of the trial, on {on}. Bold: chosen for training. Training times exclude the "
        "trials."
    )
    return Table(
        name=slug(f"{data.name}-tuning"),
        title="Tuning",
        caption=caption,
        head=("model", "optimiser", "learning rate", *(f"{o} {r:g}" for o, r in settings)),
        rows=tuple(rows),
    )


def tuned_settings(records: Mapping[str, Run]) -> list[tuple[str, float]]:
    """Optimiser and learning rate of all trials, by optimiser and rising rate."""
    trials = [trial for record in records.values() for trial in record["trials"]]
    order = list(dict.fromkeys(trial["optimizer"] for trial in trials))
    found = {(trial["optimizer"], trial["learning_rate"]) for trial in trials}
    return sorted(found, key=lambda setting: (order.index(setting[0]), setting[1]))


def _tuned_row(
    data: DatasetResults, model: str, record: Run | None, settings: Sequence[tuple[str, float]]
) -> tuple[Cell, ...]:
    if record is None:
        run = next(run for run in data.runs if run["model"] == model)
        name, rate = run.get("optimizer"), run.get("learning_rate")
        first = Cell(text=name or "not tuned", note="not tuned" if name else "")
        known = Cell(text=UNKNOWN if rate is None else f"{rate:g}", number=rate)
        return (Cell(text=model), first, known, *[Cell(text=UNKNOWN)] * len(settings))
    chosen = (record["chosen"]["optimizer"], record["chosen"]["learning_rate"])
    tried = {(trial["optimizer"], trial["learning_rate"]): trial for trial in record["trials"]}

    def error(setting: tuple[str, float]) -> Cell:
        if setting not in tried:
            return Cell(text=UNKNOWN)
        value = tried[setting].get("valid_error")
        if value is None:
            return Cell(text="diverged")
        return Cell(text=digits(value), number=value, best=setting == chosen)

    note = f"{record['edge']} tried" if record["edge"] else ""
    rate = Cell(text=f"{chosen[1]:g}", number=chosen[1], note=note)
    return (Cell(text=model), Cell(text=chosen[0]), rate, *map(error, settings))
