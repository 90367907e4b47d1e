"""Predictions in physical units: kinds of arrays, units, rollouts, gaps, and what is refused."""

import itertools
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pibert
from pibert.fields import Normalizer, Parameter
from pibert.models.pibert import PIBERT
from pibert.predictor import InputWarning, Predictor, save_model
from tests.helpers import assert_close, tiny_model, tiny_spec
from tests.predictor.small import NORMALIZER, SHAPE, frames, make_runaway, predictor

ALL = {"forward": True, "reconstruct": True, "consistency": True}


def window_of(steps: list[Tensor], history: int) -> Tensor:
    return torch.cat(steps, 1)[:, -history:]


def test_a_loaded_model_predicts_as_the_one_that_was_saved(tmp_path: Path) -> None:
    before = predictor()
    save_model(tmp_path, before.model, NORMALIZER, trained=ALL)
    after = pibert.load(tmp_path)
    x = frames()
    assert torch.equal(before.step(x, {"Re": 900.0}), after.step(x, {"Re": 900.0}))
    assert after.spec == before.spec and after.normalizer == NORMALIZER
    assert (after.history, after.horizon) == (1, 1)
    assert after.device == torch.device("cpu") and not after.model.training
    assert after.card["trained"] == ALL


def test_a_step_is_the_model_between_standardised_and_physical() -> None:
    predict, x = predictor(), frames()
    parameters = predict.spec.encode_parameters({"Re": torch.tensor([500.0, 1e3, 2e3])})
    z = (x[:, 0] - torch.tensor([1.5, -0.25])[:, None, None]) / torch.tensor([0.5, 2.0])[
        :, None, None
    ]
    with torch.no_grad():
        y = predict.model(z, parameters, torch.ones(3, *SHAPE, dtype=torch.bool))
    expected = (
        y * torch.tensor([0.5, 2.0])[:, None, None] + torch.tensor([1.5, -0.25])[:, None, None]
    )
    found = predict.step(x, {"Re": np.array([500, 1000, 2000])})
    assert torch.allclose(found[:, 0], expected, atol=1e-6)
    assert not torch.allclose(found, predict.step(x, {"Re": 500}), atol=1e-4)


def test_a_parameter_far_outside_the_range_of_training_is_told() -> None:
    own = Parameter(name="Re", scaling="log", mean=3.6, std=0.2, lowest=1800.0, highest=12000.0)
    predict = predictor(spec=tiny_spec(SHAPE, parameters=(own,)))
    x = frames(batch=2)
    with pytest.warns(InputWarning, match=r"'Re' is 100, outside .* 1800 to 12000"):
        predict.step(x, {"Re": 100.0})
    with pytest.warns(InputWarning, match=r"'Re' is 14600, outside"):
        predict.rollout(x, 2, {"Re": np.array([5000.0, 14600.0])})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # A tenth of the range in log10 beyond its ends: 1489 and 14507.
        for value in (1800.0, 12000.0, 1500.0, 14500.0, math.nan):
            predict.step(x, {"Re": value})
        predict.step(x)


def test_a_parameter_that_had_one_value_in_training_is_told_if_it_has_another() -> None:
    own = Parameter(name="viscosity", mean=1e-5, lowest=1e-5, highest=1e-5)
    predict = predictor(spec=tiny_spec(SHAPE, parameters=(own,)))
    with pytest.warns(InputWarning, match="'viscosity' is 2e-05, outside .* 1e-05 alone"):
        predict.step(frames(), {"viscosity": 2e-5})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict.step(frames(), {"viscosity": 1.0000001e-5})


def test_without_a_recorded_range_three_standard_deviations_count() -> None:
    predict = predictor()  # log10 Re has mean 3 and deviation 0.5
    with pytest.warns(InputWarning, match=r"'Re' is 10, 4.0 standard .*: 31.623 to 31623\)"):
        predict.step(frames(), {"Re": 10.0})
    unfitted = predictor(spec=tiny_spec(SHAPE, parameters=(Parameter(name="Re"),)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict.step(frames(), {"Re": 40.0})
        unfitted.step(frames(), {"Re": 100.0})  # nothing is known of its training


def test_a_predictor_says_in_a_line_what_it_is(tmp_path: Path) -> None:
    before = predictor(history=2, spec=tiny_spec(SHAPE, units=("m/s", "1")))
    line = repr(before)
    for part in ("PIBERT", "u [m/s] v", "12 x 20 points", "dx 0.3, dy 0.2", "dt 0.1"):
        assert part in line
    assert "history 2" in line and line.endswith("on cpu)") and "\n" not in line
    save_model(tmp_path, before.model, NORMALIZER, trained=ALL)
    after = pibert.load(tmp_path)
    assert f"pibert {after.card['weights']['sha256'][:12]}" in repr(after)


def test_an_untrained_model_gives_back_its_input_however_large_its_units() -> None:
    normalizer = Normalizer((101325.0, -4e-7), (250.0, 3e-9))
    predict = Predictor(tiny_model(spec=tiny_spec(SHAPE)), normalizer)
    z = torch.randn(2, 1, 2, *SHAPE, dtype=torch.float64)
    x = normalizer.invert(z)
    assert torch.allclose(normalizer.apply(predict.step(x)), z, atol=1e-6)
    # In float32 a large mean has eaten digits before anything is predicted.
    small = x.float()
    assert torch.allclose(predict.step(small), small, rtol=2e-7, atol=0)


def test_the_answer_is_of_the_kind_and_type_of_the_input() -> None:
    predict, x = predictor(), frames()
    expected = predict.step(x)
    for kind in (np.float32, np.float64, ">f4"):
        array = x.numpy().astype(kind)
        array.setflags(write=False)
        found = predict.step(array, mask=np.ones(SHAPE, bool))
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.dtype(kind).newbyteorder("=")
        assert np.allclose(found, expected.numpy(), atol=1e-5)
    double = predict.step(x.double())
    assert double.dtype == torch.float64 and torch.allclose(double.float(), expected, atol=1e-5)
    assert predict.consistency(x.numpy()).dtype == np.float32


@pytest.mark.parametrize("shape", [SHAPE, (8, 15)], ids=["own grid", "another grid"])
@pytest.mark.parametrize("masked", [False, True])
def test_answers_can_be_differentiated_by_fields_and_parameters(
    shape: tuple[int, int], masked: bool
) -> None:
    """Gradients of a rollout against central differences along random directions."""
    predict = predictor()
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(3, 2, 1, 2, *shape, generator=generator, dtype=torch.float64)
    mask = torch.ones(shape, dtype=torch.bool)
    if masked:
        mask[2:6, 3:8] = False
    x, along, weight = NORMALIZER.invert(z[0]).requires_grad_(), z[1] * mask, z[2]
    reynolds = torch.tensor([800.0, 1500.0], requires_grad=True)
    steps = torch.tensor([60.0, -100.0])

    def loss(move: float = 0.0, turn: float = 0.0) -> Tensor:
        found = predict.rollout(x + move * along, 2, {"Re": reynolds + turn * steps}, mask)
        return (found * weight).sum()

    by_fields, by_reynolds = torch.autograd.grad(loss(), (x, reynolds))
    assert by_fields.isfinite().all()
    assert not by_fields[:, :, :, ~mask].any()  # what is not known has no influence
    h = 1e-2  # the model computes in float32
    with torch.no_grad():
        assert not loss().requires_grad
        slope = (loss(move=h) - loss(move=-h)) / (2 * h)
        other = (loss(turn=1) - loss(turn=-1)) / 2
    assert (by_fields * along).sum().item() == pytest.approx(slope.item(), rel=0.02)
    assert (by_reynolds * steps).sum().item() == pytest.approx(other.item(), rel=0.05)


def test_without_a_gradient_to_take_the_answer_has_none() -> None:
    predict, x = predictor(), frames()
    assert not predict.step(x, {"Re": 900.0}).requires_grad
    assert predict.step(x.requires_grad_()).requires_grad
    with torch.no_grad():
        assert not predict.step(x).requires_grad


def test_autocast_around_a_prediction_changes_nothing() -> None:
    predict, x = predictor(), frames()
    with torch.autocast("cpu", torch.bfloat16):
        found = predict.step(x)
    assert torch.equal(found, predict.step(x))


def test_a_large_batch_in_parts_is_the_same_prediction() -> None:
    whole, parted, x = predictor(), predictor(chunk=2), frames(5)
    sizes: list[int] = []
    parted.model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    reynolds = {"Re": torch.linspace(300.0, 900.0, 5)}
    mask = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(1)) > 0.2
    found = parted.rollout(x, 2, reynolds, mask)
    assert_close(found, whole.rollout(x, 2, reynolds, mask))
    assert sizes == [2, 2, 1] * 2


def test_a_rollout_is_the_step_repeated() -> None:
    predict, x = predictor(), frames()
    found = predict.rollout(x, 4, {"Re": 700.0})
    step = x
    for number in range(4):
        step = predict.step(step, {"Re": 700.0})
        assert torch.allclose(found[:, number : number + 1], step, atol=1e-4)
    assert isinstance(predict.rollout(x.numpy(), 4), np.ndarray)


@pytest.mark.parametrize(("history", "horizon"), [(2, 2), (3, 1), (1, 2), (3, 2)])
def test_the_window_slides_over_predicted_frames(history: int, horizon: int) -> None:
    predict, x = predictor(history=history, horizon=horizon), frames(2, history)
    steps = [x]
    for _ in range(3):
        steps.append(predict.step(window_of(steps, history)))
        assert steps[-1].shape == (2, horizon, 2, *SHAPE)
    expected = torch.cat(steps[1:], 1)
    most = 3 * horizon - 1  # the last block is cut when the horizon is 2
    found = predict.rollout(x, most)
    assert torch.allclose(found, expected[:, :most], atol=1e-4)
    blocks = list(predict.iterate(x, most))
    assert torch.equal(torch.cat(blocks, 1), found)
    assert blocks[0].shape[1] == min(horizon, most)


def test_a_rollout_without_end_is_made_as_it_is_asked_for() -> None:
    predict, x, calls = predictor(), frames(), []
    predict.model.register_forward_pre_hook(lambda *_: calls.append(1))
    blocks = predict.iterate(x)
    assert not calls
    found = list(itertools.islice(blocks, 3))
    assert len(calls) == 3
    assert torch.equal(torch.cat(found, 1), predict.rollout(x, 3))


def test_what_lies_at_unknown_points_never_matters() -> None:
    predict, x = predictor(), frames()
    mask = torch.ones(3, *SHAPE, dtype=torch.bool)
    mask[0, 2:5, 7:9] = False
    mask[2, 11, :] = False
    hidden = torch.where(mask[:, None, None], x, math.nan)
    expected = predict.rollout(x, 3, mask=mask)
    assert torch.equal(predict.rollout(hidden, 3, mask=mask), expected)
    assert torch.isfinite(expected).all()
    assert not torch.allclose(predict.step(x), expected[:, :1], atol=1e-3)
    # Unknown in every step: what was predicted there is not fed back.
    second = torch.where(mask[:, None, None], expected[:, :1], 1e6)
    assert torch.allclose(predict.step(second, mask=mask), expected[:, 1:2], atol=1e-4)


def test_a_body_of_the_grid_is_never_known() -> None:
    body = torch.zeros(SHAPE, dtype=torch.bool)
    body[3:6, 4:9] = True
    predict, x = predictor(body=body), frames()
    hollow = torch.where(body, math.nan, x)
    assert torch.equal(predict.step(hollow), predict.step(x))
    assert torch.equal(predict.step(x, mask=~body), predict.step(x))


def test_filling_keeps_what_is_known_bit_for_bit_and_puts_the_head_elsewhere() -> None:
    body = torch.zeros(SHAPE, dtype=torch.bool)
    body[0:2, 0:2] = True
    predict, x = predictor(history=2, body=body), frames(3, 2)
    known = torch.ones(3, 2, *SHAPE, dtype=torch.bool)
    known[0, 1, 4:8, 10:13] = False
    known[1, :, 7, :] = False
    known[2, 0, 0, 0] = False  # in the body: no gap
    given = torch.where(known[:, :, None], x, math.nan)
    found = predict.fill(given, known, {"Re": 700.0})
    gaps = ~known & ~body
    kept = known[:, :, None].expand_as(x)
    assert torch.equal(found[kept], x[kept])
    assert found[2, 0, :, 0, 0].isnan().all()
    seen = known.all(1) & ~body
    z = torch.where(seen[:, None, None], NORMALIZER.apply(x), 0.0).flatten(1, 2)
    parameters = predict.spec.encode_parameters({"Re": 700.0}).expand(3, -1)
    model = predict.model
    assert isinstance(model, PIBERT)
    with torch.no_grad():
        head = NORMALIZER.invert(model.reconstruct(z, parameters, seen).unflatten(1, (2, 2)))
    put = gaps[:, :, None].expand_as(x)
    assert torch.allclose(found[put], head[put], atol=1e-6)
    array = predict.fill(given.numpy(), known.numpy(), {"Re": 700.0})
    assert np.array_equal(array, found.numpy(), equal_nan=True)
    static = predict.fill(given, known.all(1), {"Re": 700.0})
    assert torch.equal(static[put], found[put])


def test_consistency_is_a_probability_per_sample() -> None:
    predict, x = predictor(), frames(4)
    model = predict.model
    assert isinstance(model, PIBERT)
    with torch.no_grad():
        z = NORMALIZER.apply(x)[:, 0]
        logits = model.consistency(z, predict.spec.encode_parameters({}).expand(4, -1))
    found = predict.consistency(x)
    assert found.shape == (4,)
    assert torch.allclose(found, 1 / (1 + torch.exp(-logits)), atol=1e-6)


def test_a_rollout_that_diverges_stops_with_the_step() -> None:
    predict, x = predictor(horizon=2), frames(2)
    make_runaway(predict.model, 1e15)  # overflows float32 in the third call
    overflow = pytest.raises(FloatingPointError, match=r"step 5 \(sample 0\).*at most 4 steps")
    with pytest.warns(InputWarning, match="from step 1 on.*check units"), overflow:
        predict.rollout(x, 10)
    with pytest.warns(InputWarning):
        blocks = predict.iterate(x, 10)
        assert all(torch.isfinite(next(blocks)).all() for _ in range(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_that_overflow_when_standardised_are_refused_with_their_place(
    dtype: torch.dtype,
) -> None:
    predict, x = predictor(), frames(2).to(dtype)
    x[1, 0, 0, 3, 4] = 3e38  # twice that in standard deviations
    with (
        pytest.raises(ValueError, match=r"found 3e\+38 in sample 1, channel 'u'; check the units"),
        pytest.warns(InputWarning, match="in other units"),
    ):
        predict.step(x)
    known = torch.ones(SHAPE, dtype=torch.bool)
    known[3, 4] = False
    assert predict.step(x, mask=known).isfinite().all()


def test_parameters_that_overflow_when_standardised_are_refused() -> None:
    spec = tiny_spec(SHAPE, parameters=(Parameter(name="nu", mean=0.0, std=0.01),))
    with pytest.raises(ValueError, match="parameters .* found {'nu': 1e\\+37}; check"):
        predictor(spec=spec).step(frames(), {"nu": 1e37})


def test_a_prediction_that_overflows_in_physical_units_has_diverged() -> None:
    predict, x = predictor(), frames(1)
    x[0, 0, 0], x[0, 0, 1] = 1.5, 3.0  # 0 and 1.625 standard deviations
    make_runaway(predict.model, 1.9e38)  # times 1.625 is finite, but 2 is the unit of v
    with pytest.raises(FloatingPointError, match=r"step 1 \(sample 0\).*diverged; check units"):
        predict.step(x)


def test_a_rollout_that_runs_away_is_told_once_with_the_step() -> None:
    predict, x = predictor(), frames(2).clamp(-3, 3)
    known = torch.ones(SHAPE, dtype=torch.bool)
    make_runaway(predict.model)
    with pytest.warns(InputWarning, match="runs away") as told:
        found = predict.rollout(x, 12, mask=known)
    (said,) = (str(entry.message) for entry in told)
    size = NORMALIZER.apply(found).abs().amax((0, 2, 3, 4))
    step = int((size > 20).nonzero()[0]) + 1
    assert 1 < step < 12 and f"from step {step} on" in said and f"at most {step - 1} steps" in said
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict.rollout(x, step - 1, mask=known)


@pytest.mark.parametrize(
    ("head", "call"),
    [
        ("forward", lambda p, x: p.step(x)),
        ("reconstruct", lambda p, x: p.fill(x, torch.ones(SHAPE, dtype=torch.bool))),
        ("consistency", lambda p, x: p.consistency(x)),
    ],
)
def test_a_head_that_was_not_trained_is_refused(tmp_path: Path, head: str, call: Any) -> None:
    x = frames()
    save_model(tmp_path, predictor().model, NORMALIZER, trained=ALL | {head: False})
    with pytest.raises(ValueError, match=r"expected a model trained to .*; .*: pibert"):
        call(pibert.load(tmp_path), x)
    save_model(tmp_path, predictor().model, NORMALIZER, trained={head: True})
    call(pibert.load(tmp_path), x)


def test_a_model_without_the_head_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    predict = predictor()
    monkeypatch.delattr(PIBERT, "consistency")
    with pytest.raises(ValueError, match="found PIBERT, which has no consistency head"):
        predict.consistency(frames())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[0, 0, 0], r"\(batch, history, channel, y, x\) = \(batch, 1, 2, 12, 20\)"),
        (lambda x: x[:, 0], r"found \(3, 2, 12, 20\); .* needs a time axis: fields\[:, None\]"),
        (lambda x: x[None], r"found \(1, 3, 1, 2, 12, 20\)"),
        (lambda x: x.repeat(1, 2, 1, 1, 1), r"found \(3, 2, 2, 12, 20\); give the 1 newest"),
        (lambda x: x[:, :0], r"found \(3, 0, 2, 12, 20\)"),
        (lambda x: x[..., :0], r"found \(3, 1, 2, 12, 0\)"),
        (lambda x: x[0, :0], r"found \(0, 2, 12, 20\)"),
        (lambda x: np.zeros(0), r"found \(0,\)"),
        (lambda x: x[:, :, :1], r"channels \['u', 'v'\], found \(3, 1, 1, 12, 20\); bring"),
        (lambda x: x[:0], r"found \(0, 1, 2, 12, 20\)"),
        (lambda x: x.half(), "float32 or float64, found float16"),
        (lambda x: x.bfloat16(), "float32 or float64, found bfloat16"),
        (lambda x: x.numpy().astype(np.float16), "float32 or float64, found float16"),
        (lambda x: x.numpy().astype(np.longdouble), "or float64, found (float|longdouble)"),
        (lambda x: x.numpy().astype(int), "float32 or float64, found int64; convert them"),
        (lambda x: x.numpy().astype(">i2"), "float32 or float64, found int16"),
        (lambda x: x.int(), "float32 or float64, found int32"),
        (lambda x: x.numpy() > 0, "float32 or float64, found bool"),
        (lambda x: x.to(torch.complex64), "float32 or float64, found complex64"),
        (lambda x: x.numpy().astype(complex), "float32 or float64, found complex128"),
        (lambda x: x.numpy().astype(object), "float32 or float64, found object"),
        (lambda x: x.tolist(), "NumPy array or a tensor .*, found list"),
        (lambda x: np.ma.masked_invalid(x.numpy()), "found MaskedArray.*pass a mask"),
    ],
)
def test_fields_of_another_shape_or_kind_are_refused(
    change: Any, message: str, no_shape_checks: None
) -> None:
    with pytest.raises(ValueError, match=message):
        predictor().step(change(frames()))


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(20, 12, dtype=torch.bool), r"of shape \(12, 20\) or .* found \(20, 12\)"),
        (torch.ones(2, 12, 20, dtype=torch.bool), r"\(3, 12, 20\).* found .*\(2, 12, 20\)"),
        (torch.ones(12, 20), "the mask in bool, found float32; True where known"),
    ],
)
def test_a_wrong_mask_is_refused(mask: Tensor, message: str, no_shape_checks: None) -> None:
    with pytest.raises(ValueError, match=message):
        predictor().step(frames(), mask=mask)


def test_a_missing_value_that_counts_as_known_is_refused_with_its_place() -> None:
    x = frames()
    x[2, 0, 1, 5, 17] = math.nan
    place = "found nan in sample 2, frame 0, channel 'v', row 5, column 17; pass a mask"
    with pytest.raises(ValueError, match=place):
        predictor().step(x)
    x[2, 0, 1, 5, 17] = math.inf
    with pytest.raises(ValueError, match="found inf"):
        predictor().rollout(x, 2)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"re": 3.0}, r"unknown parameters \['re'\]; this data has \['Re'\]"),
        ({"Re": [100.0, 200.0]}, "one finite number, or 3 of them, for parameter 'Re'"),
        ({"Re": math.inf}, "one finite number"),
        ({"Re": -5.0}, "must be positive"),
    ],
)
def test_wrong_parameters_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predictor().step(frames(), parameters)


def test_parameters_that_are_not_given_are_unknown() -> None:
    predict, x = predictor(), frames()
    assert torch.equal(predict.step(x), predict.step(x, {"Re": math.nan}))
    assert torch.equal(predict.step(x), predict.step(x, {}))
    assert not torch.equal(predict.step(x), predict.step(x, {"Re": 40.0}))


def test_senseless_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 step, found 0"):
        predictor().rollout(frames(), 0)
    with pytest.raises(ValueError, match="chunk of at least 1 sample, found 0"):
        predictor(chunk=0)
    with pytest.raises(ValueError, match="cannot step"):
        Predictor(tiny_model(out_channels=3), NORMALIZER)
    with pytest.raises(ValueError, match="and 3 means"):
        Predictor(tiny_model(), Normalizer.identity(3))


def test_a_predictor_moves() -> None:
    predict = predictor()
    assert predict.to("meta") is predict and predict.device.type == "meta"
