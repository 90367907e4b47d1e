"""Windows of recorded flows and rollouts from them, beside the true frames."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.data.splits import condition
from pibert.fields import FieldSpec, Grid
from pibert.inference.predictor import Predictor


@dataclass(frozen=True, eq=False, kw_only=True)
class Windows:
    """Input windows on the model's grid, in physical units."""

    fields: Float[Tensor, "b h c y x"]
    """Any value where unknown."""
    known: Bool[Tensor, "b h y x"]
    encoded: Float[Tensor, "b 16"]
    """Parameters, standardised."""

    @property
    def seen(self) -> Bool[Tensor, "b y x"]:
        """Points that are known in every frame."""
        return self.known.all(1)

    def unknown_share(self, grid: Grid) -> Float[Tensor, " b"]:
        """Share of the points outside the grid's body that are unknown."""
        fluid = torch.ones(grid.shape, dtype=torch.bool) if grid.body is None else ~grid.body
        return (~self.seen[:, fluid]).double().mean(1)


@dataclass(frozen=True, eq=False, kw_only=True)
class RecordedWindows(Windows):
    """Windows of recorded flows with the frames that follow."""

    parameters: dict[str, Tensor]
    truth: Float[Tensor, "b t c y x"]
    """NaN where it was not measured."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Forecast:
    """Predicted frames in physical units on the model's grid."""

    prediction: Float[Tensor, "b t c y x"]
    spread: Float[Tensor, "b t c y x"] | None
    """Standard deviation over the members of an ensemble."""
    seen: Bool[Tensor, "b y x"]
    """Points that were known in every given frame."""
    truth: Float[Tensor, "b t c y x"] | None = None
    """NaN where it was not measured, or the point was unknown in the input."""
    known: Bool[Tensor, "b t y x"] | None = None
    """Points outside bodies that moved; None: ``seen`` in all frames."""

    @property
    def visible(self) -> Bool[Tensor, "b u 1 y x"]:
        """Points of each frame that mean something."""
        return (self.seen[:, None] if self.known is None else self.known)[:, :, None]

    def errors(self) -> Float[Tensor, "b t c y x"]:
        """Absolute errors, NaN where they do not count."""
        assert self.truth is not None
        return (self.prediction - self.truth).abs()


def windows_by_trajectory(
    samples: Samples, most: int, group_by: Sequence[str] = ()
) -> dict[Hashable, list[int]]:
    """Numbers of samples of each trajectory, at most ``most``, evenly spread.

    Trajectories that agree in the parameters of ``group_by`` count as one.
    """
    by_trajectory: dict[int, list[int]] = {}
    for sample in range(len(samples)):
        by_trajectory.setdefault(samples.locate(sample)[0], []).append(sample)
    groups: dict[Hashable, list[int]] = {}
    for index, numbers in by_trajectory.items():
        count = min(most, len(numbers))
        parameters = samples.trajectories[index].parameters
        key = condition(parameters, group_by) if group_by else index
        groups.setdefault(key, []).extend(numbers[n * len(numbers) // count] for n in range(count))
    return groups


def read_windows(samples: Samples, numbers: Sequence[int], spec: FieldSpec) -> RecordedWindows:
    """Windows in physical units, with the frames that follow.

    Args:
        samples: Their window states the number of frames given and following.
        numbers: Of samples.
        spec: Of the predictor.
    """
    h, starts = samples.window.history, [samples.locate(number) for number in numbers]
    fields, known, measured = [], [], []
    for index, first in starts:
        trajectory, newest = samples.trajectories[index], first + h
        fields.append(trajectory.read(slice(first, first + samples.window.span)))
        known.append(trajectory.known(slice(first, newest)))
        measured.append(trajectory.measured(slice(newest, first + samples.window.span)))
    whole, truth_known = torch.stack(fields).float().cpu(), torch.stack(measured).cpu()
    values = [samples.trajectories[index].parameters for index, _ in starts]
    parameters = {
        name: torch.tensor([stated.get(name, torch.nan) for stated in values])
        for name in spec.parameter_names
    }
    return RecordedWindows(
        fields=whole[:, :h],
        known=torch.stack(known).cpu(),
        parameters=parameters,
        encoded=spec.encode_parameters(parameters).expand(len(starts), -1),
        truth=torch.where(truth_known[:, :, None], whole[:, h:], torch.nan),
    )


def forecast(predictor: Predictor, windows: RecordedWindows) -> Forecast:
    """Roll out from windows for as long as the truth lasts."""
    steps = windows.truth.shape[1]
    given = predictor.prepare(windows.fields, windows.parameters, windows.known)
    blocks = list(predictor.blocks(predictor.stream(given, steps)))
    prediction = torch.cat([block.on_model for block in blocks], dim=1)
    spreads = [block.spread for block in blocks if block.spread is not None]
    moved = [block.known for block in blocks if block.known is not None]
    known = torch.cat(moved, dim=1) if moved else windows.seen[:, None]
    return Forecast(
        prediction=prediction,
        spread=torch.cat(spreads, dim=1) if spreads else None,
        seen=windows.seen,
        # At points that were not given a prediction is a guess that is not fed back.
        truth=torch.where(known[:, :, None], windows.truth, torch.nan),
        known=known if moved else None,
    )
