"""A masked auto-encoder of single frames: what FourierFlow's features are aligned with.

    encoder   tokens of the visible patches -> blocks -> norm                    (features)
    decoder   features, a learned token at every other patch, positions -> blocks -> patch values

A patch is visible where at least one of its points is known; the known points enter as a channel
beside the values, so that masks need not follow the patches. No visible patch attends to a hidden
one: features are what they would be if hidden patches were dropped, while all shapes stay fixed.
Frames of a history are coded one by one, under one mask.

It is pretrained by filling in hidden points (``training/masked.py``) and frozen afterwards. The
release of FourierFlow codes several frames together; with one frame in and one out there is
nothing to code over time.

Reference: He et al., "Masked autoencoders are scalable vision learners", 2022.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pibert.models.attention import Block
from pibert.models.baselines.patches import Positions, from_patches, lattice_shape, to_patches
from pibert.models.stepper import zero

_NEVER = -1e4
"""Logit of a key that is not attended to: finite, as a frame may have no visible patch at all."""


class MaskedAutoencoder(nn.Module):
    """Codes and completes frames (b, c, y, x).

    Args:
        channels: Of one frame.
        shape: Rows and columns of the grid.
        patch: Side of a patch in points.
        width: Of the tokens.
        heads: Of the attention.
        encoder_depth: Blocks of the encoder.
        decoder_depth: Blocks of the decoder.
    """

    def __init__(
        self,
        channels: int,
        shape: tuple[int, int],
        *,
        patch: int = 4,
        width: int = 128,
        heads: int = 4,
        encoder_depth: int = 4,
        decoder_depth: int = 2,
    ) -> None:
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear((channels + 1) * patch**2, width)
        self.positions = Positions(lattice_shape(shape, patch), width)
        self.encoder = nn.ModuleList(Block(width, heads) for _ in range(encoder_depth))
        self.norm = nn.LayerNorm(width)
        self.hidden_token = nn.Parameter(torch.empty(width))
        self.decoder_positions = Positions(lattice_shape(shape, patch), width)
        self.decoder = nn.ModuleList(Block(width, heads) for _ in range(decoder_depth))
        self.decoder_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, channels * patch**2)
        nn.init.trunc_normal_(self.hidden_token, std=0.02)
        # At the start every point is filled with the mean of its channel.
        zero(self.head)

    def forward(
        self, frames: Float[Tensor, "b c y x"], known: Bool[Tensor, "b y x"]
    ) -> Float[Tensor, "b c y x"]:
        """The complete frames, as far as they can be told from their known points."""
        ny, nx = frames.shape[-2:]
        tokens, visible = self._encode(frames, known)
        tokens = torch.where(visible[..., None], tokens, self.hidden_token.to(tokens.dtype))
        tokens = tokens + self.decoder_positions(lattice_shape((ny, nx), self.patch))
        for block in self.decoder:
            tokens = block(tokens)
        return from_patches(self.head(self.decoder_norm(tokens)), self.patch, (ny, nx))

    def features(
        self, frames: Float[Tensor, "b c y x"], known: Bool[Tensor, "b y x"]
    ) -> tuple[Float[Tensor, "b n d"], Bool[Tensor, "b n"]]:
        """What the encoder makes of frames, and which patches are visible; others mean nothing."""
        return self._encode(frames, known)

    def _encode(self, frames: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        patches = to_patches(known[:, None].to(frames.dtype), self.patch)
        visible = patches.amax(-1) > 0
        values = to_patches(torch.where(known[:, None], frames, 0.0), self.patch)
        tokens = self.embed(torch.cat((values, patches), dim=-1))
        ny, nx = frames.shape[-2:]
        tokens = tokens + self.positions(lattice_shape((ny, nx), self.patch))
        bias = torch.where(visible, 0.0, _NEVER)
        for block in self.encoder:
            tokens = block(tokens, bias)
        return self.norm(tokens), visible
