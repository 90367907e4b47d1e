"""Faults match their names."""

import torch

from pibert.data.dataset import Window
from pibert.fields.equations import residual_sizes
from pibert.inference.windows import read_windows
from studies.faults import FAULTS, Stretch
from tests.inference.flows import flows, samples_of, spec_of, unit


def stretch() -> Stretch:
    samples = samples_of(flows(3), Window(history=2, horizon=1))
    return Stretch(read_windows(samples, [0, 5, 12], spec_of()), spec_of(), unit())


def faulty(name: str) -> torch.Tensor:
    return FAULTS[name][1](stretch(), torch.Generator().manual_seed(0)).fields


def divergence(fields: torch.Tensor) -> float:
    open_flow = torch.ones(3, *fields.shape[-2:], dtype=torch.bool)
    maps = residual_sizes(fields, spec_of(), torch.zeros(3, 16), open_flow)
    return float(maps["divergence"].nanmean())


def test_a_mirror_image_obeys_the_equations_only_with_the_sign_of_its_component():
    sound = divergence(stretch().fields)
    assert divergence(faulty("y flipped, sign of v kept")) > 5 * sound
    assert divergence(faulty("x flipped, sign of u kept")) > 5 * sound
    # The body is not in the middle, so its gap moves and the means differ a little.
    assert 0.7 * sound < divergence(faulty("y flipped with the sign of v")) < 1.4 * sound
    assert 0.7 * sound < divergence(faulty("x flipped with the sign of u")) < 1.4 * sound
