"""Scales of errors: their selection, and independence of units."""

import pytest
import torch

from pibert.inference.difficulty import FLOOR, GUIDES, fit_difficulty, tabulate
from pibert.inference.windows import Forecast
from tests.inference.flows import BODY, spec_of


def planted(scale: float = 1.0, *, seed: int = 0, spread: bool = False) -> Forecast:
    """Errors ten times as large on the right half as on the left."""
    generator = torch.Generator().manual_seed(seed)
    shape = (6, 3, 2, *spec_of().grid.shape)
    prediction = torch.randn(shape, generator=generator)
    size = torch.ones(shape)
    size[..., shape[-1] // 2 :] = 10.0
    truth = prediction + 0.01 * size * torch.randn(shape, generator=generator)
    seen = ~BODY.expand(shape[0], *shape[-2:])
    return Forecast(
        prediction=scale * prediction,
        before=scale * prediction.roll(1, 0),
        spread=scale * 0.01 * size if spread else None,
        seen=seen,
        parameters=torch.zeros(shape[0], 16),
        truth=torch.where(seen[:, None, None], scale * truth, torch.nan),
    )


def test_errors_that_depend_on_position_select_the_map_of_points():
    difficulty, losses = fit_difficulty("residual", [planted(seed=s) for s in range(4)], spec_of())
    assert difficulty.guide == "place" and set(losses) == set(GUIDES)
    scales = difficulty.scales(planted(seed=9), spec_of())
    right, left = scales[..., 6:].mean(), scales[..., :6].mean()
    assert 5 < float(right / left) < 15


@pytest.mark.parametrize("guide", ["constant", "ensemble", *GUIDES])
def test_scales_go_with_the_unit_of_the_fields(guide: str):
    factor = 1000.0
    mine, other = planted(spread=True), planted(factor, spread=True)
    a = tabulate(guide, [mine], spec_of()).scales(mine, spec_of())
    b = tabulate(guide, [other], spec_of(factor)).scales(other, spec_of(factor))
    torch.testing.assert_close(b / factor, a, rtol=1e-3, atol=0.0)


def test_an_ensembles_spread_is_the_scale_with_a_floor():
    made = planted(spread=True)
    scales = tabulate("ensemble", [made], spec_of()).scales(made, spec_of())
    assert made.spread is not None
    mean = made.errors().nanmean((0, 3, 4))[None, :, :, None, None]
    torch.testing.assert_close(scales, made.spread + FLOOR * mean)
    with pytest.raises(ValueError, match="needs an ensemble"):
        fit_difficulty("ensemble", [planted()], spec_of())


def test_between_flows_of_different_speeds_the_scale_follows_the_speed():
    speeds = (0.2, 1.0, 5.0, 0.5, 2.0, 8.0)
    flows = [planted(speed, seed=place) for place, speed in enumerate(speeds)]
    difficulty, losses = fit_difficulty("residual", flows, spec_of())
    assert difficulty.guide == "relative place"
    assert losses["relative place"] < losses["place"] - 0.1
    for speed in (0.3, 3.0):
        new = planted(speed, seed=9)
        ratio = (new.errors() / difficulty.scales(new, spec_of())).nanmean()
        assert float(ratio) == pytest.approx(1.0, abs=0.1)
