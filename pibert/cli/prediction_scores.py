"""How good predicted frames are where the truth is known, for tables and JSON."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from pibert.cli.terminal import say

if TYPE_CHECKING:
    from torch import Tensor

    from pibert.data.writers import Block
    from pibert.fields import FieldSpec, Normalizer

METRICS = ("nmse", "skill")
COVERAGE = "coverage"
"""Share of the true values inside their error bars, where there are bars."""
_LEADS = (1, 2, 5)


class Scoring:
    """Collects sums of every frame with a truth; a few dozen numbers each."""

    def __init__(self, spec: "FieldSpec", normalizer: "Normalizer") -> None:
        from pibert.evaluation.pointwise import Pointwise

        self.measure = Pointwise(spec=spec, normalizer=normalizer)
        self.numbers: list[int] = []
        self.times: list[float] = []
        self.unseen = 0
        """Measured points that the input lacks: nothing is predicted there, and nothing scored."""
        self._rows: list[Tensor] = []
        self._inside: list[Tensor] = []
        """Of every frame with error bars: values inside them, and values, (t, 2, channel)."""

    def add(self, block: "Block", last: "Tensor") -> None:
        """Frames, and what persistence predicts for each, finite."""
        import torch

        from pibert.evaluation.measure import Frames

        if block.truth is None:
            return
        measured = block.truth.isfinite().all(1)
        known = measured & block.known
        self.unseen += int((measured & ~block.known).sum())
        there = known.flatten(1).any(1)
        if not bool(there.any()):
            return
        frames = Frames(
            prediction=block.fields[there],
            truth=torch.where(known[:, None], block.truth, 0.0)[there],
            last=last[there],
            known=known[there],
            body=None,
            spec=self.measure.spec,
        )
        self._rows.append(self.measure.terms(frames))
        if block.low is not None and block.high is not None:
            told = known[:, None] & block.low.isfinite()
            inside = told & (block.low <= block.truth) & (block.truth <= block.high)
            counts = [mask[there].flatten(2).sum(2) for mask in (inside, told)]
            self._inside.append(torch.stack(counts, dim=1).double())
        self.numbers += block.number[there].tolist()
        self.times += block.time[there].tolist()

    @property
    def components(self) -> list[str]:
        return [entry.component for entry in self.measure.entries if entry.metric == METRICS[0]]

    def overall(self) -> dict[str, dict[str, float]]:
        """By metric and component, over all frames; empty if there was no truth."""
        import torch

        if not self._rows:
            return {}
        inside = torch.cat(self._inside).sum(0) if self._inside else None
        return self._named(torch.cat(self._rows).sum(0), inside)

    def by_number(self) -> dict[int, dict[str, dict[str, float]]]:
        """The same frame by frame."""
        import torch

        if not self._rows:
            return {}
        rows = torch.cat(self._rows)
        inside = torch.cat(self._inside) if self._inside else [None] * len(rows)
        return {n: self._named(*row) for n, *row in zip(self.numbers, rows, inside, strict=True)}

    def _named(self, sums: "Tensor", inside: "Tensor | None") -> dict[str, dict[str, float]]:
        values = self.measure.values(sums).tolist()
        found: dict[str, dict[str, float]] = {metric: {} for metric in METRICS}
        for entry, value in zip(self.measure.entries, values, strict=True):
            if entry.metric in found:
                found[entry.metric][entry.component] = value
        if inside is not None:
            shares = (inside[0] / inside[1]).tolist()
            found[COVERAGE] = dict(zip(self.measure.spec.channels, shares, strict=True))
        return found


def show_overall(console: Console, scoring: Scoring) -> None:
    found = scoring.overall()
    table = Table("component", "NMSE", "skill against persistence")
    errors, skills = (found[metric] for metric in METRICS)
    for component in scoring.components:
        table.add_row(component, f"{errors[component]:.3g}", f"{skills[component]:.3f}")
    console.print(table)
    show_unseen(console, scoring)


def show_unseen(console: Console, scoring: Scoring) -> None:
    """How many measured points are not scored because the input lacks them."""
    if scoring.unseen:
        say(
            console,
            f"Not scored: {scoring.unseen:,} measured points that are missing in the input; pibert "
            "evaluate scores those of the next frame too.",
        )


def show_coverage(console: Console, scoring: Scoring, level: float | None) -> None:
    """How many true values the bars hold, where there are both."""
    if shares := scoring.overall().get(COVERAGE):
        told = ", ".join(f"{share:.3f} of the true {name}" for name, share in shares.items())
        say(console, f"Bars of level {level:g} hold {told}.")


def leads_shown(last: int) -> set[int]:
    """1, 2, 5, 10 ... and the last: a line of a table each."""
    return {lead * 10**power for lead in _LEADS for power in range(8)} | {last}


def show_by_lead(console: Console, scoring: Scoring, time_unit: str | None) -> None:
    found = scoring.by_number()
    unit = "" if time_unit is None else f" [{time_unit}]"
    wanted = leads_shown(scoring.numbers[-1])
    # Apart: both in one table would not fit a terminal.
    for metric, title in zip(METRICS, ("NMSE", "skill against persistence"), strict=True):
        table = Table("step", f"t{unit}", *scoring.components, title=title, title_justify="left")
        for number, time in zip(scoring.numbers, scoring.times, strict=True):
            if number in wanted:
                values = found[number][metric].values()
                table.add_row(str(number), f"{time:.4g}", *(f"{value:.3g}" for value in values))
        console.print(table)
    show_unseen(console, scoring)
