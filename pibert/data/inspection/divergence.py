"""Whether a velocity field looks like one of incompressible flow, as it is or with other axes.

The divergence is judged by how far its two terms cancel. With a = du/dx and b = dv/dy,

    cancellation = rms(a + b) / sqrt(mean(a^2) + mean(b^2))

is 0 for an incompressible flow in the plane, 1 for terms that know nothing of each other (noise)
and sqrt(2) for terms that are equal. A plane cut through isotropic turbulence has 0.71, because
there mean(a b) = -mean(a^2)/2 (Batchelor, The Theory of Homogeneous Turbulence, 1953). The
``share`` of the terms is sqrt(mean(a^2) + mean(b^2)) over the rms of the whole velocity gradient;
it is at most 0.71 in a homogeneous incompressible flow, because mean(du/dx dv/dy) =
mean(du/dy dv/dx) there. Their product, ``level``, is the rms divergence over the rms velocity
gradient: 0.41 for the plane cut.

The same numbers for other pairs of terms tell what the divergence would be if the rows were stored
from top to bottom (du/dx, -dv/dy), if the axes or the components were exchanged (du/dy, dv/dx), or
both (-du/dy, dv/dx). These are taken after averaging over 3 x 3 points, where the noise of a
measurement weighs less.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import avg_pool2d

from pibert.fields import Grid, Sides
from pibert.physics import derivatives

_PROPORTIONAL = 0.95
"""Correlation of du/dx and -dv/dy that noise and out-of-plane motion do not leave."""


@dataclass(frozen=True)
class Cancellation:
    """How two terms of a divergence cancel; the module's docstring defines the numbers."""

    cancellation: float
    share: float

    @property
    def level(self) -> float:
        return self.cancellation * self.share


@dataclass(frozen=True)
class DivergenceFacts:
    """Divergence as the file has it, and as it would be with other axes."""

    rms: float
    """Per second where the units are known, else in those of the file."""
    gradient: float
    """Rms of the velocity gradient: the root of the mean square sum of its four components."""
    level: float
    """The former over the latter, at the grid's own resolution; what follows is averaged."""
    as_is: Cancellation
    flipped: Cancellation
    exchanged: Cancellation
    both: Cancellation
    stretch: float | None
    """What dy would have to be multiplied by for the divergence to vanish, where that is possible:
    du/dx is nearly proportional to -dv/dy."""


class DivergenceTally:
    """Sums over frames from which the facts follow."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._fine, self._averaged = torch.zeros(2, 7, dtype=torch.float64)

    def add(
        self, u: Float[Tensor, "t y x"], v: Float[Tensor, "t y x"], known: Bool[Tensor, "t y x"]
    ) -> None:
        """Frames of a velocity; a grid of less than five rows or columns tells nothing."""
        if min(self._grid.shape) >= 5:
            u, v = u.double(), v.double()
            self._fine += _sums(u, v, self._grid, known)
            # Averages beyond a side are not those of a wall or of a periodic box.
            open_grid = replace(self._grid, sides=Sides(), body=None)
            self._averaged += _sums(u, v, open_grid, known, average=True)

    def facts(self) -> DivergenceFacts | None:
        """None where nothing is known or nothing varies."""
        count, xx, xy, yx, yy, along, _ = self._fine.tolist()
        rms = math.sqrt(max(0.0, xx + yy + 2 * along) / max(1, count))
        gradient = math.sqrt((xx + xy + yx + yy) / max(1, count))
        _, xx, xy, yx, yy, along, across = self._averaged.tolist()
        total = xx + xy + yx + yy
        if not (total > 0 and gradient > 0):
            return None

        def pair(a: float, b: float, product: float) -> Cancellation:
            both = a + b
            return Cancellation(
                math.sqrt(max(0.0, 1 + 2 * product / both)) if both > 0 else 0.0,
                math.sqrt(both / total),
            )

        return DivergenceFacts(
            rms=rms,
            gradient=gradient,
            level=rms / gradient,
            as_is=pair(xx, yy, along),
            flipped=pair(xx, yy, -along),
            exchanged=pair(xy, yx, across),
            both=pair(xy, yx, -across),
            stretch=math.sqrt(yy / xx) if along < -_PROPORTIONAL * math.sqrt(xx * yy) else None,
        )


def _sums(u: Tensor, v: Tensor, grid: Grid, known: Tensor, *, average: bool = False) -> Tensor:
    """Number of points, and sums of ux^2, uy^2, vx^2, vy^2, ux vy and uy vx over them."""
    inside = known[..., 1:-1, 1:-1] if average else known

    def terms(*components: Tensor) -> Tensor:
        if average:
            components = tuple(avg_pool2d(f, 3, 1) for f in components)
        (ux, uy), (vx, vy) = (derivatives.gradient(f, grid) for f in components)
        points = torch.ones_like(ux) + 0 * (ux + uy + vx + vy)
        return torch.stack((points, ux**2, uy**2, vx**2, vy**2, ux * vy, uy * vx))

    values, defined = derivatives.where_defined(terms, u, v, known=known)
    return torch.where(defined[0] & inside, values, 0.0).sum((1, 2, 3))
