"""Scores of a predictor: frames, gaps, picks, terms by brute force, and what has no score."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.data.dataset import Samples, Window
from pibert.data.splits import Segment
from pibert.evaluation import scoring
from pibert.evaluation.forecast_scores import ForecastScores
from pibert.evaluation.scores import FORMAT, Scores, read_card, read_scores, save_scores
from pibert.evaluation.scoring import FrameScores, score_frames, seen_by, sequences
from pibert.fields import FieldSpec, Normalizer, Trajectory
from pibert.inference import Predictor
from pibert.inference.forecast import Forecaster, written_spec
from pibert.inference.recording import fit_recording
from tests.data.helpers import make_trajectory
from tests.helpers import randomise, refused, tiny_model

SHAPE = (8, 12)
NORMALIZER = Normalizer((0.4, -0.2), (1.5, 0.5))
Scored = tuple[Predictor, Samples, FrameScores]


def flow(name: str, frames: int, seed: int, **changes: Any) -> Trajectory:
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(frames, 2, *SHAPE, generator=generator)
    return make_trajectory(name, states=1 + 0.3 * steps.cumsum(0), **changes)


def samples_of(trajectories: list[Trajectory], history: int = 1, **options: Any) -> Samples:
    window = Window(history=history)
    return Samples(trajectories, window=window, normalizer=NORMALIZER, **options)


def predictor_of(samples: Samples, name: str = "fno2d", **options: Any) -> Predictor:
    spec = samples.spec
    model = tiny_model(name, spec, **({"modes": 3} if name == "fno2d" else {}) | options)
    return Predictor(randomise(model), samples.normalizer)


def with_gap(frames: int = 20, after: int = 8) -> Tensor:
    time = 0.05 * torch.arange(frames, dtype=torch.float64)
    time[after:] += 0.1
    return time


@pytest.fixture(scope="module")
def scored() -> Scored:
    valid = torch.ones(SHAPE, dtype=torch.bool)
    valid[3, 4:6] = False
    flows = [flow("a", 20, 0, valid=valid), flow("b", 7, 1, valid=valid)]
    samples = samples_of(flows, history=2)
    predictor = predictor_of(samples)
    return predictor, samples, score_frames(predictor, samples)


def answers(predictor: Predictor, samples: Samples) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Prediction, truth, last frame and what is known, one frame at a time."""
    found = []
    for number in range(len(samples)):
        home, first = samples.locate(number)
        frame = first + samples.window.history
        trajectory = samples.trajectories[home]
        states, known = trajectory.read(), trajectory.known()
        past = slice(frame - predictor.history, frame)
        answer = predictor.step(
            states[None, past], dict(trajectory.parameters), known[None, frame - 1]
        )
        found.append((answer[0, 0], states[frame], states[frame - 1], known[frame]))
    prediction, truth, last, known = (torch.stack(group) for group in zip(*found, strict=True))
    return prediction.double(), truth.double(), last.double(), known


def value(scored: FrameScores, measure: str, metric: str, component: str) -> float | None:
    pairs = zip(scored.entries[measure], scored.values[measure], strict=True)
    (found,) = [v for e, v in pairs if (e["metric"], e["component"]) == (metric, component)]
    return found


def test_scores_agree_with_predictions_from_the_same_recording() -> None:
    """``evaluate`` and ``predict``: the same numbers, computed in the same precision."""
    valid = torch.ones(SHAPE, dtype=torch.bool)
    valid[3, 4:6] = False
    recording = flow("a", 12, 0, valid=valid)
    samples = samples_of([recording], history=2)
    predictor = predictor_of(samples, history=2)
    tf32 = []
    predictor.model.register_forward_pre_hook(
        lambda *_: tf32.append(torch.backends.cudnn.allow_tf32)
    )
    scores = score_frames(predictor, samples)
    fitted = fit_recording(recording, predictor.spec, predictor.history)
    forecast = ForecastScores(written_spec(fitted), predictor.normalizer)
    predicted = []
    for block, last in Forecaster(fitted, predictor).next_frames(1):
        forecast.add(block, last)
        predicted.append(block.fields)
    for metric, components in forecast.overall().items():
        for component, found in components.items():
            expected = value(scores, "physical/pointwise", metric, component)
            assert found == pytest.approx(expected, rel=1e-5)
    first = int(scores.arrays["strip/rows"][0])
    strip = scores.arrays["strip/prediction"].float()
    shown = torch.cat(predicted)[first : first + len(strip)]
    assert torch.allclose(shown[..., valid], strip[..., valid], rtol=2e-3, atol=2e-3)  # half
    assert tf32 and not any(tf32)


def test_picks_are_at_the_quantiles_of_the_error_of_persistence(scored: Scored) -> None:
    predictor, samples, found = scored
    prediction, truth, last, known = answers(predictor, samples)
    energy = torch.where(known[:, None], truth, 0.0).square().sum((1, 2, 3))
    error = torch.where(known[:, None], last - truth, 0.0).square().sum((1, 2, 3)) / energy
    order = sorted(range(len(samples)), key=lambda row: float(error[row]))
    # Of 23 frames: places 1.1, 11 and 20.9 of 0 to 22.
    assert found.arrays["picks/rows"].tolist() == [order[1], order[11], order[21]]
    for place, row in enumerate((order[1], order[11], order[21])):
        here = known[row]
        for name, expected in (("truth", truth), ("prediction", prediction), ("last", last)):
            own = found.arrays[f"picks/{name}"][place].double()
            assert torch.allclose(own[:, here], expected[row][:, here], atol=1e-5)
        assert torch.equal(found.arrays["picks/known"][place], here)


def test_sequences_end_at_gaps_and_between_trajectories() -> None:
    flows = [flow("a", 20, 0, time=with_gap()), flow("b", 5, 1)]
    samples = samples_of(flows, 2)
    found = [[samples.locate(number) for number in piece] for piece in sequences(samples)]
    assert found == [
        [(0, frame) for frame in range(6)],
        [(0, frame) for frame in range(8, 18)],
        [(1, frame) for frame in range(3)],
    ]


def test_frames_in_pairs_are_scored_together(monkeypatch: pytest.MonkeyPatch) -> None:
    time = 0.05 * torch.arange(24, dtype=torch.float64)
    time += 0.5 * (torch.arange(24) // 2)
    rows, columns = torch.meshgrid(*map(torch.arange, SHAPE), indexing="ij")
    middle = torch.linspace(2, SHAPE[0] - 3, 24)[:, None, None]
    moving = ((rows - middle).abs() < 1.5) & ((columns - 3).abs() < 2)
    still = torch.zeros(SHAPE, dtype=torch.bool)
    still[2:4, 3:5] = True
    segments = (Segment(0, 0, 16), Segment(1), Segment(0, 16, None))
    samples = samples_of(
        [flow("a", 24, 0, time=time, body=moving), flow("b", 12, 1, time=time[:12], body=still)],
        segments=segments,
    )
    predictor = predictor_of(samples)
    calls: list[int] = []
    predictor.model.register_forward_hook(lambda _, given, __: calls.append(len(given[0])))
    found = score_frames(predictor, samples)
    assert calls[:3] == [8, 6, 4]  # not one frame at a time
    monkeypatch.setattr(
        scoring, "_by_trajectory", lambda samples: ([piece] for piece in sequences(samples))
    )
    alone = score_frames(predictor, samples)
    assert found.arrays.keys() == alone.arrays.keys()
    for name, values in alone.arrays.items():
        torch.testing.assert_close(
            found.arrays[name], values, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name
        )


def test_the_correlation_time_is_that_of_the_true_flow() -> None:
    time = torch.arange(64.0)[:, None, None, None]
    wave = torch.cos(2 * torch.pi * time / 16).expand(64, 2, *SHAPE).clone()
    samples = samples_of([make_trajectory("a", states=wave)])
    first, second = (
        score_frames(predictor_of(samples, n), samples) for n in ("fno2d", "persistence")
    )
    assert first.correlation_frames == second.correlation_frames
    # cos(2 pi lag / 16) = 1/e
    assert first.correlation_frames == pytest.approx(3.0, abs=0.3)
    still = samples_of([make_trajectory("a", states=torch.ones(20, 2, *SHAPE))])
    assert score_frames(predictor_of(still, "persistence"), still).correlation_frames is None


def test_fields_without_velocity_are_scored_without_derivatives() -> None:
    spec = FieldSpec(channels=("T",), grid=make_trajectory().spec.grid, family="heat", dt=0.05)
    states = torch.randn(6, 1, 5, 7, generator=torch.Generator().manual_seed(0))
    one = Trajectory(name="a", states=states, time=0.05 * torch.arange(6).double(), spec=spec)
    samples = Samples([one], window=Window(), normalizer=Normalizer((0.1,), (1.0,)))
    found = score_frames(predictor_of(samples, "persistence"), samples)
    assert "physical/pointwise" in found.entries and "probes/truth" not in found.arrays
    assert not any("gradients" in name for name in found.entries)


def test_a_frame_of_which_nothing_is_known_is_not_picked() -> None:
    valid = torch.ones(9, *SHAPE, dtype=torch.bool)
    valid[6] = False
    samples = samples_of([flow("a", 9, 0, valid=valid)])
    found = score_frames(predictor_of(samples, "persistence"), samples)
    assert found.arrays["errors/last"].isnan().tolist() == [row == 5 for row in range(8)]
    assert 5 not in found.arrays["picks/rows"].tolist()


def test_official_r2_and_mvpe_are_those_of_loops_over_all_windows() -> None:
    shape, body = (20, 24), torch.zeros(20, 24, dtype=torch.bool)
    body[10, 4:7] = True  # D is three columns: stations at 8, 11, 14 and 17
    generator = torch.Generator().manual_seed(0)
    flows = []
    for name, frames in (("a", 46), ("b", 24)):
        states = 2 + torch.randn(frames, 2, *shape, generator=generator).cumsum(0)
        flows.append(make_trajectory(name, states=states, body=body))
    samples = samples_of(flows)
    predictor = predictor_of(samples)
    found = score_frames(predictor, samples)
    prediction, truth, _, known = answers(predictor, samples)
    q, y = (torch.where(known[:, None], f, 0.0) for f in (prediction, truth))
    # 45 frames hold two windows of 20, 23 of them one.
    windows = [slice(0, 20), slice(20, 40), slice(45, 65)]
    mean = sum(y[window] for window in windows) / 3
    squares = sum(float((q[w] - y[w]).square().sum()) for w in windows)
    spread = sum(float((y[w] - mean).square().sum()) for w in windows)
    name = "physical/official"
    r2 = value(found, name, "official_r2", "all")
    assert r2 == pytest.approx(1 - squares / spread, rel=1e-4)
    wrong = [
        float((q[w] - y[w])[:, c, row, column].mean().abs())
        for w in windows
        for column in (8, 11, 14, 17)
        for row in range(2, 19, 2)
        for c in (0, 1)
    ]
    for metric in ("official_mvpe", "mvpe_measured"):
        assert value(found, name, metric, "all") == pytest.approx(sum(wrong) / len(wrong), rel=1e-4)


def test_filled_points_are_input_but_not_scored() -> None:
    filled = torch.rand(9, *SHAPE, generator=torch.Generator().manual_seed(3)) < 0.2
    plain = flow("a", 9, 0)
    # The same input for every prediction, another truth where it was filled.
    samples = [samples_of([replace(plain, filled=mask)], history=1) for mask in (None, filled)]
    predictor = predictor_of(samples[0])
    seen = [seen_by(predictor, own, list(range(8))) for own in samples]
    assert torch.equal(seen[0].x, seen[1].x) and torch.equal(seen[0].mask, seen[1].mask)
    assert torch.equal(seen[1].known, ~filled[1:])
    found = score_frames(predictor, samples[1])
    prediction, truth, _, _ = answers(predictor, samples[1])
    here = (~filled[1:])[:, None].expand_as(truth)
    nmse = (prediction - truth)[here].square().sum() / truth[here].square().sum()
    assert value(found, "physical/pointwise", "nmse", "all") == pytest.approx(nmse.item(), rel=1e-4)


# Files


def make() -> Scores:
    generator = torch.Generator().manual_seed(0)
    terms = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    arrays = {
        "terms/physical/pointwise": terms,
        "rows/frame": torch.arange(5),
        "picks/truth": torch.randn(3, 2, 4, 6, generator=generator).transpose(2, 3),
        "picks/known": torch.rand(3, 6, 4, generator=generator) > 0.5,
        "strip/truth": torch.randn(2, 2, 4, 6, generator=generator).half(),
    }
    return Scores({"labels": {"model": "a"}, "values": {"x": [0.1 + 0.2, None]}}, arrays)


def test_what_was_saved_comes_back_to_the_bit(tmp_path: Path) -> None:
    first = make()
    save_scores(tmp_path, first)
    again = read_scores(tmp_path)
    assert {**again.card} == {"format": FORMAT, **first.card}
    assert set(again.arrays) == set(first.arrays)
    for name, value in first.arrays.items():
        assert again.arrays[name].dtype == value.dtype
        assert torch.equal(again.arrays[name], value)
    assert read_card(tmp_path) == again.card


@pytest.mark.parametrize("content", ["", "[1]", '{"format": 99}', "{}", '"text"', "null"])
def test_invalid_card_is_refused_with_its_path(content: str, tmp_path: Path) -> None:
    save_scores(tmp_path, make())
    (tmp_path / "scores.json").write_text(content)
    with refused("scores.json", "evaluate again"):
        read_card(tmp_path)


def test_damaged_tensors_are_refused_with_their_path(tmp_path: Path) -> None:
    save_scores(tmp_path, make())
    path = tmp_path / "scores.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with refused("scores.safetensors", "evaluate again"):
        read_scores(tmp_path)
