"""The training engine: one loop for pretraining, fine-tuning and joint training, of any model.

    for every epoch:
        for every step:                      a batch, in pieces of micro_batch samples
            for every piece:  loss, logs = objective(model, piece); gradients add up
            sum over processes, clip, learning rate, optimiser, running mean of the weights
        validate, keep the best weights, write a line of the log, save the state

A piece's loss is weighted by its share of the samples of the whole batch, so micro-batches and
processes change nothing but rounding. A run that is killed at any moment goes on from its last
state and ends with the weights of a run that was never stopped, to the bit on a CPU: the order of
the samples, their chances (``pibert.draws``), dropout and learning rate are functions of seed and
step, and all else is in the state (``training/state.py``).

Validation is by the objective of the last epoch, so that the values of a curriculum compare, and
with the chances of epoch 0, the same every time.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from pibert.data.dataset import Samples
from pibert.training.best import SaveBest
from pibert.training.guards import StopSignals, compiled, memory_advice, own_generators
from pibert.training.journal import Reporter, Silent
from pibert.training.loop import Run
from pibert.training.objectives import Objective
from pibert.training.processes import launch
from pibert.training.settings import FitConfig, Fitted, Hardware

__all__ = ["FitConfig", "Fitted", "Hardware", "Reporter", "Silent", "fit", "launch"]

ONE_DEVICE = Hardware()


def fit(
    model: nn.Module,
    objectives: Callable[[int], Objective],
    train: Samples,
    valid: Samples | None,
    config: FitConfig,
    *,
    folder: Path,
    seed: int,
    hardware: Hardware = ONE_DEVICE,
    identity: str = "",
    save_best: SaveBest | None = None,
    best_is_there: Callable[[], bool] | None = None,
    reporter: Reporter | None = None,
    fabric: Any = None,
) -> Fitted:
    """Train a model, from the start or from where a run in the same folder stopped.

    Afterwards the model has the weights of the last step; the best ones went to ``save_best``.

    Args:
        model: Trained in place, on the device of the hardware.
        objectives: The objective of every epoch, the first is 0.
        train: What to learn from.
        valid: What decides which weights are best, and when to stop.
        config: The schedule.
        folder: Of the run: ``state.safetensors``, ``log.jsonl``, ``tensorboard/``.
        seed: Of the order of the samples, their chances and dropout.
        hardware: Where to compute.
        identity: A hash of all that must be the same when a run is resumed.
        save_best: Called in the first process when there are better weights, with the model that
            has them and their metrics; without validation, after every epoch.
        best_is_there: Whether what ``save_best`` wrote is still there, asked in the first process
            when a run is resumed. Where it is gone it is written again, if the state still has it.
        reporter: Told of the progress, in the first process.
        fabric: From ``launch``, where the caller has launched the processes.

    Raises:
        KeyboardInterrupt: Asked to stop, by Ctrl-C or SIGTERM; the state is saved.
        FloatingPointError: The loss was not finite.
        MemoryError: Out of memory; says what to lower.
        OSError: The state or the best weights could not be written for half an hour.
        ValueError: The folder holds another run, or its state is damaged, or its best model is
            gone; validation does not give the value to monitor; the machine lacks the devices.
    """
    fabric = fabric or launch(hardware)
    device = fabric.device
    with (
        own_generators(device),
        memory_advice(config.micro_batch or config.batch_size, hardware.precision),
        StopSignals() as signals,
        compiled(model.to(device), hardware.compile),
    ):
        run = Run(
            model,
            train,
            valid,
            config,
            folder,
            seed,
            hardware,
            identity,
            reporter,
            fabric,
            signals,
            save_best,
        )
        judge = objectives(config.epochs - 1)
        try:
            resumed_from = run.resume(judge, best_is_there)
            while not run.is_finished:
                run.train_epoch(objectives(run.progress.epoch))
                run.close_epoch(judge)
        finally:
            run.close()
    done = run.progress
    return Fitted(
        metrics=done.best_metrics,
        best_epoch=done.best_epoch,
        epochs=done.epoch,
        steps=done.total,
        stopped_early=done.epoch < config.epochs,
        resumed_from=resumed_from,
    )
