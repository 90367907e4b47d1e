"""The best weights of a run: handed out when there are better ones, and missed when they are gone.

Best is what is on the disk: a run waits until better weights are written. Where those of a run that
goes on are gone, they are written again if its state still has them. With a running mean of the
weights, that is what is kept.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from pibert.training.guards import StopSignals
from pibert.training.optimizers import RunningMean
from pibert.training.patience import until_written
from pibert.training.processes import Processes
from pibert.training.state import Progress

SaveBest = Callable[[nn.Module, Mapping[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class BestWeights:
    """Who gets the best weights of a run."""

    model: nn.Module
    mean: RunningMean | None
    save: SaveBest | None
    """Called in the first process, with the model that has them and their metrics."""
    folder: Path
    processes: Processes
    signals: StopSignals
    say: Callable[[str], None]
    """Told if they could not be written."""

    def applied(self) -> AbstractContextManager[None]:
        """The model has the weights that are validated and kept."""
        return nullcontext() if self.mean is None else self.mean.applied()

    def keep(
        self, progress: Progress, metrics: dict[str, float], epoch: int, value: float | None
    ) -> Progress | None:
        """Hand out the weights that the model has now; gives progress with them.

        None where the run was asked to stop before they could be written.
        """
        is_written = until_written(
            f"the best weights in {self.folder}",
            lambda: self._write(metrics),
            processes=self.processes,
            signals=self.signals,
            say=self.say,
        )
        if not is_written:
            return None
        return replace(progress, best_epoch=epoch, best_value=value, best_metrics=metrics)

    def look_for(
        self, progress: Progress, is_there: Callable[[], bool], *, has_validation: bool
    ) -> None:
        """Where the best weights of a resumed run are gone, write them again or refuse.

        Without validation every epoch is kept, so that in the middle of one nothing is amiss.

        Raises:
            ValueError: They are gone, and the state has others.
            OSError: They could not be written again.
        """
        is_gone = progress.best_epoch > 0 and self.processes.is_first and not is_there()
        if not self.processes.agree([is_gone])[0]:
            return
        if progress.best_epoch == progress.epoch and progress.step == 0:
            with self.applied():
                trouble = self._write(progress.best_metrics)
            if trouble:
                raise OSError(
                    f"the best model in {self.folder} is gone and could not be written again: "
                    f"{trouble}"
                )
        elif has_validation:
            raise ValueError(
                f"the best model of the run in {self.folder}, of epoch {progress.best_epoch}, is "
                f"gone, and the state is that after step {progress.total}; put its files back, or "
                "start the run anew in another folder"
            )

    def _write(self, metrics: Mapping[str, float]) -> str:
        """Why the weights that the model has now could not be handed out, or nothing."""
        self.model.eval()
        trouble = ""
        if self.save is not None and self.processes.is_first:
            try:
                self.save(self.model, metrics)
            except OSError as error:
                trouble = error.strerror or str(error) or type(error).__name__
        return str(self.processes.gather(trouble)[0])
