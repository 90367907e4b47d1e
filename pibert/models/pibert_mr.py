"""Multiresolution PIBERT: wavelet cycles with local operators, and attention on the coarsest scale.

The step operator has the non-standard form of Beylkin, Coifman and Rokhlin (Comm. Pure Appl. Math.
44, 1991). An orthonormal Haar transform splits features into averages s and details d, level by
level. On fine levels the operator is nearly diagonal, so a small convolution on (s, d) together is
enough. On the coarsest level it is dense, and the global operators of PIBERT act on a few hundred
tokens: a Fourier multiplier and physics-biased attention.

    fields, known points, coordinates, products of the equations -> 3x3 lift, + parameters
    -> Haar: bands (s_1, d_1) of the finest level
    -> cycle, cycle, ...     on each level l = 1 ... L:
                               (s_l, d_l) <- (s_l, d_l) + local_l(s_l, d_l)
                               (s_{l+1}, d_{l+1}) = Haar(s_l)
                             tokens <- tokens + project(s_L);  Fourier, attention, MLP
                             s_L <- s_L + project(tokens)
                             back up: s_{l-1} = Haar^-1(s_l, d_l)
    -> Haar^-1 -> 1x1 head, added to the last frame

Between the first and the last transform the model works on bands, which have at most half the
points of the grid along each side. Tokens persist from cycle to cycle. The head starts at zero: an
untrained model is persistence. Level l has separate weights up to ``own_levels``; deeper levels
share those of the last, and there are no learned positions. So one set of weights serves every
grid. On larger grids more levels keep the coarsest level below ``most_tokens``, and the cost grows
linearly with the number of points.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import PARAMETER_WIDTH, FieldSpec, Grid, Normalizer
from pibert.models.attention import Block, PhysicsBias
from pibert.models.bodies import BodyDistance
from pibert.models.equation_terms import EquationTerms
from pibert.models.fourier import FourierMultiplier
from pibert.models.layers import (
    Answer,
    Fields,
    GridConv2d,
    Mask,
    Vector,
    constant,
    count,
    count_coordinates,
    lattice_shape,
    make_mlp,
    padded_to_multiple,
    point_coordinates,
)
from pibert.models.reconstruction import PODModes, first_guess
from pibert.models.stepper import Stepper, StepperConfig, known_points, zero
from pibert.physics import find_family


@dataclass(frozen=True, kw_only=True, slots=True)
class PIBERTMRConfig(StepperConfig):
    """Sizes and switches; the defaults are the ``base`` preset."""

    MAY_BE_ZERO = ("fourier_modes", "heads")

    width: int = 32
    """Features of each point."""
    local_width: int = 72
    """Hidden channels of a local operator."""
    token_width: int = 64
    heads: int = 4
    """Of the attention on the coarsest level; 0: no attention."""
    mlp_ratio: int = 2
    cycles: int = 6
    levels: int = 2
    """Levels on grids of up to ``most_tokens`` tokens."""
    most_tokens: int = 1024
    """Tokens on the coarsest level; larger grids get more levels instead."""
    own_levels: int = 2
    """Finest levels with separate weights; deeper levels share those of the last one."""
    fourier_modes: int = 5
    """Largest wavenumber of the Fourier multiplier, in cycles per domain; 0: no multiplier."""
    coordinates: bool = True
    """Use the coordinates of the points as input."""
    equation_terms: bool = True
    """Use products of the governing equations as input."""
    vorticity_velocity: bool = False
    """Add the velocity of the vorticity ``omega`` on periodic grids to the equation terms."""
    dmd_modes: int = 0
    """Correct the frame that DMD predicts with at most this many modes; 0: the last frame."""
    attention_bias: float = 0.12
    """lambda_att; 0 leaves the attention unbiased."""
    family: str | None = None
    """PDE family of the bias; None: the family of the field spec."""
    parameter_token: bool = True
    fill_modes: int = 0
    """POD modes of training fields that the reconstruction starts from; 0: a thin plate."""


PRESETS: dict[str, PIBERTMRConfig] = {
    "base": PIBERTMRConfig(),
    "small": PIBERTMRConfig(width=16, local_width=48, token_width=64, cycles=2),
    "large": PIBERTMRConfig(width=40, local_width=192, token_width=192, heads=6, cycles=4),
}


@constant
def haar_kernel(
    channels: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "k c 2 2"]:
    """Return the Haar transform of all channels as the kernel of a convolution with stride 2."""
    bit = count(0, 2, device=device)
    across = bit[:, None, None] * bit  # (band, y, x): differences of a cell along x
    along = (bit[:, None] * bit)[:, :, None]  # and along y
    signs = 1 - 2 * ((along[:, None] + across) % 2)  # s, d_x, d_y, d_xy
    signs = signs.view(4, 1, 1, 2, 2).to(dtype) / 2
    same = torch.eye(channels, dtype=dtype, device=device)[:, :, None, None]
    return (signs * same).flatten(0, 1)


def analyse(x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k v w"]:
    """Return averages of all channels, then their details along x, along y and along both."""
    return F.conv2d(x, haar_kernel(x.shape[1], x.dtype, x.device), stride=2)


def synthesise(bands: Float[Tensor, "b k v w"]) -> Float[Tensor, "b c y x"]:
    """Invert ``analyse``."""
    kernel = haar_kernel(bands.shape[1] // 4, bands.dtype, bands.device)
    return F.conv_transpose2d(bands, kernel, stride=2)


class LocalOperator(nn.Module):
    """A convolution on all bands of a level, GELU, and a pointwise map back to the bands."""

    def __init__(self, width: int, hidden: int, grid: Grid) -> None:
        super().__init__()
        self.bands_in = GridConv2d(4 * width, hidden, 3, grid)
        self.bands_out = nn.Conv2d(hidden, 4 * width, 1)
        nn.init.normal_(self.bands_out.weight, std=0.1 * hidden**-0.5)
        nn.init.zeros_(self.bands_out.bias)  # type: ignore[arg-type]

    def forward(self, bands: Float[Tensor, "b k y x"]) -> Float[Tensor, "b k y x"]:
        return self.bands_out(F.gelu(self.bands_in(bands)))


class GlobalOperator(nn.Module):
    """The operator on the tokens of the coarsest level in one cycle."""

    def __init__(self, config: PIBERTMRConfig, grid: Grid) -> None:
        super().__init__()
        d = config.token_width
        self.enter = nn.Linear(config.width, d)
        self.neighbours = GridConv2d(d, d, 3, grid, groups=d)
        self.fourier, self.fourier_in, self.fourier_out = None, None, None
        if config.fourier_modes:
            narrow = max(1, d // 4)
            self.fourier_in = nn.Linear(d, narrow)
            self.fourier = FourierMultiplier(narrow, config.fourier_modes)
            self.fourier_out = nn.Linear(narrow, d)
        self.block = Block(d, config.heads, config.mlp_ratio)
        self.norm = nn.LayerNorm(d)
        self.leave = nn.Linear(d, config.width)
        nn.init.normal_(self.leave.weight, std=0.1 * d**-0.5)

    def forward(
        self,
        s: Float[Tensor, "b c ty tx"],
        tokens: Float[Tensor, "b n d"],
        bias: Float[Tensor, "b n"] | None,
    ) -> tuple[Float[Tensor, "b c ty tx"], Float[Tensor, "b n d"]]:
        """Return the change of the averages, and the tokens after the cycle."""
        lattice = (s.shape[-2], s.shape[-1])
        size = lattice[0] * lattice[1]
        local = tokens[:, :size] + self.enter(s.flatten(2).mT)
        local = local + self.neighbours(local.mT.unflatten(-1, lattice)).flatten(2).mT
        if self.fourier is not None:
            assert self.fourier_in is not None and self.fourier_out is not None
            local = local + self.fourier_out(self.fourier(self.fourier_in(local), lattice))
        tokens = self.block(torch.cat((local, tokens[:, size:].to(local.dtype)), dim=1), bias)
        change = self.leave(self.norm(tokens[:, :size]))
        return change.mT.unflatten(-1, lattice), tokens


class Cycle(nn.Module):
    """Down over the levels with local operators, the global operator, and back up."""

    def __init__(self, config: PIBERTMRConfig, grid: Grid, levels: int) -> None:
        super().__init__()
        self.width = config.width
        self.local = nn.ModuleList(
            LocalOperator(config.width, config.local_width, grid)
            for _ in range(min(config.own_levels, levels))
        )
        self.coarsest = GlobalOperator(config, grid)

    def forward(
        self, bands: Tensor, tokens: Tensor, bias: Tensor | None, levels: int
    ) -> tuple[Tensor, Tensor]:
        """Return the bands of the finest level after the cycle, and the tokens."""
        details = []
        for level in range(levels):
            if level:
                bands = analyse(bands[:, : self.width])
            bands = bands + self.local[min(level, len(self.local) - 1)](bands)
            details.append(bands[:, self.width :])
        s = bands[:, : self.width]
        change, tokens = self.coarsest(s, tokens, bias)
        bands = torch.cat((s + change, details.pop()), dim=1)
        while details:
            bands = torch.cat((synthesise(bands), details.pop()), dim=1)
        return bands, tokens


class PIBERTMR(Stepper):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x)."""

    embedded = "features of the points before the head"
    """The layer that ``embed`` returns."""
    PRETRAINED_HEADS = ("mpp_head", "ecp_head")
    """Modules that only pretraining uses."""

    def __init__(self, config: PIBERTMRConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        if config.family is not None:
            find_family(config.family)
        shape = spec.grid.shape
        self.check_size(shape)
        vorticity = config.vorticity_velocity
        self.terms = EquationTerms(spec, vorticity=vorticity) if config.equation_terms else None
        self.distance = BodyDistance(spec) if spec.moving else None
        features = self.in_channels + 1 + self.num_distances
        features += self.terms.num_terms if self.terms is not None else 0
        if config.coordinates:
            features += count_coordinates(spec.grid)
        w, d = config.width, config.token_width
        self.lift = GridConv2d(features, w, 3, spec.grid)
        self.parameter_features = nn.Linear(PARAMETER_WIDTH, w)
        self.parameter_embedding = (
            make_mlp(PARAMETER_WIDTH, d, d) if config.parameter_token and config.heads else None
        )
        self.physics_bias = None
        if config.heads and config.attention_bias > 0 and (config.family or spec.family):
            self.physics_bias = PhysicsBias(
                spec, self.patch(shape), history=config.history, family=config.family
            )
        levels = self.levels(shape)
        self.cycles = nn.ModuleList(Cycle(config, spec.grid, levels) for _ in range(config.cycles))
        self.head = nn.Conv2d(w, self.out_channels, 1)
        self.mpp_head = nn.Conv2d(w, self.in_channels, 1)
        self.ecp_head = make_mlp(d + w, d // 2, 1)
        self.pod_modes = (
            PODModes(config.fill_modes, (self.in_channels, *shape)) if config.fill_modes else None
        )
        zero(self.head)
        zero(self.mpp_head)

    @property
    def blocks(self) -> list[Block]:
        """The transformer blocks in order; none without attention."""
        blocks: list[Block] = [cycle.coarsest.block for cycle in self.cycles]  # type: ignore
        return blocks if self.config.heads else []

    def levels(self, shape: tuple[int, int]) -> int:
        """Return the levels on a grid: enough for at most ``most_tokens`` on the coarsest one."""
        levels = self.config.levels
        while math.prod(lattice_shape(shape, 2**levels)) > self.config.most_tokens:
            levels += 1
        return levels

    def patch(self, shape: tuple[int, int]) -> int:
        """Return the side of a token in points."""
        return 2 ** self.levels(shape)

    def token_lattice(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of tokens on a grid."""
        return lattice_shape(shape, self.patch(shape))

    def calibrate(
        self,
        x: Float[Tensor, "n c y x"],
        normalizer: Normalizer | None = None,
        parameters: Float[Tensor, "n q"] | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Set physical units, scales of terms and residuals, and POD modes.

        ``x`` holds standardised training samples.
        """
        super().calibrate(x, normalizer, parameters, mask)
        known = known_points(mask, x)
        if self.physics_bias is not None:
            if normalizer is not None:
                self.physics_bias.set_normalizer(normalizer)
            self.physics_bias.calibrate(x, parameters, mask)
        if self.pod_modes is not None:
            self.pod_modes.fit(x, known)

    def forward(self, x: Fields, parameters: Vector = None, mask: Mask = None) -> Answer:
        """Return the next frames, standardised like the input; arguments as for ``Stepper``."""
        x = self.prepared(x, parameters, mask)
        change = self.head(self._features(x, parameters, mask)[0])
        return self.with_motion(self.with_skip(change, x, mask), x, parameters)

    def encode(
        self, x: Fields, parameters: Vector = None, mask: Mask = None
    ) -> Float[Tensor, "b n d"]:
        """Return the tokens after the last norm, row by row, the parameter token last."""
        x = self.prepared(x, parameters, mask)
        return self._features(x, parameters, mask)[1]

    def embed(
        self, x: Fields, parameters: Vector = None, mask: Mask = None
    ) -> Float[Tensor, "b d y x"]:
        """Return the features of the points before the head."""
        return self._features(self.prepared(x, parameters, mask), parameters, mask)[0]

    def reconstruct(self, x: Fields, parameters: Vector = None, mask: Mask = None) -> Fields:
        """Return the complete input field (masked physics prediction): a corrected first guess."""
        x = self.prepared(x, parameters, mask)
        correction = self.mpp_head(self._features(x, parameters, mask)[0])
        if mask is None:
            return x + correction
        return first_guess(x, known_points(mask, x), self.spec.grid, self.pod_modes) + correction

    def consistency(
        self, x: Fields, parameters: Vector = None, mask: Mask = None
    ) -> Float[Tensor, " b"]:
        """Return the logit that the field obeys its equations (equation consistency prediction)."""
        x = self.prepared(x, parameters, mask)
        features, tokens = self._features(x, parameters, mask)
        pooled = torch.cat((tokens.mean(1), features.abs().mean((2, 3))), dim=1)
        return self.ecp_head(pooled).squeeze(-1)

    def check_size(self, shape: tuple[int, int]) -> None:
        """Require at least one token."""
        least = 2**self.config.levels
        if min(shape) < least:
            # The derivatives of the equation terms need four points.
            remedy = "use a grid of at least 4 x 4 points"
            if min(shape) >= 4:
                fitting = min(shape).bit_length() - 1
                remedy = f"set levels={fitting} (in a configuration: model.options.levels)"
            raise ValueError(
                f"{self.config.levels} levels need a grid of at least {least} x {least} points, "
                f"found {shape[0]} x {shape[1]}; {remedy}"
            )

    def _newest(self, x: Tensor) -> Tensor:
        return x[:, -len(self.spec.channels) :]

    def _features(
        self, x: Tensor, parameters: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return features of the points, (b, w, y, x), and normalised tokens, (b, n, d)."""
        shape = (x.shape[-2], x.shape[-1])
        levels, known = self.levels(shape), known_points(mask, x)
        vector = self.parameter_vector(x, parameters)
        inputs = self._inputs(x, parameters, None if mask is None else known, shape)
        # Channels last: the layout of the convolutions and the order of features in a token.
        lifted = self.lift(inputs.contiguous(memory_format=torch.channels_last))
        field = lifted + self.parameter_features(vector)[:, :, None, None]
        bands = analyse(padded_to_multiple(field, 2**levels))
        rows, columns = self.token_lattice(shape)
        tokens = bands.new_zeros(x.shape[0], rows * columns, self.config.token_width)
        if self.parameter_embedding is not None:
            tokens = torch.cat((tokens, self.parameter_embedding(vector)[:, None]), dim=1)
        bias = self._logit_bias(x, parameters, mask, 2**levels)
        for cycle in self.cycles:
            bands, tokens = cycle(bands, tokens, bias, levels)
        last: Any = self.cycles[-1]
        return synthesise(bands)[..., : shape[0], : shape[1]], last.coarsest.norm(tokens)

    def _inputs(
        self,
        x: Tensor,
        parameters: Tensor | None,
        known: Tensor | None,
        shape: tuple[int, int],
    ) -> Tensor:
        """Return the input channels of the lift."""
        all_known = x.new_ones(x.shape[0], 1, *shape)
        channels = [x, all_known if known is None else known[:, None].to(x.dtype)]
        channels += self.distances(x, parameters)
        if self.terms is not None:
            channels.append(self.terms(self._newest(x), known).to(x.dtype))
        if self.config.coordinates:
            coordinates = point_coordinates(self.spec.grid, shape, x, start=-1.0)
            channels.append(coordinates.expand(x.shape[0], -1, -1, -1))
        return torch.cat(channels, dim=1)

    def _logit_bias(
        self, x: Tensor, parameters: Tensor | None, mask: Tensor | None, patch: int
    ) -> Float[Tensor, "b n"] | None:
        """Return -lambda r_j; zero for the parameter token."""
        if self.physics_bias is None:
            return None
        residual = self.physics_bias(x, parameters, mask, patch)
        return F.pad(-self.config.attention_bias * residual, (0, self.config.parameter_token))
