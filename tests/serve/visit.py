"""The page in a real browser."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.helpers import PATIENCE
from tests.serve.server_process import ServerProcess

sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
expect = sync_api.expect
expect.set_options(timeout=1000 * PATIENCE)

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
VIEWPORT = {"width": 1400, "height": 900}
SHAPE = (8, 12)
# The page draws what has changed before the next picture; drawing may change something once more.
DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"needs a browser, one of: {', '.join(NAMES)}")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        # Visits share its first window, where a page opens in half the time. The empty page keeps
        # the window open between them. The page stores nothing but in the session of its tab.
        started.new_context(viewport=VIEWPORT).new_page()
        yield started
        started.close()


class Visit:
    """A page, in a window of its own if there are options, with what it complained of."""

    def __init__(
        self, browser: Any, site: ServerProcess, *, script: str = "", **options: Any
    ) -> None:
        self.site, self.address = site, f"http://127.0.0.1:{site.port}/"
        self._is_alone = bool(options)
        self.context = browser.contexts[0]
        if self._is_alone:
            self.context = browser.new_context(**{"viewport": VIEWPORT} | options)
        self.context.set_default_timeout(1000 * PATIENCE)
        self.page = self.context.new_page()
        self.page.add_init_script(script)
        self.complaints: list[str] = []
        self.addresses: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.addresses.append(request.url))
        self.page.goto(self.address)

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def find(self, selector: str) -> Any:
        return self.page.locator(selector)

    def wait(self) -> "Visit":
        """Until no run goes on and there are frames of one, which are drawn."""
        self.wait_until_idle()
        expect(self.find("#save-frames")).to_be_enabled()
        expect(self.find("#stop")).to_be_disabled()
        return self

    def wait_until_idle(self) -> None:
        """Until all that was asked for is done and drawn: the status says what is under way."""
        expect(self.find("#status")).to_be_empty()
        self.settle()

    def settle(self) -> None:
        """Until what has changed is drawn."""
        self.page.evaluate(DRAWN)

    def run(self) -> "Visit":
        self.page.click("#run")
        return self.wait()

    def go_to(self, frame: int) -> None:
        self.find("#slider").fill(str(frame))
        expect(self.find("#when")).to_contain_text(f"frame {frame} of")

    def at(self, x: float, y: float, panel: str = "truth") -> tuple[float, float]:
        """Where a place in cells lies in the window."""
        self.settle()
        canvas = self.find(f"figure[data-panel={panel}] canvas").first
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        left, top, width, height = map(float, canvas.get_attribute("data-plot").split())
        ny, nx = SHAPE
        return box["x"] + left + x / nx * width, box["y"] + top + (1 - y / ny) * height

    def read(self, title: str) -> str:
        """What the readout says of a panel."""
        self.settle()
        spans = self.find("#readout span").all_inner_texts()
        return next(text[len(title) :].strip() for text in spans if text.startswith(title))

    def read_number(self, title: str) -> float:
        return float(self.read(title).split()[0].replace("−", "-"))

    def save(self, selector: str) -> bytes:
        with self.page.expect_download() as download:
            self.page.click(selector)
        return Path(download.value.path()).read_bytes()

    def table(self, study: str) -> dict[str, np.ndarray]:
        """A chart as it is saved: columns by name, NaN where a cell is empty."""
        head, *rows = self.save(f"[data-save={study}]").decode().splitlines()
        values = [[float(cell) if cell else np.nan for cell in row.split(",")] for row in rows]
        return dict(zip(head.split(","), np.array(values).T, strict=True))

    def send(self, name: str, data: bytes) -> None:
        """Choose a file; the page has opened it, or says why not."""
        sent = {"name": name, "mimeType": "application/octet-stream", "buffer": data}
        self.find("#file").set_input_files(sent)
        self.wait_until_idle()

    def leave(self) -> None:
        (self.context if self._is_alone else self.page).close()

    def close(self) -> None:
        """Nothing may have gone wrong, and no other host been asked."""
        self.leave()
        assert self.complaints == []
        hosts = {urlsplit(address.removeprefix("blob:")).netloc for address in self.addresses}
        assert hosts == {urlsplit(self.address).netloc}


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    made: list[Visit] = []

    def open_page(site: ServerProcess, **options: Any) -> Visit:
        made.append(Visit(browser, site, **options).wait())
        return made[-1]

    yield open_page
    for one in made:
        one.close()


@pytest.fixture
def lonely(visit: Callable[..., Visit], alone: ServerProcess) -> Visit:
    return visit(alone)
