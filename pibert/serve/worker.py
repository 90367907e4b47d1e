"""The thread of a model: it takes requests in turns and joins their steps.

A job is one request. Every turn makes one block of frames for some jobs: steps and rollouts
together, up to so many samples; an explanation or a rollout with error bars by itself. A job whose
client does not read stands back after a few blocks, so that its memory stays small.
"""

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pibert.remarks import collecting_warnings
from pibert.serve.answers import Answer
from pibert.serve.asked import Asked
from pibert.serve.joint import Rolling
from pibert.serve.limits import Limits
from pibert.serve.metrics import Metrics
from pibert.serve.models import Served
from pibert.serve.refusal import Refusal, refusal_of

AHEAD = 4
"""Blocks of a job that may lie unread."""
_log = logging.getLogger("pibert.serve")
_NUMBER = re.compile(r"(?<![\w'])-?\d[\d.,]*(e[+-]?\d+)?")
_HINT = ("pass grid=pibert.Grid(...)", "send dx and dy, or a file that states them")
"""What the predictor advises in Python, and the same for those who call the server."""


class Job:
    """A request on its way; made in the event loop that waits for its blocks."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.blocks: asyncio.Queue[Answer | Exception] = asyncio.Queue()
        """What was made, at last the reason if it ends early."""
        self.unread = 0
        self.is_gone = False
        """Nobody waits for it any more."""
        self.rolling: Rolling | None = None
        self.alone: Iterator[Answer] | None = None
        self.first: Answer | None = None
        """What the first block says beside its frames, until it is handed out."""
        self.remarks: list[str] = []
        """What the next block is to tell the caller."""
        self._noted: set[str] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def joins(self) -> bool:
        return self.asked.route != "explain" and self.asked.level is None

    @property
    def has_begun(self) -> bool:
        return self.first is not None or self.rolling is not None or self.alone is not None

    def note(self, remarks: list[str]) -> None:
        """Have the next block tell what no block has told yet.

        The fields may be looked at again on the model's grid, where numbers differ a little:
        remarks that are the same but for numbers count as one. Digits within a name count.
        """
        for remark in remarks:
            pattern = _NUMBER.sub("#", remark)
            if pattern not in self._noted:
                self._noted.add(pattern)
                self.remarks.append(remark.replace(*_HINT))

    def hand_out(self, item: Answer | Exception) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self.blocks.put_nowait, item)


class Worker(threading.Thread):
    """Runs the jobs of one model, until it is stopped and has none left."""

    def __init__(self, served: Served, limits: Limits, metrics: Metrics) -> None:
        super().__init__(name=f"model {served.name}", daemon=True)
        self.served, self._limits, self._metrics = served, limits, metrics
        self._jobs: list[Job] = []
        self._changed = threading.Condition()
        self._stops = False
        self.is_warm = threading.Event()

    def __len__(self) -> int:
        return len(self._jobs)

    def submit(self, job: Job) -> None:
        """Take a job, or refuse it because there are too many."""
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
        """Nobody waits for the job any more."""
        with self._changed:
            job.is_gone = True
            self._changed.notify()

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
        try:
            predictor.step(np.ascontiguousarray(np.broadcast_to(mean, shape)))
        except Exception:
            _log.exception("the first step of model %s failed", self.served.name)
        self.is_warm.set()

    def _next_turn(self) -> list[Job]:
        """The jobs whose turn it is; empty at the end."""
        with self._changed:
            while not (turn := self._ready()):
                if self._stops and not self._jobs:
                    return []
                self._changed.wait()
            if not turn[0].has_begun and turn[0].joins:
                until = time.monotonic() + self._limits.wait
                while self._samples(turn) < self._limits.batch:
                    if not self._changed.wait(until - time.monotonic()):
                        break
                    turn = self._ready() or turn
            # Who had a turn stands last in the next one.
            self._jobs = [job for job in self._jobs if job not in turn] + turn
            return turn

    def _ready(self) -> list[Job]:
        """The first job that can go on, and those that can join it."""
        self._jobs = [job for job in self._jobs if not job.is_gone]
        able = [job for job in self._jobs if job.unread < AHEAD]
        if not able or not able[0].joins:
            return able[:1]
        chosen, samples = [able[0]], able[0].asked.samples
        for job in able[1:]:
            if job.joins and samples + job.asked.samples <= self._limits.batch:
                chosen.append(job)
                samples += job.asked.samples
        return chosen

    @staticmethod
    def _samples(jobs: list[Job]) -> int:
        return sum(job.asked.samples for job in jobs)

    def _carry_out(self, turn: list[Job]) -> None:
        begun = [job for job in turn if job.has_begun or self._begins(job)]
        if begun and begun[0].alone is not None:
            self._go_on_alone(begun[0])
        elif begun:
            self._go_on_together(begun)

    def _begins(self, job: Job) -> bool:
        """Check what a job asks; one that is refused is finished."""
        asked, served = job.asked, self.served
        steps = asked.steps or served.predictor.horizon
        try:
            with collecting_warnings() as remarks:
                served.check(asked)
                first = Answer({})
                if asked.route == "explain":
                    first = served.explain(asked)
                    job.alone = iter([Answer({})])
                elif asked.level is not None:
                    job.alone = served.bars(asked, steps)
                else:
                    given = served.predictor.take(replace(asked, steps=steps))
                    job.rolling = Rolling(given, steps)
                    if asked.consistency:
                        first.arrays["consistency"] = served.predictor.judge(given)
            job.first = Answer(first.arrays, served.facts() | first.facts)
            job.note(remarks)
        except Exception as error:
            self._finish(job, error)
            return False
        return True

    def _go_on_alone(self, job: Job) -> None:
        assert job.alone is not None
        try:
            with collecting_warnings() as remarks:
                block = next(job.alone)
            self._hand_out(job, block, remarks)
        except StopIteration:
            self._forget(job)
        except Exception as error:
            self._finish(job, error)

    def _go_on_together(self, jobs: list[Job]) -> None:
        rollouts = [job.rolling for job in jobs if job.rolling is not None]
        self._metrics.observe_batch(self.served.name, self._samples(jobs))
        found = self.served.predictor.advance(rollouts)
        for job, rolling, block in zip(jobs, rollouts, found, strict=True):
            if isinstance(block, Exception):
                self._finish(job, block)
                continue
            if rolling.done >= rolling.steps:
                self._forget(job)
            self._hand_out(job, Answer({"prediction": block.frames}), block.remarks)

    def _hand_out(self, job: Job, block: Answer, remarks: list[str]) -> None:
        job.note(remarks)
        facts, arrays = block.facts, block.arrays
        if job.first is not None or job.remarks:
            facts = facts | {"remarks": job.remarks}
            job.remarks = []
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
        with self._changed:
            self._jobs = [other for other in self._jobs if other is not job]
