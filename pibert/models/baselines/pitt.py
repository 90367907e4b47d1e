"""PITT: a neural operator whose step is corrected by attention over the written equation.

    g   = G(x)                      the base operator, an FNO2d; dx = g - last frame
    H   = attention over words      of the equation, coefficients in digits (``EquationText``)
    Q,K = W_1 H, W_2 H              one row per word, n of them
    V   = W_in patches(dx)          the increment on n slots
    for l = 1 .. L:
        U = W_o q_l(Q) (norm(k_l(K))^T norm(v_l(V))) / n      linear attention: no softmax
        V = V + MLP_l([U ; time l/L])                         across slots, n + 1 -> n
    out = g + patches^-1(MLP(W_out V))

Word j acts on slot j; W_in and W_out give every patch any share in any slot. Paddings enter
nothing. With ``updates=0`` the base operator is left. On another resolution than that of the spec
what the patches hold is interpolated. ``PITTConstant`` is the control: the same model on a text
that says nothing about the sample.

The text of a wake reads

    ddt u + u dot nabla u = - nabla p + nu Delta u & nabla dot u = 0
        & nu + 1 . 2 5 0 E - 3 & Re + 8 . 0 0 0 E + 2 & dt + 5 . 0 0 0 E - 2
        & inflow outflow slip slip body

The PDE family gives the equation and the words of its coefficients. Then come Re, the time between
frames, the left, right, bottom and top side, and other parameters as ``mu <place in the spec>``.
``EquationText.left_out`` names clauses that do not fit. A number is a sign, four digits and a power
of ten of one digit: nine words. An unknown one is ``unknown`` and eight paddings.

Reference: Lorsung, Li, Barati Farimani, "Physics informed token transformer for solving partial
differential equations", Mach. Learn.: Sci. Technol. 5 (2024) 015032. Its dense maps from every
point to every slot became maps between patches and slots.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

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
    constant,
    count,
    from_patches,
    lattice_shape,
    to_patches,
)
from pibert.models.stepper import Stepper, StepperConfig, at_least_one, zero
from pibert.physics import find_family

_WORDS = """
    pad unknown 0 1 2 3 4 5 6 7 8 9 + - . E = & ( )
    ddt nabla dot Delta u p rho e a b
    nu Re dt alpha c D r F k gamma mu
    periodic wall slip inflow outflow open body
"""
VOCABULARY = tuple(_WORDS.split())
"""All words, by their number. ``e`` is the energy, ``a`` and ``b`` are species, ``mu`` is a
parameter that stands in no equation."""
WORD = {word: index for index, word in enumerate(VOCABULARY)}
PAD = WORD["pad"]

NUMBER_WORDS = 9
"""Words of a number: sign, digit, point, three digits, E, sign, digit."""
_DIGITS = 4
_LARGEST_POWER = 9

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
    """Whether the base operator sees the flow's parameters, beside the text."""

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

    def change(self, x: Fields, parameters: Parameters) -> Answer:
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

    def features(self, x: Fields, parameters: Parameters) -> Float[Tensor, "b d y x"]:
        return self.base.features(x, torch.where(parameters.isnan(), 0.0, parameters))

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

    Where it does as well as ``PITT``, the equation's text held nothing that mattered.
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


class _OfSample(NamedTuple):
    """A number that differs between samples: a parameter, or a scale over it."""

    place: int
    scale: float | None = None

    def __call__(self, restored: Tensor) -> Tensor:
        """From the restored parameters (b, q)."""
        value = restored[:, self.place]
        return value if self.scale is None else self.scale / value


class _Clause(NamedTuple):
    name: str
    words: list[str]
    quantity: float | _OfSample | None = None
    """The same for all samples, or of each sample, or not known."""
    has_number: bool = True


class EquationText:
    """The text of a flow's equation: the same for all samples but for the digits.

    Args:
        spec: Gives family, parameters, time step and boundaries.
        length: Words of the text; a shorter one is padded.
    """

    def __init__(self, spec: FieldSpec, length: int = 64) -> None:
        self.spec, self.length = spec, length
        family = None if spec.family is None else find_family(spec.family)
        self._words = "unknown".split() if family is None else family.equation.split()
        symbols = {} if family is None else family.symbols
        strange = sorted({*self._words, *" ".join(symbols.values()).split()} - set(VOCABULARY))
        if strange:
            raise ValueError(
                f"expected the equation of {spec.family!r} in the words of VOCABULARY, found "
                f"{strange}; write it in these words: {' '.join(VOCABULARY)}"
            )
        if len(self._words) > length:
            raise ValueError(
                f"expected room for the equation of {spec.family!r}, {len(self._words)} words, "
                f"found {length}; take more tokens"
            )
        self._numbers: list[tuple[int, _OfSample]] = []
        clauses = list(self._clauses(symbols))
        self.left_out = tuple(clause.name for clause in clauses if not self._add(clause))
        """Coefficients, parameters and other facts for which there was no room."""
        ids = [WORD[word] for word in self._words]
        self._template = torch.tensor(ids + [PAD] * (length - len(ids)))
        starts = torch.tensor([start for start, _ in self._numbers], dtype=torch.int64)
        self._places = (starts[:, None] + torch.arange(NUMBER_WORDS)).flatten()

    def encode(self, parameters: Float[Tensor, "b q"]) -> Int[Tensor, "b n"]:
        """The text of every sample as numbers of words.

        Args:
            parameters: As ``FieldSpec.encode_parameters`` makes them: NaN is unknown.
        """
        # The shape, not the length: an exported graph keeps it open.
        text = on_device(self._template, parameters.device).expand(parameters.shape[0], -1)
        if not self._numbers:
            return text
        # In float64: four digits of a power of ten are more than float32 can be trusted with.
        restored = self._restore(parameters.double())
        values = torch.stack([value(restored) for _, value in self._numbers], dim=1)
        places = on_device(self._places, parameters.device)
        return text.index_copy(1, places, number_words(values).flatten(1))

    def read(self, ids: Int[Tensor, " n"]) -> str:
        """The text for people, without its padding."""
        return " ".join(VOCABULARY[i] for i in ids.tolist() if i != PAD)

    def _clauses(self, coefficients: Mapping[str, str]) -> Iterator[_Clause]:
        """In the order in which they are written."""
        for name, words in coefficients.items():
            yield _Clause(name, words.split(), self._quantity(name))
        for name, quantity in ((REYNOLDS, self._quantity(REYNOLDS)), ("dt", self.spec.dt)):
            if quantity is not None:
                yield _Clause(name, [name], quantity)
        grid = self.spec.grid
        bounds = [*map(str, grid.sides), *(["body"] if grid.body is not None else [])]
        yield _Clause("boundaries", bounds, has_number=False)
        for index, name in enumerate(self.spec.parameter_names):
            if name not in coefficients and name != REYNOLDS:
                yield _Clause(name, ["mu", *str(index)], self._quantity(name))

    def _add(self, clause: _Clause) -> bool:
        """Add a clause if it fits; gives whether it does."""
        words, quantity = ["&", *clause.words], clause.quantity
        if isinstance(quantity, _OfSample):
            words += ["pad"] * NUMBER_WORDS
        elif clause.has_number:
            words += _written(quantity)
        if len(self._words) + len(words) > self.length:
            return False
        self._words += words
        if isinstance(quantity, _OfSample):
            self._numbers.append((len(self._words) - NUMBER_WORDS, quantity))
        return True

    def _quantity(self, name: str) -> float | _OfSample | None:
        """What is known of a coefficient, in the order of ``fields.equations``.

        Unlike there, what a sample does not tell stays NaN.
        """
        spec = self.spec
        scale = (spec.reference_velocity or 0.0) * (spec.reference_length or 0.0)
        places = {known: index for index, known in enumerate(spec.parameter_names)}
        if name == "viscosity" and spec.viscosity is not None:
            return spec.viscosity
        if name == "viscosity" and scale and REYNOLDS in places:
            return _OfSample(places[REYNOLDS], scale)
        if name == REYNOLDS and name not in places and scale:
            if spec.viscosity is not None:
                return scale / spec.viscosity
            if "viscosity" in places:
                return _OfSample(places["viscosity"], scale)
        return _OfSample(places[name]) if name in places else None

    def _restore(self, parameters: Tensor) -> Tensor:
        """Physical values; NaN where nothing is known."""
        missing = max(0, len(self.spec.parameters) - parameters.shape[1])
        columns = F.pad(parameters, (0, missing), value=math.nan).unbind(1)
        known = zip(self.spec.parameters, columns, strict=False)
        return torch.stack([parameter.restore(column) for parameter, column in known], dim=1)


def number_words(values: Float[Tensor, "*batch"]) -> Int[Tensor, "*batch 9"]:
    """Numbers as words; one that is not finite is ``unknown`` and padding."""
    known = values.isfinite()
    size = torch.where(known, values, 0.0).abs().double()
    safe = torch.where(size > 0, size, 1.0)
    power = safe.log10().floor().clamp(-_LARGEST_POWER, _LARGEST_POWER)
    mantissa = (safe * 10.0 ** (_DIGITS - 1 - power)).round()
    # Rounded up to the next power of ten: the logarithm may also fall just short of a whole number.
    full = (mantissa >= 10**_DIGITS) & (power < _LARGEST_POWER)
    power, mantissa = power + full, torch.where(full, mantissa / 10, mantissa)
    mantissa = mantissa.round().clamp(max=10**_DIGITS - 1)
    mantissa = torch.where(size > 0, mantissa, 0.0).long()
    digits = [WORD["0"] + mantissa // 10**k % 10 for k in reversed(range(_DIGITS))]
    word = [torch.full_like(mantissa, WORD[name]) for name in (".", "E", "unknown", "pad")]
    point, exponent, unknown, pad = word
    written = [_sign(values), digits[0], point, *digits[1:], exponent, _sign(power)]
    written.append(WORD["0"] + power.abs().long())
    silent = [unknown, *[pad] * (NUMBER_WORDS - 1)]
    return torch.where(known[..., None], torch.stack(written, -1), torch.stack(silent, -1))


def _sign(values: Tensor) -> Tensor:
    return torch.where(values < 0, WORD["-"], WORD["+"])


def _written(number: float | None) -> list[str]:
    """The words of a number that is the same for all samples."""
    if number is None:
        return ["unknown"]
    ids = number_words(torch.tensor(number, dtype=torch.float64, device="cpu")).tolist()
    return [VOCABULARY[i] for i in ids]
