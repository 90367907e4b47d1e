"""Predictions in physical units: kinds of arrays, units, rollouts, gaps and errors."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pibert
from pibert.fields import Normalizer, Parameter
from pibert.inference import InputWarning, Predictor, RolloutDiverged, save_model
from pibert.models.pibert import PIBERT
from tests.helpers import assert_close, refused, tiny_model, tiny_spec
from tests.inference.small import NORMALIZER, SHAPE, frames, make_runaway, predictor

ALL = {"forward": True, "reconstruct": True, "consistency": True}


def window_of(steps: list[Tensor], history: int) -> Tensor:
    return torch.cat(steps, 1)[:, -history:]


def test_a_step_standardises_runs_the_model_and_converts_back() -> None:
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


RANGED = Parameter(name="Re", scaling="log", mean=3.6, std=0.2, lowest=1800.0, highest=12000.0)
CONSTANT = Parameter(name="Re", mean=1e-5, lowest=1e-5, highest=1e-5)
SPREAD = Parameter(name="Re", scaling="log", mean=3.0, std=0.5)


@pytest.mark.parametrize(
    ("own", "far", "near"),
    [
        # A tenth of the range in log10 beyond its ends: 1489 and 14507.
        (RANGED, {100.0: "1800 to 12000", 14600.0: "outside"}, (1500.0, 14500.0, math.nan)),
        (CONSTANT, {2e-5: "only 1e-05"}, (1.0000001e-5,)),
        (SPREAD, {10.0: "4.0 standard deviations"}, (40.0,)),  # no range was recorded
        (Parameter(name="Re"), {}, (100.0,)),  # nothing is known of its training
    ],
)
def test_a_parameter_far_outside_the_training_range_is_noted(
    own: Parameter, far: dict[float, str], near: tuple[float, ...]
) -> None:
    predict = predictor(spec=tiny_spec(SHAPE, parameters=(own,)))
    for value, words in far.items():
        with pytest.warns(InputWarning, match=rf"'Re' is {value:g}.*{words}"):
            predict.rollout(frames(2), 2, {"Re": np.array([value, value])})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in near:
            predict.step(frames(), {"Re": value})


def test_results_have_the_kind_and_type_of_the_input() -> None:
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
    assert "12 x 20 points" in repr(predict) and "\n" not in repr(predict)
    assert predict.to("meta").device.type == "meta"


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


def test_gradients_are_taken_only_if_asked_for_and_autocast_changes_nothing() -> None:
    predict, x = predictor(), frames()
    found = predict.step(x)
    assert not predict.step(x, {"Re": 900.0}).requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(found, predict.step(x))
    assert predict.step(x.requires_grad_()).requires_grad
    with torch.no_grad():
        assert not predict.step(x).requires_grad


def test_a_batch_in_chunks_gives_the_same_prediction() -> None:
    whole, chunked, x = predictor(), predictor(chunk=2), frames(5)
    sizes: list[int] = []
    chunked.model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    reynolds = {"Re": torch.linspace(300.0, 900.0, 5)}
    mask = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(1)) > 0.2
    found = chunked.rollout(x, 2, reynolds, mask)
    assert_close(found, whole.rollout(x, 2, reynolds, mask))
    assert sizes == [2, 2, 1] * 2


@pytest.mark.parametrize(("history", "horizon"), [(1, 1), (3, 1), (1, 2), (3, 2)])
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


def test_values_at_unknown_points_have_no_influence() -> None:
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


def test_filling_keeps_known_values_bit_for_bit_and_uses_the_head_elsewhere() -> None:
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


def test_a_rollout_that_diverges_stops_with_the_step() -> None:
    predict, x = predictor(horizon=2), frames(2)
    make_runaway(predict.model, 1e15)  # overflows float32 in the third call
    overflow = pytest.raises(RolloutDiverged, match=r"step 5 \(sample 0\).*at most 4 steps")
    with pytest.warns(InputWarning, match="from step 1 on.*check units"), overflow as raised:
        predict.rollout(x, 10)
    kept = raised.value.prediction
    assert kept is not None and kept.fields.shape[:2] == (2, 4)
    assert bool(kept.fields.isfinite().all())
    with pytest.warns(InputWarning):
        blocks = predict.iterate(x, 10)
        assert all(torch.isfinite(next(blocks)).all() for _ in range(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_that_overflow_when_standardised_are_refused(
    dtype: torch.dtype,
) -> None:
    predict, x = predictor(), frames(2).to(dtype)
    x[1, 0, 0, 3, 4] = 3e38  # twice that in standard deviations
    with refused("3e+38", "sample 1", "'u'", "units"):
        predict.step(x)
    known = torch.ones(SHAPE, dtype=torch.bool)
    known[3, 4] = False
    assert predict.step(x, mask=known).isfinite().all()


def test_a_runaway_rollout_is_noted_once_with_the_step() -> None:
    predict, x = predictor(), frames(2).clamp(-3, 3)
    known = torch.ones(SHAPE, dtype=torch.bool)
    make_runaway(predict.model)
    with pytest.warns(InputWarning, match="diverges") as caught:
        found = predict.rollout(x, 12, {"Re": 900.0}, known)
    (text,) = (str(entry.message) for entry in caught)
    size = NORMALIZER.apply(found).abs().amax((0, 2, 3, 4))
    step = int((size > 20).nonzero()[0]) + 1
    assert 1 < step < 12 and f"from step {step} on" in text and f"at most {step - 1} steps" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predict.rollout(x, step - 1, {"Re": 900.0}, known)


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


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.bool)


def holed(x: Tensor, value: float) -> Tensor:
    x[2, 0, 1, 5, 17] = value
    return x


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda p, x: p.step(x[0, 0, 0]), ("(batch, history, channel, y, x)", (12, 20))),
        (lambda p, x: p.step(x[:, 0]), ((3, 2, 12, 20), "fields[:, None]")),
        (lambda p, x: p.step(x[:, :, :1]), ("['u', 'v']", (3, 1, 1, 12, 20))),
        (lambda p, x: p.step(x.numpy().astype(int)), ("int64", "convert")),
        (lambda p, x: p.step(np.ma.masked_invalid(x.numpy())), ("MaskedArray", "pass a mask")),
        (lambda p, x: p.step(x, mask=ones(20, 12)), ((12, 20), (20, 12))),
        (
            lambda p, x: p.step(holed(x, math.nan)),
            ("nan in sample 2, frame 0, channel 'v', row 5, column 17", "pass a mask"),
        ),
        (lambda p, x: p.step(x, {"re": 3.0}), ("['re']", "['Re']")),
        (lambda p, x: p.step(x, {"Re": [100.0, 200.0]}), ("or 3 of them", "'Re'")),
        (lambda p, x: p.step(x, {"Re": -5.0}), ("positive", "-5")),
        (lambda p, x: p.rollout(x, 0), ("at least 1 step", 0)),
        (lambda p, x: p.rollout(x, 2.5), ("whole number", 2.5)),
        (lambda p, x: Predictor(tiny_model(), Normalizer.identity(3)), ("2 channels", 3)),
    ],
)
def test_invalid_input_is_refused(
    call: Callable[[Predictor, Tensor], object], named: tuple[object, ...], no_shape_checks: None
) -> None:
    with refused(*named):
        call(predictor(), frames())


def test_parameters_that_are_not_given_are_unknown_and_noted() -> None:
    predict, x = predictor(), frames()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unknown = predict.step(x, {"Re": math.nan})
        assert not torch.equal(unknown, predict.step(x, {"Re": 40.0}))
    none_given: tuple[dict[str, float] | None, ...] = (None, {})
    for parameters in none_given:
        with pytest.warns(InputWarning, match=r"Re .*parameters=\{'Re': NUMBER\}"):
            assert torch.equal(predict.step(x, parameters), unknown)
        (note,) = predict.predict(x, 1, parameters).notes
        assert note.code == "unknown-parameters" and note.severity == "warning"
    without = predictor(spec=tiny_spec(SHAPE, parameters=()))
    assert not without.predict(x).notes
