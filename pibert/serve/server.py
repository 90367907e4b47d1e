"""The server process: models, threads, socket and signals."""

import contextlib
import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

try:
    import uvicorn

    from pibert.serve.app import Service, make_app
except ImportError as error:
    raise ImportError(
        f"serving needs packages that are not installed: pip install 'pibert-cfd[serve]' ({error})"
    ) from error

from pibert.serve.gate import Gate, Metrics
from pibert.serve.limits import LOOPBACK, Budget, Limits, Returner
from pibert.serve.models import load_served
from pibert.serve.recordings import Recordings
from pibert.serve.worker import Worker

CONNECTIONS = 1000
"""At once; more are answered 503."""
IDLE = 20
"""Seconds that a connection may be without a request, or take for the headers of one; a tenth if
connections run out. Clients keep theirs for less, so they do not use one that is being closed."""


def serve(
    models: Sequence[str],
    report: Callable[[str], None],
    *,
    samples: Sequence[Path] = (),
    calibrations: Sequence[Path] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str = "cpu",
    token: str | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve models, by path or name, until a signal; port 0 is a free one.

    ``report`` gets lines with the address and the models.
    """
    limits = limits or Limits()
    served = load_served(models, device, limits, calibrations)
    recordings = Recordings(samples, served.values())
    metrics, budget = Metrics(), Budget(limits.work)
    workers = {name: Worker(model, limits, budget, metrics) for name, model in served.items()}
    service = Service(workers, recordings, limits, budget, metrics, lambda: gate.is_stopping)
    gate = Gate(
        make_app(service),
        metrics,
        seconds=limits.seconds,
        token=token,
        hosts=(*LOOPBACK, host) if _is_loopback(host) else None,
    )
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    with _bound(host, port) as listening:
        shown = f"[{host}]" if ":" in host else host
        report(f"Serving on http://{shown}:{listening.getsockname()[1]}/")
        for name, model in served.items():
            kind, spec = model.predictor.card["model"]["name"], model.predictor.spec
            leads = 0 if model.calibrated is None else model.calibrated.calibration.leads
            intervals = f", prediction intervals for {leads} frames" if leads else ""
            rows, columns = spec.grid.shape
            report(f"  {name}: {kind}, {' '.join(spec.channels)} on {rows} x {columns}{intervals}")
        if recordings:
            report(f"  {len(recordings)} recordings")
        for worker in workers.values():
            worker.start()
        config = uvicorn.Config(
            gate,
            log_config=None,
            access_log=False,
            http="h11",
            ws="none",
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=IDLE,
            timeout_graceful_shutdown=int(limits.seconds) + 1,
            server_header=False,
            proxy_headers=False,
        )
        _Server(config, gate, budget).run(sockets=[listening])
    for worker in workers.values():
        worker.stop()


class _Server(uvicorn.Server):
    """Exits normally on a signal; uvicorn would raise it again after the last answer.

    It also cuts idle connections, which uvicorn closes only between two requests of a client that
    reads its answers, and returns freed memory.
    """

    def __init__(self, config: uvicorn.Config, gate: Gate, budget: Budget) -> None:
        super().__init__(config)
        self._gate, self._returner = gate, Returner(budget)
        self._idle: dict[Any, tuple[Any, float]] = {}
        """By connection: its last request, and since when it has been without a next one."""

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # about once a second
            self._close_idle(time.monotonic())
            self._returner.tick(self._gate.num_requests)
        return await super().on_tick(counter)

    def _close_idle(self, now: float) -> None:
        """Cut connections that wait for the end of a request's headers, or to be closed."""
        idle = {}
        connections = self.server_state.connections
        seconds = IDLE if len(connections) < CONNECTIONS // 2 else IDLE / 10
        for connection in connections:
            cycle = getattr(connection, "cycle", None)
            is_open = cycle is not None and not cycle.response_complete
            if is_open and not connection.transport.is_closing():
                continue
            before = self._idle.get(connection)
            since = before[1] if before is not None and before[0] is cycle else now
            idle[connection] = (cycle, since)
            if now - since > seconds:
                connection.transport.abort()
        self._idle = idle

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit  # the second time
        self.should_exit = self._gate.is_stopping = True


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError as error:
            raise OSError(
                f"cannot listen on {host} port {port} ({error.strerror or error}); choose another "
                "with --port"
            ) from error
        listening.listen(CONNECTIONS)  # before the address is reported
        yield listening


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
