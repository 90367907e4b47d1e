"""Pointwise errors against numpy over the list of known values."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pibert.evaluation.pointwise import Pointwise, frame_errors
from pibert.fields import FieldSpec, Normalizer
from tests.evaluation.masked_frames import (
    MIXED,
    MIXED_NORMALIZER,
    NORMALIZER,
    SPEC,
    make_body,
    make_frames,
    values_of,
)

FRAMES = make_frames(body=make_body(moving=True))


def known_lists(frames, component: str, scales=None) -> list[np.ndarray]:
    """Prediction, truth and last frame at all known points, one after the other."""
    lists = []
    for fields in (frames.prediction, frames.truth, frames.last):
        channels = fields.permute(1, 0, 2, 3)[:, frames.known].numpy()
        if component == "all":
            scale = np.ones(len(channels)) if scales is None else np.array(scales)
            lists.append((channels / scale[:, None]).ravel())
        elif component == "|u|":
            lists.append(np.sqrt(channels[0] ** 2 + channels[1] ** 2))
        else:
            lists.append(channels[frames.spec.channels.index(component)])
    return lists


@pytest.mark.parametrize("component", ["u", "v", "|u|", "all"])
def test_every_value_is_that_of_the_pooled_known_points(component: str) -> None:
    found = values_of(Pointwise(spec=SPEC, normalizer=NORMALIZER), FRAMES)
    p, y, last = known_lists(FRAMES, component)
    error = np.sum((p - y) ** 2)
    expected = {
        "nmse": error / np.sum(y**2),
        "rel_l2": np.linalg.norm(p - y) / np.linalg.norm(y),
        "rmse": np.sqrt(np.mean((p - y) ** 2)),
        "mae": np.mean(np.abs(p - y)),
        "lmae": np.mean(np.abs(p - y)),
        "lpcc": np.corrcoef(p, y)[0, 1],
        "r2": 1 - error / np.sum((y - y.mean()) ** 2),
        "skill": 1 - error / np.sum((last - y) ** 2),
    }
    assert {m: found[m, component] for m in expected} == pytest.approx(expected, rel=1e-12)


def test_two_points_by_hand() -> None:
    spec = FieldSpec(channels=("p",), family=None, grid=replace(SPEC.grid, shape=(1, 3)))
    frames = make_frames(spec, count=1)
    frames = replace(
        frames,
        truth=torch.tensor([[[[3.0, 4.0, 9.0]]]]),
        prediction=torch.tensor([[[[3.0, 2.0, -5.0]]]]),
        last=torch.tensor([[[[1.0, 4.0, 7.0]]]]),
        known=torch.tensor([[[True, True, False]]]),
    )
    found = values_of(Pointwise(spec=spec, normalizer=Normalizer.identity(1)), frames)
    assert found["nmse", "p"] == pytest.approx(4 / 25)
    assert found["rmse", "p"] == pytest.approx(2**0.5)
    assert found["mae", "all"] == pytest.approx(1.0)
    assert found["r2", "p"] == pytest.approx(1 - 4 / 0.5)
    assert found["lpcc", "p"] == pytest.approx(-1.0)
    assert found["skill", "p"] == pytest.approx(0.0)


def test_channels_of_different_units_count_together_in_units_of_their_stds() -> None:
    frames = make_frames(MIXED, seed=3)
    measure = Pointwise(spec=MIXED, normalizer=MIXED_NORMALIZER)
    p, y, _ = known_lists(frames, "all", scales=MIXED_NORMALIZER.std)
    found = values_of(measure, frames)
    assert found["nmse", "all"] == pytest.approx(np.sum((p - y) ** 2) / np.sum(y**2), rel=1e-12)
    assert found["lpcc", "all"] == pytest.approx(np.corrcoef(p, y)[0, 1], rel=1e-12)
    units = {e.component: e.unit for e in measure.entries if e.metric == "rmse"}
    assert units == {"u": "m/s", "v": "m/s", "p": "Pa", "|u|": "m/s", "all": "1"}
    expected = [
        np.linalg.norm(p - y) / np.linalg.norm(y)
        for p, y, _ in (
            known_lists(replace_frames(frames, t), "all", MIXED_NORMALIZER.std) for t in range(5)
        )
    ]
    np.testing.assert_allclose(frame_errors(frames, MIXED_NORMALIZER), expected, rtol=1e-12)
    with pytest.raises(ValueError, match="normalizer for channels of different units"):
        frame_errors(frames)


def replace_frames(frames, t: int):
    names = ("prediction", "truth", "last", "known")
    return replace(frames, **{name: getattr(frames, name)[t : t + 1] for name in names})


def test_a_large_mean_costs_no_digits() -> None:
    # About zero the sums of squares would have a relative error of 1e-16 * 1e12: no digit left.
    far = 1e6
    moved = replace(
        FRAMES, **{n: getattr(FRAMES, n) + far for n in ("prediction", "truth", "last")}
    )
    measure = Pointwise(spec=SPEC, normalizer=NORMALIZER)
    apart = Pointwise(spec=SPEC, normalizer=Normalizer((far, far), (1.0, 1.0)))
    expected, found = values_of(measure, FRAMES), values_of(apart, moved)
    for key in (("r2", "u"), ("lpcc", "v"), ("lpcc", "all"), ("rmse", "all"), ("skill", "u")):
        assert found[key] == pytest.approx(expected[key], rel=1e-7)


def test_perfect_and_useless_predictions_have_the_values_they_should() -> None:
    measure = Pointwise(spec=SPEC, normalizer=NORMALIZER)
    perfect = values_of(measure, replace(FRAMES, prediction=FRAMES.truth))
    persistence = values_of(measure, replace(FRAMES, prediction=FRAMES.last))
    for component in ("u", "v", "|u|", "all"):
        assert perfect["nmse", component] == 0
        for metric in ("lpcc", "r2", "skill"):
            assert perfect[metric, component] == pytest.approx(1.0)
        assert persistence["skill", component] == pytest.approx(0.0, abs=1e-14)
    constant = replace(FRAMES, truth=torch.full_like(FRAMES.truth, 0.1))
    found = values_of(measure, constant)
    assert np.isnan(found["r2", "u"]) and np.isnan(found["lpcc", "all"])
    assert np.isfinite(found["nmse", "u"])


def test_a_prediction_that_is_not_finite_is_not_hidden() -> None:
    broken = FRAMES.prediction.clone()
    t, y, x = FRAMES.known.nonzero()[7].tolist()
    broken[t, 0, y, x] = torch.nan
    found = values_of(
        Pointwise(spec=SPEC, normalizer=NORMALIZER), replace(FRAMES, prediction=broken)
    )
    assert all(np.isnan(found[m, "u"]) for m in ("nmse", "mae", "lpcc", "r2", "skill"))
    assert np.isfinite(found["nmse", "v"])


def test_frame_errors_are_those_of_single_frames() -> None:
    measure = Pointwise(spec=SPEC, normalizer=NORMALIZER)
    rows = measure.values(measure.terms(FRAMES))
    place = [(e.metric, e.component) for e in measure.entries].index(("rel_l2", "all"))
    torch.testing.assert_close(frame_errors(FRAMES), rows[:, place], rtol=1e-13, atol=0.0)


def test_a_normaliser_of_other_channels_is_refused() -> None:
    with pytest.raises(ValueError, match="mean and a std for each"):
        Pointwise(spec=SPEC, normalizer=MIXED_NORMALIZER)
