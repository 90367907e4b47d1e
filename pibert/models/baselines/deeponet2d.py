"""DeepONet2d: the deep operator network of Lu et al. (2021), for fields on one grid.

    change_k(x, y) = sum_{j=1..p} B_kj(field) T_kj(x, y) + b_k        for every output channel k

The branch B sees the whole field: convolutions of stride 2, flattened, then two dense layers. The
trunk T depends on the coordinates alone: p basis functions for each channel, the same for every
input. So the change of a channel lies in a space of dimension p, the rank. The branch reads the
points of the grid in the field spec and refuses other grids. The initialisation of the trunk is
not from the paper.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec
from pibert.models.layers import Answer, Fields, Parameters, point_coordinates
from pibert.models.stepper import BaselineConfig, Stepper, zero


@dataclass(frozen=True, kw_only=True, slots=True)
class DeepONet2dConfig(BaselineConfig):
    """Sizes; the defaults are the ``base`` preset, which has the published parameter count."""

    rank: int = 16
    """p: basis functions for each output channel."""
    channels: tuple[int, ...] = (16, 32, 32)
    """Features of the branch's convolutions; each of them halves the grid."""
    branch_width: int = 64
    trunk_width: int = 32
    trunk_depth: int = 3
    """Hidden layers of the trunk."""

    def __post_init__(self) -> None:
        BaselineConfig.__post_init__(self)
        if not self.channels or min(self.channels) < 1:
            raise ValueError(
                f"channels must be one or more numbers of at least 1, found {self.channels}"
            )


PRESETS: dict[str, DeepONet2dConfig] = {
    "base": DeepONet2dConfig(),
    "rank64": DeepONet2dConfig(rank=64, channels=(16, 32, 64, 64), trunk_width=64),
    "wide": DeepONet2dConfig(
        rank=128, channels=(32, 64, 128, 128), branch_width=128, trunk_width=128, trunk_depth=4
    ),
}


class DeepONet2d(Stepper):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x).

    The change of each channel has at most ``rank`` degrees of freedom; only the grid of the spec.
    """

    def __init__(self, config: DeepONet2dConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        self.convolutions = nn.Sequential()
        for before, after in pairwise((self.num_inputs, *config.channels)):
            self.convolutions.append(nn.Conv2d(before, after, 3, stride=2, padding=1))
            self.convolutions.append(nn.GELU())
        stride = 2 ** len(config.channels)
        cells = math.prod(-(-size // stride) for size in spec.grid.shape)
        features = config.channels[-1] * cells + self.num_parameters
        products = self.out_channels * config.rank
        coefficients = nn.Linear(config.branch_width, products)
        self.branch = nn.Sequential(
            nn.Linear(features, config.branch_width), nn.GELU(), coefficients
        )
        self.trunk = nn.Sequential()
        for before, after in pairwise(
            (self.num_coordinates, *[config.trunk_width] * config.trunk_depth)
        ):
            self.trunk.extend((nn.Linear(before, after), nn.GELU()))
        self.trunk.append(nn.Linear(config.trunk_width, products))
        spread_over_the_domain(self.trunk)
        self.offset = nn.Parameter(torch.zeros(self.out_channels))
        if config.residual:
            # The coefficients, not the basis: a basis of zeros would not learn from them.
            zero(coefficients)

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        ny, nx = x.shape[-2:]
        features = self.convolutions(x).flatten(1)
        if self.num_parameters:
            features = torch.cat((features, parameters[:, : self.num_parameters]), dim=1)
        coefficients = self.branch(features).unflatten(1, (self.out_channels, -1))
        basis = self.basis((ny, nx), like=x)
        products = torch.einsum("bkp,kpn->bkn", coefficients, basis)
        return (products + self.offset[:, None]).unflatten(2, (ny, nx))

    def basis(
        self, shape: tuple[int, int], *, like: Float[Tensor, "..."]
    ) -> Float[Tensor, "k p n"]:
        """Return the basis functions at every point of a grid, row by row."""
        coordinates = point_coordinates(self.spec.grid, shape, like, start=-1.0)
        values = self.trunk(coordinates[0].flatten(1).mT)
        return values.mT.unflatten(0, (self.out_channels, -1))

    def check_size(self, shape: tuple[int, int]) -> None:
        """Require the grid of the spec."""
        expected = self.spec.grid.shape
        if shape != expected:
            raise ValueError(
                f"expected fields on the grid of the spec, {expected[0]} x {expected[1]}, found "
                f"{shape[0]} x {shape[1]}: the branch reads fixed points; resample the "
                "fields or build the model for their grid"
            )


def spread_over_the_domain(trunk: nn.Sequential) -> None:
    """Initialise the trunk with distinct functions: kinks spread across the domain.

    The default initialisation gives nearly linear functions of x and y, which a short training
    does not bend. Later layers keep the variance of their input (He et al. 2015).
    """
    first, *others = (layer for layer in trunk if isinstance(layer, nn.Linear))
    nn.init.normal_(first.weight, std=3.0)
    point = 2 * torch.rand_like(first.weight) - 1
    with torch.no_grad():
        first.bias.copy_(-(first.weight * point).sum(1))
    for layer in others:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
