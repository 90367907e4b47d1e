"""Samples to check an export on: random fields, or windows of a file."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pibert.data.format import Reader
from pibert.export.check import draw_samples, read_samples
from pibert.fields import FieldSpec, Grid
from pibert.inference import Predictor
from tests.export.models import NORMALIZER
from tests.helpers import tiny_model


def predictor_of(spec: FieldSpec, history: int = 2) -> Predictor:
    return Predictor(tiny_model("persistence", spec, history=history), NORMALIZER)


def test_drawn_fields_have_the_mean_and_deviation_of_their_channels(spec: FieldSpec) -> None:
    samples = draw_samples(predictor_of(spec))
    assert samples.fields.shape == (4, 2, 2, 16, 24)
    frames = samples.fields.transpose(0, 2).flatten(1, 2)  # channel first
    mean, std = torch.tensor(NORMALIZER.mean), torch.tensor(NORMALIZER.std)
    assert torch.allclose(frames.mean((1, 2, 3)), mean, atol=0.02)
    assert torch.allclose(frames.std((-2, -1)), std[:, None].expand(2, 8), rtol=1e-4)
    # Smooth: neighbours differ far less than distant points, and frames follow each other.
    step = samples.fields.diff(dim=-1).abs().mean()
    assert step < 0.5 * samples.fields.std()
    assert 0 < (samples.fields[:, 1] - samples.fields[:, 0]).abs().mean() < samples.fields.std()
    assert not bool(samples.mask.all()) and bool(samples.mask[0].all())
    assert bool(samples.parameters[:3].isfinite().all()) and bool(samples.parameters[3].isnan())


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
