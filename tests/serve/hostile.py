"""Many clients of one server, some of them hostile; every valid request must be answered.

Seven of ten clients are valid: they compare answers with those of an idle server, and repeat a
request that is answered 503 (busy) as its ``Retry-After`` says. The others choose from ``HOSTILE``.
"""

import asyncio
import io
import random
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.helpers import PATIENCE
from tests.inference.small import frames
from tests.serve.files import as_npy, blocks_of
from tests.serve.server_process import ServerProcess

TOKEN = "a token of tests"
NPY, JSON = "application/x-npy", "application/json"
VALID_SHARE = 0.7
BUSY = 503


def head(route: str, length: object, kind: str = NPY, token: str = TOKEN, *more: str) -> bytes:
    lines = (
        f"POST {route} HTTP/1.1",
        "Host: localhost",
        f"Content-Type: {kind}",
        f"Content-Length: {length}",
        f"Authorization: Bearer {token}",
        *more,
    )
    return "\r\n".join((*lines, "", "")).encode()


class Crowd:
    """Clients that ask a server of the model ``wake``; hostile ones send ``side`` x ``side``."""

    def __init__(self, server: ServerProcess, side: int, seed: int) -> None:
        self.statuses: Counter[tuple[str, str]] = Counter()
        self.failures: list[str] = []
        self._port, self._pid, self._seed = server.port, server.process.pid, seed
        self._large = as_npy(np.zeros((1, 1, 2, side, side), np.float32))
        self._fields = [frames(1, seed=n).numpy() for n in range(8)]
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": NPY}
        self._bodies = [as_npy(fields) for fields in self._fields]

        def ask(body: bytes) -> np.ndarray:
            answer = server.client.post("/v1/step", content=body, headers=headers)
            return np.load(io.BytesIO(answer.raise_for_status().content))

        self._expected = [ask(body) for body in self._bodies]

    def resident(self) -> float:
        """MB that the server process holds."""
        text = Path(f"/proc/{self._pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found is not None
        return int(found[1]) / 1000

    async def ask(self, clients: int, seconds: float) -> None:
        """Send requests from many clients; count statuses, and failures of valid requests."""
        end = time.monotonic() + seconds
        valid = round(VALID_SHARE * clients)
        options: dict[str, Any] = {
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=None),
            "headers": {"authorization": f"Bearer {TOKEN}"},
            "timeout": PATIENCE + 30,
        }
        address = f"http://127.0.0.1:{self._port}"
        async with httpx.AsyncClient(base_url=address, **options) as client:
            asking = [self._be_valid(client, n, end) for n in range(valid)]
            hostile = [asyncio.create_task(self._be_hostile(n, end)) for n in range(valid, clients)]
            await asyncio.gather(*asking)
            for task in hostile:
                task.cancel()
            await asyncio.gather(*hostile, return_exceptions=True)

    async def _be_valid(self, client: httpx.AsyncClient, number: int, end: float) -> None:
        chooser = random.Random(f"{self._seed} valid {number}")
        while time.monotonic() < end:
            kind = chooser.choice(VALID)
            try:
                while (status := await getattr(self, kind)(client, chooser)) == BUSY:
                    await asyncio.sleep(1)
                self.statuses[kind, str(status)] += 1
            except Exception as error:
                self.failures.append(f"{kind}: {type(error).__name__}: {error}"[:300])
            await asyncio.sleep(chooser.uniform(0, 0.2))

    async def _be_hostile(self, number: int, end: float) -> None:
        chooser = random.Random(f"{self._seed} hostile {number}")
        while time.monotonic() < end:
            kind = chooser.choice(HOSTILE)
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=65536)
                try:
                    status = await getattr(self, kind)(reader, writer, chooser)
                finally:
                    writer.transport.abort()
            except (OSError, asyncio.IncompleteReadError):
                status = "cut"
            except asyncio.CancelledError:
                self.statuses[kind, "until the end"] += 1
                raise
            self.statuses[kind, status] += 1
            await asyncio.sleep(chooser.uniform(0, 0.2))

    # Valid requests: each returns the status, or raises what is wrong with the answer.

    async def step(self, client: httpx.AsyncClient, chooser: random.Random) -> int:
        place = chooser.randrange(len(self._bodies))
        answer = await _post(client, "/v1/step", self._bodies[place])
        if _answered(answer):
            self._compare(np.load(io.BytesIO(answer.content)), place)
        return answer.status_code

    async def rollout(self, client: httpx.AsyncClient, chooser: random.Random) -> int:
        place, steps = chooser.randrange(len(self._bodies)), chooser.randint(1, 8)
        answer = await _post(client, f"/v1/rollout?steps={steps}", self._bodies[place])
        if _answered(answer):
            blocks = list(blocks_of(answer.content))
            assert len(blocks) == steps, "the stream was cut"
            self._compare(np.load(io.BytesIO(blocks[0])), place)
        return answer.status_code

    async def open(self, client: httpx.AsyncClient, chooser: random.Random) -> int:
        fields = chooser.choice(self._fields)[0]
        answer = await _post(client, "/v1/open?name=waves.npy", as_npy(fields))
        if _answered(answer):
            np.testing.assert_array_equal(np.load(io.BytesIO(answer.content)), fields)
        return answer.status_code

    def _compare(self, found: np.ndarray, place: int) -> None:
        expected = self._expected[place]
        size = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * size)

    # Hostile ones: each returns the status or ``cut``; an OSError is a cut too.

    async def spoilt(self, reader, writer, chooser) -> str:
        body = self._fields[0].copy()
        body[0, 0, 0, 1, 2] = chooser.choice([3e38, np.nan])
        return await _exchange(reader, writer, "/v1/rollout?steps=5", as_npy(body))

    async def garbage(self, reader, writer, chooser) -> str:
        writer.write(chooser.randbytes(chooser.randint(1, 3000)) + b"\r\n\r\n")
        return await _status(reader)

    async def garbage_body(self, reader, writer, chooser) -> str:
        body = chooser.choice([b"\x93NUMPY" + chooser.randbytes(300), b"[" * 50_000, b'{"a":'])
        kind = NPY if body.startswith(b"\x93") else JSON
        return await _exchange(reader, writer, "/v1/step", body, kind)

    async def oversized(self, reader, writer, chooser) -> str:
        writer.write(head("/v1/step", 10**10) + bytes(100_000))
        return await _status(reader)

    async def wrong_token(self, reader, writer, chooser) -> str:
        writer.write(head("/v1/step", len(self._bodies[0]), token="another") + self._bodies[0])
        return await _status(reader)

    async def slow_sender(self, reader, writer, chooser) -> str:
        writer.write(head("/v1/step", len(self._large)) + self._large[: len(self._large) // 2])
        for byte in self._large[len(self._large) // 2 :][:60]:
            await asyncio.sleep(1)
            writer.write(bytes([byte]))
            await writer.drain()
        return await _status(reader)

    async def no_reader(self, reader, writer, chooser) -> str:
        route = chooser.choice(["/v1/step", "/v1/rollout?steps=500"])
        writer.write(head(route, len(self._large)) + self._large)
        await writer.drain()
        writer.transport.pause_reading()
        await asyncio.sleep(60)
        return "held"

    async def leave_body(self, reader, writer, chooser) -> str:
        part = chooser.randint(0, len(self._large) - 1)
        writer.write(head("/v1/step", len(self._large)) + self._large[:part])
        await writer.drain()
        return "left"

    async def leave_queue(self, reader, writer, chooser) -> str:
        body = chooser.choice([self._large, *self._bodies])
        writer.write(head("/v1/rollout?steps=500", len(body)) + body)
        await writer.drain()
        return "left"


VALID = ("step", "rollout", "open")
HOSTILE = (
    *("spoilt", "garbage", "garbage_body", "oversized", "wrong_token"),
    *("slow_sender", "no_reader", "leave_body", "leave_queue"),
)
"""Kinds of clients."""
EXPECTED = {"spoilt": "422", "garbage_body": "400", "wrong_token": "401"}
"""Status of those kinds that have an answer; a server whose queue is full says 503 instead."""


def _answered(answer: httpx.Response) -> bool:
    """Whether to look at an answer; one that is not 200 nor 503 is a failure."""
    assert answer.status_code in (200, BUSY), f"{answer.status_code} {answer.text[:200]}"
    return answer.status_code == 200


async def _post(
    client: httpx.AsyncClient, route: str, body: bytes, kind: str = NPY
) -> httpx.Response:
    return await client.post(route, content=body, headers={"content-type": kind, "accept": NPY})


async def _status(reader: asyncio.StreamReader) -> str:
    line = await reader.readline()
    found = re.match(rb"HTTP/1.1 (\d+)", line)
    return found[1].decode() if found else "cut"


async def _exchange(reader, writer, route: str, body: bytes, kind: str = NPY) -> str:
    writer.write(head(route, len(body), kind) + body)
    return await _status(reader)


def run(
    server: ServerProcess, clients: int, seconds: float, *, side: int, seed: int, settle: float
) -> tuple[Crowd, bool]:
    """Send requests for ``seconds``; return whether memory is back ``settle`` seconds later."""
    crowd = Crowd(server, side, seed)
    asyncio.run(crowd.ask(clients, min(10.0, seconds / 2)))  # so that all is allocated
    crowd.statuses.clear()
    crowd.failures.clear()
    time.sleep(2.5)  # memory is returned in the second after the last request
    # The allocator's own pages differ by some megabytes.
    level = 1.1 * crowd.resident() + 20
    asyncio.run(crowd.ask(clients, seconds))
    end = time.monotonic() + settle
    while not (is_back := crowd.resident() <= level) and time.monotonic() < end:
        time.sleep(0.2)
    return crowd, is_back


def log_of(server: ServerProcess) -> str:
    """The last lines that the server logged; not about connections that it cut."""
    server.errors.seek(0)
    lines = [line for line in server.errors if "without completing response" not in line]
    return "".join(line for line in lines[-60:] if "Invalid HTTP request" not in line)
