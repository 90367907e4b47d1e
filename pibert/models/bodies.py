"""Distances of the grid points from the surfaces of moving bodies, as input channels of a model."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Normalizer
from pibert.models.attention import at_resolution


class StateUnits(nn.Module):
    """The scaling of the structural state, of a module that needs its physical units."""

    mean: Float[Tensor, " s"]
    std: Float[Tensor, " s"]

    def __init__(self, spec: FieldSpec) -> None:
        super().__init__()
        self.spec = spec
        self.register_buffer("mean", torch.zeros(len(spec.state)))
        self.register_buffer("std", torch.ones(len(spec.state)))

    def set_normalizer(self, normalizer: Normalizer) -> None:
        """Set the physical units of standardised values."""
        count = len(self.spec.state)
        self.mean.copy_(torch.tensor(normalizer.mean[-count:]))
        self.std.copy_(torch.tensor(normalizer.std[-count:]))


class BodyDistance(StateUnits):
    """Where the surface of every moving body is between the points, which a mask does not show.

    Each distance, negative inside, is given in diameters and in pairs of cells, both limited to
    -1 to 1.
    """

    def __init__(self, spec: FieldSpec) -> None:
        super().__init__(spec)
        self.num_channels = 2 * len(spec.moving)

    def forward(self, frame: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k y x"]:
        """Return the distances in a standardised frame whose state is uniform."""
        grid = at_resolution(self.spec.grid, (frame.shape[-2], frame.shape[-1]))
        channels = []
        for body in self.spec.moving:
            place = self.spec.state.index(body.displacement)
            value = frame[:, place - len(self.spec.state), 0, 0].to(self.mean)
            distance = body.distance(grid, value * self.std[place] + self.mean[place])
            channels += [distance / (2 * body.radius), distance / (2 * grid.cell_length)]
        return torch.stack(channels, 1).clamp(-1, 1).to(frame.dtype)
