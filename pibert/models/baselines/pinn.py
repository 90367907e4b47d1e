"""Amortised PINN: a pointwise map, trained with the PDE residual of its output.

    (fields and coordinates of a point) -> layers of tanh -> fields of the next frame at that point

One set of weights serves every flow. The published size is that of six layers of 64. The objective
is ``training/pde_residual.py``: the supervised loss plus a weight times the squared residual.

The output field is F(x, y) = f(z(x, y), x, y), where z is the input field. The equation needs the
total derivative D_x F = f_x + sum_i f_{z_i} D_x z_i, not the f_x of automatic differentiation with
respect to the coordinate. ``total_derivatives`` propagates the derivatives of all inputs through
the network by the chain rule; those of the field come from the grid's stencils.

Reference: Raissi, Perdikaris, Karniadakis, J. Comput. Phys. 378 (2019) 686.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pibert.fields import FieldSpec
from pibert.models.layers import Answer, Fields, Mask, Parameters, Vector, full_precision
from pibert.models.stepper import BaselineConfig, Stepper, checked_mask, zero
from pibert.physics.derivatives import ddx, ddy, evaluate_known


@dataclass(frozen=True, kw_only=True, slots=True)
class PINNConfig(BaselineConfig):
    """Sizes; the defaults are the ``base`` preset, which has the published parameter count."""

    width: int = 64
    depth: int = 6
    """Hidden layers."""
    pde_weight: float = 1e-3
    """Weight of the PDE residual in the objective; 0: a pointwise MLP."""
    transport: bool = False
    """Include vorticity transport in the residual, beside continuity."""


PRESETS: dict[str, PINNConfig] = {"base": PINNConfig()}


class FieldDerivatives(NamedTuple):
    """A predicted field and its derivatives along x and y."""

    field: Float[Tensor, "b k y x"]
    along_x: Float[Tensor, "b k y x"]
    along_y: Float[Tensor, "b k y x"]
    defined: Bool[Tensor, "b y x"]
    """True where the stencils on the input touch only known points; zero derivatives elsewhere."""


class PINN(Stepper):
    """Steps fields (b, history * c, y, x) to (b, horizon * c, y, x), point by point."""

    objective = "pde_residual"
    takes_dmd = False

    def __init__(self, config: PINNConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        inputs = self.num_inputs + self.num_coordinates + self.num_parameters
        self.network = TanhNetwork((inputs, *[config.width] * config.depth, self.out_channels))
        if config.residual:
            zero(self.network[-1])

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        return self.network(self._inputs(x, parameters)).movedim(-1, 1)

    def total_derivatives(
        self, x: Fields, parameters: Vector = None, mask: Mask = None
    ) -> FieldDerivatives:
        """Return the next frames and their total derivatives.

        Derivatives are those of the standardised field by the physical coordinates of the grid.
        """
        x = full_precision(self.prepared(x, parameters, mask))
        vector = self.parameter_vector(x, parameters)
        inputs = self._inputs(x, vector)
        known = None if mask is None else checked_mask(mask, x)
        slopes, defined = self._slopes(x, known)
        grid, (ny, nx) = self.spec.grid, x.shape[-2:]
        axes = ((nx * grid.dx, grid.periodic_x), (ny * grid.dy, grid.periodic_y))
        tangents: list[Tensor] = []
        place = x.shape[1]  # of the coordinates of an axis among the inputs
        for slope, (extent, wraps) in zip(slopes, axes, strict=True):
            tangent = torch.zeros_like(inputs)
            tangent[..., : x.shape[1]] = slope.movedim(1, -1)
            if wraps:  # the cosine and the sine of an angle
                cosine, sine = inputs[..., place], inputs[..., place + 1]
                tangent[..., place] = -2 * torch.pi / extent * sine
                tangent[..., place + 1] = 2 * torch.pi / extent * cosine
            else:  # from 0 to 1 over the grid
                tangent[..., place] = 1 / extent
            place += 1 + wraps
            tangents.append(tangent)
        with torch.autocast(x.device.type, enabled=False):  # differences need the digits
            change, derivatives = self.network.push(inputs, torch.stack(tangents))
        field, (along_x, along_y) = change.movedim(-1, 1), derivatives.movedim(-1, 2)
        if self.config.residual:
            field = field + self.last_frame(x)
            along_x = along_x + self.last_frame(slopes[0])
            along_y = along_y + self.last_frame(slopes[1])
        return FieldDerivatives(field, along_x, along_y, defined)

    def _inputs(self, x: Tensor, parameters: Tensor) -> Tensor:
        """Return the inputs of every point, (b, y, x, input)."""
        return self.with_parameters(self.with_coordinates(x), parameters).movedim(1, -1)

    def _slopes(self, x: Tensor, known: Tensor | None) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return derivatives of the input, zero where undefined, and where they are defined."""
        grid, (b, _, ny, nx) = self.spec.grid, x.shape
        if known is None:
            everywhere = torch.ones(b, ny, nx, dtype=torch.bool, device=x.device)
            return (ddx(x, grid), ddy(x, grid)), everywhere
        values, flags = evaluate_known(
            lambda f: (ddx(f, grid), ddy(f, grid)), x, known=known, linear=True
        )
        defined = (flags[0] & flags[1]).all(1)
        along_x, along_y = (torch.where(defined[:, None], value, 0.0) for value in values)
        return (along_x, along_y), defined


class TanhNetwork(nn.Sequential):
    """Linear layers of the given sizes with tanh between them, initialised by Xavier's rule."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise(sizes):
            layer = nn.Linear(size_in, size_out)
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.Tanh()]
        super().__init__(*layers[:-1])

    def push(
        self, inputs: Float[Tensor, "*batch i"], tangents: Float[Tensor, "axis *batch i"]
    ) -> tuple[Float[Tensor, "*batch o"], Float[Tensor, "axis *batch o"]]:
        """Return the output and its derivatives along some axes, given those of the inputs."""
        for layer in self:
            inputs = layer(inputs)
            if isinstance(layer, nn.Linear):
                tangents = F.linear(tangents, layer.weight)
            else:
                tangents = tangents * (1 - inputs.square())
        return inputs, tangents
