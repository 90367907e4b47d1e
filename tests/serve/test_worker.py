"""The thread of a model, the memory budget and the middleware."""

import asyncio
import gc
import re
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi import Request

from pibert.inference import Predictor
from pibert.serve import gate, limits
from pibert.serve.answers import NPY, Answer, frame_block
from pibert.serve.gate import Gate, Metrics, read_body
from pibert.serve.limits import MB, Budget, Limits, Refusal
from pibert.serve.models import MOST_AHEAD, Served, cost_of
from pibert.serve.schemas import PredictRequest
from pibert.serve.worker import Job, Worker
from tests.helpers import PATIENCE, assert_close, wait_until
from tests.inference.small import frames
from tests.serve.files import rollout

JOINING = Limits(wait=0.2, queue=8)


def running(joint: Predictor, limits: Limits, budget: Budget) -> Iterator[Worker]:
    started = Worker(Served("wake", joint, Path()), limits, budget, Metrics())
    started.start()
    yield started
    started.stop()
    started.join(PATIENCE)
    assert not started.is_alive()


@pytest.fixture
def worker(joint: Predictor) -> Iterator[Worker]:
    yield from running(joint, JOINING, Budget(JOINING.work))


def ask(worker: Worker, *asked: PredictRequest) -> list[Any]:
    """The frames of rollouts that run together, or what one was refused with."""

    async def answers() -> list[Any]:
        jobs = [Job(own) for own in asked]
        for job in jobs:
            worker.submit(job)
        return await asyncio.gather(*(read(worker, job) for job in jobs), return_exceptions=True)

    return asyncio.run(answers())


async def read(worker: Worker, job: Job) -> np.ndarray:
    blocks = [await worker.next_block(job) for _ in range(job.steps)]
    return np.concatenate([block.arrays["prediction"] for block in blocks], axis=1)


def test_a_refused_request_does_not_touch_its_neighbours(worker: Worker, joint: Predictor):
    holes = frames(1).numpy()
    holes[0, 0, 1, 2, 3] = np.nan
    first, refused, last = ask(worker, rollout(seed=1), rollout(fields=holes), rollout(seed=2))
    assert isinstance(refused, Refusal) and refused.code == "invalid"
    assert "row 2, column 3" in refused.message
    np.testing.assert_allclose(first, joint.rollout(frames(1, seed=1).numpy(), 3), atol=1e-3)
    np.testing.assert_allclose(last, joint.rollout(frames(1, seed=2).numpy(), 3), atol=1e-3)
    assert len(worker) == 0


@pytest.mark.parametrize("error", [ValueError("not this window"), RuntimeError("a fault")])
def test_after_a_joint_error_jobs_run_singly(worker: Worker, joint: Predictor, error: Exception):
    """Also in a later step, from which the neighbours go on without a gap."""
    batches: list[int] = []

    def object_to_one(module: Any, inputs: Any) -> None:
        fields, parameters, _ = inputs
        batches.append(len(fields))
        if len(batches) > 1 and not parameters[:, 0].isnan().all():
            raise error

    assert worker.is_warm.wait(PATIENCE)
    hook = joint.model.register_forward_pre_hook(object_to_one)
    odd = rollout(seed=3, parameters={"Re": 900.0})
    first, refused, last = ask(worker, rollout(seed=1), odd, rollout(seed=2))
    hook.remove()
    assert batches == [3, 3, 1, 1, 1, 2]
    assert isinstance(refused, Refusal)
    assert refused.code == ("invalid" if isinstance(error, ValueError) else "internal")
    assert_close(first, joint.rollout(frames(1, seed=1).numpy(), 3))
    assert_close(last, joint.rollout(frames(1, seed=2).numpy(), 3))


def test_a_diverging_rollout_ends_alone_and_names_the_step(worker: Worker, joint: Predictor):
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
    first, diverged = ask(worker, rollout(seed=1), rollout(seed=2))
    hook.remove()
    np.testing.assert_allclose(first, sound, atol=1e-3)
    assert isinstance(diverged, Refusal) and diverged.code == "diverged"
    assert "in step 2" in diverged.message and "at most 1 steps" in diverged.message
    assert b'pibert_diverged_total{model="wake"} 1.0' in worker._metrics.text()


def test_a_rollout_far_from_the_training_data_is_logged_and_counted_once(
    worker: Worker, joint: Predictor, caplog: pytest.LogCaptureFixture
):
    assert worker.is_warm.wait(PATIENCE)
    hook = joint.model.register_forward_hook(lambda module, inputs, output: 30 + 0 * output)
    job: Job | None = None

    async def run() -> None:
        nonlocal job
        job = Job(rollout(seed=1))
        worker.submit(job)
        await read(worker, job)

    asyncio.run(run())
    hook.remove()
    assert job is not None and "from step 1 on" in str(job.diverged)
    assert b'pibert_diverged_total{model="wake"} 1.0' in worker._metrics.text()
    assert caplog.text.count("the rollout diverges") == 1


def test_a_fault_of_the_model_does_not_end_the_thread(worker: Worker, joint: Predictor):
    def fail(module: Any, inputs: Any) -> None:
        raise RuntimeError("secret of the machine")

    assert worker.is_warm.wait(PATIENCE)
    hook = joint.model.register_forward_pre_hook(fail)

    async def fail_and_recover() -> None:
        job = Job(rollout(seed=1))
        worker.submit(job)
        with pytest.raises(Refusal) as refused:
            await worker.next_block(job)
        assert refused.value.status == 500 and "secret" not in refused.value.message
        hook.remove()
        again = Job(rollout(seed=1))
        worker.submit(again)
        assert (await read(worker, again)).shape == (1, 3, 2, 12, 20)

    asyncio.run(fail_and_recover())


def test_an_unread_rollout_pauses_and_is_dropped_with_its_client(worker: Worker):
    async def leave_one_unread() -> int:
        unread, quick = Job(rollout(seed=1, steps=50)), Job(rollout(seed=2, steps=20))
        worker.submit(unread)
        worker.submit(quick)
        await read(worker, quick)
        await asyncio.sleep(0.05)
        waiting = unread.blocks.qsize()
        worker.leave(unread)
        last = Job(rollout(seed=3, steps=1))
        worker.submit(last)
        await read(worker, last)
        return waiting

    assert asyncio.run(leave_one_unread()) == MOST_AHEAD
    assert len(worker) == 0


LIMITS = Limits(body=MB, memory=32 * MB)


@pytest.fixture
def room(joint: Predictor) -> Budget:
    """Enough for one rollout, not for two."""
    cost = cost_of(rollout(), joint)
    return Budget(int(1.5 * max(cost.start, cost.blocks)))


@pytest.fixture
def tight(joint: Predictor, room: Budget) -> Iterator[Worker]:
    yield from running(joint, LIMITS, room)


def test_a_request_waits_for_memory_unless_it_exceeds_the_budget():
    async def ask() -> list[str]:
        budget, order = Budget(100), []

        async def take(name: str) -> None:
            async with budget.hold(60):
                order.append(f"{name} begins")
                await asyncio.sleep(3 * limits.POLL)
                order.append(f"{name} ends")

        await asyncio.gather(take("first"), take("second"))
        with pytest.raises(Refusal, match="--memory") as refused:
            async with budget.hold(101):
                pass
        assert refused.value.status == 413 and budget.used == 0
        return order

    assert asyncio.run(ask()) == ["first begins", "first ends", "second begins", "second ends"]


def test_a_job_begins_only_when_there_is_memory_for_it(tight: Worker, room: Budget):
    async def ask() -> None:
        first, second = Job(rollout()), Job(rollout())
        tight.submit(first)
        await tight.next_block(first)
        tight.submit(second)
        for _ in range(2):
            await tight.next_block(first)
        # All blocks were made, but they count until the client has taken them.
        await asyncio.sleep(5 * limits.POLL)
        assert second.hold is None and room.used > 0 and len(tight) == 1
        tight.leave(first)
        await tight.next_block(second)
        tight.leave(second)

    asyncio.run(ask())
    wait_until(lambda: room.used == 0)
    assert len(tight) == 0


@pytest.mark.parametrize("when", ["queued", "under way"])
def test_the_input_of_a_departed_client_is_freed_at_once(tight: Worker, room: Budget, when: str):
    """Also while references to the job live on, as those of tracebacks do."""

    async def ask() -> tuple[Job, Any]:
        assert await asyncio.to_thread(tight.is_warm.wait, PATIENCE)
        blocking = room.try_hold(room.total) if when == "queued" else None
        asked = rollout(steps=1000)
        sent, job = weakref.ref(asked.fields), Job(asked)
        tight.submit(job)
        del asked
        if blocking is None:
            await tight.next_block(job)
        tight.leave(job)
        if blocking is not None:
            blocking.release()
        return job, sent

    job, sent = asyncio.run(ask())
    wait_until(lambda: room.used == 0)
    assert len(tight) == 0 and job.blocks.empty()
    assert (job.request, job.stream, job.first) == (None, None, None)
    gc.collect()
    assert sent() is None


def resident(name: str) -> int:
    """Bytes that this process has (``VmRSS``), or had at most (``VmHWM``)."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def peak_of(work: Callable[[], Any]) -> tuple[int, Any]:
    """Bytes that some work takes at most, and what it returns.

    The least of three measurements: whatever else the process does can only add to them.
    """
    peaks, found = [], None
    for _ in range(3):
        found = None
        gc.collect()
        limits.Returner(Budget(1))._trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before, found = resident("VmRSS"), work()
        peaks.append(resident("VmHWM") - before)
    return min(peaks), found


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
@pytest.mark.parametrize("has_gaps", [False, True])
def test_a_job_takes_no_more_memory_than_its_cost(
    joint: Predictor, monkeypatch: pytest.MonkeyPatch, has_gaps: bool
):
    monkeypatch.setattr(limits.gc, "freeze", lambda: None)
    fields = np.random.default_rng(0).normal(size=(1, 1, 2, 900, 1100)).astype(np.float32)
    mask = np.ones((900, 1100), bool) if has_gaps else None
    if mask is not None:
        mask[100:200, 300:500] = False
    asked = PredictRequest(route="rollout", fields=fields, mask=mask, steps=5, parameters={})
    cost = cost_of(asked, joint)
    joint.stream(joint.prepare(fields, mask=mask), 5)  # what is loaded or cached at first
    start, stream = peak_of(lambda: joint.stream(joint.prepare(fields, mask=mask), 5))
    stream.input.forget_input()
    joint.advance([stream])

    def make_block() -> Any:
        block = joint.advance([stream])[0]
        assert not isinstance(block, Exception)
        return block, frame_block(Answer({"prediction": block.fields}), NPY)

    blocks, _ = peak_of(make_block)
    assert fields.nbytes < start <= cost.start
    assert fields.nbytes < blocks <= cost.blocks


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_the_cost_counts_every_member_of_an_ensemble(joint: Predictor):
    joint.models = 24 * joint.models
    samples = 2000
    given = frames(samples)
    asked = PredictRequest(route="rollout", fields=given.numpy(), steps=5, parameters={})
    stream = joint.stream(joint.prepare(given), 5)

    def take_outputs() -> Any:
        return stream.take([torch.zeros(samples, 2, *given.shape[-2:]) for _ in joint.models])

    taken, _ = peak_of(take_outputs)
    assert 24 * given.nbytes < taken <= cost_of(asked, joint).blocks


class Client:
    """The other end of the gate: what it sends, and how it takes an answer."""

    def __init__(self, *, stalls_after: int | None = None) -> None:
        self.sent: list[Any] = []
        self.gone = asyncio.Event()
        self._first, self._stalls_after = True, stalls_after

    async def receive(self) -> Any:
        if self._first:
            self._first = False
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self._stalls_after is not None and len(self.sent) >= self._stalls_after:
            await asyncio.Event().wait()
        self.sent.append(message)


SCOPE = {"type": "http", "method": "POST", "path": "/v1/step", "headers": []}


def answer_of(size: int, was_ended: list[str]) -> Any:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": bytes(range(256)) * (size // 256)})
        except asyncio.CancelledError:
            was_ended.append("cancelled")
            raise
        was_ended.append("done")

    return answer


def test_a_client_that_does_not_take_its_answer_is_cut(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate, "PAUSE", 0.05)

    async def ask() -> list[str]:
        client, ended = Client(stalls_after=2), list[str]()
        app = Gate(answer_of(5 * gate.PIECE, ended), Metrics(), seconds=PATIENCE)
        await app(dict(SCOPE), client.receive, client.send)
        assert len(client.sent) == 2 and app.num_requests == 0
        return ended

    assert asyncio.run(ask()) == ["cancelled"]


def test_work_for_a_client_that_goes_is_cancelled():
    async def ask() -> str:
        client, begun, ended = Client(), asyncio.Event(), list[str]()

        async def work(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        metrics = Metrics()
        app = Gate(work, metrics, seconds=PATIENCE)
        asking = asyncio.create_task(app(dict(SCOPE), client.receive, client.send))
        await begun.wait()
        client.gone.set()
        await asking
        assert ended == ["cancelled"] and client.sent == []
        return metrics.text().decode()

    assert 'status="499"} 1' in asyncio.run(ask())


def read_body_of(parts: list[tuple[float, bytes]], most: int = MB, room: int = MB) -> bytes:
    """A body whose parts come after pauses of so many seconds."""
    coming = iter(parts)

    async def receive() -> Any:
        pause, part = next(coming)
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": part, "more_body": bool(part)}

    async def read() -> bytes:
        bodies = Budget(room)
        request = Request({"type": "http", "method": "POST", "headers": []}, receive)
        try:
            async with read_body(request, most, bodies) as body:
                assert bodies.used == len(body)
                return body
        finally:
            assert bodies.used == 0

    return asyncio.run(read())


def test_a_body_that_is_too_long_or_finds_no_room_is_refused():
    parts = [(0.0, bytes(100))] * 20
    for allowed, code in (({"most": 1999}, "too_large"), ({"room": 1999}, "busy")):
        with pytest.raises(Refusal) as refused:
            read_body_of([*parts, (0.0, b"")], **allowed)
        assert refused.value.code == code


def test_a_body_may_pause_but_not_drip(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gate, "BODY_PAUSE", 0.5)
    monkeypatch.setattr(gate, "BODY_RATE", 100)
    # What comes at once gives no credit for more than one pause.
    drip = [(0.0, bytes(5000)), *[(0.1, b"x")] * 50]
    with pytest.raises(Refusal) as refused:
        read_body_of(drip)
    assert refused.value.status == 408
    steady = [(0.0, bytes(100))] * 20
    assert len(read_body_of([*steady, (0.0, b"")])) == 2000


def test_a_hold_counts_until_it_is_released_and_may_change():
    budget = Budget(100)
    first = budget.try_hold(70)
    assert first is not None and budget.try_hold(40) is None
    first.resize(120)  # what is in use is counted, also beyond the budget
    assert budget.used == 120
    first.release()
    first.release()
    assert budget.used == 0 and budget.try_hold(100) is not None


def test_memory_is_returned_once_the_last_work_has_ended(monkeypatch: pytest.MonkeyPatch):
    collected: list[int] = []
    monkeypatch.setattr(limits.gc, "freeze", lambda: None)
    monkeypatch.setattr(limits.gc, "collect", lambda: collected.append(1))
    budget = Budget(10)
    returner = limits.Returner(budget)
    returner.tick(0)
    returner.tick(2)
    held = budget.try_hold(5)
    assert held is not None
    returner.tick(0)  # the client has gone, the model is still at work
    assert not collected
    held.release()
    returner.tick(0)
    returner.tick(0)
    assert len(collected) == 1
    monkeypatch.setattr(limits, "INTERVAL", -1.0)
    returner.tick(1)
    assert len(collected) == 2
