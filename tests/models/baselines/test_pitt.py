"""PITT: the text of the equation, and the correction by it."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.fields import Boundary, FieldSpec, Grid, Parameter, Sides
from pibert.models.baselines.pitt import (
    PAD,
    PITT,
    VOCABULARY,
    EquationText,
    PITTConfig,
    PITTConstant,
    Update,
    number_words,
)
from pibert.physics import FAMILIES, Family
from tests.helpers import randomise, tiny_spec

SHAPE = (20, 26)
SMALL: dict[str, Any] = {
    "width": 16,
    "patch": 4,
    "slot_width": 24,
    "base_modes": 3,
    "base_depth": 2,
}


def make(cls: type[PITT] = PITT, spec: FieldSpec | None = None, **options: Any) -> Any:
    """A small model on non-square cells and grid, without zero weights."""
    model: Any = cls(PITTConfig(**(SMALL | options)), spec or tiny_spec(SHAPE))
    return randomise(model).eval()


def reynolds(model: PITT, *values: float) -> Tensor:
    return model.spec.encode_parameters({"Re": torch.tensor(values)})


def fields(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_pads_do_not_change_the_output() -> None:
    model, x = make(), fields(3, 2, *SHAPE)
    parameters = reynolds(model, 100.0, 2e4, 77.0)
    parameters[1] = math.nan  # pads in the middle of the text
    before = model(x, parameters)
    assert (model.tokens(parameters) == PAD).any(1).all()
    with torch.no_grad():
        model.corrector.embedding.weight[PAD] = 50.0
    assert torch.equal(model(x, parameters), before)
    with torch.no_grad():
        model.corrector.embedding.weight[PAD + 1] += 1.0
    changed = (model(x, parameters) - before).flatten(1).norm(dim=1)
    assert changed[1] > 1e-4 and not changed[[0, 2]].any()  # the word "unknown"


def test_the_control_ignores_the_parameters_of_the_sample() -> None:
    model, control = make(), make(PITTConstant)
    control.load_state_dict(model.state_dict())
    x, parameters = fields(2, 2, *SHAPE), reynolds(model, 60.0, 9000.0)
    assert torch.equal(control(x, parameters), control(x, parameters.flip(0)))
    assert torch.equal(control(x, parameters), control(x))
    mean = torch.zeros(2, 1)
    assert torch.equal(control(x, parameters), model(x, mean))
    assert not torch.allclose(model(x, parameters), model(x, parameters.flip(0)))


def test_an_update_follows_its_equation() -> None:
    """Against loops over words and heads, in float64."""
    update: Any = randomise(Update(6, 2, 5, 7).double())
    q, k, slots = fields(3, 2, 5, 6).double()
    time, words = (
        fields(2, 1, 6, seed=1).double(),
        torch.tensor([[True] * 5, [True] * 3 + [False] * 2]),
    )
    found = update(q, k, slots, time, words)
    queries, keys = update.query(q), update.norm_key(update.key(k))
    values = update.norm_value(update.value(slots))
    for b in range(2):
        n = int(words[b].sum())
        mixed = torch.zeros(5, 6, dtype=torch.float64)
        for head in (slice(0, 3), slice(3, 6)):
            share = sum(torch.outer(keys[b, j, head], values[b, j, head]) for j in range(n)) / n
            for i in range(n):
                mixed[i, head] = queries[b, i, head] @ share
        stacked = torch.cat((update.out(mixed), time[b]))
        expected = update.mix(stacked.T).T
        torch.testing.assert_close(found[b], expected)


NAVIER_STOKES = "ddt u + u dot nabla u = - nabla p + nu Delta u & nabla dot u = 0"


def read(spec: FieldSpec, length: int = 64, **values: Any) -> str:
    text = EquationText(spec, length)
    return words_of(text.encode(spec.encode_parameters(values))[0]).replace(" pad", "")


def words_of(ids: Tensor) -> str:
    return " ".join(VOCABULARY[i] for i in ids.tolist())


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_family_is_written_in_known_words_with_all_its_coefficients(family: Family) -> None:
    words = set(family.equation.split())
    assert words | set(" ".join(family.symbols.values()).split()) <= set(VOCABULARY)
    assert words != {"unknown"} and set(family.symbols) == set(family.coefficients)
    for symbol in family.symbols.values():
        assert set(symbol.split()) <= words or symbol in ("rho", "gamma")


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
        (-0.0317249, "- 3 . 1 7 2 E - 2"),
        (0.0, "+ 0 . 0 0 0 E + 0"),
        (1e-30, "+ 0 . 0 0 0 E - 9"),
        (math.nan, "unknown" + " pad" * 8),
    ],
)
def test_numbers_have_four_digits_and_a_power_of_ten(value: float, expected: str) -> None:
    assert words_of(number_words(torch.tensor(value).double())) == expected


def test_coefficients_are_found_in_the_spec() -> None:
    viscous = tiny_spec(parameters=(Parameter(name="viscosity", scaling="log"),), dt=None)
    assert "& nu + 2 . 0 0 0 E - 2 & Re + 5 . 0 0 0 E + 1 &" in read(viscous, viscosity=0.02)
    fixed = tiny_spec(viscosity=0.25, parameters=())
    assert "& nu + 2 . 5 0 0 E - 1 & Re + 4 . 0 0 0 E + 0 &" in read(fixed)
    unstated = FieldSpec(family="incompressible")
    assert read(unstated) == f"{NAVIER_STOKES} & nu unknown & open open open open"


def test_other_parameters_follow_by_index_if_they_fit() -> None:
    parameters = tuple(Parameter(name=n) for n in ("mass", "viscosity", "angle", "height"))
    spec = FieldSpec(family="incompressible", parameters=parameters, grid=Grid.periodic((8, 9)))
    values: dict[str, Any] = {"mass": 3.0, "viscosity": 1.0, "angle": -0.5, "height": 2.0}
    assert read(spec, **values).endswith(
        "& periodic periodic periodic periodic & mu 0 + 3 . 0 0 0 E + 0 & mu 2 - 5 . 0 0 0 E - 1"
    )
    assert read(spec, 96, **values).endswith("& mu 3 + 2 . 0 0 0 E + 0")
