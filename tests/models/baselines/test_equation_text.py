"""The written equation: words, digits of every sample, what is unknown, what does not fit."""

import math
from typing import Any

import pytest
import torch

from pibert.fields import Boundary, FieldSpec, Grid, Parameter, Sides
from pibert.models.baselines.equation_text import (
    EQUATIONS,
    NUMBER_WORDS,
    PAD,
    VOCABULARY,
    WORD,
    EquationText,
    number_words,
)
from pibert.physics import FAMILIES
from tests.helpers import tiny_spec

NAVIER_STOKES = "ddt u + u dot nabla u = - nabla p + nu Delta u & nabla dot u = 0"


def read(spec: FieldSpec, length: int = 64, **values: Any) -> str:
    text = EquationText(spec, length)
    return text.read(text.encode(spec.encode_parameters(values))[0])


def number(value: float) -> str:
    return " ".join(VOCABULARY[i] for i in number_words(torch.tensor(value).double()).tolist())


def test_the_vocabulary_has_48_different_words() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 48
    assert set(Boundary) <= set(VOCABULARY)


def test_every_family_is_written_in_known_words_with_all_its_coefficients() -> None:
    assert set(EQUATIONS) == {None, *FAMILIES}
    for name, (equation, coefficients) in EQUATIONS.items():
        assert set(" ".join((equation, *coefficients.values())).split()) <= set(VOCABULARY)
        if name is not None:
            assert set(coefficients) == set(FAMILIES[name].coefficients)
            for words in coefficients.values():
                assert set(words.split()) <= set(equation.split()) or words in ("rho", "gamma")


def test_a_wake_reads_as_its_equation_coefficients_time_step_and_boundaries() -> None:
    sides = Sides(Boundary.INFLOW, Boundary.OUTFLOW, Boundary.SLIP, Boundary.WALL)
    body = torch.zeros(16, 20, dtype=torch.bool)
    body[4:6, 3:5] = True
    spec = tiny_spec(grid=Grid((16, 20), sides=sides, body=body), reference_velocity=2.0, dt=0.05)
    assert read(spec, Re=800.0) == (
        f"{NAVIER_STOKES} & nu + 2 . 5 0 0 E - 3 & Re + 8 . 0 0 0 E + 2 & dt + 5 . 0 0 0 E - 2 "
        "& inflow outflow slip wall body"
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, "+ 1 . 0 0 0 E + 0"),
        (-0.0317249, "- 3 . 1 7 2 E - 2"),
        (1000.0, "+ 1 . 0 0 0 E + 3"),
        (1e-3, "+ 1 . 0 0 0 E - 3"),
        (999.96, "+ 1 . 0 0 0 E + 3"),  # rounds up to the next power
        (999.94, "+ 9 . 9 9 9 E + 2"),
        (0.0, "+ 0 . 0 0 0 E + 0"),
        (2.5e-10, "+ 0 . 2 5 0 E - 9"),
        (1e-30, "+ 0 . 0 0 0 E - 9"),
        (3e12, "+ 9 . 9 9 9 E + 9"),
        (math.nan, "unknown" + " pad" * 8),
        (math.inf, "unknown" + " pad" * 8),
    ],
)
def test_numbers_are_written_with_four_digits_and_a_power_of_ten(
    value: float, expected: str
) -> None:
    assert number(value) == expected


def test_digits_agree_with_those_that_python_prints() -> None:
    generator = torch.Generator().manual_seed(0)
    values = 10 ** (16 * torch.rand(2000, generator=generator).double() - 8)
    written = number_words(values)
    assert written.shape == (2000, NUMBER_WORDS)
    for value, ids in zip(values.tolist(), written.tolist(), strict=True):
        mantissa, power = f"{value:.3e}".split("e")
        assert "".join(VOCABULARY[i] for i in ids) == f"+{mantissa}E{int(power):+d}"


def test_each_sample_has_its_own_digits_and_nothing_else_differs() -> None:
    spec = tiny_spec()
    text = EquationText(spec)
    ids = text.encode(spec.encode_parameters({"Re": torch.tensor([1800.0, 1900.0, 12000.0])}))
    assert ids.shape == (3, 64)
    places = (ids[0] != ids[1]).nonzero().flatten().tolist()
    words = text.read(ids[0]).split()
    spans = [range(words.index(w, 21) + 1, words.index(w, 21) + 1 + 9) for w in ("nu", "Re")]
    assert places and all(any(place in span for span in spans) for place in places)
    assert [VOCABULARY[i] for i in ids[1, spans[1]]] == "+ 1 . 9 0 0 E + 3".split()


def test_a_sample_that_tells_no_reynolds_number_says_so_in_the_same_place() -> None:
    spec = tiny_spec()
    text = EquationText(spec)
    known = text.encode(spec.encode_parameters({"Re": 100.0}))[0]
    absent = text.encode(spec.encode_parameters({}))[0]
    assert "& nu unknown & Re unknown & dt" in text.read(absent)
    after = text.read(known).split().index("dt") - 1
    assert torch.equal(known[after:], absent[after:])
    assert torch.equal(text.encode(torch.zeros(1, 0))[0], absent)


def test_coefficients_come_from_where_the_spec_tells_them() -> None:
    viscous = tiny_spec(parameters=(Parameter(name="viscosity", scaling="log"),), dt=None)
    assert "& nu + 2 . 0 0 0 E - 2 & Re + 5 . 0 0 0 E + 1 &" in read(viscous, viscosity=0.02)
    fixed = tiny_spec(viscosity=0.25, parameters=())
    assert "& nu + 2 . 5 0 0 E - 1 & Re + 4 . 0 0 0 E + 0 &" in read(fixed)
    silent = FieldSpec(family="incompressible")
    assert read(silent) == f"{NAVIER_STOKES} & nu unknown & open open open open"


def test_other_parameters_follow_by_their_place_as_far_as_there_is_room() -> None:
    parameters = tuple(Parameter(name=n) for n in ("mass", "viscosity", "angle", "height"))
    spec = FieldSpec(family="incompressible", parameters=parameters, grid=Grid.periodic((8, 9)))
    values: dict[str, Any] = {"mass": 3.0, "viscosity": 1.0, "angle": -0.5, "height": 2.0}
    assert EquationText(spec).left_out == ("height",)
    assert read(spec, **values).endswith(
        "& periodic periodic periodic periodic & mu 0 + 3 . 0 0 0 E + 0 & mu 2 - 5 . 0 0 0 E - 1"
    )
    assert EquationText(spec, 96).left_out == ()
    assert read(spec, 96, **values).endswith("& mu 3 + 2 . 0 0 0 E + 0")


def test_the_text_is_padded_to_its_length() -> None:
    spec = FieldSpec(channels=("u",), family="heat", parameters=(Parameter(name="diffusivity"),))
    ids = EquationText(spec, 40).encode(spec.encode_parameters({"diffusivity": 0.1}))
    words = (ids[0] != PAD).tolist()
    assert ids.shape == (1, 40) and words == sorted(words, reverse=True)
    assert ids[0, 0] == WORD["ddt"]


def test_wrong_choices_are_named() -> None:
    with pytest.raises(ValueError, match="written in EQUATIONS, found 'magnetic'.*incompressible"):
        EquationText(FieldSpec(family="magnetic"))
    with pytest.raises(ValueError, match="21 words, found 20; take more tokens"):
        EquationText(FieldSpec(family="incompressible"), 20)
