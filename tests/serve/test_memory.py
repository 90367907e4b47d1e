"""The memory budget: who may begin, what is counted, and when it is free again."""

import asyncio
import gc
import re
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import uvicorn
from fastapi import Request

from pibert.remarks import collecting_warnings
from pibert.serve import gate, incoming, memory, server
from pibert.serve.answers import Answer, frame_block
from pibert.serve.asked import NPY, Asked
from pibert.serve.costs import cost_of
from pibert.serve.gate import Gate
from pibert.serve.incoming import Intake
from pibert.serve.joint import JointPredictor, Rolling
from pibert.serve.limits import MB, Limits
from pibert.serve.memory import Budget
from pibert.serve.metrics import Metrics
from pibert.serve.models import Served
from pibert.serve.refusal import Refusal
from pibert.serve.worker import Job, Worker
from tests.helpers import PATIENCE, wait_until
from tests.predictor.small import frames, predictor

LIMITS = Limits(body=MB, memory=32 * MB)


def rollout(samples: int = 1, steps: int = 3, **changes: Any) -> Asked:
    fields = frames(samples).numpy()
    return Asked(route="rollout", fields=fields, steps=steps, parameters={}, **changes)


@pytest.fixture
def joint() -> JointPredictor:
    made = predictor()
    return JointPredictor(made.model, made.normalizer)


def make_worker(joint: JointPredictor, budget: Budget) -> Worker:
    return Worker(Served("wake", joint, None), LIMITS, budget, Metrics())


@pytest.fixture
def room(joint: JointPredictor) -> Budget:
    """Enough for one rollout, not for two."""
    cost = cost_of(rollout(), joint)
    return Budget(int(1.5 * max(cost.start, cost.blocks)))


@pytest.fixture
def worker(joint: JointPredictor, room: Budget) -> Iterator[Worker]:
    started = make_worker(joint, room)
    started.start()
    yield started
    started.stop()
    started.join(PATIENCE)
    assert not started.is_alive()


def test_a_hold_counts_until_it_is_released_and_may_change():
    budget = Budget(100)
    first = budget.try_hold(70)
    assert first is not None and budget.try_hold(40) is None
    first.resize(120)  # what is in use is counted, also beyond the budget
    assert budget.used == 120
    first.release()
    first.release()
    assert budget.used == 0 and budget.try_hold(100) is not None


def test_a_request_waits_for_memory_unless_it_needs_more_than_there_is():
    async def ask() -> list[str]:
        budget, order = Budget(100), []

        async def take(name: str) -> None:
            async with budget.hold(60):
                order.append(f"{name} begins")
                await asyncio.sleep(3 * memory.POLL)
                order.append(f"{name} ends")

        await asyncio.gather(take("first"), take("second"))
        with pytest.raises(Refusal, match="at most 0 MB.*a larger --memory") as refused:
            async with budget.hold(101):
                pass
        assert refused.value.status == 413 and budget.used == 0
        return order

    assert asyncio.run(ask()) == ["first begins", "first ends", "second begins", "second ends"]


def test_a_job_begins_only_when_there_is_memory_for_it(worker: Worker, room: Budget):
    async def ask() -> None:
        first, second = Job(rollout()), Job(rollout())
        worker.submit(first)
        await worker.next_block(first)
        worker.submit(second)
        for _ in range(2):
            await worker.next_block(first)
        # All blocks were made, but they count until the client has taken them.
        await asyncio.sleep(5 * memory.POLL)
        assert second.hold is None and room.used > 0 and len(worker) == 1
        worker.leave(first)
        await worker.next_block(second)
        worker.leave(second)

    asyncio.run(ask())
    wait_until(lambda: room.used == 0)
    assert len(worker) == 0


def test_a_job_that_never_fits_is_refused(worker: Worker, room: Budget):
    async def ask() -> None:
        with pytest.raises(Refusal, match="send fewer samples") as refused:
            worker.submit(Job(rollout(samples=4)))
        assert refused.value.status == 413

    asyncio.run(ask())
    assert len(worker) == 0 and room.used == 0


@pytest.mark.parametrize("when", ["queued", "under way"])
def test_what_a_departed_client_sent_is_freed_at_once(worker: Worker, room: Budget, when: str):
    """Also while references to the job live on, as those of tracebacks do."""

    async def ask() -> tuple[Job, Any]:
        assert await asyncio.to_thread(worker.is_warm.wait, PATIENCE)
        blocking = room.try_hold(room.total) if when == "queued" else None
        asked = rollout(steps=1000)
        sent, job = weakref.ref(asked.fields), Job(asked)
        worker.submit(job)
        del asked
        if blocking is None:
            await worker.next_block(job)
        worker.leave(job)
        if blocking is not None:
            blocking.release()
        return job, sent

    job, sent = asyncio.run(ask())
    wait_until(lambda: room.used == 0)
    assert len(worker) == 0 and job.blocks.empty()
    assert (job.asked, job.rolling, job.alone, job.first) == (None, None, None, None)
    gc.collect()
    assert sent() is None


def test_a_client_that_goes_while_its_turn_is_put_together_harms_no_other(
    joint: JointPredictor, monkeypatch: pytest.MonkeyPatch
):
    worker = make_worker(joint, Budget(10 * MB))  # not started: turns are taken here

    async def ask() -> None:
        going, staying = Job(rollout()), Job(rollout(steps=1))
        for job in (going, staying):
            worker.submit(job)

        def wait(timeout: float | None = None) -> bool:
            worker.leave(going)  # as another thread may, while this one waits in vain
            return False

        monkeypatch.setattr(worker._changed, "wait", wait)
        worker._carry_out(worker._next_turn())
        block = await worker.next_block(staying)
        assert block.arrays["prediction"].shape[0] == 1
        assert going.hold is not None and going.hold.size > 0
        worker.stop()
        assert worker._next_turn() == []
        assert going.hold.size == 0 and going.asked is None
        worker.leave(staying)

    asyncio.run(ask())
    assert worker._budget.used == 0 and len(worker) == 0


def test_a_client_that_goes_during_its_last_turn_frees_its_memory(joint: JointPredictor):
    worker = make_worker(joint, Budget(10 * MB))

    async def ask() -> None:
        job = Job(rollout(steps=1))
        worker.submit(job)
        turn = worker._next_turn()
        worker.leave(job)
        worker._carry_out(turn)
        worker.stop()
        assert worker._next_turn() == []

    asyncio.run(ask())
    assert worker._budget.used == 0


def test_a_rollout_under_way_does_not_keep_what_was_sent(joint: JointPredictor):
    given = joint.take(rollout())
    sent = weakref.ref(given.fields)
    rolling = Rolling(given, 3)
    assert sent() is None
    blocks = [joint.advance([rolling])[0] for _ in range(3)]
    assert not any(isinstance(block, Exception) for block in blocks)


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
        memory.Returner(Budget(1))._trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before, found = resident("VmRSS"), work()
        peaks.append(resident("VmHWM") - before)
    return min(peaks), found


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
@pytest.mark.parametrize("has_gaps", [False, True])
def test_a_job_takes_no_more_memory_than_its_cost(
    joint: JointPredictor, monkeypatch: pytest.MonkeyPatch, has_gaps: bool
):
    monkeypatch.setattr(memory.gc, "freeze", lambda: None)
    fields = np.random.default_rng(0).normal(size=(1, 1, 2, 900, 1100)).astype(np.float32)
    mask = np.ones((900, 1100), bool) if has_gaps else None
    if mask is not None:
        mask[100:200, 300:500] = False
    asked = Asked(route="rollout", fields=fields, mask=mask, steps=5, parameters={})
    cost = cost_of(asked, joint)
    with collecting_warnings():  # of the other grid
        joint.take(asked)  # what is loaded or cached at first
        start, given = peak_of(lambda: joint.take(asked))
        rolling = Rolling(given, 5)
        joint.advance([rolling])

        def make_block() -> Any:
            block = joint.advance([rolling])[0]
            assert not isinstance(block, Exception)
            return block, frame_block(Answer({"prediction": block.frames}), NPY)

        blocks, _ = peak_of(make_block)
    assert fields.nbytes < start <= cost.start
    assert fields.nbytes < blocks <= cost.blocks


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


def test_a_large_answer_is_sent_in_pieces_that_join_to_the_whole():
    async def ask() -> list[Any]:
        client, ended = Client(), list[str]()
        size = 3 * gate.PIECE + 256
        await Gate(answer_of(size, ended), Metrics(), seconds=PATIENCE)(
            dict(SCOPE), client.receive, client.send
        )
        assert ended == ["done"]
        return client.sent[1:]

    pieces = asyncio.run(ask())
    assert max(len(piece["body"]) for piece in pieces) == gate.PIECE
    assert [piece.get("more_body", False) for piece in pieces] == [True, True, True, False]
    whole = b"".join(piece["body"] for piece in pieces)
    assert whole == bytes(range(256)) * (len(whole) // 256) and len(whole) == 3 * gate.PIECE + 256


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
        return metrics.text({}, 0)

    assert 'status="499"} 1' in asyncio.run(ask())


def read_body(parts: list[tuple[float, bytes]], most: int = MB) -> bytes:
    """A body whose parts come after pauses of so many seconds."""
    coming = iter(parts)

    async def receive() -> Any:
        pause, part = next(coming)
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": part, "more_body": bool(part)}

    async def read() -> bytes:
        intake = Intake(LIMITS)
        request = Request({"type": "http", "method": "POST", "headers": []}, receive)
        try:
            async with intake.body(request, most) as body:
                assert intake.held == len(body)
                return body
        finally:
            assert intake.held == 0

    return asyncio.run(read())


def test_a_body_may_pause_but_not_drip(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(incoming, "PAUSE", 0.5)
    monkeypatch.setattr(incoming, "RATE", 100)
    # What comes at once gives no credit for more than one pause.
    drip = [(0.0, bytes(5000)), *[(0.1, b"x")] * 50]
    with pytest.raises(Refusal, match="send it at once") as refused:
        read_body(drip)
    assert refused.value.status == 408
    steady = [(0.0, bytes(100))] * 20
    assert len(read_body([*steady, (0.0, b"")])) == 2000


class Plain(SimpleNamespace):
    """A stand-in that can be in a set."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def connection(cycle: Any, *, is_closing: bool = False) -> Any:
    aborted: list[bool] = []
    transport = Plain(is_closing=lambda: is_closing, abort=lambda: aborted.append(True))
    return Plain(cycle=cycle, transport=transport, aborted=aborted)


def test_connections_without_a_request_are_cut_and_others_are_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "Returner", lambda budget: None)
    gate = Gate(None, Metrics(), seconds=1.0)
    own = server._Server(uvicorn.Config(lambda: None), gate, Budget(1))
    working, done = Plain(response_complete=False), Plain(response_complete=True)
    silent, busy = connection(None), connection(working)
    closing, kept = connection(done, is_closing=True), connection(done)
    own.server_state.connections = {silent, busy, closing, kept}
    own._close_idle(0.0)
    kept.cycle = Plain(response_complete=True)  # another request was answered meanwhile
    own._close_idle(float(server.IDLE))
    assert not any(one.aborted for one in (silent, busy, closing, kept))
    own._close_idle(server.IDLE + 1.0)
    assert silent.aborted and closing.aborted and not busy.aborted and not kept.aborted


def test_memory_is_returned_once_the_last_work_has_ended(monkeypatch: pytest.MonkeyPatch):
    collected: list[int] = []
    monkeypatch.setattr(memory.gc, "freeze", lambda: None)
    monkeypatch.setattr(memory.gc, "collect", lambda: collected.append(1))
    budget = Budget(10)
    returner = memory.Returner(budget)
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
    monkeypatch.setattr(memory, "INTERVAL", -1.0)
    returner.tick(1)
    assert len(collected) == 2
