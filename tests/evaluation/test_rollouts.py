"""Rollouts of predictors whose errors are known in advance."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from pibert.data.dataset import Samples, Window
from pibert.evaluation.leads import Horizons, LeadTimes, climate_of
from pibert.evaluation.rollouts import score_free_runs, score_rollouts
from pibert.evaluation.statistics import Statistics
from pibert.fields import FieldSpec, Grid, Normalizer, Parameter, Trajectory
from tests.helpers import refused

SHAPE, DT = (12, 20), 0.5
NORMALIZER = Normalizer((1.0, 0.0), (0.5, 2.0))
SPEC = FieldSpec(
    grid=Grid(SHAPE, dx=0.3, dy=0.2), parameters=(Parameter(name="Re", scaling="log"),), dt=DT
)
MEASURE = Statistics(spec=SPEC, normalizer=NORMALIZER)


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
    entries = LeadTimes(spec=SPEC, normalizer=NORMALIZER).entries
    keys = [(entry.metric, entry.component) for entry in entries]
    return {key: scores["curves"][:, place].tolist() for place, key in enumerate(keys)}


def test_values_are_sums_over_starts_and_known_points() -> None:
    valid = torch.rand(60, *SHAPE, generator=torch.Generator().manual_seed(0)) > 0.2
    one = travelling(valid=valid)
    two = travelling(phase=1.0, name="b")
    two = replace(two, states=two.read() * 2)
    scores = score_rollouts(Moves(by=2, offset=0.1), samples_of(one, two), [3, 60])
    lead, found = 4, curves(scores)
    sums = torch.zeros(7, dtype=torch.float64)
    for trajectory, frame in ((one, 3), (two, 6)):
        states, known = trajectory.read()[:, 0], trajectory.known()
        first = torch.where(known[frame], states[frame], 3.0)
        guess = first.roll(2 * lead, -1) + 0.1 * lead
        seen, here = torch.where(known, states, torch.nan), known[frame + lead]
        mean = seen.nanmean(0)
        variance = (seen - mean).square().nanmean(0)[here]
        q, t = guess[here], states[frame + lead][here]
        a, b = q - mean[here], t - mean[here]
        terms = ((q - t) ** 2, t**2, torch.ones_like(t), a * b, a**2, b**2, variance)
        sums += torch.stack([term.sum() for term in terms])
    error, energy, count, cross, own, true, spread = sums.tolist()
    assert scores["trajectory"].tolist() == [0, 1] and scores["frame"].tolist() == [3, 6]
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
    assert scores["stable"].tolist() == [3, 3, 3]
    summary = summary_of(scores)
    assert summary["stable_horizon"] == 3 and summary["stable_to_end"] == 0


def summary_of(scores: Any) -> dict[str, float]:
    names = [entry.metric for entry in Horizons().entries]
    return dict(zip(names, scores["summary"].tolist(), strict=True))


def test_whole_rollouts_are_scored_as_in_the_published_benchmarks() -> None:
    steps, starts = 5, [(0, 2), (1, 40)]
    flows = [travelling(), travelling(phase=1.0, name="b")]
    flows[1] = replace(flows[1], states=flows[1].read() * torch.tensor([2.0, 1.0])[:, None, None])
    samples = samples_of(*flows, steps=steps)
    numbers = [flow * (60 - steps) + frame for flow, frame in starts]
    summary = summary_of(score_rollouts(Moves(by=2, offset=0.1), samples, numbers))
    single, whole = [], []
    for flow, frame in starts:
        states = flows[flow].read()
        first = states[frame]
        guess = [
            torch.stack((first[0].roll(2 * lead, -1), first[1].roll(-2 * lead, -1))) + 0.1 * lead
            for lead in range(1, steps + 1)
        ]
        truth = states[frame + 1 : frame + 1 + steps]
        error = torch.stack(guess) - truth
        whole.append(float(error.norm() / truth.norm()))
        single.append([float(e.norm() / t.norm()) for e, t in zip(error, truth, strict=True)])
    means = [(a + b) / 2 for a, b in zip(*single, strict=True)]
    assert summary["rel_l2"] == pytest.approx(sum(whole) / 2)
    assert summary["nrmse"] == pytest.approx(math.prod(means) ** (1 / steps))


def test_values_beyond_the_range_of_their_type_count_as_diverged() -> None:
    samples = samples_of(travelling())
    scores = score_rollouts(Moves(offset=math.inf), samples, [0])
    assert scores["diverged"].tolist() == [1] and scores["stable"].tolist() == [0]


def test_diverged_rollout_is_counted_and_does_not_affect_others() -> None:
    samples = samples_of(travelling())
    starts = [1, 12]  # the first value of u is below 3 at the one and above at the other
    scores = score_rollouts(Moves(by=1, fails=4), samples, starts)
    assert scores["diverged"].tolist() == [0, 4] and scores["stable"].tolist() == [6, 3]
    found = curves(scores)
    assert found["not_finite", "all"] == [0, 0, 0, 0.5, 0.5, 0.5]
    assert max(found["nmse", "u"][:3]) < 1e-20
    assert found["nmse", "u"][3:] == [math.inf] * 3
    assert found["skill", "all"][3:] == [-math.inf] * 3
    assert summary_of(scores)["rel_l2"] == summary_of(scores)["nrmse"] == math.inf
    assert found["spectral_drift", "all"][3:] == [math.inf] * 3
    # One start is perfect and the other adds nothing but its truth: sqrt(1 / 2) of equal energies.
    assert found["correlation", "u"][3:] == pytest.approx([math.sqrt(0.5)] * 3, rel=0.05)
    alone = score_rollouts(Moves(by=1, fails=4), samples, starts[:1])
    assert torch.allclose(scores["terms"][0], alone["terms"][0])


def test_lead_times_and_free_runs_call_the_same_rollout_diverged() -> None:
    """The true wave plus an offset that grows by a fixed amount in every step."""
    flow, moves = travelling(61), Moves(by=1, offset=0.153)
    leads = score_rollouts(moves, samples_of(flow, steps=60), [0])
    runs = score_free_runs(moves, samples_of(flow, steps=1), frames=60)
    (survived,) = MEASURE.survived(runs["terms"]).tolist()
    # Sums of squares over the points, by hand: sines of amplitude 1 + 0.1 y, half of it in v, and
    # the offset in both channels. Cross terms vanish over whole periods.
    waves = sum(1.25 / 2 * (1 + 0.1 * y) ** 2 for y in range(SHAPE[0])) / SHAPE[0]
    limit, step = max(9 * waves, 0.01 * 9), 2 * 0.153**2
    assert survived == max(n for n in range(60) if waves + step * n**2 <= limit)
    summary = summary_of(leads)
    assert summary["diverged"] == 1 and summary["survival"] == survived
    assert leads["diverged"].tolist() == [survived + 1]
    # Its frames are numbers still, and so are its errors.
    assert curves(leads)["not_finite", "all"] == [0] * 60
    assert math.isfinite(curves(leads)["nmse", "all"][-1])


def test_predictor_receives_history_parameters_and_mask() -> None:
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


def test_climate_is_mean_variance_and_correlation_time_of_known_frames() -> None:
    trajectory = travelling(300)  # more than one block of reading
    climate = climate_of(trajectory, (1.0, 1.0))
    states = trajectory.read()
    assert torch.allclose(climate.mean, states.mean(0))
    assert torch.allclose(climate.variance, states.var(0, correction=0))
    # A wave with a period of 20 frames.
    assert climate.memory == pytest.approx(20 * math.acos(math.exp(-1)) / (2 * math.pi), rel=0.02)


def test_filled_points_are_input_but_not_scored() -> None:
    filled = torch.rand(60, *SHAPE, generator=torch.Generator().manual_seed(0)) < 0.2
    filled[[0, 11]] = False  # the starts
    clean = travelling(filled=filled)
    wild = replace(clean, states=torch.where(filled[:, None], 1e3, clean.read()))
    found = [
        score_rollouts(Moves(by=2), samples_of(trajectory), [0, 11])["terms"]
        for trajectory in (clean, wild)
    ]
    assert torch.equal(found[0], found[1])
    predictor = Moves()
    score_rollouts(predictor, samples_of(wild), [4])
    assert bool(predictor.seen[0]["mask"].all())
    assert torch.equal(predictor.seen[0]["fields"][0], wild.read(slice(4, 5)))


def statistics(runs: Any) -> dict[str, float]:
    values = MEASURE.values(runs["terms"].sum(0))
    return {e.metric: float(v) for e, v in zip(MEASURE.entries, values, strict=True)}


def test_free_runs_begin_once_per_flow_and_continue_to_its_end() -> None:
    samples = samples_of(travelling(), travelling(41, phase=1.0, name="b"), steps=1)
    moves = Moves(by=1)
    runs = score_free_runs(moves, samples, frames=50)
    assert runs["trajectory"].tolist() == [0, 1] and runs["frames"].tolist() == [50, 40]
    assert torch.equal(moves.seen[1]["fields"][0, 0], samples.trajectories[1].read()[0])
    found = statistics(runs)
    assert found["mean_error"] == pytest.approx(0, abs=1e-20) and found["diverged"] == 0
    assert found["stress_error"] == pytest.approx(0, abs=1e-10) and found["survival"] == 45
    still = statistics(score_free_runs(Moves(), samples, frames=50))
    assert still["stress_error"] == pytest.approx(1) and still["strouhal_error"] == 1
    with refused("20 frames", "found runs of 15"):
        score_free_runs(moves, samples, frames=15)


def test_long_flows_have_several_free_runs_that_do_not_overlap() -> None:
    flows = [travelling(121), travelling(61, phase=1.0, name="b")]
    samples = samples_of(*flows, steps=1)
    once = score_free_runs(Moves(by=1), samples, 30)
    assert once["trajectory"].tolist() == [0, 1] and once["frame"].tolist() == [1, 1]
    runs = score_free_runs(Moves(by=1), samples, 30, 5)
    assert runs["trajectory"].tolist() == [0, 0, 0, 1, 1]
    assert runs["frame"].tolist() == [1, 31, 61, 1, 31] and set(runs["frames"].tolist()) == {30}
    assert torch.allclose(runs["terms"][0], once["terms"][0])
    every = score_free_runs(Moves(by=1), samples, 30, 100)
    assert len(every["terms"]) == 4 + 2


def test_what_a_diverged_free_run_did_before_is_kept() -> None:
    states = travelling(121).read()
    states[0, 0, 0, 0] = 3.5  # the mark at which the model blows up
    samples = samples_of(replace(travelling(121), states=states), steps=1)
    runs = score_free_runs(Moves(by=1, fails=31), samples, 60)
    shown = {name.removeprefix("shown/"): value for name, value in runs.items()}
    assert (
        MEASURE.survived(runs["terms"]).tolist() == [30]
        and int(shown["survived"]) == 30
        and len(shown["series"]) == 60
    )
    assert bool(shown["series"][:30].isfinite().all()) and bool(shown["series"][30:].isnan().all())
    expected = samples.trajectories[0].read(slice(1, 61)).mean(0)
    assert torch.allclose(shown["true_mean"], expected.float(), atol=1e-5)
    assert shown["mean"].isfinite().all()


def test_a_rollout_is_correlated_until_it_falls_behind() -> None:
    """A wave of period 20 that is a column late at every frame: cos of the lag, 0.5 at 20 / 6."""
    samples = samples_of(travelling(200), steps=8)
    summary = summary_of(score_rollouts(Moves(by=0), samples, [0, 40]))
    assert summary["correlated_horizon"] == 3
    assert summary_of(score_rollouts(Moves(by=1), samples, [0, 40]))["correlated_horizon"] == 8
