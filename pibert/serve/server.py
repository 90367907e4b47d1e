"""The server process: models, threads, socket and signals."""

import contextlib
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

try:
    import uvicorn

    from pibert.serve.app import Service, make_app
except ImportError as error:
    raise ImportError(
        f"serving needs FastAPI and uvicorn: pip install 'pibert-cfd[serve]' ({error})"
    ) from error

from pibert.serve.gate import LOOPBACK, Gate
from pibert.serve.limits import Limits
from pibert.serve.loading import load_served
from pibert.serve.metrics import Metrics
from pibert.serve.recordings import Recordings
from pibert.serve.worker import Worker

CONNECTIONS = 1000
"""At once; more are answered 503."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What to serve, and where."""

    models: Sequence[str]
    """Paths, or names of shipped models."""
    samples: Sequence[Path] = ()
    calibrations: Sequence[Path] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    """0: a free one."""
    device: str = "cpu"
    token: str | None = None
    limits: Limits = Limits()


def serve(setup: Setup, say: Callable[[str], None]) -> None:
    """Serve until a signal says to stop; ``say`` is told the address and the models."""
    served = load_served(setup.models, setup.device, setup.limits, setup.calibrations)
    recordings = Recordings(setup.samples, served.values())
    metrics = Metrics()
    workers = {name: Worker(own, setup.limits, metrics) for name, own in served.items()}
    service = Service(workers, recordings, setup.limits, metrics, lambda: gate.is_stopping)
    gate = Gate(
        make_app(service),
        metrics,
        seconds=setup.limits.seconds,
        token=setup.token,
        hosts=(*LOOPBACK, setup.host) if _is_loopback(setup.host) else None,
    )
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    with _bound(setup.host, setup.port) as listening:
        host = f"[{setup.host}]" if ":" in setup.host else setup.host
        say(f"Serving on http://{host}:{listening.getsockname()[1]}/")
        for name, own in served.items():
            kind, spec = own.predictor.card["model"]["name"], own.predictor.spec
            leads = 0 if own.trusted is None else own.trusted.calibration.leads
            bars = f", error bars for {leads} frames ahead" if leads else ""
            rows, columns = spec.grid.shape
            say(f"  {name}: {kind}, {' '.join(spec.channels)} on {rows} x {columns}{bars}")
        if recordings:
            say(f"  {len(recordings)} recordings")
        for worker in workers.values():
            worker.start()
        config = uvicorn.Config(
            gate,
            log_config=None,
            access_log=False,
            http="h11",
            ws="none",
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=int(setup.limits.seconds) + 1,
            server_header=False,
            proxy_headers=False,
        )
        _Server(config, gate).run(sockets=[listening])
    for worker in workers.values():
        worker.stop()


class _Server(uvicorn.Server):
    """Ends well on a signal; uvicorn would send it to itself again after the last answer."""

    def __init__(self, config: uvicorn.Config, gate: Gate) -> None:
        super().__init__(config)
        self._gate = gate

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
        listening.listen(CONNECTIONS)  # before anyone is told the address
        yield listening


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
