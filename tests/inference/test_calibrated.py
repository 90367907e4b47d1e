"""Calibrated predictors: intervals, the out-of-distribution warning, files and ensembles."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pibert.data.dataset import Window
from pibert.inference import (
    CalibratedPredictor,
    CalibrationSettings,
    Ensemble,
    Predictor,
    calibrate,
    load_calibrated,
    save_calibration,
)
from pibert.inference.calibration import Calibration
from pibert.inference.calibration_file import SHEET, TENSORS, read_calibration
from pibert.inference.conformal import split_groups
from pibert.inference.difficulty import GUIDES
from pibert.notes import InputWarning
from tests.helpers import refused
from tests.inference.flows import BODY, damping, flows, in_other_units, samples_of, saved

LEADS = 3
SETTINGS = CalibrationSettings(leads=LEADS, starts=4)


def calibrated(
    predictor: Predictor,
    count: int = 30,
    settings: CalibrationSettings = SETTINGS,
    scale: float = 1.0,
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
def calibrated_model(model: tuple[Path, Predictor], found: Calibration) -> CalibratedPredictor:
    folder, predictor = model
    save_calibration(folder, found, predictor.spec.channels)
    return load_calibrated(folder)


def test_notes_on_the_input_are_on_the_result_once_and_no_warnings(
    calibrated_model: CalibratedPredictor,
) -> None:
    given = (1000 * windows(1), 3, {"Re": 1e9})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = calibrated_model.rollout(*given, level=0.8)
        blocks = list(calibrated_model.iterate(*given, level=0.8))
        plain = calibrated_model.predictor.predict(*given)
    expected = {("far-values", "u"), ("far-values", "v"), ("far-parameter", "Re")}
    for notes in (whole.notes, [n for block in blocks for n in block.notes], plain.notes):
        found = [(note.code, note.subject) for note in notes if note.code.startswith("far")]
        assert len(found) == 3 and set(found) == expected
    assert all(note.remedy and note.severity == "warning" for note in plain.notes)
    with pytest.warns(InputWarning, match="parameter 'Re' is 1e") as caught:
        calibrated_model.predictor.step(windows(1), {"Re": 1e9})
    assert isinstance(caught[0].message, InputWarning)
    assert caught[0].message.note.code == "far-parameter"


def test_a_level_out_of_reach_is_refused_with_the_highest(
    calibrated_model: CalibratedPredictor,
) -> None:
    assert calibrated_model.calibration.count == 22  # of 30, eight fit the scale
    with refused(0.99, "at least 99", 22, 0.956):
        calibrated_model.step(windows(), level=0.99)
    calibrated_model.step(windows(), {"Re": 100.0}, level=0.956)
    assert "level 0.956" in repr(calibrated_model)


def windows(count: int = 3, seed: int = 9) -> torch.Tensor:
    return torch.stack([t.read(slice(1, 3)) for t in flows(count, seed=seed)])


@pytest.mark.parametrize("difficulty", ["constant", "residual"])
def test_intervals_cover_new_trajectories_at_every_lead_time(difficulty: str):
    predictor = damping()
    found = calibrated(
        predictor, 60, CalibrationSettings(difficulty=difficulty, leads=LEADS, starts=4)
    )
    model_with_intervals = CalibratedPredictor(predictor, found)
    new = flows(60, seed=5)
    truth = torch.stack([t.read(slice(3, 3 + LEADS)) for t in new])
    fields = torch.stack([t.read(slice(1, 3)) for t in new])
    re = torch.tensor([t.parameters["Re"] for t in new])
    fluid = ~BODY
    for level in (0.5, 0.9):
        prediction = model_with_intervals.rollout(fields, LEADS, {"Re": re}, level=level)
        inside = ((prediction.intervals.low <= truth) & (truth <= prediction.intervals.high))[
            ..., fluid
        ].double()
        own = inside.mean((2, 3))  # (trajectory, lead)
        error = 3 * own.std(0) / len(own) ** 0.5
        assert bool((own.mean(0) >= level - error).all())
        assert bool((own.mean(0) <= level + 0.05 + error).all())


def test_a_step_returns_prediction_intervals_consistency_and_ood(
    calibrated_model: CalibratedPredictor, model: tuple[Path, Predictor]
):
    fields = windows().numpy()
    prediction = calibrated_model.step(fields, {"Re": 100.0}, level=0.8, false_alarms=0.1)
    plain = model[1].step(fields, {"Re": 100.0})
    assert (prediction.fields == plain).all() and prediction.intervals.level == 0.8
    body = BODY.numpy()
    assert (prediction.intervals.low < prediction.fields)[..., ~body].all()
    assert (prediction.fields < prediction.intervals.high)[..., ~body].all()
    wrong = prediction.intervals.high[..., body]
    assert (wrong != wrong).all(), "nothing is known of the body's points"
    consistency = model[1].consistency(fields, {"Re": 100.0})
    assert abs(prediction.consistency - consistency).max() < 1e-5
    assert prediction.ood.p.shape == (3,) and len(prediction.ood.reasons) == 3


def test_lead_times_beyond_the_calibrated_ones_are_refused_or_use_the_last_interval(
    calibrated_model: CalibratedPredictor,
):
    with refused("at most 3 steps", "5 steps", "beyond='last'"):
        calibrated_model.rollout(windows(), 5, {"Re": 100.0})
    with refused("at least 1 step", 0):
        calibrated_model.rollout(windows(), 0, {"Re": 100.0})
    with refused("any number of steps"):
        calibrated_model.iterate(windows())
    constant = damping()
    settings = CalibrationSettings(difficulty="constant", leads=LEADS, starts=4)
    long = CalibratedPredictor(constant, calibrated(constant, 30, settings)).rollout(
        windows(), LEADS + 2, {"Re": 100.0}, beyond="last"
    )
    width = long.intervals.high - long.fields
    assert not torch.allclose(width[:, 0], width[:, LEADS - 1], equal_nan=True)
    last = width[:, LEADS - 1 : LEADS].expand_as(width[:, LEADS:])
    torch.testing.assert_close(width[:, LEADS:], last, equal_nan=True, rtol=1e-3, atol=1e-5)


def test_a_calibration_survives_a_round_trip(
    calibrated_model: CalibratedPredictor, found: Calibration
):
    again = calibrated_model.calibration
    for level in (0.5, 0.9):
        torch.testing.assert_close(again.quantiles(level), found.quantiles(level))
    scores = torch.randn(4, len(found.detector.names), dtype=torch.float64)
    torch.testing.assert_close(again.detector.p_values(scores), found.detector.p_values(scores))
    assert again.settings == SETTINGS and again.units == found.units == "trajectories"


def test_a_calibration_of_other_weights_is_refused(
    calibrated_model: CalibratedPredictor, tmp_path: Path
):
    other = saved(tmp_path, seed=3)
    save_calibration(tmp_path, calibrated_model.calibration, other.spec.channels)
    with refused("expected the calibration of weights"):
        load_calibrated(tmp_path)
    with refused("calibrate this model"):
        CalibratedPredictor(other, calibrated_model.calibration)


def mix_two(folder: Path) -> None:
    sheet = json.loads((folder / SHEET).read_text())
    (folder / SHEET).write_text(json.dumps(sheet | {"tensors_sha256": "0" * 64}))


def name_an_old_guide(folder: Path) -> None:
    sheet = json.loads((folder / SHEET).read_text())
    (folder / SHEET).write_text(json.dumps(sheet | {"difficulty": "relative slope"}))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: (folder / TENSORS).write_bytes(b"short"), "whole safetensors file"),
        (mix_two, "not of one calibration"),
        (name_an_old_guide, "'relative slope', which only earlier versions have"),
        (lambda folder: (folder / SHEET).unlink(), "pibert calibrate"),
    ],
)
def test_a_damaged_file_is_refused(
    calibrated_model: CalibratedPredictor,
    tmp_path: Path,
    damage: Callable[[Path], object],
    named: str,
):
    save_calibration(tmp_path, calibrated_model.calibration, ("u", "v"))
    damage(tmp_path)
    with refused(named, error=(ValueError, OSError)):
        read_calibration(tmp_path, calibrated_model.calibration.weights_sha256)


def test_missing_points_need_a_mask_and_get_no_intervals(calibrated_model: CalibratedPredictor):
    fields = windows().numpy()
    fields[0, :, :, 6, 8] = float("nan")
    with refused("pass a mask that is False"):
        calibrated_model.step(fields, {"Re": 100.0})
    prediction = calibrated_model.step(fields, {"Re": 100.0}, ~(fields != fields).any((1, 2)))
    missing = prediction.intervals.high != prediction.intervals.high
    assert missing[0, ..., 6, 8].all() and not missing[1:, ..., 6, 8].any()


def test_unknown_points_alone_are_not_flagged(calibrated_model: CalibratedPredictor):
    re = {"Re": torch.tensor([t.parameters["Re"] for t in flows(20, seed=9)])}
    whole = calibrated_model.detect_ood(windows(20), re)
    assert not whole.limited.any()
    mask = torch.ones(8, 12, dtype=torch.bool)
    mask[:, 6:] = False  # the features of one half are not those of a whole window
    gaps = calibrated_model.detect_ood(windows(20), re, mask)
    assert bool(gaps.limited.all()) and bool((gaps.p >= whole.p).all())
    assert not {"fields", "divergence", "consistency"} & set(gaps.reasons)
    assert bool(calibrated_model.detect_ood(10 * windows(20), re, mask).flagged.all())


def test_fitting_and_calibrating_trajectories_are_disjoint():
    fit, rest = split_groups({index: [index] for index in range(20)}, seed=0)
    assert len(fit) == 5 and sorted(own[0] for own in (*fit, *rest)) == list(range(20))
    assert split_groups({3: [10, 11, 12, 13]}, seed=0) == ([[10]], [[11, 12, 13]])
    with refused("12 windows", "found one"):
        split_groups({0: [1]}, seed=0)


def test_an_ensemble_predicts_the_mean_and_its_intervals_follow_the_spread(tmp_path: Path):
    members = [saved(tmp_path / str(seed), seed=seed) for seed in range(3)]
    ensemble = Ensemble(members)
    fields, re = windows(), {"Re": 100.0}
    rolls = torch.stack([member.rollout(fields, 2, re) for member in members])
    torch.testing.assert_close(ensemble.rollout(fields, 2, re), rolls.mean(0))
    (block,) = ensemble.blocks(ensemble.stream(ensemble.prepare(fields, re), 1))
    mean, spread = block.frames, block.spread
    assert spread is not None
    torch.testing.assert_close(spread, rolls[:, :, :1].std(0))
    torch.testing.assert_close(
        torch.as_tensor(ensemble.step(fields.numpy(), re)), mean, rtol=1e-5, atol=1e-6
    )
    settings = CalibrationSettings(difficulty="ensemble", leads=2, starts=2)
    found = calibrated(ensemble, 12, settings)
    others = [tmp_path / "1", tmp_path / "2"]
    save_calibration(tmp_path / "0", found, ("u", "v"), members=others)
    prediction = load_calibrated(tmp_path / "0").step(fields, re)
    torch.testing.assert_close(prediction.fields, mean)
    fluid = ~BODY
    half = (prediction.intervals.high - prediction.fields)[..., fluid].flatten()
    order = spread[..., fluid].flatten()
    assert float(torch.corrcoef(torch.stack((half, order)))[0, 1]) > 0.8


def test_an_ensemble_is_of_different_weights_of_one_kind(tmp_path: Path):
    one, other = saved(tmp_path / "one"), saved(tmp_path / "other", seed=1, scale=2.0)
    slower = saved(tmp_path / "slower", seed=2)
    slower.spec = replace(slower.spec, dt=0.3)
    for members, named in (
        ([one], "two or more"),
        ([one, one], "twice"),
        ([one, other], "normalizer"),
        ([one, slower], "spec in member 2"),
    ):
        with refused(named):
            Ensemble(members)


def test_flows_that_trained_the_model_are_not_counted_as_new():
    shared = flows(30, seed=2)
    found = calibrate(
        damping(),
        samples_of(shared, Window(history=2)),
        samples_of(shared, Window(history=2, horizon=LEADS)),
        SETTINGS,
    )
    assert found.same_flows and found.units == "windows"
    assert "not for other flows" in found.assumption()
    assert not calibrated(damping()).same_flows


def test_the_ood_warning_uses_the_equations_in_the_options_of_the_model():
    with_family, plain = damping(None, "incompressible"), damping(None)
    found, older = calibrated(with_family), calibrated(plain)
    assert {"divergence", "vorticity peak"} <= set(found.detector.names)
    assert "divergence" not in older.detector.names
    # A calibration from before equations were taken from the model is still read.
    pairs = (
        ((with_family, found), (damping(), calibrated(damping()))),
        ((with_family, older), (plain, older)),
    )
    for pair in pairs:
        mine, theirs = (
            CalibratedPredictor(*own).detect_ood(2 * windows(), {"Re": 100.0}) for own in pair
        )
        torch.testing.assert_close(mine.p, theirs.p)


@pytest.mark.parametrize("name", ["cylinder-mr", "cylinder-base"])
def test_shipped_calibrations_name_guides_as_this_version_does(name: str) -> None:
    found = load_calibrated(name).calibration
    assert found.difficulty.guide in GUIDES and set(found.guide_losses) >= set(GUIDES)
