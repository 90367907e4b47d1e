"""Mean advection: fluctuations about the training mean, carried along by the mean flow.

    x'_{t+1}(r) = x'_t(r - U(r) dt),     x' = x - m

m is the training mean at every point and U its velocity; U dt is computed in physical units and
converted to cells of the grid. This is Taylor's hypothesis of frozen turbulence with a mean flow
that varies in space.

The fluctuation at the departure point r - U(r) dt is interpolated by the cubic polynomials through
4 x 4 points. Periodic sides wrap; departure points beyond other sides move to the side. Unknown
points have no fluctuation; points that are never known have no velocity.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pibert.fields import Batch, FieldSpec, Normalizer
from pibert.models.references.simple import AboutTheMean, ReferenceConfig

PRESETS: dict[str, ReferenceConfig] = {"base": ReferenceConfig()}
_OFFSETS = (-1, 0, 1, 2)
"""Points of the interpolation, relative to the last one before the position."""


class MeanAdvection(AboutTheMean):
    """Advects fluctuations with the mean flow, frame by frame."""

    departure: Float[Tensor, "2 y x"]
    """Column and row, in cells, from which the fluid at each point came within a frame."""

    def __init__(self, config: ReferenceConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        if spec.velocity is None:
            raise ValueError(
                "mean advection expected the velocity channels u and v of a flow, found channels "
                f"{list(spec.channels)} of family {spec.family!r}"
            )
        if spec.dt is None:
            raise ValueError(
                "mean advection expected a spec with the time step dt between frames, found None; "
                "state it, or omit this reference where time steps differ"
            )
        self.velocity, self.dt = spec.velocity, spec.dt
        self.register_buffer("departure", torch.zeros(2, *spec.grid.shape))

    def fit(
        self, batches: Iterable[Batch], normalizer: Normalizer, valid: Iterable[Batch] | None = None
    ) -> None:
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
            fluctuation = self._advected(fluctuation)
            frames.append(self.mean + fluctuation)
        return torch.cat(frames, dim=1)

    def _advected(self, fluctuation: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        (ny, nx), grid = fluctuation.shape[-2:], self.spec.grid
        columns = _neighbours(self.departure[0], nx, periodic=grid.periodic_x)
        rows = _neighbours(self.departure[1], ny, periodic=grid.periodic_y)
        points = fluctuation.flatten(2)
        advected = torch.zeros_like(fluctuation)
        for row, row_weight in rows:
            for column, column_weight in columns:
                values = points.index_select(2, (row * nx + column).flatten())
                advected = advected + values.view_as(advected) * (row_weight * column_weight)
        return advected


def _neighbours(
    position: Float[Tensor, "y x"], size: int, *, periodic: bool
) -> list[tuple[Int[Tensor, "y x"], Float[Tensor, "y x"]]]:
    """Return the grid points next to positions on an axis, and their Lagrange weights."""
    if periodic:
        first = position.floor()
    else:
        position = position.clamp(0, size - 1)
        # Moved inward next to a side.
        first = position.floor().clamp(-_OFFSETS[0], max(size - 1 - _OFFSETS[-1], -_OFFSETS[0]))
    pairs = []
    for offset in _OFFSETS:
        weight = torch.ones_like(position)
        for other in _OFFSETS:
            if other != offset:
                weight = weight * ((position - first - other) / (offset - other))
        index = (first + offset).long()
        index = index.remainder(size) if periodic else index.clamp(0, size - 1)
        pairs.append((index, weight))
    return pairs
