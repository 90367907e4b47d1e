"""Mean advection: fluctuations about the training mean, carried along by the mean flow.

    x'_{t+1}(r) = x'_t(r - U(r) dt),     x' = x - m

m is the training mean at every point and U the velocity in it. Fields are standardised; U dt is
taken in physical units and then in cells of the grid, by dx along x and dy along y. A reference
predictor: Taylor's hypothesis of frozen turbulence, with a mean flow that varies in space.

A point looks back along U as it is at the point itself, and reads the fluctuation there by
interpolation. Periodic sides wrap; at the others what comes from outside is read at the side.
Points that are not known have no fluctuation, those that never were known have no velocity.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pibert.fields import Batch, FieldSpec, Normalizer
from pibert.models.references.simple import AboutTheMean, ReferenceConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanAdvectionConfig(ReferenceConfig):
    """Options of ``MeanAdvection``."""

    interpolation: Literal["linear", "cubic"] = "cubic"
    """Between the nearest 2 x 2 or 4 x 4 points, by the polynomials through them."""

    def __post_init__(self) -> None:
        ReferenceConfig.__post_init__(self)
        if self.interpolation not in _OFFSETS:
            raise ValueError(
                f"unknown interpolation {self.interpolation!r}; choose from: {', '.join(_OFFSETS)}"
            )


_OFFSETS = {"linear": (0, 1), "cubic": (-1, 0, 1, 2)}
"""Points of an interpolation, counted from the last one before the place."""


PRESETS: dict[str, MeanAdvectionConfig] = {"base": MeanAdvectionConfig()}


class MeanAdvection(AboutTheMean):
    """Fluctuations about the mean flow, carried along by it; more frames ahead step by step."""

    departure: Float[Tensor, "2 y x"]
    """Column and row, in cells, where the fluid at each point was a frame before."""

    def __init__(self, config: MeanAdvectionConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        if spec.velocity is None:
            raise ValueError(
                "mean advection expected the velocity channels u and v of a flow, found channels "
                f"{list(spec.channels)} of family {spec.family!r}"
            )
        if spec.dt is None:
            raise ValueError(
                "mean advection expected a spec with the time step dt between frames, found None; "
                "state it, or leave this reference out where time steps differ"
            )
        self.velocity, self.dt = spec.velocity, spec.dt
        self.register_buffer("departure", torch.zeros(2, *spec.grid.shape))

    def fit(self, batches: Iterable[Batch], normalizer: Normalizer) -> None:
        ever_known = self._fit_mean(batches)
        grid = self.spec.grid
        flow = normalizer.invert(self.mean.double())[list(self.velocity)]
        flow = torch.where(ever_known, flow, 0.0)
        rows, columns = (torch.arange(n, device=flow.device) for n in grid.shape)
        departure = torch.stack(
            (
                columns - flow[0] * (self.dt / grid.dx),
                rows[:, None] - flow[1] * (self.dt / grid.dy),
            )
        )
        self.departure.copy_(departure)
        self._mark_fitted()

    def ahead(self, x: Tensor, known: Tensor | None) -> Tensor:
        fluctuation = self._fluctuation(x[:, -len(self.mean) :], known)
        frames = []
        for _ in range(self.config.horizon):
            fluctuation = self._carried(fluctuation)
            frames.append(self.mean + fluctuation)
        return torch.cat(frames, dim=1)

    def _carried(self, fluctuation: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        (ny, nx), grid = fluctuation.shape[-2:], self.spec.grid
        offsets = _OFFSETS[self.config.interpolation]
        columns = _neighbours(self.departure[0], nx, offsets, periodic=grid.periodic_x)
        rows = _neighbours(self.departure[1], ny, offsets, periodic=grid.periodic_y)
        points = fluctuation.flatten(2)
        carried = torch.zeros_like(fluctuation)
        for row, row_weight in rows:
            for column, column_weight in columns:
                values = points.index_select(2, (row * nx + column).flatten())
                carried = carried + values.view_as(carried) * (row_weight * column_weight)
        return carried


def _neighbours(
    place: Float[Tensor, "y x"], size: int, offsets: tuple[int, ...], *, periodic: bool
) -> list[tuple[Int[Tensor, "y x"], Float[Tensor, "y x"]]]:
    """Grid points next to places on an axis, and their weights: Lagrange's polynomials."""
    if periodic:
        first = place.floor()
    else:
        place = place.clamp(0, size - 1)
        # Moved inward next to a side, where the polynomial is read off its middle.
        first = place.floor().clamp(-offsets[0], max(size - 1 - offsets[-1], -offsets[0]))
    pairs = []
    for offset in offsets:
        weight = torch.ones_like(place)
        for other in offsets:
            if other != offset:
                weight = weight * ((place - first - other) / (offset - other))
        index = (first + offset).long()
        index = index.remainder(size) if periodic else index.clamp(0, size - 1)
        pairs.append((index, weight))
    return pairs
