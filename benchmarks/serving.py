"""Throughput of a server that batches requests, and its stability under many clients.

Servers run as ``pibert serve`` in processes of their own, on a fresh PIBERT of two channels on a
64 x 64 grid; clients are processes too, with some threads each, that send npy bodies over
connections they keep. Two servers, one that joins requests and one that does not, get the same
clients in turns.

    python benchmarks/serving.py [--clients 16] [--seconds 5] [--rounds 3]
    python benchmarks/serving.py --minutes 1 --clients 100

The second form keeps one server busy with steps and rollouts, and tells errors and memory.
"""

import argparse
import atexit
import collections
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROCESSES = 8
"""Of clients, at most; they have threads for the rest."""


def make_model(folder: Path, preset: str) -> Path:
    """A model with random weights, and the body of a request for it."""
    import numpy as np
    import torch

    from pibert.fields import FieldSpec, Grid, Normalizer
    from pibert.inference import save_model
    from pibert.models import build_model

    torch.manual_seed(0)
    spec = FieldSpec(
        units=("m/s", "m/s"),
        dt=0.01,
        grid=Grid((64, 64), dx=0.002, dy=0.002),
        family="incompressible",
    )
    model = build_model("pibert", preset=preset, spec=spec)
    save_model(
        folder / "wake", model, Normalizer((1.0, 0.0), (0.5, 0.3)), trained={"forward": True}
    )
    np.save(
        folder / "fields.npy", np.random.default_rng(0).normal(size=(1, 1, 2, 64, 64)).astype("f4")
    )
    return folder / "wake"


class Server:
    """``pibert serve`` as a process."""

    def __init__(self, model: Path, *options: str) -> None:
        command = [sys.executable, "-m", "pibert", "serve", str(model), "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        atexit.register(self.process.kill)  # if it was not stopped
        assert self.process.stdout is not None
        found = re.search(r":(\d+)/", self.process.stdout.readline())
        assert found is not None
        self.port = int(found[1])
        while self._status("/ready") != 200:
            time.sleep(0.1)

    def _status(self, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", path)
        return connection.getresponse().status

    def mean_batch(self) -> float:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        found = dict(re.findall(r"pibert_batch_samples_(sum|count)\S* (\S+)", text))
        return float(found["sum"]) / float(found["count"])

    def memory(self) -> float:
        """MB that the process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1000

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def load(port: int, body: Path, clients: int, seconds: float, mixed: bool) -> collections.Counter:
    """Return answers to this many clients: counts by status, or by the name of an error."""
    processes = min(PROCESSES, clients)
    shares = [clients // processes + (n < clients % processes) for n in range(processes)]
    command = [sys.executable, __file__, "--as-client", str(port), str(body), str(seconds)]
    started = [
        subprocess.Popen(
            [*command, str(share), *(["mixed"] if mixed else [])], stdout=subprocess.PIPE, text=True
        )
        for share in shares
    ]
    total: collections.Counter = collections.Counter()
    for process in started:
        total.update(json.loads(process.communicate()[0]))
    return total


def be_clients(port: int, body: Path, seconds: float, threads: int, mixed: bool) -> None:
    """Ask until the time is over, in a process of clients."""
    data, counts = body.read_bytes(), collections.Counter[str]()
    headers = {"Content-Type": "application/x-npy"}
    # All processes have started by then.
    begin = time.monotonic() + 1.0
    lock = threading.Lock()

    def ask(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        own = collections.Counter[str]()
        time.sleep(max(0.0, begin - time.monotonic()))
        while time.monotonic() < begin + seconds:
            number += 1
            route = "/v1/rollout?steps=5" if mixed and number % 4 == 0 else "/v1/step"
            try:
                connection.request("POST", route, data, headers)
                answer = connection.getresponse()
                whole = answer.read()
                cut = route.startswith("/v1/rollout") and whole[-4:] != bytes(4)
                own["cut" if cut and answer.status == 200 else str(answer.status)] += 1
            except (OSError, http.client.HTTPException) as error:
                own[type(error).__name__] += 1
                connection.close()
        with lock:
            counts.update(own)

    asking = [threading.Thread(target=ask, args=(n,)) for n in range(threads)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    print(json.dumps(counts))


def compare(model: Path, body: Path, clients: int, seconds: float, rounds: int) -> None:
    servers = {
        "joined": Server(model, "--batch", "16", "--wait", "5"),
        "alone": Server(model, "--batch", "1", "--wait", "0"),
    }
    rates: dict[str, list[float]] = {name: [] for name in servers}
    for _ in range(rounds):
        for name, server in servers.items():
            counts = load(server.port, body, clients, seconds, mixed=False)
            rates[name].append(counts["200"] / seconds)
            print(f"{name}: {rates[name][-1]:.1f} requests/s, {dict(counts)}", flush=True)
    ratios = [a / b for a, b in zip(rates["joined"], rates["alone"], strict=True)]
    for name, server in servers.items():
        median, mean = statistics.median(rates[name]), server.mean_batch()
        print(f"{name}: median {median:.1f} requests/s, {mean:.1f} samples a model step")
        server.stop()
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"joined / alone: median {statistics.median(ratios):.2f} ({spread})")


def endure(model: Path, body: Path, clients: int, minutes: float) -> None:
    server = Server(model, "--queue", str(2 * clients))
    load(server.port, body, clients, 5.0, mixed=True)  # so that all is allocated
    before = server.memory()
    counts = load(server.port, body, clients, 60 * minutes, mixed=True)
    after, code = server.memory(), server.stop()
    total = sum(counts.values())
    print(f"{total} requests in {60 * minutes:g} s by {clients} clients: {dict(counts)}")
    print(f"errors: {total - counts['200']}; exit code {code}")
    print(f"memory of the server: {before:.0f} MB at the start, {after:.0f} MB at the end")


def main() -> None:
    if sys.argv[1:2] == ["--as-client"]:
        port, file, seconds, threads, *mixed = sys.argv[2:]
        be_clients(int(port), Path(file), float(seconds), int(threads), bool(mixed))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--preset", default="base")
    parser.add_argument("--minutes", type=float)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, preset {arguments.preset}, {arguments.clients} clients")
    with tempfile.TemporaryDirectory() as folder:
        model, body = make_model(Path(folder), arguments.preset), Path(folder, "fields.npy")
        if arguments.minutes is None:
            compare(model, body, arguments.clients, arguments.seconds, arguments.rounds)
        else:
            endure(model, body, arguments.clients, arguments.minutes)


if __name__ == "__main__":
    main()
