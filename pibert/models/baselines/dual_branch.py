"""The backbone of FourierFlow: salient flow attention beside Fourier mixing, joined by a gate.

    h    = tok(state) + attention(queries tok(condition), keys and values tok(state))
    e    = MLP(waves(s)) + linear(parameters)
    v_S  = head(salient blocks(h, e)),   v_F = head(norm(mixing blocks(h + e)))
    G    = sigmoid(a v_F + b v_S + c),   v   = G v_S + (1 - G) v_F

Tokens are patches; state and condition share one embedding where they have as many channels. With
several frames ahead, a and b have a number per frame and all frames share the gate of a patch
value. One frame is one lattice of tokens: blocks over time have nothing to attend to, and are left
out; a longer history is folded into channels.

What differs from the published code, and is ours: the mixing branch knows the flow time and passes
gradients on (``detached_mixing`` restores the detached copy); lambda is trained; and with
``cond="crossattn+add"`` an embedding of the condition is added to h. Otherwise the condition acts
through attention weights alone, which is little for a step in time. That embedding has weights of
its own: through the shared one only the sum of state and condition would be seen.

A backbone that refines a noisy state z_s = (1 - s) z + s eps gives, in place of v (ours),

    q s v + q^2 (1 - s) g(e) z_s,   q = 1 / sqrt((1 - s)^2 + s^2),   g a number per channel

With g = 1 these are the factors by which v has an error of equal size at all flow times if z is of
unit size (Karras et al., "Elucidating the design space", 2022); close to the data the answer is
then the state itself, which the tokens need not carry through all blocks. g is learned and starts
at zero, so that nothing at all comes out at first.

The head starts at zero. What leads from fields to tokens and back runs in full precision under
autocast.

Reference: Wang, Pan, Wu, Zhang, Wu, "FourierFlow", arXiv 2506.00862.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec
from pibert.models.baselines.mixing import FourierMixing, FreqWeight
from pibert.models.baselines.patches import Positions, from_patches, lattice_shape, to_patches
from pibert.models.baselines.salient import CrossAttention, SalientBlock
from pibert.models.constant import constant, count
from pibert.models.stepper import StepperConfig, at_least_one, zero

Cond = Literal["crossattn", "crossattn+add"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DualBranchConfig(StepperConfig):
    """Sizes and switches of the backbone."""

    width: int = 128
    heads: int = 4
    patch: int = 4
    depth: int = 6
    """Blocks of salient flow attention."""
    mixers: int = 4
    """Blocks of Fourier mixing."""
    blocks: int = 4
    """Blocks on the diagonal of the matrices that mix channels of a wave."""
    mlp_ratio: int = 4
    freq_weight: FreqWeight = "magnitude"
    """What the weight of a wave grows with."""
    trained_lambda: bool = True
    """Off: the weight of the second attention map stays at 0.5."""
    detached_mixing: bool = False
    """Let the mixing branch pass no gradient on to the embeddings, as in the published code."""
    parameters: bool = False
    """Let the parameters of the flow enter, beside the flow time."""

    def __post_init__(self) -> None:
        # Named, as slots make a class that a bare super() does not know.
        StepperConfig.__post_init__(self)
        at_least_one(self, "width", "heads", "patch", "depth", "mixers", "blocks", "mlp_ratio")
        for name in ("heads", "blocks"):
            if self.width % getattr(self, name):
                raise ValueError(
                    f"expected a width that is a multiple of {name} = {getattr(self, name)}, "
                    f"found {self.width}"
                )
        one_of(self, "freq_weight", get_args(FreqWeight))


def one_of(config: DualBranchConfig, name: str, choices: tuple[str, ...]) -> None:
    """Refuse what is not among the choices."""
    if getattr(config, name) not in choices:
        raise ValueError(
            f"expected another {name}, found {getattr(config, name)!r}; choose from: "
            f"{', '.join(choices)}"
        )


class DualBranch(nn.Module):
    """Patch values of two branches, and the gate between them.

    Args:
        config: Sizes and switches.
        spec: What the fields are.
        channels: Of the state, of the condition and of the output.
        cond: How the condition enters.
        keeps_state: Whether the state is noisy, and kept as far as it is not.
    """

    def __init__(
        self,
        config: DualBranchConfig,
        spec: FieldSpec,
        channels: tuple[int, int, int],
        cond: Cond = "crossattn",
        *,
        keeps_state: bool = False,
    ) -> None:
        super().__init__()
        d, pixels = config.width, config.patch**2
        state, condition, out = channels
        self.config = config
        self.embed = nn.Linear(state * pixels, d)
        # None: the state's.
        self.embed_condition = nn.Linear(condition * pixels, d) if condition != state else None
        self.positions = Positions(lattice_shape(spec.grid.shape, config.patch), d)
        self.cross = CrossAttention(d, config.heads)
        self.added = nn.Linear(condition * pixels, d) if cond == "crossattn+add" else None
        self.flow_time = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))
        self.num_parameters = len(spec.parameters) if config.parameters else 0
        self.embed_parameters = nn.Linear(self.num_parameters, d) if self.num_parameters else None
        self.salient = nn.ModuleList(
            SalientBlock(d, config.heads, config.mlp_ratio, trained_lambda=config.trained_lambda)
            for _ in range(config.depth)
        )
        self.mixing = nn.ModuleList(
            FourierMixing(d, config.blocks, config.mlp_ratio, config.freq_weight)
            for _ in range(config.mixers)
        )
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, out * pixels)
        self.gate = nn.Linear(2 * config.horizon, 1)
        self.kept = nn.Linear(d, out) if keeps_state else None
        """g."""
        for layer in (self.head, self.gate, self.kept):
            if layer is not None:
                zero(layer)

    def forward(
        self,
        state: Float[Tensor, "b m y x"],
        s: Float[Tensor, " b"],
        condition: Float[Tensor, "b c y x"],
        parameters: Float[Tensor, "b q"],
        aligned: int | None = None,
    ) -> tuple[Float[Tensor, "b k y x"], Float[Tensor, "b n d"]]:
        """The field of the fused branches, and the tokens after a salient block.

        Args:
            state: What is refined: the noisy field, or the condition again.
            s: Flow time, 1 for noise and 0 for data.
            condition: The last frames.
            parameters: Of the flow; zero where unknown.
            aligned: After how many salient blocks the tokens are taken; None: after the last.
        """
        ny, nx = condition.shape[-2:]
        lattice = lattice_shape((ny, nx), self.config.patch)
        tokens = self._tokens(state, condition, lattice)
        embedding = self._embedding(s, parameters)
        taken = salient = tokens
        for number, block in enumerate(self.salient, start=1):
            salient = block(salient, embedding, lattice)
            if aligned is None or number <= aligned:
                taken = salient
        mixed = tokens.detach() if self.config.detached_mixing else tokens
        mixed = mixed + embedding[:, None]
        for block in self.mixing:
            mixed = block(mixed, lattice)
        values = self._fused(salient, self.norm(mixed))
        field = from_patches(values, self.config.patch, (ny, nx))
        return self._refined(field, state, s, embedding), taken

    def _tokens(self, state: Tensor, condition: Tensor, lattice: tuple[int, int]) -> Tensor:
        with torch.autocast(state.device.type, enabled=False):
            patches = to_patches(condition, self.config.patch)
            places = self.positions(lattice)
            tokens = self.embed(to_patches(state, self.config.patch)) + places
            given = (self.embed_condition or self.embed)(patches) + places
            added = 0.0 if self.added is None else self.added(patches)
        return tokens + self.cross(given, tokens) + added

    def _embedding(self, s: Tensor, parameters: Tensor) -> Tensor:
        with torch.autocast(s.device.type, enabled=False):
            embedding: Tensor = self.flow_time(waves(s, self.config.width))
            if self.embed_parameters is not None:
                embedding = embedding + self.embed_parameters(parameters[:, : self.num_parameters])
        return embedding

    def _fused(self, salient: Tensor, mixed: Tensor) -> Tensor:
        """Patch values (b, n, v), ordered (frame, channel, row, column)."""
        dtype = self.head.weight.dtype
        with torch.autocast(salient.device.type, enabled=False):
            frames = (-1, (self.config.horizon, -1))
            ours = self.head(salient.to(dtype)).unflatten(*frames)
            theirs = self.head(mixed.to(dtype)).unflatten(*frames)
            both = torch.cat((theirs, ours), dim=-2).mT
            gate = torch.sigmoid(self.gate(both)).mT
            return (gate * ours + (1 - gate) * theirs).flatten(-2)

    def _refined(self, field: Tensor, state: Tensor, s: Tensor, embedding: Tensor) -> Tensor:
        """The field weighted for its flow time, and the state that is kept."""
        if self.kept is None:
            return field
        with torch.autocast(state.device.type, enabled=False):
            s = s[:, None, None, None]
            square = 1 / ((1 - s).square() + s.square())
            kept = self.kept(embedding)[..., None, None] * state
            return square.sqrt() * s * field + square * (1 - s) * kept


def waves(s: Float[Tensor, " b"], width: int) -> Float[Tensor, "b d"]:
    """Cosines and sines of the flow time, of periods from 2 pi / 1000 to 20 pi."""
    angles = s[:, None] * _frequencies(width // 2, device=s.device, dtype=s.dtype)
    numbers = torch.cat((angles.cos(), angles.sin()), dim=-1)
    return nn.functional.pad(numbers, (0, width % 2))


@constant
def _frequencies(number: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """From 1000 down to 0.1, evenly in the logarithm."""
    places = count(0, number, device=device) / max(1, number)
    return (1000 * torch.exp(-math.log(1e4) * places)).to(dtype)
