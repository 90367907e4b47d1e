"""Scores of predicted frames where the true frames are known: NMSE, skill, interval coverage."""

import torch
from torch import Tensor

from pibert.data.writers.frames import Block
from pibert.evaluation.measure import Frames
from pibert.evaluation.pointwise import Pointwise
from pibert.fields import FieldSpec, Normalizer

METRICS = ("nmse", "skill")
COVERAGE = "coverage"
"""Share of the true values inside their prediction intervals."""


class ForecastScores:
    """Collects sums of every frame with a true one; a few dozen numbers each."""

    def __init__(self, spec: FieldSpec, normalizer: Normalizer) -> None:
        self.measure = Pointwise(spec=spec, normalizer=normalizer)
        self.numbers: list[int] = []
        self.times: list[float] = []
        self.unseen = 0
        """Measured points that the input lacks: nothing is predicted there, and nothing scored."""
        self._rows: list[Tensor] = []
        self._inside: list[Tensor] = []
        """Per frame with intervals: values inside them, and all values, (t, 2, channel)."""

    def add(self, block: Block, last: Tensor) -> None:
        """Score frames; ``last`` is what persistence predicts for each, finite."""
        if block.truth is None:
            return
        measured = block.truth.isfinite().all(1)
        known = measured & block.known
        self.unseen += int((measured & ~block.known).sum())
        scored = known.flatten(1).any(1)
        if not bool(scored.any()):
            return
        frames = Frames(
            prediction=block.fields[scored],
            truth=torch.where(known[:, None], block.truth, 0.0)[scored],
            last=last[scored],
            known=known[scored],
            body=None,
            spec=self.measure.spec,
        )
        self._rows.append(self.measure.terms(frames))
        if block.low is not None and block.high is not None:
            counted = known[:, None] & block.low.isfinite()
            inside = counted & (block.low <= block.truth) & (block.truth <= block.high)
            counts = [mask[scored].flatten(2).sum(2) for mask in (inside, counted)]
            self._inside.append(torch.stack(counts, dim=1).double())
        self.numbers += block.number[scored].tolist()
        self.times += block.time[scored].tolist()

    @property
    def components(self) -> list[str]:
        return [entry.component for entry in self.measure.entries if entry.metric == METRICS[0]]

    def overall(self) -> dict[str, dict[str, float]]:
        """By metric and component, over all frames; empty without a true frame."""
        if not self._rows:
            return {}
        inside = torch.cat(self._inside).sum(0) if self._inside else None
        return self._named(torch.cat(self._rows).sum(0), inside)

    def by_number(self) -> dict[int, dict[str, dict[str, float]]]:
        """The same frame by frame."""
        if not self._rows:
            return {}
        rows = torch.cat(self._rows)
        inside = torch.cat(self._inside) if self._inside else [None] * len(rows)
        return {n: self._named(*row) for n, *row in zip(self.numbers, rows, inside, strict=True)}

    def _named(self, sums: Tensor, inside: Tensor | None) -> dict[str, dict[str, float]]:
        values = self.measure.values(sums).tolist()
        found: dict[str, dict[str, float]] = {metric: {} for metric in METRICS}
        for entry, value in zip(self.measure.entries, values, strict=True):
            if entry.metric in found:
                found[entry.metric][entry.component] = value
        if inside is not None:
            shares = (inside[0] / inside[1]).tolist()
            found[COVERAGE] = dict(zip(self.measure.spec.channels, shares, strict=True))
        return found
