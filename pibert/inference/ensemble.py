"""Ensembles, and rollouts from windows of recorded flows beside the true frames.

A deep ensemble is the same experiment trained with other seeds. Each member rolls out by itself;
the prediction is their mean, the spread their standard deviation. An ensemble is used like a
``Predictor``.
"""

import hashlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.data.splits import condition
from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.inference.predictor import PredictionStream, Predictor
from pibert.notes import warn


def _without_ranges(spec: FieldSpec) -> dict[str, Any]:
    """A spec as plain JSON without the parameter ranges, which older files lack."""
    parameters = tuple(replace(own, lowest=None, highest=None) for own in spec.parameters)
    return replace(spec, parameters=parameters).to_dict()


class Ensemble:
    """Several predictors of the same fields, as one.

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
        return self.rollout(fields, self.horizon, parameters, mask)

    def rollout(self, fields: Any, steps: int, parameters: Any = None, mask: Any = None) -> Any:
        """The mean of the members' rollouts."""
        streams = self._streams(fields, steps, parameters, mask)
        whole = torch.cat([mean for mean, _ in self.blocks(streams)], dim=1)
        return streams[0].input.kind.frames(whole, 0)

    def iterate(
        self, fields: Any, steps: int | None = None, parameters: Any = None, mask: Any = None
    ) -> Iterator[Any]:
        """The mean block by block."""
        blocks = self.iterate_with_spread(fields, steps, parameters, mask)
        return (mean for mean, _ in blocks)

    def iterate_with_spread(
        self, fields: Any, steps: int | None = None, parameters: Any = None, mask: Any = None
    ) -> Iterator[tuple[Any, Any]]:
        """Mean and spread of the members, block by block."""
        streams = self._streams(fields, steps, parameters, mask)
        as_frames, h = streams[0].input.kind.frames, self.horizon
        return (
            (as_frames(mean, h * place), as_frames(spread, h * place))
            for place, (mean, spread) in enumerate(self.blocks(streams))
        )

    def _streams(
        self, fields: Any, steps: int | None, parameters: Any, mask: Any
    ) -> list[PredictionStream]:
        streams = [member.stream(fields, steps, parameters, mask) for member in self.members]
        for note in streams[0].input.notes:
            warn(note)
        return streams

    def blocks(self, streams: Sequence[PredictionStream]) -> Iterator[tuple[Tensor, Tensor]]:
        """Mean and spread of a rollout of every member, (b, t, c, y, x), block by block."""
        rolls = (
            member.blocks(stream) for member, stream in zip(self.members, streams, strict=True)
        )
        for blocks in zip(*rolls, strict=True):
            stacked = torch.stack(blocks)
            yield stacked.mean(0), stacked.std(0)

    def consistency(self, fields: Any, parameters: Any = None, mask: Any = None) -> Any:
        """The mean of the members' probabilities that a window obeys its equations."""
        found = [member.consistency(fields, parameters, mask) for member in self.members]
        return sum(found[1:], found[0]) / len(found)


def identity(predictor: Any) -> str:
    """Fingerprint of the weights of a predictor, or of all members."""
    if isinstance(predictor, Ensemble):
        own = sorted(identity(member) for member in predictor.members)
        return hashlib.sha256(" ".join(own).encode()).hexdigest()
    stated = predictor.card.get("weights", {}).get("sha256")
    if not isinstance(stated, str):
        raise ValueError(
            "expected a model that was saved, found one in memory; save it with "
            "pibert.inference.save_model and load it again"
        )
    return stated


def rolled(
    predictor: Any, fields: Tensor, steps: int | None, parameters: Any, mask: Any
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Blocks of a rollout with the spread of an ensemble; notes on the input are left out."""
    if isinstance(predictor, Ensemble):
        streams = [own.stream(fields, steps, parameters, mask) for own in predictor.members]
        yield from predictor.blocks(streams)
        return
    for block in predictor.blocks(predictor.stream(fields, steps, parameters, mask)):
        yield block, None


@dataclass(frozen=True, eq=False, kw_only=True)
class Forecast:
    """Predicted frames in physical units, and what goes with them."""

    prediction: Float[Tensor, "b t c y x"]
    before: Float[Tensor, "b t c y x"]
    """The frame before each: the newest given one, then predicted ones."""
    spread: Float[Tensor, "b t c y x"] | None
    """Of an ensemble's members."""
    seen: Bool[Tensor, "b y x"]
    """Points that were known in every given frame."""
    parameters: Float[Tensor, "b 16"]
    """Standardised."""
    truth: Float[Tensor, "b t c y x"] | None = None
    """NaN where it was not measured, or the point was unknown in the input."""

    def errors(self) -> Float[Tensor, "b t c y x"]:
        """Absolute errors, NaN where they do not count."""
        assert self.truth is not None
        return (self.prediction - self.truth).abs()


@dataclass(frozen=True, eq=False, kw_only=True)
class Windows:
    """Windows of one trajectory, as a predictor takes them."""

    fields: Float[Tensor, "b h c y x"]
    known: Bool[Tensor, "b h y x"]
    parameters: dict[str, Tensor]
    encoded: Float[Tensor, "b 16"]
    truth: Float[Tensor, "b t c y x"]
    """NaN where it was not measured."""

    @property
    def seen(self) -> Bool[Tensor, "b y x"]:
        return self.known.all(1)

    def unknown(self, grid: Grid) -> Float[Tensor, " b"]:
        """Share of the points outside the grid's body that were not seen."""
        fluid = torch.ones(grid.shape, dtype=torch.bool) if grid.body is None else ~grid.body
        return (~self.seen[:, fluid]).double().mean(1)


def windows_by_trajectory(
    samples: Samples, most: int, group_by: Sequence[str] = ()
) -> dict[Hashable, list[int]]:
    """Numbers of samples of each trajectory, at most ``most``, evenly spread.

    Trajectories that agree in the parameters of ``group_by`` are one.
    """
    found: dict[int, list[int]] = {}
    for sample in range(len(samples)):
        found.setdefault(samples.locate(sample)[0], []).append(sample)
    joined: dict[Hashable, list[int]] = {}
    for index, own in found.items():
        count = min(most, len(own))
        stated = samples.trajectories[index].parameters
        key = condition(stated, group_by) if group_by else index
        joined.setdefault(key, []).extend(own[n * len(own) // count] for n in range(count))
    return joined


def read_windows(samples: Samples, numbers: Sequence[int], spec: FieldSpec) -> Windows:
    """Some windows of a trajectory, in physical units.

    Args:
        samples: Their window says how many frames are given, and how many follow.
        numbers: Of samples.
        spec: Of the predictor.
    """
    h, places = samples.window.history, [samples.locate(number) for number in numbers]
    fields, known, measured = [], [], []
    for index, first in places:
        trajectory, newest = samples.trajectories[index], first + h
        fields.append(trajectory.read(slice(first, first + samples.window.span)))
        known.append(trajectory.known(slice(first, newest)))
        measured.append(trajectory.measured(slice(newest, first + samples.window.span)))
    whole, truth_known = torch.stack(fields).float().cpu(), torch.stack(measured).cpu()
    values = [samples.trajectories[index].parameters for index, _ in places]
    parameters = {
        name: torch.tensor([own.get(name, torch.nan) for own in values])
        for name in spec.parameter_names
    }
    return Windows(
        fields=whole[:, :h],
        known=torch.stack(known).cpu(),
        parameters=parameters,
        encoded=spec.encode_parameters(parameters).expand(len(places), -1),
        truth=torch.where(truth_known[:, :, None], whole[:, h:], torch.nan),
    )


def forecast(predictor: Any, given: Windows) -> Forecast:
    """Roll out from windows for as long as the truth lasts."""
    steps = given.truth.shape[1]
    blocks = rolled(predictor, given.fields, steps, given.parameters, given.known)
    parts = list(frames_of(blocks, given.fields[:, -1], given.seen, given.encoded))
    spreads = [part.spread for part in parts if part.spread is not None]
    return Forecast(
        prediction=torch.cat([part.prediction for part in parts], dim=1),
        before=torch.cat([part.before for part in parts], dim=1),
        spread=torch.cat(spreads, dim=1) if spreads else None,
        seen=given.seen,
        parameters=given.encoded,
        # At points that were not given a prediction is a guess that is not fed back.
        truth=torch.where(given.seen[:, None, None], given.truth, torch.nan),
    )


def frames_of(
    blocks: Iterator[tuple[Tensor, Tensor | None]],
    newest: Float[Tensor, "b c y x"],
    seen: Bool[Tensor, "b y x"],
    encoded: Float[Tensor, "b 16"],
) -> Iterator[Forecast]:
    """Blocks of a rollout with the frames before them."""
    for block, spread in blocks:
        before = torch.cat((newest[:, None], block[:, :-1]), dim=1)
        yield Forecast(
            prediction=block, before=before, spread=spread, seen=seen, parameters=encoded
        )
        newest = block[:, -1]
