"""Samples to check an export on: random fields, or windows of a file."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pibert.data.format import Reader
from pibert.export.check import read_samples
from pibert.fields import FieldSpec, Grid
from pibert.inference import Predictor
from tests.export.models import NORMALIZER
from tests.helpers import tiny_model


def predictor_of(spec: FieldSpec, history: int = 2) -> Predictor:
    return Predictor(tiny_model("persistence", spec, history=history), NORMALIZER)


def test_windows_are_spread_from_the_first_to_the_last(flows: Path, spec: FieldSpec) -> None:
    samples = read_samples(flows, predictor_of(spec))
    with Reader(flows) as reader:
        first, last = reader[0].load(), reader[1].load()
    assert samples.fields.shape == (4, 2, 2, 16, 24)
    assert torch.equal(samples.fields[0], first.read(slice(0, 2)))
    assert torch.equal(samples.fields[-1], last.read(slice(3, 5)))
    viscosities = [flow.parameters["viscosity"] for flow in (first, last)]
    assert torch.allclose(samples.parameters[[0, -1], 0], torch.tensor(viscosities))


def test_a_file_that_does_not_fit_is_refused(flows: Path, spec: FieldSpec, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a grid of \(8, 24\)"):
        read_samples(flows, predictor_of(replace(spec, grid=Grid((8, 24)))))
    with pytest.raises(ValueError, match="at least 9 frames"):
        read_samples(flows, predictor_of(spec, history=9))
    with pytest.raises(FileNotFoundError, match="found nothing"):
        read_samples(tmp_path / "none.h5", predictor_of(spec))
