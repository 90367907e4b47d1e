import math
from typing import Any

import pytest
import torch

from pibert.fields import FieldSpec, Parameter, known_coefficients
from pibert.physics import find_family

REYNOLDS = Parameter(name="Re", scaling="log", mean=2.0, std=0.5)


@pytest.mark.parametrize(
    ("parameter", "values", "viscosity", "expected"),
    [
        (REYNOLDS, [100.0, 400.0], None, [0.01, 0.0025]),  # nu = U L / Re
        (Parameter(name="viscosity", mean=1.0, std=2.0), [0.3], None, [0.3]),
        (REYNOLDS, [100.0], 0.7, 0.7),  # what the spec states comes first
    ],
)
def test_the_viscosity_comes_from_the_spec_or_the_parameters(
    parameter: Parameter, values: list[float], viscosity: float | None, expected: Any
) -> None:
    spec = FieldSpec(
        family="incompressible",
        parameters=(parameter,),
        reference_velocity=2.0,
        reference_length=0.5,
        viscosity=viscosity,
    )
    parameters = spec.encode_parameters({parameter.name: torch.tensor(values)})
    found = known_coefficients(find_family("incompressible"), spec, parameters)
    torch.testing.assert_close(torch.as_tensor(found["viscosity"]), torch.tensor(expected))


def test_unknown_coefficients_are_omitted_or_get_the_default_of_the_family() -> None:
    family = find_family("euler")
    spec = FieldSpec(channels=("rho", "u", "v", "p"), family="euler")
    assert known_coefficients(family, spec, torch.zeros(2, 16)) == {}
    declared = FieldSpec(
        family="incompressible",
        channels=("rho", "u", "v", "p"),
        parameters=(Parameter(name="gamma"),),
    )
    assert known_coefficients(family, declared, None) == {}
    parameters = torch.zeros(2, 16)
    parameters[:, 0] = torch.tensor([1.6, math.nan])
    found = known_coefficients(family, declared, parameters)
    torch.testing.assert_close(found["gamma"], torch.tensor([1.6, 1.4]))
