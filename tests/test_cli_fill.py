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
from typer.testing import CliRunner, Result

from pibert.cli import app
from pibert.data.format import Reader, check, write
from pibert.data.sources import open_recordings
from pibert.fields import Normalizer, Trajectory
from pibert.predictor import save_model
from tests.helpers import randomise, tiny_model, tiny_spec

SHAPE = (16, 24)
NORMALIZER = Normalizer((0.5, 0.0), (1.0, 0.5))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["fill", *(str(argument) for argument in arguments)])


def refusal(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1
    return result.stderr


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


@pytest.fixture
def model(tmp_path: Path) -> Path:
    net = randomise(tiny_model(spec=tiny_spec(SHAPE)))
    trained = {"reconstruct": True}
    return save_model(tmp_path / "run", net, NORMALIZER, trained=trained)


def test_gaps_and_outliers_are_filled_and_shown(tmp_path: Path, model: Path) -> None:
    fields, valid = states(), torch.ones(4, *SHAPE, dtype=torch.bool)
    valid[1, 3:6, 4:7] = False
    fields[1, :, 4, 5] = math.nan
    fields[2, 0, 9, 9] = 6.0
    source, out = measured(tmp_path / "piv.h5", fields, valid), tmp_path / "filled.h5"
    result = run(source, "--model", model, "--out", out)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "1,536 vectors: 9 (0.59%) missing" in said
    assert "1 (0.07%) flagged" in said and "10 (0.65%) filled" in said
    assert "moved by (rms) u " in said
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


def test_outliers_stay_if_so_asked(tmp_path: Path, model: Path) -> None:
    fields, valid = states(), torch.ones(SHAPE, dtype=torch.bool)
    fields[2, 0, 9, 9], valid[2, 2] = 6.0, False
    source, out = measured(tmp_path / "piv.h5", fields, valid), tmp_path / "filled.h5"
    result = run(source, "--model", model, "--out", out, "--no-flag-outliers", "--json")
    assert result.exit_code == 0, result.output
    assert "exists; add --overwrite" in refusal(source, "--model", model, "--out", out)
    found = json.loads(result.stdout)
    assert (found["missing"], found["flagged"], found["filled"]) == (4, 0, 4)
    assert found["written"] == [str(out), str(out.with_suffix(".png"))]
    assert float(Reader(out)["a"].read()[2, 0, 9, 9]) == 6.0


def test_what_cannot_be_filled_is_refused_in_one_line(tmp_path: Path, model: Path) -> None:
    fields, valid = states(), torch.ones(SHAPE, dtype=torch.bool)
    out, whole = tmp_path / "filled.h5", measured(tmp_path / "whole.h5", fields)
    assert "nothing to fill" in refusal(whole, "--model", model, "--out", out)
    assert "--noise goes with" in refusal(
        whole, "--model", model, "--out", out, "--no-flag-outliers", "--noise", "1"
    )
    valid[2, 2] = False
    source = measured(tmp_path / "piv.h5", fields, valid)
    untrained = tiny_model(spec=tiny_spec(SHAPE))
    save_model(tmp_path / "raw", untrained, NORMALIZER, trained={"forward": True})
    assert "pretrain" in refusal(source, "--model", tmp_path / "raw", "--out", out)
    other = tiny_model(spec=tiny_spec((16, 16)))
    save_model(tmp_path / "small", other, NORMALIZER, trained={"reconstruct": True})
    assert "16 x 16" in refusal(source, "--model", tmp_path / "small", "--out", out)
    assert "is a folder" in refusal(source, "--model", model, "--out", tmp_path)
    assert "ends in .h5, .nc" in refusal(source, "--model", model, "--out", "filled.png")
    assert not out.exists()


@pytest.mark.parametrize("suffix", [".nc", ".pvd", ".xdmf"])
def test_other_programs_get_a_file_of_their_own_format_with_the_filled_points_marked(
    suffix: str, tmp_path: Path, model: Path
) -> None:
    fields, valid = states(), torch.ones(4, *SHAPE, dtype=torch.bool)
    valid[1, 3:6, 4:7] = False
    source, out = measured(tmp_path / "piv.h5", fields, valid), tmp_path / f"filled{suffix}"
    result = run(source, "--model", model, "--out", out, "--no-flag-outliers")
    assert result.exit_code == 0, result.output
    native = tmp_path / "filled.h5"
    assert run(source, "--model", model, "--out", native, "--no-flag-outliers", "--overwrite")
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


def test_a_format_that_is_not_written_is_refused_with_those_that_are(
    tmp_path: Path, model: Path
) -> None:
    source = measured(tmp_path / "piv.h5", states())
    for name in ("out.csv", "out.png", "out"):
        said = refusal(source, "--model", model, "--out", tmp_path / name)
        assert "expected a name that ends in .h5, .nc, .pvd, .xdmf" in said
    write(source, [replace(one, name=n) for n in "ab" for one in [Reader(source)["a"].load()]])
    said = refusal(source, "--model", model, "--out", tmp_path / "out.nc")
    assert "holds one recording, found 2" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["piv.h5", "run"]
