"""A server and a real Chromium for the tests of the console."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.edges.running import BOUND, Running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium; install the package chromium of the system")
    playwright.expect.set_options(timeout=1000 * BOUND)
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("console"), AGENTFORMER_CLEAN_EVERY="0")
    assert running.port, running.told()
    yield running
    running.close()


# Reports each violation of the policy as an error on the console, which `Seen` collects.
VIOLATIONS = """addEventListener("securitypolicyviolation", (event) =>
    console.error(`Violation: ${event.effectiveDirective} blocked ${event.blockedURI} ${event.sample}`))"""


class Seen:
    """A page, and what went wrong on it: errors of scripts, violations of the policy, and requests to other hosts."""

    def __init__(self, browser: Any, server: Running, path: str = "/", **options: Any) -> None:
        self.context = browser.new_context(
            **{"locale": "en-GB", "viewport": {"width": 1280, "height": 800}, "timezone_id": "UTC", **options}
        )
        self.context.add_init_script(VIOLATIONS)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.requests: list[Any] = []
        self.base = f"http://127.0.0.1:{server.port}"
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("console", self._message)
        self.page.on("dialog", lambda dialog: (self.wrong.append("a dialog opened"), dialog.dismiss()))
        self.page.on("request", self._request)
        self.page.goto(self.base + path)

    def _message(self, message: Any) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.wrong.append(message.text)

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.base, "blob:")):
            self.wrong.append(f"request to {request.url}")
        self.requests.append(request)

    def bytes(self) -> int:
        """The bytes of all responses so far, with their headers."""
        sizes = [request.sizes() for request in self.requests if not request.url.startswith("blob:")]
        return sum(size["responseBodySize"] + size["responseHeadersSize"] for size in sizes)


@pytest.fixture
def see(browser: Any, server: Running) -> Iterator[Any]:
    """Open a page; at the end, nothing may have gone wrong on it."""
    opened: list[Seen] = []

    def show(path: str = "/", **options: Any) -> Seen:
        seen = Seen(browser, server, path, **options)
        seen.page.set_default_timeout(1000 * BOUND)
        opened.append(seen)
        return seen

    yield show
    for seen in opened:
        seen.context.close()
        assert seen.wrong == []
