"""ConvNeXt-U-Net: a convolutional model that works at several resolutions at once.

    field -> 3x3 stem -> stages of blocks, each followed by a halving that doubles the channels
          -> one block at the bottom
          -> for each stage, from the bottom up: doubling, 1x1 merge with the stage's own features,
             as many blocks -> 3x3 head

A block adds gamma * f(x) to its input x, with f a depthwise 7x7 convolution, a norm over the
channels of each point, a widening to four times the channels, GELU, and the way back; gamma is
learned per channel. Four stages of width 16 with two blocks each have 1,685,810 parameters for two
channels in and out. Grids are extended to multiples of 2^stages by repetition and cropped; the 3x3
and 7x7 convolutions wrap around periodic sides.

References: the block is that of Z. Liu et al., A ConvNet for the 2020s, CVPR 2022; its use in a
U-Net for flow fields that of R. Ohana et al., The Well, NeurIPS 2024.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid
from pibert.models.layers import Answer, Fields, GridConv2d, Parameters, padded_to_multiple
from pibert.models.stepper import (
    Stepper,
    StepperConfig,
    at_least_one,
    at_most,
    with_coordinates,
    zero,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class UNetConfig(StepperConfig):
    """Sizes; the defaults are the ``base`` preset."""

    width: int = 16
    """Channels of the first stage; every further one has twice as many."""
    stages: int = 4
    blocks: int = 2
    """Blocks per stage, on the way down and again on the way up."""
    kernel: int = 7
    """Points along a side of the depthwise convolution, odd."""
    expansion: int = 4
    """How many times wider the middle of a block is."""
    layer_scale: float = 1.0
    """Where gamma starts; ConvNeXt takes 1e-6, for networks that are far deeper."""
    parameters: bool = False
    """Let the flow's parameters enter as constant channels."""
    coordinates: bool = False
    """Let the coordinates of the points enter as two channels; without them the model commutes
    with shifts away from the sides."""

    def __post_init__(self) -> None:
        StepperConfig.__post_init__(self)
        at_least_one(self, "width", "stages", "blocks", "kernel", "expansion")
        at_most(self, 16, "stages")
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, found {self.kernel}")
        if not 0 < self.layer_scale < float("inf"):
            raise ValueError(f"layer_scale must be positive, found {self.layer_scale}")


PRESETS: dict[str, UNetConfig] = {
    "base": UNetConfig(),
    "wide": UNetConfig(width=32),
    "small": UNetConfig(width=18, stages=3),
}


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of each point."""

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """The ConvNeXt block: large depthwise kernel, norm, inverted bottleneck, scaled skip."""

    def __init__(self, width: int, config: UNetConfig, grid: Grid) -> None:
        super().__init__()
        self.spread = GridConv2d(width, width, config.kernel, grid, groups=width)
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, config.expansion * width)
        self.narrow = nn.Linear(config.expansion * width, width)
        self.gamma = nn.Parameter(torch.full((width,), config.layer_scale))

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        points = self.norm(self.spread(x).permute(0, 2, 3, 1))  # (b, y, x, c)
        points = self.gamma * self.narrow(nn.functional.gelu(self.widen(points)))
        return x + points.permute(0, 3, 1, 2)


class UNet(Stepper):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x)."""

    embedded = "points after the last block on the way up"

    def __init__(self, config: UNetConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        self.num_parameters = len(spec.parameters) if config.parameters else 0
        widths = [config.width * 2**stage for stage in range(config.stages)]

        def blocks(width: int, count: int = config.blocks) -> nn.Sequential:
            return nn.Sequential(*(Block(width, config, spec.grid) for _ in range(count)))

        inputs = self.in_channels + 2 * config.coordinates + self.num_parameters
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

    def features(self, x: Fields, parameters: Parameters) -> Float[Tensor, "b d y x"]:
        ny, nx = x.shape[-2:]
        return self._decoded(x, parameters)[..., :ny, :nx]

    def _decoded(self, x: Tensor, parameters: Tensor) -> Tensor:
        """All but the head, on the extended grid."""
        if self.config.coordinates:
            x = with_coordinates(x)
        if self.num_parameters:
            known = parameters[:, : self.num_parameters, None, None]
            x = torch.cat((x, known.expand(-1, -1, *x.shape[-2:])), dim=1)
        x = padded_to_multiple(x, 2**self.config.stages)
        # Channels last is the layout in which norms and linear layers need no transposition.
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
