"""PITT: a neural operator whose step is corrected by attention over the written equation.

    g   = G(x)                      the base operator, an FNO2d; dx = g - last frame
    H   = attention over words      of the equation, coefficients in digits (``equation_text``)
    Q,K = W_1 H, W_2 H              one row per word, n of them
    V   = W_in patches(dx)          the increment on n slots
    for l = 1 .. L:
        U = W_o q_l(Q) (norm(k_l(K))^T norm(v_l(V))) / n      linear attention: no softmax
        V = V + MLP_l([U ; time l/L])                         across slots, n + 1 -> n
    out = g + patches^-1(MLP(W_out V))

Word j acts on slot j, so there are as many slots as words, and W_in and W_out give every patch any
share in any slot. A padded word has no row in Q and K: what a padding holds enters nothing, and n
counts the words alone. Time runs in units of the frames' distance, which stands in the text. With
``updates=0`` nothing is left but the base operator.

Grids that are no multiple of the patch are extended by repetition and cropped. On another
resolution than that of the spec, what the patches hold is interpolated to the spec's lattice of
patches and back.

The method is that of Lorsung, Li, Barati Farimani, "Physics informed token transformer for solving
partial differential equations", Mach. Learn.: Sci. Technol. 5 (2024) 015032. Its dense maps from
every point to every slot became maps between patches and slots; all channels go together. Keys and
values are normalised and values have a projection of their own, as the method says.

``PITTConstant`` is the control: the same model on a text that tells nothing about the sample.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pibert.fields import PARAMETER_WIDTH, FieldSpec
from pibert.models.attention import Attention
from pibert.models.baselines.equation_text import PAD, VOCABULARY, EquationText
from pibert.models.baselines.fno2d import FNO2d, FNO2dConfig
from pibert.models.baselines.patches import from_patches, lattice_shape, to_patches
from pibert.models.constant import constant, count
from pibert.models.stepper import Stepper, StepperConfig, at_least_one, zero

_UNHEARD = -1e4
"""Added to the attention logit of a padding: as good as minus infinity, and finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PITTConfig(StepperConfig):
    """Sizes; the defaults are the ``base`` preset, within 0.01 % of the published count."""

    width: int = 48
    heads: int = 1
    tokens: int = 64
    """Words of the text, and slots of the increment."""
    updates: int = 3
    """L; 0 leaves the base operator alone."""
    patch: int = 8
    slot_width: int = 88
    """Hidden width of the MLP across slots."""
    base_width: int = 12
    base_modes: int = 8
    base_depth: int = 3
    base_head_width: int = 32
    parameters: bool = False
    """Whether the base operator sees the flow's parameters, beside what the text tells."""

    def __post_init__(self) -> None:
        StepperConfig.__post_init__(self)
        at_least_one(self, "width", "heads", "tokens", "patch", "slot_width")
        at_least_one(self, "base_width", "base_modes", "base_depth", "base_head_width")
        if self.updates < 0:
            raise ValueError(f"updates must be 0 or more, found {self.updates}")
        if self.width % self.heads:
            raise ValueError(
                f"width must be a multiple of heads, found {self.width} and {self.heads}"
            )

    @property
    def base(self) -> FNO2dConfig:
        """The base operator."""
        return FNO2dConfig(
            history=self.history,
            horizon=self.horizon,
            residual=self.residual,
            width=self.base_width,
            modes=self.base_modes,
            depth=self.base_depth,
            head_width=self.base_head_width,
            parameters=self.parameters,
        )


PRESETS: dict[str, PITTConfig] = {"base": PITTConfig()}


class PITT(Stepper):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x); any grid."""

    embedded = "points after the last Fourier layer of the base operator"

    def __init__(self, config: PITTConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        self.base = FNO2d(config.base, spec)
        self.text = EquationText(spec, config.tokens)
        self.corrector = None
        if config.updates:
            lattice = lattice_shape(spec.grid.shape, config.patch)
            self.corrector = Corrector(config, lattice, self.out_channels)

    def change(
        self, x: Float[Tensor, "b c y x"], parameters: Float[Tensor, "b 16"]
    ) -> Float[Tensor, "b k y x"]:
        """The base operator's answer, corrected.

        Args:
            x: Checked, zero at unknown pixels.
            parameters: NaN where unknown: the text says so.
        """
        answer = self.base.change(x, torch.where(parameters.isnan(), 0.0, parameters))
        if self.corrector is None:
            return answer
        increment = answer if self.config.residual else answer - self.last_frame(x)
        return answer + self.corrector(increment, self.tokens(parameters))

    def features(
        self, x: Float[Tensor, "b c y x"], parameters: Float[Tensor, "b 16"]
    ) -> Float[Tensor, "b d y x"]:
        return self.base.features(x, torch.where(parameters.isnan(), 0.0, parameters))

    def base_only(
        self,
        x: Float[Tensor, "b c y x"],
        parameters: Float[Tensor, "b q"] | None = None,
        mask: Tensor | None = None,
    ) -> Float[Tensor, "b k y x"]:
        """The next frames by the base operator alone, without the correction."""
        return self.base(x, parameters, mask)

    def tokens(self, parameters: Float[Tensor, "b q"]) -> Int[Tensor, "b n"]:
        """The text of every sample as numbers of words."""
        return self.text.encode(parameters)

    def parameter_vector(self, x: Tensor, parameters: Tensor | None) -> Tensor:
        """(b, 16), NaN where unknown, so that the text can say so."""
        if parameters is None:
            parameters = x.new_zeros(x.shape[0], 0)
        missing = PARAMETER_WIDTH - parameters.shape[-1]
        return F.pad(parameters.to(x.dtype), (0, missing), value=math.nan)


class PITTConstant(PITT):
    """The control: every sample has the text of one flow, that with all parameters at their mean.

    Where it does as well as ``PITT``, the equation's text told nothing that mattered.
    """

    def tokens(self, parameters: Float[Tensor, "b q"]) -> Int[Tensor, "b n"]:
        return self.text.encode(torch.zeros_like(parameters))


class Corrector(nn.Module):
    """The correction of a step: words in, and the increment through slots."""

    def __init__(self, config: PITTConfig, lattice: tuple[int, int], channels: int) -> None:
        super().__init__()
        self.config, self.lattice = config, lattice
        d, n, patches = config.width, config.tokens, lattice[0] * lattice[1]
        self.embedding = nn.Embedding(len(VOCABULARY), d)
        self.attention = Attention(d, config.heads)
        self.to_q, self.to_k = nn.Linear(d, d), nn.Linear(d, d)
        self.embed_patch = nn.Linear(channels * config.patch**2, d)
        self.to_slots = nn.Linear(patches, n)
        self.time = nn.Sequential(nn.Linear(1, d), nn.GELU(), nn.Linear(d, d))
        self.updates = nn.ModuleList(
            Update(d, config.heads, n, config.slot_width) for _ in range(config.updates)
        )
        self.from_slots = nn.Linear(n, patches)
        self.decode = nn.Sequential(
            nn.Linear(d, d), nn.GELU(), nn.Linear(d, channels * config.patch**2)
        )
        # Whether or not the base operator starts at persistence, its correction starts at zero.
        zero(self.decode[-1])

    def forward(
        self, increment: Float[Tensor, "b k y x"], tokens: Int[Tensor, "b n"]
    ) -> Float[Tensor, "b k y x"]:
        words = tokens != PAD
        heeded = self._heed(tokens, words)
        q, k = self.to_q(heeded), self.to_k(heeded)
        ny, nx = increment.shape[-2:]
        own = lattice_shape((ny, nx), self.config.patch)
        patches = self.embed_patch(to_patches(increment, self.config.patch))
        patches = _resized(patches, own, self.lattice)
        slots = _across(self.to_slots, patches)
        steps = len(self.updates)
        for number, update in enumerate(self.updates, start=1):
            ahead = self.config.horizon * number / steps
            time = self.time(slots.new_full((1, 1), ahead)).expand(slots.shape[0], 1, -1)
            slots = slots + update(q, k, slots, time, words)
        patches = _resized(_across(self.from_slots, slots), self.lattice, own)
        return from_patches(self.decode(patches), self.config.patch, (ny, nx))

    def _heed(self, tokens: Tensor, words: Tensor) -> Tensor:
        """What attention over the text makes of each word; paddings are not heard."""
        n, d = tokens.shape[1], self.config.width
        weight = self.embedding.weight
        places = word_places(n, d, device=weight.device, dtype=weight.dtype)
        silent = torch.where(words, 0.0, _UNHEARD)
        return self.attention(self.embedding(tokens) + places, silent)


class Update(nn.Module):
    """One step in time: what the words make of the slots, mixed with the time across slots."""

    def __init__(self, width: int, heads: int, slots: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.norm_key, self.norm_value = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(slots + 1, hidden), nn.GELU(), nn.Linear(hidden, slots))

    def forward(
        self,
        q: Float[Tensor, "b n d"],
        k: Float[Tensor, "b n d"],
        slots: Float[Tensor, "b n d"],
        time: Float[Tensor, "b 1 d"],
        words: Bool[Tensor, "b n"],
    ) -> Float[Tensor, "b n d"]:
        heard = words[..., None]  # a padding has no row of its own
        query = torch.where(heard, self.query(q), 0.0)
        key = torch.where(heard, self.norm_key(self.key(k)), 0.0)
        query, key, value = map(self._split, (query, key, self.norm_value(self.value(slots))))
        share = (key.mT @ value) / words.sum(1)[:, None, None, None]
        mixed = (query @ share).transpose(1, 2).flatten(2)
        return _across(self.mix, torch.cat((self.out(mixed), time), dim=1))

    def _split(self, x: Tensor) -> Tensor:
        """(b, n, d) to (b, heads, n, d / heads)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


@constant
def word_places(n: int, width: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Sines and cosines that tell the places of words: (n, width)."""
    features = count(0, width, device=device)
    rates = 10_000.0 ** (-(features - features % 2) / width)
    phases = count(0, n, device=device)[:, None] * rates
    return torch.where(features % 2 == 0, phases.sin(), phases.cos()).to(dtype)


def _across(layer: nn.Module, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b m d"]:
    """A map between places, the same for every feature."""
    return layer(x.mT).mT


def _resized(
    patches: Float[Tensor, "b n d"], shape: tuple[int, int], wanted: tuple[int, int]
) -> Float[Tensor, "b m d"]:
    """Tokens of one lattice on another, by interpolation."""
    if shape == wanted:
        return patches
    lattice = patches.mT.unflatten(-1, shape)
    return F.interpolate(lattice, wanted, mode="bilinear", align_corners=False).flatten(2).mT
