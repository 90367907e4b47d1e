"""Rollouts against predictors whose every error is known beforehand."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from pibert.data.dataset import Samples, Window
from pibert.evaluation.intervals import draw_trajectories, interval
from pibert.evaluation.leads import climate_of
from pibert.evaluation.rollouts import Iterates, score_rollouts, spread_starts
from pibert.fields import FieldSpec, Grid, Normalizer, Parameter, Trajectory
from pibert.predictor import Predictor
from tests.helpers import tiny_model, tiny_spec

SHAPE, DT = (12, 20), 0.5
NORMALIZER = Normalizer((1.0, 0.0), (0.5, 2.0))
SPEC = FieldSpec(
    grid=Grid(SHAPE, dx=0.3, dy=0.2),
    parameters=(Parameter(name="Re", scaling="log"),),
    dt=DT,
)


def travelling(frames: int = 60, phase: float = 0.0, name: str = "a", **more: Any) -> Trajectory:
    """A wave of one column per frame along x, over a mean flow, in both components."""
    x, y = torch.arange(SHAPE[1]).double(), torch.arange(SHAPE[0]).double()[:, None]
    t = torch.arange(frames).double()[:, None, None]
    wave = torch.sin(2 * math.pi * (x - t) / SHAPE[1] + phase) * (1 + 0.1 * y)
    states = torch.stack((3 + wave, 0.5 * wave.flip(2)), dim=1)
    time = torch.arange(frames).double() * DT
    return Trajectory(
        name=name, states=states, time=time, spec=SPEC, parameters={"Re": 100.0}, **more
    )


def samples_of(*trajectories: Trajectory, steps: int = 6, history: int = 1) -> Samples:
    window = Window(history=history, horizon=steps)
    return Samples(trajectories, window=window, normalizer=NORMALIZER)


class Moves:
    """Rolls columns on; adds an offset that grows; blows up at a step where the start is marked."""

    def __init__(
        self,
        by: int = 0,
        offset: float = 0.0,
        history: int = 1,
        block: int = 1,
        fails: float = math.inf,
    ) -> None:
        self.spec, self.normalizer, self.history = SPEC, NORMALIZER, history
        self.by, self.offset, self.block, self.fails = by, offset, block, fails
        self.seen: list[dict[str, Any]] = []

    def iterate(
        self, fields: Any, steps: int | None = None, parameters: Any = None, mask: Any = None
    ) -> Iterator[Any]:
        self.seen.append({"fields": fields, "parameters": parameters, "mask": mask})
        frame, done = torch.where(mask[:, -1:, None], fields[:, -1:], 3.0), 0
        assert steps is not None
        while done < steps:
            parts = []
            for _ in range(min(self.block, steps - done)):
                done += 1
                frame = torch.stack(
                    (frame[:, :, 0].roll(self.by, -1), frame[:, :, 1].roll(-self.by, -1)), 2
                )
                parts.append(frame + self.offset * done)
                if done >= self.fails and bool((fields[:, -1, 0, 0, 0] > 3).any()):
                    raise FloatingPointError("diverged")
            yield torch.cat(parts, 1)


def curves(scores: Any) -> dict[tuple[str, str], list[float]]:
    found = scores.curves()
    keys = [(entry.metric, entry.component) for entry in scores.measure.entries]
    return {key: found[:, place].tolist() for place, key in enumerate(keys)}


def test_a_predictor_is_something_that_iterates() -> None:
    assert isinstance(Predictor(tiny_model(spec=tiny_spec(SHAPE)), NORMALIZER), Iterates)
    assert isinstance(Moves(), Iterates)


def test_a_perfect_rollout_has_no_error_at_any_lead_time() -> None:
    samples = samples_of(travelling())
    scores = score_rollouts(Moves(by=1), samples, spread_starts(samples, 5))
    found = curves(scores)
    for component in ("u", "v", "all"):
        assert max(found["nmse", component]) < 1e-20
        assert found["correlation", component] == pytest.approx([1.0] * 6)
        assert found["skill", component] == pytest.approx([1.0] * 6)
    assert max(found["spectral_drift", "all"]) < 1e-6 and max(found["diverged", "all"]) == 0
    assert scores.stable.tolist() == [6] * 5 and scores.diverged.tolist() == [0] * 5


def test_an_untrained_model_is_persistence_without_skill() -> None:
    model = tiny_model(spec=replace(tiny_spec(SHAPE), grid=SPEC.grid, dt=DT))
    samples = samples_of(travelling(), steps=4)
    scores = score_rollouts(Predictor(model, NORMALIZER), samples, [0, 20, 55])
    found, states = curves(scores), samples.trajectories[0].read()
    for lead in range(4):
        error = energy = 0.0
        for start in (0, 20, 55):
            y = states[start + lead + 1]
            error += float((states[start] - y).square().sum())
            energy += float(y.square().sum())
        assert found["nmse", "all"][lead] == pytest.approx(error / energy, rel=1e-4)
    assert found["skill", "all"] == pytest.approx([0.0] * 4, abs=1e-4)
    # A wave that moved on by a lead time has turned by so many twentieths of a period.
    expected = [math.cos(2 * math.pi * lead / 20) for lead in range(1, 5)]
    assert found["correlation", "all"] == pytest.approx(expected, abs=1e-3)


def test_values_are_those_of_loops_over_starts_and_points() -> None:
    valid = torch.rand(60, *SHAPE, generator=torch.Generator().manual_seed(0)) > 0.2
    one = travelling(valid=valid)
    two = travelling(phase=1.0, name="b")
    two = replace(two, states=two.read() * 2)
    scores = score_rollouts(Moves(by=2, offset=0.1), samples_of(one, two), [3, 60], batch_size=2)
    lead, found = 4, curves(scores)
    error = energy = cross = own = true = spread = 0.0
    count = 0
    for trajectory, frame in ((one, 3), (two, 6)):
        states, known = trajectory.read()[:, 0], trajectory.known()
        first = torch.where(known[frame], states[frame], 3.0)
        guess = first.roll(2 * lead, -1) + 0.1 * lead
        for y in range(SHAPE[0]):
            for x in range(SHAPE[1]):
                if not known[frame + lead, y, x]:
                    continue
                series = states[known[:, y, x], y, x]
                mean = float(series.mean())
                q, t = float(guess[y, x]), float(states[frame + lead, y, x])
                error, energy, count = error + (q - t) ** 2, energy + t**2, count + 1
                cross, own = cross + (q - mean) * (t - mean), own + (q - mean) ** 2
                true, spread = true + (t - mean) ** 2, spread + float(series.var(correction=0))
    assert scores.trajectories.tolist() == [0, 1] and scores.frames.tolist() == [3, 6]
    assert found["nmse", "u"][lead - 1] == pytest.approx(error / energy)
    assert found["fluctuation_nmse", "u"][lead - 1] == pytest.approx(error / spread)
    assert found["correlation", "u"][lead - 1] == pytest.approx(cross / math.sqrt(own * true))
    assert found["rmse", "u"][lead - 1] == pytest.approx(math.sqrt(error / count))


def test_the_stable_horizon_ends_with_the_first_bad_frame() -> None:
    trajectory = travelling()
    variance = climate_of(trajectory, (1.0, 1.0)).variance.mean()
    # Both components are off by the lead time times this: 0.5 is passed after three frames.
    offset = math.sqrt(0.5 * float(variance)) / 3.5
    samples = samples_of(trajectory)
    scores = score_rollouts(Moves(by=1, offset=offset), samples, [0, 7, 30])
    assert scores.stable.tolist() == [3, 3, 3]
    strict = score_rollouts(Moves(by=1, offset=offset), samples, [0], threshold=0.5 / 9)
    assert strict.stable.tolist() == [1]
    names = [entry.metric for entry in scores.horizons.entries]
    summary = dict(zip(names, scores.summary().tolist(), strict=True))
    assert summary["stable_horizon"] == 3 and summary["stable_to_end"] == 0


def test_a_rollout_that_comes_back_is_not_stable_again() -> None:
    samples = samples_of(travelling(), steps=24)
    # Persistence is out of step for most of the period of 20 frames, and right again after it.
    scores = score_rollouts(Moves(), samples, [0])
    found = curves(scores)["fluctuation_nmse", "all"]
    assert found[19] < 1e-9 < 0.5 < found[9]
    assert scores.stable.tolist() == [2]


def test_channels_of_different_units_count_by_their_spread() -> None:
    spec = replace(SPEC, units=("m/s", "Pa"))
    samples = samples_of(replace(travelling(), spec=spec))
    predictor = Moves(by=1, offset=0.1)
    predictor.spec = spec
    found = curves(score_rollouts(predictor, samples, [0]))
    y = samples.trajectories[0].read()[1]
    weights = torch.tensor([0.5, 2.0]).double() ** -2
    energy = float((y.square().sum((1, 2)) * weights).sum())
    error = 0.1**2 * y[0].numel() * float(weights.sum())
    assert found["nmse", "all"][0] == pytest.approx(error / energy)
    same = curves(score_rollouts(Moves(by=1, offset=0.1), samples_of(travelling()), [0]))
    assert same["nmse", "all"][0] == pytest.approx(0.1**2 * y.numel() / float(y.square().sum()))
    assert same["rmse", "all"][0] == pytest.approx(0.1)
    assert found["rmse", "all"][0] == pytest.approx(0.1 * math.sqrt(float(weights.mean())))


def test_a_rollout_that_diverges_is_kept_and_spoils_no_other() -> None:
    samples = samples_of(travelling())
    starts = [1, 12]  # the first value of u is below 3 at the one and above at the other
    scores = score_rollouts(Moves(by=1, fails=4), samples, starts)
    assert scores.diverged.tolist() == [0, 4] and scores.stable.tolist() == [6, 3]
    found = curves(scores)
    assert found["diverged", "all"] == [0, 0, 0, 0.5, 0.5, 0.5]
    assert max(found["nmse", "u"][:3]) < 1e-20
    assert found["nmse", "u"][3:] == [math.inf] * 3
    assert found["skill", "all"][3:] == [-math.inf] * 3
    assert found["spectral_drift", "all"][3:] == [math.inf] * 3
    # One start is perfect and the other adds nothing but its truth: sqrt(1 / 2) of equal energies.
    assert found["correlation", "u"][3:] == pytest.approx([math.sqrt(0.5)] * 3, rel=0.05)
    alone = score_rollouts(Moves(by=1, fails=4), samples, starts[:1])
    assert torch.allclose(scores.terms[0], alone.terms[0])


def test_with_blocks_of_frames_the_block_that_diverged_is_lost() -> None:
    samples = samples_of(travelling(), steps=7)
    scores = score_rollouts(Moves(by=1, block=2, fails=4), samples, [12])
    assert scores.diverged.tolist() == [3]
    whole = score_rollouts(Moves(by=1, block=2), samples, [12])
    assert whole.terms.shape[1] == 7 and whole.diverged.tolist() == [0]


def test_values_beyond_the_range_of_their_type_count_as_diverged() -> None:
    samples = samples_of(travelling())
    scores = score_rollouts(Moves(offset=math.inf), samples, [0])
    assert scores.diverged.tolist() == [1] and scores.stable.tolist() == [0]


def test_starts_rolled_out_together_or_apart_score_the_same() -> None:
    samples = samples_of(travelling(), travelling(phase=2.0, name="b"), history=2)
    starts = spread_starts(samples, 7)
    found = [
        score_rollouts(Moves(by=2, history=2), samples, starts, batch_size=size).terms
        for size in (1, 3, 16)
    ]
    assert torch.allclose(found[0], found[1]) and torch.allclose(found[0], found[2])


def test_the_predictor_is_given_history_parameters_and_what_is_known() -> None:
    valid = torch.ones(60, *SHAPE, dtype=torch.bool)
    valid[5, 2, 3] = False
    unknown = replace(travelling(name="b"), parameters={})
    samples = samples_of(travelling(valid=valid), unknown, history=2)
    predictor = Moves(history=2)
    score_rollouts(predictor, samples, [4, len(samples) - 1])
    seen = predictor.seen[0]
    assert seen["fields"].shape == (2, 2, 2, *SHAPE)
    assert torch.equal(seen["fields"][0], samples.trajectories[0].read(slice(4, 6)))
    assert not seen["mask"][0, 1, 2, 3] and int((~seen["mask"]).sum()) == 1
    assert seen["parameters"]["Re"][0] == 100 and seen["parameters"]["Re"][1].isnan()


def test_values_at_unknown_points_do_not_matter() -> None:
    valid = torch.rand(60, *SHAPE, generator=torch.Generator().manual_seed(0)) > 0.2
    clean = travelling(valid=valid)
    spoiled = replace(clean, states=torch.where(valid[:, None], clean.read(), torch.nan))
    found = [
        score_rollouts(Moves(by=2), samples_of(trajectory), [0, 11]).terms
        for trajectory in (clean, spoiled)
    ]
    assert bool(found[0].isfinite().all()) and torch.equal(found[0], found[1])


def test_a_rollout_that_loses_its_small_scales_drifts() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(30, 2, *SHAPE, generator=generator, dtype=torch.float64)
    trajectory = replace(travelling(30), states=states)

    class Halves(Moves):
        def iterate(self, fields: Any, *rest: Any, **more: Any) -> Iterator[Any]:
            for lead, block in enumerate(super().iterate(fields, *rest, **more), start=1):
                yield block * 0.1**lead

    samples = samples_of(trajectory)
    found = curves(score_rollouts(Halves(), samples, spread_starts(samples, 24)))
    # Energies fall by a factor of 100 a step: two decades.
    assert found["spectral_drift", "all"][:4] == pytest.approx([2, 4, 6, 8], abs=0.3)


def test_the_climate_is_that_of_known_frames() -> None:
    trajectory = travelling(300)  # more than one block of reading
    climate = climate_of(trajectory, (1.0, 1.0))
    states = trajectory.read()
    assert torch.allclose(climate.mean, states.mean(0))
    assert torch.allclose(climate.variance, states.var(0, correction=0))
    # A wave with a period of 20 frames.
    assert climate.memory == pytest.approx(20 * math.acos(math.exp(-1)) / (2 * math.pi), rel=0.02)


def test_intervals_of_curves_come_from_their_terms() -> None:
    many = [travelling(20, phase=0.3 * i, name=f"{i}") for i in range(12)]
    samples = samples_of(*many)
    scores = score_rollouts(Moves(by=2), samples, range(0, len(samples), 7))
    weights = draw_trajectories(scores.trajectories, draws=100, seed=0)
    found = interval(scores.measure, scores.terms, weights)
    assert torch.equal(found.value, scores.curves())
    inside = (found.low <= found.value + 1e-9) & (found.value <= found.high + 1e-9)
    assert bool((inside | found.value.isnan()).all())
    horizon = interval(scores.horizons, scores.horizon_terms, weights)
    assert torch.equal(horizon.value, scores.summary())


def test_what_does_not_fit_is_refused() -> None:
    samples = samples_of(travelling())
    with pytest.raises(ValueError, match="windows of at least 2 input frames"):
        score_rollouts(Moves(history=2), samples, [0])
    with pytest.raises(ValueError, match="at least one start"):
        score_rollouts(Moves(), samples, [])
    with pytest.raises(ValueError, match="positive threshold, found -1"):
        score_rollouts(Moves(), samples, [0], threshold=-1.0)
    with pytest.raises(ValueError, match="at least 1 start, found 0"):
        spread_starts(samples, 0)
    other = replace(travelling(), spec=replace(SPEC, channels=("u", "w")))
    with pytest.raises(ValueError, match="channels"):
        score_rollouts(Moves(), samples_of(other), [0])


def test_starts_are_spread_over_all_samples() -> None:
    samples = samples_of(travelling())
    assert len(samples) == 54
    assert spread_starts(samples, 4) == [0, 13, 27, 40] and spread_starts(samples, 99)[-1] == 53


def test_predictors_of_different_histories_begin_at_the_same_frames_across_a_gap() -> None:
    trajectory = travelling()
    time = trajectory.time.clone()
    time[9:] += 10 * DT
    samples = samples_of(replace(trajectory, time=time), steps=3, history=2)
    starts = spread_starts(samples, 6)
    short, long = Moves(by=1, offset=0.1), Moves(by=1, offset=0.1, history=2)
    scores = [score_rollouts(predictor, samples, starts) for predictor in (short, long)]
    assert scores[0].frames.tolist() == scores[1].frames.tolist()
    assert not {8, 7, 6, 5} & set(scores[0].frames.tolist())  # windows that would meet the gap
    for mine, other in zip(short.seen, long.seen, strict=True):
        assert mine["fields"].shape[1] == 1 and other["fields"].shape[1] == 2
        assert torch.equal(mine["fields"][:, -1], other["fields"][:, -1])
    assert torch.equal(scores[0].terms, scores[1].terms)


def test_filled_points_are_given_but_not_scored() -> None:
    filled = torch.rand(60, *SHAPE, generator=torch.Generator().manual_seed(0)) < 0.2
    filled[[0, 11]] = False  # the starts
    clean = travelling(filled=filled)
    wild = replace(clean, states=torch.where(filled[:, None], 1e3, clean.read()))
    found = [
        score_rollouts(Moves(by=2), samples_of(trajectory), [0, 11]).terms
        for trajectory in (clean, wild)
    ]
    assert torch.equal(found[0], found[1])
    predictor = Moves()
    score_rollouts(predictor, samples_of(wild), [4])
    assert bool(predictor.seen[0]["mask"].all())
    assert torch.equal(predictor.seen[0]["fields"][0], wild.read(slice(4, 5)))
