"""Many clients of one server, some of them hostile; every valid request must be answered.

    python -m tests.serve.hostile --clients 200 --minutes 5

starts a server with small models, reports requests by kind and status, latencies of valid ones and
the memory of the server, and exits with 1 if a valid request failed or memory did not come back.
Seven of ten clients are valid: they compare answers with those of an idle server, and repeat a
request that is answered 503 (busy) as its ``Retry-After`` says. The others choose from ``HOSTILE``.
"""

import argparse
import asyncio
import io
import random
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

from tests.helpers import PATIENCE
from tests.predictor.small import frames
from tests.serve.server_process import ServerProcess, save_small

TOKEN = "a token of tests"
NPY, JSON = "application/x-npy", "application/json"
VALID_SHARE = 0.7
BUSY = 503


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def head(
    route: str, length: object, kind: str = NPY, token: str = TOKEN, method: str = "POST"
) -> bytes:
    lines = (
        f"{method} {route} HTTP/1.1",
        "Host: localhost",
        f"Content-Type: {kind}",
        f"Content-Length: {length}",
        f"Authorization: Bearer {token}",
    )
    return "\r\n".join((*lines, "", "")).encode()


@dataclass
class Report:
    """What happened."""

    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Requests by kind and status; ``cut`` is a connection that the server closed."""
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Latencies of valid requests by kind, from the first attempt to the last byte; they include
    the time for which the clients, which share one thread, wait for each other."""
    failures: list[str] = field(default_factory=list)
    """Valid requests that were not answered as they should be."""
    memory: dict[str, float] = field(default_factory=dict)
    """Resident MB of the server: ``start``, ``peak`` and ``after``."""

    def text(self) -> str:
        lines = [f"  {k:<24} {s:>13} {n:>7}" for (k, s), n in sorted(self.statuses.items())]
        for kind, seconds in sorted(self.seconds.items()):
            quantiles = np.quantile(seconds, (0.5, 0.9, 0.99, 1.0))
            said = ", ".join(f"{value:.2f}" for value in quantiles)
            lines.append(f"  {kind:<20} 50, 90, 99, 100 % within {said} s of {len(seconds)}")
        lines += [f"  memory {name}: {value:.0f} MB" for name, value in self.memory.items()]
        return "\n".join([*lines, f"  {len(self.failures)} failures", *self.failures[:20]])


class Crowd:
    """Clients that ask until the time is over.

    Args:
        server: The one that they ask; it serves the model ``wake`` alone.
        side: Rows and columns of large fields that hostile clients send.
        seed: Of what each client chooses.
        valid: Kinds of valid requests.
    """

    def __init__(self, server: ServerProcess, side: int, seed: int, valid: Collection[str]) -> None:
        self.report, self._valid = Report(), list(valid)
        self._port, self._pid, self._seed = server.port, server.process.pid, seed
        self._large = npy(np.zeros((1, 1, 2, side, side), np.float32))
        self._fields = [frames(1, seed=n).numpy() for n in range(8)]
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": NPY}
        self._bodies = [npy(fields) for fields in self._fields]

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
        """Have so many clients ask for a while; adds to the report."""
        end = time.monotonic() + seconds
        valid = round(VALID_SHARE * clients)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self._port}",
            limits=limits,
            headers=headers,
            timeout=PATIENCE + 30,
        ) as client:
            asking = [self._be_valid(client, n, end) for n in range(valid)]
            hostile = [asyncio.create_task(self._be_hostile(n, end)) for n in range(valid, clients)]
            watching = asyncio.create_task(self._watch())
            await asyncio.gather(*asking)
            for task in (*hostile, watching):
                task.cancel()
            await asyncio.gather(*hostile, watching, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            self.report.memory["peak"] = max(self.report.memory.get("peak", 0.0), self.resident())
            before = time.monotonic()
            await asyncio.sleep(0.1)
            self.report.seconds["(clients' own lag)"].append(time.monotonic() - before - 0.1)

    async def _be_valid(self, client: httpx.AsyncClient, number: int, end: float) -> None:
        chooser = random.Random(f"{self._seed} valid {number}")
        while time.monotonic() < end:
            kind = chooser.choice(self._valid)
            started = time.monotonic()
            try:
                while (status := await VALID[kind](self, client, chooser)) == BUSY:
                    self.report.statuses[kind, str(BUSY)] += 1
                    await asyncio.sleep(1)
                self.report.statuses[kind, str(status)] += 1
                self.report.seconds[kind].append(time.monotonic() - started)
            except Exception as error:
                self.report.statuses[kind, type(error).__name__] += 1
                self.report.failures.append(f"{kind}: {type(error).__name__}: {error}"[:300])
            await asyncio.sleep(chooser.uniform(0, 0.2))

    async def _be_hostile(self, number: int, end: float) -> None:
        chooser = random.Random(f"{self._seed} hostile {number}")
        while time.monotonic() < end:
            kind = chooser.choice(list(HOSTILE))
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=65536)
                try:
                    status = await HOSTILE[kind](self, reader, writer, chooser)
                finally:
                    writer.transport.abort()
            except (OSError, asyncio.IncompleteReadError):
                status = "cut"
            except asyncio.CancelledError:
                self.report.statuses[f"hostile {kind}", "until the end"] += 1
                raise
            self.report.statuses[f"hostile {kind}", status] += 1
            await asyncio.sleep(chooser.uniform(0, 0.2))

    # Valid requests: each returns the status, or raises what is wrong with the answer.

    async def step(self, client: httpx.AsyncClient, chooser: random.Random) -> int:
        place = chooser.randrange(len(self._bodies))
        answer = await client.post(
            "/v1/step", content=self._bodies[place], headers={"content-type": NPY}
        )
        if _answered(answer):
            self._compare(np.load(io.BytesIO(answer.content)), place)
        return answer.status_code

    async def step_json(self, client: httpx.AsyncClient, chooser: random.Random) -> int:
        place = chooser.randrange(len(self._bodies))
        answer = await client.post("/v1/step", json={"fields": self._fields[place].tolist()})
        if _answered(answer):
            self._compare(np.array(answer.json()["prediction"]), place)
        return answer.status_code

    async def rollout(self, client: httpx.AsyncClient, chooser: random.Random) -> int:
        place = chooser.randrange(len(self._bodies))
        steps = chooser.randint(1, 8)
        answer = await client.post(
            f"/v1/rollout?steps={steps}",
            content=self._bodies[place],
            headers={"content-type": NPY},
        )
        if _answered(answer):
            data, blocks = answer.content, []
            while length := int.from_bytes(data[:4], "little"):
                blocks.append(np.load(io.BytesIO(data[4 : 4 + length])))
                data = data[4 + length :]
            assert data == bytes(4) and len(blocks) == steps, "the stream was cut"
            self._compare(blocks[0], place)
        return answer.status_code

    async def open(self, client: httpx.AsyncClient, chooser: random.Random) -> int:
        place = chooser.randrange(len(self._bodies))
        fields = self._fields[place][0]
        answer = await client.post(
            "/v1/open?name=waves.npy",
            content=npy(fields),
            headers={"content-type": NPY, "accept": NPY},
        )
        if _answered(answer):
            np.testing.assert_array_equal(np.load(io.BytesIO(answer.content)), fields)
        return answer.status_code

    async def open_csv(self, client: httpx.AsyncClient, chooser: random.Random) -> int:
        u, v = fields = self._fields[chooser.randrange(len(self._bodies))][0, 0]
        rows, columns = np.indices(u.shape)
        table = np.stack([0.3 * columns, 0.2 * rows, u, v], -1).reshape(-1, 4)
        lines = [",".join(f"{value:.7g}" for value in row) for row in table]
        answer = await client.post(
            "/v1/open?name=waves.csv",
            content="\n".join(["x,y,u,v", *lines]).encode(),
            headers={"content-type": "application/octet-stream", "accept": NPY},
        )
        if _answered(answer):
            np.testing.assert_allclose(
                np.load(io.BytesIO(answer.content))[0], fields, rtol=1e-5, atol=1e-5
            )
        return answer.status_code

    async def models(self, client: httpx.AsyncClient, chooser: random.Random) -> int:
        answer = await client.get("/models")
        if _answered(answer):
            assert [model["name"] for model in answer.json()] == ["wake"]
        return answer.status_code

    def _compare(self, found: np.ndarray, place: int) -> None:
        expected = self._expected[place]
        size = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * size)

    # Hostile ones: each returns the status or ``cut``; an OSError is a cut too.

    async def huge(self, reader, writer, chooser) -> str:
        body = self._fields[0].copy()
        body[0, 0, 0, 1, 2] = 3e38
        return await _exchange(reader, writer, "/v1/step", npy(body))

    async def nan(self, reader, writer, chooser) -> str:
        body = self._fields[0].copy()
        body[0, 0, 0, 1, 2] = np.nan
        return await _exchange(reader, writer, "/v1/rollout?steps=5", npy(body))

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

    async def slow_headers(self, reader, writer, chooser) -> str:
        for byte in head("/v1/step", 100):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(1)
        return "sent"

    async def silent(self, reader, writer, chooser) -> str:
        return await _status(reader)

    async def slow_sender(self, reader, writer, chooser) -> str:
        writer.write(head("/v1/step", len(self._large)) + self._large[: len(self._large) // 2])
        for byte in self._large[len(self._large) // 2 :][:60]:
            await asyncio.sleep(1)
            writer.write(bytes([byte]))
            await writer.drain()
        return await _status(reader)

    async def slow_reader(self, reader, writer, chooser) -> str:
        writer.write(head("/v1/rollout?steps=500", len(self._large)) + self._large)
        status = await _status(reader)
        for _ in range(120):
            await asyncio.sleep(0.5)
            if not await reader.read(1000):
                return "cut"
        return status

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

    async def leave_answer(self, reader, writer, chooser) -> str:
        body = chooser.choice([self._large, *self._bodies])
        writer.write(head("/v1/rollout?steps=500", len(body)) + body)
        await _status(reader)
        return "left"


VALID: Mapping[str, Callable[[Crowd, httpx.AsyncClient, random.Random], Awaitable[int]]] = {
    "step": Crowd.step,
    "step json": Crowd.step_json,
    "rollout": Crowd.rollout,
    "open": Crowd.open,
    "open csv": Crowd.open_csv,
    "models": Crowd.models,
}
HOSTILE: Mapping[str, Callable[..., Awaitable[str]]] = {
    "huge values": Crowd.huge,
    "NaN": Crowd.nan,
    "garbage": Crowd.garbage,
    "garbage body": Crowd.garbage_body,
    "oversized": Crowd.oversized,
    "wrong token": Crowd.wrong_token,
    "slow headers": Crowd.slow_headers,
    "silent": Crowd.silent,
    "slow sender": Crowd.slow_sender,
    "slow reader": Crowd.slow_reader,
    "no reader": Crowd.no_reader,
    "leave in body": Crowd.leave_body,
    "leave in queue": Crowd.leave_queue,
    "leave in answer": Crowd.leave_answer,
}
"""Kinds of hostile clients."""
EXPECTED = {"huge values": "422", "NaN": "422", "garbage body": "400", "wrong token": "401"}
"""Status of those kinds that have an answer; a server whose queue is full says 503 instead."""


def _answered(answer: httpx.Response) -> bool:
    """Whether to look at an answer; one that is not 200 nor 503 is a failure."""
    assert answer.status_code in (200, BUSY), f"{answer.status_code} {answer.text[:200]}"
    return answer.status_code == 200


async def _status(reader: asyncio.StreamReader) -> str:
    line = await reader.readline()
    found = re.match(rb"HTTP/1.1 (\d+)", line)
    return found[1].decode() if found else "cut"


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    route: str,
    body: bytes,
    kind: str = NPY,
) -> str:
    writer.write(head(route, len(body), kind) + body)
    return await _status(reader)


def run(
    server: ServerProcess,
    clients: int,
    seconds: float,
    *,
    side: int,
    seed: int,
    settle: float,
    valid: Collection[str] = tuple(VALID),
) -> Report:
    """A crowd against a server that is ready.

    Args:
        server: The server.
        clients: How many.
        seconds: For which they ask.
        side: Rows and columns of large fields.
        seed: Of what the clients do.
        settle: Seconds after which memory must be back at its level.
        valid: Kinds of valid requests.
    """
    crowd = Crowd(server, side, seed, valid)
    asyncio.run(crowd.ask(clients, min(10.0, seconds / 2)))  # so that all is allocated
    crowd.report = Report()
    time.sleep(2.5)  # memory is returned in the second after the last request
    memory = crowd.report.memory
    memory["start"] = crowd.resident()
    asyncio.run(crowd.ask(clients, seconds))
    end = time.monotonic() + settle
    memory["after"] = crowd.resident()
    while not is_back(memory) and time.monotonic() < end:
        time.sleep(0.2)
        memory["after"] = crowd.resident()
    return crowd.report


def is_back(memory: dict[str, float]) -> bool:
    """Whether memory is at its level: the allocator's own pages differ by some megabytes."""
    return memory["after"] <= 1.1 * memory["start"] + 20


def log_of(server: ServerProcess) -> str:
    """The last lines that the server logged; not about connections that it cut."""
    server.errors.seek(0)
    lines = [line for line in server.errors if "without completing response" not in line]
    return "".join(line for line in lines[-60:] if "Invalid HTTP request" not in line)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--side", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("options", nargs="*", help="of pibert serve, after --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = save_small(Path(folder, "wake"))
        server = ServerProcess([model, *arguments.options], PIBERT_TOKEN=TOKEN).wait_until_ready()
        try:
            report = run(
                server,
                arguments.clients,
                60 * arguments.minutes,
                side=arguments.side,
                seed=arguments.seed,
                settle=90,
            )
            print(f"{arguments.clients} clients for {arguments.minutes:g} minutes\n{report.text()}")
            metrics = server.client.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})
            print(*re.findall("^pibert_(?:memory|queue|rejected).*", metrics.text, re.M), sep="\n")
            print(log_of(server))
        finally:
            code = server.stop()
    sys.exit(bool(report.failures or code or not is_back(report.memory)))


if __name__ == "__main__":
    main()
