"""The training engine: one loop for pretraining, fine-tuning and joint training, of any model.

    for every epoch:
        for every step:                      a batch, in pieces of micro_batch samples
            for every piece:  loss, logs = objective(model, piece); gradients add up
            sum over processes, clip, learning rate, optimiser, running mean of the weights
        validate, keep the best weights, write a line of the log, save the state

The loss of a piece is weighted by its share of the samples of the whole batch, so micro-batches and
processes change nothing but rounding. A run that is killed at any moment resumes from its last
state and, on a CPU, ends with bit-identical weights: the order of the samples, their random numbers
(``pibert.sample_rng``), dropout and learning rate are functions of seed and step, and everything
else is in the state (``training/state.py``).

Validation uses one objective for all epochs, that of the last one unless another is given, so that
the values of a curriculum are comparable, and the random numbers of epoch 0, the same every time.
A stage that continues another (``keeps_start``) validates the weights it starts from too, and keeps
them unless an epoch is better.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from pibert.data.dataset import BatchOrder, Samples, make_loader
from pibert.data.resident import ResidentLoader
from pibert.fields import Batch
from pibert.progress import Reporter
from pibert.training.checkpoints import Checkpoints, SaveBest
from pibert.training.cuda_graph import GraphRunner, autocast
from pibert.training.guards import (
    LateCheck,
    StepResult,
    StopSignals,
    Stopwatch,
    compiled,
    memory_advice,
    seed_generators,
)
from pibert.training.journal import Journal, LogSums, means, with_skill
from pibert.training.loggers import Loggers
from pibert.training.objectives import Objective
from pibert.training.optimizers import (
    RunningMean,
    build_optimizers,
    learning_rate,
    set_rate,
    trained_parameters,
)
from pibert.training.processes import Processes, launch
from pibert.training.settings import FitConfig, Fitted, Hardware
from pibert.training.state import FILE, Progress, has_state

__all__ = ["FitConfig", "Fitted", "Hardware", "Reporter", "fit", "launch"]

ONE_DEVICE = Hardware()
SNAPSHOT = "nonfinite.safetensors"
"""The batch whose loss or gradient was not finite."""


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
    settings: Mapping[str, Any] | None = None,
    save_best: SaveBest | None = None,
    best_exists: Callable[[], bool] | None = None,
    calls: Callable[[int], int] = lambda epoch: 1,
    validation: Objective | None = None,
    keeps_start: bool = False,
    reporter: Reporter | None = None,
    fabric: Any = None,
) -> Fitted:
    """Train a model from the start, or resume the run in the same folder.

    Afterwards the model has the weights of the last step; ``save_best`` received the best ones.

    Args:
        model: Trained in place, on the device of the hardware.
        objectives: The objective of every epoch, the first is 0.
        train: Training samples.
        valid: Samples that decide which weights are best, and when to stop.
        config: The schedule.
        folder: The run folder: ``state.safetensors``, ``log.jsonl``, files of the loggers.
        seed: Seed of the order of the samples, their random numbers and dropout.
        hardware: Where to compute.
        identity: A hash of all settings that must be the same when a run is resumed.
        settings: All settings as plain values, for loggers; those of ``config`` if not given.
        save_best: Called in the first process when there are better weights, with the model that
            has them and their metrics; without validation, after every epoch.
        best_exists: Returns whether the result of ``save_best`` still exists, called in the first
            process when a run is resumed. If not, it is written again, provided the state still
            has the weights.
        calls: Calls of the model for a sample in every epoch, for the log.
        validation: The objective of validation; that of the last epoch if not given.
        keeps_start: Whether the weights it starts from are kept unless an epoch is better. A loss
            that is not finite then ends the training with a note.
        reporter: Receives the progress, in the first process.
        fabric: From ``launch``, if the caller has launched the processes.

    Raises:
        KeyboardInterrupt: Asked to stop, by Ctrl-C or SIGTERM; the state is saved.
        FloatingPointError: The loss was not finite.
        MemoryError: Out of memory; the message states what to lower.
        OSError: The state or the best weights could not be written for half an hour.
        ValueError: The folder holds another run, or its state is damaged, or its best model is
            missing; validation lacks the value to monitor; the machine lacks the devices.
    """
    fabric = fabric or launch(hardware)
    device = fabric.device
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        memory_advice(config.micro_batch or config.batch_size, hardware.precision),
        StopSignals() as signals,
        compiled(model.to(device), hardware.compile),
    ):
        run = Run(
            model,
            train,
            valid,
            config,
            folder=folder,
            seed=seed,
            hardware=hardware,
            identity=identity,
            settings=settings,
            reporter=reporter or Reporter(),
            fabric=fabric,
            signals=signals,
            save_best=save_best,
        )
        validation = validation or objectives(config.epochs - 1)
        try:
            resumed_from = run.resume(validation, best_exists, keeps_start=keeps_start)
            while not run.is_finished:
                run.train_epoch(objectives(run.progress.epoch))
                run.close_epoch(validation, calls(run.progress.epoch))
        except FloatingPointError as error:
            if not keeps_start or valid is None:
                raise
            run.stop_with(error)
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
        start_metrics=done.start_metrics,
    )


class Run:
    """A training run: the steps of the loop and their common state."""

    def __init__(
        self,
        model: nn.Module,
        train: Samples,
        valid: Samples | None,
        config: FitConfig,
        *,
        folder: Path,
        seed: int,
        hardware: Hardware,
        identity: str,
        settings: Mapping[str, Any] | None,
        reporter: Reporter,
        fabric: Any,
        signals: StopSignals,
        save_best: SaveBest | None,
    ) -> None:
        self.model, self.config, self.folder, self.seed = model, config, folder, seed
        self.hardware, self.signals = hardware, signals
        self.processes = processes = Processes(fabric)
        self.device = processes.device
        is_first = processes.is_first
        self.reporter = reporter if is_first else Reporter()
        self.journal = Journal(folder, self.reporter.say)
        self.loggers = Loggers(config.logger, folder, settings or vars(config), self.reporter.say)
        self.order, self.batches = self._loader(train, config.batch_size, shuffle=True)
        self.valid, self.validation = valid, None
        if valid is not None:
            share = config.micro_batch or config.batch_size
            self.validation = self._loader(valid, share * processes.count, shuffle=False)
        processes.share_weights(model)
        self.parameters = list(trained_parameters(model).values())
        self.optimizers = build_optimizers(
            model,
            config.optimizer,
            rate=config.learning_rate,
            weight_decay=config.weight_decay,
            betas=config.betas,
        )
        self.mean = RunningMean(model, config.ema) if config.ema is not None else None
        self.checkpoints = Checkpoints(
            folder=folder,
            identity=identity,
            seed=seed,
            minutes=config.checkpoint_minutes,
            model=model,
            optimizers=self.optimizers,
            mean=self.mean,
            processes=processes,
            say=self.reporter.say,
            signals=signals,
            save_best=save_best,
        )
        self.logs = LogSums(self.device)
        name = SNAPSHOT if is_first else SNAPSHOT.replace(".", f"-{processes.rank}.", 1)
        self.check = LateCheck(train, folder / name, processes.gather, self.reporter.step)
        self.clock = Stopwatch(self.device, hardware.profile)
        self.graphs = GraphRunner(
            model,
            lambda: autocast(self.device, hardware.precision),
            self.clock,
            enabled=hardware.cuda_graphs and self.device.type == "cuda",
            say=self.reporter.say,
        )
        self.progress = Progress()
        self.began = time.perf_counter()

    def _loader(
        self, samples: Samples, batch_size: int, *, shuffle: bool
    ) -> tuple[BatchOrder, Any]:
        order = BatchOrder(
            len(samples),
            batch_size,
            seed=self.seed,
            shuffle=shuffle,
            rank=self.processes.rank,
            world_size=self.processes.count,
            micro_batch=self.config.micro_batch,
        )
        if self.hardware.resident:
            return order, ResidentLoader(samples, order, self.device)
        return order, make_loader(
            samples,
            order,
            num_workers=self.hardware.workers,
            pin_memory=self.device.type == "cuda",
        )

    def close(self) -> None:
        """Close the loggers, and end the processes that read samples.

        They end when the last reference to their loader goes. If the garbage collector finds it
        instead, each of them takes five seconds.
        """
        self.loggers.close(finished=self.is_finished)
        self.batches, self.validation = None, None

    # The start

    def resume(
        self,
        validation: Objective,
        best_exists: Callable[[], bool] | None,
        *,
        keeps_start: bool = False,
    ) -> int | None:
        """Restore the state of the folder, if it has one; returns its step."""
        stored = self.checkpoints.load(self.logs)
        self.progress = stored or Progress()
        if stored is None:
            self._check_monitor(validation)
            if keeps_start and self.validation is not None:
                self._keep_start(validation)
        elif best_exists is not None:
            self.checkpoints.restore_best(self.progress, best_exists)
        done = self.progress
        if self.config.warmup_epochs > self.config.epochs and not self.is_finished:
            self.reporter.say(
                f"warmup_epochs = {self.config.warmup_epochs:g} is more than epochs = "
                f"{self.config.epochs}: the learning rate never reaches its peak; set a smaller "
                "warmup_epochs"
            )
        if self.processes.is_first:
            total = self.config.epochs * self.order.steps_per_epoch
            start: dict[str, Any] = {
                "samples_per_epoch": self.order.num_samples,
                "steps_per_epoch": self.order.steps_per_epoch,
                "total_steps": total,
                "monitor": self.config.monitor,
            }
            if done.start_metrics:
                start["valid"] = done.start_metrics
            lines = self.journal.open(start, epochs=done.epoch, step=done.total)
            if not self.is_finished:
                self.loggers.open(done.total, lines)
            self.reporter.start(total, done.total)
            if stored is not None and self.is_finished:
                self.reporter.say(
                    f"{self.folder}: already finished, after epoch {done.epoch}; nothing is trained"
                )
            elif stored is not None:
                self.reporter.say(f"{self.folder}: resumed after step {done.total} of {total}")
        self.began = time.perf_counter()
        return None if stored is None else done.total

    def _keep_start(self, validation: Objective) -> None:
        """Validate the weights before the first epoch, and keep them as the best so far."""
        valid = self._validate(validation)
        self.progress = replace(self.progress, start_metrics=valid)
        kept = self.checkpoints.keep_best(self.progress, valid, 0, self._monitored(valid))
        if kept is None:
            self._interrupt(is_saved=False)
        self.progress = kept

    def stop_with(self, error: FloatingPointError) -> None:
        """End the training; the best weights so far are kept."""
        self.reporter.say(f"the stage ends early, with the best weights so far: {error}")
        if self.processes.is_first:
            self.journal.write({"kind": "stopped", "why": str(error)})

    def _check_monitor(self, objective: Objective) -> None:
        """Check that validation has the value to monitor before hours of training.

        All processes use the same samples, as many as in a piece, so that a compiled model sees no
        other shape.
        """
        if self.valid is None or self.config.monitor == "loss":  # every objective has a loss
            return
        count = min(self.config.micro_batch or self.config.batch_size, len(self.valid))
        batch = self.valid.batch(range(count)).to(self.device).reseeded(self.seed, 0, 0)
        self.model.eval()
        with torch.no_grad(), autocast(self.device, self.hardware.precision):
            loss, logs = objective(self.model, batch)
        values = LogSums(self.device)
        values.add(loss, logs, count)
        self._monitored(means([values.to_plain()]))

    @property
    def is_finished(self) -> bool:
        """Whether all epochs are done, or none of the last validations was an improvement."""
        done, config = self.progress, self.config
        if done.epoch >= config.epochs:
            return True
        if config.patience is None or self.validation is None:
            return False
        validated = done.epoch - done.epoch % config.validate_every
        return validated - done.best_epoch >= config.patience

    # An epoch

    def train_epoch(self, objective: Objective) -> None:
        """Do the remaining steps of an epoch."""
        done = self.progress
        self.model.train()
        self.order.go_to(done.epoch, done.step)
        with self.clock("data"):
            batches = iter(self.batches)
        for step in range(done.step, self.order.steps_per_epoch):
            pieces, share = self._accumulate(objective, batches, step)
            with self.clock("optimizer"):
                values, stop, save = self._update(share)
            done = self.progress = replace(done, step=step + 1, total=done.total + 1)
            self.check.watch(
                StepResult(done.total, done.epoch + 1, step + 1, pieces, share, values)
            )
            if stop:
                self._interrupt(is_saved=not self._save())
            if save:
                self._save_patiently()

    def _accumulate(
        self, objective: Objective, batches: Iterator[Batch], step: int
    ) -> tuple[list[Batch], Tensor]:
        """Add up the gradients of this process; returns its pieces and their share of the loss."""
        epoch, whole = self.progress.epoch, self.order.size(step)
        total = torch.zeros((), device=self.device)
        pieces: list[Batch] = []
        for number, (start, stop) in enumerate(self.order.ranges(step)):
            with self.clock("data"):
                batch = next(batches).to(self.device).reseeded(self.seed, epoch, start)
            seed_generators(self.device, self.seed, epoch, step, number, self.processes.rank)
            share = (stop - start) / whole
            loss, logs = self.graphs.train(objective, batch, share)
            self.logs.add(loss, logs, stop - start)
            total.add_(loss, alpha=share)
            pieces.append(batch)
        return pieces, total

    def _update(self, share: Tensor) -> tuple[Tensor, bool, bool]:
        """One step of the optimisers; returns (loss, norm of the gradient), stop and save."""
        processes, config = self.processes, self.config
        present = [p.grad is not None for p in self.parameters] if processes.count > 1 else []
        stop, save, *has_gradient = processes.agree(
            [self.signals.asked, self.checkpoints.is_due(), *present]
        )
        loss = processes.sum_gradients(self.parameters, has_gradient, share)
        # Computed without a limit too: a finite loss may have a gradient that is not.
        limit = math.inf if config.clip is None else config.clip
        norm = nn.utils.clip_grad_norm_(self.parameters, limit)
        set_rate(self.optimizers, self._rate_at(self.progress.total))
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=not self.graphs.keeps_gradients)
        if self.mean is not None:
            self.mean.update(self.progress.total + 1)
        return torch.stack((loss, norm)), stop, save

    def _rate_at(self, step: int) -> float:
        per_epoch = self.order.steps_per_epoch
        return learning_rate(
            step,
            total=self.config.epochs * per_epoch,
            warmup=round(self.config.warmup_epochs * per_epoch),
            peak=self.config.learning_rate,
            minimum=self.config.min_learning_rate,
        )

    def close_epoch(self, objective: Objective, calls: int) -> None:
        """Validate, keep the best weights, write the log, save the state."""
        self.check.finish()
        train_seconds = self._elapsed()
        train = means(self.processes.gather(self.logs.to_plain()))
        epoch = self.progress.epoch + 1
        valid: dict[str, float] | None = None
        kept, value, best = None, None, self.progress.best_value
        is_last = epoch == self.config.epochs
        with self.checkpoints.best_applied():
            is_better = self.validation is None
            if not is_better and (epoch % self.config.validate_every == 0 or is_last):
                with self.clock("validation"):
                    valid = self._validate(objective)
                value = self._monitored(valid)
                is_better = math.isfinite(value) and (best is None or value < best)
            if is_better:
                kept = self.checkpoints.keep_best(self.progress, valid or train, epoch, value)
                if kept is None:  # the resumed run reaches these weights again
                    self._interrupt(is_saved=False)
        done = kept or self.progress
        record = {
            "kind": "epoch",
            "epoch": epoch,
            "step": done.total,
            "calls": calls,
            "learning_rate": self._rate_at(done.total - 1),
            "train": train,
            "valid": valid,
            "best": kept is not None,
            "best_epoch": done.best_epoch,
            "seconds": self._elapsed(),
            "samples_per_second": self.order.num_samples / max(train_seconds, 1e-9),
            **self._timing(),
        }
        if self.processes.is_first:
            self.journal.write(record)
            self.loggers.write(record)
        self.reporter.epoch(record)
        self.logs = LogSums(self.device)
        self.progress = replace(done, epoch=epoch, step=0, seconds=0.0)
        self.began = time.perf_counter()
        stop, save = self.processes.agree(
            [self.signals.asked, self.checkpoints.is_due(after_epoch=True)]
        )
        if stop and not self.is_finished:
            self._interrupt(is_saved=not self._save())
        if save or self.is_finished:
            self._save_patiently()

    # Validation

    def _validate(self, objective: Objective) -> dict[str, float]:
        """Means over the validation samples."""
        assert self.validation is not None
        order, batches = self.validation
        self.model.eval()
        logs = LogSums(self.device)
        spans = (span for step in range(order.steps_per_epoch) for span in order.ranges(step))
        for batch, (start, stop) in zip(batches, spans, strict=True):
            batch = batch.to(self.device).reseeded(self.seed, 0, start)
            loss, values = self.graphs.evaluate(objective, batch)
            logs.add(loss, values, stop - start)
        return with_skill(means(self.processes.gather(logs.to_plain())))

    def _monitored(self, valid: Mapping[str, float]) -> float:
        if self.config.monitor not in valid:
            raise ValueError(
                f"monitor {self.config.monitor!r} is not among the validation values; "
                f"choose from: {', '.join(valid)}"
            )
        return valid[self.config.monitor]

    # The state

    def _save(self) -> str:
        """Save the state; returns the error if that failed, or nothing."""
        # Weights are saved only once the loss of their last step is known to be finite.
        self.check.finish()
        progress = replace(self.progress, seconds=self._elapsed())
        with self.clock("checkpoint"):
            return self.checkpoints.save(progress, self.logs)

    def _save_patiently(self) -> None:
        if not self.checkpoints.until_written(f"the state in {self.folder / FILE}", self._save):
            self._interrupt(is_saved=False)

    def _interrupt(self, *, is_saved: bool) -> NoReturn:
        done, path = self.progress, self.folder / FILE
        how = f"the state is in {path}: run the same command again to resume"
        if not is_saved and has_state(self.folder):
            how = f"{path} is as it was before: run the same command again to resume from there"
        elif not is_saved:
            how = "there is no state: the same command starts from the beginning"
        raise KeyboardInterrupt(
            f"stopped after step {done.total} (epoch {done.epoch + 1}, step {done.step} of "
            f"{self.order.steps_per_epoch}); {how}"
        )

    def _elapsed(self) -> float:
        return self.progress.seconds + time.perf_counter() - self.began

    def _timing(self) -> dict[str, Any]:
        """Shares of the epoch's time, with the checkpoint of the epoch before."""
        if not self.hardware.profile:
            return {}
        total = max(self._elapsed(), 1e-9)
        shares = {section: seconds / total for section, seconds in self.clock.take().items()}
        return {"timing": {**shares, "other": max(0.0, 1.0 - sum(shares.values()))}}
