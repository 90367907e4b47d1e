"""A deep ensemble: the same experiment run with other seeds, its members' mean and their spread.

Each member rolls out by itself; the prediction is the mean of what they say, the spread their
standard deviation. An ensemble is used like a ``Predictor``.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pibert.fields import FieldSpec, Normalizer
from pibert.predictor import Predictor


def _without_ranges(spec: FieldSpec) -> dict[str, Any]:
    """A spec as plain JSON without the ranges of its parameters, which older files do not have."""
    parameters = tuple(replace(own, lowest=None, highest=None) for own in spec.parameters)
    return replace(spec, parameters=parameters).to_dict()


class Ensemble:
    """Several predictors of one kind of field, as one.

    Args:
        members: Two or more, with the same channels, grid, scaling and window.
    """

    def __init__(self, members: Sequence[Predictor]) -> None:
        self.members = tuple(members)
        if len(self.members) < 2:
            raise ValueError(f"expected two or more members, found {len(self.members)}")
        first = self.members[0]
        for place, other in enumerate(self.members[1:], 2):
            for what in ("history", "horizon", "normalizer"):
                mine, theirs = getattr(first, what), getattr(other, what)
                if mine != theirs:
                    raise ValueError(
                        f"expected members of one experiment, found {what} {mine} of the first and "
                        f"{theirs} of member {place}; run it again with another seed alone"
                    )
            if _without_ranges(first.spec) != _without_ranges(other.spec):
                raise ValueError(
                    f"expected members of one experiment, found other fields in member {place}; "
                    "run it again with another seed alone"
                )
        if len({identity(member) for member in self.members}) < len(self.members):
            raise ValueError("expected members that differ, found the same weights twice")

    def __repr__(self) -> str:
        return f"Ensemble({len(self.members)} members, the first {self.members[0]!r})"

    @property
    def spec(self) -> FieldSpec:
        return self.members[0].spec

    @property
    def normalizer(self) -> Normalizer:
        return self.members[0].normalizer

    @property
    def history(self) -> int:
        return self.members[0].history

    @property
    def horizon(self) -> int:
        return self.members[0].horizon

    @property
    def card(self) -> dict[str, Any]:
        """Of the first member."""
        return self.members[0].card

    @property
    def device(self) -> torch.device:
        return self.members[0].device

    def step(self, fields: Any, parameters: Any = None, mask: Any = None) -> Any:
        """The mean of the members' next frames; arguments as for ``Predictor.step``."""
        return next(self.iterate(fields, self.horizon, parameters, mask))

    def rollout(
        self,
        fields: Any,
        steps: int,
        parameters: Any = None,
        mask: Any = None,
    ) -> Any:
        """The mean of the members' rollouts."""
        blocks = list(self.iterate(fields, steps, parameters, mask))
        if isinstance(blocks[0], Tensor):
            return torch.cat(blocks, dim=1)
        return np.concatenate(blocks, axis=1)

    def iterate(
        self,
        fields: Any,
        steps: int | None = None,
        parameters: Any = None,
        mask: Any = None,
    ) -> Iterator[Any]:
        """The mean block by block."""
        blocks = self.iterate_with_spread(fields, steps, parameters, mask)
        return (mean for mean, _ in blocks)

    def iterate_with_spread(
        self,
        fields: Any,
        steps: int | None = None,
        parameters: Any = None,
        mask: Any = None,
    ) -> Iterator[tuple[Any, Any]]:
        """Mean and spread of the members, block by block."""
        rolls = [member.iterate(fields, steps, parameters, mask) for member in self.members]
        return (_mean_and_spread(blocks) for blocks in zip(*rolls, strict=True))

    def consistency(self, fields: Any, parameters: Any = None, mask: Any = None) -> Any:
        """The mean of the members' probabilities that a window obeys its equations."""
        found = [member.consistency(fields, parameters, mask) for member in self.members]
        return sum(found[1:], found[0]) / len(found)


def identity(predictor: Any) -> str:
    """What tells the weights of a predictor, or of all members, from any others."""
    if isinstance(predictor, Ensemble):
        own = sorted(identity(member) for member in predictor.members)
        return hashlib.sha256(" ".join(own).encode()).hexdigest()
    stated = predictor.card.get("weights", {}).get("sha256")
    if not isinstance(stated, str):
        raise ValueError(
            "expected a model that was saved, found one without a card; save it with "
            "pibert.predictor.save_model and load it again"
        )
    return stated


def rolled(
    predictor: Any, fields: Tensor, steps: int | None, parameters: Any, mask: Any
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Blocks of a rollout, each with the spread where there is an ensemble to spread."""
    if isinstance(predictor, Ensemble):
        yield from predictor.iterate_with_spread(fields, steps, parameters, mask)
        return
    for block in predictor.iterate(fields, steps, parameters, mask):
        yield block, None


def _mean_and_spread(blocks: Sequence[Any]) -> tuple[Any, Any]:
    if isinstance(blocks[0], Tensor):
        stacked = torch.stack(list(blocks))
        return stacked.mean(0), stacked.std(0)
    arrays = np.stack(blocks)
    return arrays.mean(0), arrays.std(0, ddof=1)
