"""The governing equation of a flow as words, with the coefficients of every sample in digits.

    ddt u + u dot nabla u = - nabla p + nu Delta u & nabla dot u = 0
        & nu + 1 . 2 5 0 E - 3 & Re + 8 . 0 0 0 E + 2 & dt + 5 . 0 0 0 E - 2
        & inflow outflow slip slip body

``ddt`` is the derivative in time, ``&`` parts the clauses. After the equation come its
coefficients, Re, the time between frames, and what bounds the left, right, bottom and top side,
with ``body`` where the grid has one. Then follow the other parameters of the flow, as
``mu <place in the spec>``. A clause that does not fit the length as a whole is left out, and
``EquationText.left_out`` names it.

A number is a sign, four digits and a power of ten of one digit: nine words. Below 1e-9 it loses
digits, and above 9.999e9 it stays there. What a sample does not tell is the word ``unknown`` and
eight paddings. Digits are found by arithmetic on the device: no step of training waits for them.

Symbol by symbol, with coefficients in digits, is how the equation enters PITT (Lorsung, Li, Barati
Farimani, "Physics informed token transformer for solving partial differential equations", 2024).
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from pibert.fields import FieldSpec, on_device
from pibert.physics.coefficients import REYNOLDS

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

EQUATIONS: dict[str | None, tuple[str, dict[str, str]]] = {
    None: ("unknown", {}),
    "incompressible": (
        "ddt u + u dot nabla u = - nabla p + nu Delta u & nabla dot u = 0",
        {"viscosity": "nu"},
    ),
    "incompressible-momentum": (
        "ddt u + u dot nabla u = - nabla p + nu Delta u & nabla dot u = 0",
        {"viscosity": "nu", "density": "rho"},
    ),
    "heat": ("ddt u = alpha Delta u", {"diffusivity": "alpha"}),
    "wave": ("ddt ddt u = c c Delta u", {"speed": "c"}),
    "wave-first-order": ("ddt ddt u = c c Delta u", {"speed": "c"}),
    "reaction-diffusion": (
        "ddt u = D Delta u + r u ( 1 - u )",
        {"diffusivity": "D", "growth": "r"},
    ),
    "gray-scott": (
        "ddt a = D a Delta a - a b b + F ( 1 - a ) & ddt b = D b Delta b + a b b - ( F + k ) b",
        {"feed": "F", "kill": "k", "diffusivity_a": "D a", "diffusivity_b": "D b"},
    ),
    "euler": (
        "ddt rho + nabla dot rho u = 0 & rho ddt u + rho u dot nabla u = - nabla p "
        "& ddt e + nabla dot ( e + p ) u = 0",
        {"gamma": "gamma"},
    ),
}
"""By PDE family: the equation, and the words of its coefficients, those told first coming first."""


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
        if spec.family not in EQUATIONS:
            choices = ", ".join(name for name in EQUATIONS if name is not None)
            raise ValueError(
                f"expected a PDE family whose equation is written in EQUATIONS, found "
                f"{spec.family!r}; choose from: {choices}"
            )
        self.spec, self.length = spec, length
        equation, coefficients = EQUATIONS[spec.family]
        self._words = equation.split()
        if len(self._words) > length:
            raise ValueError(
                f"expected room for the equation of {spec.family!r}, {len(self._words)} words, "
                f"found {length}; take more tokens"
            )
        self._numbers: list[tuple[int, _OfSample]] = []
        clauses = list(self._clauses(coefficients))
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

    def _clauses(self, coefficients: dict[str, str]) -> Iterator[_Clause]:
        """In the order in which they are told."""
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
        """What is known of a coefficient, in the order of ``physics.coefficients``.

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
        """Physical values; NaN where nothing is told."""
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
