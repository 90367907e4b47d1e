"""Damaged VTK and OpenFOAM files are read, or refused with a message that names the file."""

import shutil
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest

from pibert.data.sources import openfoam, vtk
from pibert.data.sources.recordings import SourceError
from tests.fuzz.text_mutations import TEXT
from tests.lookalikes.flow import X, Y, fields
from tests.lookalikes.openfoam import write_case
from tests.lookalikes.vtk import write_legacy, write_xml

CASES = 30


def frame() -> np.ndarray:
    own = fields()
    return np.stack([own["u"][0], own["v"][0], 0 * own["u"][0]], -1)[None]


def write_legacy_file(kind: str, binary: bool, path: Path) -> None:
    write_legacy(path, kind, (X, Y, np.zeros(1)), {"U": frame()}, binary=binary, time=0.5)


def write_xml_file(form: str, compressed: bool, path: Path) -> None:
    write_xml(path, (X, Y, np.zeros(1)), {"U": frame()}, form=form, compressed=compressed)


def write_foam(path: Path) -> None:
    velocity = frame().reshape(-1, 3)
    write_case(path, X, Y, {"0": velocity, "1": velocity})


WRITERS: Mapping[str, Callable[[Path], None]] = {
    "points.vtk": partial(write_legacy_file, "STRUCTURED_POINTS", False),
    "cells.vtk": partial(write_legacy_file, "UNSTRUCTURED_GRID", True),
    "image.vti": partial(write_xml_file, "raw", True),
    "grid.vtr": partial(write_xml_file, "base64", False),
    "mesh.vtu": partial(write_xml_file, "ascii", False),
    "case": write_foam,
}


@pytest.mark.parametrize("name", WRITERS)
def test_damaged_text_is_read_or_refused_in_words(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole, path = tmp_path / "whole", tmp_path / "given" / name
    whole.mkdir()
    WRITERS[name](whole / name)
    source = openfoam if name == "case" else vtk
    refused = 0
    for number in range(CASES):
        rng = Random(f"{request.config.getoption('seed')} {name} {number}")
        shutil.rmtree(path.parent, ignore_errors=True)
        shutil.copytree(whole, path.parent)
        files = sorted(file for file in path.parent.rglob("*") if file.is_file())
        file = rng.choice(files)
        data = bytearray(file.read_bytes())
        for _ in range(rng.choice((1, 1, 2, 3))):
            rng.choice(TEXT)(data, rng)
        file.write_bytes(data)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # values of 1e300 overflow
                source.open_recordings(path)[0].read()
        except SourceError as error:
            refused += 1
            assert name in str(error)
    assert refused
