"""Statistics against brute force, and the test for spurious vectors."""

import math

import pytest
import torch

from pibert.data import views
from pibert.data.normalize import fit_normalizer, fit_parameters
from pibert.data.splits import Segment
from pibert.fields import Trajectory
from tests.data.helpers import disc, make_trajectory, random_states
from tests.helpers import refused


def trajectories() -> list[Trajectory]:
    """Different means and lengths, a body, missing vectors, and wild values at unknown points."""
    valid = torch.rand(9, 5, 7, generator=torch.Generator().manual_seed(1)) > 0.3
    measured = 100 + random_states(9, 2, 5, 7, seed=1) * torch.tensor([0.1, 5.0])[:, None, None]
    measured = torch.where(valid[:, None], measured, math.nan)
    with_body = random_states(6, 2, 5, 7, seed=2)
    with_body[:, :, disc()] = 1e9
    return [
        make_trajectory("plain", 4, re=1000.0),
        make_trajectory("measured", states=measured, valid=valid, re=None),
        make_trajectory("body", states=with_body, body=disc(), re=10000.0),
    ]


@pytest.mark.parametrize("block", [1, 3 * 70, 1 << 22])
def test_streamed_statistics_are_those_of_all_known_points(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "BLOCK_VALUES", block)
    parts = [Segment(0), Segment(1, 2, 8), Segment(2, 5)]
    found = fit_normalizer(trajectories(), parts)
    for c in range(2):
        values = torch.cat(
            [
                t.read().double()[a:b, c][t.known()[a:b]]
                for t, (a, b) in zip(trajectories(), [(0, 4), (2, 8), (5, 6)], strict=True)
            ]
        )
        assert math.isclose(found.mean[c], values.mean().item(), rel_tol=1e-12)
        assert math.isclose(found.std[c], values.std(correction=0).item(), rel_tol=1e-12)


def test_undefined_statistics_are_refused() -> None:
    states = random_states(4, 2, 5, 7)
    states[:, 1] = 2.0
    with pytest.raises(ValueError, match=r"channels \['v'\] are constant"):
        fit_normalizer([make_trajectory(states=states)])
    states[2, 1, 0, 0] = math.nan
    with refused("'a'", "not finite"):
        fit_normalizer([make_trajectory(states=states)])
    nowhere = torch.ones(5, 7, dtype=torch.bool)
    with pytest.raises(ValueError, match="no measured point"):
        fit_normalizer([make_trajectory(body=nowhere)])


def test_parameters_count_once_per_trajectory_in_their_scaling() -> None:
    re, damping = fit_parameters(trajectories())
    assert (re.name, re.scaling) == ("Re", "log")
    assert math.isclose(re.mean, 3.5) and math.isclose(re.std, 0.5)
    # Nobody states a damping: nothing to standardise.
    assert (damping.name, damping.mean, damping.std) == ("damping", 0.0, 1.0)
    assert (re.lowest, re.highest) == (1000.0, 10000.0) and damping.lowest is None
    only, _ = fit_parameters(trajectories(), [Segment(2, 0, 2), Segment(2, 3, 5)])
    assert (only.mean, only.std) == (4.0, 1.0) and only.lowest == only.highest == 10000.0
