import math

import torch

from pibert.fields import FieldSpec, Parameter
from pibert.physics import find_family
from pibert.physics.coefficients import known_coefficients

REYNOLDS = Parameter(name="Re", scaling="log", mean=2.0, std=0.5)


def test_a_reynolds_number_and_the_scales_of_the_flow_give_a_viscosity() -> None:
    spec = FieldSpec(
        family="incompressible",
        parameters=(REYNOLDS,),
        reference_velocity=2.0,
        reference_length=0.5,
    )
    parameters = spec.encode_parameters({"Re": torch.tensor([100.0, 400.0])})
    found = known_coefficients(find_family("incompressible"), spec, parameters)
    torch.testing.assert_close(found["viscosity"], torch.tensor([0.01, 0.0025]))


def test_a_viscosity_among_the_parameters_needs_no_reynolds_number() -> None:
    spec = FieldSpec(
        family="incompressible",
        parameters=(Parameter(name="viscosity", mean=1.0, std=2.0),),
        reference_velocity=2.0,
        reference_length=0.5,
    )
    parameters = spec.encode_parameters({"viscosity": torch.tensor([0.3])})
    found = known_coefficients(find_family("incompressible"), spec, parameters)
    torch.testing.assert_close(found["viscosity"], torch.tensor([0.3]))


def test_the_viscosity_of_the_spec_comes_first() -> None:
    spec = FieldSpec(
        family="incompressible",
        parameters=(REYNOLDS,),
        reference_velocity=2.0,
        reference_length=0.5,
        viscosity=0.7,
    )
    parameters = spec.encode_parameters({"Re": 100.0})
    assert known_coefficients(find_family("incompressible"), spec, parameters) == {"viscosity": 0.7}


def test_what_is_unknown_is_left_out_or_becomes_what_stands_for_unknown() -> None:
    family = find_family("euler")
    spec = FieldSpec(channels=("rho", "u", "v", "p"), family="euler")
    assert known_coefficients(family, spec, torch.zeros(2, 16)) == {}
    told = FieldSpec(
        family="incompressible",
        channels=("rho", "u", "v", "p"),
        parameters=(Parameter(name="gamma"),),
    )
    assert known_coefficients(family, told, None) == {}
    parameters = torch.zeros(2, 16)
    parameters[:, 0] = torch.tensor([1.6, math.nan])
    found = known_coefficients(family, told, parameters)
    torch.testing.assert_close(found["gamma"], torch.tensor([1.6, 1.4]))
