"""PINN, amortised: a map of every point by itself, trained with a PDE residual of its answer.

    (fields at a point, x, y) -> layers of tanh -> fields of the next frame at that point

One set of weights serves every flow. The published size, 21,250, is that of six layers of 64. Its
objective is ``training/pde_residual.py``: the supervised loss plus a weight times the squared
residual. With the weight 0 it is a pointwise MLP.

The output field is F(x, y) = f(z(x, y), x, y), where z is the input field. The equation needs the
total derivative D_x F = f_x + sum_i f_{z_i} D_x z_i, not f_x, which automatic differentiation by
the coordinate gives. ``total_derivatives`` pushes the derivatives of all inputs through the network
by the chain rule; those of the field come from the grid's stencils.

Reference: Raissi, Perdikaris, Karniadakis, J. Comput. Phys. 378 (2019) 686.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pibert.fields import FieldSpec
from pibert.models.layers import Answer, Fields, Mask, Parameters, Vector
from pibert.models.stepper import (
    Stepper,
    StepperConfig,
    at_least_one,
    checked_mask,
    with_coordinates,
    zero,
)
from pibert.physics.derivatives import ddx, ddy, evaluate_known


@dataclass(frozen=True, kw_only=True, slots=True)
class PINNConfig(StepperConfig):
    """Sizes; the defaults are the ``base`` preset, which has the published parameter count."""

    width: int = 64
    depth: int = 6
    """Hidden layers."""
    parameters: bool = False
    """Whether the flow's parameters enter at every point."""
    pde_weight: float = 1e-3
    """Weight of the PDE residual in the objective; 0 makes it a pointwise MLP."""
    transport: bool = False
    """Whether the residual has vorticity transport beside continuity (see the objective)."""

    def __post_init__(self) -> None:
        StepperConfig.__post_init__(self)
        at_least_one(self, "width", "depth")
        if not (math.isfinite(self.pde_weight) and self.pde_weight >= 0):
            raise ValueError(f"pde_weight must be zero or positive, found {self.pde_weight}")


PRESETS: dict[str, PINNConfig] = {"base": PINNConfig()}


class FieldDerivatives(NamedTuple):
    """A predicted field and its derivatives along x and y, in units of the grid's spacing."""

    field: Float[Tensor, "b k y x"]
    along_x: Float[Tensor, "b k y x"]
    along_y: Float[Tensor, "b k y x"]
    defined: Bool[Tensor, "b y x"]
    """Where the stencils on the input touch known points alone; elsewhere they count as zero."""


class PINN(Stepper):
    """Steps fields (b, history * c, y, x) to (b, horizon * c, y, x), each point for itself."""

    objective = "pde_residual"

    def __init__(self, config: PINNConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        self.num_parameters = len(spec.parameters) if config.parameters else 0
        inputs = self.in_channels + 2 + self.num_parameters
        self.network = TanhNetwork((inputs, *[config.width] * config.depth, self.out_channels))
        if config.residual:
            zero(self.network[-1])

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        return self.network(self._inputs(x, parameters)).movedim(-1, 1)

    def total_derivatives(
        self, x: Fields, parameters: Vector = None, mask: Mask = None
    ) -> FieldDerivatives:
        """The next frames, as a call gives them, and the total derivatives of that field.

        Derivatives are those of the standardised field by the physical coordinates of the grid.
        """
        x = self.prepared(x, parameters, mask)
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        vector = self.parameter_vector(x, parameters)
        inputs = self._inputs(x, vector)
        known = None if mask is None else checked_mask(mask, x)
        slopes, defined = self._slopes(x, known)
        grid, (ny, nx) = self.spec.grid, x.shape[-2:]
        tangents = []
        for slope, place, extent in zip(slopes, (0, 1), (nx * grid.dx, ny * grid.dy), strict=True):
            rest = slope.new_zeros(*slope.shape[:1], inputs.shape[-1] - slope.shape[1], ny, nx)
            rest[:, place] = 1 / extent  # the network sees coordinates from 0 to 1 over the grid
            tangents.append(torch.cat((slope, rest), dim=1).movedim(1, -1))
        with torch.autocast(x.device.type, enabled=False):  # differences need the digits
            change, derivatives = self.network.push(inputs, torch.stack(tangents))
        field, (along_x, along_y) = change.movedim(-1, 1), derivatives.movedim(-1, 2)
        if self.config.residual:
            field = field + self.last_frame(x)
            along_x = along_x + self.last_frame(slopes[0])
            along_y = along_y + self.last_frame(slopes[1])
        return FieldDerivatives(field, along_x, along_y, defined)

    def _inputs(self, x: Tensor, parameters: Tensor) -> Tensor:
        """(b, y, x, input)."""
        return with_coordinates(x, parameters[:, : self.num_parameters]).movedim(1, -1)

    def _slopes(self, x: Tensor, known: Tensor | None) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Derivatives of the input fields along x and y, zero where not defined, and where."""
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
    """Linear layers with tanh between them, drawn by Xavier's rule.

    Args:
        sizes: Numbers of features, from the input to the output.
        generator: Draws the weights.
    """

    def __init__(self, sizes: tuple[int, ...], generator: torch.Generator | None = None) -> None:
        layers: list[nn.Module] = []
        for wide_in, wide_out in zip(sizes[:-1], sizes[1:], strict=True):
            layer = nn.Linear(wide_in, wide_out)
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.Tanh()]
        super().__init__(*layers[:-1])

    def push(
        self, inputs: Float[Tensor, "*batch i"], tangents: Float[Tensor, "way *batch i"]
    ) -> tuple[Float[Tensor, "*batch o"], Float[Tensor, "way *batch o"]]:
        """The output, and its derivatives along some ways, given those of the inputs."""
        for layer in self:
            inputs = layer(inputs)
            if isinstance(layer, nn.Linear):
                tangents = F.linear(tangents, layer.weight)
            else:
                tangents = tangents * (1 - inputs.square())
        return inputs, tangents
