"""PIBERT: hybrid spectral encoder, physics-biased transformer, token-to-grid decoder.

    field -> Fourier + wavelets, gated -> 1x1 projection -> patches -> parameter token (last)
          -> positions -> pre-norm blocks with physics-biased attention -> norm
          -> patches to points -> + scale * last frame -> three-convolution refinement

The output starts at zero correction: an untrained model repeats the last frame exactly. Grids that
are not a multiple of the patch are extended by repeating their last row and column, and the output
is cropped; on another resolution the learned positions are interpolated.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import PARAMETER_WIDTH, FieldSpec, Normalizer
from pibert.models.attention import Block, PhysicsBias
from pibert.models.encoder import Gate, HybridEncoder, folded_decoding, folded_tokens
from pibert.models.fourier import FourierBranch
from pibert.models.layers import (
    Answer,
    Fields,
    Mask,
    Tokens,
    Vector,
    full_precision,
    lattice_shape,
    make_mlp,
    padded_to_multiple,
    resize_tokens,
)
from pibert.models.reconstruction import PODModes, first_guess
from pibert.models.stepper import Stepper, StepperConfig, known_points, zero
from pibert.models.wavelet import Wavelet, WaveletBranch
from pibert.physics import find_family


@dataclass(frozen=True, kw_only=True, slots=True)
class PIBERTConfig(StepperConfig):
    """Sizes and switches; the defaults are the ``base`` preset, the paper's cylinder model."""

    width: int = 128
    heads: int = 4
    depth: int = 4
    patch: int = 4
    fourier_modes: int = 16
    """Kept rows of either sign; half as many columns."""
    refine_width: int = 32
    mlp_ratio: int = 4
    dropout: float = 0.02
    """Dropout of the tokens as they enter the blocks."""
    branches: Literal["hybrid", "fourier", "wavelet"] = "hybrid"
    gate: Gate = "scalar"
    wavelet: Wavelet = "fixed"
    wavelet_levels: int = 1
    unitary: bool = False
    """Column-unitary mode weights and orthonormal sub-band mixing: a nonexpansive encoder."""
    attention_bias: float = 0.12
    """lambda_att; 0 leaves the attention unbiased."""
    family: str | None = None
    """PDE family of the bias; None: the family of the field spec."""
    family_weights: tuple[float, ...] | None = None
    """Weight of each residual term of the family (the paper's alpha_div, alpha_mom); None: ones."""
    parameter_token: bool = True
    refine: bool = True
    fill_modes: int = 0
    """POD modes of training fields that the reconstruction starts from; 0: a thin plate."""

    def __post_init__(self) -> None:
        # Called by name: a bare super() fails in a dataclass with slots.
        StepperConfig.__post_init__(self)
        if self.dropout >= 1:
            raise ValueError(f"dropout must be in [0, 1), found {self.dropout}")


PRESETS: dict[str, PIBERTConfig] = {
    "base": PIBERTConfig(),
    "large": PIBERTConfig(width=192, heads=6, depth=7, patch=8, fourier_modes=28, refine_width=96),
}


class PIBERT(Stepper):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x)."""

    embedded = "tokens of the patches after the last norm"
    """The layer that ``embed`` returns."""
    PRETRAINED_HEADS = ("mpp_head", "ecp_head")
    """Modules that only pretraining uses."""

    def __init__(self, config: PIBERTConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        if config.family is not None:
            find_family(config.family)
        self.check_size(spec.grid.shape)
        d, patch = config.width, config.patch
        self.token_shape = self.token_lattice(spec.grid.shape)
        self.encoder = self._build_encoder()
        self.folds = self.encoder.is_affine
        """Whether the affine ends are folded; False gives the same function in the plain form."""
        self.projection = nn.Conv2d(d, d, 1)
        self.patch_embedding = nn.Conv2d(d, d, patch, stride=patch)
        self.parameter_embedding = (
            make_mlp(PARAMETER_WIDTH, d, d) if config.parameter_token else None
        )
        num_tokens = self.token_shape[0] * self.token_shape[1] + config.parameter_token
        self.positions = nn.Parameter(torch.empty(num_tokens, d))
        nn.init.trunc_normal_(self.positions, std=0.02)
        self.physics_bias = None
        if config.attention_bias > 0 and (config.family or spec.family):
            self.physics_bias = PhysicsBias(
                spec,
                patch,
                history=config.history,
                family=config.family,
                weights=config.family_weights,
            )
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(d, config.heads, config.mlp_ratio) for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(d)
        self.expand = nn.Linear(d, patch**2 * d)
        self.read_out = nn.Conv2d(d, self.out_channels, 1)
        self.mpp_head = nn.Linear(d, patch**2 * self.in_channels)
        self.ecp_head = make_mlp(d, d // 2, 1)
        self.pod_modes = (
            PODModes(config.fill_modes, (self.in_channels, *spec.grid.shape))
            if config.fill_modes
            else None
        )
        self.skip_scale = nn.Parameter(torch.ones(1)) if config.residual else None
        self.refinement = self._build_refinement() if config.refine else None
        # Zero correction at the start: the untrained model is persistence, and fills smoothly.
        zero(self.read_out)
        zero(self.mpp_head)

    def _build_encoder(self) -> HybridEncoder:
        config, channels, shape = self.config, self.in_channels, self.spec.grid.shape
        fourier = wavelet = None
        if config.branches != "wavelet":
            fourier = FourierBranch(
                channels, config.width, config.fourier_modes, shape, unitary=config.unitary
            )
        if config.branches != "fourier":
            wavelet = WaveletBranch(
                channels,
                config.width,
                levels=config.wavelet_levels,
                kind=config.wavelet,
                unitary=config.unitary,
            )
        return HybridEncoder(fourier, wavelet, gate=config.gate, in_channels=channels)

    def _build_refinement(self) -> nn.Sequential:
        h = self.config.refine_width
        last = nn.Conv2d(h, self.out_channels, 3, padding=1)
        zero(last)
        return nn.Sequential(
            nn.Conv2d(self.out_channels + self.in_channels, h, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(h, h, 3, padding=1),
            nn.GELU(),
            last,
        )

    def patch(self, shape: tuple[int, int]) -> int:
        """Return the side of a token in points: the same on any grid."""
        return self.config.patch

    def token_lattice(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of tokens on a grid."""
        return lattice_shape(shape, self.config.patch)

    def calibrate(
        self,
        x: Float[Tensor, "n c y x"],
        normalizer: Normalizer | None = None,
        parameters: Float[Tensor, "n q"] | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Set the units and residual scales of the physics bias, and the POD modes.

        ``x`` holds standardised training samples.
        """
        super().calibrate(x, normalizer, parameters, mask)
        if self.physics_bias is not None:
            if normalizer is not None:
                self.physics_bias.set_normalizer(normalizer)
            self.physics_bias.calibrate(x, parameters, mask)
        if self.pod_modes is not None:
            self.pod_modes.fit(x, known_points(mask, x))

    def forward(self, x: Fields, parameters: Vector = None, mask: Mask = None) -> Answer:
        """Return the next frames, standardised like the input; arguments as for ``Stepper``.

        Unknown points do not count in the physics bias either.
        """
        x = self.prepared(x, parameters, mask)
        tokens = self._encode(x, parameters, mask)
        field = self._to_grid(self._decode(tokens), self.out_channels, x.shape[-2:])
        if self.skip_scale is not None:
            field = field + self.skip_scale * self.last_frame(x)
        if self.refinement is not None:
            # Convolutions compute in channels-last layout on CPU and GPU.
            both = torch.cat((field, x), dim=1).contiguous(memory_format=torch.channels_last)
            field = field + self.refinement(both).contiguous()
        return self.with_motion(field, x, parameters)

    def encode(self, x: Fields, parameters: Vector = None, mask: Mask = None) -> Tokens:
        """Return the tokens after the last norm, row by row, the parameter token last."""
        return self._encode(self.prepared(x, parameters, mask), parameters, mask)

    def embed(
        self, x: Fields, parameters: Vector = None, mask: Mask = None
    ) -> Float[Tensor, "b d v w"]:
        """Return the patch tokens on their lattice, without the parameter token."""
        tokens = self.encode(x, parameters, mask)
        ty, tx = self.token_lattice((x.shape[-2], x.shape[-1]))
        return tokens[:, : ty * tx].mT.unflatten(-1, (ty, tx))

    def reconstruct(self, x: Fields, parameters: Vector = None, mask: Mask = None) -> Fields:
        """Return the complete input field (masked physics prediction).

        The head corrects a first guess at unknown points: a smooth field, or with ``fill_modes``
        the most likely field under the POD modes.
        """
        x = self.prepared(x, parameters, mask)
        tokens = self._encode(x, parameters, mask)
        correction = self._to_grid(self.mpp_head(tokens), self.in_channels, x.shape[-2:])
        if mask is None:
            return x + correction
        return first_guess(x, known_points(mask, x), self.spec.grid, self.pod_modes) + correction

    def consistency(
        self, x: Fields, parameters: Vector = None, mask: Mask = None
    ) -> Float[Tensor, " b"]:
        """Return the logit that the field obeys its equations (equation consistency prediction)."""
        return self.ecp_head(self.encode(x, parameters, mask).mean(1)).squeeze(-1)

    def check_size(self, shape: tuple[int, int]) -> None:
        """Require at least one patch."""
        patch = self.config.patch
        if min(shape) < patch:
            raise ValueError(
                f"the grid must be at least one patch of {patch} x {patch}, "
                f"found {shape[0]} x {shape[1]}"
            )

    def _encode(self, x: Tensor, parameters: Tensor | None, mask: Tensor | None) -> Tensor:
        bias = self._logit_bias(x, parameters, mask)
        tokens = self._embed(padded_to_multiple(x, self.config.patch))
        if self.parameter_embedding is not None:
            known = self.parameter_vector(x, parameters)
            tokens = torch.cat((tokens, self.parameter_embedding(known)[:, None]), dim=1)
        lattice = self.token_lattice((x.shape[-2], x.shape[-1]))
        tokens = self.dropout(tokens + self._positions(lattice))
        for block in self.blocks:
            tokens = block(tokens, bias)
        return self.norm(tokens)

    def _embed(self, x: Tensor) -> Tensor:
        if not self.folds:
            features = self.patch_embedding(self.projection(self.encoder(x)))
            return features.flatten(2).mT
        # Spectral sums stay in full precision under autocast.
        with torch.autocast(x.device.type, enabled=False):
            x = full_precision(x)
            return folded_tokens(x, self.encoder, self.projection, self.patch_embedding)

    def _logit_bias(
        self, x: Tensor, parameters: Tensor | None, mask: Tensor | None
    ) -> Float[Tensor, "b n"] | None:
        """Return -lambda r_j; zero for the parameter token."""
        if self.physics_bias is None:
            return None
        residual = self.physics_bias(x, parameters, mask)
        return F.pad(-self.config.attention_bias * residual, (0, self.config.parameter_token))

    def _positions(self, token_shape: tuple[int, int]) -> Tensor:
        if token_shape == self.token_shape:
            return self.positions
        count = self.token_shape[0] * self.token_shape[1]
        resized = resize_tokens(self.positions[None, :count], self.token_shape, token_shape)
        return torch.cat((resized[0], self.positions[count:]))

    def _decode(self, tokens: Tensor) -> Tensor:
        """Return the points of every token, (y, x, channel) last."""
        if self.folds:
            return folded_decoding(tokens, self.expand, self.read_out)
        b, n, d = tokens.shape
        points = self.expand(tokens).view(b, n * self.config.patch**2, d, 1)
        return self.read_out(points.transpose(1, 2)).transpose(1, 2).reshape(b, n, -1)

    def _to_grid(self, points: Tensor, channels: int, shape: tuple[int, ...]) -> Tensor:
        """Map (b, n, P P c) to (b, c, y, x), without the parameter token, cropped to shape."""
        (ny, nx), patch = shape, self.config.patch
        ty, tx = self.token_lattice((ny, nx))
        b = points.shape[0]
        cells = points[:, : ty * tx].view(b, ty, tx, patch, patch, channels)
        field = cells.permute(0, 5, 1, 3, 2, 4).reshape(b, channels, ty * patch, tx * patch)
        return field[..., :ny, :nx]
