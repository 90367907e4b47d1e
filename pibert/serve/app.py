"""The routes of the server (docs/serving.md)."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, StreamingResponse
from starlette.exceptions import HTTPException

from pibert import __version__
from pibert.serve import schemas
from pibert.serve.answers import (
    JSON,
    KINDS,
    NPY,
    SAFETENSORS,
    STREAMS,
    Answer,
    as_json,
    choose_kind,
    encode,
    frame_block,
    frame_end,
    frame_error,
)
from pibert.serve.gate import REFUSED, Metrics, read_body, response_of
from pibert.serve.limits import FAULT, Budget, Hold, Limits, Refusal
from pibert.serve.opened import open_file, read_hints
from pibert.serve.recordings import Recordings, frames_size, select_frames, take_frames
from pibert.serve.schemas import OpenQuery, PredictRequest, problem_of, read_request
from pibert.serve.worker import Job, Worker

PAGE = Path(__file__).parent / "page"
THREADS = 4
"""Threads that read and write bodies."""
READING = 20.0
"""Seconds that each step of opening a file may take: to recognise, open and read it."""
DECODED = {JSON: 24, NPY: 2, SAFETENSORS: 2}
"""Bytes that reading takes per byte of a body; empty objects in JSON take most."""
READ, UNPACKED = 3, 32
"""Memory of reading and encoding frames over their size; size of frames over that of their file."""

Result = TypeVar("Result")


class Service:
    """The routes.

    Args:
        workers: Of the models, by name.
        recordings: Offered by the server.
        limits: Of a request.
        budget: Of all requests together; the workers have the same.
        metrics: Of the server.
        is_stopping: Whether the server stops.
    """

    def __init__(
        self,
        workers: Mapping[str, Worker],
        recordings: Recordings,
        limits: Limits,
        budget: Budget,
        metrics: Metrics,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._workers, self._recordings, self._budget = workers, recordings, budget
        self._limits, self._metrics, self._is_stopping = limits, metrics, is_stopping
        self._bodies = Budget(limits.bodies)
        self._opening = asyncio.Semaphore(THREADS // 2)  # leaves threads for other requests
        self._threads = ThreadPoolExecutor(THREADS, "bodies")
        self._models = as_json([worker.served.describe() for worker in workers.values()])
        self._samples = as_json(recordings.describe())
        for name, worker in workers.items():
            metrics.queues.labels(name).set_function(worker.__len__)
        metrics.memory.set_function(lambda: self._bodies.used + budget.used)

    async def health(self) -> Response:
        return _json({"status": "alive"})

    async def ready(self) -> Response:
        if self._is_stopping():
            raise Refusal("stopping", "the server is stopping")
        if not all(worker.is_warm.is_set() for worker in self._workers.values()):
            raise Refusal("busy", "the models make their first step")
        return _json({"status": "ready"})

    async def metrics(self) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def models(self) -> Response:
        return Response(self._models, media_type=JSON)

    async def samples(self) -> Response:
        return Response(self._samples, media_type=JSON)

    async def sample(
        self,
        request: Request,
        id: str,  # noqa: A002
        start: int = Query(0, ge=0),
        stop: int | None = Query(None, ge=1),
    ) -> Response:
        kind = choose_kind(request.headers.get("accept"), JSON, KINDS, streams=False)
        trajectory, notes = self._recordings.find(id)
        chosen = select_frames(trajectory, start, stop, self._limits.unpacked)
        async with contextlib.AsyncExitStack() as stack:
            size = frames_size(trajectory, len(chosen))
            hold = await stack.enter_async_context(self._budget.hold(READ * size))
            answer = await self._in_thread(take_frames, trajectory, chosen, notes)
            return await self._answer(answer, kind, hold, stack)

    async def open(self, request: Request, query: Annotated[OpenQuery, Query()]) -> Response:
        kind = choose_kind(request.headers.get("accept"), SAFETENSORS, KINDS, streams=False)
        _content_type(request, (*KINDS, "application/octet-stream"))
        hints = read_hints(query.model_dump(exclude={"name", "trajectory"}))
        async with contextlib.AsyncExitStack() as stack:
            async with read_body(request, self._limits.body, self._bodies) as body:
                size = min(self._limits.unpacked, UNPACKED * len(body))
                hold = await stack.enter_async_context(self._budget.hold(READ * size))
                async with self._opening:
                    answer = await self._in_thread(
                        functools.partial(open_file, name=query.name, hints=hints),
                        body,
                        query.trajectory,
                        self._limits.unpacked,
                        READING,
                        self._recordings.units,
                    )
            return await self._answer(answer, kind, hold, stack)

    async def step(self, request: Request) -> Response:
        return await self._once(request, "step", KINDS)

    async def explain(self, request: Request) -> Response:
        return await self._once(request, "explain", (JSON, SAFETENSORS))

    async def rollout(self, request: Request) -> Response:
        given = _content_type(request, KINDS)
        kind = choose_kind(request.headers.get("accept"), given, KINDS, streams=True)
        async with contextlib.AsyncExitStack() as stack:
            job, worker, block = await stack.enter_async_context(
                self._begun(request, "rollout", given)
            )
            data = await self._frame(block, 0, kind)
            blocks = self._stream(job, worker, _frames(block), data, kind)
            return _Stream(blocks, STREAMS[kind], stack.pop_all())

    async def _frame(self, block: Answer, start: int, kind: str) -> list[bytes]:
        numbered = Answer(block.arrays, {"start": start} | block.facts)
        return list(await self._in_thread(frame_block, numbered, kind))

    async def _stream(
        self, job: Job, worker: Worker, done: int, data: list[bytes], kind: str
    ) -> AsyncIterator[bytes]:
        """The bytes of a rollout, whose first ``done`` frames are in ``data``."""
        try:
            while True:
                while data:  # each is freed as soon as it was sent
                    yield data.pop(0)
                if done >= job.steps:
                    break
                block = await worker.next_block(job)
                data = await self._frame(block, done, kind)
                done += _frames(block)
                del block
            yield frame_end(done, kind, job.diverged)
        except Refusal as refusal:
            yield frame_error(refusal, kind)

    async def _once(self, request: Request, route: str, kinds: tuple[str, ...]) -> Response:
        given = _content_type(request, KINDS)
        default = given if given in kinds else JSON
        kind = choose_kind(request.headers.get("accept"), default, kinds, streams=False)
        async with contextlib.AsyncExitStack() as stack:
            job, _, block = await stack.enter_async_context(self._begun(request, route, given))
            assert job.hold is not None
            return await self._answer(block, kind, job.hold, stack)

    @contextlib.asynccontextmanager
    async def _begun(
        self, request: Request, route: str, kind: str
    ) -> AsyncIterator[tuple[Job, Worker, Answer]]:
        """The job of a request, its worker and its first block."""
        most = self._limits.json_body if kind == JSON else self._limits.body
        async with contextlib.AsyncExitStack() as stack:
            # A job that has started does not need the body any more.
            async with read_body(request, most, self._bodies) as body:
                query = request.query_params.multi_items()
                async with self._budget.hold(DECODED[kind] * len(body)):
                    wanted = await self._in_thread(
                        read_request, route, kind, body, query, self._limits
                    )
                worker, job = self._find(wanted), Job(wanted)
                del body, wanted
                stack.callback(worker.leave, job)
                worker.submit(job)
                first = await worker.next_block(job)
            yield job, worker, first

    def _find(self, wanted: PredictRequest) -> Worker:
        names = list(self._workers)
        if wanted.model is None and len(names) > 1:
            raise Refusal("invalid", f"expected the name of a model, one of: {', '.join(names)}")
        name = names[0] if wanted.model is None else wanted.model
        if name not in self._workers:
            raise Refusal("not_found", f"there is no model {name!r:.100}; see /models")
        return self._workers[name]

    async def index(self) -> Response:
        return await self.page("index.html")

    async def page(self, file: str) -> Response:
        # Looked up in a list of files, never joined to a path.
        files = {path.name: path for path in PAGE.iterdir() if path.is_file()}
        if file not in files:
            raise Refusal("not_found", "there is nothing at this address")
        return FileResponse(files[file])

    async def _answer(
        self, answer: Answer, kind: str, hold: Hold, stack: contextlib.AsyncExitStack
    ) -> Response:
        """An answer whose bytes count until they are sent, when ``stack`` is left."""
        data = await self._in_thread(encode, answer, kind)
        hold.resize(len(data))

        async def whole() -> AsyncIterator[bytes]:
            yield data

        return _Stream(whole(), kind, stack.pop_all(), len(data))

    async def _in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function in a thread, so that other requests are answered meanwhile.

        A thread cannot be stopped: its memory is in use until it ends, even if nobody waits.
        """
        running = self._threads.submit(function, *arguments)
        result = asyncio.wrap_future(running)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            if not running.cancel():
                await asyncio.gather(result, return_exceptions=True)
            raise


class _Stream(StreamingResponse):
    """A stream that releases what it holds, even if nobody reads its first byte."""

    def __init__(
        self,
        blocks: AsyncIterator[bytes],
        media_type: str,
        held: contextlib.AsyncExitStack,
        length: int | None = None,
    ) -> None:
        headers = None if length is None else {"content-length": str(length)}
        super().__init__(blocks, headers=headers, media_type=media_type)
        self._held = held

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with self._held:
            await super().__call__(scope, receive, send)


def make_app(service: Service) -> FastAPI:
    """The web application, with its OpenAPI description."""
    app = FastAPI(
        title="PIBERT",
        version=__version__,
        summary="Predictions of flow fields.",
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=HANDLERS,
    )
    gets = (
        ("/health", service.health, schemas.ALIVE),
        ("/ready", service.ready, schemas.READY),
        ("/metrics", service.metrics, schemas.METRICS),
        ("/models", service.models, schemas.MODELS),
        ("/v1/samples", service.samples, schemas.SAMPLES),
        ("/v1/samples/{id}", service.sample, schemas.SAMPLE),
    )
    posts = (
        ("/v1/step", service.step, schemas.STEP),
        ("/v1/rollout", service.rollout, schemas.ROLLOUT),
        ("/v1/explain", service.explain, schemas.EXPLAIN),
        ("/v1/open", service.open, schemas.OPEN),
    )
    for method, routes in (("GET", gets), ("POST", posts)):
        for path, function, description in routes:
            app.add_api_route(
                path, function, methods=[method], response_class=Response, **description
            )
    app.add_api_route("/", service.index, include_in_schema=False)
    app.add_api_route("/{file}", service.page, include_in_schema=False)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = Refusal("invalid", problem_of(error.errors()[0], 1))
    elif not isinstance(error, Refusal):
        error = Refusal("internal", FAULT)
    request.scope[REFUSED] = error.code
    return response_of(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "not_allowed"}.get(error.status_code, "malformed")
    response = await _refused(request, Refusal(code, f"{request.url.path:.200}: {error.detail}"))
    response.headers.update(error.headers or {})
    return response


HANDLERS: dict[Any, Any] = {
    Refusal: _refused,
    RequestValidationError: _refused,
    HTTPException: _http_error,
    Exception: _refused,
}


def _frames(block: Answer) -> int:
    return int(block.arrays["prediction"].shape[-4])


def _content_type(request: Request, allowed: tuple[str, ...]) -> str:
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found not in allowed:
        raise Refusal(
            "unsupported",
            f"expected a header Content-Type with {' or '.join(allowed)}, found "
            f"{repr(found[:80]) if found else 'none'}",
        )
    return found


def _json(value: Any) -> Response:
    return Response(as_json(value), media_type=JSON)
