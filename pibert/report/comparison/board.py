"""What a report shows of one data set: records, runs, and scores of every model.

Figures and tables are functions of a ``Board`` and of nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pibert.evaluation.scores import Scores
from pibert.fields import FieldSpec, Normalizer

PUBLISHED = ("pibert", "fno2d", "deeponet2d", "pitt", "fourierflow", "pinn")
"""The paper's models, in its order."""
COLOURS = {
    "truth": "#222222",
    "pibert": "#2b5c8a",
    "fno2d": "#4f9d45",
    "deeponet2d": "#8e63a8",
    "pitt": "#e08214",
    "fourierflow": "#a0622d",
    "pinn": "#8c8c8c",
    "unet": "#c2185b",
    "transolver": "#008b8b",
    "mwt": "#767600",
    "persistence": "#444444",
    "training-mean": "#9e9e9e",
    "linear-extrapolation": "#b07aa1",
    "mean-advection": "#e377c2",
    "dmd": "#17becf",
}
"""Of the models that every report has, which are drawn as circles."""
OTHERS = (
    "#1e88e5",
    "#d32f2f",
    "#7cb342",
    "#5e35b1",
    "#f4511e",
    "#00a36c",
    "#c09000",
    "#6d4c41",
    "#3949ab",
    "#558b2f",
    "#ad1457",
)
MARKS = ("s", "^", "D", "v", "P", "X", ">")
"""Colours and marks of other models, by their place. As many of both have no common factor: a pair
does not come again before all have been used."""
UNTRAINED = ("persistence", "training-mean", "linear-extrapolation", "mean-advection", "dmd")
"""Drawn dotted: nothing about them is learned by steps."""


@dataclass(frozen=True, eq=False)
class Board:
    """The results on one data set."""

    name: str
    results: Mapping[str, Any]
    """The whole of ``results.json``."""
    scores: Mapping[tuple[str, int], Scores]
    """Of every run on this data set, by model and seed."""

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """What ``results.json`` says of the data set."""
        return dict(self.results["data"][self.name])

    @cached_property
    def models(self) -> tuple[str, ...]:
        """Names of the models, the best first."""
        return tuple(row["model"] for row in self.facts["ranking"])

    @cached_property
    def records(self) -> Sequence[Mapping[str, Any]]:
        return [record for record in self.results["records"] if record["data"] == self.name]

    @cached_property
    def _table(self) -> dict[tuple[str, str, str, str], list[Mapping[str, Any]]]:
        table: dict[tuple[str, str, str, str], list[Mapping[str, Any]]] = {}
        for record in self.records:
            key = (record["model"], record["metric"], record["component"], record["space"])
            table.setdefault(key, []).append(record)
        return table

    def find(
        self, model: str, metric: str, component: str = "all", space: str = "physical"
    ) -> list[Mapping[str, Any]]:
        """The records of a number, one for each seed; none where it was not measured."""
        return self._table.get((model, metric, component, space), [])

    def value(
        self, model: str, metric: str, component: str = "all", space: str = "physical"
    ) -> float | None:
        """The mean over seeds; None where nothing was measured."""
        found = [record["value"] for record in self.find(model, metric, component, space)]
        known = [value for value in found if value is not None]
        return sum(known) / len(known) if known else None

    def run(self, model: str) -> Mapping[str, Any]:
        """What the first run of a model that did not fail was and cost."""
        runs = [r for r in self.results["runs"] if (r["data"], r["model"]) == (self.name, model)]
        return next(run for run in runs if "failed" not in run)

    def first(self, model: str) -> Scores:
        """The scores of a model's first seed."""
        return self.scores[min(key for key in self.scores if key[0] == model)]

    @cached_property
    def reference(self) -> Scores:
        """Scores of any model, for what does not depend on it: truth, frames, probes."""
        return self.first(self.models[0])

    @cached_property
    def spec(self) -> FieldSpec:
        return FieldSpec.from_dict(self.reference.card["data"]["spec"])

    @cached_property
    def normalizer(self) -> Normalizer:
        facts = self.reference.card["data"]["normalizer"]
        return Normalizer(tuple(facts["mean"]), tuple(facts["std"]))

    def shown(self, most: int = 7) -> tuple[str, ...]:
        """Models for a figure with little room.

        PIBERT, persistence and the best others, in the order of their rank.
        """
        must = [name for name in ("pibert", "unet", "persistence") if name in self.models]
        rest = [name for name in self.models if name not in must]
        chosen = {*must, *rest[: max(0, most - len(must))]}
        return tuple(name for name in self.models if name in chosen)

    def rival(self, model: str = "pibert") -> str | None:
        """The best other model that was trained."""
        others = [m for m in self.models if not m.startswith(model) and m not in UNTRAINED]
        return others[0] if others else None

    def colour(self, model: str) -> str:
        """The same in every figure of a report."""
        return COLOURS.get(model) or OTHERS[self._others.index(model) % len(OTHERS)]

    def mark(self, model: str) -> str:
        """The shape of a point: with its colour it tells a model from every other."""
        return "o" if model in COLOURS else MARKS[self._others.index(model) % len(MARKS)]

    @cached_property
    def _others(self) -> list[str]:
        return [name for name in sorted(self.models) if name not in COLOURS]
