"""Rollouts from windows of recorded flows, beside what came to pass."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.data.splits import condition
from pibert.fields import FieldSpec, Grid
from pibert.trust.ensemble import rolled


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
    """As a model sees them."""
    truth: Float[Tensor, "b t c y x"] | None = None
    """NaN where it was not measured, or nothing was known of the point before."""

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
    """Numbers of samples of each trajectory, at most so many, evenly spread.

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
