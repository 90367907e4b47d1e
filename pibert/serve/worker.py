"""The thread of a model, which computes the blocks of all requests to it.

A job is one request. Every turn computes one block of frames for some jobs: steps and rollouts
together, up to a number of samples. An explanation or a rollout with prediction intervals runs
alone. A job whose client does not read pauses after a few blocks, and one starts only when the
memory budget has room for it. A job whose client has gone is dropped at once, or after its turn.
"""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pibert.inference.stream import PredictionStream
from pibert.notes import Note, Notes
from pibert.serve.answers import Answer
from pibert.serve.gate import Metrics
from pibert.serve.limits import POLL, Budget, Hold, Limits, Refusal, refusal_of
from pibert.serve.models import Cost, Served, answer_of, cost_of
from pibert.serve.schemas import PredictRequest

_log = logging.getLogger("pibert.serve")
_REMEDIES = {
    "spacing-assumed": "send dx and dy, or a file that states them",
    "unknown-parameters": "send parameters by name, or null where one is unknown",
}
"""Remedies for callers of the server, where they differ from those in Python."""


class Job:
    """One request in progress; created in the event loop that waits for its blocks."""

    def __init__(self, request: PredictRequest) -> None:
        self.request: PredictRequest | None = request
        """None from the start of the job: then its arrays are not needed any more."""
        self.samples, self.steps = request.samples, request.steps or 0
        self.joins = request.route != "explain" and request.level is None
        self.cost: Cost | None = None
        self.hold: Hold | None = None
        """Its memory, from its start to the last byte of the answer."""
        self.blocks: asyncio.Queue[Answer | Exception] = asyncio.Queue()
        """Finished blocks, and at the end the error if there is one."""
        self.unread = 0
        self.is_gone = False
        """Nobody waits for it any more."""
        self.stream: PredictionStream | None = None
        self.first: Answer | None = None
        """What the first block has besides its frames, until it is sent."""
        self.pending: list[Note] = []
        """Notes that the next block carries."""
        self.diverged: str | None = None
        """A text on the step from which its frames are not a flow; None: all of them are."""
        self.notes = Notes(on_new=self.pending.append)
        self._loop = asyncio.get_running_loop()

    def take_notes(self) -> list[dict[str, str]]:
        """Notes that no block has carried yet."""
        notes = [
            replace(note, remedy=_REMEDIES.get(note.code, note.remedy)) for note in self.pending
        ]
        self.pending.clear()
        return [note.to_dict() for note in notes]

    def put(self, item: Answer | Exception) -> None:
        """Deliver a block or an error; called in the thread of the model."""

        def deliver() -> None:
            if not self.is_gone:
                self.blocks.put_nowait(item)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(deliver)

    def release(self) -> None:
        """Free what it holds: tracebacks and callbacks may keep the job itself much longer."""
        self.request = self.stream = self.first = None
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
        assert job.request is not None
        job.cost = cost_of(job.request, self.served.computing(job.request.level is not None))
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
        # One that computed its last block is in the turn alone.
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
                self._run_turn(turn)
            except Exception as error:
                _log.exception("a turn of model %s failed", self.served.name)
                for job in turn:
                    self._fail(job, error)
            del turn  # a job that was dropped is not held until the next turn

    def _warm_up(self) -> None:
        """Make a first step, which loads and allocates what later ones use."""
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
                # Nothing reports memory that another model's job frees.
                is_short = any(job.hold is None for job in self._jobs)
                self._changed.wait(POLL if is_short else None)
            self._turn = turn  # from here on a job is dropped only after the turn
            if turn[0].request is not None and turn[0].joins:
                until = time.monotonic() + self._limits.wait
                while self._samples(self._turn) < self._limits.batch:
                    if not self._changed.wait(until - time.monotonic()):
                        break
                    self._turn = self._ready() or turn
            # Jobs of this turn are last in the next one.
            self._jobs = [job for job in self._jobs if job not in self._turn] + self._turn
            return self._turn

    def _ready(self) -> list[Job]:
        """The first job that can continue, and those that can join it."""
        chosen: list[Job] = []
        for job in self._jobs:
            fits = self._samples([*chosen, job]) <= self._limits.batch and job.joins
            if (fits or not chosen) and self._can_continue(job):
                chosen.append(job)
                if not job.joins:
                    break
        return chosen

    def _can_continue(self, job: Job) -> bool:
        """Whether the client reads its blocks and there is memory for it."""
        assert job.cost is not None
        if job.hold is None:
            job.hold = self._budget.try_hold(max(job.cost.start, job.cost.blocks))
        return job.hold is not None and job.unread < job.cost.ahead

    @staticmethod
    def _samples(jobs: list[Job]) -> int:
        return sum(job.samples for job in jobs)

    def _run_turn(self, turn: list[Job]) -> None:
        for job in turn:
            if job.request is not None and not job.is_gone:
                self._start(job)
        jobs = [job for job in turn if job.stream is not None and not job.is_gone]
        streams = [job.stream for job in jobs if job.stream is not None]
        if not jobs:
            return
        self._metrics.batches.labels(self.served.name).observe(self._samples(jobs))
        predictor = self.served.computing(with_intervals=not jobs[0].joins)
        for job, stream, block in zip(jobs, streams, predictor.advance(streams), strict=True):
            if isinstance(block, Exception):
                self._fail(job, block)
                continue
            if stream.is_done:
                self._forget(job)
            for note in job.notes.extend(block.notes):
                if note.code == "divergence":
                    self._report_divergence(job, str(note))
            self._send(job, answer_of(block, is_first=job.first is not None))

    def _start(self, job: Job) -> None:
        """Check a request and prepare its rollout; an explanation is sent at once."""
        assert job.request is not None and job.cost is not None and job.hold is not None
        (request, job.request), served = (job.request, None), self.served
        first = Answer({}, served.facts())
        notes: Sequence[Note]
        try:
            if request.route == "explain":
                block, notes = served.explain(request)
            else:
                job.stream, notes = served.stream(request)
                given = job.stream.input
                if request.consistency:
                    found = served.predictor.consistency_of(given)
                    first.arrays["consistency"] = given.map(found)
                given.forget_input()
            job.notes.extend(notes)
            job.first = first
            job.hold.resize(job.cost.blocks)
            if job.stream is None:
                self._forget(job)
                self._send(job, block)
        except Exception as error:
            self._fail(job, error)

    def _send(self, job: Job, block: Answer) -> None:
        facts, arrays = block.facts, block.arrays
        if job.first is not None or job.pending:
            facts = facts | {"notes": job.take_notes()}
        if job.first is not None:
            # Frames come first: they are the content of an npy file.
            arrays, facts = arrays | job.first.arrays, job.first.facts | facts
            job.first = None
        with self._changed:
            job.unread += 1
        job.put(Answer(arrays, facts))

    def _report_divergence(self, job: Job, text: str) -> None:
        """Log and count a rollout that diverges, once."""
        if job.diverged is None:
            job.diverged = text
            self._metrics.diverged.labels(self.served.name).inc()
            _log.warning("model %s: %s", self.served.name, text)

    def _fail(self, job: Job, error: Exception) -> None:
        self._forget(job)
        job.stream = None
        if isinstance(error, FloatingPointError):
            self._report_divergence(job, str(error))
        if not isinstance(error, ValueError | FloatingPointError | Refusal):
            _log.error("model %s", self.served.name, exc_info=error)
        job.put(error)

    def _forget(self, job: Job) -> None:
        """It computes no more blocks; the finished ones count until the client leaves."""
        with self._changed:
            self._jobs = [other for other in self._jobs if other is not job]
