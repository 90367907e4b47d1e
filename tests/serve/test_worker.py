"""Turns of a model's thread: what one request does must not be felt by another."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from pibert.serve.asked import Asked
from pibert.serve.costs import MOST_AHEAD
from pibert.serve.joint import JointPredictor
from pibert.serve.limits import Limits
from pibert.serve.memory import make_budget
from pibert.serve.metrics import Metrics
from pibert.serve.models import Served
from pibert.serve.refusal import Refusal
from pibert.serve.worker import Job, Worker
from tests.helpers import PATIENCE, assert_close
from tests.predictor.small import frames, make_runaway, predictor

LIMITS = Limits(wait=0.2, queue=8)


def rollout(seed: int = 0, steps: int = 3, **changes: Any) -> Asked:
    given: dict[str, Any] = {"fields": frames(1, seed=seed).numpy(), "parameters": {}} | changes
    return Asked(route="rollout", steps=steps, **given)


@pytest.fixture
def joint() -> JointPredictor:
    made = predictor()
    return JointPredictor(made.model, made.normalizer)


@pytest.fixture
def worker(joint: JointPredictor) -> Iterator[Worker]:
    started = Worker(Served("wake", joint, None), LIMITS, make_budget(LIMITS), Metrics())
    started.start()
    yield started
    started.stop()
    started.join(PATIENCE)
    assert not started.is_alive()


async def read(worker: Worker, job: Job) -> np.ndarray:
    blocks = [await worker.next_block(job) for _ in range(job.steps)]
    return np.concatenate([block.arrays["prediction"] for block in blocks], axis=1)


def test_a_refused_request_does_not_touch_its_neighbours(worker: Worker, joint: JointPredictor):
    async def ask() -> list[Any]:
        holes = frames(1).numpy()
        holes[0, 0, 1, 2, 3] = np.nan
        jobs = [Job(rollout(1)), Job(rollout(fields=holes)), Job(rollout(2))]
        for job in jobs:
            worker.submit(job)
        return await asyncio.gather(*(read(worker, job) for job in jobs), return_exceptions=True)

    first, refused, last = asyncio.run(ask())
    assert isinstance(refused, Refusal) and refused.code == "invalid"
    assert "row 2, column 3" in refused.message
    np.testing.assert_allclose(first, joint.rollout(frames(1, seed=1).numpy(), 3), atol=1e-3)
    np.testing.assert_allclose(last, joint.rollout(frames(1, seed=2).numpy(), 3), atol=1e-3)
    assert len(worker) == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_that_overflow_when_standardised_are_refused_to_their_sender_alone(
    worker: Worker, joint: JointPredictor, dtype: Any
):
    huge = frames(1).numpy().astype(dtype)
    huge[0, 0, 0, 2, 3] = 3e38  # twice that in standard deviations

    async def ask() -> list[Any]:
        jobs = [Job(rollout(1)), Job(rollout(fields=huge)), Job(rollout(2))]
        for job in jobs:
            worker.submit(job)
        return await asyncio.gather(*(read(worker, job) for job in jobs), return_exceptions=True)

    first, refused, last = asyncio.run(ask())
    assert isinstance(refused, Refusal) and refused.status == 422
    assert "3e+38 in sample 0, channel 'u'" in refused.message
    assert_close(first, joint.rollout(frames(1, seed=1).numpy(), 3))
    assert_close(last, joint.rollout(frames(1, seed=2).numpy(), 3))


@pytest.mark.parametrize("error", [ValueError("not this window"), RuntimeError("a fault")])
def test_after_an_error_of_a_joint_step_its_jobs_run_singly(
    worker: Worker, joint: JointPredictor, error: Exception
):
    """Also in a later step, from which the neighbours go on without a gap."""
    batches: list[int] = []

    def object_to_one(module: Any, inputs: Any) -> None:
        fields, parameters, _ = inputs
        batches.append(len(fields))
        if len(batches) > 1 and not parameters[:, 0].isnan().all():
            raise error

    assert worker.is_warm.wait(PATIENCE)
    hook = joint.model.register_forward_pre_hook(object_to_one)

    async def ask() -> list[Any]:
        jobs = [Job(rollout(1)), Job(rollout(3, parameters={"Re": 900.0})), Job(rollout(2))]
        for job in jobs:
            worker.submit(job)
        return await asyncio.gather(*(read(worker, job) for job in jobs), return_exceptions=True)

    first, refused, last = asyncio.run(ask())
    hook.remove()
    assert batches == [3, 3, 1, 1, 1, 2]
    assert isinstance(refused, Refusal)
    assert refused.code == ("invalid" if isinstance(error, ValueError) else "internal")
    assert_close(first, joint.rollout(frames(1, seed=1).numpy(), 3))
    assert_close(last, joint.rollout(frames(1, seed=2).numpy(), 3))


def test_a_rollout_that_runs_away_is_reported_once_with_the_step(
    worker: Worker, joint: JointPredictor
):
    assert worker.is_warm.wait(PATIENCE)
    make_runaway(joint.model)

    async def ask() -> list[list[str]]:
        jobs = [Job(rollout(1, steps=12)), Job(rollout(2, steps=2))]
        for job in jobs:
            worker.submit(job)
        read = [[await worker.next_block(job) for _ in range(job.steps)] for job in jobs]
        return [[str(block.facts.get("remarks", "none")) for block in blocks] for blocks in read]

    told, quiet = asyncio.run(ask())
    assert quiet == ["[]", "none"]
    (place,) = (place for place, text in enumerate(told) if "runs away" in text)
    assert f"from step {place + 1} on" in told[place]
    assert [text for text in told if text not in ("none", "[]")] == [told[place]]


def test_a_rollout_that_diverges_ends_alone_and_says_where(worker: Worker, joint: JointPredictor):
    calls = 0

    def spoil(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            output[1] = torch.nan  # of the second rollout, in the second step of both
        return output

    sound = joint.rollout(frames(1, seed=1).numpy(), 3)
    assert worker.is_warm.wait(PATIENCE)
    hook = joint.model.register_forward_hook(spoil)

    async def ask() -> list[Any]:
        jobs = [Job(rollout(1)), Job(rollout(2))]
        for job in jobs:
            worker.submit(job)
        return await asyncio.gather(*(read(worker, job) for job in jobs), return_exceptions=True)

    first, diverged = asyncio.run(ask())
    hook.remove()
    np.testing.assert_allclose(first, sound, atol=1e-3)
    assert isinstance(diverged, Refusal) and diverged.code == "diverged"
    assert "in step 2" in diverged.message and "at most 1 steps" in diverged.message


def test_a_fault_of_the_model_is_not_told_and_does_not_end_the_thread(
    worker: Worker, joint: JointPredictor
):
    def fail(module: Any, inputs: Any) -> None:
        raise RuntimeError("secret of the machine")

    assert worker.is_warm.wait(PATIENCE)
    hook = joint.model.register_forward_pre_hook(fail)

    async def ask() -> None:
        job = Job(rollout(1))
        worker.submit(job)
        with pytest.raises(Refusal, match="a fault of its own") as refused:
            await worker.next_block(job)
        assert refused.value.status == 500
        hook.remove()
        again = Job(rollout(1))
        worker.submit(again)
        assert (await read(worker, again)).shape == (1, 3, 2, 12, 20)

    asyncio.run(ask())


def test_what_nobody_reads_stands_back_and_goes_when_its_client_does(worker: Worker):
    async def ask() -> int:
        unread, quick = Job(rollout(1, steps=50)), Job(rollout(2, steps=20))
        worker.submit(unread)
        worker.submit(quick)
        await read(worker, quick)
        await asyncio.sleep(0.05)
        waiting = unread.blocks.qsize()
        worker.leave(unread)
        last = Job(rollout(3, steps=1))
        worker.submit(last)
        await read(worker, last)
        return waiting

    assert asyncio.run(ask()) == MOST_AHEAD
    assert len(worker) == 0


def test_a_stopped_worker_takes_nothing_new_but_ends_what_it_has(worker: Worker):
    async def ask() -> np.ndarray:
        job = Job(rollout(1, steps=6))
        worker.submit(job)
        worker.stop()
        with pytest.raises(Refusal, match="stopping"):
            worker.submit(Job(rollout(2)))
        return await read(worker, job)

    assert asyncio.run(ask()).shape[1] == 6
