"""The scores of one model: a pair of files in its run folder.

``scores.safetensors`` holds terms of measures, errors of single frames, and of the predictions only
what pictures need; ``scores.json`` says what they are: data, model, entries of each measure, cost,
circumstances. Numbers and intervals are made from them (``pibert.comparison``) without a model.

    terms/<space>/<measure>   (rows, k) of frames or sequences; space: physical or standardised
    rows/trajectory, rows/frame          of every frame: where it is from
    sequences/trajectory                 of every row of a measure of sequences
    errors/prediction, errors/last       relative error of every frame: the model's, persistence's
    picks/rows, picks/<what>             frames to look at: truth, prediction, last, known
    strip/rows, strip/<what>             frames one after the other: truth, prediction, known
    probes/<what>, rollout/<what>, tokens/<what>                         where there are any
    free_run/<what>, free_run/shown/<what>   terms of free runs; one of them to look at
    alignment, alignment_<control>       R^2 by scale of embeddings and of what was never trained
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from pibert.data.partial import replace_file
from pibert.data.splits import condition
from pibert.display import as_html
from pibert.evaluation.intervals import LEAST, TooFew, resample_starts, same_flows
from pibert.files import read_json, read_safetensors

FORMAT = 4
NAME = "scores"
RESAMPLES = 1000
LEVEL = 0.95
CORRELATION_TIMES = 3
"""Length of a block in time: much shorter ones make intervals too narrow."""


@dataclass(frozen=True, eq=False, repr=False)
class Scores:
    """Tensors by name, and a card that says what they are."""

    card: dict[str, Any]
    arrays: Mapping[str, Tensor] = field(default_factory=dict)

    def group(self, prefix: str) -> dict[str, Tensor]:
        """The arrays below a name, such as ``picks``."""
        start = f"{prefix}/"
        return {k.removeprefix(start): v for k, v in self.arrays.items() if k.startswith(start)}

    def __getitem__(self, metric: str) -> dict[str, float | None]:
        """The values of a metric of the next frame in physical units, by component."""
        found: dict[str, float | None] = {}
        for name, entries in self.card["entries"].items():
            for entry, value in zip(entries, self.card["values"][name], strict=True):
                if name.startswith("physical/") and entry["metric"] == metric:
                    found.setdefault(entry["component"], value)
        if not found:
            raise KeyError(f"there is no metric {metric!r}; there are: {', '.join(self.metrics)}")
        return found

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics in physical units."""
        return list(dict.fromkeys(entry["metric"] for entry in self._entries()))

    def _entries(self, metric: str | None = None) -> list[dict[str, str]]:
        found = self.card["entries"].items()
        own = (e for name, entries in found if name.startswith("physical/") for e in entries)
        return [entry for entry in own if metric in (None, entry["metric"])]

    @property
    def rollouts(self) -> dict[str, Any] | None:
        """Scores of rollouts by lead time, and their stable horizon; None: there are none."""
        if "rollout" not in self.card:
            return None
        facts = self.card["rollout"]
        by_step: dict[int, dict[str, dict[str, float]]] = {}
        for step, row in enumerate(self.arrays["rollout/curves"].tolist(), 1):
            by_step[step] = {}
            for entry, value in zip(facts["entries"], row, strict=True):
                by_step[step].setdefault(entry["metric"], {})[entry["component"]] = value
        summary = self.arrays["rollout/summary"].tolist()
        return {
            "steps": facts["steps"],
            "starts": facts["starts"],
            "by_step": by_step,
            "summary": {e["metric"]: v for e, v in zip(facts["summary"], summary, strict=True)},
        }

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {text}" for name, text in self.facts().items())

    def _repr_html_(self) -> str:
        return as_html(self.facts())

    def facts(self) -> dict[str, str]:
        """The main numbers as text."""

        def digits(value: float | None) -> str:
            return "not defined" if value is None else f"{value:.4g}"

        facts = {"model": self.card["model"]["name"]}
        facts["frames"] = f"{self.card['data']['test_frames']}, each predicted from recorded ones"
        for metric in ("rmse", "nmse", "skill"):
            units = {e["component"]: e["unit"] for e in self._entries(metric) if e["unit"] != "1"}
            facts[metric] = ", ".join(
                f"{name} {digits(value)} {units.get(name, '')}".rstrip()
                for name, value in self[metric].items()
            )
        if (rolled := self.rollouts) is not None:
            horizon = digits(rolled["summary"]["stable_horizon"])
            facts["stable horizon"] = f"{horizon} of {rolled['steps']} steps on average"
        return facts


def save_scores(folder: Path, scores: Scores) -> None:
    """Write both files; the card last, so that where it is, the rest is too."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in scores.arrays.items()}
    replace_file(folder / f"{NAME}.safetensors", save(tensors))
    save_card(folder, scores.card)


def save_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Write only the card."""
    text = json.dumps({**card, "format": FORMAT}, indent=1) + "\n"
    replace_file(folder / f"{NAME}.json", text.encode())


def read_card(folder: Path) -> dict[str, Any]:
    """What a model was scored on."""
    path = folder / f"{NAME}.json"
    try:
        card = read_json(path)
        if not isinstance(card, dict) or card.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}, found {dict(card).get('format')}")
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path}: not the scores of a model ({error}); remove it and evaluate again"
        ) from None
    return card


def read_scores(folder: Path) -> Scores:
    """What ``save_scores`` wrote."""
    path = folder / f"{NAME}.safetensors"
    card = read_card(folder)
    try:
        arrays, _ = read_safetensors(path)
    except ValueError as error:
        raise ValueError(f"{path}: damaged ({error}); remove it and evaluate again") from None
    for name, value in arrays.items():
        if name.startswith("terms/") and value.dtype != torch.float64:
            raise ValueError(f"{path}: expected terms in float64, found {name} in {value.dtype}")
    return Scores(card, arrays)


def as_number(value: Any) -> float | None:
    """A number for JSON; None where it is not finite."""
    number = float(value)
    return number if math.isfinite(number) else None


def as_numbers(values: Tensor) -> list[float | None]:
    """Numbers for JSON; None where one is not finite."""
    return [as_number(value) for value in values.tolist()]


def condition_numbers(facts: Mapping[str, Any], names: Sequence[str]) -> list[int]:
    """Return a number for every trajectory, equal if their parameters of these names are."""
    keys = [condition(parameters, names) for parameters in facts["parameters"]]
    number = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    return [number[key] for key in keys]


def block_frames(correlation_frames: float | None) -> int | None:
    """Frames of blocks in time that are nearly independent; None: the flow stays correlated."""
    if correlation_frames is None:
        return None
    return max(2, math.ceil(CORRELATION_TIMES * correlation_frames))


def start_weights(
    card: Mapping[str, Any], trajectories: Tensor, frames: Tensor, *, span: int
) -> tuple[Tensor | None, str]:
    """Return resamples of the starts of rollouts, and the method; None with too few starts.

    Args:
        card: Its ``data`` and ``correlation_frames``.
        trajectories: The trajectory of every start.
        frames: The first frame of every start.
        span: Frames of a rollout.
    """
    facts = card["data"]
    groups = torch.arange(len(facts["names"]))
    if names := facts["source"].get("group_by"):  # repetitions are not independent
        groups = torch.tensor(condition_numbers(facts, names))
    block = block_frames(card["correlation_frames"])
    block, groups = None if block is None else max(block, span), groups[trajectories]
    try:
        weights, method = resample_starts(groups, frames, block=block, resamples=RESAMPLES, seed=0)
    except TooFew:
        return None, "none (fewer than ten flows or independent stretches of flows)"
    if len(groups.unique()) < LEAST:
        method = f"{method} {same_flows(len(trajectories.unique()))}"
    return weights, method
