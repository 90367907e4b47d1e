"""FourierFlow: the next frames sampled by a conditional flow from noise to data.

A clean state z is the change since the last frame (with ``residual``) or the frame itself, divided
by a scale per channel. Along the path z_s = (1 - s) z + s eps from data (s = 0) to noise (s = 1)
the velocity is eps - z, and a sample follows dz/ds = v(z_s, s | last frames) from s = 1 to s = 0.

The network (``dual_branch.py``) estimates the clean state Z, and v = (z_s - Z) / max(s, 0.05). The
source estimates v itself; this is the same flow, but a zero head samples z = 0, so an untrained
model is persistence. An Euler step from s to r is z_r = Z + (r / s) (z_s - Z).

A call returns the mean of ``draws`` samples in ``sampler_steps`` steps; ``samples`` returns each.
The noise is a fixed field per sample number, the same for all inputs, so a prediction does not
depend on its batch. Inside the body of the grid the clean state is zero.

The features of one salient block are aligned with those of a frozen masked auto-encoder of the
target, which is pretrained first: ``prepare_for("pretrain")`` selects it alone,
``prepare_for("train")`` all else. ``training/flow_matching.py`` has the loss. ``FourierFlowDet`` is
the backbone as a plain regressor.

References: Wang, Pan, Wu, Zhang, Wu, "FourierFlow", arXiv 2506.00862. The clean state as output
with a loss of the velocity: Li, He, "Back to basics: let denoising generative models denoise".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pibert import sample_rng
from pibert.fields import FieldSpec
from pibert.models.attention import Block
from pibert.models.baselines.dual_branch import DualBranch, DualBranchConfig
from pibert.models.layers import (
    Answer,
    Fields,
    Mask,
    Parameters,
    Positions,
    Tokens,
    Vector,
    constant,
    from_patches,
    lattice_shape,
    to_patches,
)
from pibert.models.stepper import Stepper, check_most, known_points, zero

State = Float[Tensor, "b k y x"]
FLOOR = 0.05
"""Smallest flow time in the divisor of a velocity."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FourierFlowConfig(DualBranchConfig):
    """Sizes; the defaults are near the published number of parameters."""

    sampler_steps: int = 10
    """Euler steps of a sample."""
    draws: int = 8
    """Samples whose mean is the prediction."""
    align: float = 1e-3
    """Weight of the alignment; 0: none, and no auto-encoder."""
    align_at: int = 4
    """Salient block whose features are aligned."""
    encoder_depth: int = 4
    """Blocks of the auto-encoder's encoder."""
    decoder_depth: int = 2
    """Blocks of the auto-encoder's decoder."""

    def __post_init__(self) -> None:
        DualBranchConfig.__post_init__(self)
        check_most(self, 1000, "sampler_steps", "draws")
        check_most(self, self.depth, "align_at")


PRESETS: dict[str, FourierFlowConfig] = {"base": FourierFlowConfig()}

DET_PRESETS: dict[str, DualBranchConfig] = {"base": DualBranchConfig()}


class FourierFlow(Stepper):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x)."""

    objective = "flow_matching"
    takes_dmd = False

    def __init__(self, config: FourierFlowConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        # A compiler cannot trace the hash, and need not. Not a decorator of the function, because
        # this imports the compiler, which takes a second.
        torch.compiler.assume_constant_result(noise_fields)
        channels = (self.out_channels, self.num_inputs, self.out_channels)
        self.backbone = DualBranch(config, spec, channels, generative=True)
        self.alignment_head: nn.Sequential | None = None
        self.autoencoder: MaskedAutoencoder | None = None
        if config.align:
            d = config.width
            self.alignment_head = nn.Sequential(
                nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d)
            )
            self.autoencoder = MaskedAutoencoder(
                len(spec.channels),
                spec.grid.shape,
                patch=config.patch,
                width=d,
                heads=config.heads,
                encoder_depth=config.encoder_depth,
                decoder_depth=config.decoder_depth,
            )
        self.increment_scale: Tensor
        self.register_buffer("increment_scale", torch.ones(self.out_channels))
        self.body: Tensor | None
        self.register_buffer("body", spec.grid.body, persistent=False)
        self.held_noise: Tensor | None
        self.register_buffer("held_noise", None, persistent=False)
        self.prepare_for("train")

    def hold_noise(self) -> None:
        """Store the noise of a prediction, for a graph that cannot compute it."""
        scale, (ny, nx) = self.increment_scale, self.spec.grid.shape
        draws, channels = self.config.draws, self.out_channels
        self.held_noise = noise_fields(
            draws, channels, ny, nx, device=scale.device, dtype=scale.dtype
        )

    def prepare_for(self, stage: Literal["pretrain", "train"]) -> None:
        """Train only the auto-encoder in pretraining, and all else in training."""
        pretrains = stage == "pretrain"
        if pretrains and self.autoencoder is None:
            raise ValueError(
                "expected an auto-encoder to pretrain, found none, as align is 0; "
                "omit pretraining or set align above 0"
            )
        self.requires_grad_(not pretrains)
        if self.autoencoder is not None:
            self.autoencoder.requires_grad_(pretrains)

    def set_increment_scale(self, scale: Float[Tensor, " k"]) -> None:
        """Set the scale that brings clean states to the size of the noise; 1 unless set.

        Args:
            scale: Per channel, or per channel of every output frame: the root mean square over
                training samples of the standardised change since the last frame (of the
                standardised frame without ``residual``).
        """
        if scale.shape[0] == len(self.spec.channels):
            scale = scale.repeat(self.config.horizon)
        if tuple(scale.shape) != (self.out_channels,):
            raise ValueError(
                f"expected {len(self.spec.channels)} or {self.out_channels} scales, "
                f"found {scale.shape[0]}"
            )
        if not bool((torch.isfinite(scale) & (scale > 0)).all()):
            raise ValueError(f"expected positive finite scales, found {scale.tolist()}")
        self.increment_scale.copy_(scale)

    def to_clean(self, target: Tensor, x: Tensor) -> State:
        """Return the clean state of frames (b, k, y, x) that follow the input."""
        change = target - self.last_frame(x) if self.config.residual else target
        return change / self.increment_scale[:, None, None]

    def estimate(
        self,
        noisy: State,
        s: Float[Tensor, " b"],
        x: Float[Tensor, "b c y x"],
        parameters: Float[Tensor, "b q"],
    ) -> tuple[State, Tokens]:
        """Return the clean state of a noisy one at flow time s, and features to align.

        ``s`` is 1 for noise and 0 for data; ``x`` holds the last frames, without noise.
        """
        clean, tokens = self.backbone(noisy, s, x, parameters, self.config.align_at)
        clean = clean.to(noisy.dtype)
        if self.body is not None and self.body.shape == clean.shape[-2:]:
            clean = torch.where(self.body, 0.0, clean)
        return clean, tokens

    def velocity(
        self,
        noisy: State,
        s: Float[Tensor, " b"],
        x: Float[Tensor, "b c y x"],
        parameters: Float[Tensor, "b q"],
    ) -> tuple[State, Tokens]:
        """Return dz/ds of the flow, and features to align; arguments as for ``estimate``."""
        clean, tokens = self.estimate(noisy, s, x, parameters)
        return (noisy - clean) / s.clamp(min=FLOOR)[:, None, None, None], tokens

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        return self._sampled(x, parameters, self.config.draws, self.config.sampler_steps).mean(1)

    def samples(
        self,
        x: Float[Tensor, "b c y x"],
        parameters: Float[Tensor, "b q"] | None = None,
        mask: Tensor | None = None,
        draws: int | None = None,
        steps: int | None = None,
    ) -> Float[Tensor, "b m k y x"]:
        """Return single samples of the next frames, standardised like the input.

        ``draws`` and Euler ``steps`` default to the config; the first samples are always the same.
        """
        x = self.prepared(x, parameters, mask)
        known = self.parameter_vector(x, parameters)
        draws, steps = draws or self.config.draws, steps or self.config.sampler_steps
        changes = self._sampled(x, known, draws, steps)
        return changes + self.last_frame(x)[:, None] if self.config.residual else changes

    def reconstruct(self, x: Fields, parameters: Vector = None, mask: Mask = None) -> Fields:
        """Complete the input by the auto-encoder, frame by frame."""
        if self.autoencoder is None:
            raise ValueError("expected an auto-encoder, found none, as align is 0")
        x = self.prepared(x, parameters, mask)[:, -self.in_channels :]
        b, c, ny, nx = x.shape
        frames = x.reshape(-1, len(self.spec.channels), ny, nx)
        known = known_points(mask, x).repeat_interleave(self.config.history, dim=0)
        return self.autoencoder(frames, known).reshape(b, c, ny, nx)

    def _sampled(self, x: Tensor, parameters: Tensor, draws: int, steps: int) -> Tensor:
        """Return the samples whose mean ``change`` returns, (b, draws, k, y, x)."""
        b, k, (ny, nx) = x.shape[0], self.out_channels, x.shape[-2:]
        noise = self.held_noise
        if noise is None or tuple(noise.shape) != (draws, k, ny, nx):
            noise = noise_fields(draws, k, ny, nx, device=x.device, dtype=x.dtype)
        # All samples as one larger batch: a single input then fills the device.
        wide = x[:, None].expand(-1, draws, -1, -1, -1).flatten(0, 1)
        known = parameters[:, None].expand(-1, draws, -1).flatten(0, 1)
        noise = noise.repeat(b, 1, 1, 1)
        clean = follow_flow(lambda z, s: self.estimate(z, s, wide, known)[0], noise, steps)
        return (clean * self.increment_scale[:, None, None]).unflatten(0, (b, draws))


def follow_flow(estimate: Callable[[Tensor, Tensor], Tensor], noise: State, steps: int) -> State:
    """Integrate the flow from noise at s = 1 to data at s = 0 in equal Euler steps.

    ``estimate`` maps (z_s, s) to the expected clean state, z_s - s v.
    """
    state = noise
    for left in range(steps, 0, -1):
        clean = estimate(state, state.new_full((state.shape[0],), left / steps))
        # r / s = (left - 1) / left; the last step returns the estimate exactly.
        state = clean + (left - 1) / left * (state - clean)
    return state


@constant
def noise_fields(
    draws: int, channels: int, ny: int, nx: int, *, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Return the noise of the first samples, (draws, channel, y, x)."""
    numbers = torch.arange(draws, device=device)
    return sample_rng.normal(numbers, "sampler noise", channels, ny, nx).to(dtype)


class FourierFlowDet(Stepper):
    """FourierFlow's backbone as a regressor (no flow matching, no alignment).

    The last frames are both state and condition. The flow time is 1, at which the estimate of the
    clean state is its mean.
    """

    def __init__(self, config: DualBranchConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        channels = (self.num_inputs, self.num_inputs, self.out_channels)
        self.backbone = DualBranch(config, spec, channels)

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        return self.backbone(x, x.new_ones(x.shape[0]), x, parameters)[0].to(x.dtype)


_NEVER = -1e4
"""Logit of a hidden key: finite, because a frame may have no visible patch."""


class MaskedAutoencoder(nn.Module):
    """Completes frames (b, c, y, x); FourierFlow aligns its features with those of the encoder.

    A patch is visible if at least one of its points is known; the known points are an input channel
    beside the values. No visible patch attends to a hidden one, so features are the same as if
    hidden patches were dropped (He et al., "Masked autoencoders are scalable vision learners",
    2022). The decoder sees a learned token at every hidden patch.
    """

    def __init__(
        self,
        channels: int,
        shape: tuple[int, int],
        *,
        patch: int,
        width: int,
        heads: int,
        encoder_depth: int,
        decoder_depth: int,
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
        """Return the complete frames, estimated from their known points."""
        ny, nx = frames.shape[-2:]
        tokens, visible = self.features(frames, known)
        tokens = torch.where(visible[..., None], tokens, self.hidden_token.to(tokens.dtype))
        tokens = tokens + self.decoder_positions(lattice_shape((ny, nx), self.patch))
        for block in self.decoder:
            tokens = block(tokens)
        return from_patches(self.head(self.decoder_norm(tokens)), self.patch, (ny, nx))

    def features(
        self, frames: Float[Tensor, "b c y x"], known: Bool[Tensor, "b y x"]
    ) -> tuple[Tokens, Bool[Tensor, "b n"]]:
        """Return the encoder's tokens, and which patches are visible; others are meaningless."""
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
