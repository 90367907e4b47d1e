"""The normalised median test, inside and beside borders, bodies and gaps."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pibert.data.filling import FillSettings, fill_recordings
from pibert.data.format import write
from pibert.data.inspection import inspect
from pibert.data.outliers import THRESHOLD, flag_outliers, usual_noise
from pibert.data.readers import open_recordings
from pibert.fields import Grid
from tests.data.helpers import SHARED, make_trajectory, needs_shared, random_states, recorded

ALL = torch.ones(6, 7, dtype=torch.bool)


def shear() -> Tensor:
    """(2, 6, 7): both components change along both axes, by much more than the noise."""
    y, x = torch.meshgrid(torch.arange(6.0), torch.arange(7.0), indexing="ij")
    return torch.stack([3 * y + x, 2 * x - y])


def test_the_median_test_by_brute_force() -> None:
    fields = random_states(3, 2, 6, 5).double()
    known = torch.ones(3, 6, 5, dtype=torch.bool)
    found = flag_outliers(fields, noise=0.02, known=known)
    for t, j, i in np.ndindex(3, 4, 3):
        around = fields[t, :, j : j + 3, i : i + 3].flatten(1)
        values = around[:, [0, 1, 2, 3, 5, 6, 7, 8]]
        median = values.quantile(0.5, dim=1)
        spread = (values - median[:, None]).abs().quantile(0.5, dim=1)
        residual = (around[:, 4] - median) / (spread + 0.02)
        assert bool(found[t, j + 1, i + 1]) == (residual.norm().item() > THRESHOLD)
    assert 0 < found.sum() < found.numel() / 2


def test_a_shear_is_not_flagged_at_borders_bodies_and_gaps() -> None:
    known = ALL.clone()
    known[2:4, 2:5] = False
    known[0, 5] = False
    for one in (ALL, known):
        assert not flag_outliers(shear(), noise=1e-3, known=one).any()


@pytest.mark.parametrize("place", [(0, 3), (5, 1), (2, 0), (3, 6), (1, 3), (0, 0), (5, 6)])
def test_an_outlier_is_found_anywhere_and_spares_its_neighbours(place: tuple[int, int]) -> None:
    fields, expected = shear(), torch.zeros_like(ALL)
    fields[:, *place] += 100
    expected[place] = True
    found = flag_outliers(fields, noise=0.1, known=ALL)
    assert torch.equal(found, expected)


def test_lone_vectors_and_a_noise_of_zero() -> None:
    known = torch.zeros_like(ALL)
    known[0, :2] = True
    assert not flag_outliers(100 * shear(), noise=1e-3, known=known).any()
    with pytest.raises(ValueError, match=r"found 0\.0"):
        flag_outliers(shear(), noise=0.0, known=ALL)


def test_inspect_and_fill_flag_the_same_vectors(tmp_path: Path) -> None:
    states = 0.1 * random_states(4, 2, 24, 30) + torch.linspace(0, 9, 24)[:, None]
    outliers = torch.zeros(24, 30, dtype=torch.bool)
    outliers[::6, ::7] = True
    sound = states[:, :, ~outliers].double()
    states[:, :, outliers] += 8
    trajectory = make_trajectory(states=states)
    write(tmp_path / "flow.h5", [trajectory])
    recordings = open_recordings(tmp_path / "flow.h5")
    noise = usual_noise(recordings[0], (0, 1))
    assert noise is not None and math.isclose(
        noise, 0.1 * math.sqrt(sound.var((0, 2), correction=0).mean()), rel_tol=1e-6
    )
    spec = replace(trajectory.spec, family=None)
    settings = FillSettings(repair=lambda fields, known, given: fields, spec=spec, noise="usual")
    report = fill_recordings(recordings, tmp_path / "filled.h5", settings)
    facts = inspect(recordings).facts
    assert report.noise == noise and facts.outliers == report.flagged / report.vectors
    assert report.flagged == 4 * 4 * 5


def test_outliers_do_not_count_in_the_divergence_that_inspect_reports() -> None:
    grid = Grid((30, 40), dx=0.1, dy=0.15)
    x, y = grid.coordinates(torch.float64)
    vortices = torch.stack((torch.sin(x) * torch.cos(y), -torch.cos(x) * torch.sin(y)))
    states = vortices.float().repeat(3, 1, 1, 1)
    states[:, :, 7::9, 5::8] += 20
    base = make_trajectory(states=states)
    flow = replace(base, spec=replace(base.spec, grid=grid))
    facts = inspect(recorded(flow)).facts
    assert facts.outliers is not None and facts.outliers > 0.005
    assert facts.divergence is not None and facts.divergence.level < 0.05


@needs_shared
def test_the_borders_of_the_measured_jet_are_not_flagged() -> None:
    with np.load(SHARED / "jet_piv_train.npz") as data:
        fields = torch.from_numpy(data["uv"][::50].astype(np.float32))
        known = torch.from_numpy(~data["outlier"][::50])
    noise = 0.1 * fields.movedim(1, 0).flatten(1).var(1).mean().sqrt().item()
    share = flag_outliers(fields, noise=noise, known=known).double().mean(0)
    assert share.mean() < 1e-3 and share[[0, -1]].mean() < 2e-3 and share[:, [0, -1]].mean() < 2e-3
