"""The thread of a model: it takes requests in turns and joins their steps.

A job is one request. Every turn makes one block of frames for some jobs: steps and rollouts
together, up to so many samples. An explanation or a rollout with prediction intervals runs alone. A
job whose client does not read pauses after a few blocks, and one begins only when the memory budget
has room for it. A job whose client has gone is dropped at once, or after the turn that it is in.
"""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pibert.inference.predictor import PredictionStream
from pibert.notes import Note, Notes, collecting
from pibert.serve.answers import Answer
from pibert.serve.gate import Metrics
from pibert.serve.limits import POLL, Budget, Hold, Limits, Refusal, refusal_of
from pibert.serve.models import Cost, Served, cost_of
from pibert.serve.schemas import PredictRequest

_log = logging.getLogger("pibert.serve")
_REMEDIES = {
    "spacing-assumed": "send dx and dy, or a file that states them",
    "unknown-parameters": "send parameters by name, or null where one is unknown",
}
"""Remedies for callers of the server, where they differ from those in Python."""


class Job:
    """A request on its way; made in the event loop that waits for its blocks."""

    def __init__(self, asked: PredictRequest) -> None:
        self.asked: PredictRequest | None = asked
        """Until the job begins: then its arrays are not needed any more."""
        self.samples, self.steps = asked.samples, asked.steps or 0
        self.joins = asked.route != "explain" and asked.level is None
        self.cost: Cost | None = None
        self.hold: Hold | None = None
        """Its memory, from its beginning to the last byte of the answer."""
        self.blocks: asyncio.Queue[Answer | Exception] = asyncio.Queue()
        """What was made, at last the reason if it ends early."""
        self.unread = 0
        self.is_gone = False
        """Nobody waits for it any more."""
        self.stream: PredictionStream | None = None
        self.alone: Iterator[Answer] | None = None
        self.first: Answer | None = None
        """What the first block says beside its frames, until it is handed out."""
        self.pending: list[Note] = []
        """Notes that the next block carries."""
        self.notes = Notes(on_new=self.pending.append)
        self._loop = asyncio.get_running_loop()

    @property
    def has_begun(self) -> bool:
        return self.first is not None or self.stream is not None or self.alone is not None

    def take_notes(self) -> list[str]:
        """Notes that no block has carried yet."""
        found = [
            replace(note, remedy=_REMEDIES.get(note.code, note.remedy)) for note in self.pending
        ]
        self.pending.clear()
        return [str(note) for note in found]

    def hand_out(self, item: Answer | Exception) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._put, item)

    def _put(self, item: Answer | Exception) -> None:
        if not self.is_gone:
            self.blocks.put_nowait(item)

    def release(self) -> None:
        """Free what it holds: tracebacks and callbacks may hold the job itself much longer."""
        self.asked = self.stream = self.alone = self.first = None
        if self.hold is not None:
            self.hold.release()


class Worker(threading.Thread):
    """Runs the jobs of one model, until it is stopped and has none left."""

    def __init__(self, served: Served, limits: Limits, budget: Budget, metrics: Metrics) -> None:
        super().__init__(name=f"model {served.name}", daemon=True)
        self.served, self._limits, self._budget, self._metrics = served, limits, budget, metrics
        self._jobs: list[Job] = []
        self._turn: list[Job] = []
        """Jobs that are being worked on."""
        self._changed = threading.Condition()
        self._stops = False
        self.is_warm = threading.Event()

    def __len__(self) -> int:
        return len(self._jobs)

    def submit(self, job: Job) -> None:
        """Take a job, or refuse it because there are too many or it is too large."""
        assert job.asked is not None
        job.cost = cost_of(job.asked, self.served.predictor)
        self._budget.check(max(job.cost.start, job.cost.blocks))
        with self._changed:
            if self._stops:
                raise Refusal("stopping", "the server is stopping; try another one")
            if len(self._jobs) >= self._limits.queue:
                raise Refusal(
                    "busy",
                    f"expected at most {self._limits.queue} requests of model "
                    f"{self.served.name!r} at once, found as many already; try again later",
                )
            self._jobs.append(job)
            self._changed.notify()

    async def next_block(self, job: Job) -> Answer:
        """The next block of a job; a ``Refusal`` where an error ended it."""
        item = await job.blocks.get()
        with self._changed:
            job.unread -= 1
            self._changed.notify()
        if isinstance(item, Exception):
            raise refusal_of(item) from item
        return item

    def leave(self, job: Job) -> None:
        """Nobody waits for the job any more; called in the event loop."""
        with self._changed:
            job.is_gone = True
            if job not in self._turn:
                self._drop(job)
            self._changed.notify()
        while not job.blocks.empty():
            job.blocks.get_nowait()

    def _end_turn(self) -> None:
        """Drop the jobs whose clients went away during the turn."""
        # One that made its last block stands in the turn alone.
        jobs, self._turn = [*self._turn, *self._jobs], []
        for job in jobs:
            if job.is_gone:
                self._drop(job)

    def _drop(self, job: Job) -> None:
        self._jobs = [other for other in self._jobs if other is not job]
        job.release()

    def stop(self) -> None:
        with self._changed:
            self._stops = True
            self._changed.notify()

    def run(self) -> None:
        self._warm_up()
        while turn := self._next_turn():
            try:
                self._carry_out(turn)
            except Exception as error:
                _log.exception("a turn of model %s failed", self.served.name)
                for job in turn:
                    self._finish(job, error)
            # A job that was dropped is not held until the next turn comes.
            del turn

    def _warm_up(self) -> None:
        """A first step, which loads and allocates what later ones use."""
        predictor = self.served.predictor
        shape = (1, predictor.history, len(predictor.spec.channels), *predictor.spec.grid.shape)
        mean = np.asarray(predictor.normalizer.mean, dtype=np.float32)[:, None, None]
        unknown = dict.fromkeys(predictor.spec.parameter_names, math.nan)
        try:
            predictor.step(np.ascontiguousarray(np.broadcast_to(mean, shape)), unknown)
        except Exception:
            _log.exception("the first step of model %s failed", self.served.name)
        self.is_warm.set()

    def _next_turn(self) -> list[Job]:
        """The jobs whose turn it is; empty at the end."""
        with self._changed:
            self._end_turn()
            while not (turn := self._ready()):
                if self._stops and not self._jobs:
                    return []
                # Memory that another model's job frees is not told.
                is_short = any(job.hold is None for job in self._jobs)
                self._changed.wait(POLL if is_short else None)
            self._turn = turn  # from here on a job is dropped only after the turn
            if not turn[0].has_begun and turn[0].joins:
                until = time.monotonic() + self._limits.wait
                while self._samples(self._turn) < self._limits.batch:
                    if not self._changed.wait(until - time.monotonic()):
                        break
                    self._turn = self._ready() or turn
            # Who had a turn stands last in the next one.
            self._jobs = [job for job in self._jobs if job not in self._turn] + self._turn
            return self._turn

    def _ready(self) -> list[Job]:
        """The first job that can go on, and those that can join it."""
        chosen: list[Job] = []
        for job in self._jobs:
            fits = self._samples([*chosen, job]) <= self._limits.batch and job.joins
            if (fits or not chosen) and self._can_go_on(job):
                chosen.append(job)
                if not job.joins:
                    break
        return chosen

    def _can_go_on(self, job: Job) -> bool:
        """Whether the client reads its blocks and there is memory for it."""
        assert job.cost is not None
        if job.hold is None:
            job.hold = self._budget.try_hold(max(job.cost.start, job.cost.blocks))
        return job.hold is not None and job.unread < job.cost.ahead

    @staticmethod
    def _samples(jobs: list[Job]) -> int:
        return sum(job.samples for job in jobs)

    def _carry_out(self, turn: list[Job]) -> None:
        here = [job for job in turn if not job.is_gone]
        begun = [job for job in here if job.has_begun or self._begins(job)]
        if begun and begun[0].alone is not None:
            self._go_on_alone(begun[0])
        elif begun:
            self._go_on_together(begun)

    def _begins(self, job: Job) -> bool:
        """Check what a job asks; one that is refused is finished."""
        assert job.asked is not None and job.cost is not None and job.hold is not None
        (asked, job.asked), served = (job.asked, None), self.served
        steps = asked.steps or served.predictor.horizon
        try:
            with collecting(job.notes):
                served.check(asked)
                first = Answer({})
                if asked.route == "explain":
                    first = served.explain(asked)
                    job.alone = iter([Answer({})])
                elif asked.level is not None:
                    job.alone = served.bars(asked, steps)
                else:
                    job.stream = served.predictor.stream(
                        asked.fields, steps, asked.parameters, asked.mask, grid=asked.grid
                    )
                    given = job.stream.input
                    job.notes.extend(given.notes)
                    if asked.consistency:
                        first.arrays["consistency"] = served.predictor.consistency_of(given)
                    given.forget_input()
            job.first = Answer(first.arrays, served.facts() | first.facts)
            job.hold.resize(job.cost.blocks)
        except Exception as error:
            self._finish(job, error)
            return False
        return True

    def _go_on_alone(self, job: Job) -> None:
        assert job.alone is not None
        try:
            with collecting(job.notes):
                block = next(job.alone)
            self._hand_out(job, block)
        except StopIteration:
            self._forget(job)
        except Exception as error:
            self._finish(job, error)

    def _go_on_together(self, jobs: list[Job]) -> None:
        streams = [job.stream for job in jobs if job.stream is not None]
        self._metrics.observe_batch(self.served.name, self._samples(jobs))
        found = self.served.predictor.advance(streams)
        for job, stream, block in zip(jobs, streams, found, strict=True):
            if isinstance(block, Exception):
                self._finish(job, block)
                continue
            if stream.is_done:
                self._forget(job)
            job.notes.extend(block.notes)
            self._hand_out(job, Answer({"prediction": block.fields}))

    def _hand_out(self, job: Job, block: Answer) -> None:
        facts, arrays = block.facts, block.arrays
        if job.first is not None or job.pending:
            facts = facts | {"remarks": job.take_notes()}
        if job.first is not None:
            # Frames stand first: they are what an npy file holds.
            arrays, facts = arrays | job.first.arrays, job.first.facts | facts
            job.first = None
        block = Answer(arrays, facts)
        with self._changed:
            job.unread += 1
        job.hand_out(block)

    def _finish(self, job: Job, error: Exception) -> None:
        self._forget(job)
        if not isinstance(error, ValueError | FloatingPointError | Refusal):
            _log.error("model %s", self.served.name, exc_info=error)
        job.hand_out(error)

    def _forget(self, job: Job) -> None:
        """It makes no more blocks; those that it made are counted until the client leaves."""
        with self._changed:
            self._jobs = [other for other in self._jobs if other is not job]
