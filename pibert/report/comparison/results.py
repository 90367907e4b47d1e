"""Results of all models on one dataset: what every table and figure of a report is made from."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from pibert.data.wording import counted
from pibert.evaluation.scores import Scores
from pibert.fields import FieldSpec
from pibert.report.comparison.published import OURS, PUBLISHED, Published

COLOURS = {
    "truth": "#222222",
    "coarse-solver": "#6a0dad",
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
    "wake-oscillator": "#ff8f00",
}
"""Colours of the standard models, whose points are circles."""
OTHERS = (
    *("#1e88e5", "#d32f2f", "#7cb342", "#5e35b1", "#f4511e", "#00a36c"),
    *("#c09000", "#6d4c41", "#3949ab", "#558b2f", "#ad1457"),
)
MARKS = ("s", "^", "D", "v", "P", "X", ">")
"""Colours and markers of other models. Their counts have no common factor, so no pair repeats
before all have been used."""
WAKE_OSCILLATOR = "wake-oscillator"
"""A reference for the displacement of bodies alone, with scores of its own."""
COARSE_SOLVER = "coarse-solver"
"""The solver of the data on a coarser grid (``comparison/coarse_solver.py``)."""
UNTRAINED = (
    *("persistence", "training-mean", "linear-extrapolation", "mean-advection", "dmd"),
    WAKE_OSCILLATOR,
    COARSE_SOLVER,
)
"""Predictors without trained weights: drawn dotted or hollow."""


@dataclass(frozen=True, eq=False)
class DatasetResults:
    """The results on one dataset."""

    name: str
    results: Mapping[str, Any]
    """The whole of ``results.json``."""
    scores: Mapping[tuple[str, int], Scores]
    """Scores of every run on this dataset, by model and seed."""
    coarse_solver: Scores | None = None

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """The entry of this dataset in ``results.json``."""
        return dict(self.results["data"][self.name])

    @cached_property
    def models(self) -> tuple[str, ...]:
        """Names of the models, best first."""
        return tuple(row["model"] for row in self.facts["ranking"])

    @cached_property
    def seeds(self) -> list[int]:
        return sorted({seed for _, seed in self.scores})

    @cached_property
    def records(self) -> Sequence[Mapping[str, Any]]:
        return [record for record in self.results["records"] if record["data"] == self.name]

    @cached_property
    def runs(self) -> list[Mapping[str, Any]]:
        """Runs that did not fail."""
        runs = self.results["runs"]
        return [run for run in runs if run["data"] == self.name and "failed" not in run]

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
        """Records of a metric, one for each seed; empty where it was not measured."""
        return self._table.get((model, metric, component, space), [])

    def value(
        self, model: str, metric: str, component: str = "all", space: str = "physical"
    ) -> float | None:
        """The mean over seeds; None where one failed or has no finite value."""
        found = [record["value"] for record in self.find(model, metric, component, space)]
        return mean_of([*found, *[None] * self.failed[model]])

    @cached_property
    def failed(self) -> Counter[str]:
        """How many runs of each model failed, on this dataset."""
        runs = (run for run in self.results["runs"] if run["data"] == self.name)
        return Counter(run["model"] for run in runs if "failed" in run)

    @cached_property
    def incomplete(self) -> tuple[str, ...]:
        """Models without some of their seeds, as ``unet (1 of 3 seeds missing)``."""
        found = ((row["model"], missing_text(row)) for row in self.facts["ranking"])
        return tuple(model + text for model, text in found if text)

    def first(self, model: str) -> Scores:
        """Scores of a model's first seed, or of the coarse solver."""
        if model == COARSE_SOLVER and self.coarse_solver is not None:
            return self.coarse_solver
        return self.scores[min(key for key in self.scores if key[0] == model)]

    def arrays_of(self, models: Sequence[str], name: str) -> dict[str, Tensor]:
        """An array of each model's first seed, of the models that have it."""
        return {m: arrays[name] for m in models if name in (arrays := self.first(m).arrays)}

    @cached_property
    def reference(self) -> Scores:
        """Scores of the best model, for what all models share: truth, frames, probes."""
        return self.first(self.models[0])

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """Description of the data: spec, split, names, units."""
        return dict(self.reference.card["data"])

    @cached_property
    def spec(self) -> FieldSpec:
        return FieldSpec.from_dict(self.info["spec"])

    @cached_property
    def vibrations(self) -> dict[str, list[dict[str, Any]]]:
        """Measures of moving bodies (``evaluation/structure.py``) by model, of all its seeds.

        Models come best first, then the wake oscillator where there is one.
        """
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in self.models}
        for (model, _), scores in self.scores.items():
            if model in found:
                found[model] += scores.card.get("structure") or []
        found[WAKE_OSCILLATOR] = self.facts.get("wake_oscillator", {}).get("rows", [])
        return {name: rows for name, rows in found.items() if rows}

    def trajectory(self, row: int) -> str:
        """Name and parameters of the trajectory of a test row: ``cylinder-0004 (Re = 161)``."""
        return self.flow_name(int(self.reference.arrays["rows/trajectory"][row]))

    @property
    def stresses(self) -> str:
        """The name of what fluctuates in time, squared."""
        return "variances" if self.spec.velocity is None else "Reynolds stresses"

    def flow_name(self, number: int) -> str:
        """Name and parameters of a trajectory."""
        parameters = self.info["parameters"][number] if self.info.get("parameters") else {}
        values = ", ".join(
            f"{name} = {parameter_text(value)}" for name, value in parameters.items()
        )
        return str(self.info["names"][number]) + (f" ({values})" if values else "")

    def shown(self, most: int = 7) -> tuple[str, ...]:
        """Models for a figure with little room, by rank: PIBERT, persistence, the best others."""
        must = [name for name in ("pibert", "unet", "persistence") if name in self.models]
        rest = [name for name in self.models if name not in must]
        chosen = {*must, *rest[: max(0, most - len(must))]}
        return tuple(name for name in self.models if name in chosen)

    def compared(self) -> tuple[str, ...]:
        """Models for the figure of a frame: those shown, and all that the paper compares."""
        theirs = self.published.errors if self.published else ()
        chosen = {*self.shown(), *map(self.in_place_of, theirs)}
        return tuple(name for name in self.models if name in chosen)

    @property
    def published(self) -> Published | None:
        """The paper's numbers, if the plan names one of its benchmarks."""
        named = self.results.get("comparison", {}).get("published") or {}
        return PUBLISHED.get(named.get(self.name, ""))

    def in_place_of(self, model: str) -> str | None:
        """Our model in the place of one of the paper's."""
        return next((m for m in OURS.get(model, (model,)) if m in self.models), None)

    @property
    def subject(self) -> str | None:
        """The model that tables set against single others: that of the plan, or else a PIBERT."""
        tested = self.results.get("comparison", {}).get("tested")
        pibert = sorted(name for name in self.models if name.startswith("pibert"))
        return next((name for name in (tested, *pibert) if name in self.models), None)

    def rival(self, model: str = "pibert") -> str | None:
        """The best other trained model."""
        others = [m for m in self.models if not m.startswith(model) and m not in UNTRAINED]
        return others[0] if others else None

    def ranked(self, model: str) -> str:
        """``2. unet``."""
        return f"{self.models.index(model) + 1}. {model}"

    def colour(self, model: str) -> str:
        """The colour of a model, the same in every figure."""
        return COLOURS.get(model) or OTHERS[self._others.index(model) % len(OTHERS)]

    def mark(self, model: str) -> str:
        """The marker of a model; with its colour it is unique."""
        return "o" if model in COLOURS else MARKS[self._others.index(model) % len(MARKS)]

    @cached_property
    def _others(self) -> list[str]:
        return [name for name in sorted(self.models) if name not in COLOURS]


def describe_solver(facts: Mapping[str, Any]) -> str:
    """The grid of the coarse solver and its time beside that of the surrogate."""
    mine, theirs = facts["ms_per_frame"], facts["surrogate_ms_per_frame"]
    ratio = f"{mine / theirs:.2g}" if mine < 10 * theirs else f"{mine / theirs:,.0f}"
    dearer = f", {ratio} times less, but no coarser grid resolves the flow"
    return (
        f"the solver with {facts['resolution']} instead of {facts['solver_of_data']}, "
        f"{mine:.3g} ms per frame with {counted(facts['side_by_side'], 'flow')} at a time; "
        f"{facts['surrogate']} takes {theirs:.3g} ms with {facts['surrogate_batch']}"
        f"{dearer if mine > theirs else ''} ({facts['device']})"
    )


def parameter_text(value: float) -> str:
    """A parameter of a flow; a large one to the unit, since it may identify the flow."""
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def missing_text(row: Mapping[str, Any]) -> str:
    """`` (1 of 3 seeds missing)`` for a model of the ranking; empty for a complete one."""
    missing = row.get("missing", 0)  # older results have no such number
    return f" ({missing} of {counted(missing + row['seeds'], 'seed')} missing)" if missing else ""


def mean_of(values: Sequence[int | float | None]) -> float | None:
    """The mean; None without values, or if one is unknown or, as of a run that diverged, infinite.

    Without it the others would look like the whole.
    """
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
