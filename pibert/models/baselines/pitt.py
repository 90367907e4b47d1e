"""PITT: a neural operator corrected by attention over the text of the equation.

    g   = G(x)                      the base operator, an FNO2d; dx = g - last frame
    H   = attention over words      of the equation, coefficients in digits (``EquationText``)
    Q,K = W_1 H, W_2 H              one row per word, n of them
    V   = W_in patches(dx)          the increment on n slots
    for l = 1 .. L:
        U = W_o q_l(Q) (norm(k_l(K))^T norm(v_l(V))) / n      linear attention: no softmax
        V = V + MLP_l([U ; time l/L])                         across slots, n + 1 -> n
    out = g + patches^-1(MLP(W_out V))

Word j acts on slot j; W_in and W_out map between patches and slots. Padding has no effect. With
``updates=0`` only the base operator is left. On another resolution than that of the spec the
patches are interpolated. ``PITTConstant`` is the control: the same model with the same text for
every sample.

The text of a wake reads

    ddt u + u dot nabla u = - nabla p + nu Delta u & nabla dot u = 0
        & nu + 1 . 2 5 0 E - 3 & Re + 8 . 0 0 0 E + 2 & dt + 5 . 0 0 0 E - 2
        & inflow outflow slip slip body

The PDE family gives the equation and the words of its coefficients. Then come Re, the time step,
the left, right, bottom and top side, and other parameters as ``mu <index in the spec>``. A number
is a sign, four digits and a power of ten of one digit: nine words. An unknown number is ``unknown``
and eight pads.

Reference: Lorsung, Li, Barati Farimani, "Physics informed token transformer for solving partial
differential equations", Mach. Learn.: Sci. Technol. 5 (2024) 015032. It has dense maps between
points and slots where this code has maps between patches and slots.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pibert.fields import PARAMETER_WIDTH, FieldSpec, on_device
from pibert.fields.equations import REYNOLDS
from pibert.models.attention import Attention
from pibert.models.baselines.fno2d import FNO2d, FNO2dConfig
from pibert.models.layers import (
    Answer,
    Fields,
    Parameters,
    Tokens,
    constant,
    count,
    from_patches,
    lattice_shape,
    make_mlp,
    resize_tokens,
    to_patches,
)
from pibert.models.stepper import BaselineConfig, Stepper, check_multiple, zero
from pibert.physics import find_family

_WORDS = """
    pad unknown 0 1 2 3 4 5 6 7 8 9 + - . E = & ( )
    ddt nabla dot Delta u p rho e a b
    nu Re dt alpha c D r F k gamma mu
    periodic wall slip inflow outflow open body
"""
VOCABULARY = tuple(_WORDS.split())
"""All words. ``e`` is the energy, ``a`` and ``b`` are species, ``mu`` is a parameter that does not
occur in the equation."""
WORD = {word: index for index, word in enumerate(VOCABULARY)}
PAD = WORD["pad"]

NUMBER_WORDS = 9
"""Words of a number: sign, digit, point, three digits, E, sign, digit."""
_DIGITS = 4
_LARGEST_POWER = 9

_PAD_LOGIT = -1e4
"""Added to the attention logit of a pad: as good as minus infinity, and finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PITTConfig(BaselineConfig):
    """Sizes; the defaults are the ``base`` preset, within 0.01 % of the published count."""

    MAY_BE_ZERO = ("updates",)

    width: int = 48
    heads: int = 1
    tokens: int = 64
    """Words of the text, and slots of the increment."""
    updates: int = 3
    """L; 0: only the base operator."""
    patch: int = 8
    slot_width: int = 88
    """Hidden width of the MLP across slots."""
    base_width: int = 12
    base_modes: int = 8
    base_depth: int = 3
    base_head_width: int = 32

    def __post_init__(self) -> None:
        BaselineConfig.__post_init__(self)
        check_multiple(self, "heads")

    @property
    def base(self) -> FNO2dConfig:
        """The configuration of the base operator."""
        return FNO2dConfig(
            history=self.history,
            horizon=self.horizon,
            residual=self.residual,
            width=self.base_width,
            modes=self.base_modes,
            depth=self.base_depth,
            head_width=self.base_head_width,
            parameters=self.parameters,
            mask=self.mask,
            equation_terms=self.equation_terms,
        )


PRESETS: dict[str, PITTConfig] = {"base": PITTConfig()}


class PITT(Stepper):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x); any grid."""

    takes_dmd = False

    def __init__(self, config: PITTConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        self.base = FNO2d(config.base, spec)
        self.text = EquationText(spec, config.tokens)
        self.corrector = None
        if config.updates:
            lattice = lattice_shape(spec.grid.shape, config.patch)
            self.corrector = Corrector(config, lattice, self.out_channels)

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        """Return the corrected output of the base operator; parameters are NaN where unknown."""
        output = self.base.change(x, torch.where(parameters.isnan(), 0.0, parameters))
        if self.corrector is None:
            return output
        increment = output if self.config.residual else output - self.last_frame(x)
        return output + self.corrector(increment, self.tokens(parameters))

    def tokens(self, parameters: Float[Tensor, "b q"]) -> Int[Tensor, "b n"]:
        """Return the text of every sample as word numbers."""
        return self.text.encode(parameters)

    def parameter_vector(self, x: Tensor, parameters: Tensor | None) -> Tensor:
        """Return (b, 16), NaN where unknown, which the text states."""
        if parameters is None:
            parameters = x.new_zeros(x.shape[0], 0)
        missing = PARAMETER_WIDTH - parameters.shape[-1]
        return F.pad(parameters.to(x.dtype), (0, missing), value=math.nan)


class PITTConstant(PITT):
    """The control: every sample has the text of a flow with all parameters at their mean.

    If it is as accurate as ``PITT``, the text of the equation does not help.
    """

    def tokens(self, parameters: Float[Tensor, "b q"]) -> Int[Tensor, "b n"]:
        return self.text.encode(torch.zeros_like(parameters))


class Corrector(nn.Module):
    """The correction of a step by the words of the equation, through slots."""

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
        self.decode = make_mlp(d, d, channels * config.patch**2)
        # The correction starts at zero, also where the base operator is not persistence.
        zero(self.decode[-1])

    def forward(
        self, increment: Float[Tensor, "b k y x"], tokens: Int[Tensor, "b n"]
    ) -> Float[Tensor, "b k y x"]:
        words = tokens != PAD
        hidden = self._attend(tokens, words)
        q, k = self.to_q(hidden), self.to_k(hidden)
        ny, nx = increment.shape[-2:]
        lattice = lattice_shape((ny, nx), self.config.patch)
        patches = self.embed_patch(to_patches(increment, self.config.patch))
        patches = resize_tokens(patches, lattice, self.lattice, "bilinear")
        slots = _across(self.to_slots, patches)
        steps = len(self.updates)
        for number, update in enumerate(self.updates, start=1):
            ahead = self.config.horizon * number / steps
            time = self.time(slots.new_full((1, 1), ahead)).expand(slots.shape[0], 1, -1)
            slots = slots + update(q, k, slots, time, words)
        patches = _across(self.from_slots, slots)
        patches = resize_tokens(patches, self.lattice, lattice, "bilinear")
        return from_patches(self.decode(patches), self.config.patch, (ny, nx))

    def _attend(self, tokens: Tensor, words: Tensor) -> Tensor:
        """Apply self-attention to the words, without the pads."""
        n, d = tokens.shape[1], self.config.width
        weight = self.embedding.weight
        positions = word_positions(n, d, device=weight.device, dtype=weight.dtype)
        bias = torch.where(words, 0.0, _PAD_LOGIT)
        return self.attention(self.embedding(tokens) + positions, bias)


class Update(nn.Module):
    """One step in time: linear attention of words to slots, then mixing across slots and time."""

    def __init__(self, width: int, heads: int, slots: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.norm_key, self.norm_value = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = make_mlp(slots + 1, hidden, slots)

    def forward(
        self,
        q: Tokens,
        k: Tokens,
        slots: Tokens,
        time: Float[Tensor, "b 1 d"],
        words: Bool[Tensor, "b n"],
    ) -> Tokens:
        is_word = words[..., None]
        query = torch.where(is_word, self.query(q), 0.0)
        key = torch.where(is_word, self.norm_key(self.key(k)), 0.0)
        query, key, value = map(self._split, (query, key, self.norm_value(self.value(slots))))
        share = (key.mT @ value) / words.sum(1)[:, None, None, None]
        mixed = (query @ share).transpose(1, 2).flatten(2)
        return _across(self.mix, torch.cat((self.out(mixed), time), dim=1))

    def _split(self, x: Tensor) -> Tensor:
        """Map (b, n, d) to (b, heads, n, d / heads)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


@constant
def word_positions(n: int, width: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the sinusoidal encoding of word positions, (n, width)."""
    features = count(0, width, device=device)
    rates = 10_000.0 ** (-(features - features % 2) / width)
    phases = count(0, n, device=device)[:, None] * rates
    return torch.where(features % 2 == 0, phases.sin(), phases.cos()).to(dtype)


def _across(layer: nn.Module, x: Tokens) -> Float[Tensor, "b m d"]:
    """Apply a layer along the token axis, the same for every feature."""
    return layer(x.mT).mT


class EquationText:
    """The text of a flow's equation: the same for all samples except for the digits.

    Args:
        spec: Gives family, parameters, time step and boundaries.
        length: Number of words; shorter texts are padded, clauses that do not fit are omitted.
    """

    def __init__(self, spec: FieldSpec, length: int = 64) -> None:
        self.spec = spec
        family = None if spec.family is None else find_family(spec.family)
        words = ["unknown"] if family is None else family.equation.split()
        symbols = {} if family is None else family.symbols
        unknown = sorted({*words, *" ".join(symbols.values()).split()} - set(VOCABULARY))
        if unknown:
            raise ValueError(
                f"expected the equation of {spec.family!r} in the words of VOCABULARY, found "
                f"{unknown}; write it in these words: {' '.join(VOCABULARY)}"
            )
        if len(words) > length:
            raise ValueError(
                f"expected room for the equation of {spec.family!r}, {len(words)} words, "
                f"found {length}; use more tokens"
            )
        self._numbers: list[str] = []
        """Names of the numbers in the text."""
        starts: list[int] = []
        for clause, number in self._clauses(symbols):
            clause = ["&", *clause, *["pad"] * (NUMBER_WORDS if number else 0)]
            if len(words) + len(clause) > length:
                continue
            words += clause
            if number:
                self._numbers.append(number)
                starts.append(len(words) - NUMBER_WORDS)
        ids = [WORD[word] for word in words]
        self._template = torch.tensor(ids + [PAD] * (length - len(ids)))
        first = torch.tensor(starts, dtype=torch.int64)
        self._indices = (first[:, None] + torch.arange(NUMBER_WORDS)).flatten()

    def encode(self, parameters: Float[Tensor, "b q"]) -> Int[Tensor, "b n"]:
        """Return the text of every sample as word numbers.

        Args:
            parameters: ``FieldSpec.encode_parameters``: NaN means unknown.
        """
        # The shape, not the length: an exported graph keeps it open.
        text = on_device(self._template, parameters.device).expand(parameters.shape[0], -1)
        if not self._numbers:
            return text
        known = self._values(parameters)
        values = torch.stack([known[name] for name in self._numbers], dim=1)
        indices = on_device(self._indices, parameters.device)
        return text.index_copy(1, indices, number_words(values).flatten(1))

    def _clauses(self, coefficients: Mapping[str, str]) -> Iterator[tuple[list[str], str | None]]:
        """Yield the words of each clause after the equation, and the number that follows them."""
        known = self._values(torch.zeros(1, PARAMETER_WIDTH))
        for name, words in coefficients.items():
            if name in known:
                yield words.split(), name
            else:
                yield [*words.split(), "unknown"], None
        for name in (REYNOLDS, "dt"):
            if name in known:
                yield [name], name
        grid = self.spec.grid
        yield [*map(str, grid.sides), *(["body"] if grid.body is not None else [])], None
        for index, name in enumerate(self.spec.parameter_names):
            if name not in coefficients and name != REYNOLDS:
                yield ["mu", *str(index)], f"mu {index}"

    def _values(self, parameters: Float[Tensor, "b q"]) -> dict[str, Float[Tensor, " b"]]:
        """Return the numbers of every sample by name, NaN where unknown.

        The rules are those of ``fields.equations``. ``mu 3`` is the fourth parameter itself.
        """
        spec = self.spec
        # In float64: float32 is not safe for four digits of a power of ten.
        missing = max(0, len(spec.parameters) - parameters.shape[1])
        columns = F.pad(parameters.double(), (0, max(1, missing)), value=math.nan).unbind(1)
        known: dict[str, Tensor] = {}
        for index, (parameter, column) in enumerate(zip(spec.parameters, columns, strict=False)):
            known[parameter.name] = known[f"mu {index}"] = parameter.restore(column)
        scale = (spec.reference_velocity or 0.0) * (spec.reference_length or 0.0)
        if spec.viscosity is not None:
            known["viscosity"] = torch.full_like(columns[-1], spec.viscosity)
        elif scale and REYNOLDS in known:
            known["viscosity"] = scale / known[REYNOLDS]
        if scale and REYNOLDS not in known and "viscosity" in known:
            known[REYNOLDS] = scale / known["viscosity"]
        if spec.dt is not None:
            known["dt"] = torch.full_like(columns[-1], spec.dt)
        return known


def number_words(values: Float[Tensor, "*batch"]) -> Int[Tensor, "*batch 9"]:
    """Return numbers as words; one that is not finite is ``unknown`` and pads."""
    known = values.isfinite()
    size = torch.where(known, values, 0.0).abs().double()
    safe = torch.where(size > 0, size, 1.0)
    power = safe.log10().floor().clamp(-_LARGEST_POWER, _LARGEST_POWER)
    mantissa = (safe * 10.0 ** (_DIGITS - 1 - power)).round()
    # Rounded up to the next power of ten, or a logarithm just below a whole number.
    full = (mantissa >= 10**_DIGITS) & (power < _LARGEST_POWER)
    power, mantissa = power + full, torch.where(full, mantissa / 10, mantissa)
    mantissa = mantissa.round().clamp(max=10**_DIGITS - 1)
    mantissa = torch.where(size > 0, mantissa, 0.0).long()
    digits = [WORD["0"] + mantissa // 10**k % 10 for k in reversed(range(_DIGITS))]
    word = [torch.full_like(mantissa, WORD[name]) for name in (".", "E", "unknown", "pad")]
    point, exponent, unknown, pad = word
    written = [_sign(values), digits[0], point, *digits[1:], exponent, _sign(power)]
    written.append(WORD["0"] + power.abs().long())
    no_number = [unknown, *[pad] * (NUMBER_WORDS - 1)]
    return torch.where(known[..., None], torch.stack(written, -1), torch.stack(no_number, -1))


def _sign(values: Tensor) -> Tensor:
    return torch.where(values < 0, WORD["-"], WORD["+"])
