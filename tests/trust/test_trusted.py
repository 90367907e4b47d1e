"""Calibrating, saving, loading and predicting with bars, on flows made here."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pibert import Grid
from pibert.data.dataset import Window
from pibert.predictor import Predictor
from pibert.remarks import InputWarning
from pibert.trust import Ensemble, Settings, Trusted, calibrate, load, save_calibration
from pibert.trust.artefact import SHEET, TENSORS, read_calibration
from pibert.trust.calibration import Calibration
from pibert.trust.ensemble import identity
from pibert.trust.groups import part_groups
from tests.trust.flows import BODY, Drifts, flows, in_other_units, samples_of, saved

LEADS = 3
SETTINGS = Settings(leads=LEADS, starts=4)


def calibrated(
    predictor: object, count: int = 30, settings: Settings = SETTINGS, scale: float = 1.0
) -> Calibration:
    def made(number: int, seed: int, window: Window):
        own = [in_other_units(t, scale) for t in flows(number, seed=seed)]
        return samples_of(own, window, scale)

    return calibrate(
        predictor,
        made(8, 1, Window(history=2)),
        made(count, 2, Window(history=2, horizon=settings.leads)),
        settings,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Predictor]:
    folder = tmp_path_factory.mktemp("model")
    return folder, saved(folder)


@pytest.fixture(scope="module")
def found(model: tuple[Path, Predictor]) -> Calibration:
    return calibrated(model[1])


@pytest.fixture(scope="module")
def trusted(model: tuple[Path, Predictor], found: Calibration) -> Trusted:
    folder, predictor = model
    save_calibration(folder, found, predictor.spec.channels)
    return load(folder)


def test_what_is_odd_about_an_input_is_warned_of_once(trusted: Trusted) -> None:
    calls = (
        lambda: trusted.step(1000 * windows(1), {"Re": 1e9}, level=0.8),
        lambda: list(trusted.iterate(1000 * windows(1), 3, {"Re": 1e9}, level=0.8)),
        lambda: trusted.judge(1000 * windows(1), {"Re": 1e9}),
    )
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        told = sorted(str(own.message).split(" is ")[0].split(" holds ")[0] for own in caught)
        assert told == ["channel 'u'", "channel 'v'", "parameter 'Re'"]
    with pytest.warns(InputWarning, match="parameter 'Re' is 1e"):
        trusted.predictor.step(windows(1), {"Re": 1e9})


def test_the_level_that_is_named_is_accepted(trusted: Trusted) -> None:
    named = float(repr(trusted).partition("up to level ")[2].split()[0])
    assert 0.8 < named <= trusted.calibration.highest_level
    with pytest.raises(ValueError, match=f"the highest level they give is {named:g}:"):
        trusted.step(windows(), {"Re": 100.0}, level=0.999)
    trusted.step(windows(), {"Re": 100.0}, level=named)


def windows(count: int = 3, seed: int = 9) -> torch.Tensor:
    return torch.stack([t.read(slice(1, 3)) for t in flows(count, seed=seed)])


@pytest.mark.parametrize("difficulty", ["constant", "residual"])
def test_bars_cover_new_trajectories_at_every_lead_time(difficulty: str):
    predictor = Drifts()
    found = calibrated(predictor, 60, Settings(difficulty=difficulty, leads=LEADS, starts=4))
    bars_of = Trusted(predictor, found)
    new = flows(60, seed=5)
    truth = torch.stack([t.read(slice(3, 3 + LEADS)) for t in new])
    fields = torch.stack([t.read(slice(1, 3)) for t in new])
    re = torch.tensor([t.parameters["Re"] for t in new])
    fluid = ~BODY
    for level in (0.5, 0.9):
        bars = bars_of.rollout(fields, LEADS, {"Re": re}, level=level)
        inside = ((bars.low <= truth) & (truth <= bars.high))[..., fluid].double()
        own = inside.mean((2, 3))  # (trajectory, lead)
        error = 3 * own.std(0) / len(own) ** 0.5
        assert bool((own.mean(0) >= level - error).all())
        assert bool((own.mean(0) <= level + 0.05 + error).all())


def test_bars_go_with_the_unit_of_the_fields():
    factor = 1000.0
    mine = Trusted(Drifts(), calibrated(Drifts(), 12))
    other = Trusted(Drifts(factor), calibrated(Drifts(factor), 12, scale=factor))
    a = mine.step(windows(), {"Re": 100.0})
    b = other.step(factor * windows(), {"Re": 100.0})
    torch.testing.assert_close(b.high / factor, a.high, rtol=1e-3, atol=1e-4, equal_nan=True)


def test_a_step_gives_prediction_bars_consistency_and_alarm(
    trusted: Trusted, model: tuple[Path, Predictor]
):
    fields = windows().numpy()
    bars = trusted.step(fields, {"Re": 100.0}, level=0.8, false_alarms=0.1)
    plain = model[1].step(fields, {"Re": 100.0})
    assert (bars.prediction == plain).all() and bars.level == 0.8
    body = BODY.numpy()
    assert (bars.low < bars.prediction)[..., ~body].all()
    assert (bars.prediction < bars.high)[..., ~body].all()
    wrong = bars.high[..., body]
    assert (wrong != wrong).all(), "nothing is known of the body's points"
    consistency = model[1].consistency(fields, {"Re": 100.0})
    assert abs(bars.consistency - consistency).max() < 1e-5
    assert bars.alarm.p.shape == (3,) and len(bars.alarm.parts) == 3


def test_a_calibrated_model_says_in_a_line_what_it_is(trusted: Trusted):
    line = repr(trusted)
    assert line.startswith("Trusted(Predictor(pibert ") and "\n" not in line
    assert line.endswith("bars up to level 0.956 for 3 steps from 22 trajectories)")


def test_windows_in_wrong_units_raise_the_alarm(trusted: Trusted):
    re = {"Re": torch.tensor([t.parameters["Re"] for t in flows(20, seed=9)])}
    sound, odd = trusted.judge(windows(20), re), trusted.judge(10 * windows(20), re)
    assert float(sound.raised.double().mean()) < 0.3 and bool(odd.raised.all())
    assert float(odd.p.max()) == pytest.approx(1 / (trusted.calibration.count + 1))


def test_blocks_of_a_rollout_are_the_rollout(trusted: Trusted):
    whole = trusted.rollout(windows(), LEADS, {"Re": 100.0})
    parts = list(trusted.iterate(windows(), LEADS, {"Re": 100.0}))
    for name in ("prediction", "low", "high"):
        joined = torch.cat([getattr(part, name) for part in parts], dim=1)
        torch.testing.assert_close(getattr(whole, name), joined, equal_nan=True)


def test_lead_times_beyond_the_calibrated_ones_are_refused_or_said_to_be_the_last(
    trusted: Trusted,
):
    with pytest.raises(ValueError, match=r"at most 3 steps.*found 5 steps.*beyond='last'"):
        trusted.rollout(windows(), 5, {"Re": 100.0})
    with pytest.raises(ValueError, match="any number of steps"):
        trusted.iterate(windows())
    constant = Drifts()
    settings = Settings(difficulty="constant", leads=LEADS, starts=4)
    long = Trusted(constant, calibrated(constant, 30, settings)).rollout(
        windows(), LEADS + 2, {"Re": 100.0}, beyond="last"
    )
    width = long.high - long.prediction
    assert width.shape[1] == LEADS + 2
    assert not torch.allclose(width[:, 0], width[:, LEADS - 1], equal_nan=True)
    last = width[:, LEADS - 1 : LEADS].expand_as(width[:, LEADS:])
    torch.testing.assert_close(width[:, LEADS:], last, equal_nan=True, rtol=1e-3, atol=1e-5)


def test_a_level_out_of_reach_is_refused_with_the_highest(trusted: Trusted):
    assert trusted.calibration.count == 22  # of 30, eight fit the scale
    with pytest.raises(ValueError, match=r"0.99 needs at least 99 .*found 22.* 0.956"):
        trusted.step(windows(), level=0.99)


def test_what_is_loaded_is_what_was_saved(trusted: Trusted, found: Calibration):
    again = trusted.calibration
    for level in (0.5, 0.9):
        torch.testing.assert_close(again.quantiles(level), found.quantiles(level))
    scores = torch.randn(4, len(found.watch.names), dtype=torch.float64)
    torch.testing.assert_close(again.watch.p_values(scores), found.watch.p_values(scores))
    assert again.settings == SETTINGS and again.units == found.units == "trajectories"


def test_a_calibration_of_other_weights_is_refused(trusted: Trusted, tmp_path: Path):
    other = saved(tmp_path, seed=3)
    save_calibration(tmp_path, trusted.calibration, other.spec.channels)
    with pytest.raises(ValueError, match="expected the calibration of weights"):
        load(tmp_path)
    with pytest.raises(ValueError, match="calibrate this model"):
        Trusted(other, trusted.calibration)


def damage_json(folder: Path) -> None:
    (folder / SHEET).write_text("{")


def damage_tensors(folder: Path) -> None:
    (folder / TENSORS).write_bytes(b"short")


def mix_two(folder: Path) -> None:
    sheet = json.loads((folder / SHEET).read_text())
    sheet["tensors_sha256"] = "0" * 64
    (folder / SHEET).write_text(json.dumps(sheet))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_json, "expected JSON"),
        (damage_tensors, "expected a whole safetensors file"),
        (mix_two, "not of one calibration"),
        (lambda folder: (folder / SHEET).unlink(), "pibert calibrate"),
    ],
)
def test_a_damaged_file_is_refused(
    trusted: Trusted, tmp_path: Path, damage: Callable[[Path], object], message: str
):
    save_calibration(tmp_path, trusted.calibration, ("u", "v"))
    damage(tmp_path)
    with pytest.raises((ValueError, OSError), match=message):
        read_calibration(tmp_path, trusted.calibration.weights_sha256)


def test_missing_points_need_a_mask_and_get_no_bars(trusted: Trusted):
    fields = windows().numpy()
    fields[0, :, :, 6, 8] = float("nan")
    with pytest.raises(ValueError, match="pass a mask that is False"):
        trusted.step(fields, {"Re": 100.0})
    bars = trusted.step(fields, {"Re": 100.0}, ~(fields != fields).any((1, 2)))
    missing = bars.high != bars.high
    assert missing[0, ..., 6, 8].all() and not missing[1:, ..., 6, 8].any()


def test_unknown_points_by_themselves_raise_no_alarm(trusted: Trusted):
    re = {"Re": torch.tensor([t.parameters["Re"] for t in flows(20, seed=9)])}
    whole = trusted.judge(windows(20), re)
    assert not whole.limited.any()
    mask = torch.ones(8, 12, dtype=torch.bool)
    mask[:, 6:] = False  # the features of one half are not those of a whole window
    gaps = trusted.judge(windows(20), re, mask)
    assert bool(gaps.limited.all()) and bool((gaps.p >= whole.p).all())
    assert not {"fields", "divergence", "consistency"} & set(gaps.parts)
    assert bool(trusted.judge(10 * windows(20), re, mask).raised.all())


def test_gaps_like_those_of_the_calibration_are_judged_by_all_parts():
    valid = torch.ones(8, 12, dtype=torch.bool)
    valid[6:, 6:] = False
    with_gaps = [replace(t, valid=valid) for t in flows(30, seed=2)]
    found = calibrate(
        Drifts(),
        samples_of(flows(8, seed=1), Window(history=2)),
        samples_of(with_gaps, Window(history=2, horizon=LEADS)),
        SETTINGS,
    )
    fewer, more = valid.clone(), valid.clone()
    fewer[6, 6:], more[5, 6:] = True, False
    mask = torch.stack((valid, fewer, more))
    alarm = Trusted(Drifts(), found).judge(windows(), {"Re": 100.0}, mask)
    assert alarm.limited.tolist() == [False, False, True]


def test_a_calibration_that_is_too_small_raises_no_alarm_and_says_so():
    trusted = Trusted(Drifts(), calibrated(Drifts(), 4))  # twelve windows of three trajectories
    with pytest.warns(InputWarning, match="no alarm can be raised: 12 calibration units"):
        alarm = trusted.judge(1000 * windows(), {"Re": 100.0})
    assert not alarm.raised.any() and alarm.rate == 0.05
    assert alarm.p.tolist() == pytest.approx([alarm.lowest] * 3) == [1 / 13] * 3
    assert bool(trusted.judge(1000 * windows(), {"Re": 100.0}, false_alarms=0.08).raised.all())


def test_a_single_window_is_answered_without_a_batch(trusted: Trusted):
    one, batch = windows(1)[0].double().numpy(), windows(1).double()
    single = trusted.rollout(one, 2, {"Re": 100.0})
    same = trusted.rollout(batch, 2, {"Re": 100.0})
    assert single.high.shape == (2, 2, 8, 12) and single.high.dtype == one.dtype
    torch.testing.assert_close(torch.from_numpy(single.high), same.high[0], equal_nan=True)
    assert single.alarm.p.shape == () and bool(single.alarm.p == same.alarm.p[0])


def test_bars_come_as_labelled_fields_where_those_were_given(trusted: Trusted):
    xarray = pytest.importorskip("xarray")
    values = windows(1)[0].numpy()
    y, x = 0.2 * np.arange(8), 0.3 * np.arange(12)
    coords = {"time": [0.1, 0.2], "y": y[::-1], "x": x}
    dims = ("time", "y", "x")
    fields = xarray.Dataset(
        {name: (dims, values[:, place, ::-1]) for place, name in enumerate("uv")}, coords
    )
    bars = trusted.rollout(fields, 3, {"Re": 100.0})
    plain = trusted.rollout(values, 3, {"Re": 100.0})
    np.testing.assert_allclose(bars.high["v"].values[:, ::-1], plain.high[:, 1], rtol=1e-5)
    assert bars.low["u"].time.values == pytest.approx([0.3, 0.4, 0.5])
    blocks = list(trusted.iterate(fields, 3, {"Re": 100.0}))
    xarray.testing.assert_allclose(xarray.concat([b.high for b in blocks], "time"), bars.high)


def test_bars_on_another_grid_are_resampled_half_widths(trusted: Trusted):
    coarse = windows().numpy()
    fine = coarse.repeat(2, axis=-1).repeat(2, axis=-2)
    with pytest.warns(InputWarning, match="are resampled"):
        bars = trusted.step(fine, {"Re": 100.0}, grid=Grid((16, 24), dx=0.15, dy=0.1))
    plain = trusted.step(coarse, {"Re": 100.0})
    assert bars.high.shape == (3, 1, 2, 16, 24)
    np.testing.assert_allclose(bars.high - bars.prediction, bars.prediction - bars.low, rtol=1e-3)
    np.testing.assert_allclose(bars.alarm.p, plain.alarm.p)
    wide, other = (np.nanmean(b.high - b.prediction, axis=(-1, -2)) for b in (bars, plain))
    np.testing.assert_allclose(wide, other, rtol=0.05)
    assert np.isnan(bars.high[..., 7:9, 5:7]).all()  # well inside the body


def test_few_trajectories_take_windows_for_independent_and_say_so():
    found = calibrated(Drifts(), 6)
    assert found.units == "windows" and found.count == 16  # four trajectories of four windows
    assert "taken for independent" in found.assumption()
    assert found.left_out(0.9) is not None and found.left_out(0.95) is None


def test_a_single_trajectory_is_parted_in_time():
    fit, rest = part_groups({3: [10, 11, 12, 13]}, seed=0)
    assert fit == [[10]] and rest == [[11, 12, 13]]
    with pytest.raises(ValueError, match="at least two windows"):
        part_groups({0: [1]}, seed=0)


def test_what_fits_does_not_calibrate():
    groups = {index: [index] for index in range(20)}
    fit, rest = part_groups(groups, seed=0)
    assert len(fit) == 5 and sorted(own[0] for own in (*fit, *rest)) == list(range(20))


def test_an_ensemble_predicts_the_mean_and_its_bars_follow_the_spread(tmp_path: Path):
    members = [saved(tmp_path / str(seed), seed=seed) for seed in range(3)]
    ensemble = Ensemble(members)
    fields, re = windows(), {"Re": 100.0}
    rolls = torch.stack([member.rollout(fields, 2, re) for member in members])
    torch.testing.assert_close(ensemble.rollout(fields, 2, re), rolls.mean(0))
    mean, spread = next(ensemble.iterate_with_spread(fields, 1, re))
    torch.testing.assert_close(spread, rolls[:, :, :1].std(0))
    torch.testing.assert_close(
        torch.as_tensor(ensemble.step(fields.numpy(), re)), mean, rtol=1e-5, atol=1e-6
    )
    settings = Settings(difficulty="ensemble", leads=2, starts=2)
    found = calibrated(ensemble, 12, settings)
    others = [tmp_path / "1", tmp_path / "2"]
    save_calibration(tmp_path / "0", found, ("u", "v"), members=others)
    bars = load(tmp_path / "0").step(fields, re)
    torch.testing.assert_close(bars.prediction, mean)
    fluid = ~BODY
    half = (bars.high - bars.prediction)[..., fluid].flatten()
    order = spread[..., fluid].flatten()
    assert float(torch.corrcoef(torch.stack((half, order)))[0, 1]) > 0.8


def test_an_ensemble_is_of_different_weights_of_one_kind(tmp_path: Path):
    one = saved(tmp_path / "one")
    with pytest.raises(ValueError, match="two or more"):
        Ensemble([one])
    with pytest.raises(ValueError, match="same weights twice"):
        Ensemble([one, one])
    with pytest.raises(ValueError, match="found normalizer"):
        Ensemble([one, saved(tmp_path / "other", seed=1, scale=2.0)])
    assert identity(one) == one.card["weights"]["sha256"]


def test_flows_that_trained_the_model_too_are_no_sample_of_new_ones():
    shared = flows(30, seed=2)
    found = calibrate(
        Drifts(),
        samples_of(shared, Window(history=2)),
        samples_of(shared, Window(history=2, horizon=LEADS)),
        SETTINGS,
    )
    assert found.same_flows and found.units == "windows"
    assert "nothing is said of other flows" in found.assumption()
    assert not calibrated(Drifts()).same_flows


class Told(Drifts):
    """Of data that state no equations; its own options do."""

    def __init__(self, family: str | None = "incompressible") -> None:
        super().__init__()
        self.spec = replace(self.spec, family=None)
        self.card["model"] = {"config": {"family": family}}


def test_the_alarm_takes_the_equations_that_the_model_was_told_of():
    found = calibrated(Told())
    assert {"divergence", "vorticity peak"} <= set(found.watch.names)
    assert not {"divergence"} & set(calibrated(Told(family=None)).watch.names)
    whole, stated = Trusted(Told(), found), Trusted(Drifts(), calibrated(Drifts()))
    mine, theirs = (own.judge(2 * windows(), {"Re": 100.0}) for own in (whole, stated))
    torch.testing.assert_close(mine.p, theirs.p)


def test_a_calibration_from_before_equations_were_taken_from_the_model_is_still_read():
    older = calibrated(Told(family=None))
    bars = Trusted(Told(), older).step(windows(), {"Re": 100.0})
    again = Trusted(Told(family=None), older).step(windows(), {"Re": 100.0})
    torch.testing.assert_close(bars.alarm.p, again.alarm.p)
    torch.testing.assert_close(bars.high, again.high, equal_nan=True)
