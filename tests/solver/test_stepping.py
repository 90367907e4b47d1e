"""Running: frames, units, the status of every sample."""

from dataclasses import replace

import pytest
import torch

from pibert.fields import Boundary
from pibert.solver.cases import cylinder, taylor_green
from pibert.solver.stepping import Case, Status, run

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
    assert solution.status == (Status.COMPLETED,)
    assert case.steps(solution.time[0, 1].item()) == 4


def test_a_warm_up_and_a_second_run_go_on_where_the_first_stopped() -> None:
    case = taylor_green([50.0], shape=(8, 12), dtype=DOUBLE)
    whole = run(case, 5, 3)
    late = run(case, 3, 3, warm_up=6)
    torch.testing.assert_close(late.fields, whole.fields[:, 2:], rtol=0, atol=0)
    first = run(case, 3, 3)
    second = run(replace(case, start=first.populations), 3, 3)
    torch.testing.assert_close(second.fields, whole.fields[:, 2:], rtol=0, atol=0)


def test_a_diverged_sample_is_flagged_while_the_others_go_on() -> None:
    case = fragile_batch()
    solution = run(case, 4, 20, raise_on_divergence=False, max_speed=60.0)
    assert solution.status == (Status.COMPLETED, Status.DIVERGED, Status.COMPLETED)
    assert solution.fields[1].isnan().all()
    others = taylor_green([50.0, 70.0], shape=(8, 12), dtype=DOUBLE)
    expected = run(others, 4, 20).fields
    torch.testing.assert_close(solution.fields[[0, 2]], expected, rtol=0, atol=1e-13)
    assert solution.populations.isfinite().all()


def test_a_sample_above_the_speed_bound_has_diverged() -> None:
    case = taylor_green([50.0], shape=(8, 12), dtype=DOUBLE)
    solution = run(case, 3, 5, max_speed=0.5, raise_on_divergence=False)
    assert solution.status == (Status.DIVERGED,)
    assert solution.fields.isnan().all()


def test_divergence_raises_by_default_and_names_the_sample() -> None:
    with pytest.raises(FloatingPointError, match=r"taylor_green diverged by step .* \(Re 60"):
        run(fragile_batch(), 4, 20, max_speed=60.0)


def test_divergence_outside_the_view_counts() -> None:
    case = cylinder(
        [40.0], cells=4.0, domain=(8.0, 6.0), upstream=3.0, view=(-1.0, 1.0, -1.0, 1.0), sponge=1.0
    )
    start = case.start.clone()
    start[:, :, 1, -3] = torch.nan
    with pytest.raises(FloatingPointError, match="speed nan"):
        run(replace(case, start=start), 1, 1)


def test_the_view_is_cut_out_of_the_domain() -> None:
    whole, part = (
        cylinder(
            [40.0],
            cells=6.0,
            domain=(8.0, 5.0),
            upstream=3.0,
            sponge=1.0,
            sides="slip",
            view=view,
        )
        for view in (None, (-1.0, 2.5, -1.0, 1.2))
    )
    assert whole.grid.shape == (30, 48)
    assert whole.grid.sides == (Boundary.INFLOW, Boundary.OUTFLOW, Boundary.SLIP, Boundary.SLIP)
    assert set(part.grid.sides) == {Boundary.OPEN}
    a, b = run(whole, 2, 20), run(part, 2, 20)
    torch.testing.assert_close(a.fields[(..., *part.view)], b.fields, rtol=0, atol=1e-6)
    x, y = part.grid.coordinates()
    assert part.grid.body is not None
    torch.testing.assert_close(part.grid.body, torch.hypot(x, y) < 0.5)
    assert (b.fields[:, :, :, part.grid.body] == 0).all()
    assert x.min() >= -1 and x.max() < 2.5 and y.min() >= -1 and y.max() < 1.2


def test_wrong_counts_are_refused() -> None:
    case = taylor_green([50.0], shape=(8, 12))
    with pytest.raises(ValueError, match="every >= 1"):
        run(case, 3, 0)


def test_what_lies_inside_a_body_is_no_flow() -> None:
    case = cylinder([40.0], cells=6.0, domain=(8.0, 5.0), upstream=3.0, sponge=1.0, dtype=DOUBLE)
    start = case.start.clone()
    assert case.solid is not None
    start[:, :, case.solid] = torch.nan
    spoilt, clean = run(replace(case, start=start), 3, 20), run(case, 3, 20)
    torch.testing.assert_close(spoilt.fields, clean.fields, rtol=0, atol=0)
    torch.testing.assert_close(spoilt.force, clean.force, rtol=0, atol=0)
