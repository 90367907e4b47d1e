"""Samples to check an export on: random fields, or windows of a file."""

from dataclasses import replace
from pathlib import Path

import pytest

from pibert.export.check import read_samples
from pibert.fields import FieldSpec, Grid
from pibert.inference import Predictor
from tests.export.models import NORMALIZER
from tests.helpers import tiny_model


def predictor_of(spec: FieldSpec, history: int = 2) -> Predictor:
    return Predictor(tiny_model("persistence", spec, history=history), NORMALIZER)


def test_a_file_that_does_not_fit_is_refused(flows: Path, spec: FieldSpec, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a grid of \(8, 24\)"):
        read_samples(flows, predictor_of(replace(spec, grid=Grid((8, 24)))))
    with pytest.raises(ValueError, match="at least 9 frames"):
        read_samples(flows, predictor_of(spec, history=9))
    with pytest.raises(FileNotFoundError, match="found nothing"):
        read_samples(tmp_path / "none.h5", predictor_of(spec))
