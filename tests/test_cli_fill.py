"""``pibert fill``: from a measured file and a model folder to a filled file and a picture."""

import json
import math
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import xarray
from torch import Tensor

from pibert.data.format import Reader, check, write
from pibert.data.readers import open_recordings
from pibert.fields import Normalizer, Trajectory
from pibert.inference import save_model
from tests.command import Word, refusal, well
from tests.helpers import randomise, tiny_model, tiny_spec

SHAPE = (16, 24)
NORMALIZER = Normalizer((0.5, 0.0), (1.0, 0.5))


def filled(*words: Word) -> str:
    return " ".join(well("fill", *words).output.split())


@pytest.mark.parametrize("name", ["pibert", "pibert-mr"])
def test_gaps_and_outliers_are_filled_and_shown(tmp_path: Path, name: str) -> None:
    model = saved(tmp_path / "run", name)
    fields, valid = states(), torch.ones(4, *SHAPE, dtype=torch.bool)
    valid[1, 3:6, 4:7] = False
    fields[1, :, 4, 5] = math.nan
    fields[2, 0, 9, 9] = 6.0
    source, out = measured(tmp_path / "piv.h5", fields, valid), tmp_path / "filled.h5"
    said = filled(source, "--model", model, "--out", out)
    for words in ("1,536 vectors: 9 (0.59%) missing", "1 (0.07%) flagged", "10 (0.65%) filled"):
        assert words in said
    check(out)
    written = Reader(out)["a"].load()
    changed = valid.logical_not()
    changed[2, 9, 9] = True
    kept = ~changed[:, None].expand_as(fields)
    assert torch.equal(written.read()[kept], fields[kept])
    assert bool(written.read().isfinite().all()) and float(written.read()[2, 0, 9, 9]) != 6.0
    provenance = written.local["filling"]
    assert provenance["model"] == "run" and len(provenance["weights_sha256"]) == 64
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    # Outliers stay if so asked.
    given = ("fill", source, "--model", model, "--out", out, "--no-flag-outliers")
    found = json.loads(well(*given, "--json", "--overwrite").stdout)
    assert (found["missing"], found["flagged"], found["filled"]) == (9, 0, 9)
    assert found["written"] == [str(out), str(out.with_suffix(".png"))]
    assert float(Reader(out)["a"].read()[2, 0, 9, 9]) == 6.0


def test_data_that_cannot_be_filled_are_refused(tmp_path: Path, model: Path) -> None:
    fields, valid = states(), torch.ones(SHAPE, dtype=torch.bool)
    valid[2, 2] = False
    out, whole = tmp_path / "filled.h5", measured(tmp_path / "whole.h5", fields)
    source, two = measured(tmp_path / "piv.h5", fields, valid), tmp_path / "two.h5"
    write(two, [replace(Reader(source)["a"].load(), name=name) for name in "ab"])
    untrained = tiny_model(spec=tiny_spec(SHAPE))
    save_model(tmp_path / "raw", untrained, NORMALIZER, trained={"forward": True})
    before = sorted(tmp_path.iterdir())
    mine = ("--model", model)
    for words, named in {
        (whole, *mine, "--out", out, "--no-flag-outliers", "--noise", "1"): "--noise goes with",
        (source, "--model", tmp_path / "raw", "--out", out): "pretrain",
        (source, *mine, "--out", tmp_path): "is a folder",
        (source, *mine, "--out", source): "piv.h5",
        (source, *mine, "--out", tmp_path / "out.png"): "ends in .h5",
        (two, *mine, "--out", tmp_path / "out.nc"): "one recording, found 2",
    }.items():
        assert named in refusal("fill", *words)
    assert sorted(tmp_path.iterdir()) == before


def states() -> Tensor:
    rows, columns = torch.meshgrid(*(torch.arange(n).float() for n in SHAPE), indexing="ij")
    times = torch.arange(4).float()[:, None, None]
    u = torch.sin(0.3 * columns + times) + 0.05 * rows
    return torch.stack((u, torch.cos(0.2 * rows - times) + 0 * columns), dim=1)


def measured(path: Path, fields: Tensor, valid: Tensor | None = None) -> Path:
    spec = tiny_spec(SHAPE)
    time = 0.1 * torch.arange(len(fields), dtype=torch.float64)
    write(path, [Trajectory(name="a", states=fields, time=time, spec=spec, valid=valid)])
    return path


def saved(folder: Path, name: str = "pibert") -> Path:
    net = randomise(tiny_model(name, spec=tiny_spec(SHAPE)))
    return save_model(folder, net, NORMALIZER, trained={"reconstruct": True})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "run")


@pytest.mark.parametrize("suffix", [".nc", ".pvd", ".xdmf"])
def test_filled_points_are_marked_in_files_for_other_programs(
    suffix: str, tmp_path: Path, model: Path
) -> None:
    fields, valid = states(), torch.ones(4, *SHAPE, dtype=torch.bool)
    valid[1, 3:6, 4:7] = False
    source, out = measured(tmp_path / "piv.h5", fields, valid), tmp_path / f"filled{suffix}"
    native = tmp_path / "filled.h5"
    for target in (out, native):
        filled(source, "--model", model, "--out", target, "--no-flag-outliers", "--overwrite")
    expected = Reader(native)["a"].read()
    if suffix == ".xdmf":
        with h5py.File(tmp_path / "filled.xdmf.h5") as file:
            assert np.array_equal(file["filled"][...] == 0, valid.numpy())
            assert np.array_equal(file["velocity"][..., 0], expected[:, 0].numpy())
        assert "filled.xdmf.h5:/filled" in out.read_text()
        return
    if suffix == ".nc":
        with xarray.open_dataset(out) as found:
            assert np.array_equal(found.filled.values == 0, valid.numpy())
            assert found.filled.attrs["flag_meanings"] == "measured filled"
            assert np.array_equal(found.u.values, expected[:, 0].numpy())
            assert np.array_equal(found.v.values, expected[:, 1].numpy())
            assert found.u.attrs["ancillary_variables"] == "filled"
            assert "predicted" not in found.attrs["source"]
    back = open_recordings(out)[0]
    assert torch.equal(back.read(), expected)
    assert bool(back.known().all()) and torch.equal(back.measured(), valid)
