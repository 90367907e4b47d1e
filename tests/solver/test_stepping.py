"""Running: frames, units, the status of every sample."""

from dataclasses import replace

import pytest
import torch

from pibert.fields import Boundary
from pibert.solver.immersed import ImmersedCylinder
from pibert.solver.stepping import Case, run
from pibert.solver.wakes import cylinder
from tests.helpers import refused
from validation.flows import taylor_green

DOUBLE = torch.float64


def fragile_batch() -> Case:
    """The middle sample of three has populations that no collision can hold."""
    case = taylor_green([50.0, 60.0, 70.0], shape=(8, 12), dtype=DOUBLE)
    start = case.start.clone()
    start[1] *= 40
    return replace(case, start=start)


def test_frames_come_at_the_start_and_at_every_interval() -> None:
    case = taylor_green([50.0], shape=(8, 12), speed=0.06, dtype=DOUBLE)
    seen: list[float] = []
    solution = run(case, 3, 4, progress=seen.append)
    assert solution.fields.shape == (1, 3, 3, 8, 12)
    torch.testing.assert_close(solution.time, torch.tensor([[0, 4, 8]], dtype=DOUBLE) * 0.06 / 12)
    assert seen == [0.0, 1.0]
    assert solution.diverged == (False,)
    assert case.steps(solution.time[0, 1].item()) == 4


def test_a_warm_up_delays_the_first_frame() -> None:
    case = taylor_green([50.0], shape=(8, 12), dtype=DOUBLE)
    whole = run(case, 5, 3)
    late = run(case, 3, 3, warm_up=6)
    torch.testing.assert_close(late.fields, whole.fields[:, 2:], rtol=0, atol=0)


def test_a_diverged_sample_is_flagged_while_the_others_continue() -> None:
    case = fragile_batch()
    solution = run(case, 4, 20, raise_on_divergence=False)
    assert solution.diverged == (False, True, False)
    assert solution.fields[1].isnan().all()
    others = taylor_green([50.0, 70.0], shape=(8, 12), dtype=DOUBLE)
    expected = run(others, 4, 20).fields
    torch.testing.assert_close(solution.fields[[0, 2]], expected, rtol=0, atol=1e-13)


def test_divergence_raises_by_default_and_names_the_sample() -> None:
    with pytest.raises(FloatingPointError, match=r"taylor_green diverged by step .* \(Re 60"):
        run(fragile_batch(), 4, 20)


def test_the_view_is_cut_out_of_the_domain() -> None:
    whole, part = (
        cylinder(
            [40.0], cells=6.0, domain=(8.0, 5.0), upstream=3.0, sponge=1.0, sides="slip", view=view
        )
        for view in (None, (-1.0, 2.5, -1.0, 1.2))
    )
    assert whole.grid.shape == (30, 48)
    assert whole.grid.sides == (Boundary.INFLOW, Boundary.OUTFLOW, Boundary.SLIP, Boundary.SLIP)
    assert set(part.grid.sides) == {Boundary.OPEN}
    a, b = run(whole, 2, 20), run(part, 2, 20)
    torch.testing.assert_close(a.fields[(..., *part.view)], b.fields, rtol=0, atol=1e-5)
    x, y = part.grid.coordinates()
    assert part.grid.body is not None
    torch.testing.assert_close(part.grid.body, torch.hypot(x, y) < 0.5)
    assert (b.fields[:, :, :, part.grid.body] == 0).all()
    assert x.min() >= -1 and x.max() < 2.5 and y.min() >= -1 and y.max() < 1.2


def test_every_sample_has_its_own_frame_interval() -> None:
    case = taylor_green([50.0, 50.0], shape=(8, 12), dtype=DOUBLE)
    every_step = run(case, 12, 1).fields[0]
    solution = run(case, 4, [2, 3.25])
    torch.testing.assert_close(solution.fields[0], every_step[0:8:2], rtol=0, atol=1e-14)
    # Frames at 3.25, 6.5 and 9.75 steps lie between two.
    between = torch.stack(
        [
            every_step[0],
            0.75 * every_step[3] + 0.25 * every_step[4],
            0.5 * every_step[6] + 0.5 * every_step[7],
            0.25 * every_step[9] + 0.75 * every_step[10],
        ]
    )
    torch.testing.assert_close(solution.fields[1], between, rtol=0, atol=1e-14)
    expected = torch.tensor([[0, 2, 4, 6], [0, 3.25, 6.5, 9.75]], dtype=DOUBLE) * case.dt
    torch.testing.assert_close(solution.time, expected)


def test_bursts_keep_some_of_the_frames() -> None:
    case = taylor_green([50.0], shape=(8, 12), dtype=DOUBLE)
    whole, pairs = run(case, 12, 2), run(case, 5, 2, burst=(2, 5))
    kept = [0, 1, 5, 6, 10]
    torch.testing.assert_close(pairs.fields, whole.fields[:, kept], rtol=0, atol=0)
    torch.testing.assert_close(pairs.time, whole.time[:, kept])
    with refused("burst"):
        run(case, 5, 2, burst=(3, 2))


def test_coarse_frames_are_means_over_the_fluid() -> None:
    fine, coarse = (
        cylinder(
            [40.0],
            cells=12.0,
            domain=(8.0, 6.0),
            upstream=3.0,
            sponge=1.0,
            view=(-1.0, 2.0, -1.0, 1.0),
            coarsen=factor,
            dtype=DOUBLE,
        )
        for factor in (1, 4)
    )
    a, b = run(fine, 2, 20).fields[0, -1], run(coarse, 2, 20).fields[0, -1]
    assert fine.grid.shape == (24, 36) and coarse.grid.shape == (6, 9)
    assert coarse.grid.dx == pytest.approx(4 * fine.grid.dx)
    x, y = fine.grid.coordinates(DOUBLE)
    big_x, big_y = coarse.grid.coordinates(DOUBLE)
    # Rows 0 to 3 and columns 32 to 35 hold no body.
    torch.testing.assert_close(b[:, 0, 8], a[:, :4, 32:].mean((1, 2)))
    torch.testing.assert_close(big_x[0, 8], x[0, 32:].mean())
    torch.testing.assert_close(big_y[0, 0], y[:4, 0].mean())
    # Part body, its middle outside: the mean is over the cells outside.
    assert fine.grid.body is not None and coarse.grid.body is not None
    share = fine.grid.body.double().unfold(0, 4, 4).unfold(1, 4, 4).mean((2, 3))
    mixed = ((share > 0) & ~coarse.grid.body).nonzero().tolist()
    assert mixed
    for row, column in mixed:
        block = (slice(4 * row, 4 * row + 4), slice(4 * column, 4 * column + 4))
        outside = ~fine.grid.body[block]
        expected = a[(slice(None), *block)][:, outside].mean(1)
        torch.testing.assert_close(b[:, row, column], expected)
    assert (b[:, coarse.grid.body] == 0).all()


class Pusher(ImmersedCylinder):
    """A body that drifts by one cell a step, and takes note of what it is asked."""

    def __init__(self) -> None:
        self.displacement = torch.zeros(1, dtype=DOUBLE)
        self.velocity = torch.ones(1, dtype=DOUBLE)
        self.corrected = 0

    @property
    def lost(self) -> torch.Tensor:
        return self.displacement > 30

    def advance(self, f: torch.Tensor) -> torch.Tensor:
        self.displacement = self.displacement + 1
        return torch.tensor([[2.0, 3.0]], dtype=DOUBLE)

    def correct(self, velocity: torch.Tensor) -> None:
        velocity[:, 0] += 0.25
        self.corrected += 1

    def park(self, gone: torch.Tensor) -> None:
        self.parked = gone
        self.displacement = self.displacement.masked_fill(gone, 0.0)


def test_a_body_that_moves_is_recorded_in_units_of_the_flow() -> None:
    case = taylor_green([50.0], shape=(8, 12), speed=0.05, dtype=DOUBLE)
    still = run(case, 2, 3)
    moved = run(replace(case, mover=lambda compiled: Pusher()), 2, 3)
    assert set(moved.motion) == {"displacement", "velocity", "drag", "lift"}
    torch.testing.assert_close(
        moved.motion["displacement"][0], torch.tensor([1, 2, 3], dtype=DOUBLE) / 12
    )
    assert moved.motion["velocity"][0, 0].item() == pytest.approx(1 / 0.05)
    assert moved.motion["lift"][0, 0].item() == pytest.approx(2 * 3.0 / (0.05**2 * 12))
    difference = moved.fields[0, :, 0] - still.fields[0, :, 0]
    torch.testing.assert_close(difference, torch.full_like(difference, 0.25 / 0.05))


def test_a_body_that_leaves_its_range_has_diverged() -> None:
    body = Pusher()
    case = replace(taylor_green([50.0], shape=(8, 12), dtype=DOUBLE), mover=lambda compiled: body)
    solution = run(case, 2, 40, raise_on_divergence=False)
    assert solution.diverged == (True,)
    assert solution.motion["lift"].isnan().all()
    assert body.parked.tolist() == [True] and body.displacement.item() == 0
