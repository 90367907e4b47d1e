"""Limits, tokens and clients that misbehave."""

import asyncio
import json
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from typer.testing import CliRunner

from pibert.cli import app
from tests.helpers import PATIENCE, wait_until
from tests.inference.small import frames
from tests.serve import hostile
from tests.serve.conftest import TOKEN
from tests.serve.server_process import ServerProcess

AUTHORISED = {"authorization": f"Bearer {TOKEN}"}
NPY = {"content-type": "application/x-npy"}


def talk(port: int, sent: bytes) -> bytes:
    """Send bytes over a socket of our own, and read until the server closes it."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        connection.sendall(sent)
        found = b""
        while part := connection.recv(65536):
            found += part
    return found


def head(length: object, kind: str = "application/x-npy", *more: str) -> bytes:
    return hostile.head("/v1/step?model=wake", length, kind, TOKEN, *more)


def test_ten_gigabytes_are_refused_before_they_are_sent(alive: ServerProcess):
    answer = talk(alive.port, head(10_000_000_000))
    assert answer.startswith(b"HTTP/1.1 413") and b'"code":"too_large"' in answer


def test_a_body_without_a_stated_length_is_counted(strict: ServerProcess):
    def parts() -> Any:
        for _ in range(100):
            yield bytes(10_000)

    headers = AUTHORISED | NPY
    answer = strict.client.post("/v1/step", content=parts(), headers=headers)
    assert answer.status_code == 413


def test_a_half_sent_body_does_no_harm(alive: ServerProcess):
    with socket.create_connection(("127.0.0.1", alive.port), PATIENCE) as connection:
        connection.sendall(head(5000) + b"\x93NUMPY" + bytes(100))
        connection.shutdown(socket.SHUT_WR)
        assert b"200" not in connection.recv(100)


def test_a_body_that_does_not_come_runs_out_of_time(models: Path, monkeypatch: pytest.MonkeyPatch):
    """Without a socket: a server with so short a time would refuse sound requests under load."""
    request = {
        "type": "http",
        "method": "POST",
        "path": "/v1/step",
        "query_string": b"model=wake",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/x-npy")],
    }
    answered: list[dict[str, Any]] = []

    async def receive() -> None:
        await asyncio.Event().wait()

    async def send(message: dict[str, Any]) -> None:
        answered.append(message)

    def answer_one(server: uvicorn.Server, sockets: Any) -> None:
        gate: Any = server.config.app
        asyncio.run(gate(request, receive, send))

    monkeypatch.setattr(uvicorn.Server, "run", answer_one)
    arguments = ["serve", str(models / "wake"), "--port", "0", "--timeout", "0.2"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert answered[0]["status"] == 504 and b'"code":"timeout"' in answered[1]["body"]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff\xfe nonsense\r\n\r\n",
        head("-5"),
        head("9" * 5000),
        head(5, "application/x-npy", "Transfer-Encoding: chunked") + b"zz\r\n",
    ],
)
def test_invalid_http_is_refused(alive: ServerProcess, sent: bytes):
    assert not talk(alive.port, sent).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/x-npy", b"\x93NUMPY\x01\x00\x05\x00((((", 400),
        ("application/vnd.safetensors", struct.pack("<Q", 1 << 60) + b"{}", 400),
        ("application/json", b"[1, 2", 400),
        ("application/json", b'{"fields": ' + b"[" * 900 + b"]" * 900 + b"}", 422),
        ("text/plain", b"{}", 415),
    ],
)
def test_malformed_bodies_are_refused(alive: ServerProcess, kind: str, body: bytes, status: int):
    params = {"model": "wake"} if kind.endswith("npy") else {}
    answer = alive.client.post(
        "/v1/step", content=body, headers={"content-type": kind}, params=params
    )
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("header", [None, "Bearer wrong", f"Basic {TOKEN}", "\xe9"])
def test_without_the_token_only_signs_of_life_are_given(strict: ServerProcess, header: str | None):
    headers = {} if header is None else {b"authorization": header.encode("latin-1")}
    with httpx.Client(base_url=f"http://127.0.0.1:{strict.port}", timeout=PATIENCE) as client:
        for route in ("/models", "/metrics", "/openapi.json", "/v1/samples"):
            answer = client.get(route, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "unauthorized"
        assert client.post("/v1/step", headers=headers).status_code == 401
        assert client.get("/health", headers=headers).status_code == 200
        assert client.get("/ready", headers=headers).status_code == 200
    assert strict.client.get("/models", headers=AUTHORISED).status_code == 200


def test_another_name_of_the_server_is_refused(alive: ServerProcess):
    answer = alive.client.get("/models", headers={"host": "evil.example:80"})
    assert answer.status_code == 421
    assert alive.client.get("/models", headers={"host": "localhost:1"}).status_code == 200


@pytest.mark.parametrize(
    ("route", "change", "words"),
    [
        ("step", {"fields": np.zeros((5, 1, 2, 2, 2)).tolist()}, "at most 4 samples"),
        ("rollout", {"steps": 21}, "1 to 20, found 21"),
        ("rollout", {"steps": 2.0}, "found 2.0"),
        ("rollout", {}, "1 to 20"),
    ],
)
def test_too_much_is_refused(strict: ServerProcess, route: str, change: dict[str, Any], words: str):
    body = {"fields": frames(1).tolist()} | change
    answer = strict.client.post(f"/v1/{route}", json=body, headers=AUTHORISED)
    assert answer.status_code == 422 and words in answer.json()["error"]["message"]


def test_a_full_queue_refuses_and_recovers(strict: ServerProcess):
    body = {"fields": frames(4).tolist(), "steps": 20}
    answers: list[httpx.Response] = []

    def ask(_: int) -> httpx.Response:
        address = f"http://127.0.0.1:{strict.port}/v1/rollout"
        return httpx.post(address, json=body, headers=AUTHORISED, timeout=PATIENCE)

    def was_full() -> bool:
        with ThreadPoolExecutor(10) as threads:
            answers.extend(threads.map(ask, range(10)))
        return any(answer.status_code == 503 for answer in answers)

    wait_until(was_full)  # once, unless the machine is too busy for requests to meet
    refused = [answer for answer in answers if answer.status_code == 503]
    assert refused and {answer.status_code for answer in answers} == {200, 503}
    assert refused[0].headers["retry-after"] == "1"
    assert refused[0].json()["error"]["code"] == "busy"
    assert (
        'pibert_rejected_total{code="busy"}'
        in strict.client.get("/metrics", headers=AUTHORISED).text
    )
    assert ask(0).status_code == 200


def test_a_rollout_that_nobody_reads_does_not_hold_the_queue(alive: ServerProcess):
    body = json.dumps({"model": "wake", "fields": frames(1).tolist(), "steps": 1000}).encode()
    start = head(len(body), "application/json").replace(b"/v1/step?model=wake", b"/v1/rollout")
    with socket.create_connection(("127.0.0.1", alive.port), PATIENCE) as connection:
        connection.sendall(start + body)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
    empty = 'pibert_queue_requests{model="wake"} 0.0'
    wait_until(lambda: empty in alive.client.get("/metrics").text)
