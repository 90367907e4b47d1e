"""ConvNeXt-U-Net: a convolutional model that works at several resolutions at once.

    field -> 3x3 stem -> stages of blocks, each followed by a halving that doubles the channels
          -> one block at the bottom
          -> for each stage, from the bottom up: doubling, 1x1 merge with the stage's features,
             the same number of blocks -> 3x3 head

A block adds gamma * f(x) to its input x. f is a depthwise 7x7 convolution, a norm over the channels
of each point, and an MLP with four times the channels; gamma is learned per channel and starts at 1
(ConvNeXt starts at 1e-6, for far deeper networks). Four stages of width 16 with two blocks each
have 1,685,810 parameters for two channels in and out. Grids are extended to multiples of 2^stages
by repetition and cropped; the 3x3 and 7x7 convolutions wrap around periodic sides.

References: the block is that of Z. Liu et al., A ConvNet for the 2020s, CVPR 2022; its use in a
U-Net for flow fields that of R. Ohana et al., The Well, NeurIPS 2024.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid
from pibert.models.layers import Answer, Fields, GridConv2d, Parameters, padded_to_multiple
from pibert.models.stepper import BaselineConfig, Stepper, check_most, zero


@dataclass(frozen=True, kw_only=True, slots=True)
class UNetConfig(BaselineConfig):
    """Sizes; the defaults are the ``base`` preset."""

    width: int = 16
    """Channels of the first stage; every further one has twice as many."""
    stages: int = 4
    blocks: int = 2
    """Blocks per stage, on the way down and again on the way up."""
    coordinates: bool = False
    """Use the coordinates of the points as input; without them the model commutes with shifts
    away from the sides."""

    def __post_init__(self) -> None:
        BaselineConfig.__post_init__(self)
        check_most(self, 16, "stages")


PRESETS: dict[str, UNetConfig] = {
    "base": UNetConfig(),
    "wide": UNetConfig(width=32),
    "small": UNetConfig(width=18, stages=3),
    # As many FLOPs on 64 x 64 points as pibert-mr base, and as pibert-mr large and MWT; the last
    # has also as many parameters as pibert-mr large.
    "flops-1.8g": UNetConfig(width=36),
    "flops-4.3g": UNetConfig(width=56),
    "flops-4.3g-5m": UNetConfig(width=47, stages=3, blocks=4),
}


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of each point."""

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """The ConvNeXt block: large depthwise kernel, norm, inverted bottleneck, scaled skip."""

    def __init__(self, width: int, grid: Grid) -> None:
        super().__init__()
        self.spread = GridConv2d(width, width, 7, grid, groups=width)
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        points = self.norm(self.spread(x).permute(0, 2, 3, 1))  # (b, y, x, c)
        points = self.gamma * self.narrow(nn.functional.gelu(self.widen(points)))
        return x + points.permute(0, 3, 1, 2)


class UNet(Stepper):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x)."""

    def __init__(self, config: UNetConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        widths = [config.width * 2**stage for stage in range(config.stages)]

        def blocks(width: int, count: int = config.blocks) -> nn.Sequential:
            return nn.Sequential(*(Block(width, spec.grid) for _ in range(count)))

        inputs = self.num_inputs + self.num_parameters
        inputs += self.num_coordinates if config.coordinates else 0
        self.stem = GridConv2d(inputs, config.width, 3, grid=spec.grid)
        self.down_blocks = nn.ModuleList(blocks(width) for width in widths)
        self.halvings = nn.ModuleList(
            nn.Sequential(ChannelNorm(width), nn.Conv2d(width, 2 * width, 2, stride=2))
            for width in widths
        )
        self.bottom = blocks(2 * widths[-1], 1)
        self.doublings = nn.ModuleList(
            nn.Sequential(ChannelNorm(2 * width), nn.ConvTranspose2d(2 * width, width, 2, stride=2))
            for width in widths
        )
        self.merges = nn.ModuleList(nn.Conv2d(2 * width, width, 1) for width in widths)
        self.up_blocks = nn.ModuleList(blocks(width) for width in widths)
        self.head = GridConv2d(config.width, self.out_channels, 3, spec.grid)
        if config.residual:
            zero(self.head)

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        ny, nx = x.shape[-2:]
        return self.head(self._decoded(x, parameters))[..., :ny, :nx].contiguous()

    def _decoded(self, x: Tensor, parameters: Tensor) -> Tensor:
        """Return the features before the head on the extended grid."""
        x = self.with_coordinates(x) if self.config.coordinates else x
        x = self.with_parameters(x, parameters)
        x = padded_to_multiple(x, 2**self.config.stages)
        # Norms and linear layers need no transposition in channels-last layout.
        features = self.stem(x.contiguous(memory_format=torch.channels_last))
        skips = []
        for blocks, halving in zip(self.down_blocks, self.halvings, strict=True):
            features = blocks(features)
            skips.append(features)
            features = halving(features)
        features = self.bottom(features)
        for stage in reversed(range(self.config.stages)):
            both = torch.cat((self.doublings[stage](features), skips[stage]), dim=1)
            features = self.up_blocks[stage](self.merges[stage](both))
        return features
